//! `mast3r-slam engine build`.

use super::progress::BuildProgress;
use super::{BuildArgs, RecipeArgs};
use crate::cli::{CliError, Finished, complain, interrupt, readable, say};
use crate::gpu::plan::human;
use crate::inference::InferenceError;
use crate::inference::tensorrt::{
    self, Manifest, Observer, Order, Part, Recipe, Store, Target, list,
};
use crate::network::load_network;
use crate::network::onnx::Precision;
use crate::slam_builder::{MINI_WEIGHTS, find_asset, located};
use std::path::Path;
use std::sync::Arc;

/// Default image size.
const SIZE: [usize; 2] = [512, 384];

/// Runs the sub-command.
pub fn run(args: &BuildArgs) -> Result<Finished, CliError> {
    let here = tensorrt::target_here();
    let weights = match &args.weights {
        Some(path) => located(path)?,
        None => find_asset(MINI_WEIGHTS)?,
    };
    readable("the weights", &weights)?;
    let recipe = match &args.recipe {
        Some(path) => Some(read(path)?),
        None => None,
    };
    let recipe = recipe.as_ref();
    let precision = super::precision(args.precision.as_deref())?;
    let targets = match (recipe, args.target.is_empty()) {
        (Some(recipe), true) => recipe.targets.clone(),
        _ => targets(&args.target, here)?,
    };
    let parts = match (&args.parts, recipe) {
        (Some(names), _) => parts(names)?,
        (None, Some(recipe)) => recipe.parts.clone(),
        (None, None) => Part::USUAL.to_vec(),
    };
    let workspace = recipe.map(|r| r.workspace_mb.saturating_mul(1_000_000));
    let order = Order {
        weights: &weights,
        size: (args.size.map(|(width, height)| [width, height]))
            .or(recipe.map(|r| r.size))
            .unwrap_or(SIZE),
        batch: args.batch.or(recipe.map(|r| r.batch)).unwrap_or(1),
        parts: &parts,
        precision: precision
            .or(recipe.map(|r| r.precision))
            .unwrap_or(Precision::F16),
        targets,
        workspace: args.workspace.or(workspace),
        force: args.force,
    };
    let store = args.store.store();
    let manifest = build(&store, &order, here, !args.no_progress)?;
    if let Some(recipe) = recipe {
        let budget = recipe.memory_budget_mb.saturating_mul(1_000_000);
        let needed = manifest.device_bytes();
        if needed > budget {
            complain(&format!(
                "the engines need {} of GPU memory, the recipe's budget is {}",
                human(needed),
                human(budget)
            ));
        }
    }
    say(&store.folder_of(&manifest).display().to_string());
    Ok(Finished::Done)
}

/// Parses `--parts`.
fn parts(names: &[String]) -> Result<Vec<Part>, CliError> {
    let named = names.iter().filter(|name| !name.is_empty());
    let parsed = named.map(|name| {
        let parsed = name.parse();
        parsed.map_err(|error: String| CliError::Usage(format!("--parts {name}: {error}")))
    });
    parsed.collect()
}

/// Runs `engine recipe`.
pub fn recipe(args: &RecipeArgs) -> Result<Finished, CliError> {
    let recipe = read(&args.recipe)?;
    let weights = match &args.weights {
        Some(path) => located(path)?,
        None => find_asset(MINI_WEIGHTS)?,
    };
    readable("the weights", &weights)?;
    let network = load_network(&weights).map_err(InferenceError::from)?;
    let [width, height] = recipe.size;
    let prediction = (recipe.predict(&network))
        .ok_or_else(|| crate::cli::no_such_size(&network, (width, height)))?;
    let gpu = &recipe.gpu;
    say(&format!(
        "{}: {} for {}, {width}x{height}, batch {}, {}\n{}: dense {} TFLOPS in fp16, {} in fp8, {} GB/s ({})",
        recipe.name,
        recipe.tensorrt.name(),
        list(&recipe.targets),
        recipe.batch,
        recipe.precision,
        gpu.name,
        gpu.fp16_tflops,
        gpu.fp8_tflops,
        gpu.bandwidth_gb_s,
        gpu.source,
    ));
    for (name, step) in [
        ("encoder", prediction.encoder),
        ("decoder with heads", prediction.decoder),
    ] {
        say(&format!(
            "{name}: predicted (not measured) {:.1} ms: {:.0} GFLOP at {:.0} % of the peak take {:.1} ms, reading {:.0} MB of \
             weights once takes {:.1} ms",
            step.ms(),
            step.gflop,
            100.0 * gpu.efficiency,
            step.compute_ms,
            step.weights_mb,
            step.memory_ms,
        ));
    }
    Ok(Finished::Done)
}

/// Reads a recipe.
pub fn read(path: &Path) -> Result<Recipe, CliError> {
    readable("the recipe", path)?;
    Ok(Recipe::read(path).map_err(InferenceError::from)?)
}

/// Builds one order and shows progress.
pub fn build(
    store: &Store,
    order: &Order<'_>,
    here: Option<Target>,
    progress: bool,
) -> Result<Manifest, CliError> {
    let [width, height] = order.size;
    complain(&format!(
        "{} at {width}x{height} in {} for {}",
        order.weights.display(),
        order.precision,
        list(&order.targets)
    ));
    interrupt::install_for("ending the build; Ctrl-C again quits at once")?;
    let observer: Arc<dyn Observer> = Arc::new(BuildProgress::new(progress));
    let lock = store
        .lock(|| complain("another process is building engines here; waiting for it"))
        .map_err(InferenceError::from)?;
    let manifest = tensorrt::build(store, &lock, order, here, &observer);
    Ok(manifest.map_err(InferenceError::from)?)
}

/// The requested GPUs, or the one of this machine.
fn targets(asked: &[String], here: Option<Target>) -> Result<Vec<Target>, CliError> {
    let parsed: Result<Vec<Target>, CliError> = asked
        .iter()
        .map(|text| text.parse().map_err(|e| usage("--target", text, e)))
        .collect();
    let mut targets = parsed?;
    targets.sort();
    targets.dedup();
    match (targets.is_empty(), here) {
        (false, _) => Ok(targets),
        (true, Some(here)) => Ok(vec![here]),
        (true, None) => Err(CliError::Usage(
            "no GPU found on this machine; specify the target, such as --target sm_120".into(),
        )),
    }
}

fn usage(option: &str, text: &str, error: String) -> CliError {
    CliError::Usage(format!("{option} {text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_those_asked_for_or_the_one_here() {
        let orin = Target::new(8, 7);
        let texts = ["sm_120".to_owned(), "89".to_owned(), "sm_120".to_owned()];
        let both = targets(&texts, Some(orin)).expect("targets");
        assert_eq!(both, [Target::new(8, 9), Target::new(12, 0)]);
        assert_eq!(targets(&[], Some(orin)).expect("here"), [orin]);
        let error = targets(&[], None).unwrap_err();
        assert!(
            matches!(&error, CliError::Usage(m) if m.contains("--target")),
            "{error}"
        );
        let error = targets(&["fast".to_owned()], None).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }
}

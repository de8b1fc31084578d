//! `mast3r-slam engine build`.

use super::BuildArgs;
use super::progress::BuildProgress;
use crate::cli::{CliError, Finished, assets, complain, interrupt, readable, say};
use crate::inference::InferenceError;
use crate::inference::tensorrt::{
    self, Observer, Order, Precision, Store, Target, TensorRtError, list,
};
use std::path::PathBuf;
use std::sync::Arc;

/// What the command builds where nothing else is said.
const SIZE: (usize, usize) = (512, 384);

/// Runs the sub-command.
pub fn run(args: &BuildArgs) -> Result<Finished, CliError> {
    let here = tensorrt::target_here();
    let weights = match &args.weights {
        Some(path) => path.clone(),
        None => assets::find(assets::MINI_WEIGHTS)?,
    };
    readable("the weights", &weights)?;
    let precision = match &args.precision {
        Some(text) => text.parse().map_err(|e| usage("--precision", text, e))?,
        None => Precision::Fp16,
    };
    let targets = targets(&args.target, here)?;
    let (width, height) = args.size.unwrap_or(SIZE);
    let order = Order {
        weights: &weights,
        size: [width, height],
        batch: args.batch.unwrap_or(1),
        precision,
        targets,
        workspace: args.workspace,
        force: args.force,
    };
    let store = args.store.store();
    let folder = build(&store, &order, here, !args.no_progress)?;
    say(&folder.display().to_string());
    Ok(Finished::Done)
}

/// Builds one order, showing how far it is; the engine's folder.
pub fn build(
    store: &Store,
    order: &Order<'_>,
    here: Option<Target>,
    progress: bool,
) -> Result<PathBuf, CliError> {
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
    let manifest = match manifest {
        Err(TensorRtError::Cancelled) => {
            return Err(InferenceError::from(TensorRtError::Cancelled).into());
        }
        other => other.map_err(InferenceError::from)?,
    };
    Ok(store.folder_of(&manifest))
}

/// The GPUs asked for, or the one here.
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
            "this machine has no GPU that the program can see; say which one the engine is for, such as --target sm_120"
                .into(),
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

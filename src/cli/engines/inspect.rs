//! `mast3r-slam engine list` and `inspect`.

use super::{InspectArgs, StoreArgs, build};
use crate::cli::{CliError, Finished, say};
use crate::gpu::plan::human;
use crate::inference::InferenceError;
use crate::inference::tensorrt::{
    self, Found, Gpu, KindSum, LayerKind, Manifest, Part, Store, list as targets,
};
use serde_json::{Value, json};

/// Runs `engine list`.
pub fn list(args: &StoreArgs) -> Result<Finished, CliError> {
    let store = args.store();
    let engines = store.list().map_err(InferenceError::from)?;
    if engines.is_empty() {
        say(&format!("no engines in {}", store.folder().display()));
    }
    for (folder, manifest) in engines {
        match manifest {
            Ok(manifest) => say(&format!("{}\n  {}", folder.display(), summary(&manifest))),
            Err(error) => say(&format!("{}\n  unusable: {error}", folder.display())),
        }
    }
    Ok(Finished::Done)
}

/// Runs `engine inspect`.
pub fn run(args: &InspectArgs) -> Result<Finished, CliError> {
    let found = find(&args.store.store(), args)?;
    let recipe = args.recipe.as_deref().map(build::read).transpose()?;
    let gpu = recipe.as_ref().map(|recipe| &recipe.gpu);
    let mut parts = Vec::with_capacity(Part::ALL.len());
    for part in found.manifest.engines.iter().map(|engine| engine.part) {
        parts.push((
            part,
            tensorrt::inspect(&found, part).map_err(InferenceError::from)?,
        ));
    }
    if args.json {
        let manifest = serde_json::to_value(&found.manifest).unwrap_or(Value::Null);
        let layers: serde_json::Map<String, Value> = parts
            .iter()
            .map(|(part, found)| {
                let layers = match &found.json {
                    // The inspector writes JSON.
                    Some(text) => serde_json::from_str(text).unwrap_or(json!(text)),
                    None => json!(found.layers.lines().collect::<Vec<_>>()),
                };
                (part.name().to_owned(), layers)
            })
            .collect();
        let mut all = json!({ "manifest": manifest, "layers": layers });
        if args.kinds {
            let of_part = |(part, found): &(Part, tensorrt::Inspected)| {
                let sums = tensorrt::kinds(&found.layers, gpu);
                let rows = sums
                    .iter()
                    .map(|(kind, sum)| json!({ "kind": kind, "sum": sum }));
                (part.name().to_owned(), rows.collect::<Value>())
            };
            all["kinds"] = Value::Object(parts.iter().map(of_part).collect());
        }
        let text = serde_json::to_string_pretty(&all);
        say(&text.map_err(|e| CliError::Usage(e.to_string()))?);
        return Ok(Finished::Done);
    }
    say(&format!(
        "{}\n  {}",
        found.folder.display(),
        summary(&found.manifest)
    ));
    for (part, inspected) in parts {
        let Some(file) = found.manifest.engine(part) else {
            continue;
        };
        say(&format!(
            "{}: {} (CRC-32 {:08x}, matches the manifest), {} layers; GPU memory: {} for weights and {} while it \
             runs; built in {:.0} s",
            part.name(),
            human(file.bytes),
            file.crc32,
            file.layers,
            human(file.weight_bytes),
            human(file.activation_bytes),
            file.build_seconds,
        ));
        if let Some(why) = &inspected.not_loaded {
            say(&format!(
                "  not loaded here, so this is the builder's log: {why}"
            ));
        }
        if args.kinds {
            say(&kinds_table(&tensorrt::kinds(&inspected.layers, gpu), gpu));
        }
        if args.layers {
            say(inspected.json.as_deref().unwrap_or(&inspected.layers));
        }
    }
    Ok(Finished::Done)
}

/// The table of an engine's kernels by kind.
fn kinds_table(kinds: &[(LayerKind, KindSum)], gpu: Option<&Gpu>) -> String {
    let mut text = format!("  {:<30} {:>7} {:>9} {:>9}", "kind", "kernels", "Gop", "MB");
    if let Some(gpu) = gpu {
        text += &format!("  predicted ms on {}", gpu.name);
    }
    let mut row = |name: &str, sum: &KindSum| {
        text += &format!(
            "\n  {name:<30} {:>7} {:>9.2} {:>9.1}",
            sum.layers,
            sum.operations * 1e-9,
            sum.bytes * 1e-6
        );
        if let Some(ms) = sum.predicted_ms {
            text += &format!("  {ms:.3}");
        }
    };
    let mut all = KindSum::default();
    for (kind, sum) in kinds {
        row(kind.name(), sum);
        all.layers += sum.layers;
        all.operations += sum.operations;
        all.bytes += sum.bytes;
        if let Some(ms) = sum.predicted_ms {
            *all.predicted_ms.get_or_insert(0.0) += ms;
        }
    }
    row("all", &all);
    text
}

/// Finds an engine by path, or by name in the store.
fn find(store: &Store, args: &InspectArgs) -> Result<Found, CliError> {
    let folder = match args.engine.is_dir() {
        true => args.engine.clone(),
        false => store.folder().join(&args.engine),
    };
    let manifest = Manifest::read(&folder).map_err(InferenceError::from)?;
    Ok(Found { folder, manifest })
}

/// One-line summary of an engine.
fn summary(manifest: &Manifest) -> String {
    let m = manifest;
    let [width, height] = m.size;
    format!(
        "{} (encoder {}x{}, decoder {}x{}), {width}x{height}, batch {}, {}, {}; {} {}; by mast3r-slam {}",
        m.weights.name,
        m.network.encoder[1],
        m.network.encoder[0],
        m.network.decoder[1],
        m.network.decoder[0],
        m.batch,
        m.precision,
        targets(&m.targets),
        m.tensorrt.flavour.name(),
        m.tensorrt.version,
        m.program,
    )
}

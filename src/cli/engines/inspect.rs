//! `mast3r-slam engine list` and `inspect`.

use super::{InspectArgs, StoreArgs};
use crate::cli::{CliError, Finished, say};
use crate::gpu::plan::human;
use crate::inference::InferenceError;
use crate::inference::tensorrt::{self, Found, Manifest, Part, Store, list as targets};
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
        let all = json!({ "manifest": manifest, "layers": layers });
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
        if args.layers {
            say(inspected.json.as_deref().unwrap_or(&inspected.layers));
        }
    }
    Ok(Finished::Done)
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

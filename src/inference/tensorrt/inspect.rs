//! What an engine is made of.

use super::error::TensorRtError;
use super::manifest::Part;
use super::store::Found;
use super::{library, log};
use trtx::{LayerInformationFormat, Runtime};

/// What is known of one engine.
#[derive(Debug)]
pub struct Inspected {
    /// Its kernels, as the builder wrote them down.
    pub layers: String,
    /// What TensorRT's inspector says of the loaded engine.
    pub json: Option<String>,
    /// Why it could not be loaded here: TensorRT needs the GPU for it.
    pub not_loaded: Option<String>,
}

/// Checks one engine's file and, where there is a GPU for it, loads and inspects it.
///
/// # Errors
/// A file that is missing or damaged.
pub fn inspect(found: &Found, part: Part) -> Result<Inspected, TensorRtError> {
    let engine = found.read(part)?;
    let path = found.folder.join(part.layers_file());
    let layers = std::fs::read_to_string(&path).map_err(TensorRtError::io("read", &path))?;
    let (json, not_loaded) = match inspector(&engine) {
        Ok(json) => (Some(json), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(Inspected {
        layers,
        json,
        not_loaded,
    })
}

fn inspector(engine: &[u8]) -> Result<String, TensorRtError> {
    library::load()?;
    let logger = log::logger()?;
    let mut runtime = log::during("starting its runtime", || Runtime::new(logger))?;
    let engine = log::during("loading the engine", || {
        runtime.deserialize_cuda_engine(engine)
    })?;
    log::during("inspecting the engine", || {
        let inspector = engine.create_engine_inspector()?;
        inspector.engine_information(LayerInformationFormat::kJSON)
    })
}

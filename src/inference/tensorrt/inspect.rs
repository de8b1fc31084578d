//! Inspecting an engine.

use super::error::TensorRtError;
use super::manifest::Part;
use super::store::Found;
use super::{library, log};
use trtx::{LayerInformationFormat, Runtime};

#[derive(Debug)]
pub struct Inspected {
    /// Kernels, as listed by the builder.
    pub layers: String,
    /// Output of TensorRT's inspector for the loaded engine.
    pub json: Option<String>,
    /// Reason why the engine could not be loaded here: TensorRT needs its GPU for that.
    pub not_loaded: Option<String>,
}

/// Verifies the file of one engine and, if a GPU is available, loads and inspects it.
///
/// # Errors
/// The file is missing or damaged.
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

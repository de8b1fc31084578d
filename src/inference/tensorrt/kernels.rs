//! TensorRT-RTX compiles an engine's kernels for the GPU when they first run; this module caches
//! them on disk for later starts.

use super::log;
use crate::files;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trtx::{CudaEngine, RuntimeCache};

/// File name in an engine's folder.
const FILE: &str = "runtime.cache";

/// The compiled kernels of an engine folder.
pub(super) struct Kernels {
    path: PathBuf,
    cache: Arc<RuntimeCache>,
}

impl Kernels {
    /// Opens the cache of earlier starts. TensorRT itself rejects kernels of another GPU, driver or
    /// library; they are then replaced.
    pub(super) fn open(folder: &Path, engine: &mut CudaEngine<'static>) -> Option<Self> {
        let made = log::during("making a cache of kernels", || {
            engine.create_runtime_config()?.create_runtime_cache()
        });
        let cache = match made {
            Ok(cache) => cache,
            Err(error) => {
                tracing::warn!("every start will compile the engine's kernels: {error}");
                return None;
            }
        };
        let path = folder.join(FILE);
        if let Ok(bytes) = std::fs::read(&path)
            && let Err(error) = cache.deserialize(&bytes)
        {
            tracing::info!("{}: recompiling the kernels: {error}", path.display());
        }
        Some(Self {
            path,
            cache: Arc::new(cache),
        })
    }

    /// The cache for an execution context.
    pub(super) fn cache(&self) -> Arc<RuntimeCache> {
        Arc::clone(&self.cache)
    }

    /// Writes the kernels compiled so far, if any are new. A failure to write costs only time.
    pub(super) fn save(&self) {
        let saved = self.cache.serialize().map_err(|e| e.to_string());
        let saved = saved.and_then(|bytes| {
            if std::fs::read(&self.path).is_ok_and(|old| old[..] == bytes[..]) {
                return Ok(());
            }
            files::write_bytes(&self.path, &bytes).map_err(|e| e.to_string())
        });
        if let Err(error) = saved {
            tracing::warn!(
                "{}: cannot save the compiled kernels, so the next start will compile them again: {error}",
                self.path.display()
            );
        }
    }
}

//! The MASt3R network: checkpoint reading, architecture, ONNX export.

pub mod architecture;
pub mod checkpoint;
mod digest;
pub mod dune;
pub mod e4m3;
pub mod flops;
mod input_size;
pub mod onnx;
pub mod pickle;
pub mod pth;
mod stack;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use architecture::{Architecture, Hints, Network};
pub use checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};
pub use digest::{hash, identity};
pub use input_size::{InputSize, PATCH};
pub use stack::Stack;

/// Magic bytes of every zip archive, and so of every `.pth` since PyTorch 1.6.
const ZIP_MAGIC: &[u8] = b"PK";

/// Reads a weights file, `.pth` or safetensors, distinguished by content rather than by name.
///
/// # Errors
/// See [`CheckpointError`].
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    load_by(path, pth::read)
}

fn load_by(
    path: &Path,
    read_pth: fn(&Path) -> Result<Checkpoint, CheckpointError>,
) -> Result<Checkpoint, CheckpointError> {
    let io = |source| CheckpointError::Io {
        path: path.to_owned(),
        source,
    };
    let mut start = Vec::with_capacity(16);
    let file = std::fs::File::open(path).map_err(io)?;
    file.take(9).read_to_end(&mut start).map_err(io)?;
    if start.starts_with(ZIP_MAGIC) {
        return read_pth(path);
    }
    // A safetensors file starts with an 8-byte header length, then the header, a JSON object.
    if start.len() == 9 && start[8] == b'{' {
        return checkpoint::read_safetensors(path);
    }
    Err(CheckpointError::Format {
        path: path.to_owned(),
        expected: "weights as .pth (a zip archive) or .safetensors".into(),
        found: match start.len() {
            0 => "an empty file".into(),
            9 => "neither header; if it is a .pth from before PyTorch 1.6, save it again with a \
                  newer version"
                .into(),
            bytes => format!("a truncated file of {bytes} bytes; download it again"),
        },
    })
}

/// Reads and checks a network. The number of heads comes from the checkpoint's own constructor
/// string or from a `.json` file next to the weights, see [`Hints`].
///
/// # Errors
/// See [`CheckpointError`].
pub fn load_network(path: &Path) -> Result<Network, CheckpointError> {
    let mut checkpoint = load(path)?;
    if let Some(encoder) = encoder_file(path, &checkpoint)? {
        dune::add_encoder(&mut checkpoint, load(&encoder)?);
    }
    let own = checkpoint.model_args.as_deref().map(Hints::from_model_args);
    let mut own = own.unwrap_or_default();
    if dune::is(&checkpoint) {
        // The constructor string describes MASt3R's encoder, which DUNE's replaces.
        own.enc_num_heads = None;
    }
    let hints = own.or(Hints::beside(path)?);
    Network::new(path, checkpoint, &hints)
}

/// The encoder file required by the decoder-only checkpoint at `path`, if it is one.
fn encoder_file(path: &Path, checkpoint: &Checkpoint) -> Result<Option<PathBuf>, CheckpointError> {
    let Some(places) = dune::encoder_beside(path, checkpoint) else {
        return Ok(None);
    };
    let found = places.iter().find(|place| place.is_file()).cloned();
    found.map(Some).ok_or_else(|| CheckpointError::Format {
        path: path.to_owned(),
        expected: match places.first() {
            Some(place) => format!(
                "DUNE's encoder in the same folder, as {}",
                place.file_name().unwrap_or_default().to_string_lossy()
            ),
            None => {
                "the name of DUNE's encoder (dune_backbone_name), as in the published files".into()
            }
        },
        found: "only the decoder of a DUNE-MASt3R".into(),
    })
}

/// The files that make up the weights at `path`: that file, and its encoder file if it is
/// decoder-only. A file that is not a network consists of itself alone.
///
/// # Errors
/// [`CheckpointError::Io`]; [`CheckpointError::Format`] if the encoder file is missing.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let encoder = match load_by(path, pth::look) {
        Ok(checkpoint) => encoder_file(path, &checkpoint)?,
        Err(error @ CheckpointError::Io { .. }) => return Err(error),
        Err(_) => None,
    };
    Ok([path.to_owned()].into_iter().chain(encoder).collect())
}

/// The hash of a weights file, computed when it is first needed: a file of gigabytes takes seconds.
#[derive(Debug, Clone, Default)]
pub struct WeightsHash {
    path: Option<PathBuf>,
    hash: Arc<OnceLock<String>>,
}

impl WeightsHash {
    /// That of the weights at `path`.
    pub fn of(path: &Path) -> Self {
        Self {
            path: Some(path.to_owned()),
            hash: Arc::default(),
        }
    }

    /// A hash that is known; tests give their networks one.
    pub fn known(hash: &str) -> Self {
        Self {
            path: None,
            hash: Arc::new(OnceLock::from(hash.to_owned())),
        }
    }

    /// SHA-256 in hexadecimal digits, as [`hash`] computes it; empty where there are no weights.
    ///
    /// # Errors
    /// See [`hash`].
    pub fn get(&self) -> Result<String, CheckpointError> {
        if let Some(hash) = self.hash.get() {
            return Ok(hash.clone());
        }
        let Some(path) = &self.path else {
            return Ok(String::new());
        };
        let hash = hash(path)?;
        Ok(self.hash.get_or_init(|| hash).clone())
    }
}

/// Side of a patch in pixels for the weights at `path`; image sides must be multiples of it.
///
/// # Errors
/// See [`CheckpointError`]; completeness of the weights is not checked.
pub fn patch_size(path: &Path) -> Result<usize, CheckpointError> {
    Ok(match dune::is(&load_by(path, pth::look)?) {
        true => dune::PATCH,
        false => PATCH,
    })
}

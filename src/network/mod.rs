//! What MASt3R is: checkpoint reading, the description of the network, ONNX emission.

pub mod architecture;
pub mod checkpoint;
pub mod dune;
pub mod flops;
pub mod onnx;
pub mod pickle;
pub mod pth;

use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

pub use architecture::{Architecture, Hints, Network};
pub use checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};

/// Every zip archive, and so every `.pth` since PyTorch 1.6, starts with this.
const ZIP_MAGIC: &[u8] = b"PK";

/// Reads a weights file, `.pth` or safetensors, told apart by content and not by name.
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
    // The length of the header, then the header, a JSON object.
    if start.len() == 9 && start[8] == b'{' {
        return checkpoint::read_safetensors(path);
    }
    Err(CheckpointError::Format {
        path: path.to_owned(),
        expected: "weights as .pth (a zip archive) or .safetensors".into(),
        found: match start.len() {
            0 => "an empty file".into(),
            9 => "a file that begins like neither; if it is a .pth from before PyTorch 1.6, save \
                  it again with a newer one"
                .into(),
            bytes => format!("only {bytes} bytes: the file was cut short, fetch it again"),
        },
    })
}

/// Reads and checks a network. Numbers of heads come from the checkpoint's own constructor string
/// or from a `.json` file beside the weights, see [`Hints`].
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
        // It speaks of the encoder that DUNE's takes the place of.
        own.enc_num_heads = None;
    }
    let hints = own.or(Hints::beside(path)?);
    Network::new(path, checkpoint, &hints)
}

/// The file with the encoder that the decoder at `path` is to have, if it is one.
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
            None => "the name of DUNE's encoder, as naver's files have it".into(),
        },
        found: "only the decoder of a DUNE-MASt3R".into(),
    })
}

/// The files that the weights at `path` consist of: that one, and the one with its encoder if it has none. What
/// is no network consists of itself.
///
/// # Errors
/// [`CheckpointError::Io`]; [`CheckpointError::Format`] where an encoder is missing.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let encoder = match load_by(path, pth::look) {
        Ok(checkpoint) => encoder_file(path, &checkpoint)?,
        Err(error @ CheckpointError::Io { .. }) => return Err(error),
        Err(_) => None,
    };
    Ok([path.to_owned()].into_iter().chain(encoder).collect())
}

/// Pixels of a patch's side, of which an image's sides must be multiples, of the weights at `path`.
///
/// # Errors
/// See [`CheckpointError`]; whether the weights are complete is not looked at.
pub fn patch_size(path: &Path) -> Result<usize, CheckpointError> {
    Ok(match dune::is(&load_by(path, pth::look)?) {
        true => dune::PATCH,
        false => architecture::PATCH,
    })
}

/// SHA-256 of the weights at `path` in hexadecimal, of two files behind each other: what engines and codebooks
/// are bound to.
///
/// # Errors
/// See [`CheckpointError`].
pub fn hash(path: &Path) -> Result<String, CheckpointError> {
    let mut hasher = Sha256::new();
    for path in files(path)? {
        let io = |source| CheckpointError::Io {
            path: path.clone(),
            source,
        };
        let mut file = std::fs::File::open(&path).map_err(io)?;
        std::io::copy(&mut file, &mut hasher).map_err(io)?;
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect())
}

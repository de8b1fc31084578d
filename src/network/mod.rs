//! What MASt3R is: checkpoint reading, the description of the network, ONNX emission.

pub mod architecture;
pub mod checkpoint;
pub mod flops;
pub mod onnx;
pub mod pickle;
pub mod pth;

use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;

pub use architecture::{Architecture, Hints, Network};
pub use checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};

/// Every zip archive, and so every `.pth` since PyTorch 1.6, starts with this.
const ZIP_MAGIC: &[u8] = b"PK";

/// Reads a weights file, `.pth` or safetensors, told apart by content and not by name.
///
/// # Errors
/// See [`CheckpointError`].
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let io = |source| CheckpointError::Io {
        path: path.to_owned(),
        source,
    };
    let mut start = Vec::with_capacity(16);
    let file = std::fs::File::open(path).map_err(io)?;
    file.take(9).read_to_end(&mut start).map_err(io)?;
    if start.starts_with(ZIP_MAGIC) {
        return pth::read(path);
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
    let checkpoint = load(path)?;
    let own = checkpoint.model_args.as_deref().map(Hints::from_model_args);
    let hints = own.unwrap_or_default().or(Hints::beside(path)?);
    Network::new(path, checkpoint, &hints)
}

/// SHA-256 of a weights file in hexadecimal: what engines and codebooks are bound to.
///
/// # Errors
/// [`CheckpointError::Io`].
pub fn hash(path: &Path) -> Result<String, CheckpointError> {
    let io = |source| CheckpointError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = std::fs::File::open(path).map_err(io)?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher).map_err(io)?;
    Ok(hasher
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect())
}

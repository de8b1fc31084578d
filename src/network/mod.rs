//! What MASt3R is: checkpoint reading, the description of the network, ONNX emission.

pub mod architecture;
pub mod checkpoint;
pub mod onnx;
pub mod pickle;
pub mod pth;

use std::io::Read;
use std::path::Path;

pub use architecture::{Architecture, Hints, Network};
pub use checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};

/// Reads a weights file: a `.pth` archive or safetensors, told by its content and not by its name.
///
/// # Errors
/// See [`CheckpointError`].
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let mut magic = [0u8; 2];
    let is_zip = std::fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut magic))
        .is_ok_and(|()| &magic == b"PK");
    if is_zip {
        pth::read(path)
    } else {
        checkpoint::read_safetensors(path)
    }
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

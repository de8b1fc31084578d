//! What MASt3R is: checkpoint reading, the description of the network, ONNX emission.

pub mod checkpoint;
pub mod pickle;
pub mod pth;

pub use checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor};

//! Network inference: one trait, several runtimes.

mod activations;
mod check;
pub mod compare;
pub mod cpu;
#[cfg(feature = "cuda")]
mod device;
mod expect;
#[cfg(feature = "cuda")]
mod host;
#[cfg(feature = "cuda")]
pub mod native;
#[cfg(feature = "onnxruntime")]
pub mod onnxruntime;
#[cfg(feature = "tensorrt")]
pub mod tensorrt;

pub use check::{MAX_CONFIDENCE, sanitise, self_test};
#[cfg(feature = "cuda")]
pub(crate) use device::single_precision;
#[cfg(feature = "cuda")]
pub use device::{DeviceBackend, DeviceView, Holding, LayerTime};

use crate::image::RgbImage;
use crate::network::InputSize;
use crate::network::onnx::Precision;
use crate::network::{Architecture, CheckpointError, Network};

/// Input and output sizes of a loaded network. `N = width * height`, `T = N / patch²`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkShape {
    /// Input width in pixels, a multiple of the patch side.
    pub width: usize,
    /// Input height in pixels, a multiple of the patch side.
    pub height: usize,
    /// Tokens per image.
    pub tokens: usize,
    /// Channels per encoder token.
    pub feature_dim: usize,
    /// Channels per descriptor.
    pub descriptor_dim: usize,
}

impl NetworkShape {
    /// The shape of a network for input images of `size`.
    fn of(network: &Network, size: &InputSize) -> Self {
        Self {
            width: size.width,
            height: size.height,
            tokens: size.tokens(),
            feature_dim: network.architecture.encoder.width,
            descriptor_dim: network.architecture.descriptor_dim,
        }
    }

    /// Side of a patch in pixels.
    pub fn patch(&self) -> usize {
        (self.pixels() / self.tokens.max(1)).isqrt()
    }

    /// Pixels of one token: their errors are not independent.
    pub fn pixels_per_patch(&self) -> f64 {
        self.pixels() as f64 / self.tokens.max(1) as f64
    }

    /// Number of input pixels.
    pub fn pixels(&self) -> usize {
        self.width * self.height
    }
}

/// Dense outputs of one view, for every pixel in row-major order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ViewOutput {
    /// `N × 3`: points in the camera frame of view 1, in the metric scale of the network.
    pub points: Vec<f32>,
    /// `N`: confidence of the point, `1 + exp(κ)`.
    pub confidence: Vec<f32>,
    /// `N × D`: unit descriptors.
    pub descriptors: Vec<f32>,
    /// `N`: confidence of the descriptor, `exp(ω)`.
    pub descriptor_confidence: Vec<f32>,
}

impl ViewOutput {
    /// Zero-filled buffers for `shape`.
    pub fn zeros(shape: &NetworkShape) -> Self {
        let n = shape.pixels();
        Self {
            points: vec![0.0; n * 3],
            confidence: vec![0.0; n],
            descriptors: vec![0.0; n * shape.descriptor_dim],
            descriptor_confidence: vec![0.0; n],
        }
    }
}

/// Outputs of one decoder pass for both views.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairOutput {
    /// View 1, the reference camera.
    pub view1: ViewOutput,
    /// View 2; its points are also in the camera frame of view 1.
    pub view2: ViewOutput,
}

impl PairOutput {
    /// Zero-filled buffers for `shape`.
    pub fn zeros(shape: &NetworkShape) -> Self {
        Self {
            view1: ViewOutput::zeros(shape),
            view2: ViewOutput::zeros(shape),
        }
    }
}

/// A network loaded for one input size.
pub trait Backend: Send {
    /// Shapes of all inputs and outputs.
    fn shape(&self) -> &NetworkShape;
    /// Name and version of the runtime, for reports.
    fn name(&self) -> String;
    /// Precision of its matrix products.
    fn precision(&self) -> Precision {
        Precision::F32
    }
    /// Another handle to the same weights, for another thread.
    fn share(&self) -> Box<dyn Backend>;
    /// Encodes an image of exactly `shape().width × shape().height`; `features` is `T × C`.
    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError>;
    /// Decodes a pair of encoded images; both inputs are `T × C`.
    fn decode(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError>;
    /// Like [`Backend::decode`], but only view 1 of `out` is needed (used to decode a single
    /// image).
    fn decode_view1(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.decode(features1, features2, out)
    }
    /// Access to the network in GPU memory, if it runs on a GPU.
    #[cfg(feature = "cuda")]
    fn device(&mut self) -> Option<&mut dyn DeviceBackend> {
        None
    }
}

/// Inference error.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum InferenceError {
    /// The weights cannot be used.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// A buffer or image has the wrong size.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        what: &'static str,
        expected: String,
        found: String,
    },
    /// The runtime is missing or cannot run the network.
    #[error("{runtime} cannot be used: {reason}")]
    Unavailable {
        runtime: &'static str,
        reason: String,
    },
    /// The runtime reported an error.
    #[error("{runtime} failed while {doing}: {message}")]
    Runtime {
        runtime: &'static str,
        doing: &'static str,
        message: String,
    },
    /// The GPU refused.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] crate::gpu::CudaError),
    /// TensorRT or its engine cannot be used.
    #[cfg(feature = "tensorrt")]
    #[error(transparent)]
    TensorRt(#[from] tensorrt::TensorRtError),
    /// The network runs but its outputs are implausible (all zero, not finite).
    #[error("the network's self-test failed: {0}")]
    SelfTest(String),
}

/// The size of one image for `network`.
fn input_size(network: &Network, width: usize, height: usize) -> Result<InputSize, InferenceError> {
    let size = network.architecture.input_size(1, width, height);
    size.ok_or_else(|| no_such_size(&network.architecture, width, height))
}

/// The error for images of a size that the network does not take.
fn no_such_size(architecture: &Architecture, width: usize, height: usize) -> InferenceError {
    InferenceError::Shape {
        what: "network input",
        expected: format!(
            "a width and a height that are positive multiples of {}",
            architecture.patch()
        ),
        found: format!("{width}x{height}"),
    }
}

/// `rgb / 127.5 − 1`, from interleaved `H × W × 3` bytes to `3 × H × W` floats.
pub(crate) fn normalise(image: &RgbImage, out: &mut [f32]) {
    let plane = out.len() / 3;
    let (red, rest) = out.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    let level = |byte: u8| f32::from(byte) / 127.5 - 1.0;
    let planes = red.iter_mut().zip(green).zip(blue);
    let (pixels, _) = image.data.as_chunks::<3>();
    for (((r, g), b), &[red, green, blue]) in planes.zip(pixels) {
        (*r, *g, *b) = (level(red), level(green), level(blue));
    }
}

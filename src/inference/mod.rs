//! Running the network: one trait, several runtimes.

mod activations;
mod check;
pub mod compare;
pub mod cpu;
mod device;
mod expect;
#[cfg(feature = "onnxruntime")]
pub mod onnxruntime;
#[cfg(feature = "tensorrt")]
pub mod tensorrt;

pub use check::{MAX_CONFIDENCE, sanitise, self_test};
pub use device::{DeviceBackend, DeviceSpan, DeviceViewOutput};

use crate::image::RgbImage;
use crate::network::onnx::InputSize;
use crate::network::{CheckpointError, Network};

/// What a loaded network takes and gives. `N = width * height`, `T = N / patch²`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkShape {
    /// Input width in pixels, a multiple of the patch's side.
    pub width: usize,
    /// Input height in pixels, a multiple of the patch's side.
    pub height: usize,
    /// Tokens per image.
    pub tokens: usize,
    /// Channels of an encoder token.
    pub feature_dim: usize,
    /// Channels of a descriptor.
    pub descriptor_dim: usize,
}

impl NetworkShape {
    /// Of a network that takes images of `size`.
    fn of(network: &Network, size: &InputSize) -> Self {
        Self {
            width: size.width,
            height: size.height,
            tokens: size.tokens(),
            feature_dim: network.architecture.encoder.width,
            descriptor_dim: network.architecture.descriptor_dim,
        }
    }

    /// Pixels of a patch's side.
    pub fn patch(&self) -> usize {
        (self.pixels() / self.tokens.max(1)).isqrt()
    }

    /// Pixels of the input.
    pub fn pixels(&self) -> usize {
        self.width * self.height
    }
}

/// One view's dense outputs, for every pixel in row-major order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ViewOutput {
    /// `N × 3`: points in the camera frame of view 1, metres as the network predicts them.
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

/// Both views' outputs of one decoder pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairOutput {
    /// View 1, the reference camera.
    pub view1: ViewOutput,
    /// View 2; its points too are in the camera frame of view 1.
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

/// A loaded network on some runtime, for one input size.
pub trait Backend: Send {
    /// The shapes that every call uses.
    fn shape(&self) -> &NetworkShape;
    /// The runtime's name and version, for reports.
    fn name(&self) -> String;
    /// Another handle on the same weights, for another thread.
    fn share(&self) -> Box<dyn Backend>;
    /// Encodes one image of exactly `shape().width × shape().height`; `features` is `T × C`.
    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError>;
    /// Decodes a pair of encoded images; both slices are `T × C`.
    fn decode(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError>;
    /// As [`Backend::decode`], but only `out` of view 1 is wanted (mono inference uses just that).
    fn decode_view1(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.decode(features1, features2, out)
    }
    /// The network in the memory of the GPU that it runs on, if it runs on one.
    fn device(&mut self) -> Option<&mut dyn DeviceBackend> {
        None
    }
}

/// Why the network could not be run.
#[derive(Debug, thiserror::Error)]
pub enum InferenceError {
    /// The weights cannot be used.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
    /// A buffer or image of the wrong size.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// Which buffer.
        what: &'static str,
        /// Its size by the network's shape.
        expected: String,
        /// Its size as given.
        found: String,
    },
    /// The runtime is not there, or cannot run the network here.
    #[error("{runtime} cannot be used: {reason}")]
    Unavailable {
        /// The runtime's name.
        runtime: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// The runtime refused.
    #[error("{runtime} failed while {doing}: {message}")]
    Runtime {
        /// The runtime's name.
        runtime: &'static str,
        /// What was asked of it.
        doing: &'static str,
        /// Its own words.
        message: String,
    },
    /// TensorRT or its engine cannot be used.
    #[cfg(feature = "tensorrt")]
    #[error(transparent)]
    TensorRt(#[from] tensorrt::TensorRtError),
    /// The network ran but what it gives cannot be true (all zero, not finite).
    #[error("the network's self-test failed: {0}")]
    SelfTest(String),
}

/// The size of one image for `network`.
fn input_size(network: &Network, width: usize, height: usize) -> Result<InputSize, InferenceError> {
    let size = network.architecture.input_size(1, width, height);
    size.ok_or_else(|| InferenceError::Shape {
        what: "network input",
        expected: format!(
            "a width and a height that are positive multiples of {}",
            network.architecture.patch()
        ),
        found: format!("{width}x{height}"),
    })
}

/// `rgb / 127.5 − 1`, channels first: interleaved `H × W × 3` bytes to `3 × H × W` floats.
fn normalise(image: &RgbImage, out: &mut [f32]) {
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

//! The CPU backend, which runs the ONNX model with `rten`.

use std::path::Path;
use std::sync::Arc;

use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensorView, Tensor};

use super::activations::{RawView, finish};
use super::{
    Backend, InferenceError, NetworkShape, PairOutput, ViewOutput, expect, input_size, self_test,
};
use crate::image::RgbImage;
use crate::network::onnx::{OnnxModel, names};
use crate::network::{Network, load_network};

const RUNTIME: &str = "rten";
/// The version requested in `Cargo.toml`.
const RUNTIME_VERSION: &str = "0.27";
/// Name of the weights passed alongside the graph.
const WEIGHTS: &str = "weights.data";

/// Points with confidence, descriptors, and descriptor confidence.
const OUTPUTS_PER_VIEW: usize = 3;

/// The network on the CPU for one input size.
pub struct CpuBackend {
    loaded: Arc<Loaded>,
    /// The encoder's input image, `3 × H × W`.
    normalised: Vec<f32>,
}

/// Data shared by all handles of one network.
struct Loaded {
    shape: NetworkShape,
    encoder: Model,
    decoder: Model,
    image_id: NodeId,
    features_id: NodeId,
    view_features_ids: [NodeId; 2],
    /// Raw points, descriptors and descriptor confidence of view 1, then of view 2.
    output_ids: [NodeId; 2 * OUTPUTS_PER_VIEW],
    pool: Arc<ThreadPool>,
    threads: usize,
}

impl CpuBackend {
    /// Reads the weights (safetensors or `.pth`), builds the network for images of `width ×
    /// height`, both multiples of the patch side, and runs [`self_test`]. `threads` is the number
    /// of threads per call; outputs are reproducible bit for bit.
    ///
    /// # Errors
    /// [`InferenceError::Weights`] if the file cannot be used, [`InferenceError::Shape`] for an
    /// invalid size or zero threads, [`InferenceError::SelfTest`] if the network runs but its
    /// outputs are wrong.
    pub fn load(
        weights: &Path,
        width: usize,
        height: usize,
        threads: usize,
    ) -> Result<Self, InferenceError> {
        let mut backend = Self::new(&load_network(weights)?, width, height, threads)?;
        self_test(&mut backend)?;
        Ok(backend)
    }

    /// Builds the network for images of `width × height` from weights already read, without testing
    /// it.
    ///
    /// # Errors
    /// [`InferenceError::Shape`] for an invalid size or zero threads.
    pub fn new(
        network: &Network,
        width: usize,
        height: usize,
        threads: usize,
    ) -> Result<Self, InferenceError> {
        let size = input_size(network, width, height)?;
        if threads == 0 {
            return Err(InferenceError::Shape {
                what: "threads of the network",
                expected: "at least 1".into(),
                found: "0".into(),
            });
        }
        let encoder = build(network.encoder(size), "loading the encoder")?;
        let decoder = build(network.raw_decoder(size), "loading the decoder")?;
        let output = |view: usize, output: usize| {
            let outputs = [
                names::RAW_POINTS,
                names::RAW_DESCRIPTORS,
                names::RAW_DESCRIPTOR_CONFIDENCE,
            ];
            id(&decoder, outputs[output][view])
        };
        let output_ids = [
            output(0, 0)?,
            output(0, 1)?,
            output(0, 2)?,
            output(1, 0)?,
            output(1, 1)?,
            output(1, 2)?,
        ];
        let loaded = Loaded {
            shape: NetworkShape::of(network, &size),
            image_id: id(&encoder, names::IMAGE)?,
            features_id: id(&encoder, names::FEATURES)?,
            view_features_ids: [
                id(&decoder, names::VIEW_FEATURES[0])?,
                id(&decoder, names::VIEW_FEATURES[1])?,
            ],
            output_ids,
            encoder,
            decoder,
            pool: Arc::new(ThreadPool::with_num_threads(threads)),
            threads,
        };
        Ok(Self {
            loaded: Arc::new(loaded),
            normalised: vec![0.0; 3 * width * height],
        })
    }

    fn options(&self) -> RunOptions {
        RunOptions::default().with_thread_pool(Some(self.loaded.pool.clone()))
    }

    /// Runs the decoder for the first `outs.len()` views; nodes needed only for other outputs are
    /// skipped.
    fn run_decoder(
        &self,
        features: [&[f32]; 2],
        outs: &mut [&mut ViewOutput],
    ) -> Result<(), InferenceError> {
        const DOING: &str = "decoding";
        let shape = &self.loaded.shape;
        let extents = [1, shape.tokens, shape.feature_dim];
        let mut inputs = Vec::with_capacity(2);
        for (id, features) in self.loaded.view_features_ids.into_iter().zip(features) {
            expect::features(features, shape)?;
            let view = NdTensorView::from_data(extents, features);
            inputs.push((id, ValueOrView::from(view)));
        }
        let (n, d) = (shape.pixels(), shape.descriptor_dim);
        for out in outs.iter() {
            expect::view(out, shape)?;
        }
        let ids = &self.loaded.output_ids[..outs.len() * OUTPUTS_PER_VIEW];
        let values = self
            .loaded
            .decoder
            .run(inputs, ids, Some(self.options()))
            .map_err(|e| failure(DOING, e))?;
        let tensors = values
            .into_iter()
            .map(|value| value.try_into().map_err(|e| failure(DOING, e)))
            .collect::<Result<Vec<Tensor<f32>>, _>>()?;
        for (raw, out) in tensors.chunks_exact(OUTPUTS_PER_VIEW).zip(outs) {
            let [points, descriptors, confidence] = [0, 1, 2].map(|i| raw[i].to_slice());
            expect::values("raw points", n * 4, points.len())?;
            expect::values("raw descriptors", n * d, descriptors.len())?;
            expect::values("raw descriptor confidence", n, confidence.len())?;
            let raw = RawView {
                points: &points,
                descriptors: &descriptors,
                descriptor_confidence: &confidence,
            };
            self.loaded.pool.run(|| finish(&raw, shape, out));
        }
        Ok(())
    }
}

impl Backend for CpuBackend {
    fn shape(&self) -> &NetworkShape {
        &self.loaded.shape
    }

    fn name(&self) -> String {
        format!(
            "{RUNTIME} {RUNTIME_VERSION} (CPU, {} threads)",
            self.loaded.threads
        )
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            loaded: Arc::clone(&self.loaded),
            normalised: vec![0.0; self.normalised.len()],
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        const DOING: &str = "encoding";
        let shape = &self.loaded.shape;
        expect::image(image, shape)?;
        expect::features(features, shape)?;
        super::normalise(image, &mut self.normalised);
        let input =
            NdTensorView::from_data([1, 3, shape.height, shape.width], &self.normalised[..]);
        let mut values = self
            .loaded
            .encoder
            .run(
                vec![(self.loaded.image_id, input.into())],
                &[self.loaded.features_id],
                Some(self.options()),
            )
            .map_err(|e| failure(DOING, e))?;
        let value = values.pop().ok_or_else(|| failure(DOING, "no output"))?;
        let tensor: Tensor<f32> = value.try_into().map_err(|e| failure(DOING, e))?;
        expect::values("encoder output", features.len(), tensor.len())?;
        features.copy_from_slice(&tensor.to_slice());
        Ok(())
    }

    fn decode(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.run_decoder(
            [features1, features2],
            &mut [&mut out.view1, &mut out.view2],
        )
    }

    fn decode_view1(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.run_decoder([features1, features2], &mut [&mut out.view1])
    }
}

/// Weights are not prepacked: measurements showed no gain (products have at least 192 rows, which
/// amortise the packing), and prepacking would double their memory.
fn build(model: OnnxModel, doing: &'static str) -> Result<Model, InferenceError> {
    let (graph, weights) = model.into_external(WEIGHTS);
    ModelOptions::with_all_ops()
        .external_data(WEIGHTS, weights)
        .load(graph)
        .map_err(|e| failure(doing, e))
}

fn id(model: &Model, name: &str) -> Result<NodeId, InferenceError> {
    model.node_id(name).map_err(|e| failure("loading", e))
}

fn failure(doing: &'static str, error: impl std::fmt::Display) -> InferenceError {
    InferenceError::Runtime {
        runtime: RUNTIME,
        doing,
        message: error.to_string(),
    }
}

//! Real frames of the bundled sequence with what the bundled network says about them, for benches
//! whose time depends on the data.

use mast3r_slam::config::{self, Config, Threads};
use mast3r_slam::geometry::Intrinsics;
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput, sanitise};
use mast3r_slam::source::{self, SourceOptions};
use std::path::PathBuf;
use std::sync::Arc;
use testkit::repository;

/// Where the bundled weights are.
pub fn weights() -> PathBuf {
    repository("engines/mast3r-mini/model.safetensors")
}

/// The bundled network's configuration, calibrated.
pub fn config() -> Config {
    Config {
        use_calib: true,
        threads: Threads::Single,
        ..config::load(&repository("config/mini.yaml")).expect("the bundled configuration")
    }
}

/// Frames of `assets/room_loop`, encoded, and the first with each of them, either way, decoded.
#[derive(Clone)]
pub struct Canned {
    pub raw: Arc<Vec<RgbImage>>,
    pub images: Vec<Arc<RgbImage>>,
    pub intrinsics: Option<Intrinsics>,
    pub shape: NetworkShape,
    features: Arc<Vec<Vec<f32>>>,
    /// For each frame its outputs as view 1 and as view 2 of the pair with the first.
    pairs: Arc<Vec<[PairOutput; 2]>>,
}

impl Canned {
    /// Frames `indices`, with the network's input `size` pixels wide.
    pub fn new(size: usize, indices: &[usize]) -> Self {
        let path = repository("assets/room_loop");
        let mut source = source::open(&path, SourceOptions::default()).expect("the sequence");
        let calibration = source.calibration().copied();
        let mut raw = Vec::new();
        while let Ok(Some(frame)) = source.next_frame() {
            if indices.contains(&frame.index) {
                raw.push(frame.image);
            }
            if raw.len() == indices.len() {
                break;
            }
        }
        let mut preprocessor = Preprocessor::new(
            raw[0].width,
            raw[0].height,
            size,
            calibration.as_ref(),
            PreprocessOptions::default(),
        )
        .expect("a preprocessor");
        let (width, height) = preprocessor.output_size();
        let mut backend = CpuBackend::load(&weights(), width, height, 2).expect("the network");
        let shape = backend.shape().clone();
        let mut images = Vec::new();
        let mut features = Vec::new();
        for raw in &raw {
            let mut image = RgbImage::default();
            preprocessor.run(raw, &mut image).expect("an image");
            let mut tokens = vec![0.0; shape.tokens * shape.feature_dim];
            backend.encode(&image, &mut tokens).expect("tokens");
            images.push(Arc::new(image));
            features.push(tokens);
        }
        let mut decode = |a: &[f32], b: &[f32]| {
            let mut out = PairOutput::zeros(&shape);
            backend.decode(a, b, &mut out).expect("a pair");
            sanitise(&mut out.view1);
            sanitise(&mut out.view2);
            out
        };
        let first = &features[0];
        let pairs = features
            .iter()
            .map(|f| [decode(f, first), decode(first, f)])
            .collect();
        Self {
            raw: Arc::new(raw),
            images,
            intrinsics: preprocessor.intrinsics(),
            shape,
            features: Arc::new(features),
            pairs: Arc::new(pairs),
        }
    }

    /// The decoder's output; view 1 is frame `a`. One of the two is the first frame.
    pub fn pair(&self, a: usize, b: usize) -> &PairOutput {
        match (a, b) {
            (a, 0) => &self.pairs[a][0],
            (0, b) => &self.pairs[b][1],
            _ => panic!("frames {a} and {b} were not decoded together"),
        }
    }

    fn frame_of(&self, features: &[f32]) -> usize {
        let found = self.features.iter().position(|f| f == features);
        found.expect("tokens of one of the frames")
    }
}

impl Backend for Canned {
    fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    fn name(&self) -> String {
        "canned".into()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(self.clone())
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        let found = self.images.iter().position(|i| i.data == image.data);
        features.copy_from_slice(&self.features[found.expect("one of the frames")]);
        Ok(())
    }

    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        let pair = self.pair(self.frame_of(a), self.frame_of(b));
        for (out, view) in [(&mut out.view1, &pair.view1), (&mut out.view2, &pair.view2)] {
            out.points.copy_from_slice(&view.points);
            out.confidence.copy_from_slice(&view.confidence);
            out.descriptors.copy_from_slice(&view.descriptors);
            out.descriptor_confidence
                .copy_from_slice(&view.descriptor_confidence);
        }
        Ok(())
    }
}

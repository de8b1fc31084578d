//! Shared by network tests: golden files, random images, edited checkpoints.
pub mod dune;
pub mod naive;

use crate::repository;
use std::path::{Path, PathBuf};

use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::{Backend, PairOutput};
use mast3r_slam::network::{Checkpoint, Hints, Network, Tensor};

/// 128×96 input, 8 encoder channels' worth of everything: quick.
pub fn tiny_weights() -> PathBuf {
    repository("tests/data/network/tiny-random.pth")
}

pub fn tiny_checkpoint() -> Checkpoint {
    mast3r_slam::network::load(&tiny_weights()).expect("the tiny model is in the repository")
}

pub fn tiny_hints() -> Hints {
    Hints::beside(&tiny_weights()).expect("the tiny model's configuration is in the repository")
}

pub fn tiny_network(checkpoint: Checkpoint) -> Network {
    Network::new(&tiny_weights(), checkpoint, &tiny_hints()).expect("a complete network")
}

pub fn backend(network: &Network, width: usize, height: usize) -> CpuBackend {
    CpuBackend::new(network, width, height, 2).expect("a network that runs")
}

/// Replaces a tensor's values, keeping its shape.
pub fn set(checkpoint: &mut Checkpoint, name: &str, value: impl Fn(usize) -> f32) {
    let tensor = checkpoint.tensors.get_mut(name).expect(name);
    let values: Vec<f32> = (0..tensor.len()).map(value).collect();
    *tensor = Tensor::from_f32(tensor.shape.clone(), &values).expect("as many values as before");
}

/// Repeatable values in [-1, 1).
pub fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B1) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

pub fn noise_image(seed: u32, width: usize, height: usize) -> RgbImage {
    let mut image = RgbImage::new(width, height);
    let values = noise(seed, image.data.len());
    for (byte, value) in image.data.iter_mut().zip(values) {
        *byte = ((value + 1.0) * 127.0) as u8;
    }
    image
}

/// Encodes and decodes a pair.
pub fn run(backend: &mut dyn Backend, image1: &RgbImage, image2: &RgbImage) -> PairOutput {
    let shape = backend.shape().clone();
    let mut features = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    backend.encode(image1, &mut features[0]).expect("encode");
    backend.encode(image2, &mut features[1]).expect("encode");
    let mut out = PairOutput::zeros(&shape);
    backend
        .decode(&features[0], &features[1], &mut out)
        .expect("decode");
    out
}

/// A golden file: named tensors that PyTorch computed.
pub struct Golden(Vec<u8>);

impl Golden {
    /// `None` if the file is not there.
    pub fn open(path: &Path) -> Option<Self> {
        std::fs::read(path).ok().map(Self)
    }

    fn tensor<T>(
        &self,
        name: &str,
        use_it: impl FnOnce(safetensors::tensor::TensorView) -> T,
    ) -> T {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("a golden file");
        use_it(file.tensor(name).expect(name))
    }

    pub fn values(&self, name: &str) -> Vec<f32> {
        self.tensor(name, |t| {
            let (values, _) = t.data().as_chunks::<4>();
            values.iter().map(|v| f32::from_le_bytes(*v)).collect()
        })
    }

    /// Those `values`, given for every pixel of `size` (width, height), `per_pixel` each, that the golden
    /// tensor `name` holds.
    pub fn thin(
        &self,
        name: &str,
        values: &[f32],
        per_pixel: usize,
        size: (usize, usize),
    ) -> Vec<f32> {
        let rows = self.tensor(name, |t| t.shape()[0]);
        let stride = size.1 / rows;
        let mut kept = Vec::new();
        for v in (0..size.1).step_by(stride) {
            for u in (0..size.0).step_by(stride) {
                let at = (v * size.0 + u) * per_pixel;
                kept.extend_from_slice(&values[at..at + per_pixel]);
            }
        }
        kept
    }

    pub fn image(&self, name: &str) -> RgbImage {
        self.tensor(name, |t| RgbImage {
            width: t.shape()[1],
            height: t.shape()[0],
            data: t.data().to_vec(),
        })
    }
}

/// Largest `|a − b| / (|b| + floor)` over tuples of `width` values (a point is one tuple).
pub fn relative_error(found: &[f32], expected: &[f32], width: usize, floor: f64) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    found
        .chunks_exact(width)
        .zip(expected.chunks_exact(width))
        .map(|(f, e)| {
            let difference = norm(&mut f.iter().zip(e).map(|(a, b)| f64::from(a - b)));
            difference / (norm(&mut e.iter().map(|&b| f64::from(b))) + floor)
        })
        // `f64::max` would drop a NaN.
        .fold(0.0, |worst, error| {
            if error > worst || error.is_nan() {
                error
            } else {
                worst
            }
        })
}

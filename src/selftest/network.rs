//! Runs the network on two images of the bundled sequence.

use super::SelfTestError;
use crate::image::{PreprocessOptions, Preprocessor, RgbImage};
use crate::inference::{InferenceError, NetworkShape, PairOutput, ViewOutput};
use crate::network::{self, onnx::Precision};
use crate::slam_builder::{Settings, SlamBuilder};
use crate::source::{self, SourceOptions};
use std::path::Path;

/// The two frames: they see the same corner from places 0.8 s apart.
pub const PAIR: [usize; 2] = [0, 8];
/// Sampled pixels along the image's longer side.
const SAMPLES: usize = 16;

/// The network's outputs at some pixels.
pub struct Outputs {
    /// SHA-256 of the weights.
    pub weights: String,
    /// The network's runtime.
    pub name: String,
    pub precision: Precision,
    /// Width and height of its input.
    pub size: (usize, usize),
    pub descriptor_dim: usize,
    pub sampled: PairOutput,
}

pub fn run(
    builder: &SlamBuilder,
    settings: &Settings,
    sequence: &Path,
) -> Result<Outputs, SelfTestError> {
    let config = &settings.config;
    let options = PreprocessOptions {
        center_principal_point: config.dataset.center_principle_point,
        parity_intrinsics: config.dataset.parity_intrinsics,
        patch: network::patch_size(&settings.weights).map_err(InferenceError::from)?,
    };
    let images = PAIR.map(|index| image(sequence, index, config.network.size, options));
    let [first, second] = images;
    let images = [first?, second?];
    let size = (images[0].width, images[0].height);
    let mut backend = builder.load_network(size)?;
    let shape = backend.shape().clone();
    let mut features = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    for (image, features) in images.iter().zip(&mut features) {
        backend.encode(image, features)?;
    }
    let mut out = PairOutput::zeros(&shape);
    backend.decode(&features[0], &features[1], &mut out)?;
    Ok(Outputs {
        weights: network::hash(&settings.weights).map_err(InferenceError::from)?,
        name: backend.name(),
        precision: backend.precision(),
        size,
        descriptor_dim: shape.descriptor_dim,
        sampled: PairOutput {
            view1: sample(&out.view1, &shape),
            view2: sample(&out.view2, &shape),
        },
    })
}

/// A frame, preprocessed without its calibration, as the network sees it.
fn image(
    sequence: &Path,
    index: usize,
    long: usize,
    options: PreprocessOptions,
) -> Result<RgbImage, SelfTestError> {
    let range = SourceOptions {
        start: index,
        end: Some(index + 1),
        ..SourceOptions::default()
    };
    let mut frames = source::open(sequence, range)?;
    let frame = frames.next_frame()?.ok_or_else(|| SelfTestError::Frames {
        path: sequence.to_owned(),
        expected: index + 1,
        found: index,
    })?;
    let raw = frame.image;
    let mut preprocessor = Preprocessor::new(raw.width, raw.height, long, None, options)?;
    let (width, height) = preprocessor.output_size();
    let mut image = RgbImage::new(width, height);
    preprocessor.run(&raw, &mut image)?;
    Ok(image)
}

/// The outputs at pixels of a regular grid.
fn sample(view: &ViewOutput, shape: &NetworkShape) -> ViewOutput {
    let step = (shape.width.max(shape.height) / SAMPLES).max(1);
    let mut out = ViewOutput::default();
    for y in (step / 2..shape.height).step_by(step) {
        for x in (step / 2..shape.width).step_by(step) {
            let pixel = y * shape.width + x;
            let take = |from: &[f32], to: &mut Vec<f32>, dim: usize| {
                to.extend(from.get(pixel * dim..(pixel + 1) * dim).unwrap_or_default());
            };
            take(&view.points, &mut out.points, 3);
            take(&view.confidence, &mut out.confidence, 1);
            take(
                &view.descriptors,
                &mut out.descriptors,
                shape.descriptor_dim,
            );
            take(
                &view.descriptor_confidence,
                &mut out.descriptor_confidence,
                1,
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_the_values_of_their_pixels() {
        let shape = NetworkShape {
            width: 64,
            height: 48,
            tokens: 12,
            feature_dim: 1,
            descriptor_dim: 2,
        };
        let numbers = |dim: usize| {
            (0..shape.pixels() * dim)
                .map(|n| n as f32)
                .collect::<Vec<f32>>()
        };
        let view = ViewOutput {
            points: numbers(3),
            confidence: numbers(1),
            descriptors: numbers(2),
            descriptor_confidence: numbers(1),
        };
        let found = sample(&view, &shape);
        assert_eq!(found.confidence.len(), 16 * 12);
        // The second sample of the second row is pixel (6, 6).
        let pixel = (6 * 64 + 6) as f32;
        assert_eq!(found.confidence[17], pixel);
        assert_eq!(
            found.points[17 * 3..18 * 3],
            [3.0 * pixel, 3.0 * pixel + 1.0, 3.0 * pixel + 2.0]
        );
        assert_eq!(found.descriptors[34..36], [2.0 * pixel, 2.0 * pixel + 1.0]);
    }
}

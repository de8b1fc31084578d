//! Comparison of the outputs of two backends.

use super::{Backend, InferenceError, PairOutput, ViewOutput};
use crate::image::RgbImage;

/// Distribution of an error over the elements of an output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Errors {
    pub median: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
    /// Elements that are finite in the reference but not in the candidate.
    pub broken: usize,
}

/// Deviations of a candidate's outputs from a reference's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ViewErrors {
    /// Distance between points relative to the reference point's distance from the camera.
    pub points: Errors,
    /// Difference relative to the reference value.
    pub confidence: Errors,
    /// One minus the cosine of the angle between descriptors.
    pub descriptors: Errors,
    /// Difference relative to the reference value.
    pub descriptor_confidence: Errors,
}

/// Deviations of both parts of the network on a pair of images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Encoder tokens: distance relative to the length of the reference token.
    pub features: Errors,
    /// Decoder outputs, where each backend reads its own tokens.
    pub views: [ViewErrors; 2],
}

/// Runs both backends on a pair of images.
///
/// # Errors
/// Errors of the backends; [`InferenceError::Shape`] if their shapes differ.
pub fn compare(
    reference: &mut dyn Backend,
    candidate: &mut dyn Backend,
    images: [&RgbImage; 2],
) -> Result<Comparison, InferenceError> {
    let shape = reference.shape().clone();
    if *candidate.shape() != shape {
        return Err(InferenceError::Shape {
            what: "the network to compare",
            expected: format!("{shape:?}"),
            found: format!("{:?}", candidate.shape()),
        });
    }
    let run = |backend: &mut dyn Backend| {
        let mut features = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
        for (image, features) in images.iter().zip(&mut features) {
            backend.encode(image, features)?;
        }
        let mut out = PairOutput::zeros(&shape);
        backend.decode(&features[0], &features[1], &mut out)?;
        Ok::<_, InferenceError>((features.concat(), out))
    };
    let (wanted, expected) = run(reference)?;
    let (got, found) = run(candidate)?;
    Ok(Comparison {
        features: errors(vectors(&wanted, &got, shape.feature_dim).map(relative)),
        views: outputs(&expected, &found, shape.descriptor_dim),
    })
}

/// Deviations of a decoder's outputs from the expected ones, which may be those of some pixels only.
pub fn outputs(
    expected: &PairOutput,
    found: &PairOutput,
    descriptor_dim: usize,
) -> [ViewErrors; 2] {
    let view = |a: &ViewOutput, b: &ViewOutput| ViewErrors {
        points: errors(vectors(&a.points, &b.points, 3).map(relative)),
        confidence: errors(vectors(&a.confidence, &b.confidence, 1).map(relative)),
        descriptors: errors(vectors(&a.descriptors, &b.descriptors, descriptor_dim).map(angle)),
        descriptor_confidence: errors(
            vectors(&a.descriptor_confidence, &b.descriptor_confidence, 1).map(relative),
        ),
    };
    [
        view(&expected.view1, &found.view1),
        view(&expected.view2, &found.view2),
    ]
}

/// Corresponding elements of the reference and the candidate.
fn vectors<'a>(
    a: &'a [f32],
    b: &'a [f32],
    dim: usize,
) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
    a.chunks_exact(dim).zip(b.chunks_exact(dim))
}

fn length(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// `‖b − a‖ / ‖a‖`
fn relative((a, b): (&[f32], &[f32])) -> f64 {
    let pairs = a.iter().zip(b);
    let away = length(pairs.map(|(a, b)| f64::from(*b) - f64::from(*a)));
    // Two zeros are equal.
    match length(a.iter().map(|&v| f64::from(v))) {
        0.0 if away == 0.0 => 0.0,
        whole => away / whole,
    }
}

/// `1 − a·b / (‖a‖·‖b‖)`
fn angle((a, b): (&[f32], &[f32])) -> f64 {
    let dot: f64 = a
        .iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum();
    let of = |v: &[f32]| length(v.iter().map(|&v| f64::from(v)));
    1.0 - dot / (of(a) * of(b))
}

fn errors(each: impl Iterator<Item = f64>) -> Errors {
    let all: Vec<f64> = each.collect();
    let mut finite: Vec<f64> = all.iter().copied().filter(|e| e.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    let at = |fraction: f64| {
        let index = (fraction * finite.len().saturating_sub(1) as f64).round() as usize;
        finite.get(index).copied().unwrap_or(f64::NAN)
    };
    Errors {
        median: at(0.5),
        p99: at(0.99),
        max: at(1.0),
        broken: all.len() - finite.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::NetworkShape;

    /// Returns the image's first byte everywhere, rotated slightly.
    struct Fake {
        shape: NetworkShape,
        off: f32,
    }

    impl Backend for Fake {
        fn shape(&self) -> &NetworkShape {
            &self.shape
        }
        fn name(&self) -> String {
            "fake".into()
        }
        fn share(&self) -> Box<dyn Backend> {
            unreachable!("not shared here")
        }
        fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
            features.fill(f32::from(image.data[0]) * (1.0 + self.off));
            Ok(())
        }
        fn decode(
            &mut self,
            features1: &[f32],
            _: &[f32],
            out: &mut PairOutput,
        ) -> Result<(), InferenceError> {
            for view in [&mut out.view1, &mut out.view2] {
                view.points.fill(features1[0]);
                view.confidence.fill(2.0);
                view.descriptor_confidence.fill(1.0 - self.off);
                for d in view.descriptors.chunks_exact_mut(2) {
                    d.copy_from_slice(&[1.0, 10.0 * self.off]);
                }
            }
            if self.off > 0.0 {
                out.view2.confidence[3] = f32::NAN;
            }
            Ok(())
        }
    }

    fn fake(off: f32) -> Fake {
        let shape = NetworkShape {
            width: 16,
            height: 16,
            tokens: 1,
            feature_dim: 4,
            descriptor_dim: 2,
        };
        Fake { shape, off }
    }

    #[test]
    fn errors_are_relative_and_by_output() {
        let mut image = RgbImage::new(16, 16);
        image.data.fill(100);
        let same = compare(&mut fake(0.0), &mut fake(0.0), [&image, &image]).expect("run");
        for e in [
            same.features,
            same.views[0].points,
            same.views[1].descriptors,
        ] {
            assert_eq!((e.median, e.max, e.broken), (0.0, 0.0, 0));
        }
        let off = compare(&mut fake(0.0), &mut fake(0.01), [&image, &image]).expect("run");
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        };
        near(off.features.median, 0.01);
        near(off.views[0].points.p99, 0.01);
        near(off.views[0].confidence.max, 0.0);
        near(off.views[0].descriptor_confidence.median, 0.01);
        // The angle with tangent 0.1.
        near(off.views[1].descriptors.median, 1.0 - 1.0 / 1.01f64.sqrt());
        assert_eq!(
            (
                off.views[0].confidence.broken,
                off.views[1].confidence.broken
            ),
            (0, 1)
        );
    }

    #[test]
    fn other_shapes_are_not_compared() {
        let image = RgbImage::new(16, 16);
        let mut other = fake(0.0);
        other.shape.descriptor_dim = 3;
        let error = compare(&mut fake(0.0), &mut other, [&image, &image]).unwrap_err();
        assert!(matches!(error, InferenceError::Shape { .. }), "{error}");
    }
}

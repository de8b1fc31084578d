//! Output activations: raw head outputs to points, descriptors and confidences, in one pass over
//! the pixels. The emitted graph contains the same formulas for runtimes that execute them
//! efficiently.

use rayon::prelude::*;

use super::{NetworkShape, ViewOutput};

/// Raw outputs of one view, as laid out by `Network::raw_decoder`.
pub struct RawView<'a> {
    /// `4 × N`: points and confidence.
    pub points: &'a [f32],
    /// `T × P × P × D` in patches of side `P`.
    pub descriptors: &'a [f32],
    /// `T × P × P`.
    pub descriptor_confidence: &'a [f32],
}

/// Applies the activations; all slice lengths follow from `shape`. Runs on the current rayon pool,
/// one row of tokens at a time.
pub fn finish(raw: &RawView, shape: &NetworkShape, out: &mut ViewOutput) {
    let dim = shape.descriptor_dim;
    let patch = shape.patch();
    let strip = patch * shape.width;
    let plane = shape.pixels();
    let [xs, ys, zs, kappas] =
        [0, 1, 2, 3].map(|channel| &raw.points[channel * plane..(channel + 1) * plane]);

    let points = out.points.par_chunks_mut(strip * 3);
    let confidence = out.confidence.par_chunks_mut(strip);
    points
        .zip(confidence)
        .enumerate()
        .for_each(|(row, (points, confidence))| {
            let at = row * strip..row * strip + confidence.len();
            let planes = xs[at.clone()]
                .iter()
                .zip(&ys[at.clone()])
                .zip(&zs[at.clone()]);
            let (points, _) = points.as_chunks_mut::<3>();
            for (point, ((x, y), z)) in points.iter_mut().zip(planes) {
                let norm = (x * x + y * y + z * z).sqrt();
                let scale = norm.exp_m1() / norm.max(1e-8);
                *point = [x * scale, y * scale, z * scale];
            }
            for (confidence, kappa) in confidence.iter_mut().zip(&kappas[at]) {
                *confidence = 1.0 + kappa.exp();
            }
        });

    let descriptors = out.descriptors.par_chunks_mut(strip * dim);
    let confidence = out.descriptor_confidence.par_chunks_mut(strip);
    let raw_descriptors = raw.descriptors.par_chunks(strip * dim);
    let raw_confidence = raw.descriptor_confidence.par_chunks(strip);
    descriptors
        .zip(confidence)
        .zip(raw_descriptors.zip(raw_confidence))
        .for_each(|((descriptors, confidence), (raw, omegas))| {
            // Runs of a patch row: contiguous within a patch in the input, within an image row in
            // the output.
            let runs = raw
                .chunks_exact(patch * dim)
                .zip(omegas.chunks_exact(patch));
            for (n, (raw, omegas)) in runs.enumerate() {
                let (token, line) = (n / patch, n % patch);
                let at = line * shape.width + token * patch;
                let unit = &mut descriptors[at * dim..(at + patch) * dim];
                for (unit, raw) in unit.chunks_exact_mut(dim).zip(raw.chunks_exact(dim)) {
                    // Deliberately unguarded: a zero vector has no direction and becomes NaN.
                    let scale = 1.0 / squared_norm(raw).sqrt();
                    for (unit, raw) in unit.iter_mut().zip(raw) {
                        *unit = raw * scale;
                    }
                }
                for (q, omega) in confidence[at..at + patch].iter_mut().zip(omegas) {
                    *q = omega.exp();
                }
            }
        });
}

/// Sums in eight lanes, which the compiler can keep in one register.
fn squared_norm(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut lanes = [0.0f32; 8];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value * value;
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|value| value * value).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(width: usize, height: usize, dim: usize) -> NetworkShape {
        NetworkShape {
            width,
            height,
            tokens: width * height / (16 * 16),
            feature_dim: 1,
            descriptor_dim: dim,
        }
    }

    #[test]
    fn every_pixel_gets_its_own_values() {
        let shape = shape(48, 32, 3);
        let n = shape.pixels();
        // Index of a pixel in token order.
        let shuffled = |u: usize, v: usize| ((v / 16 * 3 + u / 16) * 16 + v % 16) * 16 + u % 16;
        let mut points = vec![0.0; 4 * n];
        let mut descriptors = vec![0.0; 3 * n];
        let mut omegas = vec![0.0; n];
        for pixel in 0..n {
            let at = shuffled(pixel % 48, pixel / 48);
            points[2 * n + pixel] = (pixel as f32 + 1.0) * 1e-3;
            points[3 * n + pixel] = pixel as f32 * 1e-3;
            descriptors[at * 3] = 1.0;
            descriptors[at * 3 + 1] = pixel as f32 * 1e-3;
            omegas[at] = pixel as f32 * -1e-3;
        }
        let mut out = ViewOutput::zeros(&shape);
        let raw = RawView {
            points: &points,
            descriptors: &descriptors,
            descriptor_confidence: &omegas,
        };
        finish(&raw, &shape, &mut out);
        for pixel in 0..n {
            let x = f64::from(pixel as f32 * 1e-3);
            // Neighbours differ by at least 1e-3 of their value; rounding is a few 1e-7.
            let near = |found: f32, expected: f64| {
                let error = (f64::from(found) - expected).abs();
                assert!(
                    error <= 1e-6 * expected.abs(),
                    "{pixel}: {found} {expected}"
                );
            };
            near(out.points[pixel * 3], 0.0);
            near(
                out.points[pixel * 3 + 2],
                f64::from((pixel as f32 + 1.0) * 1e-3).exp_m1(),
            );
            near(out.confidence[pixel], 1.0 + x.exp());
            near(out.descriptors[pixel * 3], 1.0 / (1.0 + x * x).sqrt());
            near(out.descriptors[pixel * 3 + 1], x / (1.0 + x * x).sqrt());
            near(out.descriptor_confidence[pixel], (-x).exp());
        }
    }

    #[test]
    fn degenerate_values_come_out_as_the_formulas_have_them() {
        let shape = shape(16, 16, 9);
        let mut points = vec![0.0; 4 * 256];
        (points[0], points[1]) = (1e-20, 200.0); // too near to have a direction; overflow
        points[3 * 256 + 1] = 100.0;
        let raw = RawView {
            points: &points,
            descriptors: &[0.0; 9 * 256],
            descriptor_confidence: &[0.0; 256],
        };
        let mut out = ViewOutput::zeros(&shape);
        finish(&raw, &shape, &mut out);
        assert!(out.points[0] < 1e-30);
        assert_eq!(out.points[3], f32::INFINITY);
        assert_eq!((out.confidence[0], out.confidence[1]), (2.0, f32::INFINITY));
        assert!(out.descriptors.iter().all(|d| d.is_nan()));
        assert_eq!(out.descriptor_confidence, [1.0; 256]);
    }
}

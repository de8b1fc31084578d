//! From the heads' raw outputs to points, descriptors and confidences, in one pass over the
//! pixels. The same formulas are in the emitted graph for runtimes that are quick at them.

use rayon::prelude::*;

use super::{NetworkShape, ViewOutput};
use crate::network::architecture::PATCH;

/// One view's raw outputs, as `Network::raw_decoder` lays them out.
pub struct RawView<'a> {
    /// `4 × N`: points and confidence.
    pub points: &'a [f32],
    /// `T × 16 × 16 × D`.
    pub descriptors: &'a [f32],
    /// `T × 16 × 16`.
    pub descriptor_confidence: &'a [f32],
}

/// Applies the activations; the lengths of all slices are `shape`'s. Runs on the current rayon
/// pool, a row of tokens at a time.
pub fn finish(raw: &RawView, shape: &NetworkShape, out: &mut ViewOutput) {
    let dim = shape.descriptor_dim;
    let strip = PATCH * shape.width;
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
            // Runs of 16 pixels: side by side in a patch there, in an image row here.
            let runs = raw
                .chunks_exact(PATCH * dim)
                .zip(omegas.chunks_exact(PATCH));
            for (n, (raw, omegas)) in runs.enumerate() {
                let (token, line) = (n / PATCH, n % PATCH);
                let at = line * shape.width + token * PATCH;
                let unit = &mut descriptors[at * dim..(at + PATCH) * dim];
                for (unit, raw) in unit.chunks_exact_mut(dim).zip(raw.chunks_exact(dim)) {
                    // Not guarded: a zero vector has no direction, and NaN says so.
                    let scale = 1.0 / squared_norm(raw).sqrt();
                    for (unit, raw) in unit.iter_mut().zip(raw) {
                        *unit = raw * scale;
                    }
                }
                for (q, omega) in confidence[at..at + PATCH].iter_mut().zip(omegas) {
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

//! Plausibility checks of the network's outputs: thorough at load, cheap per frame.

use super::{Backend, InferenceError, PairOutput, ViewOutput};
use crate::image::RgbImage;

/// Points closer to the camera than this have no direction (network units, roughly metres).
const MIN_RANGE: f32 = 1e-6;
/// Points farther away than this carry no information and would overflow squared sums.
const MAX_RANGE: f32 = 1e6;
/// Larger confidences are clamped: `1 + exp(κ)` can overflow, and fusion multiplies by it.
pub const MAX_CONFIDENCE: f32 = 1e6;

/// Runs the network on a fixed pair of images and checks for outputs that a working network cannot
/// produce.
///
/// # Errors
/// [`InferenceError::SelfTest`] describes the observation and its likely cause: all-zero weights,
/// outputs never written, non-finite values, or an encoder that ignores its image. Errors of the
/// backend are passed through.
pub fn self_test(backend: &mut dyn Backend) -> Result<(), InferenceError> {
    let shape = backend.shape().clone();
    let images = [0, 1].map(|view| test_image(shape.width, shape.height, view));
    let mut features = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    for (image, features) in images.iter().zip(&mut features) {
        backend.encode(image, features)?;
    }
    let [features1, features2] = &features;
    let mut out = PairOutput::zeros(&shape);
    backend.decode(features1, features2, &mut out)?;

    for (view, output) in [(1, &out.view1), (2, &out.view2)] {
        check_view(view, output, shape.descriptor_dim)?;
    }
    // Checked after the outputs: zero weights also show here, but are identified above.
    let broken = features1.iter().chain(features2).filter(|f| !f.is_finite());
    fail_if_any(broken.count(), 2 * features1.len(), "encoded features")?;
    if features1 == features2 {
        return Err(failed(
            "two different images have exactly the same features, so the encoder does \
             not read its input: a wrong input binding, or damaged weights",
        ));
    }
    Ok(())
}

fn check_view(view: usize, out: &ViewOutput, dim: usize) -> Result<(), InferenceError> {
    let all = |values: &[f32], wanted: f32| values.iter().all(|&v| v == wanted);
    let zero_points = all(&out.points, 0.0);
    if zero_points && all(&out.confidence, 0.0) && all(&out.descriptors, 0.0) {
        return Err(failed(format!(
            "every output of view {view} is exactly zero: the outputs were never written (the \
             network did not run, or its outputs are bound to other buffers)"
        )));
    }
    if zero_points && all(&out.confidence, 2.0) && all(&out.descriptor_confidence, 1.0) {
        return Err(failed(format!(
            "all points of view {view} are zero, all confidences 2 and all descriptor confidences \
             1: all weights are zero. The weights file is empty, or the weights did not reach the \
             device; fetch or convert the file again"
        )));
    }
    for (what, values) in [
        ("points", &out.points),
        ("confidences", &out.confidence),
        ("descriptor values", &out.descriptors),
        ("descriptor confidences", &out.descriptor_confidence),
    ] {
        let broken = values.iter().filter(|v| !v.is_finite()).count();
        fail_if_any(broken, values.len(), &format!("{what} of view {view}"))?;
    }
    if zero_points {
        return Err(failed(format!(
            "all points of view {view} are exactly zero: the head's weights are zero or its output \
             was not written"
        )));
    }
    if let Some(low) = out.confidence.iter().find(|&&c| c < 1.0) {
        return Err(failed(format!(
            "view {view} has a confidence of {low}, but 1 + exp(x) is at least 1, so these are not \
             this network's confidences"
        )));
    }
    // Unit length up to the error of binary16 arithmetic.
    let off = |d: &[f32]| (d.iter().map(|v| v * v).sum::<f32>().sqrt() - 1.0).abs() > 0.02;
    let broken = out.descriptors.chunks_exact(dim).filter(|d| off(d)).count();
    if broken > 0 {
        return Err(failed(format!(
            "{broken} descriptors of view {view} are not of unit length: outputs in another order \
             than expected, or not this network's"
        )));
    }
    Ok(())
}

fn failed(message: impl Into<String>) -> InferenceError {
    InferenceError::SelfTest(message.into())
}

fn fail_if_any(broken: usize, of: usize, what: &str) -> Result<(), InferenceError> {
    if broken == 0 {
        return Ok(());
    }
    Err(failed(format!(
        "{broken} of {of} {what} are not finite: damaged weights, or an overflow (half precision \
         cannot hold this network's points)"
    )))
}

/// A shaded, textured pattern; view 1 is view 0 shifted by a few pixels.
fn test_image(width: usize, height: usize, view: usize) -> RgbImage {
    let mut image = RgbImage::new(width, height);
    let (pixels, _) = image.data.as_chunks_mut::<3>();
    for (n, pixel) in pixels.iter_mut().enumerate() {
        let (u, v) = (n % width + 5 * view, n / width + 2 * view);
        let tile = u32::from((u / 24 + v / 24) % 2 == 0);
        // Integer hash of the 4x4 cell, as texture.
        let cell =
            ((u / 4) as u32).wrapping_mul(0x9E37_79B1) ^ ((v / 4) as u32).wrapping_mul(0x85EB_CA6B);
        let grain = (cell ^ cell >> 15).wrapping_mul(0x2C1B_3C6D) >> 27;
        let shade = (u * 96 / (width + 5)) as u32;
        let ramp = (v * 64 / (height + 2)) as u32;
        *pixel = [
            (40 + 60 * tile + grain + shade) as u8,
            (30 + 70 * tile + grain + ramp) as u8,
            (60 + 30 * tile + grain + (shade + ramp) / 2) as u8,
        ];
    }
    image
}

/// Makes the outputs of one view safe to process, and returns the number of unusable pixels; if all
/// are unusable, the network failed.
///
/// An unusable pixel (any non-finite value, a point without direction or out of range, a negative
/// confidence) gets a zero point, a zero descriptor and zero confidences. Confidences are clamped
/// to [`MAX_CONFIDENCE`]; an infinite one indicates a very confident pixel, not a broken one.
pub fn sanitise(out: &mut ViewOutput) -> usize {
    let pixels = out.confidence.len();
    if pixels == 0 {
        return 0;
    }
    let dim = out.descriptors.len() / pixels;
    let descriptors = out.descriptors.chunks_mut(dim.max(1));
    let (points, _) = out.points.as_chunks_mut::<3>();
    let confidences = out
        .confidence
        .iter_mut()
        .zip(&mut out.descriptor_confidence);
    let mut unusable = 0;
    for ((point, (c, q)), descriptor) in points.iter_mut().zip(confidences).zip(descriptors) {
        let [x, y, z] = *point;
        let squared = x * x + y * y + z * z;
        // Comparisons that are false for NaN.
        let usable = (MIN_RANGE * MIN_RANGE..=MAX_RANGE * MAX_RANGE).contains(&squared)
            && *c >= 0.0
            && *q >= 0.0
            && all_finite(descriptor);
        if !usable {
            // Outputs that were never written are all zero: unusable, but nothing to change.
            *point = [0.0; 3];
            descriptor.fill(0.0);
            (*c, *q) = (0.0, 0.0);
            unusable += 1;
        } else {
            *c = c.min(MAX_CONFIDENCE);
            *q = q.min(MAX_CONFIDENCE);
        }
    }
    unusable
}

/// Whether no exponent is all ones. Integer operations vectorise, unlike a comparison with early
/// exit.
fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7F80_0000;
    let largest = values
        .iter()
        .fold(0, |largest, v| (v.to_bits() & EXPONENT).max(largest));
    largest != EXPONENT
}

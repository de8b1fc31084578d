//! Which pixels of a depth image are used: those that are measured, within limits, and on one surface with their
//! neighbours.

use super::{DepthError, DepthImage};
use rayon::prelude::*;

/// A thread's share of the pixels of an image: about 50 µs of work.
pub const PIXELS_PER_TASK: usize = 65536;

/// Which measurements are used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthLimits {
    /// Minimum depth of a surface, metres. Pixels may err beyond it by three standard deviations of the sensor's noise.
    pub min: f64,
    /// Maximum depth of a surface, likewise.
    pub max: f64,
    /// Maximum difference between neighbours, as a part of the nearer one's depth: at a larger one, an edge of two
    /// surfaces, neither is used. A noisy sensor's neighbours may differ by four times as much as they mostly
    /// do.
    pub max_jump: f64,
}

/// An edge stands out of the sensor's noise by at least this factor: 99.3 % of normally distributed differences are below
/// four times their median, so that four of them leave 97 % of a noisy surface's pixels.
const OVER_NOISE: f64 = 4.0;
/// A surface within the limits keeps its pixels that noise takes beyond them by so many standard deviations: without
/// them it would seem to be nearer or farther than it is.
const BEYOND: f64 = 3.0;
/// Standard deviation of a pixel over the median difference of two.
const SIGMA_OVER_MEDIAN: f64 = 1.4826 / std::f64::consts::SQRT_2;

impl DepthLimits {
    /// The limits of single pixels of a sensor whose neighbours mostly differ by `difference`, as a part of their depth.
    pub(super) fn for_noise(&self, difference: f64) -> Self {
        let beyond = BEYOND * SIGMA_OVER_MEDIAN * difference;
        Self {
            min: self.min * (1.0 - beyond).max(0.0),
            max: self.max * (1.0 + beyond),
            max_jump: self.max_jump.max(OVER_NOISE * difference),
        }
    }

    fn contain(&self, depth: f32) -> bool {
        (depth >= self.min as f32) & (depth <= self.max as f32)
    }

    /// Writes the depths that are kept to `out`, of the same length as those of the image; 0 elsewhere. A pixel is
    /// kept within the limits if none of its four neighbours that are measured differs from it by more than
    /// `max_jump`.
    pub(super) fn copy(&self, image: &DepthImage, out: &mut [f32]) {
        let width = image.width.max(1);
        let rows = PIXELS_PER_TASK.div_ceil(width);
        let nothing: &[f32] = &[];
        let row_at = |v: Option<usize>| {
            let row = v.and_then(|v| image.metres.get(v * width..(v + 1) * width));
            row.unwrap_or(nothing)
        };
        let tasks = out.par_chunks_mut(width * rows).enumerate();
        tasks.for_each(|(task, out)| {
            for (k, out) in out.chunks_exact_mut(width).enumerate() {
                let v = task * rows + k;
                let (above, below) = (row_at(v.checked_sub(1)), row_at(Some(v + 1)));
                self.copy_row(above, row_at(Some(v)), below, out);
            }
        });
    }

    /// The same in a buffer that is resized.
    pub(super) fn copied<'a>(&self, image: &DepthImage, buffer: &'a mut Vec<f32>) -> &'a [f32] {
        buffer.resize(image.metres.len(), 0.0);
        self.copy(image, buffer);
        buffer
    }

    /// Each loop is simple enough for vector instructions; the rows beside may be empty.
    fn copy_row(&self, above: &[f32], row: &[f32], below: &[f32], out: &mut [f32]) {
        for (out, depth) in out.iter_mut().zip(row) {
            *out = if self.contain(*depth) { *depth } else { 0.0 };
        }
        let next = row.get(1..).unwrap_or_default();
        self.drop_edges(out, row, above);
        self.drop_edges(out, row, below);
        self.drop_edges(out, row, next);
        self.drop_edges(out.get_mut(1..).unwrap_or_default(), next, row);
    }

    /// Clears the pixels of `row` whose neighbours in `beside` are on another surface. A hole is no edge.
    fn drop_edges(&self, out: &mut [f32], row: &[f32], beside: &[f32]) {
        let max_jump = self.max_jump as f32;
        for ((out, depth), other) in out.iter_mut().zip(row).zip(beside) {
            let far = (depth - other).abs() > max_jump * depth.min(*other);
            *out = if far & (*other > 0.0) { 0.0 } else { *out };
        }
    }

    /// Says why nothing of the image is used, if the sensor or its unit is the reason.
    pub(super) fn explain(&self, image: &DepthImage) -> Result<(), DepthError> {
        let depths = image
            .metres
            .iter()
            .copied()
            .filter(|z| z.is_finite() && *z > 0.0);
        let (measured, nearest, farthest) = depths.fold(
            (0, f32::INFINITY, 0.0),
            |(count, near, far): (usize, f32, f32), z| (count + 1, near.min(z), far.max(z)),
        );
        if measured == 0 {
            return Err(DepthError::Empty);
        }
        match image.metres.iter().any(|z| self.contain(*z)) {
            true => Ok(()),
            false => Err(DepthError::Limits {
                measured,
                nearest,
                farthest,
                min: self.min as f32,
                max: self.max as f32,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: DepthLimits = DepthLimits {
        min: 0.5,
        max: 4.0,
        max_jump: 0.05,
    };

    /// The rule as it is written, a pixel at a time.
    fn plain(image: &DepthImage, u: usize, v: usize) -> f32 {
        let at = |u: usize, v: usize| image.metres[v * image.width + u];
        let depth = at(u, v);
        let beside = [
            (u > 0).then(|| at(u - 1, v)),
            (u + 1 < image.width).then(|| at(u + 1, v)),
            (v > 0).then(|| at(u, v - 1)),
            (v + 1 < image.height).then(|| at(u, v + 1)),
        ];
        let mut measured = beside.into_iter().flatten().filter(|z| *z > 0.0);
        let is_edge = |z: f32| (depth - z).abs() > 0.05 * depth.min(z);
        match (0.5..=4.0).contains(&depth) && !measured.any(is_edge) {
            true => depth,
            false => 0.0,
        }
    }

    fn compare(width: usize, height: usize, metres: Vec<f32>) -> usize {
        let image = DepthImage {
            width,
            height,
            metres,
        };
        let mut found = vec![f32::NAN; width * height];
        LIMITS.copy(&image, &mut found);
        for (n, found) in found.iter().enumerate() {
            let expected = plain(&image, n % width, n / width);
            assert_eq!(*found, expected, "{width}×{height}, pixel {n}");
        }
        found.iter().filter(|z| **z > 0.0).count()
    }

    proptest! {
        /// Steps of 10 % among small differences, holes, and what no sensor should send.
        #[test]
        fn it_keeps_what_the_rule_keeps(
            (width, height, metres) in (1..12_usize, 1..9_usize).prop_flat_map(|(width, height)| {
                let odd = [0.0, f32::NAN, f32::INFINITY, -1.0, 0.4, 0.5, 4.0, 4.1];
                let pixel = prop_oneof![
                    7 => 2.0..2.02_f32,
                    2 => 2.2..2.22_f32,
                    1 => prop::sample::select(odd.to_vec()),
                ];
                (Just(width), Just(height), prop::collection::vec(pixel, width * height))
            })
        ) {
            compare(width, height, metres);
        }
    }

    /// Rows that several tasks share: a step after every seventh row is an edge, whichever task has it.
    #[test]
    fn tasks_see_the_rows_beside_theirs() {
        let (width, height) = (640, 205);
        assert!(width * height > PIXELS_PER_TASK);
        let step = |n: usize| {
            if (n / width / 7).is_multiple_of(2) {
                2.0
            } else {
                2.2
            }
        };
        let kept = compare(width, height, (0..width * height).map(step).collect());
        // There are 29 steps, and each takes two rows.
        assert_eq!(kept, width * (height - 2 * 29));
    }
}

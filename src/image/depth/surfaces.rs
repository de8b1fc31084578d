//! The pixels of a depth image that are measured, within limits, and on one surface with their neighbours.

use super::DepthImage;
use rayon::prelude::*;

/// Which pixels are kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kept {
    /// Minimum depth, metres.
    pub min: f32,
    /// Maximum depth, metres.
    pub max: f32,
    /// Maximum difference between neighbours, as a part of the nearer one's depth.
    pub max_jump: f32,
}

/// A thread's share of the pixels: about 50 µs of work.
const PIXELS_PER_TASK: usize = 65536;

impl Kept {
    /// Writes the depths that are kept to `out`, of the same length as those of the image; 0 elsewhere. A pixel is
    /// kept within the limits if none of its four neighbours that are measured differs from it by more than
    /// `max_jump`.
    pub fn copy(&self, image: &DepthImage, out: &mut [f32]) {
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
    pub fn copied<'a>(&self, image: &DepthImage, buffer: &'a mut Vec<f32>) -> &'a [f32] {
        buffer.resize(image.metres.len(), 0.0);
        self.copy(image, buffer);
        buffer
    }

    /// Each loop is simple enough for vector instructions; the rows beside may be empty.
    fn copy_row(&self, above: &[f32], row: &[f32], below: &[f32], out: &mut [f32]) {
        for (out, depth) in out.iter_mut().zip(row) {
            let within = (*depth >= self.min) & (*depth <= self.max);
            *out = if within { *depth } else { 0.0 };
        }
        let next = row.get(1..).unwrap_or_default();
        self.drop_edges(out, row, above);
        self.drop_edges(out, row, below);
        self.drop_edges(out, row, next);
        self.drop_edges(out.get_mut(1..).unwrap_or_default(), next, row);
    }

    /// Clears the pixels of `row` whose neighbours in `beside` are on another surface. A hole is no edge.
    fn drop_edges(&self, out: &mut [f32], row: &[f32], beside: &[f32]) {
        for ((out, depth), other) in out.iter_mut().zip(row).zip(beside) {
            let far = (depth - other).abs() > self.max_jump * depth.min(*other);
            *out = if far & (*other > 0.0) { 0.0 } else { *out };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule as it is written, a pixel at a time.
    fn plain(kept: &Kept, image: &DepthImage, u: usize, v: usize) -> f32 {
        let at = |u: usize, v: usize| image.metres[v * image.width + u];
        let depth = at(u, v);
        let mut beside = Vec::new();
        if u > 0 {
            beside.push(at(u - 1, v));
        }
        if u + 1 < image.width {
            beside.push(at(u + 1, v));
        }
        if v > 0 {
            beside.push(at(u, v - 1));
        }
        if v + 1 < image.height {
            beside.push(at(u, v + 1));
        }
        let measured = beside.into_iter().filter(|z| *z > 0.0);
        let is_edge = |z: f32| (depth - z).abs() > kept.max_jump * depth.min(z);
        let within = depth >= kept.min && depth <= kept.max;
        match within && !measured.clone().any(is_edge) {
            true => depth,
            false => 0.0,
        }
    }

    #[test]
    fn it_keeps_what_the_rule_keeps() {
        let kept = Kept {
            min: 0.5,
            max: 4.0,
            max_jump: 0.05,
        };
        let mut seed = 7_u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(seed >> 8) / f64::from(1 << 24)
        };
        for (width, height) in [(1, 1), (1, 7), (9, 1), (2, 2), (37, 23), (640, 205)] {
            // Steps of 10 % among small differences, holes, and what no sensor should send.
            let odd = [0.0, f32::NAN, f32::INFINITY, -1.0, 0.4, 4.1];
            let pixels = (0..width * height).map(|_| match random() {
                r if r < 0.1 => odd[(r * 60.0) as usize],
                r if r < 0.3 => (2.2 + 0.02 * random()) as f32,
                _ => (2.0 + 0.02 * random()) as f32,
            });
            let metres = pixels.collect();
            let image = DepthImage {
                width,
                height,
                metres,
            };
            let mut found = vec![f32::NAN; width * height];
            kept.copy(&image, &mut found);
            for (n, found) in found.iter().enumerate() {
                let expected = plain(&kept, &image, n % width, n / width);
                assert_eq!(*found, expected, "{width}×{height}, pixel {n}");
            }
            let count = found.iter().filter(|z| **z > 0.0).count();
            assert!(count < width * height || width * height < 10);
        }
    }
}

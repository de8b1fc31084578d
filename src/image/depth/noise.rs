//! How much a sensor's neighbouring pixels differ by its noise.

use super::DepthImage;

/// Number of pairs of neighbours that are looked at.
const PAIRS: usize = 4096;
/// With fewer measured pairs than this, their median says nothing.
const FEW: usize = 64;

/// Differences of neighbours, with memory for [`Jumps::median`].
#[derive(Debug, Clone)]
pub struct Jumps(Vec<f32>);

impl Default for Jumps {
    fn default() -> Self {
        Self(Vec::with_capacity(PAIRS))
    }
}

impl Jumps {
    /// Median difference of two neighbours in a row, as a part of the nearer one's depth, over pairs spread evenly over
    /// the image; 0 if too few are measured. Edges are rare, so that it is what noise and slope make.
    pub fn median(&mut self, image: &DepthImage) -> f64 {
        self.0.clear();
        let step = image.metres.len().div_ceil(PAIRS).max(1);
        let first = (0..image.metres.len()).step_by(step);
        let pairs = first.filter(|k| !(k + 1).is_multiple_of(image.width.max(1)));
        let jumps = pairs.filter_map(|k| {
            let (a, b) = (*image.metres.get(k)?, *image.metres.get(k + 1)?);
            let jump = (a - b).abs() / a.min(b);
            (a > 0.0 && b > 0.0 && jump.is_finite()).then_some(jump)
        });
        self.0.extend(jumps);
        if self.0.len() < FEW {
            return 0.0;
        }
        let middle = self.0.len() / 2;
        let (_, median, _) = self.0.select_nth_unstable_by(middle, f32::total_cmp);
        f64::from(*median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(depth: impl Fn(usize, usize) -> f32) -> DepthImage {
        let (width, height) = (320, 240);
        let pixels = (0..width * height).map(|k| depth(k % width, k / width));
        DepthImage {
            width,
            height,
            metres: pixels.collect(),
        }
    }

    #[test]
    fn edges_do_not_change_it_and_noise_does() {
        let mut jumps = Jumps::default();
        assert_eq!(jumps.median(&image(|_, _| 2.0)), 0.0);
        let boxes = |u: usize, v: usize| {
            if (u / 8 + v / 8).is_multiple_of(2) {
                2.0
            } else {
                3.0
            }
        };
        assert_eq!(jumps.median(&image(boxes)), 0.0);
        // Neighbours differ by 10 % everywhere.
        let noisy = |u: usize, v: usize| if (u + v).is_multiple_of(2) { 2.0 } else { 2.2 };
        assert!((jumps.median(&image(noisy)) - 0.1).abs() < 1e-6);
        let sparse = |u: usize, v: usize| {
            if (u * 7 + v * 13).is_multiple_of(97) {
                noisy(u, v)
            } else {
                0.0
            }
        };
        assert_eq!(jumps.median(&image(sparse)), 0.0);
        assert_eq!(jumps.median(&image(|_, _| f32::NAN)), 0.0);
        assert!(jumps.0.capacity() == PAIRS);
    }
}

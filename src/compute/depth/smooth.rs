//! Averages of a sensor's depth over the pixels around each, as far as its noise and gaps ask for (docs/algorithm.md,
//! Metric scale).
//!
//! A network errs smoothly and a sensor's noise differs from one pixel to the next. So the ratio of depth and pointmap
//! is averaged, not depth itself: a slanted surface stays slanted, and edges stay where the network sees them.

use super::ratio;

/// Noise of log depth that an average may have: a larger window costs as much of what the network gets wrong.
pub(crate) const WANTED_NOISE: f64 = 0.005;
/// Minimum number of measured pixels in a window, times the fraction of the image that is not measured.
pub(crate) const PER_GAP: f64 = 4.0;
/// Maximum radius of a window, pixels.
pub(crate) const MAX_RADIUS: usize = 8;
/// Pixels whose points differ by a larger part of their depth are of different surfaces.
pub(crate) const SAME_SURFACE: f32 = 0.05;

/// The window of an average.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Window {
    /// Half of its side, without the middle; 0: nothing is averaged.
    pub radius: usize,
    /// Number of measured pixels in it, on average over the image, at least 1.
    pub measured: f64,
}

impl Window {
    /// For a sensor with this standard deviation of log depth, which measures this fraction of the pixels: the smallest
    /// window with `max((σ_s/0.005)², 4·(1 − fraction))` measured pixels, of a radius up to 8.
    pub fn of(noise: f64, fraction: f64) -> Self {
        let wanted = (noise / WANTED_NOISE).powi(2);
        let wanted = wanted.max(PER_GAP * (1.0 - fraction));
        let measured = |radius: usize| fraction * ((2 * radius + 1) * (2 * radius + 1)) as f64;
        let enough = (0..MAX_RADIUS).find(|radius| measured(*radius) >= wanted);
        let radius = enough.unwrap_or(MAX_RADIUS);
        Self {
            radius,
            measured: measured(radius).max(1.0),
        }
    }
}

/// Memory for averages of one image at a time.
#[derive(Debug)]
pub(crate) struct Smoother {
    width: usize,
    /// Sum and number of the log ratios, in steps, of each pixel's row of the window.
    rows: Vec<[i32; 2]>,
}

impl Smoother {
    /// For images of `pixels` pixels. It allocates no more later.
    pub fn new(width: usize, pixels: usize) -> Self {
        Self {
            width,
            rows: vec![[0; 2]; pixels],
        }
    }

    /// Replaces depths by averages: `points` is N×3, `keys` the log ratios of `metres` and the points' depths
    /// ([`ratio::key`]), of which those for which `counts` holds are averaged.
    ///
    /// The depth of a pixel becomes `z·exp(bias + mean log r)`, with the mean over the pixels of its window that count and
    /// whose points are of the same surface: first along rows, then along columns. A pixel without depth gets one, and a
    /// pixel whose own ratio does not count keeps its depth.
    pub fn run(
        &mut self,
        points: &[f32],
        keys: &[u16],
        (radius, bias): (usize, f32),
        counts: impl Fn(u16) -> bool,
        metres: &mut [f32],
    ) {
        let width = self.width.max(1);
        let depth = |n: usize| points.get(3 * n + 2).copied().unwrap_or(0.0);
        let around = |place: usize, count: usize| {
            place.saturating_sub(radius)..(place + radius + 1).min(count)
        };
        for (n, out) in self.rows.iter_mut().enumerate() {
            let (u, z) = (n % width, depth(n));
            let first = n - u;
            let mut sums = [0; 2];
            for other in around(u, width).map(|u| first + u) {
                let Some(key) = keys.get(other).filter(|key| counts(**key)) else {
                    continue;
                };
                if same_surface(z, depth(other)) {
                    sums[0] += i32::from(ratio::steps(*key));
                    sums[1] += 1;
                }
            }
            *out = sums;
        }
        let height = keys.len() / width;
        for (n, (metres, key)) in metres.iter_mut().zip(keys).enumerate() {
            let z = depth(n);
            let is_gap = *key == ratio::NOTHING;
            if !(is_gap && *metres <= 0.0 || counts(*key)) {
                continue;
            }
            let mut sums = [0; 2];
            for v in around(n / width, height) {
                let other = v * width + n % width;
                if same_surface(z, depth(other)) {
                    let [sum, count] = self.rows.get(other).copied().unwrap_or_default();
                    sums[0] += sum;
                    sums[1] += count;
                }
            }
            let [sum, count] = sums;
            if count > 0 {
                *metres = z * (bias + sum as f32 / (count as f32 * ratio::STEPS)).exp();
            }
        }
    }
}

/// Whether two points are near enough to each other in depth; false without a depth.
pub(crate) fn same_surface(z: f32, other: f32) -> bool {
    z > 0.0 && other > z * (1.0 - SAME_SURFACE) && other < z * (1.0 + SAME_SURFACE)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Random;
    use super::*;

    const WIDTH: usize = 37;
    const HEIGHT: usize = 29;
    const PIXELS: usize = WIDTH * HEIGHT;

    /// Averages over a window what `metres` are of points with these depths; ratios up to a factor of 2 count.
    fn averaged(depths: &[f32], metres: &[f32], radius: usize) -> Vec<f32> {
        let points: Vec<f32> = depths.iter().flat_map(|z| [0.1 * z, 0.2 * z, *z]).collect();
        let keys: Vec<u16> = depths
            .iter()
            .zip(metres)
            .map(|(z, m)| ratio::key(ratio::of(*m, *z)))
            .collect();
        let counts = |key: u16| key != ratio::NOTHING && ratio::log(key).abs() < 0.7;
        let mut metres = metres.to_vec();
        Smoother::new(WIDTH, PIXELS).run(&points, &keys, (radius, 0.0), counts, &mut metres);
        metres
    }

    #[test]
    fn windows_are_as_large_as_noise_and_gaps_ask_for() {
        let radius = |noise, fraction| Window::of(noise, fraction).radius;
        for (noise, fraction, expected) in [
            (0.0, 1.0, 0),
            (0.005, 1.0, 0),
            (0.01, 1.0, 1),
            (0.02, 1.0, 2),
            (0.05, 1.0, 5),
            (0.1, 1.0, MAX_RADIUS),
            (0.0, 0.9, 0),
            (0.0, 0.6, 1),
            (0.0, 0.03, 6),
            (f64::NAN, 1.0, 0),
            (f64::INFINITY, 1.0, MAX_RADIUS),
            (0.01, 0.0, MAX_RADIUS),
        ] {
            assert_eq!(radius(noise, fraction), expected, "{noise} {fraction}");
        }
        assert_eq!(Window::of(0.02, 0.5).measured, 24.5);
        assert_eq!(Window::of(0.0, 0.001).measured, 1.0);
    }

    #[test]
    fn noise_falls_with_the_root_of_the_window_and_slants_stay() {
        let mut random = Random(3);
        let slant = |n: usize| 2.0 * 1.004_f32.powi((n % WIDTH) as i32 + (n / WIDTH) as i32);
        let depths: Vec<f32> = (0..PIXELS).map(slant).collect();
        let noisy = depths
            .iter()
            .map(|z| 1.1 * z * (0.05 * random.normal() as f32).exp());
        let noisy: Vec<f32> = noisy.collect();
        for radius in 1..=MAX_RADIUS {
            let found = averaged(&depths, &noisy, radius);
            let inside = |n: &usize| {
                let away = |at: usize, count: usize| at >= radius && at + radius < count;
                away(n % WIDTH, WIDTH) && away(n / WIDTH, HEIGHT)
            };
            let errors = (0..PIXELS)
                .filter(inside)
                .map(|n| f64::from(found[n] / (1.1 * depths[n])).ln());
            let errors: Vec<f64> = errors.collect();
            let rms = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt();
            let expected = 0.05 / (2 * radius + 1) as f64;
            assert!(
                (0.5..1.6).contains(&(rms / expected)),
                "{radius}: {rms}, expected {expected}"
            );
        }
    }

    #[test]
    fn surfaces_are_not_mixed_and_what_does_not_count_stays() {
        // A step from 2 to 3 m; the network is wrong by 10 % in front and by -5 % behind.
        let front = |n: usize| n % WIDTH < 17;
        let depths: Vec<f32> = (0..PIXELS)
            .map(|n| if front(n) { 2.0 } else { 3.0 })
            .collect();
        let truth: Vec<f32> = (0..PIXELS)
            .map(|n| if front(n) { 2.2 } else { 2.85 })
            .collect();
        let mut metres = truth.clone();
        // Gaps, another surface, and what is no depth.
        for n in (0..PIXELS).filter(|n| n % 3 == 1) {
            metres[n] = 0.0;
        }
        (metres[40], metres[80], metres[200]) = (9.0, f32::NAN, -1.0);
        let found = averaged(&depths, &metres, 4);
        assert_eq!(found[40], 9.0);
        assert!(found[80].is_nan());
        for n in (0..PIXELS).filter(|n| ![40, 80].contains(n)) {
            let off = found[n] / truth[n] - 1.0;
            assert!(off.abs() < 2e-4, "{n}: {} of {}", found[n], truth[n]);
        }
        // A pixel without a point gets no depth, and none far from all others.
        let mut depths = depths;
        (depths[5], depths[6], depths[7]) = (0.0, -1.0, f32::NAN);
        let mut metres = vec![0.0; PIXELS];
        metres[0] = 2.2;
        let found = averaged(&depths, &metres, 8);
        assert_eq!(found[5..8], [0.0; 3]);
        assert!((found[8] - 2.2).abs() < 1e-3);
        assert_eq!(found[9], 0.0);
        assert_eq!(found[9 * WIDTH], 0.0);
    }

    #[test]
    fn no_image_is_no_fault() {
        Smoother::new(0, 0).run(&[], &[], (3, 0.0), |_| true, &mut []);
    }
}

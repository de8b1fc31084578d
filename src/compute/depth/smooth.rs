//! Averages of a sensor's depth over the pixels around each, as far as its noise and gaps ask for (docs/algorithm.md,
//! Metric scale).
//!
//! A network errs smoothly and a sensor's noise differs from one pixel to the next. So the ratio of depth and pointmap
//! is averaged, not depth itself: a slanted surface stays slanted. Edges are where the network or the sensor sees them: a
//! network smears them over pixels in between, whose ratios to both surfaces are wrong.

use super::around::{EDGE, same_surface};
use super::ratio;

/// Noise of log depth that an average may have: a larger window costs as much of what the network gets wrong.
pub(crate) const WANTED_NOISE: f64 = 0.005;
/// Minimum number of measured pixels in a window, times the fraction of the image that is not measured.
pub(crate) const PER_GAP: f64 = 4.0;
/// Maximum radius of a window, pixels.
pub(crate) const MAX_RADIUS: usize = 8;

/// Two log ratios of one surface differ by at most this, times the sensor's standard deviation: 3 of the difference's.
pub(crate) const DEVIATIONS: f64 = 4.242_640_687_119_285;
/// Or by this, if that is more: what a network gets wrong within a window.
pub(crate) const MIN_SPREAD: f64 = 0.02;

/// Maximum difference of the logarithms of two depths that are about the same, in steps: 5 %.
pub(crate) const SAME_DEPTH: i32 = 205;

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

/// How the depths of an image are averaged.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Average {
    /// Radius of the window, pixels.
    pub radius: u32,
    /// By how much the mean of the sensor's log depth is too small.
    pub bias: f32,
    /// Maximum difference of two log ratios of one surface, in steps.
    pub spread: i32,
}

impl Average {
    /// For a sensor with this standard deviation of log depth.
    pub(crate) fn new(noise: f64, window: Window) -> Self {
        // More than any difference, and no sum of a window overflows.
        let largest = 2.0 * f64::from(ratio::LARGEST);
        let spread = (DEVIATIONS * noise).max(MIN_SPREAD) * f64::from(ratio::STEPS);
        Self {
            radius: window.radius as u32,
            bias: (0.5 * (noise * noise)) as f32,
            spread: spread.min(largest) as i32,
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
    /// are of the same surface by their points and by their ratios: first along rows, where the ratio is that of the
    /// row's middle, then along columns, where means of rows are compared with the pixel's own. A pixel without depth gets
    /// one if nothing around it was measured or something there has about that depth: at the edges of surfaces, where a
    /// network's points are in between, what is missing stays so. A pixel whose own ratio does not count keeps its depth.
    pub fn run(
        &mut self,
        points: &[f32],
        keys: &[u16],
        average: Average,
        counts: impl Fn(u16) -> bool,
        metres: &mut [f32],
    ) {
        let width = self.width.max(1);
        let radius = average.radius as usize;
        let own = |n: usize| keys.get(n).copied().filter(|key| counts(*key));
        // Whether the mean of so many ratios is near a pixel's own, if it has one.
        let is_near = |own: Option<u16>, sum: i32, count: i32| {
            own.is_none_or(|own| {
                (sum - count * i32::from(ratio::steps(own))).abs() <= count * average.spread
            })
        };
        let depth = |n: usize| points.get(3 * n + 2).copied().unwrap_or(0.0);
        let height = keys.len() / width;
        let within = |distance: usize, place: usize, count: usize| {
            place.saturating_sub(distance)..(place + distance + 1).min(count)
        };
        let spread = average.spread.max(SAME_DEPTH);
        // Whether the mean of so many ratios gives a pixel the depth of one that was measured near it, if any was.
        let fits = |n: usize, sum: i32, count: i32| {
            let rows = within(EDGE, n / width, height);
            let near =
                rows.flat_map(|v| within(EDGE, n % width, width).map(move |u| v * width + u));
            let (mut any, mut same) = (false, false);
            for other in near {
                let Some(key) = own(other) else { continue };
                any = true;
                let over = ratio::of(depth(other), depth(n)).map(i32::from);
                let off = over.map(|over| count * (over + i32::from(ratio::steps(key))) - sum);
                same |= off.is_some_and(|off| off.abs() <= count * spread);
            }
            same || !any
        };
        for (n, out) in self.rows.iter_mut().enumerate() {
            let (u, z, middle) = (n % width, depth(n), own(n));
            let first = n - u;
            let mut sums = [0; 2];
            for other in within(radius, u, width).map(|u| first + u) {
                let Some(steps) = own(other).map(|key| i32::from(ratio::steps(key))) else {
                    continue;
                };
                if same_surface(z, depth(other)) && is_near(middle, steps, 1) {
                    sums[0] += steps;
                    sums[1] += 1;
                }
            }
            *out = sums;
        }
        for (n, (metres, key)) in metres.iter_mut().zip(keys).enumerate() {
            let (z, middle) = (depth(n), own(n));
            let is_gap = *key == ratio::NOTHING && *metres <= 0.0;
            if !is_gap && middle.is_none() {
                continue;
            }
            let mut sums = [0; 2];
            for v in within(radius, n / width, height) {
                let other = v * width + n % width;
                if same_surface(z, depth(other)) {
                    let [sum, count] = self.rows.get(other).copied().unwrap_or_default();
                    if is_near(middle, sum, count) {
                        sums[0] += sum;
                        sums[1] += count;
                    }
                }
            }
            let [sum, count] = sums;
            if count > 0 && (!is_gap || fits(n, sum, count)) {
                *metres = z * (average.bias + sum as f32 / (count as f32 * ratio::STEPS)).exp();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Random;
    use super::*;

    const WIDTH: usize = 37;
    const HEIGHT: usize = 29;
    const PIXELS: usize = WIDTH * HEIGHT;

    /// Ratios of a surface may differ by 15 standard deviations of the tests' noise.
    const SPREAD: i32 = 3072;

    fn averaged(depths: &[f32], metres: &[f32], radius: usize) -> Vec<f32> {
        averaged_within(SPREAD, depths, metres, radius)
    }

    /// Averages over a window what `metres` are of points with these depths; ratios up to a factor of 2 count, and those
    /// of a surface differ by up to `spread` steps.
    fn averaged_within(spread: i32, depths: &[f32], metres: &[f32], radius: usize) -> Vec<f32> {
        let points: Vec<f32> = depths.iter().flat_map(|z| [0.1 * z, 0.2 * z, *z]).collect();
        let keys: Vec<u16> = depths
            .iter()
            .zip(metres)
            .map(|(z, m)| ratio::key(ratio::of(*m, *z)))
            .collect();
        let counts = |key: u16| key != ratio::NOTHING && ratio::log(key).abs() < 0.7;
        let mut metres = metres.to_vec();
        let average = Average {
            radius: radius as u32,
            bias: 0.0,
            spread,
        };
        Smoother::new(WIDTH, PIXELS).run(&points, &keys, average, counts, &mut metres);
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
    fn what_a_network_smears_over_an_edge_is_of_the_surface_that_the_sensor_sees() {
        // A ragged edge between surfaces at 2 and 3 m, over which the network has points at 2.45 m.
        let is_smeared = |n: usize| (16..20).contains(&(n % WIDTH));
        let depth = |n: usize| match n % WIDTH {
            0..16 => 2.0,
            16..20 => 2.45,
            _ => 3.0,
        };
        let depths: Vec<f32> = (0..PIXELS).map(depth).collect();
        let truth = |n: usize| match n % WIDTH < 17 + n / WIDTH % 3 {
            true => 2.0,
            false => 3.0,
        };
        let truth: Vec<f32> = (0..PIXELS).map(truth).collect();
        let spread = Average::new(0.0, Window::default()).spread;
        for radius in 1..=MAX_RADIUS {
            let found = averaged_within(spread, &depths, &truth, radius);
            for n in 0..PIXELS {
                let off = found[n] / truth[n] - 1.0;
                assert!(off.abs() < 2e-4, "{n}: {} of {}", found[n], truth[n]);
            }
        }
        // Noise larger than the step hides the edge.
        let found = averaged_within(SPREAD, &depths, &truth, 2);
        let mixed = (0..PIXELS).filter(|n| (found[*n] / truth[*n] - 1.0).abs() > 0.05);
        assert!(mixed.filter(|n| is_smeared(*n)).count() > HEIGHT);
    }

    #[test]
    fn gaps_at_an_edge_get_no_depth_between_its_surfaces() {
        // A surface at 1 m before one at 3 m; the sensor has nothing for two columns where they meet, and the network has
        // points in between there and beside it.
        let depth = |n: usize| match n % WIDTH {
            0..15 => 1.0,
            15..19 => 1.8,
            _ => 3.0,
        };
        let depths: Vec<f32> = (0..PIXELS).map(depth).collect();
        let measured = |n: usize| match n % WIDTH {
            0..16 => 1.0,
            16..18 => 0.0,
            _ => 3.0,
        };
        let mut metres: Vec<f32> = (0..PIXELS).map(measured).collect();
        // A gap within a surface.
        metres[WIDTH + 4] = 0.0;
        let found = averaged_within(82, &depths, &metres, 3);
        assert!((found[WIDTH + 4] - 1.0).abs() < 1e-3);
        for (n, found) in found.iter().enumerate() {
            let at_edge = (16..18).contains(&(n % WIDTH));
            let is_of_one = [1.0, 3.0].iter().any(|z| (found / z - 1.0).abs() < 0.01);
            assert!(is_of_one || at_edge && *found == 0.0, "{n}: {found} m");
        }
    }

    #[test]
    fn a_noisy_sensor_is_averaged_over_all_of_a_surface() {
        let mut random = Random(9);
        let depths = [2.0; PIXELS];
        for noise in [0.02, 0.1] {
            let window = Window::of(noise, 1.0);
            let average = Average::new(noise, window);
            let metres = depths.map(|z| z * (noise * random.normal()).exp() as f32);
            let all = averaged(&depths, &metres, window.radius);
            let found = averaged_within(average.spread, &depths, &metres, window.radius);
            let rms = |found: &[f32]| {
                let squares = found.iter().map(|z| f64::from(z / 2.0).ln().powi(2));
                (squares.sum::<f64>() / PIXELS as f64).sqrt()
            };
            let (all, found) = (rms(&all), rms(&found));
            assert!(found < 1.25 * all, "{noise}: {found}, of all {all}");
        }
    }

    #[test]
    fn no_image_is_no_fault() {
        Smoother::new(0, 0).run(&[], &[], Average::default(), |_| true, &mut []);
    }
}

//! How far a pixel's own measured depth corrects its point, beside the scale and the field of a pass
//! (docs/algorithm.md, Metric scale).
//!
//! A field is smooth, and what it leaves of a network's error makes the camera's motion come out too small: parallax
//! weighs the inverse of depth, which noise of points attenuates. A pixel's own depth shows that error beside the
//! sensor's noise, which differs from one pixel to the next, where a network errs smoothly.

use super::around::{DepthImage, SAME_SURFACE};
use super::smooth::{Average, Window};
use super::{MIN_SIGMA, SIGMA_OVER_MAD, TRUSTED, Trust, ratio};

/// Maximum distance of neighbours in a row, pixels.
pub(crate) const NEIGHBOURS: usize = 8;
/// Minimum number of pairs of neighbours that show a sensor's noise.
pub(crate) const MIN_PAIRS: u64 = 256;
/// Number of frames whose noise a keyframe's pointmap averages.
pub(crate) const AVERAGED: f64 = 5.0;
/// Standard deviation of log depth at a match, which is a pixel off.
pub(crate) const MATCHED_SIGMA: f64 = 0.02;
/// Maximum log ratio of a point's depth and the measured one with which they agree: 10 cm at 5 m.
pub(crate) const AGREES: f32 = 0.02;
/// Confidence of a point between the depths of an edge over that of a measured one: the outputs do not have it.
pub(crate) const DOUBTED: f32 = 0.6;
/// Scale and log ratio that is left of a point without a depth that counts.
const UNMEASURED: (f32, f32) = (1.0, f32::INFINITY);

/// Parts of a point's missing log depth that its measured depth makes up for, 0 to 1; none before the first fit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OfPixels {
    /// By the depth of the point's own pixel.
    pub own: f32,
    /// By the depth at its match, of a point that is fused with those of other frames.
    pub matched: f32,
    /// By the depth of its own pixel, after its match's.
    pub keyframe: f32,
    /// What is missing counts less the larger it is, and from here on not at all.
    pub reach: f32,
    /// Whether a point takes the depth of its own pixel if that is off and of a surface: the network has not resolved it.
    pub surfaces: bool,
    /// Minimum confidence of a point that agrees with its own depth; 0: confidences stay as they are.
    pub confidence: f32,
    /// How the sensor's depth is averaged first.
    pub average: Average,
}

/// Sums over pairs of neighbours in a row whose ratios count.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pairs {
    /// Differences of their log ratios, in steps.
    pub differences: u64,
    pub count: u64,
}

impl OfPixels {
    /// For a pass whose log ratios have this median absolute deviation, of this fraction of the pixels.
    ///
    /// With the sensor's noise `σ_s = √π/2 · mean |difference of neighbours|` and all of the scatter `σ = 1.4826·MAD`,
    /// the network's error is `σ_n² = σ² − σ_s²`. An average over a [`Window`] has the variance `σ_a² = σ_s²/n`. The
    /// gains are `σ_n²/(σ_n² + σ_a²)`, for a point that is fused `σ_n²/(σ_n² + σ_a²/5)`, because the noise of frames
    /// averages out and the network's error does not, and after a match `0.02²/(0.02² + σ_a²)`. With too few neighbours
    /// they are 0.
    pub(crate) fn new(
        pairs: Pairs,
        mad: f64,
        (reach, confidence): (f32, f32),
        fraction: f64,
    ) -> Self {
        if pairs.count < MIN_PAIRS {
            return Self {
                reach,
                confidence,
                ..Self::default()
            };
        }
        let mean = pairs.differences as f64 / f64::from(ratio::STEPS) / pairs.count as f64;
        let scatter = (SIGMA_OVER_MAD * mad).max(MIN_SIGMA);
        let noise = 0.886_226_925_452_758 * mean;
        let of_network = (scatter * scatter - noise * noise).max(0.0);
        let window = Window::of(noise, fraction);
        let of_average = noise * noise / window.measured;
        let of_match = MATCHED_SIGMA * MATCHED_SIGMA;
        let gain = |noise: f64| match of_network > 0.0 {
            true => (of_network / (of_network + noise)) as f32,
            false => 0.0,
        };
        Self {
            own: gain(of_average),
            matched: gain(of_average / AVERAGED),
            keyframe: (of_match / (of_match + of_average)) as f32,
            reach,
            surfaces: true,
            confidence,
            average: Average::new(noise, window),
        }
    }

    /// The same for a sensor with this trust: only surfaces of a trusted one count.
    pub fn of_sensor(self, trust: Trust) -> Self {
        Self {
            surfaces: self.surfaces && trust.agreed() >= TRUSTED,
            ..self
        }
    }

    /// Brings metric points (`N × 3`) of a view of `width` columns nearer to its own depths, and changes their confidences, of
    /// which `confidence` has one a point, or none.
    pub fn approach(
        self,
        points: &mut [f32],
        confidence: &mut [f32],
        metres: &[f32],
        width: usize,
    ) {
        let image = DepthImage { metres, width };
        for (n, p) in points.chunks_exact_mut(3).enumerate() {
            self.bring_own(self.own, (p, confidence.get_mut(n)), image, n);
        }
    }

    /// Brings points (`N × 3`) of another view, in the camera of the view that `metres` belongs to, nearer to the
    /// depths at their matches: the surface that both views see has the depth that was measured there. `corrected` says
    /// of which points a depth counted.
    pub fn approach_matches(
        self,
        points: &mut [f32],
        metres: &[f32],
        index: &[u32],
        valid: &[u8],
        corrected: &mut [bool],
    ) {
        let matches = points.chunks_exact_mut(3).zip(index).zip(valid);
        for (((p, m), valid), corrected) in matches.zip(corrected) {
            let metres = metres.get(*m as usize).filter(|_| *valid != 0);
            let whole = metres.map_or(0.0, |z| over(*z, p[2]));
            let (scale, left) = self.bring(self.matched, whole);
            multiply(p, scale);
            *corrected = left.is_finite();
        }
    }

    /// Brings points that are fused nearer to their own pixels' depths, and changes their confidences, of which
    /// `confidence` has one a point, or none.
    pub fn approach_keyframe(
        self,
        points: &mut [f32],
        confidence: &mut [f32],
        metres: &[f32],
        width: usize,
        corrected: &[bool],
    ) {
        let image = DepthImage { metres, width };
        let points = points.chunks_exact_mut(3).zip(corrected);
        for (n, (p, corrected)) in points.enumerate() {
            let gain = match corrected {
                true => self.keyframe,
                false => self.own,
            };
            self.bring_own(gain, (p, confidence.get_mut(n)), image, n);
        }
    }

    /// Brings a point nearer to the depth of its own pixel `n`, or to it if the network has not resolved its surface.
    ///
    /// A point that then agrees with its depth is as confident as the outputs ask for, and one between the depths of an
    /// edge is less; one that is hidden stays so.
    #[inline(always)]
    fn bring_own(
        self,
        gain: f32,
        (point, confidence): (&mut [f32], Option<&mut f32>),
        image: DepthImage<'_>,
        n: usize,
    ) {
        let Some(metres) = image.at(n) else {
            return;
        };
        let whole = over(metres, point[2]);
        let (mut scale, mut left) = self.bring(gain, whole);
        let is_apart = left >= SAME_SURFACE && self.surfaces;
        if is_apart && whole > 0.0 && whole.is_finite() && image.is_of_surface(n) {
            (scale, left) = (whole, 0.0);
        }
        multiply(point, scale);
        let Some(confidence) = confidence.filter(|c| **c > 0.0 && self.confidence > 0.0) else {
            return;
        };
        let doubted = DOUBTED * self.confidence;
        if left < AGREES {
            *confidence = confidence.max(self.confidence);
        } else if is_apart && *confidence > doubted && image.is_of_edge(n, point[2]) {
            *confidence = doubted;
        }
    }

    /// What brings a point nearer to its measured depth, which is `whole` over the point's, and the log ratio that is
    /// left, of positive sign. A depth beyond the reach does not count.
    #[inline(always)]
    fn bring(self, gain: f32, whole: f32) -> (f32, f32) {
        let rest = whole.ln();
        let of_reach = rest / self.reach;
        let squared = of_reach * of_reach;
        let weight = 1.0 - squared * squared;
        // False for a rest that is not finite, which a `whole` of 0 has.
        match weight > 0.0 {
            true => {
                let part = gain * weight;
                ((part * rest).exp(), (rest * (1.0 - part)).abs())
            }
            false => UNMEASURED,
        }
    }
}

/// A measured depth over a point's; 0 if either is invalid.
#[inline(always)]
fn over(metres: f32, depth: f32) -> f32 {
    match metres > 0.0 && depth > 0.0 {
        true => metres / depth,
        false => 0.0,
    }
}

fn multiply(point: &mut [f32], scale: f32) {
    point.iter_mut().for_each(|v| *v *= scale);
}

#[cfg(test)]
mod tests {
    use super::super::DepthMeter;
    use super::super::field::DepthField;
    use super::super::tests::Random;
    use super::*;
    use crate::geometry::Intrinsics;

    const SIZE: (usize, usize) = (256, 192);
    const PIXELS: usize = SIZE.0 * SIZE.1;
    const NOISES: [f64; 3] = [0.0, 0.05, 0.5];

    /// A wall 2 m away, which the network sees with waves that no cell of a field resolves, in metric points, and its
    /// depth with noise, right on average, averaged. The gains are those of a fit.
    fn wavy(noise: f64) -> (Vec<f32>, Vec<f32>, OfPixels) {
        let camera = Intrinsics {
            fx: 200.0,
            fy: 208.0,
            cx: 124.0,
            cy: 96.0,
        };
        let mut random = Random(5);
        let noisy = |normal: f64| (2.0 * (noise * normal - 0.5 * noise * noise).exp()) as f32;
        let metres = (0..PIXELS).map(|_| noisy(random.normal()));
        let mut metres: Vec<f32> = metres.collect();
        let points = (0..PIXELS).flat_map(|n| {
            let ray = camera.ray((n % SIZE.0) as f64, (n / SIZE.0) as f64);
            let wave = 0.08 * ((n % SIZE.0) as f32 * 0.2).sin();
            [ray.x as f32, ray.y as f32, 1.0].map(|v| 2.0 * v * wave.exp())
        });
        let points: Vec<f32> = points.collect();
        let mut meter = DepthMeter::new(PIXELS);
        let confidence = vec![1.0; PIXELS];
        let mut trust = Trust::after(100);
        meter
            .measure(&points, &confidence, &metres, SIZE.0, &mut trust)
            .unwrap();
        let mut field = DepthField::new(SIZE, camera, 0.0);
        field.fit(&points, meter.keys(), (0.0, meter.mad()), &mut metres);
        (points, metres, field.of_pixels())
    }

    /// Root of the mean square of the log ratio of 2 m and a point's depth.
    fn scatter(points: &[f32]) -> f64 {
        let depths = points.chunks_exact(3).map(|p| f64::from(p[2] / 2.0));
        (depths.map(|ratio| ratio.ln().powi(2)).sum::<f64>() / PIXELS as f64).sqrt()
    }

    #[test]
    fn a_pixel_follows_its_depth_as_far_as_the_noise_lets_it() {
        for (noise, gain, left) in [
            (NOISES[0], 0.95..1.0, 0.01),
            (NOISES[1], 0.95..1.0, 0.02),
            (NOISES[2], 0.0..0.9, 0.06),
        ] {
            let (mut points, metres, gains) = wavy(noise);
            assert!(gain.contains(&gains.own), "{noise}: {gains:?}");
            let before = scatter(&points);
            gains.approach(&mut points, &mut [], &metres, SIZE.0);
            let after = scatter(&points);
            assert!(
                after < left && after < before + 0.005,
                "{noise}: {before}, {after}"
            );
        }
    }

    #[test]
    fn a_fused_point_follows_the_depth_at_its_match_further_than_its_own_after_it() {
        for noise in NOISES {
            let (mut points, metres, gains) = wavy(noise);
            assert!(gains.matched >= gains.own, "{noise}: {gains:?}");
            let mut expected = points.clone();
            let own = OfPixels {
                own: gains.matched,
                ..gains
            };
            own.approach(&mut expected, &mut [], &metres, SIZE.0);
            // Matches to the same pixels, of which one is invalid and one beyond the image.
            let mut index: Vec<u32> = (0..PIXELS as u32).collect();
            let mut valid = vec![1; PIXELS];
            valid[5] = 0;
            index[6] = u32::MAX;
            let mut corrected = vec![true; PIXELS];
            let unmoved = points[15..21].to_vec();
            gains.approach_matches(&mut points, &metres, &index, &valid, &mut corrected);
            assert_eq!(points[15..21], unmoved);
            assert_eq!(corrected[4..8], [true, false, false, true]);
            assert_eq!(points[21..], expected[21..]);
            // Noise as large as an error of matches moves a point that a match has corrected by less than half.
            let before = points.clone();
            gains.approach_keyframe(
                &mut points,
                &mut [],
                &vec![2.04; PIXELS],
                SIZE.0,
                &corrected,
            );
            let moved = |n: usize| points[3 * n + 2] / before[3 * n + 2] - 1.0;
            let missing = 2.04 / before[3 * 7 + 2] - 1.0;
            assert!(moved(7) / missing < gains.keyframe + 0.01, "{noise}");
            assert_eq!(gains.keyframe > 0.5, noise < 0.1, "{noise}: {gains:?}");
        }
    }

    #[test]
    fn what_is_no_depth_moves_no_point() {
        let (mut points, mut metres, gains) = wavy(0.01);
        let before = points.clone();
        metres.fill(4.0);
        let resolved = OfPixels {
            surfaces: false,
            ..gains
        };
        resolved.approach(&mut points, &mut [], &metres, SIZE.0);
        assert_eq!(points, before, "another surface");
        for bad in [0.0, -2.0, f32::NAN, f32::INFINITY] {
            metres.fill(bad);
            gains.approach(&mut points, &mut [], &metres, SIZE.0);
            assert_eq!(points, before, "{bad}");
        }
        let none = OfPixels::default();
        metres.fill(2.0);
        none.approach(&mut points, &mut [], &metres, SIZE.0);
        assert_eq!(points, before, "before a fit");
        let few = Pairs {
            differences: 0,
            count: MIN_PAIRS - 1,
        };
        assert_eq!(OfPixels::new(few, 0.05, (0.3, 0.0), 1.0).own, 0.0);
        points[2] = -1.0;
        points[5] = 0.0;
        points[8] = f32::NAN;
        let odd = points[..9].to_vec();
        gains.approach(&mut points, &mut [], &metres, SIZE.0);
        assert_eq!(points[..6], odd[..6]);
        assert!(points[8].is_nan());
    }

    /// A wall 3 m away, which is all that the network sees, and what the sensor measures: in front of it a bar of four
    /// columns, one of a single column, and some pixels apart from each other.
    fn unresolved() -> (Vec<f32>, Vec<f32>) {
        let metres = (0..PIXELS).map(|n| match (n % SIZE.0, n / SIZE.0) {
            (100..104, _) => 1.5,
            (40, _) => 2.0,
            (180, v) if v % 7 == 0 => 0.8,
            _ => 3.0,
        });
        ([0.3, -0.1, 3.0].repeat(PIXELS), metres.collect())
    }

    const GAINS: OfPixels = OfPixels {
        own: 0.9,
        matched: 0.95,
        keyframe: 0.4,
        reach: 0.2,
        surfaces: true,
        confidence: 2.0,
        average: Average {
            radius: 0,
            bias: 0.0,
            spread: 0,
        },
    };

    #[test]
    fn points_take_the_depth_of_surfaces_that_the_network_has_not_resolved() {
        let (seen, metres) = unresolved();
        let corrected: Vec<bool> = (0..PIXELS).map(|n| n % 3 == 0).collect();
        let (mut own, mut fused) = (seen.clone(), seen.clone());
        // The pixels are uncertain, certain and hidden.
        let before = [1.1, 3.0, 0.0].repeat(PIXELS / 3);
        let (mut of_own, mut of_fused) = (before.clone(), before.clone());
        GAINS.approach(&mut own, &mut of_own, &metres, SIZE.0);
        GAINS.approach_keyframe(&mut fused, &mut of_fused, &metres, SIZE.0, &corrected);
        for (points, confidence) in [(own, of_own), (fused, of_fused)] {
            for (n, (p, z)) in points.chunks_exact(3).zip(&metres).enumerate() {
                // The ends of the single column have one neighbour.
                let is_end = *z == 2.0 && [0, SIZE.1 - 1].contains(&(n / SIZE.0));
                let expected = if *z == 0.8 || is_end { 3.0 } else { *z };
                let measured = if expected == *z {
                    [2.0, 3.0, 0.0]
                } else {
                    [1.1, 3.0, 0.0]
                };
                assert_eq!(confidence[n], measured[n % 3], "{n}: {p:?}, {z} m");
                let on_ray = [0.1, -1.0 / 30.0, 1.0].map(|v| v * expected);
                for (found, expected) in p.iter().zip(on_ray) {
                    assert!((found - expected).abs() < 1e-6, "{n}: {p:?}, {z} m");
                }
            }
        }
    }

    #[test]
    fn points_that_stay_apart_from_their_depth_stay_uncertain() {
        // The network errs by 15 and by 4 %: the gain leaves 0.15·(1 − 0.9·0.68) and 0.04·(1 − 0.9).
        let mut points = [0.0, 0.0, 2.0].repeat(PIXELS);
        let mut confidence = vec![1.0; PIXELS];
        let metres: Vec<f32> = (0..PIXELS)
            .map(|n| {
                2.0 * if n % 2 == 0 {
                    f32::exp(0.15)
                } else {
                    f32::exp(0.04)
                }
            })
            .collect();
        GAINS.approach(&mut points, &mut confidence, &metres, SIZE.0);
        assert_eq!(confidence[..4], [1.0, 2.0, 1.0, 2.0]);
        // A sensor with too few pixels corrects nothing, and confirms what agrees with it.
        let unknown = OfPixels {
            own: 0.0,
            surfaces: false,
            ..GAINS
        };
        let mut points = [0.0, 0.0, 2.0, 0.0, 0.0, 2.06].repeat(PIXELS / 2);
        let mut confidence = vec![1.0; PIXELS];
        unknown.approach(&mut points, &mut confidence, &metres, SIZE.0);
        assert_eq!(points[..6], [0.0, 0.0, 2.0, 0.0, 0.0, 2.06]);
        assert_eq!(confidence[..4], [1.0, 2.0, 1.0, 2.0]);
    }

    #[test]
    fn points_between_the_depths_of_an_edge_are_doubted() {
        // An object at 1 m before a wall at 3 m; where they meet nothing is measured.
        let measured = |n: usize| match n % SIZE.0 {
            0..100 => 1.0,
            100..102 => 0.0,
            _ => 3.0,
        };
        let metres: Vec<f32> = (0..PIXELS).map(measured).collect();
        for (depth, doubted) in [(1.02, 2.5), (2.0, 1.2), (2.95, 2.5), (0.5, 2.5), (4.0, 2.5)] {
            let mut points = metres.iter().map(|z| if *z > 0.0 { *z } else { depth });
            let mut points: Vec<f32> = points.by_ref().flat_map(|z| [0.0, 0.0, z]).collect();
            let mut confidence = vec![2.5; PIXELS];
            confidence[100] = 0.0;
            let before = points.clone();
            GAINS.approach(&mut points, &mut confidence, &metres, SIZE.0);
            assert_eq!(points, before);
            let of_edge = &confidence[SIZE.0 + 98..SIZE.0 + 104];
            assert_eq!(of_edge, [2.5, 2.5, doubted, doubted, 2.5, 2.5], "{depth} m");
            assert_eq!(confidence[100], 0.0, "a hidden point");
        }
        // A sensor with too few pixels has no edges.
        let sparse = OfPixels {
            surfaces: false,
            ..GAINS
        };
        let mut points = [0.0, 0.0, 2.0].repeat(PIXELS);
        let mut confidence = vec![2.5; PIXELS];
        sparse.approach(&mut points, &mut confidence, &metres, SIZE.0);
        assert!(confidence.iter().all(|c| *c == 2.5));
    }

    #[test]
    fn matches_and_sensors_with_too_few_pixels_move_nothing_that_far() {
        let (seen, metres) = unresolved();
        let mut points = seen.clone();
        // A match on the bar may be one of what it hides.
        let index: Vec<u32> = (0..PIXELS as u32).collect();
        let mut corrected = vec![false; PIXELS];
        GAINS.approach_matches(
            &mut points,
            &metres,
            &index,
            &[1].repeat(PIXELS),
            &mut corrected,
        );
        assert_eq!(points, seen);
        assert!(!corrected[100] && corrected[0]);
        let few = Pairs {
            differences: 0,
            count: MIN_PAIRS - 1,
        };
        OfPixels::new(few, 0.01, (0.2, 0.0), 0.01).approach(&mut points, &mut [], &metres, SIZE.0);
        assert_eq!(points, seen);
    }

    #[test]
    fn invalid_depths_are_no_surfaces() {
        let mut points = [0.0, 0.0, 1.0, f32::NAN, 0.0, 1.0, 0.0, 0.0, -1.0].repeat(PIXELS / 3);
        for invalid in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let before = points.clone();
            GAINS.approach(&mut points, &mut [], &vec![invalid; PIXELS], SIZE.0);
            let same = before
                .iter()
                .zip(&points)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{invalid}");
        }
        // Images of fewer pixels than points, and of none.
        GAINS.approach(&mut points, &mut [], &[0.1; 5], 0);
        GAINS.approach(&mut points, &mut [], &[], 7);
    }
}

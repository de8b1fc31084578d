//! How much of a keyframe other keyframes see as well (docs/algorithm.md, Map economy).

/// Counts of a keyframe's pixels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Pixels with a point and sufficient confidence.
    pub usable: u32,
    /// Usable pixels that at least one other keyframe sees.
    pub seen: u32,
    /// Usable pixels that at least two other keyframes see.
    pub covered: u32,
}

/// Limits of a count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// A usable pixel has a higher average confidence.
    pub c_conf: f32,
    /// A match has a higher quality.
    pub q_conf: f32,
    /// Minimum ratio of a point's distance from the keyframe to its distance from the other one.
    pub min_ratio: f32,
}

/// Another keyframe's view of a keyframe: `N` pixels.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// For each pixel of the keyframe, the matched pixel of the other.
    pub index: &'a [u32],
    /// Quality of the match; 0 where nothing matches.
    pub quality: &'a [f32],
    /// `N × 3` points of the other keyframe, in its camera frame.
    pub points: &'a [f32],
    /// Scale of the keyframe's pose over that of the other: makes distances comparable.
    pub scale: f32,
}

/// Counts the pixels of a keyframe with `points` (`N × 3`, in its camera frame) and average `confidence` (`N`). A
/// keyframe sees a pixel if the pixel has a match of sufficient quality in it, and if the matched point is near
/// enough to it: `scale·|X| ≥ min_ratio·|X'|`, so that a view from further away does not count. `counts` is scratch
/// memory.
pub fn coverage(
    points: &[f32],
    confidence: &[f32],
    views: &[View<'_>],
    limits: &Limits,
    counts: &mut Vec<u8>,
) -> Coverage {
    counts.clear();
    counts.resize(confidence.len(), 0);
    for view in views {
        add(points, view, limits, counts);
    }
    let mut found = Coverage::default();
    let pixels = points.chunks_exact(3).zip(confidence).zip(counts);
    for ((point, confidence), count) in pixels {
        let usable = has_point(squared_norm(point)) && *confidence > limits.c_conf;
        found.usable += u32::from(usable);
        found.seen += u32::from(usable && *count >= 1);
        found.covered += u32::from(usable && *count >= 2);
    }
    found
}

/// Adds 1 to the counts of the pixels that `view` sees.
fn add(points: &[f32], view: &View<'_>, limits: &Limits, counts: &mut [u8]) {
    let scale = view.scale * view.scale;
    let ratio = limits.min_ratio * limits.min_ratio;
    let matches = view.index.iter().zip(view.quality);
    let pixels = points.chunks_exact(3).zip(matches).zip(counts);
    for ((point, (index, quality)), count) in pixels {
        let from = *index as usize * 3;
        let Some(other) = view.points.get(from..from + 3) else {
            continue;
        };
        let (own, other) = (squared_norm(point), squared_norm(other));
        let matched = *quality > limits.q_conf;
        let near = has_point(other) && scale * own >= ratio * other;
        *count = count.saturating_add(u8::from(matched && near));
    }
}

fn squared_norm(p: &[f32]) -> f32 {
    p[0] * p[0] + p[1] * p[1] + p[2] * p[2]
}

/// Whether a point of this squared distance has a direction; false for NaN.
fn has_point(squared: f32) -> bool {
    squared > 1e-24 && squared < f32::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        c_conf: 1.0,
        q_conf: 1.5,
        min_ratio: 0.8,
    };

    /// Points straight ahead at these depths.
    fn ahead(depths: &[f32]) -> Vec<f32> {
        depths.iter().flat_map(|z| [0.0, 0.0, *z]).collect()
    }

    struct Other {
        index: Vec<u32>,
        quality: Vec<f32>,
        points: Vec<f32>,
        scale: f32,
    }

    impl Other {
        /// Sees every pixel, each where it is.
        fn of(depths: &[f32]) -> Self {
            let n = depths.len();
            Self {
                index: (0..n as u32).collect(),
                quality: vec![2.0; n],
                points: ahead(depths),
                scale: 1.0,
            }
        }

        fn view(&self) -> View<'_> {
            View {
                index: &self.index,
                quality: &self.quality,
                points: &self.points,
                scale: self.scale,
            }
        }
    }

    fn count(depths: &[f32], others: &[Other]) -> [u32; 3] {
        let confidence = vec![2.0; depths.len()];
        let views: Vec<View<'_>> = others.iter().map(Other::view).collect();
        let found = coverage(&ahead(depths), &confidence, &views, &LIMITS, &mut vec![9]);
        [found.usable, found.seen, found.covered]
    }

    #[test]
    fn a_pixel_is_covered_by_two_that_see_it() {
        let depths = [2.0; 6];
        assert_eq!(count(&depths, &[]), [6, 0, 0]);
        let (mut a, mut b, c) = (Other::of(&depths), Other::of(&depths), Other::of(&depths));
        a.quality[0] = 0.0;
        b.quality[0] = 0.0;
        a.quality[1] = 1.5;
        b.quality[1] = 1.6;
        a.index[2] = 6;
        b.quality[3] = f32::NAN;
        assert_eq!(count(&depths, &[a, b]), [6, 5, 2]);
        let all = [Other::of(&depths), Other::of(&depths), c];
        assert_eq!(count(&depths, &all), [6, 6, 6]);
    }

    #[test]
    fn a_view_from_further_away_does_not_count() {
        let depths = [4.0; 4];
        // Just within the limit, beyond it, nearer, and no point at all.
        let mut other = Other::of(&[4.99, 5.01, 1.0, 0.0]);
        assert_eq!(count(&depths, &[other]), [4, 2, 0]);
        // The same points of a keyframe whose units are half as long.
        other = Other::of(&[9.98, 10.02, 2.0, f32::NAN]);
        other.scale = 2.0;
        assert_eq!(count(&depths, &[other]), [4, 2, 0]);
    }

    #[test]
    fn pixels_without_a_point_or_confidence_are_not_usable() {
        let depths = [2.0, 0.0, f32::NAN, f32::INFINITY, 3.0];
        let views = [Other::of(&[2.0; 5]), Other::of(&[2.0; 5])];
        assert_eq!(count(&depths, &views), [2, 2, 2]);
        let views = views.each_ref().map(Other::view);
        let low = [1.0, 2.0, 2.0, 2.0, f32::NAN];
        let found = coverage(&ahead(&depths), &low, &views, &LIMITS, &mut Vec::new());
        assert_eq!(found, Coverage::default());
    }
}

//! Fusion of a new pointmap into a keyframe (spec 4.1).
//!
//! A new estimate of a pixel is used only if its point is finite and longer than 1e-12 and its
//! confidence is positive and finite; otherwise that pixel keeps what it had. A pixel that never had
//! a usable estimate holds a zero point with confidence 0, which no gate on confidence lets through.
//! Confidences are limited to [`MAX_CONFIDENCE`], so that nothing here can overflow (B22).

use crate::config::{FilteringMode, FilteringScore};
use rayon::prelude::*;

/// Confidences, single and accumulated, are cut off here: far above what a network gives for
/// anything real, and low enough that no product or sum of two overflows.
pub const MAX_CONFIDENCE: f32 = 1e18;

/// Pixels that one task handles.
const CHUNK: usize = 1 << 13;

/// Scratch of [`FusedPointmap::update`] in mode `best_score`; one serves any number of pointmaps.
#[derive(Debug, Clone, Default)]
pub struct FusionScratch {
    confidence: Vec<f32>,
}

/// A pointmap that absorbs new estimates of itself. `N` pixels in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct FusedPointmap {
    /// `N × 3` points in the camera's own frame, in the network's metres.
    pub points: Vec<f32>,
    /// `N` accumulated confidences.
    pub confidence: Vec<f32>,
    /// Estimates that `confidence` accumulates; at least 1 after the first update (B31).
    pub count: u32,
    /// Calls of [`FusedPointmap::update`].
    pub updates: u32,
    /// Of the kept estimate in mode `best_score` (B36); negative infinity before the first.
    pub score: f32,
}

impl FusedPointmap {
    /// Without any estimate yet.
    pub fn new(pixels: usize) -> Self {
        Self {
            points: vec![0.0; pixels * 3],
            confidence: vec![0.0; pixels],
            count: 0,
            updates: 0,
            score: f32::NEG_INFINITY,
        }
    }

    /// Forgets every estimate.
    pub fn restart(&mut self) {
        self.points.fill(0.0);
        self.confidence.fill(0.0);
        (self.count, self.updates, self.score) = (0, 0, f32::NEG_INFINITY);
    }

    /// Absorbs `points` (`N × 3`, in this map's frame) with `confidence` (`N`), by `mode`; `score`
    /// says what `best_score` compares.
    ///
    /// # Panics
    /// If the slices have not the length of this map.
    pub fn update(
        &mut self,
        points: &[f32],
        confidence: &[f32],
        mode: FilteringMode,
        score: FilteringScore,
        scratch: &mut FusionScratch,
    ) {
        assert!(
            points.len() == self.points.len() && confidence.len() == self.confidence.len(),
            "fusion: expected {} coordinates and {} confidences, found {} and {}",
            self.points.len(),
            self.confidence.len(),
            points.len(),
            confidence.len()
        );
        let first = self.count == 0;
        let replace = |old: &mut Estimate, new: Estimate| *old = new;
        match mode {
            FilteringMode::WeightedPointmap => {
                self.merge(points, confidence, merge_points);
                self.count = self.count.saturating_add(1);
            }
            FilteringMode::WeightedSpherical => {
                self.merge(points, confidence, merge_spherical);
                self.count = self.count.saturating_add(1);
            }
            FilteringMode::Recent => {
                self.merge(points, confidence, replace);
                self.count = 1;
            }
            FilteringMode::First => {
                // The reference keeps the second estimate: its counter is 1 when that arrives.
                if first || self.updates == 1 {
                    self.merge(points, confidence, replace);
                }
                self.count = 1;
            }
            FilteringMode::BestScore => {
                let new = map_score(points, confidence, score, &mut scratch.confidence);
                if first || new > self.score {
                    self.merge(points, confidence, replace);
                    self.score = new;
                }
                self.count = 1;
            }
            FilteringMode::IndepConf => {
                self.merge(points, confidence, |old, new| {
                    if new.confidence > old.confidence {
                        *old = new;
                    }
                });
                self.count = 1;
            }
        }
        self.updates = self.updates.saturating_add(1);
    }

    /// Average confidence of pixel `n`: accumulated confidence over the number of estimates. An
    /// estimate that was not usable counts as one of confidence 0.
    ///
    /// # Panics
    /// If `n` is not a pixel of this map.
    pub fn average_confidence(&self, n: usize) -> f32 {
        self.confidence[n] / self.count.max(1) as f32
    }

    /// Average confidences of all pixels in order.
    pub fn average_confidences(&self) -> impl ExactSizeIterator<Item = f32> + '_ {
        let count = self.count.max(1) as f32;
        self.confidence.iter().map(move |c| c / count)
    }

    /// Applies `merge(old, new)` to each pixel whose new estimate is usable; a pixel without an old
    /// one takes the new.
    fn merge(
        &mut self,
        points: &[f32],
        confidence: &[f32],
        merge: impl Fn(&mut Estimate, Estimate) + Sync,
    ) {
        let old = self
            .points
            .par_chunks_mut(3 * CHUNK)
            .zip(self.confidence.par_chunks_mut(CHUNK));
        let new = points
            .par_chunks(3 * CHUNK)
            .zip(confidence.par_chunks(CHUNK));
        old.zip(new)
            .for_each(|((old_points, old_conf), (points, conf))| {
                let old = old_points.chunks_exact_mut(3).zip(old_conf);
                let new = points.chunks_exact(3).zip(conf);
                for ((old_point, old_conf), (point, &conf)) in old.zip(new) {
                    let new = Estimate {
                        point: [point[0], point[1], point[2]],
                        confidence: conf.min(MAX_CONFIDENCE),
                    };
                    if !usable(new.point, conf) {
                        continue;
                    }
                    let mut held = Estimate {
                        point: [old_point[0], old_point[1], old_point[2]],
                        confidence: *old_conf,
                    };
                    if held.confidence > 0.0 {
                        merge(&mut held, new);
                    } else {
                        held = new;
                    }
                    old_point.copy_from_slice(&held.point);
                    *old_conf = held.confidence;
                }
            });
    }
}

/// One pixel's point and confidence.
#[derive(Clone, Copy)]
struct Estimate {
    point: [f32; 3],
    confidence: f32,
}

impl Estimate {
    fn range(&self) -> f32 {
        squared_norm(self.point).sqrt()
    }
}

#[inline(always)]
fn squared_norm(p: [f32; 3]) -> f32 {
    p[0] * p[0] + p[1] * p[1] + p[2] * p[2]
}

#[inline(always)]
fn usable(point: [f32; 3], confidence: f32) -> bool {
    let squared = squared_norm(point);
    squared.is_finite() && squared > 1e-24 && confidence > 0.0 && confidence.is_finite()
}

/// Shares of the old and the new estimate, and the confidence of both together.
#[inline(always)]
fn shares(old: &Estimate, new: &Estimate) -> (f32, f32, f32) {
    let sum = old.confidence + new.confidence;
    (
        old.confidence / sum,
        new.confidence / sum,
        sum.min(MAX_CONFIDENCE),
    )
}

/// `X ← (C X + C' X') / (C + C')`, `C ← C + C'`.
#[inline(always)]
fn merge_points(old: &mut Estimate, new: Estimate) {
    let (a, b, confidence) = shares(old, &new);
    for (old, new) in old.point.iter_mut().zip(new.point) {
        *old = a * *old + b * new;
    }
    old.confidence = confidence;
}

/// The same weighted mean of the range and of the direction. Directions are averaged as vectors and
/// renormalised, not as angles: those wrap at ±π (B42) and have poles. Directions that cancel leave
/// the old one.
#[inline(always)]
fn merge_spherical(old: &mut Estimate, new: Estimate) {
    let (a, b, confidence) = shares(old, &new);
    let (old_range, new_range) = (old.range().max(1e-12), new.range());
    let range = a * old_range + b * new_range;
    let (a, b) = (a / old_range, b / new_range);
    let sum = [0, 1, 2].map(|k| a * old.point[k] + b * new.point[k]);
    let length = squared_norm(sum).sqrt();
    old.point = if length > 1e-6 {
        sum.map(|x| x * (range / length))
    } else {
        old.point.map(|x| x * (range / old_range))
    };
    old.confidence = confidence;
}

/// Lower median or mean of the usable confidences; negative infinity if there is none.
fn map_score(
    points: &[f32],
    confidence: &[f32],
    score: FilteringScore,
    scratch: &mut Vec<f32>,
) -> f32 {
    scratch.clear();
    scratch.extend(
        points
            .chunks_exact(3)
            .zip(confidence)
            .filter(|(p, c)| usable([p[0], p[1], p[2]], **c))
            .map(|(_, c)| c.min(MAX_CONFIDENCE)),
    );
    if scratch.is_empty() {
        return f32::NEG_INFINITY;
    }
    match score {
        FilteringScore::Median => {
            let middle = (scratch.len() - 1) / 2;
            *scratch.select_nth_unstable_by(middle, f32::total_cmp).1
        }
        FilteringScore::Mean => {
            let sum: f64 = scratch.iter().map(|&c| f64::from(c)).sum();
            (sum / scratch.len() as f64) as f32
        }
    }
}

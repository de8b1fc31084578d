//! Fusion of a new pointmap into a keyframe (docs/algorithm.md, Pointmap fusion).
//!
//! A new estimate of a pixel is used only if its point is finite and longer than 1e-12 and its
//! confidence is positive and finite; otherwise the pixel keeps its previous value. A pixel without
//! any usable estimate has a zero point with confidence 0, which no confidence gate passes.
//! Confidences are limited to [`MAX_CONFIDENCE`] to rule out overflow (docs/reference-defects.md,
//! B22).

use crate::config::{FilteringMode, FilteringScore};
use rayon::prelude::*;

/// Upper limit of single and accumulated confidences: far above the network's output for real
/// images, and low enough that no product or sum of two overflows.
pub const MAX_CONFIDENCE: f32 = 1e18;

/// Pixels per task.
const CHUNK: usize = 1 << 13;

/// Scratch memory of [`FusedPointmap::update`] in mode `best_score`; can be shared by any number of
/// pointmaps.
#[derive(Debug, Clone, Default)]
pub struct FusionScratch {
    confidence: Vec<f32>,
}

/// Estimates that the confidences accumulate at most: 36 minutes at 30 Hz. An f32 sum of confidences stands
/// still after 2²⁴ of them, while their number goes on.
pub const MAX_COUNT: u32 = 1 << 16;

/// The part of the sums that is kept at [`MAX_COUNT`].
const FADE: f32 = MAX_COUNT as f32 / (MAX_COUNT + 1) as f32;

/// A pointmap that accumulates estimates. `N` pixels in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct FusedPointmap {
    /// `N × 3` points in the camera frame, in the metric scale of the network.
    pub points: Vec<f32>,
    /// `N` accumulated confidences.
    pub confidence: Vec<f32>,
    /// Number of estimates that `confidence` accumulates, at most [`MAX_COUNT`]; at least 1 after the first update
    /// (docs/reference-defects.md, B31).
    pub count: u32,
    /// Number of calls of [`FusedPointmap::update`].
    pub updates: u32,
    /// Score of the estimate kept in mode `best_score` (docs/reference-defects.md, B36); negative
    /// infinity before the first.
    pub score: f32,
}

impl FusedPointmap {
    /// A pointmap without estimates.
    pub fn new(pixels: usize) -> Self {
        Self {
            points: vec![0.0; pixels * 3],
            confidence: vec![0.0; pixels],
            count: 0,
            updates: 0,
            score: f32::NEG_INFINITY,
        }
    }

    /// Discards all estimates.
    pub fn restart(&mut self) {
        self.points.fill(0.0);
        self.confidence.fill(0.0);
        (self.count, self.updates, self.score) = (0, 0, f32::NEG_INFINITY);
    }

    /// Fuses `points` (`N × 3`, in this map's frame) with `confidence` (`N`) according to `mode`;
    /// `score` selects the score compared by `best_score`.
    ///
    /// # Panics
    /// If a slice does not match the size of this map.
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
                self.count_one();
            }
            FilteringMode::WeightedSpherical => {
                self.merge(points, confidence, merge_spherical);
                self.count_one();
            }
            FilteringMode::Recent => {
                self.merge(points, confidence, replace);
                self.count = 1;
            }
            FilteringMode::First => {
                // The reference keeps the second estimate: its counter is 1 when that one arrives.
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

    /// Counts an accumulated estimate. At [`MAX_COUNT`] the sums shrink by one part instead, for all pixels, so
    /// that averages go on as running means and the sums stay within what f32 resolves.
    fn count_one(&mut self) {
        if self.count < MAX_COUNT {
            self.count += 1;
        } else {
            self.confidence.par_iter_mut().for_each(|c| *c *= FADE);
        }
    }

    /// Average confidences of all pixels in order: accumulated confidence divided by the number of
    /// estimates. Unusable estimates count with confidence 0.
    pub fn average_confidences(&self) -> impl ExactSizeIterator<Item = f32> + '_ {
        let count = self.count.max(1) as f32;
        self.confidence.iter().map(move |c| c / count)
    }

    /// Applies `merge(old, new)` to each pixel with a usable new estimate; a pixel without an old
    /// estimate takes the new one.
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

/// Weights of the old and the new estimate, and their combined confidence.
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

/// Weighted mean of range and direction. Directions are averaged as vectors and renormalised rather
/// than as angles, which wrap at ±π and have poles (docs/reference-defects.md, B42). If the
/// directions cancel, the old one is kept.
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

/// Lower median or mean of the usable confidences; negative infinity if there are none.
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

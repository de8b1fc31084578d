//! A frame's pose relative to the active keyframe (spec 5).

use super::keyframe::ActiveKeyframe;
use crate::compute::fusion::{FusedPointmap, FusionScratch};
use crate::compute::matching::{Matcher, Refinement, View, match_quality, unique_matches};
use crate::compute::tracking::{
    Correspondences, PoseSolver, Residual, Solution, SolveError, constrain_to_rays,
};
use crate::config::{Config, TrackingConfig};
use crate::geometry::{Intrinsics, Sim3};
use crate::inference::{Backend, InferenceError, NetworkShape, PairOutput, sanitise};
use crate::map::StageTimes;
use std::time::Instant;

/// A tracked frame.
#[derive(Debug, Clone, Copy)]
pub struct Tracked {
    /// Camera to the active keyframe's camera.
    pub keyframe_from_frame: Sim3,
    /// Keyframe pixels that took part in the pose, as a fraction.
    pub match_fraction: f32,
    /// Distinct frame pixels that were matched, as a fraction.
    pub unique_fraction: f32,
    /// Iterations of the solver.
    pub iterations: u32,
    /// Whether this frame should become a keyframe.
    pub wants_keyframe: bool,
}

/// Why a frame has no pose. Each is counted and named; none ends the run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LostReason {
    /// Too little in common with the keyframe.
    #[error(
        "only {found:.3} of the keyframe's pixels are matched well enough, at least {needed:.3} are needed; \
         {geometric:.3} match by geometry alone, and where that is high the descriptor confidences are low \
         (wrong features of the keyframe, or Q_conf too high)"
    )]
    FewMatches {
        /// Fraction found.
        found: f32,
        /// `tracking.min_match_frac`
        needed: f32,
        /// Fraction matched whatever the confidences (spec 9.3, third row).
        geometric: f32,
    },
    /// The normal equations could not be solved.
    #[error("the pose could not be solved: {0}")]
    Solver(#[from] SolveError),
    /// The network's output holds no usable point.
    #[error("the network's output is unusable: every one of {0} pixels is zero or not finite")]
    UnusableOutput(usize),
}

/// A frame's outcome.
#[derive(Debug)]
pub enum Outcome {
    /// Its pose was found.
    Tracked(Tracked),
    /// It was not.
    Lost {
        /// Why.
        reason: LostReason,
        /// Matched fraction, as far as it was known.
        match_fraction: f32,
    },
}

/// The tracking stage with its preallocated buffers; nothing is allocated per frame.
pub struct Tracker {
    shape: NetworkShape,
    intrinsics: Option<Intrinsics>,
    matcher: Matcher,
    solver: PoseSolver,
    output: PairOutput,
    /// Tokens of the frame in work, `T × C`.
    pub features: Vec<f32>,
    previous: Vec<u32>,
    valid: Vec<u8>,
    quality: Vec<f32>,
    gated: Vec<f32>,
    seen: Vec<u64>,
    frame_points: Vec<f32>,
    keyframe_points: Vec<f32>,
    moved: Vec<f32>,
    fusion: FusionScratch,
}

impl Tracker {
    /// Buffers for `shape`; with intrinsics the calibrated residual is used.
    pub fn new(shape: &NetworkShape, intrinsics: Option<Intrinsics>) -> Self {
        let n = shape.pixels();
        let rays = if intrinsics.is_some() { n * 3 } else { 0 };
        Self {
            // An invalid pixel's place is where the next frame's search starts.
            matcher: Matcher::new(shape.width, shape.height, shape.descriptor_dim)
                .with_refinement(Refinement::SingleAll),
            solver: PoseSolver::new(n),
            output: PairOutput::zeros(shape),
            features: vec![0.0; shape.tokens * shape.feature_dim],
            previous: vec![0; n],
            valid: vec![0; n],
            quality: vec![0.0; n],
            gated: vec![0.0; n],
            seen: vec![0; n.div_ceil(64)],
            frame_points: vec![0.0; rays],
            keyframe_points: vec![0.0; rays],
            moved: vec![0.0; n * 3],
            fusion: FusionScratch::default(),
            shape: shape.clone(),
            intrinsics,
        }
    }

    /// The network's view of the frame alone (spec 2, mono), for [`Tracker::pointmap_of_view`].
    pub fn mono(
        &mut self,
        backend: &mut dyn Backend,
        times: &mut StageTimes,
    ) -> Result<Option<LostReason>, InferenceError> {
        let start = Instant::now();
        backend.decode_view1(&self.features, &self.features, &mut self.output)?;
        times.decode += millis(start);
        let bad = sanitise(&mut self.output.view1);
        let n = self.shape.pixels();
        Ok((bad == n).then_some(LostReason::UnusableOutput(n)))
    }

    /// A pointmap that starts from the frame's own view.
    pub fn pointmap_of_view(&mut self, config: &Config) -> FusedPointmap {
        first_pointmap(
            &self.output.view1.points,
            &self.output.view1.confidence,
            config,
            &mut self.fusion,
        )
    }

    /// A pointmap that starts from `points` (`N × 3`) and `confidence` (`N`).
    pub fn pointmap_of(
        &mut self,
        points: &[f32],
        confidence: &[f32],
        config: &Config,
    ) -> FusedPointmap {
        first_pointmap(points, confidence, config, &mut self.fusion)
    }

    /// Tracks the frame whose tokens are in [`Tracker::features`] against `key`, and fuses what it
    /// sees of the keyframe into the keyframe's pointmap.
    pub fn track(
        &mut self,
        backend: &mut dyn Backend,
        key: &mut ActiveKeyframe,
        config: &Config,
        times: &mut StageTimes,
    ) -> Result<Outcome, InferenceError> {
        let start = Instant::now();
        backend.decode(&self.features, &key.data.features, &mut self.output)?;
        times.decode += millis(start);

        let start = Instant::now();
        let n = self.shape.pixels();
        let PairOutput { view1, view2 } = &mut self.output;
        let unusable = sanitise(view1).max(sanitise(view2)) == n;
        if unusable {
            key.has_index = false;
            return Ok(Outcome::Lost {
                reason: LostReason::UnusableOutput(n),
                match_fraction: 0.0,
            });
        }
        self.find_matches(key, config);
        times.matching += millis(start);

        let start = Instant::now();
        let fractions = self.gate(key, &config.tracking);
        let solved = self.solve(key, &fractions, &config.tracking);
        times.tracking += millis(start);
        let solution = match solved {
            Ok(solution) => solution,
            Err(reason) => {
                return Ok(Outcome::Lost {
                    reason,
                    match_fraction: fractions.used,
                });
            }
        };

        let start = Instant::now();
        self.fuse(key, &solution.keyframe_from_frame, &config.tracking);
        times.fusion += millis(start);
        let weakest = fractions.good.min(fractions.unique);
        Ok(Outcome::Tracked(Tracked {
            keyframe_from_frame: solution.keyframe_from_frame,
            match_fraction: fractions.used,
            unique_fraction: fractions.unique,
            iterations: solution.iterations,
            wants_keyframe: weakest < config.tracking.match_frac_thresh,
        }))
    }

    /// Keyframe pixels to frame pixels; starts from the map of the frame before.
    fn find_matches(&mut self, key: &mut ActiveKeyframe, config: &Config) {
        let PairOutput { view1, view2 } = &self.output;
        std::mem::swap(&mut key.index, &mut self.previous);
        self.matcher.run(
            View {
                points: &view1.points,
                descriptors: &view1.descriptors,
            },
            View {
                points: &view2.points,
                descriptors: &view2.descriptors,
            },
            key.has_index.then_some(self.previous.as_slice()),
            &config.matching,
            &mut key.index,
            &mut self.valid,
        );
        key.has_index = true;
        match_quality(
            &view1.descriptor_confidence,
            &view2.descriptor_confidence,
            &key.index,
            &self.valid,
            &mut self.quality,
        );
    }

    /// Zeroes the quality of matches that must not be used, and counts (spec 5.1, steps 5, 6, 9).
    fn gate(&mut self, key: &ActiveKeyframe, params: &TrackingConfig) -> Fractions {
        let n = self.shape.pixels() as f32;
        let frame_confidence = &self.output.view1.confidence;
        let average = key.pointmap.average_confidences();
        let (mut used, mut good) = (0usize, 0usize);
        let matches = self.quality.iter().zip(&key.index);
        for (((quality, index), average), gated) in matches.zip(average).zip(&mut self.gated) {
            let passes = *quality > params.q_conf;
            good += usize::from(passes);
            let confident = average > params.c_conf
                && frame_confidence
                    .get(*index as usize)
                    .is_some_and(|c| *c > params.c_conf);
            used += usize::from(passes && confident);
            *gated = if passes && confident { *quality } else { 0.0 };
        }
        let unique = unique_matches(&key.index, &self.valid, &mut self.seen);
        let geometric = self.valid.iter().filter(|v| **v != 0).count();
        Fractions {
            geometric: geometric as f32 / n,
            used: used as f32 / n,
            good: good as f32 / n,
            unique: unique as f32 / n,
        }
    }

    fn solve(
        &mut self,
        key: &ActiveKeyframe,
        fractions: &Fractions,
        params: &TrackingConfig,
    ) -> Result<Solution, LostReason> {
        if fractions.used < params.min_match_frac {
            return Err(LostReason::FewMatches {
                found: fractions.used,
                needed: params.min_match_frac,
                geometric: fractions.geometric,
            });
        }
        let (w, h) = (self.shape.width, self.shape.height);
        let frame = &self.output.view1.points;
        let keyframe = &key.pointmap.points;
        let (frame_points, keyframe_points, residual) = match self.intrinsics {
            Some(k) => {
                constrain_to_rays(frame, k, w, h, &mut self.frame_points)?;
                constrain_to_rays(keyframe, k, w, h, &mut self.keyframe_points)?;
                let residual = Residual::Calibrated(k);
                (&self.frame_points, &self.keyframe_points, residual)
            }
            None => (frame, keyframe, Residual::Rays),
        };
        let problem = Correspondences {
            frame_points,
            keyframe_points,
            index: &key.index,
            quality: &self.gated,
            width: w,
            height: h,
        };
        let initial = &key.keyframe_from_frame;
        Ok(self.solver.solve(&problem, residual, initial, params)?)
    }

    /// The keyframe's points as this frame sees them improve the keyframe's own (spec 5.1, step 8).
    fn fuse(&mut self, key: &mut ActiveKeyframe, pose: &Sim3, params: &TrackingConfig) {
        let view2 = &self.output.view2;
        transform_points(pose, &view2.points, &mut self.moved);
        key.pointmap.update(
            &self.moved,
            &view2.confidence,
            params.filtering_mode,
            params.filtering_score,
            &mut self.fusion,
        );
        key.keyframe_from_frame = *pose;
        key.tracked += 1;
    }
}

/// Of a keyframe's pixels.
struct Fractions {
    /// Matched, whatever the confidences.
    geometric: f32,
    /// Matched and past every gate.
    used: f32,
    /// Matched with enough quality.
    good: f32,
    /// Distinct frame pixels matched.
    unique: f32,
}

fn first_pointmap(
    points: &[f32],
    confidence: &[f32],
    config: &Config,
    scratch: &mut FusionScratch,
) -> FusedPointmap {
    let mut map = FusedPointmap::new(confidence.len());
    let t = &config.tracking;
    map.update(
        points,
        confidence,
        t.filtering_mode,
        t.filtering_score,
        scratch,
    );
    map
}

/// `dst = T·src` for `N × 3` points.
fn transform_points(t: &Sim3, src: &[f32], dst: &mut [f32]) {
    let m = t.scaled_rotation().cast::<f32>();
    let o = t.translation.cast::<f32>();
    for (d, s) in dst.chunks_exact_mut(3).zip(src.chunks_exact(3)) {
        let p = m * nalgebra::Vector3::new(s[0], s[1], s[2]) + o;
        d.copy_from_slice(p.as_slice());
    }
}

/// Milliseconds since `start`.
pub(super) fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

//! A frame's pose relative to the active keyframe (spec 5).

use super::keyframe::ActiveKeyframe;
use crate::compute::fusion::FusedPointmap;
use crate::compute::matching::{Matcher, View, match_quality, unique_matches};
use crate::compute::tracking::{Correspondences, PoseSolver, Residual, SolveError, constrain_to_rays};
use crate::config::Config;
use crate::geometry::{Intrinsics, Sim3};
use crate::inference::{Backend, InferenceError, NetworkShape, PairOutput, ViewOutput, sanitise};
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
    #[error("only {found:.3} of the keyframe's pixels are matched, at least {needed:.3} are needed")]
    FewMatches {
        /// Fraction found.
        found: f32,
        /// `tracking.min_match_frac`
        needed: f32,
    },
    /// The normal equations could not be solved.
    #[error("the pose could not be solved: {0}")]
    Solver(SolveError),
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
}

impl Tracker {
    /// Buffers for `shape`; with intrinsics the calibrated residual is used.
    pub fn new(shape: &NetworkShape, intrinsics: Option<Intrinsics>) -> Self {
        let n = shape.pixels();
        let rays = if intrinsics.is_some() { n * 3 } else { 0 };
        Self {
            matcher: Matcher::new(shape.width, shape.height, shape.descriptor_dim),
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
            shape: shape.clone(),
            intrinsics,
        }
    }

    /// The network's view of the frame alone (spec 2, mono): leaves points and confidences of
    /// `features` in [`Tracker::view`].
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

    /// The last decoded output of the frame itself.
    pub fn view(&self) -> &ViewOutput {
        &self.output.view1
    }

    /// A pointmap that starts from the frame's own view.
    pub fn pointmap_of_view(&self, config: &Config) -> FusedPointmap {
        let mut map = FusedPointmap::new(self.shape.pixels());
        let view = &self.output.view1;
        let t = &config.tracking;
        map.update(&view.points, &view.confidence, t.filtering_mode, t.filtering_score);
        map
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
        let params = &config.tracking;
        let n = self.shape.pixels();
        let start = Instant::now();
        backend.decode(&self.features, &key.data.features, &mut self.output)?;
        times.decode += millis(start);

        let start = Instant::now();
        let PairOutput { view1, view2 } = &mut self.output;
        for view in [&mut *view1, &mut *view2] {
            if sanitise(view) == n {
                key.has_index = false;
                let reason = LostReason::UnusableOutput(n);
                return Ok(Outcome::Lost { reason, match_fraction: 0.0 });
            }
        }
        std::mem::swap(&mut key.index, &mut self.previous);
        self.matcher.run(
            View { points: &view1.points, descriptors: &view1.descriptors },
            View { points: &view2.points, descriptors: &view2.descriptors },
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
        times.matching += millis(start);

        let start = Instant::now();
        let (mut used, mut good) = (0usize, 0usize);
        for (k, gated) in self.gated.iter_mut().enumerate() {
            let q = self.quality[k];
            let pass_q = q > params.q_conf;
            good += usize::from(pass_q);
            let pass = pass_q
                && key.pointmap.average_confidence(k) > params.c_conf
                && view1.confidence[key.index[k] as usize] > params.c_conf;
            used += usize::from(pass);
            *gated = if pass { q } else { 0.0 };
        }
        let match_fraction = used as f32 / n as f32;
        if match_fraction < params.min_match_frac {
            times.tracking += millis(start);
            let reason = LostReason::FewMatches { found: match_fraction, needed: params.min_match_frac };
            return Ok(Outcome::Lost { reason, match_fraction });
        }
        let (frame_points, keyframe_points, residual) = match self.intrinsics {
            Some(k) => {
                let (w, h) = (self.shape.width, self.shape.height);
                constrain_to_rays(&view1.points, &k, w, h, &mut self.frame_points);
                constrain_to_rays(&key.pointmap.points, &k, w, h, &mut self.keyframe_points);
                (&self.frame_points, &self.keyframe_points, Residual::Calibrated(k))
            }
            None => (&view1.points, &key.pointmap.points, Residual::Rays),
        };
        let problem = Correspondences {
            frame_points,
            keyframe_points,
            index: &key.index,
            quality: &self.gated,
            width: self.shape.width,
            height: self.shape.height,
        };
        let solved = self.solver.solve(&problem, residual, &key.keyframe_from_frame, params);
        times.tracking += millis(start);
        let solution = match solved {
            Ok(solution) => solution,
            Err(error) => {
                return Ok(Outcome::Lost { reason: LostReason::Solver(error), match_fraction });
            }
        };

        let start = Instant::now();
        let pose = solution.keyframe_from_frame;
        transform_points(&pose, &view2.points, &mut self.moved);
        key.pointmap.update(&self.moved, &view2.confidence, params.filtering_mode, params.filtering_score);
        let unique = unique_matches(&key.index, &self.valid, &mut self.seen);
        let unique_fraction = unique as f32 / n as f32;
        key.keyframe_from_frame = pose;
        key.tracked += 1;
        times.fusion += millis(start);
        Ok(Outcome::Tracked(Tracked {
            keyframe_from_frame: pose,
            match_fraction,
            unique_fraction,
            iterations: solution.iterations,
            wants_keyframe: (good as f32 / n as f32).min(unique_fraction) < params.match_frac_thresh,
        }))
    }
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

//! Tracks frames against the active keyframe (docs/algorithm.md, Tracking).

use super::camera::Camera;
use super::depth::Depth;
use super::hand_off::{HandOff, HandOffItem, Pointmap};
use super::{NAME, unknown};
use crate::compute::depth::moved::NextDepth;
use crate::compute::depth::{DepthScale, NoScale};
use crate::compute::device::{
    DeviceError, Fractions, FramePoints, Handle, LostReason, Outcome, SeenFrame, Tracked,
    TrackingDevice,
};
use crate::compute::fusion::{FusedPointmap, FusionScratch};
use crate::compute::mask;
use crate::compute::matching::{Matcher, Refinement, View, match_quality, unique_matches};
use crate::compute::pose_solver::{
    Correspondences, PoseSolver, Residual, Solution, constrain_to_rays,
};
use crate::config::{DeviceConfig, TrackingConfig};
use crate::geometry::{Intrinsics, Sim3};
use crate::image::encoding::RawImage;
use crate::inference::{Backend, NetworkShape, PairOutput, sanitise, self_test};
use crate::time::{StageTimes, millis};
use std::sync::Arc;
use std::time::Instant;

/// The keyframe that frames are tracked against. Every tracked frame is fused into its pointmap.
struct Active {
    /// `T × C` encoder tokens.
    features: Arc<Vec<f32>>,
    /// Fused points in the keyframe's camera frame.
    pointmap: FusedPointmap,
    /// The last frame's index map onto this keyframe, which initialises the next search. It is
    /// valid for this keyframe only (docs/reference-defects.md, B37).
    index: Vec<u32>,
    /// Whether `index` is valid.
    has_index: bool,
    /// Pose of the last tracked frame relative to this keyframe: the initial estimate for the next
    /// frame.
    keyframe_from_frame: Sim3,
}

impl Active {
    fn new(shape: &NetworkShape) -> Self {
        Self {
            features: Arc::default(),
            pointmap: FusedPointmap::new(shape.pixels()),
            index: vec![0; shape.pixels()],
            has_index: false,
            keyframe_from_frame: Sim3::identity(),
        }
    }

    /// Replaces the keyframe. `points` (`N × 3`) and `confidence` (`N`) are its first pointmap
    /// estimate; the initial pose of the next frame is the identity.
    fn restart(
        &mut self,
        features: Arc<Vec<f32>>,
        points: &[f32],
        confidence: &[f32],
        params: &TrackingConfig,
        scratch: &mut FusionScratch,
    ) {
        self.features = features;
        self.pointmap.restart();
        first_estimate(&mut self.pointmap, points, confidence, params, scratch);
        self.has_index = false;
        self.keyframe_from_frame = Sim3::identity();
    }
}

/// The tracking half with preallocated buffers; it does not allocate per frame.
pub struct Tracking {
    backend: Box<dyn Backend>,
    config: Arc<DeviceConfig>,
    shape: NetworkShape,
    intrinsics: Option<Intrinsics>,
    hand_off: Arc<HandOff>,
    active: Active,
    /// The current frame.
    camera: Camera,
    /// Tokens of the current frame, `T × C`.
    features: Vec<f32>,
    times: StageTimes,
    matcher: Matcher,
    solver: PoseSolver,
    output: PairOutput,
    previous: Vec<u32>,
    /// 1 for each pixel that is not hidden; empty without `tracking.masks`.
    used: Vec<u8>,
    /// Number of pixels that are not hidden.
    visible: usize,
    /// `None` without `depth.use`.
    depth: Option<Depth>,
    valid: Vec<u8>,
    quality: Vec<f32>,
    gated: Vec<f32>,
    seen: Vec<u64>,
    frame_points: Vec<f32>,
    keyframe_points: Vec<f32>,
    moved: Vec<f32>,
    fusion: FusionScratch,
}

impl Tracking {
    /// Allocates buffers for the backend's shape; with intrinsics, the calibrated residual is used.
    pub fn new(
        backend: Box<dyn Backend>,
        config: Arc<DeviceConfig>,
        intrinsics: Option<Intrinsics>,
        camera: Camera,
        hand_off: Arc<HandOff>,
    ) -> Self {
        let shape = backend.shape().clone();
        let n = shape.pixels();
        let rays = if intrinsics.is_some() { n * 3 } else { 0 };
        Self {
            // The index of an invalid pixel initialises its search in the next frame.
            matcher: Matcher::new(shape.width, shape.height, shape.descriptor_dim)
                .with_refinement(Refinement::SingleAll),
            solver: PoseSolver::new(n),
            output: PairOutput::zeros(&shape),
            active: Active::new(&shape),
            camera,
            features: vec![0.0; shape.tokens * shape.feature_dim],
            times: StageTimes::default(),
            previous: vec![0; n],
            used: vec![1; if config.tracking.masks { n } else { 0 }],
            visible: n,
            depth: (config.depth)
                .then(|| Depth::new(&shape, intrinsics, config.measured_confidence)),
            valid: vec![0; n],
            quality: vec![0.0; n],
            gated: vec![0.0; n],
            seen: vec![0; n.div_ceil(64)],
            frame_points: vec![0.0; rays],
            keyframe_points: vec![0.0; rays],
            moved: vec![0.0; n * 3],
            fusion: FusionScratch::default(),
            backend,
            config,
            shape,
            intrinsics,
            hand_off,
        }
    }

    /// Keyframe pixels to frame pixels; starts from the map of the frame before.
    fn find_matches(&mut self) {
        let (key, PairOutput { view1, view2 }) = (&mut self.active, &self.output);
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
            &self.config.matching,
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

    /// Zeroes the quality of matches that must not be used, and counts the four fractions
    /// (docs/algorithm.md, Tracking, Gates).
    fn gate(&mut self) -> Fractions {
        let (key, params) = (&self.active, &self.config.tracking);
        // Fractions of what can be seen: a robot's body in the image makes no frame worse.
        let n = self.visible.max(1) as f32;
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

    fn solve(&mut self, fractions: &Fractions) -> Result<Solution, LostReason> {
        let (key, params) = (&self.active, &self.config.tracking);
        // A fraction of all pixels: so many determine a pose, hidden ones or not.
        let used = fractions.used * (self.visible as f32 / self.shape.pixels() as f32);
        if used < params.min_match_frac {
            return Err(LostReason::FewMatches {
                found: used,
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
            measured: self.depth.as_ref().and_then(Depth::of_both),
            min_fit: params.min_fit_frac,
        };
        let initial = &key.keyframe_from_frame;
        Ok(self.solver.solve(&problem, residual, initial, params)?)
    }

    /// Depth of the current frame; empty without.
    fn frame_depth(&self) -> Arc<Vec<f32>> {
        self.depth.as_ref().map(Depth::of_frame).unwrap_or_default()
    }

    /// Fuses the frame's view of the keyframe's points into the keyframe's pointmap
    /// (docs/algorithm.md, Pointmap fusion).
    fn fuse(&mut self, pose: &Sim3) {
        let (key, params) = (&mut self.active, &self.config.tracking);
        let view2 = &mut self.output.view2;
        if let Some(depth) = &mut self.depth {
            depth.correct_matches(&mut view2.points, &key.index, &self.valid);
        }
        transform_points(pose, &view2.points, &mut self.moved);
        if let Some(depth) = &self.depth {
            depth.correct_keyframe(&mut self.moved, &mut view2.confidence);
        }
        key.pointmap.update(
            &self.moved,
            &view2.confidence,
            params.filtering_mode,
            params.filtering_score,
            &mut self.fusion,
        );
        key.keyframe_from_frame = *pose;
    }
}

impl TrackingDevice for Tracking {
    fn describe(&self) -> String {
        self.backend.name()
    }

    fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    fn encode(&mut self, image: &RawImage<'_>) -> Result<(), DeviceError> {
        self.times = StageTimes::default();
        let start = Instant::now();
        self.camera.take(image)?;
        self.times.preprocess = millis(start);
        let start = Instant::now();
        self.backend
            .encode(&self.camera.image, &mut self.features)?;
        if let Some(depth) = &mut self.depth {
            depth.advance();
        }
        self.times.encode = millis(start);
        Ok(())
    }

    fn set_mask(&mut self, used: &[u8]) -> Result<(), DeviceError> {
        mask::check(NAME, self.used.len(), used)?;
        self.used.copy_from_slice(used);
        self.visible = mask::count(used);
        Ok(())
    }

    fn set_depth(&mut self, next: Option<NextDepth<'_>>) -> Result<(), DeviceError> {
        let depth = self.depth.as_mut().ok_or(DeviceError::NoDepth)?;
        depth.set_next(next)
    }

    fn depth_found(&self) -> Option<Result<DepthScale, NoScale>> {
        self.depth.as_ref()?.found()
    }

    fn keyframe_scale(&mut self) -> Result<Option<DepthScale>, DeviceError> {
        let depth = self.depth.as_mut();
        Ok(depth.and_then(|depth| depth.of_keyframe(&self.active.pointmap)))
    }

    fn decode_single(&mut self) -> Result<usize, DeviceError> {
        let start = Instant::now();
        let features = &self.features;
        self.backend
            .decode_view1(features, features, &mut self.output)?;
        self.times.decode += millis(start);
        let view = &mut self.output.view1;
        let bad = sanitise(view);
        mask::hide(view, &self.used);
        if let Some(depth) = &mut self.depth {
            depth.scale(view, None);
            depth.correct(view);
        }
        Ok((self.shape.pixels() - bad).min(self.visible))
    }

    fn start_at(&mut self, keyframe_from_frame: &Sim3) -> Result<(), DeviceError> {
        self.active.keyframe_from_frame = *keyframe_from_frame;
        Ok(())
    }

    fn track(&mut self) -> Result<Outcome, DeviceError> {
        let start = Instant::now();
        self.backend
            .decode(&self.features, &self.active.features, &mut self.output)?;
        self.times.decode += millis(start);

        let start = Instant::now();
        let n = self.shape.pixels();
        let PairOutput { view1, view2 } = &mut self.output;
        let unusable = sanitise(view1).max(sanitise(view2)) == n;
        if unusable {
            self.active.has_index = false;
            return Ok(Outcome::Lost {
                reason: LostReason::UnusableOutput(n),
                match_fraction: 0.0,
            });
        }
        if !self.used.is_empty() {
            mask::hide(view1, &self.used);
            // A keyframe has no confidence where it was hidden, and gets none from frames where it is not.
            mask::hide_as_in(view2, &self.active.pointmap.confidence);
        }
        if let Some(depth) = &mut self.depth {
            depth.scale(view1, Some(view2));
        }
        self.find_matches();
        if let Some(depth) = &self.depth {
            depth.correct(&mut self.output.view1);
        }
        self.times.matching += millis(start);

        let start = Instant::now();
        let fractions = self.gate();
        let solved = self.solve(&fractions);
        self.times.tracking += millis(start);
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
        self.fuse(&solution.keyframe_from_frame);
        self.times.fusion += millis(start);
        Ok(Outcome::Tracked(Tracked {
            keyframe_from_frame: solution.keyframe_from_frame,
            fractions,
            iterations: solution.iterations,
            fit: (&solution).into(),
        }))
    }

    fn start_keyframe(&mut self) -> Result<Handle, DeviceError> {
        let features = Arc::new(self.features.clone());
        let view = &self.output.view1;
        self.active.restart(
            Arc::clone(&features),
            &view.points,
            &view.confidence,
            &self.config.tracking,
            &mut self.fusion,
        );
        let depth = self.frame_depth();
        if let Some(of) = &mut self.depth {
            of.restart(Arc::clone(&depth));
        }
        Ok(self.hand_off.put(HandOffItem {
            frame: Some((Arc::new(self.camera.image.clone()), features)),
            pointmap: Arc::new(Pointmap::of(&self.active.pointmap)),
            depth,
        }))
    }

    fn stash_frame(&mut self) -> Result<Handle, DeviceError> {
        let view = &self.output.view1;
        let mut map = FusedPointmap::new(self.shape.pixels());
        first_estimate(
            &mut map,
            &view.points,
            &view.confidence,
            &self.config.tracking,
            &mut self.fusion,
        );
        Ok(self.hand_off.put(HandOffItem {
            frame: Some((
                Arc::new(self.camera.image.clone()),
                Arc::new(self.features.clone()),
            )),
            pointmap: Arc::new(Pointmap::of(&map)),
            depth: self.frame_depth(),
        }))
    }

    fn track_against(&mut self, handle: &Handle) -> Result<(), DeviceError> {
        let HandOffItem {
            frame,
            pointmap,
            depth,
        } = self.hand_off.get(handle)?;
        let (_, features) = frame.ok_or(unknown("frame under handle", handle.number()))?;
        self.active.restart(
            features,
            &pointmap.points,
            &pointmap.confidence,
            &self.config.tracking,
            &mut self.fusion,
        );
        if let Some(of) = &mut self.depth {
            of.restart(depth);
        }
        Ok(())
    }

    fn stash_pointmap(&mut self) -> Result<Handle, DeviceError> {
        Ok(self.hand_off.put(HandOffItem {
            frame: None,
            pointmap: Arc::new(Pointmap::of(&self.active.pointmap)),
            depth: Arc::default(),
        }))
    }

    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError> {
        let view = &self.output.view1;
        dst.points.clone_from(&view.points);
        dst.confidence.clone_from(&view.confidence);
        Ok(())
    }

    fn read_seen(&mut self, dst: &mut SeenFrame) -> Result<(), DeviceError> {
        dst.image.clone_from(&self.camera.image.data);
        dst.index.clone_from(&self.active.index);
        dst.quality.clone_from(&self.gated);
        Ok(())
    }

    fn self_test(&mut self) -> Result<(), DeviceError> {
        Ok(self_test(self.backend.as_mut())?)
    }

    fn times(&self) -> StageTimes {
        self.times
    }
}

/// Sets the first estimate of a new pointmap.
fn first_estimate(
    map: &mut FusedPointmap,
    points: &[f32],
    confidence: &[f32],
    params: &TrackingConfig,
    scratch: &mut FusionScratch,
) {
    let (mode, score) = (params.filtering_mode, params.filtering_score);
    map.update(points, confidence, mode, score, scratch);
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

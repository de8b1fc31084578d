//! The tracker's stages, each alone, and a tracked frame as a whole.

use super::Setup;
use super::frame::{Camera, Pair, matching_operations};
use super::measure::{Stage, Work};
use crate::cli::CliError;
use crate::compute::cuda::fusion::{FusedPointmap, Fusion, FusionBuffers, UpdateTask};
use crate::compute::cuda::matching::{
    Gates, MatchCounts, MatchTask, Matcher, MatcherBuffers, Start,
};
use crate::compute::cuda::sanitise::{Sanitiser, SanitiserBuffers};
use crate::compute::cuda::tracking::{
    CameraRays, CameraRaysBuffers, Compared, Outcome, PoseSolver, PoseSolverBuffers, SolveTask,
};
use crate::compute::matching::Refinement;
use crate::config::{FilteringMode, FilteringScore, MatchingConfig, TrackingConfig};
use crate::gpu::plan::Group;
use crate::gpu::{CudaError, DeviceBuffer, Floats, Stream};
use crate::inference::ViewOutput;

/// Iterations of the target.
const ITERATIONS: usize = 10;

/// Never satisfied before [`ITERATIONS`] steps.
fn all_iterations() -> TrackingConfig {
    TrackingConfig {
        max_iters: ITERATIONS,
        rel_error: 0.0,
        delta_norm: 0.0,
        ..TrackingConfig::default()
    }
}

/// The keyframe's fused points and confidences, in its own camera.
fn keyframe(setup: &Setup<'_>) -> ViewOutput {
    let [_, pose] = Pair::poses();
    setup.scene.output(&pose, &pose, 0.003, 5)
}

struct SolveStage {
    solver: PoseSolver,
    params: TrackingConfig,
    frame_points: DeviceBuffer<f32>,
    keyframe_points: DeviceBuffer<f32>,
    index: DeviceBuffer<u32>,
    quality: DeviceBuffer<f32>,
    rays: Option<CameraRays>,
    outcome: DeviceBuffer<Outcome>,
}

pub fn solve_rays(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    solve(setup, false)
}

pub fn solve_calibrated(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    solve(setup, true)
}

fn solve(setup: &Setup<'_>, calibrated: bool) -> Result<Box<dyn Stage>, CliError> {
    let (scene, stream) = (&setup.scene, &setup.bench.stream);
    let n = scene.pixels();
    let (width, height) = (scene.width, scene.height);
    let [frame, key] = Pair::poses();
    let seen = [&frame, &key].map(|pose| scene.points(pose));
    let matches = scene.matches((&key, &seen[1]), (&frame, &seen[0]));
    let index: Vec<u32> = matches.iter().map(|m| m.unwrap_or(0)).collect();
    let quality: Vec<f32> = matches.iter().map(|m| m.map_or(0.0, |_| 3.0)).collect();
    let points = scene.output(&frame, &frame, 0.003, 3).points;
    let mut carving = setup.carving();
    let mut part = carving.part(Group::Tracking, "bench");
    let scratch = PoseSolverBuffers::carve(&mut part, setup.context.info(), n)?;
    let rays = match calibrated {
        true => {
            let buffers = CameraRaysBuffers::carve(&mut part, width, height)?;
            let k = scene.intrinsics;
            Some(CameraRays::new(stream, buffers, k, width, height)?)
        }
        false => None,
    };
    Ok(Box::new(SolveStage {
        solver: PoseSolver::new(setup.context, stream, scratch, n)?,
        params: all_iterations(),
        frame_points: setup.send("frame points", &points)?,
        keyframe_points: setup.send("keyframe points", &keyframe(setup).points)?,
        index: setup.send("index", &index)?,
        quality: setup.send("quality", &quality)?,
        rays,
        outcome: setup.buffer("outcome", 1)?,
    }))
}

impl Stage for SolveStage {
    fn name(&self) -> String {
        let compared = match self.rays {
            Some(_) => "calibrated",
            None => "rays",
        };
        format!("tracking, {ITERATIONS} iterations, {compared}")
    }

    /// A match is 32 bytes, read once; it is then kept on the chip. 350 operations a match and
    /// evaluation of the normal equations, one more of these than iterations.
    fn work(&self) -> Work {
        let n = self.index.len() as u64;
        Work {
            bytes: 32 * n,
            operations: 350 * n * (ITERATIONS as u64 + 1),
        }
    }

    fn target(&self) -> Option<f64> {
        Some(0.20)
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let task = SolveTask {
            frame_points: self.frame_points.all(),
            keyframe_points: self.keyframe_points.all(),
            index: self.index.all(),
            quality: Floats::F32(self.quality.all()),
            min_quality: self.params.q_conf,
            counts: None,
            compared: self.rays.as_ref().map_or(Compared::Rays, Compared::Pixels),
            pose: None,
            outcome: self.outcome.all(),
            measured: None,
            min_fit: 0.0,
        };
        self.solver.enqueue(stream, &task, &self.params)
    }

    fn outcome(&mut self, stream: &Stream) -> Result<String, CudaError> {
        describe(stream, &self.outcome)
    }
}

fn describe(stream: &Stream, outcome: &DeviceBuffer<Outcome>) -> Result<String, CudaError> {
    let read = stream.read_vec(outcome.all())?;
    Ok(read.first().map_or(String::new(), |o| {
        let status = o.status().map_or("nothing".into(), |s| format!("{s:?}"));
        format!(
            "{status}, {} steps, {} evaluations, {} matches",
            o.iterations, o.evaluations, o.used
        )
    }))
}

struct FusionStage {
    fusion: Fusion,
    map: FusedPointmap,
    points: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f32>,
}

pub fn fusion(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let (n, stream) = (setup.scene.pixels(), &setup.bench.stream);
    let mode = FilteringMode::default();
    let first = keyframe(setup);
    let score = FilteringScore::default();
    let mut carving = setup.carving();
    let mut part = carving.part(Group::Tracking, "bench");
    let keys = FusionBuffers::carve(&mut part, n, mode)?;
    let stage = FusionStage {
        fusion: Fusion::new(setup.context, keys, n, mode, score)?,
        map: FusedPointmap::carve(&mut part, n)?,
        points: setup.send("points", &first.points)?,
        confidence: setup.send("confidence", &first.confidence)?,
    };
    stage.map.clear(stream)?;
    stage.update(stream, true)?;
    stream.synchronize()?;
    Ok(Box::new(stage))
}

impl FusionStage {
    fn update(&self, stream: &Stream, restart: bool) -> Result<(), CudaError> {
        let task = UpdateTask {
            points: self.points.all(),
            confidence: self.confidence.all(),
            outcome: None,
            restart,
            depth: None,
        };
        self.fusion.update(stream, &self.map, &task)
    }
}

impl Stage for FusionStage {
    fn name(&self) -> String {
        "fusion, weighted pointmap".into()
    }

    /// 16 bytes of the estimate and 16 of the map read, 16 written; some 20 operations.
    fn work(&self) -> Work {
        let n = self.confidence.len() as u64;
        Work {
            bytes: 48 * n,
            operations: 20 * n,
        }
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.update(stream, false)
    }

    fn outcome(&mut self, stream: &Stream) -> Result<String, CudaError> {
        let state = self.map.state(stream)?;
        Ok(format!("{} estimates", state.count))
    }
}

/// All of a tracked frame but the network: the camera's bytes to the network's input, then from the
/// network's outputs to the fused keyframe.
struct FrameStage {
    camera: Camera,
    pair: Pair,
    sanitiser: Sanitiser,
    unusable: DeviceBuffer<u32>,
    matcher: Matcher,
    matching: MatchingConfig,
    index: DeviceBuffer<u32>,
    valid: DeviceBuffer<u8>,
    quality: DeviceBuffer<f32>,
    gated: DeviceBuffer<f32>,
    counts: DeviceBuffer<MatchCounts>,
    solver: PoseSolver,
    tracking: TrackingConfig,
    outcome: DeviceBuffer<Outcome>,
    fusion: Fusion,
    map: FusedPointmap,
    first: [DeviceBuffer<f32>; 2],
    channels: usize,
}

pub fn tracked_frame(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let (scene, stream) = (&setup.scene, &setup.bench.stream);
    let (n, channels) = (scene.pixels(), scene.channels);
    let (width, height) = (scene.width, scene.height);
    let tracking = TrackingConfig::default();
    let (mode, score) = (tracking.filtering_mode, tracking.filtering_score);
    let refinement = Refinement::SingleAll;
    let first = keyframe(setup);
    let mut carving = setup.carving();
    let mut part = carving.part(Group::Tracking, "bench");
    let context = setup.context;
    let sanitiser = SanitiserBuffers::carve(&mut part)?;
    let matcher = MatcherBuffers::carve(&mut part, width, height, channels)?;
    let solver = PoseSolverBuffers::carve(&mut part, context.info(), n)?;
    let keys = FusionBuffers::carve(&mut part, n, mode)?;
    let map = FusedPointmap::carve(&mut part, n)?;
    map.clear(stream)?;
    Ok(Box::new(FrameStage {
        camera: Camera::new(setup)?,
        pair: Pair::new(setup)?,
        sanitiser: Sanitiser::new(context, stream, sanitiser, n, channels)?,
        unusable: setup.buffer("unusable", 2)?,
        matcher: Matcher::new(context, matcher, width, height, channels, refinement)?,
        matching: MatchingConfig::default(),
        index: setup.buffer("index", n)?,
        valid: setup.buffer("valid", n)?,
        quality: setup.buffer("quality", n)?,
        gated: setup.buffer("gated", n)?,
        counts: setup.buffer("counts", 1)?,
        solver: PoseSolver::new(context, stream, solver, n)?,
        tracking,
        outcome: setup.buffer("outcome", 1)?,
        fusion: Fusion::new(context, keys, n, mode, score)?,
        map,
        first: [
            setup.send("first points", &first.points)?,
            setup.send("first confidence", &first.confidence)?,
        ],
        channels,
    }))
}

impl Stage for FrameStage {
    fn name(&self) -> String {
        "tracked frame, all but the network".into()
    }

    /// The sums of its parts; see theirs. Five steps of the solve.
    fn work(&self) -> Work {
        let n = self.index.len() as u64;
        let camera = self.camera.work();
        let view = 20 + 6 * self.channels as u64;
        Work {
            bytes: camera.bytes + n * (2 * view + 13 + 32 + 48),
            operations: camera.operations
                + n * (matching_operations(&self.matching, self.channels) + 6 * 350 + 20),
        }
    }

    fn target(&self) -> Option<f64> {
        Some(0.90)
    }

    /// The keyframe with its first estimate, and no prior.
    fn prepare(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let [points, confidence] = &self.first;
        let task = UpdateTask {
            points: points.all(),
            confidence: confidence.all(),
            outcome: None,
            restart: true,
            depth: None,
        };
        self.fusion.update(stream, &self.map, &task)
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.camera.enqueue(stream)?;
        let (target, query) = (self.pair.target.view(), self.pair.query.view());
        let unusable = self.unusable.all();
        self.sanitiser
            .enqueue(stream, target, Some(query), unusable)?;
        let task = MatchTask {
            target,
            query,
            start: Start::Identity,
            q_conf: self.tracking.q_conf,
            gates: Some(Gates {
                key_confidence: self.map.confidence.all(),
                key_count: self.map.count(),
                c_conf: self.tracking.c_conf,
                gated: self.gated.all(),
            }),
            index: self.index.all(),
            valid: self.valid.all(),
            quality: Floats::F32(self.quality.all()),
            counts: self.counts.all(),
        };
        self.matcher.enqueue(stream, &self.matching, &task)?;
        let task = SolveTask {
            frame_points: target.points,
            keyframe_points: self.map.points.all(),
            index: self.index.all(),
            quality: Floats::F32(self.gated.all()),
            min_quality: self.tracking.q_conf,
            counts: Some(self.counts.all()),
            compared: Compared::Rays,
            pose: None,
            outcome: self.outcome.all(),
            measured: None,
            min_fit: 0.0,
        };
        self.solver.enqueue(stream, &task, &self.tracking)?;
        let update = UpdateTask {
            points: query.points,
            confidence: query.confidence,
            outcome: Some(self.outcome.all()),
            restart: false,
            depth: None,
        };
        self.fusion.update(stream, &self.map, &update)
    }

    fn outcome(&mut self, stream: &Stream) -> Result<String, CudaError> {
        describe(stream, &self.outcome)
    }
}

//! False loops in the room: matches that agree with each other and with nothing else.

use mast3r_slam::compute::cancel::CancelToken;
use mast3r_slam::compute::coverage::Coverage;
use mast3r_slam::compute::cpu;
use mast3r_slam::compute::device::{
    ContentFormats, Device, DeviceError, EdgeContent, EdgeId, Handle, KeyframeBulk,
    KeyframeContent, MappingDevice, MatchContent, NeighbourView, NewEdge, PoseGraph, Setup, TwoWay,
};
use mast3r_slam::compute::global::{EdgeEquations, GlobalReport, SolveError};
use mast3r_slam::compute::retrieval::Hit;
use mast3r_slam::geometry::{Sim3, Tangent};
use mast3r_slam::inference::NetworkShape;
use mast3r_slam::slam::{MappingCounts, Pace, Slam};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::room::walk::{ate, config, images, vocabulary, walk};
use testkit::room::{RoomBackend, SIZE, Spoil, intrinsics, square_walk};
use testkit::solver_scene::Random;

/// Edges between keyframes at most this many apart are left as they are.
const NEAR: u32 = 2;

/// A device that replaces a share of the loop edges.
struct Deceiver {
    inner: Box<dyn MappingDevice>,
    share: f64,
    random: Random,
    replaced: Arc<AtomicUsize>,
}

impl Deceiver {
    /// Replaces the matches of an edge by those that a camera turned and moved from the true pose
    /// would have: they agree in both directions, pixel by pixel.
    fn replace(&mut self, edge: &mut NewEdge, i: u32, j: u32) -> Result<(), DeviceError> {
        let Some(truth) = self.inner.relative_poses(edge.id)?.i_from_j else {
            return Ok(());
        };
        let sign = if self.random.uniform() < 0.5 {
            -1.0
        } else {
            1.0
        };
        let mut off = Tangent::zeros();
        off[0] = sign * (0.3 + 0.5 * self.random.uniform());
        off[4] = sign * (0.2 + 0.3 * self.random.uniform());
        let wrong = Sim3::exp(&off) * truth;
        let (a, b) = (self.inner.read_keyframe(i)?, self.inner.read_keyframe(j)?);
        let content = EdgeContent {
            i_from_j: matches(&b.points, &wrong),
            j_from_i: matches(&a.points, &wrong.inverse()),
        };
        let share = |m: &MatchContent| {
            m.valid.iter().filter(|v| **v != 0).count() as f32 / m.valid.len() as f32
        };
        self.inner.drop_edge(edge.id);
        edge.match_fraction = share(&content.i_from_j).min(share(&content.j_from_i));
        edge.id = self.inner.import_edge(i, j, &content)?;
        self.replaced.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

/// The pixels that `points` fall on after `pose`.
fn matches(points: &[f32], pose: &Sim3) -> MatchContent {
    let (width, height) = SIZE;
    let camera = intrinsics(SIZE);
    let mut found = MatchContent {
        index: vec![0; width * height],
        valid: vec![0; width * height],
        quality: vec![0.0; width * height],
    };
    for (n, p) in points.chunks_exact(3).enumerate() {
        let p = pose.transform(&nalgebra::Vector3::new(p[0], p[1], p[2]).cast::<f64>());
        let at = camera.project(&p);
        let (u, v) = (at.x.round(), at.y.round());
        let inside = u >= 0.0 && v >= 0.0 && u < width as f64 && v < height as f64;
        if p.z > 0.1 && inside {
            found.index[n] = (v as usize * width + u as usize) as u32;
            found.valid[n] = 1;
            found.quality[n] = 4.0;
        }
    }
    found
}

impl MappingDevice for Deceiver {
    fn shape(&self) -> &NetworkShape {
        self.inner.shape()
    }
    fn accept_keyframe(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        self.inner.accept_keyframe(id, handle)
    }
    fn accept_pointmap(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        self.inner.accept_pointmap(id, handle)
    }
    fn drop_keyframe(&mut self, id: u32) {
        self.inner.drop_keyframe(id);
    }
    fn has_place_recognition(&self) -> bool {
        self.inner.has_place_recognition()
    }
    fn query_places(&mut self, id: u32, hits: &mut Vec<Hit>) -> Result<(), DeviceError> {
        self.inner.query_places(id, hits)
    }
    fn insert_place(&mut self, id: u32) -> Result<(), DeviceError> {
        self.inner.insert_place(id)
    }
    fn set_cancel(&mut self, stop: &CancelToken) {
        self.inner.set_cancel(stop);
    }
    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        let first = made.len();
        self.inner.make_edges(pairs, made)?;
        for (edge, &(i, j)) in made[first..].iter_mut().zip(pairs) {
            if i.abs_diff(j) > NEAR && self.random.uniform() < self.share {
                self.replace(edge, i, j)?;
            }
        }
        Ok(())
    }
    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError> {
        self.inner.relative_poses(edge)
    }
    fn drop_edge(&mut self, edge: EdgeId) {
        self.inner.drop_edge(edge);
    }
    fn coverage(
        &mut self,
        id: u32,
        views: &[NeighbourView],
        min_ratio: f32,
    ) -> Result<Coverage, DeviceError> {
        self.inner.coverage(id, views, min_ratio)
    }
    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError> {
        self.inner.solve(graph, poses)
    }
    fn equations(
        &mut self,
        graph: &PoseGraph<'_>,
        dst: &mut Vec<EdgeEquations>,
    ) -> Result<Result<(), SolveError>, DeviceError> {
        self.inner.equations(graph, dst)
    }
    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError> {
        self.inner.read_keyframe(id)
    }
    fn borrow_keyframe(&mut self, id: u32) -> Result<Handle, DeviceError> {
        self.inner.borrow_keyframe(id)
    }
    fn content_formats(&self) -> ContentFormats {
        self.inner.content_formats()
    }
    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError> {
        self.inner.export_keyframe(id, dst)
    }
    fn import_keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), DeviceError> {
        self.inner.import_keyframe(id, content)
    }
    fn export_edge(&self, edge: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError> {
        self.inner.export_edge(edge, dst)
    }
    fn import_edge(
        &mut self,
        i: u32,
        j: u32,
        content: &EdgeContent,
    ) -> Result<EdgeId, DeviceError> {
        self.inner.import_edge(i, j, content)
    }
    fn reset(&mut self) {
        self.inner.reset();
    }
}

struct Run {
    error: f64,
    counts: MappingCounts,
    replaced: usize,
}

/// A lap and a half, with this share of false loops.
fn run(share: f64, judged: bool) -> Run {
    const FRAMES: usize = 130;
    let poses = square_walk(FRAMES, 1.5);
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.05,
        bias: 0.0,
    };
    let mut room = RoomBackend::new(SIZE, poses.clone(), spoil);
    let model = vocabulary(&mut room);
    let images = images(&room, (0..FRAMES).map(Some));
    let mut config = config(false);
    config.local_opt.judge_loops = judged;
    let setup = Setup {
        config: Arc::new((&config).into()),
        preprocessor: None,
        intrinsics: None,
        places: Some(model),
    };
    let whole = cpu::device(Box::new(room), setup);
    let replaced = Arc::new(AtomicUsize::new(0));
    let device = Device {
        tracking: whole.tracking,
        mapping: Box::new(Deceiver {
            inner: whole.mapping,
            share,
            random: Random(17),
            replaced: Arc::clone(&replaced),
        }),
    };
    let mut system = Slam::new(&config, Pace::EveryFrame, device, None).expect("system");
    let snapshot = walk(&mut system, &images);
    Run {
        error: ate(&snapshot, &poses),
        counts: system.mapping_counts(),
        replaced: replaced.load(Ordering::Acquire),
    }
}

#[test]
fn false_loops_do_not_bend_the_map() {
    let (trusting, clean) = (run(0.0, false), run(0.0, true));
    assert_eq!(trusting.counts.refused_odometry, 0, "nothing is judged");
    // True loops are found, and they do their work.
    assert!(clean.counts.loop_edges > 0, "{:?}", clean.counts);
    assert!(
        clean.error <= 1.25 * trusting.error,
        "{} m, {} m if every loop is believed",
        clean.error,
        trusting.error
    );
    for share in [0.1, 0.3] {
        let found = run(share, true);
        assert!(found.replaced > 0);
        let counts = found.counts;
        let named = counts.refused_matches
            + counts.refused_directions
            + counts.refused_spread
            + counts.refused_undetermined
            + counts.refused_odometry
            + counts.refused_trials;
        assert_eq!(counts.refused_edges, named, "every refusal has a name");
        assert!(
            found.error <= 1.1 * clean.error,
            "{share}: {} m, {} m without false loops",
            found.error,
            clean.error
        );
    }
    // Believed, false loops bend the map: the test can fail.
    let bent = run(1.0, false);
    assert!(bent.error > 2.0 * clean.error, "{} m", bent.error);
}

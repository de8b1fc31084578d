//! A device that replaces some of the loops by false ones, whose matches agree with each other and with nothing else,
//! or loses them.

use crate::solver_scene::Random;
use mast3r_slam::compute::cancel::CancelToken;
use mast3r_slam::compute::coverage::Coverage;
use mast3r_slam::compute::device::{
    ContentFormats, Device, DeviceError, EdgeContent, EdgeId, Handle, KeyframeBulk,
    KeyframeContent, MappingDevice, MatchContent, NeighbourView, NewEdge, PoseGraph, TwoWay,
};
use mast3r_slam::compute::global::{EdgeEquations, GlobalReport, SolveError};
use mast3r_slam::compute::retrieval::Hit;
use mast3r_slam::compute::spread::Spread;
use mast3r_slam::geometry::{Intrinsics, Sim3, Tangent};
use mast3r_slam::inference::NetworkShape;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Edges between keyframes at most this many apart are left as they are: with `local_opt.neighbours` up to 3 they are no
/// loops.
const NEAR: u32 = 3;

/// A mapping half that replaces a share of the loop edges.
struct Deceiver {
    inner: Box<dyn MappingDevice>,
    camera: Intrinsics,
    lies: Lies,
    told: Arc<Told>,
    alive: HashSet<EdgeId>,
}

/// What a device replaces.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lies {
    /// Probability with which a loop edge is replaced.
    pub share: f64,
    /// Each seed replaces other edges.
    pub seed: u64,
    /// Whether such an edge has no matches instead of false ones: what a perfect judge leaves of them.
    pub lose: bool,
}

/// What a device has replaced.
#[derive(Debug, Default)]
pub struct Told {
    replaced: AtomicUsize,
    alive: AtomicUsize,
}

impl Told {
    /// Number of edges that were replaced.
    pub fn replaced(&self) -> usize {
        self.replaced.load(Ordering::Acquire)
    }

    /// Number of them that the map has.
    pub fn alive(&self) -> usize {
        self.alive.load(Ordering::Acquire)
    }
}

/// `device`, which replaces some of its loop edges, and what it has replaced. `camera` belongs to the network's images.
pub fn deceiving(device: Device, camera: Intrinsics, lies: Lies) -> (Device, Arc<Told>) {
    let told = Arc::new(Told::default());
    let device = Device {
        tracking: device.tracking,
        mapping: Box::new(Deceiver {
            inner: device.mapping,
            camera,
            lies,
            told: Arc::clone(&told),
            alive: HashSet::new(),
        }),
    };
    (device, told)
}

impl Deceiver {
    /// The same for a pair whatever other pairs a map tries, so that runs can be compared.
    fn random_of(&self, i: u32, j: u32) -> Random {
        let pair = (u64::from(i) << 32) | u64::from(j);
        let mut random = Random(self.lies.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ pair);
        for _ in 0..4 {
            random.bits();
        }
        random
    }

    /// Replaces the matches of an edge by those that a camera turned and moved from the true pose
    /// would have: they agree in both directions, pixel by pixel.
    fn replace(
        &mut self,
        edge: &mut NewEdge,
        (i, j): (u32, u32),
        mut random: Random,
    ) -> Result<(), DeviceError> {
        let Some(truth) = self.inner.relative_poses(edge.id)?.i_from_j else {
            return Ok(());
        };
        let sign = if random.uniform() < 0.5 { -1.0 } else { 1.0 };
        let mut off = Tangent::zeros();
        off[0] = sign * (0.3 + 0.5 * random.uniform());
        off[4] = sign * (0.2 + 0.3 * random.uniform());
        self.told.replaced.fetch_add(1, Ordering::AcqRel);
        if self.lies.lose {
            edge.match_fraction = 0.0;
            return Ok(());
        }
        let wrong = Sim3::exp(&off) * truth;
        let (a, b) = (self.inner.read_keyframe(i)?, self.inner.read_keyframe(j)?);
        let content = EdgeContent {
            i_from_j: self.matches(&b.points, &wrong),
            j_from_i: self.matches(&a.points, &wrong.inverse()),
        };
        let share = |m: &MatchContent| {
            m.quality.iter().filter(|q| **q > 0.0).count() as f32 / m.quality.len() as f32
        };
        self.inner.drop_edge(edge.id);
        edge.match_fraction = share(&content.i_from_j).min(share(&content.j_from_i));
        edge.id = self.inner.import_edge(i, j, &content)?;
        self.alive.insert(edge.id);
        self.count();
        Ok(())
    }

    fn count(&self) {
        self.told.alive.store(self.alive.len(), Ordering::Release);
    }

    /// The pixels that `points` fall on after `pose`.
    fn matches(&self, points: &[f32], pose: &Sim3) -> MatchContent {
        let shape = self.inner.shape();
        let (width, height) = (shape.width, shape.height);
        let mut found = MatchContent {
            index: vec![0; width * height],
            quality: vec![0.0; width * height],
        };
        for (n, p) in points.chunks_exact(3).enumerate() {
            let p = pose.transform(&nalgebra::Vector3::new(p[0], p[1], p[2]).cast::<f64>());
            let at = self.camera.project(&p);
            let (u, v) = (at.x.round(), at.y.round());
            let inside = u >= 0.0 && v >= 0.0 && u < width as f64 && v < height as f64;
            if p.z > 0.1 && inside {
                found.index[n] = (v as usize * width + u as usize) as u32;
                found.quality[n] = 4.0;
            }
        }
        found
    }
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
    fn move_points(&mut self, id: u32, motion: &Sim3) -> Result<(), DeviceError> {
        self.inner.move_points(id, motion)
    }
    fn drop_keyframe(&mut self, id: u32) {
        self.inner.drop_keyframe(id);
    }
    fn has_place_recognition(&self) -> bool {
        self.inner.has_place_recognition()
    }
    fn query_places(
        &mut self,
        id: u32,
        limit: usize,
        hits: &mut Vec<Hit>,
    ) -> Result<(), DeviceError> {
        self.inner.query_places(id, limit, hits)
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
            let mut random = self.random_of(i, j);
            if i.abs_diff(j) > NEAR && random.uniform() < self.lies.share {
                self.replace(edge, (i, j), random)?;
            }
        }
        Ok(())
    }
    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError> {
        self.inner.relative_poses(edge)
    }
    fn drop_edge(&mut self, edge: EdgeId) {
        self.alive.remove(&edge);
        self.count();
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
    fn spread(&mut self, edge: EdgeId, q_conf: f32) -> Result<[Spread; 2], DeviceError> {
        self.inner.spread(edge, q_conf)
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
    fn encode_keyframe(&mut self, content: &mut KeyframeContent) -> Result<(), DeviceError> {
        self.inner.encode_keyframe(content)
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

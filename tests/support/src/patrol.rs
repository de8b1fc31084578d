//! A device made for long tests: a camera that patrols a square corridor, lap after lap. It knows where the camera is,
//! so that a frame costs microseconds; what it answers depends on distances only. It counts its work.

use mast3r_slam::compute::cancel::CancelToken;
use mast3r_slam::compute::coverage::Coverage;
use mast3r_slam::compute::depth::moved::NextDepth;
use mast3r_slam::compute::depth::{DepthScale, NoScale};
use mast3r_slam::compute::device::{
    ContentFormats, Device, DeviceError, EdgeContent, EdgeId, Fit, Floats, Fractions, FramePoints,
    HandOff, Handle, KeyframeBulk, KeyframeContent, LostReason, MappingDevice, NeighbourView,
    NewEdge, Outcome, PoseGraph, SeenFrame, Tracked, TrackingDevice, TwoWay,
};
use mast3r_slam::compute::global::{EdgeEquations, GlobalReport, SolveError};
use mast3r_slam::compute::retrieval::Hit;
use mast3r_slam::compute::store::FloatFormat;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::RgbImage;
use mast3r_slam::image::encoding::RawImage;
use mast3r_slam::inference::NetworkShape;
use mast3r_slam::time::StageTimes;
use nalgebra::{SMatrix, UnitQuaternion, Vector3};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Frames of a lap.
pub const LAP: usize = 4000;
/// Side of the square, in metres.
const SIDE: f64 = 15.0;
/// A keyframe farther away than this shows nothing of what the camera sees, in metres.
const RANGE: f64 = 2.0;
/// Width and height of the network's images in pixels.
const PIXELS: (usize, usize) = (16, 16);
/// Frames of each lap that show nothing: the lens is covered.
pub const COVERED: std::ops::Range<usize> = 2000..2005;

/// The camera's pose at a frame.
fn pose(frame: usize) -> Sim3 {
    let along = (frame % LAP) as f64 / LAP as f64 * 4.0;
    let (side, part) = (along.floor(), along.fract() * SIDE);
    let (x, y, yaw) = match side as u32 {
        0 => (part, 0.0, 0.0),
        1 => (SIDE, part, 1.0),
        2 => (SIDE - part, SIDE, 2.0),
        _ => (0.0, SIDE - part, 3.0),
    };
    let yaw = yaw * std::f64::consts::FRAC_PI_2;
    Sim3 {
        rotation: UnitQuaternion::from_axis_angle(&Vector3::z_axis(), yaw),
        translation: Vector3::new(x, y, 0.0),
        ..Sim3::identity()
    }
}

/// The fraction of a keyframe that a camera sees.
fn overlap(keyframe: &Sim3, camera: &Sim3) -> f32 {
    let apart = (keyframe.translation - camera.translation).norm();
    let turned = keyframe.rotation.angle_to(&camera.rotation);
    (1.0 - apart / RANGE - turned / 4.0).clamp(0.0, 1.0) as f32
}

/// Calls of the device so far.
#[derive(Debug, Default)]
pub struct Work {
    /// Frames encoded.
    pub frames: AtomicUsize,
    /// Calls of the mapping half.
    pub mapping: AtomicU64,
    /// Edges made.
    pub edges: AtomicU64,
    /// Keyframes and edges in all the graphs that were solved.
    pub solved: AtomicU64,
}

impl Work {
    /// All that grows with the work of mapping.
    pub fn of_mapping(&self) -> [u64; 3] {
        [&self.mapping, &self.edges, &self.solved].map(|count| count.load(Ordering::Acquire))
    }
}

/// Poses on their way between the halves.
#[derive(Default)]
struct Poses(Mutex<Vec<Option<Sim3>>>);

impl Poses {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Sim3>>> {
        self.0.lock().expect("no code panics under the lock")
    }

    fn put(self: &Arc<Self>, pose: Sim3) -> Handle {
        let mut items = self.lock();
        let free = items.iter().position(Option::is_none);
        let number = free.unwrap_or(items.len());
        match items.get_mut(number) {
            Some(slot) => *slot = Some(pose),
            None => items.push(Some(pose)),
        }
        Handle::new(number as u32, Arc::clone(self) as Arc<dyn HandOff>)
    }

    fn get(&self, handle: &Handle) -> Sim3 {
        self.lock()[handle.number() as usize].expect("the handle is alive")
    }
}

impl HandOff for Poses {
    fn discard(&self, number: u32) {
        self.lock()[number as usize] = None;
    }
}

/// The device and its counts, with images of 16×16 pixels.
pub fn device(work: &Arc<Work>) -> Device {
    device_of(work, PIXELS, 4)
}

/// The same for a network with images of this width and height and tokens of so many channels: what it stores is blank,
/// and as large as a real one's.
pub fn device_of(work: &Arc<Work>, (width, height): (usize, usize), feature_dim: usize) -> Device {
    let poses = Arc::new(Poses::default());
    let shape = NetworkShape {
        width,
        height,
        tokens: (width * height) / 256,
        feature_dim,
        descriptor_dim: 4,
    };
    Device {
        tracking: Box::new(Tracking {
            shape: shape.clone(),
            poses: Arc::clone(&poses),
            work: Arc::clone(work),
            frame: 0,
            active: Sim3::identity(),
        }),
        mapping: Box::new(Mapping {
            shape,
            poses,
            work: Arc::clone(work),
            keyframes: HashMap::new(),
            places: Vec::new(),
            edges: HashMap::new(),
            next_edge: 0,
            image: Arc::new(RgbImage::new(width, height)),
        }),
    }
}

struct Tracking {
    shape: NetworkShape,
    poses: Arc<Poses>,
    work: Arc<Work>,
    /// Number of the current frame, counted from 1.
    frame: usize,
    active: Sim3,
}

impl Tracking {
    fn camera(&self) -> Sim3 {
        pose(self.frame - 1)
    }

    fn is_covered(&self) -> bool {
        COVERED.contains(&((self.frame - 1) % LAP))
    }
}

impl TrackingDevice for Tracking {
    fn describe(&self) -> String {
        "patrol".to_owned()
    }
    fn shape(&self) -> &NetworkShape {
        &self.shape
    }
    fn encode(&mut self, _: &RawImage<'_>) -> Result<(), DeviceError> {
        self.frame += 1;
        self.work.frames.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
    fn set_mask(&mut self, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::NoMasks)
    }
    fn set_depth(&mut self, _: Option<NextDepth<'_>>) -> Result<(), DeviceError> {
        Err(DeviceError::NoDepth)
    }
    fn depth_found(&self) -> Option<Result<DepthScale, NoScale>> {
        None
    }
    fn keyframe_scale(&mut self) -> Result<Option<DepthScale>, DeviceError> {
        Ok(None)
    }
    fn decode_single(&mut self) -> Result<usize, DeviceError> {
        Ok(if self.is_covered() {
            0
        } else {
            self.shape.pixels()
        })
    }
    fn start_at(&mut self, _: &Sim3) -> Result<(), DeviceError> {
        Ok(())
    }
    fn track(&mut self) -> Result<Outcome, DeviceError> {
        let camera = self.camera();
        let good = match self.is_covered() {
            true => 0.0,
            false => overlap(&self.active, &camera),
        };
        if good < 0.05 {
            let (found, needed) = (good, 0.05);
            let reason = LostReason::FewMatches {
                found,
                needed,
                geometric: good,
            };
            return Ok(Outcome::Lost {
                reason,
                match_fraction: good,
            });
        }
        Ok(Outcome::Tracked(Tracked {
            keyframe_from_frame: self.active.inverse() * camera,
            fractions: Fractions {
                geometric: good,
                used: good,
                good,
                unique: good,
            },
            iterations: 3,
            fit: Fit {
                hessian: SMatrix::identity() * 1e4,
                cost: 1.0,
                used: 200,
            },
        }))
    }
    fn start_keyframe(&mut self) -> Result<Handle, DeviceError> {
        self.active = self.camera();
        Ok(self.poses.put(self.active))
    }
    fn stash_frame(&mut self) -> Result<Handle, DeviceError> {
        Ok(self.poses.put(self.camera()))
    }
    fn track_against(&mut self, handle: &Handle) -> Result<(), DeviceError> {
        self.active = self.poses.get(handle);
        Ok(())
    }
    fn stash_pointmap(&mut self) -> Result<Handle, DeviceError> {
        Ok(self.poses.put(self.active))
    }
    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError> {
        dst.points.clear();
        dst.points.resize(3 * self.shape.pixels(), 1.0);
        dst.confidence.clear();
        dst.confidence.resize(self.shape.pixels(), 2.0);
        Ok(())
    }
    fn read_seen(&mut self, dst: &mut SeenFrame) -> Result<(), DeviceError> {
        dst.image.clear();
        dst.image.resize(3 * self.shape.pixels(), 0);
        dst.index.clear();
        dst.index.resize(self.shape.pixels(), 0);
        dst.quality.clear();
        dst.quality.resize(self.shape.pixels(), 0.0);
        Ok(())
    }
    fn self_test(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn times(&self) -> StageTimes {
        StageTimes::default()
    }
}

struct Mapping {
    shape: NetworkShape,
    poses: Arc<Poses>,
    work: Arc<Work>,
    keyframes: HashMap<u32, Sim3>,
    /// Keyframes in the place database.
    places: Vec<u32>,
    edges: HashMap<EdgeId, (u32, u32)>,
    next_edge: u32,
    image: Arc<RgbImage>,
}

impl Mapping {
    fn count(&self) {
        self.work.mapping.fetch_add(1, Ordering::AcqRel);
    }

    fn keyframe(&self, id: u32) -> Result<Sim3, DeviceError> {
        let (device, what) = ("patrol", "keyframe");
        let found = self.keyframes.get(&id).copied();
        found.ok_or(DeviceError::Unknown { device, what, id })
    }
}

impl MappingDevice for Mapping {
    fn shape(&self) -> &NetworkShape {
        &self.shape
    }
    fn accept_keyframe(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        self.count();
        self.keyframes.insert(id, self.poses.get(handle));
        Ok(())
    }
    fn accept_pointmap(&mut self, id: u32, _: &Handle) -> Result<(), DeviceError> {
        self.keyframe(id).map(|_| ())
    }
    fn move_points(&mut self, id: u32, _: &Sim3) -> Result<(), DeviceError> {
        self.keyframe(id).map(|_| ())
    }
    fn drop_keyframe(&mut self, id: u32) {
        self.keyframes.remove(&id);
        self.places.retain(|place| *place != id);
    }
    fn has_place_recognition(&self) -> bool {
        true
    }
    fn query_places(
        &mut self,
        id: u32,
        limit: usize,
        hits: &mut Vec<Hit>,
    ) -> Result<(), DeviceError> {
        self.count();
        hits.clear();
        let at = self.keyframe(id)?;
        for &other in self.places.iter().filter(|other| **other != id) {
            let score = overlap(&self.keyframe(other)?, &at);
            if score > 0.3 {
                hits.push(Hit { id: other, score });
            }
        }
        hits.sort_by(|a, b| b.score.total_cmp(&a.score));
        hits.truncate(limit);
        Ok(())
    }
    fn insert_place(&mut self, id: u32) -> Result<(), DeviceError> {
        self.places.push(id);
        Ok(())
    }
    fn set_cancel(&mut self, _: &CancelToken) {}
    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        for &(i, j) in pairs {
            let match_fraction = overlap(&self.keyframe(i)?, &self.keyframe(j)?);
            let id = EdgeId(self.next_edge);
            self.next_edge += 1;
            self.edges.insert(id, (i, j));
            made.push(NewEdge { id, match_fraction });
        }
        self.work
            .edges
            .fetch_add(pairs.len() as u64, Ordering::AcqRel);
        Ok(())
    }
    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError> {
        let (device, what, id) = ("patrol", "edge", edge.0);
        let ends = self.edges.get(&edge).copied();
        let (i, j) = ends.ok_or(DeviceError::Unknown { device, what, id })?;
        let (i, j) = (self.keyframe(i)?, self.keyframe(j)?);
        Ok(TwoWay {
            i_from_j: Some(i.inverse() * j),
            j_from_i: Some(j.inverse() * i),
        })
    }
    fn drop_edge(&mut self, edge: EdgeId) {
        self.edges.remove(&edge);
    }
    fn coverage(
        &mut self,
        id: u32,
        views: &[NeighbourView],
        _: f32,
    ) -> Result<Coverage, DeviceError> {
        self.count();
        let at = self.keyframe(id)?;
        let mut shares = vec![0.0, 0.0];
        for view in views {
            let ends = self.edges.get(&view.edge).copied();
            if let Some((i, j)) = ends {
                let other = if i == id { j } else { i };
                shares.push(overlap(&self.keyframe(other)?, &at));
            }
        }
        shares.sort_by(|a, b| b.total_cmp(a));
        let usable = (self.shape.pixels()) as u32;
        let pixels = |share: f32| (share * usable as f32) as u32;
        Ok(Coverage {
            usable,
            seen: pixels(shares[0]),
            covered: pixels(shares[1]),
        })
    }
    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        _: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError> {
        let size = (graph.keyframes.len() + graph.edges.len()) as u64;
        self.work.solved.fetch_add(size, Ordering::AcqRel);
        Ok(Ok(GlobalReport::default()))
    }
    fn equations(
        &mut self,
        graph: &PoseGraph<'_>,
        dst: &mut Vec<EdgeEquations>,
    ) -> Result<Result<(), SolveError>, DeviceError> {
        dst.clear();
        dst.extend(graph.edges.iter().map(|_| EdgeEquations {
            hessian: SMatrix::identity() * 1e4,
            gradient: SMatrix::zeros(),
            robust: 1.0,
            matches: 200,
        }));
        Ok(Ok(()))
    }
    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError> {
        self.keyframe(id)?;
        Ok(KeyframeBulk {
            image: Arc::clone(&self.image),
            points: Arc::new(vec![1.0; 3 * self.shape.pixels()]),
            confidence: Arc::new(vec![2.0; self.shape.pixels()]),
        })
    }
    fn borrow_keyframe(&mut self, id: u32) -> Result<Handle, DeviceError> {
        self.count();
        Ok(self.poses.put(self.keyframe(id)?))
    }
    fn content_formats(&self) -> ContentFormats {
        ContentFormats {
            confidence: FloatFormat::F32,
            features: FloatFormat::F32,
        }
    }
    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError> {
        self.keyframe(id)?;
        let pixels = self.shape.pixels();
        let tokens = self.shape.tokens * self.shape.feature_dim;
        dst.image.clear();
        dst.image.resize(3 * pixels, 0);
        dst.points.clear();
        dst.points.resize(3 * pixels, 1.0);
        dst.confidence = Floats::F32(vec![2.0; pixels]);
        dst.features = Floats::F32(vec![0.0; tokens]);
        Ok(())
    }
    fn import_keyframe(&mut self, id: u32, _: &KeyframeContent) -> Result<(), DeviceError> {
        self.keyframes.insert(id, Sim3::identity());
        Ok(())
    }
    fn encode_keyframe(&mut self, _: &mut KeyframeContent) -> Result<(), DeviceError> {
        Ok(())
    }
    fn export_edge(&self, _: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError> {
        *dst = EdgeContent::unmatched(self.shape.pixels());
        Ok(())
    }
    fn import_edge(&mut self, i: u32, j: u32, _: &EdgeContent) -> Result<EdgeId, DeviceError> {
        let id = EdgeId(self.next_edge);
        self.next_edge += 1;
        self.edges.insert(id, (i, j));
        Ok(id)
    }
    fn reset(&mut self) {
        self.keyframes.clear();
        self.places.clear();
        self.edges.clear();
    }
}

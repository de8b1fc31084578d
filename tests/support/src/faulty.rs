//! A device whose calls fail when a test wants them to.

use mast3r_slam::compute::cancel::CancelToken;
use mast3r_slam::compute::coverage::Coverage;
use mast3r_slam::compute::depth::moved::NextDepth;
use mast3r_slam::compute::depth::{DepthScale, NoScale};
use mast3r_slam::compute::device::{
    ContentFormats, Device, DeviceError, EdgeContent, EdgeId, FramePoints, Handle, KeyframeBulk,
    KeyframeContent, MappingDevice, MemoryPool, NeighbourView, NewEdge, Outcome, PoseGraph,
    SeenFrame, TrackingDevice, TwoWay,
};
use mast3r_slam::compute::global::{EdgeEquations, GlobalReport, SolveError};
use mast3r_slam::compute::retrieval::Hit;
use mast3r_slam::compute::spread::Spread;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::encoding::RawImage;
use mast3r_slam::inference::NetworkShape;
use mast3r_slam::time::StageTimes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Decides about a call, by the name of its method, before it is made. Both halves may ask at once.
type Verdict = Arc<dyn Fn(&'static str) -> Result<(), DeviceError> + Send + Sync>;

/// A hold on both halves of a device.
#[derive(Clone, Default)]
pub struct Faults {
    verdict: Arc<Mutex<Option<Verdict>>>,
    unsolvable: Arc<AtomicBool>,
}

impl Faults {
    /// From now on `verdict` decides about every call that may fail. It may panic.
    pub fn set(
        &self,
        verdict: impl Fn(&'static str) -> Result<(), DeviceError> + Send + Sync + 'static,
    ) {
        *self.lock() = Some(Arc::new(verdict));
    }

    /// Every call works again.
    pub fn clear(&self) {
        *self.lock() = None;
        self.unsolvable.store(false, Ordering::Release);
    }

    /// From now on every call fails, as after the loss of a GPU.
    pub fn lose(&self) {
        self.set(|_| {
            Err(DeviceError::Lost {
                device: "test",
                cause: "the plug was pulled".into(),
            })
        });
    }

    /// From now on the calls of this method fail, as when the disk is full.
    pub fn fail(&self, method: &'static str, cause: &'static str) {
        self.set(move |name| match name == method {
            true => Err(DeviceError::Failed {
                device: "test",
                cause: cause.into(),
            }),
            false => Ok(()),
        });
    }

    /// From now on every graph is numerically unsolvable.
    pub fn unsolvable(&self) {
        self.unsolvable.store(true, Ordering::Release);
    }

    /// `device`, under this hold.
    pub fn over(&self, device: Device) -> Device {
        Device {
            tracking: Box::new(Tracking(device.tracking, self.clone())),
            mapping: Box::new(Mapping(device.mapping, self.clone())),
        }
    }

    fn call(&self, name: &'static str) -> Result<(), DeviceError> {
        let verdict = self.lock().clone();
        verdict.map_or(Ok(()), |verdict| verdict(name))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Verdict>> {
        self.verdict.lock().unwrap_or_else(|e| e.into_inner())
    }
}

struct Tracking(Box<dyn TrackingDevice>, Faults);
struct Mapping(Box<dyn MappingDevice>, Faults);

impl TrackingDevice for Tracking {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn shape(&self) -> &NetworkShape {
        self.0.shape()
    }
    fn encode(&mut self, image: &RawImage<'_>) -> Result<(), DeviceError> {
        self.1.call("encode")?;
        self.0.encode(image)
    }
    fn set_mask(&mut self, used: &[u8]) -> Result<(), DeviceError> {
        self.0.set_mask(used)
    }
    fn set_depth(&mut self, next: Option<NextDepth<'_>>) -> Result<(), DeviceError> {
        self.0.set_depth(next)
    }
    fn depth_found(&self) -> Option<Result<DepthScale, NoScale>> {
        self.0.depth_found()
    }
    fn keyframe_scale(&mut self) -> Result<Option<DepthScale>, DeviceError> {
        self.0.keyframe_scale()
    }
    fn decode_single(&mut self) -> Result<usize, DeviceError> {
        self.1.call("decode_single")?;
        self.0.decode_single()
    }
    fn start_at(&mut self, keyframe_from_frame: &Sim3) -> Result<(), DeviceError> {
        self.1.call("start_at")?;
        self.0.start_at(keyframe_from_frame)
    }
    fn track(&mut self) -> Result<Outcome, DeviceError> {
        self.1.call("track")?;
        self.0.track()
    }
    fn start_keyframe(&mut self) -> Result<Handle, DeviceError> {
        self.1.call("start_keyframe")?;
        self.0.start_keyframe()
    }
    fn stash_frame(&mut self) -> Result<Handle, DeviceError> {
        self.1.call("stash_frame")?;
        self.0.stash_frame()
    }
    fn track_against(&mut self, handle: &Handle) -> Result<(), DeviceError> {
        self.1.call("track_against")?;
        self.0.track_against(handle)
    }
    fn stash_pointmap(&mut self) -> Result<Handle, DeviceError> {
        self.1.call("stash_pointmap")?;
        self.0.stash_pointmap()
    }
    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError> {
        self.1.call("read_frame")?;
        self.0.read_frame(dst)
    }
    fn read_seen(&mut self, dst: &mut SeenFrame) -> Result<(), DeviceError> {
        self.1.call("read_seen")?;
        self.0.read_seen(dst)
    }
    fn memory(&self) -> Vec<MemoryPool> {
        self.0.memory()
    }
    fn self_test(&mut self) -> Result<(), DeviceError> {
        self.1.call("self_test")?;
        self.0.self_test()
    }
    fn times(&self) -> StageTimes {
        self.0.times()
    }
}

impl MappingDevice for Mapping {
    fn shape(&self) -> &NetworkShape {
        self.0.shape()
    }
    fn accept_keyframe(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        self.1.call("accept_keyframe")?;
        self.0.accept_keyframe(id, handle)
    }
    fn accept_pointmap(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        self.1.call("accept_pointmap")?;
        self.0.accept_pointmap(id, handle)
    }
    fn move_points(&mut self, id: u32, motion: &Sim3) -> Result<(), DeviceError> {
        self.1.call("move_points")?;
        self.0.move_points(id, motion)
    }
    fn drop_keyframe(&mut self, id: u32) {
        self.0.drop_keyframe(id);
    }
    fn has_place_recognition(&self) -> bool {
        self.0.has_place_recognition()
    }
    fn query_places(
        &mut self,
        id: u32,
        limit: usize,
        hits: &mut Vec<Hit>,
    ) -> Result<(), DeviceError> {
        self.1.call("query_places")?;
        self.0.query_places(id, limit, hits)
    }
    fn insert_place(&mut self, id: u32) -> Result<(), DeviceError> {
        self.1.call("insert_place")?;
        self.0.insert_place(id)
    }
    fn set_cancel(&mut self, stop: &CancelToken) {
        self.0.set_cancel(stop);
    }
    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        self.1.call("make_edges")?;
        self.0.make_edges(pairs, made)
    }
    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError> {
        self.1.call("relative_poses")?;
        self.0.relative_poses(edge)
    }
    fn drop_edge(&mut self, edge: EdgeId) {
        self.0.drop_edge(edge);
    }
    fn coverage(
        &mut self,
        id: u32,
        views: &[NeighbourView],
        min_ratio: f32,
    ) -> Result<Coverage, DeviceError> {
        self.1.call("coverage")?;
        self.0.coverage(id, views, min_ratio)
    }
    fn spread(&mut self, edge: EdgeId, q_conf: f32) -> Result<[Spread; 2], DeviceError> {
        self.1.call("spread")?;
        self.0.spread(edge, q_conf)
    }
    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError> {
        self.1.call("solve")?;
        if self.1.unsolvable.load(Ordering::Acquire) {
            let (what, expected, found) = ("an unsolvable graph", 0, 1);
            return Ok(Err(SolveError::Shape {
                what,
                expected,
                found,
            }));
        }
        self.0.solve(graph, poses)
    }
    fn equations(
        &mut self,
        graph: &PoseGraph<'_>,
        dst: &mut Vec<EdgeEquations>,
    ) -> Result<Result<(), SolveError>, DeviceError> {
        self.1.call("equations")?;
        self.0.equations(graph, dst)
    }
    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError> {
        self.1.call("read_keyframe")?;
        self.0.read_keyframe(id)
    }
    fn borrow_keyframe(&mut self, id: u32) -> Result<Handle, DeviceError> {
        self.1.call("borrow_keyframe")?;
        self.0.borrow_keyframe(id)
    }
    fn content_formats(&self) -> ContentFormats {
        self.0.content_formats()
    }
    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError> {
        self.1.call("export_keyframe")?;
        self.0.export_keyframe(id, dst)
    }
    fn import_keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), DeviceError> {
        self.1.call("import_keyframe")?;
        self.0.import_keyframe(id, content)
    }
    fn encode_keyframe(&mut self, content: &mut KeyframeContent) -> Result<(), DeviceError> {
        self.1.call("encode_keyframe")?;
        self.0.encode_keyframe(content)
    }
    fn export_edge(&self, edge: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError> {
        self.1.call("export_edge")?;
        self.0.export_edge(edge, dst)
    }
    fn import_edge(
        &mut self,
        i: u32,
        j: u32,
        content: &EdgeContent,
    ) -> Result<EdgeId, DeviceError> {
        self.1.call("import_edge")?;
        self.0.import_edge(i, j, content)
    }
    fn reset(&mut self) {
        self.0.reset();
    }
}

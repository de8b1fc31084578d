//! The real SLAM for tests of the node: on the CPU device, with a network whose truth is known (the analytic room),
//! and with faults that tests switch on.

pub mod memory;
pub mod stage;

use mast3r_slam::compute::cpu;
use mast3r_slam::compute::depth::moved::NextDepth;
use mast3r_slam::compute::depth::{DepthScale, NoScale};
use mast3r_slam::compute::device::{
    Device, DeviceError, FramePoints, Handle, Outcome, SeenFrame, Setup, TrackingDevice,
};
use mast3r_slam::compute::retrieval::RetrievalModel;
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::image::RgbImage;
use mast3r_slam::image::encoding::{ImageFormat, RawImage};
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput};
use mast3r_slam::time::StageTimes;
use mast3r_slam::{Slam, SlamBuilder};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use testkit::faulty::Faults;
use testkit::room::walk::vocabulary;
use testkit::room::{RoomBackend, SIZE, Spoil, square_walk};

/// What the tracker's network does with the next image.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Fault {
    #[default]
    None,
    /// The network fails.
    Fail,
    /// The network panics.
    Panic,
}

/// Frames of the walk.
pub const FRAMES: usize = 80;

/// A SLAM that was made.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub format: ImageFormat,
    pub intrinsics: Option<Intrinsics>,
}

/// Where the node's SLAM comes from, and what became of it.
#[derive(Clone)]
pub struct Room {
    pub backend: Arc<RoomBackend>,
    pub poses: Arc<Vec<Sim3>>,
    /// A lost camera is found wherever the map is, as with the bundled network.
    places: Arc<RetrievalModel>,
    /// Faults of the device.
    pub faults: Faults,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    made: Mutex<Vec<Made>>,
    fault: Mutex<Fault>,
    /// The mapper's network fails from now on.
    mapper_fails: AtomicBool,
    frames: AtomicUsize,
    pace: Mutex<Duration>,
}

impl Default for Room {
    fn default() -> Self {
        let poses = square_walk(FRAMES, 0.8);
        let mut backend = RoomBackend::new(SIZE, poses.clone(), Spoil::default());
        Self {
            places: vocabulary(&mut backend),
            backend: Arc::new(backend),
            poses: Arc::new(poses),
            faults: Faults::default(),
            state: Arc::default(),
        }
    }
}

impl Room {
    /// Every image takes so long.
    pub fn slow(pace: Duration) -> Self {
        let room = Self::default();
        *lock(&room.state.pace) = pace;
        room
    }

    /// What the node is given: its SLAM runs in the room.
    pub fn builder(&self) -> SlamBuilder {
        self.builder_of(false)
    }

    /// Whatever images come, SLAM sees the walk, to its end and back again and again.
    pub fn walking(&self) -> SlamBuilder {
        self.builder_of(true)
    }

    fn builder_of(&self, walking: bool) -> SlamBuilder {
        let room = self.clone();
        let make = move |setup: &Setup, format: &ImageFormat| -> Result<Device, DeviceError> {
            lock(&room.state.made).push(Made {
                format: *format,
                intrinsics: setup.intrinsics,
            });
            // Images are the network's, byte for byte: the first ones name the frame.
            let setup = Setup {
                preprocessor: None,
                places: Some(Arc::clone(&room.places)),
                ..setup.clone()
            };
            let network = Network {
                room: room.backend.share(),
                state: Arc::clone(&room.state),
                mappers: false,
            };
            let mut device = room.faults.over(cpu::device(Box::new(network), setup));
            if walking {
                device.tracking = Box::new(Walking {
                    device: device.tracking,
                    room: Arc::clone(&room.backend),
                    next: 0,
                });
            }
            Ok(device)
        };
        Slam::builder().on_device(Arc::new(make))
    }

    /// The image of frame `index`; `None`: one that shows nothing.
    pub fn image(&self, index: Option<usize>) -> RgbImage {
        match index {
            Some(index) => self.backend.image(index % FRAMES),
            None => self.backend.black_image(),
        }
    }

    /// What became of SLAM so far.
    pub fn made(&self) -> Vec<Made> {
        lock(&self.state.made).clone()
    }

    /// Images that SLAM has looked at.
    pub fn frames(&self) -> usize {
        self.state.frames.load(Ordering::Acquire)
    }

    /// What happens at the next image.
    pub fn next(&self, fault: Fault) {
        *lock(&self.state.fault) = fault;
    }

    /// The mapping thread fails at its next keyframe.
    pub fn break_mapper(&self) {
        self.state.mapper_fails.store(true, Ordering::Release);
    }
}

/// A device whose camera walks through the room, whatever it sees.
struct Walking {
    device: Box<dyn TrackingDevice>,
    room: Arc<RoomBackend>,
    next: usize,
}

impl TrackingDevice for Walking {
    fn describe(&self) -> String {
        self.device.describe()
    }
    fn shape(&self) -> &NetworkShape {
        self.device.shape()
    }
    fn encode(&mut self, _: &RawImage<'_>) -> Result<(), DeviceError> {
        let there_and_back = self.next % (2 * FRAMES - 2);
        let index = there_and_back.min(2 * FRAMES - 2 - there_and_back);
        self.next += 1;
        let image = self.room.image(index);
        self.device.encode(&RawImage::from(&image))
    }
    fn set_mask(&mut self, used: &[u8]) -> Result<(), DeviceError> {
        self.device.set_mask(used)
    }
    fn set_depth(&mut self, next: Option<NextDepth<'_>>) -> Result<(), DeviceError> {
        self.device.set_depth(next)
    }
    fn depth_found(&self) -> Option<Result<DepthScale, NoScale>> {
        self.device.depth_found()
    }
    fn keyframe_scale(&mut self) -> Result<Option<DepthScale>, DeviceError> {
        self.device.keyframe_scale()
    }
    fn decode_single(&mut self) -> Result<usize, DeviceError> {
        self.device.decode_single()
    }
    fn start_at(&mut self, keyframe_from_frame: &Sim3) -> Result<(), DeviceError> {
        self.device.start_at(keyframe_from_frame)
    }
    fn track(&mut self) -> Result<Outcome, DeviceError> {
        self.device.track()
    }
    fn start_keyframe(&mut self) -> Result<Handle, DeviceError> {
        self.device.start_keyframe()
    }
    fn stash_frame(&mut self) -> Result<Handle, DeviceError> {
        self.device.stash_frame()
    }
    fn track_against(&mut self, handle: &Handle) -> Result<(), DeviceError> {
        self.device.track_against(handle)
    }
    fn stash_pointmap(&mut self) -> Result<Handle, DeviceError> {
        self.device.stash_pointmap()
    }
    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError> {
        self.device.read_frame(dst)
    }
    fn read_seen(&mut self, dst: &mut SeenFrame) -> Result<(), DeviceError> {
        self.device.read_seen(dst)
    }
    fn self_test(&mut self) -> Result<(), DeviceError> {
        self.device.self_test()
    }
    fn times(&self) -> StageTimes {
        self.device.times()
    }
}

/// The room; the tracker's network has faults, and the mapper's too.
struct Network {
    room: Box<dyn Backend>,
    state: Arc<State>,
    mappers: bool,
}

fn failed() -> InferenceError {
    InferenceError::Runtime {
        runtime: "room",
        doing: "decoding",
        message: "the device is gone".into(),
    }
}

impl Backend for Network {
    fn shape(&self) -> &NetworkShape {
        self.room.shape()
    }

    fn name(&self) -> String {
        self.room.name()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            room: self.room.share(),
            state: Arc::clone(&self.state),
            mappers: true,
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        std::thread::sleep(*lock(&self.state.pace));
        self.state.frames.fetch_add(1, Ordering::AcqRel);
        let fault = std::mem::take(&mut *lock(&self.state.fault));
        match fault {
            Fault::None => self.room.encode(image, features),
            Fault::Fail => Err(failed()),
            Fault::Panic => panic!("the network fell over (as this test wants it to)"),
        }
    }

    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        if self.mappers && self.state.mapper_fails.load(Ordering::Acquire) {
            return Err(failed());
        }
        self.room.decode(a, b, out)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|e| e.into_inner())
}

/// Waits until `done`; fails the test with `what` if it never comes.
pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("waited in vain for {what}");
}

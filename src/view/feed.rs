//! What SLAM's caller hands to the server after each frame: numbers, and images and keyframes while a page is open.
//! Nothing here waits for the server, and a frame without a page does not allocate.

use super::meters::Meters;
use super::seen::SeenSlot;
use crate::compute::device::MemoryPool;
use crate::map::{FrameRecord, MapSnapshot, TrackingState};
use crate::slam::{MappingCounts, PoseTable, Slam, TrackedFrame};
use arc_swap::{ArcSwap, ArcSwapOption};
use heapless::Deque;
use nalgebra::{Isometry3, Vector3};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Positions that wait for the server, which takes them once a second at least: those of a fast camera.
const PASSED: usize = 512;
/// Minimum interval between two images of the page.
const IMAGE_PERIOD: Duration = Duration::from_millis(100);
/// Weight of the newest frame in the frame rate.
const RATE_WEIGHT: f64 = 0.1;

/// One SLAM and its map.
#[derive(Debug)]
pub struct Scene {
    /// Counts the SLAMs that the program has made.
    pub number: u64,
    pub poses: Arc<ArcSwap<PoseTable>>,
    /// Points of the page have more confidence than this.
    pub min_confidence: f32,
    /// Network, device and runtime, in words.
    pub engine: String,
    pub memory: Vec<MemoryPool>,
}

/// Where a frame's camera was.
#[derive(Debug, Clone, Copy)]
pub struct Passed {
    pub position: Vector3<f64>,
    pub submap: u32,
    pub lost: bool,
}

/// The last frame.
#[derive(Debug, Clone, Default)]
pub struct Now {
    /// Number of frames processed.
    pub frames: u64,
    pub record: Option<FrameRecord>,
    /// Frames per second, smoothed.
    pub rate: f64,
    pub counts: MappingCounts,
    /// Whether the map holds as many keyframes as it may.
    pub full: bool,
    /// When the frame was done.
    at: Option<Instant>,
}

impl Now {
    /// How long ago the last frame was done.
    pub fn age(&self) -> Option<Duration> {
        self.at.map(|at| at.elapsed())
    }
}

/// Keyframes that the server wants to read.
#[derive(Debug)]
pub struct Request {
    pub ids: Vec<u32>,
    /// Dropped by a request that was given up.
    pub asked: std::sync::Weak<()>,
    pub reply: SyncSender<MapSnapshot>,
}

/// An occupancy grid.
#[derive(Debug, Clone)]
pub struct GridImage {
    /// Occupancy in percent, row by row from the origin; -1 if it is unknown.
    pub cells: Vec<i8>,
    pub columns: usize,
    pub rows: usize,
    /// Edge of a cell in metres.
    pub resolution: f64,
    /// The corner of the first cell, in the grid's frame.
    pub origin: [f64; 2],
    /// The grid's frame in SLAM's world.
    pub world_from_grid: Isometry3<f64>,
}

/// Reads the splats of the map as they are now, 32 bytes each as [`Splat::packed`](crate::map::splat::Splat::packed) has
/// them; `None` if there is no map of splats any more. May wait for seconds.
#[derive(Clone)]
pub struct SplatReader(Arc<dyn Fn() -> Option<Vec<u8>> + Send + Sync>);

impl SplatReader {
    /// A reader.
    pub fn new(read: impl Fn() -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(super) fn read(&self) -> Option<Vec<u8>> {
        (self.0)()
    }
}

impl fmt::Debug for SplatReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SplatReader")
    }
}

/// Shared by the tracking thread and the server.
#[derive(Debug)]
pub struct Feed {
    meters: Meters,
    now: Mutex<Now>,
    passed: Mutex<Deque<Passed, PASSED>>,
    seen: SeenSlot,
    /// When the last image was handed over.
    pictured: Mutex<Option<Instant>>,
    scene: ArcSwapOption<Scene>,
    scenes: AtomicU64,
    /// Number of open pages.
    watchers: AtomicUsize,
    wanted: Mutex<Option<Request>>,
    wants: AtomicBool,
    grid: Mutex<Option<GridImage>>,
    splats: Mutex<Option<SplatReader>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    /// A feed whose metrics are in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        Self {
            meters: Meters::new(registry),
            now: Mutex::default(),
            passed: Mutex::default(),
            seen: SeenSlot::default(),
            pictured: Mutex::default(),
            scene: ArcSwapOption::empty(),
            scenes: AtomicU64::new(0),
            watchers: AtomicUsize::new(0),
            wanted: Mutex::default(),
            wants: AtomicBool::new(false),
            grid: Mutex::default(),
            splats: Mutex::default(),
        }
    }

    /// A SLAM was made, whose frames follow.
    pub fn start(&self, slam: &Slam) {
        let number = self.scenes.fetch_add(1, Ordering::Relaxed) + 1;
        self.scene.store(Some(Arc::new(Scene {
            number,
            poses: slam.poses(),
            min_confidence: slam.config().output.c_conf,
            engine: slam.about().description.clone(),
            memory: slam.memory(),
        })));
        lock(&self.passed).clear();
        *lock(&self.grid) = None;
    }

    /// A frame was processed. Neither waits nor, unless a page is open, allocates.
    pub fn frame(&self, tracked: &TrackedFrame, slam: &mut Slam) {
        let record = &tracked.record;
        self.meters.frame(record);
        let number = self.note(record, slam);
        let lost = record.state == TrackingState::Lost;
        if record.world_from_camera.is_finite() {
            let mut passed = lock(&self.passed);
            if passed.is_full() {
                passed.pop_front();
            }
            // The queue has room now.
            let _ = passed.push_back(Passed {
                position: record.world_from_camera.translation,
                submap: record.submap,
                lost,
            });
        }
        if self.watched() {
            self.picture(number, record, slam);
        }
        self.serve(slam);
    }

    /// Stores the numbers of a frame; returns its own.
    fn note(&self, record: &FrameRecord, slam: &Slam) -> u64 {
        let at = Instant::now();
        let (counts, full) = (slam.mapping_counts(), slam.is_full());
        let mut now = lock(&self.now);
        if let Some(before) = now.at {
            let rate = 1.0 / at.duration_since(before).as_secs_f64().max(1e-6);
            now.rate = match now.rate > 0.0 {
                true => now.rate + RATE_WEIGHT * (rate - now.rate),
                false => rate,
            };
        }
        now.frames += 1;
        now.record = Some(record.clone());
        (now.counts, now.full, now.at) = (counts, full, Some(at));
        now.frames
    }

    /// Hands the frame's image over, if one is due.
    fn picture(&self, number: u64, record: &FrameRecord, slam: &mut Slam) {
        let mut pictured = lock(&self.pictured);
        if pictured.is_some_and(|at| at.elapsed() < IMAGE_PERIOD) {
            return;
        }
        let mut seen = self.seen.empty();
        if let Err(error) = slam.read_seen(&mut seen.content) {
            // If this is not a transient error, the next frame fails too.
            tracing::debug!("the page shows no image: {error}");
            return self.seen.give_back(seen);
        }
        let ((width, height), _) = slam.network_image();
        seen.number = number;
        seen.size = (width, height);
        seen.tracked = record.state == TrackingState::Tracking && record.iterations > 0;
        self.seen.put(seen);
        *pictured = Some(Instant::now());
    }

    /// Has keyframes read that the server wants; for a caller without frames, too. Never waits.
    pub fn serve(&self, slam: &mut Slam) {
        if !self.wants.swap(false, Ordering::Acquire) {
            return;
        }
        if let Some(Request { ids, asked, reply }) = lock(&self.wanted).take() {
            // If this is refused, the reply is dropped, which the server notices.
            slam.read_keyframes_while(
                asked,
                ids,
                Box::new(move |map| {
                    // There is room for the one reply.
                    let _ = reply.try_send(map);
                }),
            );
        }
    }

    /// Shows a grid.
    pub fn show_grid(&self, grid: GridImage) {
        *lock(&self.grid) = Some(grid);
    }

    /// Has pages show the splats that `reader` reads.
    pub fn show_splats(&self, reader: SplatReader) {
        *lock(&self.splats) = Some(reader);
    }

    /// Whether there are splats to show.
    pub(super) fn has_splats(&self) -> bool {
        lock(&self.splats).is_some()
    }

    pub(super) fn splats(&self) -> Option<SplatReader> {
        lock(&self.splats).clone()
    }

    /// Whether a page is open.
    pub fn watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// The number of open pages, for the server.
    pub(super) fn watchers(&self) -> &AtomicUsize {
        &self.watchers
    }

    pub(super) fn now(&self) -> Now {
        lock(&self.now).clone()
    }

    pub(super) fn scene(&self) -> Option<Arc<Scene>> {
        self.scene.load_full()
    }

    pub(super) fn meters(&self) -> &Meters {
        &self.meters
    }

    pub(super) fn seen(&self) -> &SeenSlot {
        &self.seen
    }

    pub(super) fn take_grid(&self) -> Option<GridImage> {
        lock(&self.grid).take()
    }

    /// Moves the positions that passed to `to`.
    pub(super) fn take_passed(&self, to: &mut Vec<Passed>) {
        let mut passed = lock(&self.passed);
        while let Some(one) = passed.pop_front() {
            to.push(one);
        }
    }

    /// Asks tracking for keyframes.
    pub(super) fn request(&self, request: Request) {
        *lock(&self.wanted) = Some(request);
        self.wants.store(true, Ordering::Release);
    }
}

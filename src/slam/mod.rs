//! SLAM: from images to a map. [`Slam::process`] advances the state machine by one frame; all bulk
//! data, and everything computed with it, is behind [`crate::compute::device`].
//!
//! There are two sides, which run inline or on two threads:
//!
//! * tracking: [`Slam`] with `state`, `tracker`, `odometry` and `history`; `map_link` is its end of the
//!   queue;
//! * mapping: `mapper` with `graph`, `loop_closure`, `relocaliser` and `optimiser`, which `mapper_thread`
//!   runs; it publishes poses in the `pose_table`.

mod about;
mod belief;
mod bounds;
mod consistency;
mod counts;
mod depth;
mod edges;
mod error;
mod events;
mod factors;
mod fit;
#[cfg(test)]
mod fixtures;
pub mod fold;
mod frame;
mod frozen_map;
mod graph;
mod hint;
mod history;
mod loading;
mod loans;
mod loop_closure;
mod loop_search;
mod mailbox;
mod map_io;
mod map_keeper;
mod map_link;
mod map_source;
mod mapper;
mod mapper_thread;
mod mask;
mod metric;
mod nearness;
mod odometry;
mod optimiser;
mod overlaps;
mod pose_table;
mod probe;
mod reach;
mod redundancy;
mod relocaliser;
mod removal;
mod removed;
mod reuse;
mod revisits;
mod sensing;
mod sensors;
mod skeleton;
mod sketch;
mod snapshot;
mod state;
mod tracker;
mod trial;
mod uncertainty;
mod unmatched;
pub mod window;
mod witnesses;

pub use about::{About, Note};
pub use counts::MappingCounts;
pub use error::SlamError;
pub use fit::{SavedMapError, Unfit};
pub use frame::{Frame, Pace, TrackedFrame};
pub use loading::MapMode;
pub use map_io::{MapLabel, SavedMap};
pub use map_source::MapSource;
pub use metric::depth_timer::FrameDepth;
pub use metric::gravity::Up;
pub use metric::gyro::{GyroError, GyroNoise};
pub use metric::scale::{ScaleEstimate, ScaleSource};
pub use metric::wheels::OdometryError;
pub use pose_table::PoseTable;
pub use sensors::{Bridge, MotionStatus};
pub use uncertainty::Covariance6;

use crate::compute::device::{
    ContentFormats, Device, DeviceError, FramePoints, LostReason, MemoryPool, SeenFrame,
};
use crate::config::Config;
use crate::geometry::{Intrinsics, Sim3};
use crate::image::NetworkView;
use crate::image::encoding::RawImage;
use crate::image::mask::MaskReader;
use crate::map::saved::{ImageShape, SavedViews};
use crate::map::store::Monitor;
use crate::map::{Content, FrameRecord, KeyframeRecord, KeyframeView, MapSnapshot, ReadKeyframe};
use crate::time::{Pulse, StageTimes, millis};
use arc_swap::ArcSwap;
use counts::SharedCounts;
use frame::FrameOutcome;
use hint::PlaceHint;
use history::History;
use loading::Loading;
use mailbox::Look;
use map_link::MapLink;
use mapper::Mapper;
use metric::depth::DepthWatch;
use metric::depth_timer::DepthTimer;
use pose_table::KeyframePoses;
use relocaliser::Reply;
use sensing::Sensed;
use state::{ActiveKeyframe, State};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tracker::{Loss, Step, Tracker};

/// Receives the result of saving a map, on the mapping thread.
pub type OnSaved = Box<dyn FnOnce(Result<SavedMap, SavedMapError>) + Send>;

/// Receives the result of a save and the map that was saved, on the mapping thread.
pub type OnOutline = Box<dyn FnOnce(Result<(SavedMap, MapSnapshot), SavedMapError>) + Send>;

/// Provides metadata of a map, on the mapping thread, or an error.
pub type LabelMaker = Box<dyn FnOnce() -> Result<MapLabel, String> + Send>;

/// Receives a map file that was checked, on the mapping thread.
pub type OnChecked = Box<dyn FnOnce(Result<Box<MapSource>, SavedMapError>) + Send>;

/// Receives a copy of the map, on the mapping thread.
pub type OnMap = Box<dyn FnOnce(MapSnapshot) + Send>;

/// SLAM from images to a map.
pub struct Slam {
    state: State,
    tracker: Tracker,
    map: MapLink,
    history: History,
    /// `None` without `tracking.masks`.
    masks: Option<MaskReader>,
    intrinsics: Option<Intrinsics>,
    /// How the network's images show the camera's.
    view: Option<NetworkView>,
    max_keyframes: usize,
    mapping_counts: SharedCounts,
    /// The map file that is being loaded.
    loading: Option<Loading>,
    /// The result of a load that the caller has not taken.
    loaded: Option<Result<SavedMap, SavedMapError>>,
    /// The file that the map is written to as it is made.
    store: Option<Monitor>,
    formats: ContentFormats,
    config: Arc<Config>,
    about: About,
    depth: DepthWatch,
    /// Whether the depth of the next frame, or that it has none, is set.
    depth_is_set: bool,
    /// `None` without `depth.use` or a calibration.
    depth_timer: Option<DepthTimer>,
}

impl Slam {
    /// Creates SLAM on a device created for the same configuration and intrinsics; with intrinsics
    /// it is calibrated.
    ///
    /// # Errors
    /// If the mapping thread cannot be started.
    pub fn new(
        config: &Config,
        pace: Pace,
        device: Device,
        intrinsics: Option<Intrinsics>,
    ) -> Result<Self, SlamError> {
        let poses = KeyframePoses::new();
        let mapper = Mapper::new(device.mapping, config, Arc::clone(poses.shared()));
        let max_keyframes = config.local_opt.max_keyframes;
        let formats = mapper.device().content_formats();
        let shape = device.tracking.shape();
        let size = (shape.width, shape.height);
        let depth_timer = intrinsics.filter(|_| config.depth.enabled).map(|camera| {
            DepthTimer::new(size, camera, depth::limits(config), config.depth.offset)
        });
        let masks = (config.tracking.masks).then(|| MaskReader::new(None, size));
        Ok(Self {
            state: State::Empty,
            tracker: Tracker::new(device.tracking, config),
            mapping_counts: mapper.shared_counts(),
            map: MapLink::new(mapper, poses, config.threads, pace, max_keyframes)?,
            history: History::new(pace),
            masks,
            intrinsics,
            view: None,
            max_keyframes,
            loading: None,
            loaded: None,
            store: None,
            formats,
            config: Arc::new(config.clone()),
            about: About::default(),
            depth: DepthWatch::default(),
            depth_is_set: false,
            depth_timer,
        })
    }

    /// Processes the next frame.
    ///
    /// An unusable image: the next one may be usable. A failure of the network, the device or the
    /// mapping thread: SLAM cannot continue, but results so far remain available.
    pub fn process(&mut self, frame: &Frame<'_>) -> Result<TrackedFrame, SlamError> {
        self.process_before(frame, None)
    }

    /// Like [`Slam::process`], where the image of the frame after this one is known already, and stays in the same memory
    /// until it is processed: a GPU then encodes it while it tracks this one. The results are the same.
    ///
    /// # Errors
    /// See [`Slam::process`]; none about the next image.
    pub fn process_before(
        &mut self,
        frame: &Frame<'_>,
        next: Option<&RawImage<'_>>,
    ) -> Result<TrackedFrame, SlamError> {
        let start = Instant::now();
        let answer = self.map.poll()?;
        // A load comes before the answers about its map.
        if let Some(loaded) = self.map.loaded() {
            self.settle_load(loaded);
        }
        if let Some(answer) = answer {
            self.accept(answer)?;
        }
        let is_carried = self.encode(frame)?;
        if let Some(next) = next {
            self.tracker.expect(next)?;
        }
        let outcome = self.advance(frame);
        let seen = outcome.as_ref().copied();
        let seen = seen.unwrap_or(FrameOutcome::lost());
        let tracked = self.record(frame, seen, start);
        self.note_depth(frame, is_carried, (seen.step.as_ref(), seen.keyframe));
        outcome.map(|_| tracked)
    }

    /// Advances the state machine by the encoded frame.
    fn advance(&mut self, frame: &Frame<'_>) -> Result<FrameOutcome, SlamError> {
        let number = self.history.next_number();
        let (tracker, map) = (&mut self.tracker, &mut self.map);
        let (state, outcome) = match self.state {
            State::Empty => tracker.start_map(frame, map)?,
            State::Tracking(active) => match tracker.track(frame, number, active, map)? {
                Ok(step) => step,
                Err(loss) => self.lose(frame, &active, &loss)?,
            },
            State::Lost(search) => tracker.search(frame, number, search, map)?,
        };
        self.state = state;
        Ok(outcome)
    }

    /// Continues after a frame that could not be tracked: restarts if the map has only a bad first
    /// keyframe, otherwise searches.
    fn lose(
        &mut self,
        frame: &Frame<'_>,
        active: &ActiveKeyframe,
        loss: &Loss,
    ) -> Result<Step, SlamError> {
        tracing::info!("frame {} lost: {}", frame.index, loss.reason);
        let number = self.history.next_number();
        let (tracker, map) = (&mut self.tracker, &mut self.map);
        let (state, outcome) =
            if active.is_bad_start(map.keyframes_made()) && map.failure().is_none() {
                self.state = State::Empty;
                self.history.all_lost();
                tracker.sensors_mut().forget_map();
                map.reset(map.poses().camera())?;
                tracker.start_map(frame, map)?
            } else {
                tracker.leave(active, map)?;
                self.state = State::lost(active);
                match (&loss.reason, self.state) {
                    (LostReason::Unexposed(_), state) => (state, FrameOutcome::lost()),
                    (LostReason::UnusableOutput(_), state) => {
                        tracker.blank_frame()?;
                        (state, FrameOutcome::lost())
                    }
                    (_, State::Lost(search)) => tracker.relocalise(frame, number, search, map)?,
                    (_, state) => (state, FrameOutcome::lost()),
                }
            };
        let match_fraction = loss.match_fraction;
        let outcome = FrameOutcome {
            match_fraction,
            ..outcome
        };
        Ok((state, outcome))
    }

    /// Handles the mapper's reply to an earlier frame's request.
    fn accept(&mut self, answer: Reply) -> Result<(), SlamError> {
        let question = self.state.question();
        let (state, found) = self.tracker.accept(self.state, answer, &mut self.map)?;
        self.state = state;
        let (Some(question), Some(place)) = (question, found) else {
            return Ok(());
        };
        match question.then {
            Some(then) => {
                let there = &place.anchor;
                self.tracker.odometry().change_keyframe(&then, there);
                self.tracker.sensors_mut().change_keyframe(&then, there);
            }
            None => {
                self.history.relocalised(question.frame, place);
                if question.frame + 1 == self.history.next_number() {
                    self.tracker.odometry().move_to(Some(place.anchor));
                }
                if let Some(stamp) = self.history.stamp_of(question.frame) {
                    self.locate_earlier(stamp, &place);
                }
            }
        }
        Ok(())
    }

    /// Appends the frame to the history, once everything about it is known.
    fn record(&mut self, frame: &Frame<'_>, outcome: FrameOutcome, start: Instant) -> TrackedFrame {
        let anchor = outcome.anchor;
        self.tracker.odometry().move_to(anchor);
        let Sensed { bridge, step } = self.sense(frame.stamp, &outcome);
        // Odometry moves the camera while it sees nothing; the frame has no place in the map by that.
        let camera = anchor.or(bridge.map(|(expected, _)| expected));
        let record = FrameRecord {
            index: frame.index,
            stamp: frame.stamp,
            state: outcome.state,
            world_from_camera: self.map.move_camera(camera.as_ref()),
            keyframe: outcome.keyframe,
            submap: anchor.map_or(0, |a| self.map.poses().submap_of(a.keyframe)),
            match_fraction: outcome.match_fraction,
            unique_fraction: outcome.unique_fraction,
            iterations: outcome.iterations,
            times: StageTimes {
                mapping: self.map.waited(),
                total: millis(start),
                ..self.tracker.device().times()
            },
        };
        self.history
            .record(&record, anchor, self.map.keyframes_made());
        self.map.set_oldest_made(self.history.oldest_made());
        TrackedFrame {
            record,
            step: outcome.step.or(step),
            covariance: outcome.covariance,
            bridge: bridge.map(|(_, bridge)| bridge),
            up: self.up(),
        }
    }

    /// Waits for all mapping and brings the map up to date. Call it once, after the last frame.
    ///
    /// # Errors
    /// An error that no frame has returned yet; the map remains as the mapping side left it.
    pub fn complete(&mut self) -> Result<(), SlamError> {
        if self.state.question().is_some()
            && let Some(answer) = self.map.wait_for_reply()?
        {
            self.accept(answer)?;
        }
        let left = match self.state {
            State::Tracking(active) => {
                self.state = State::lost(&active);
                self.tracker.leave(&active, &mut self.map)
            }
            State::Empty | State::Lost(_) => Ok(()),
        };
        self.map.finish().and(left)
    }

    /// The map and the pose of every frame, composed with the current poses of its keyframes
    /// (docs/reference-defects.md, B46). Complete after [`Slam::complete`]; before that, keyframes
    /// held by the mapping thread are missing.
    pub fn snapshot(&self) -> MapSnapshot {
        let keyframes = |m: &Mapper| snapshot::keyframes(m.graph(), m.device(), |_| true);
        self.snapshot_of(self.map.mapper().map(keyframes).unwrap_or_default())
    }

    /// Like [`Slam::snapshot`], with keyframes that `content` says where to read.
    pub fn outline(&self, content: impl Fn() -> Content) -> MapSnapshot {
        let keyframes = |m: &Mapper| snapshot::listed(m.graph(), |_| true, |_| content());
        self.snapshot_of(self.map.mapper().map(keyframes).unwrap_or_default())
    }

    /// Image and points of a keyframe, after [`Slam::complete`]; empty for one that the map does not have.
    ///
    /// # Errors
    /// If the device has lost the map.
    pub fn keyframe(&self, id: u32) -> Result<KeyframeView, DeviceError> {
        match self.map.mapper() {
            Some(mapper) => snapshot::view(mapper.device(), id),
            None => Ok(KeyframeView::default()),
        }
    }

    fn image_shape(&self) -> (ImageShape, Option<Intrinsics>) {
        let shape = ImageShape::from(self.tracker.device().shape());
        (shape, self.intrinsics)
    }

    fn snapshot_of(&self, keyframes: Vec<KeyframeRecord>) -> MapSnapshot {
        let poses = self.map.poses();
        let frames = self.history.iter().map(|(mut record, anchor)| {
            if let Some(anchor) = anchor {
                let pose = poses.find(&anchor);
                record.world_from_camera = pose.unwrap_or(record.world_from_camera);
                record.submap = poses.submap_of(anchor.keyframe);
            }
            record
        });
        MapSnapshot {
            intrinsics: self.intrinsics,
            keyframes,
            edges: poses.shared().load().edges.clone(),
            frames: frames.collect(),
        }
    }

    /// Counters of the mapping side after its last event, and postponed keyframes.
    pub fn mapping_counts(&self) -> MappingCounts {
        MappingCounts {
            postponed_keyframes: self.map.postponed(),
            ..self.mapping_counts.read()
        }
    }

    /// Access to the most recently published keyframe poses.
    pub fn poses(&self) -> Arc<ArcSwap<PoseTable>> {
        Arc::clone(self.map.poses().shared())
    }

    /// Replaces `dst` by the network's pointmap of the last frame, before scale: multiply by the
    /// scale of the frame's pose for metres.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), SlamError> {
        Ok(self.tracker.device_mut().read_frame(dst)?)
    }

    /// Replaces `dst` by the last frame's image, as the network saw it, and its matches with the active keyframe, which
    /// are valid for a frame that was tracked.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn read_seen(&mut self, dst: &mut SeenFrame) -> Result<(), SlamError> {
        Ok(self.tracker.device_mut().read_seen(dst)?)
    }

    /// What the device's memory is used for; empty on the CPU.
    pub(crate) fn memory(&self) -> Vec<MemoryPool> {
        self.tracker.device().memory()
    }

    /// Width and height of the network's images, and their intrinsics if known.
    pub fn network_image(&self) -> ((usize, usize), Option<Intrinsics>) {
        let shape = self.tracker.device().shape();
        ((shape.width, shape.height), self.intrinsics)
    }

    /// Sets whether frames may become keyframes (the default). Otherwise the map is frozen, and the
    /// search for a lost camera never gives up.
    pub fn set_growing(&mut self, grows: bool) {
        self.map.set_growing(grows);
    }

    /// Says where the camera is, in the map's world: while it is lost, the next frames are searched for
    /// near there first, then everywhere. The map does not move.
    pub fn hint_place(&mut self, world_from_camera: Sim3) {
        self.map.set_hint(Some(PlaceHint::new(world_from_camera)));
    }

    /// Whether the map has reached `local_opt.max_keyframes`: tracking continues in it, but it no
    /// longer grows.
    pub fn is_full(&self) -> bool {
        self.map.is_full()
    }

    /// The error after which a live camera's map no longer grows: tracking and localisation continue
    /// in the map as it is, which can be read and saved.
    pub fn mapping_failure(&self) -> Option<&str> {
        self.map.failure()
    }

    /// For how long the mapping thread has been at one event; `None` without a thread.
    pub fn mapping_pulse(&self) -> Option<Arc<Pulse>> {
        self.map.pulse()
    }

    /// Calls `reply`, on the mapping thread, with the requested keyframes that exist and nothing
    /// else of the map. Never waits: returns `false` if too many readers are waiting.
    pub fn read_keyframes(&mut self, ids: Vec<u32>, reply: OnMap) -> bool {
        let look = Look::new(self.keyframe_reader(ids, reply));
        self.map.look(look)
    }

    /// Like [`Slam::read_keyframes`], unless all other references to `asked` are dropped before.
    pub fn read_keyframes_while(&mut self, asked: Weak<()>, ids: Vec<u32>, reply: OnMap) -> bool {
        let look = Look::while_asked(asked, self.keyframe_reader(ids, reply));
        self.map.look(look)
    }

    fn keyframe_reader(
        &self,
        ids: Vec<u32>,
        reply: OnMap,
    ) -> impl FnOnce(&mut Mapper) + Send + 'static {
        let intrinsics = self.intrinsics;
        move |mapper| {
            let wanted = |id| ids.contains(&id);
            reply(MapSnapshot {
                intrinsics,
                keyframes: snapshot::keyframes(mapper.graph(), mapper.device(), wanted),
                ..Default::default()
            });
        }
    }

    /// Calls `reply`, on the mapping thread, with the whole map and all frames so far. Never waits:
    /// returns `false` if too many readers are waiting.
    pub fn read_map(&mut self, reply: OnMap) -> bool {
        let mut map = self.snapshot();
        self.map.look(Look::new(move |mapper| {
            map.keyframes = snapshot::keyframes(mapper.graph(), mapper.device(), |_| true);
            reply(map);
        }))
    }

    /// Discards the map and all frames; the next frame starts a new map. Never waits: work that the
    /// mapping side has not started is dropped, and current work ends as soon as possible.
    ///
    /// # Errors
    /// If the mapping side has failed.
    pub fn reset(&mut self) -> Result<(), SlamError> {
        self.state = State::Empty;
        self.history.clear();
        self.tracker.odometry().move_to(None);
        self.tracker.sensors_mut().forget_map();
        (self.loading, self.loaded) = (None, None);
        self.map.reset(Sim3::identity())
    }

    /// Like [`Slam::save_map_with`], and hands the map out as it was saved, with all frames so far: its keyframes' images
    /// and points are read from the file.
    pub fn save_and_outline(&mut self, path: PathBuf, label: LabelMaker, reply: OnOutline) -> bool {
        let mut map = self.snapshot_of(Vec::new());
        let image = self.image_shape();
        self.map.look(Look::new(move |mapper| {
            let label = label().map_err(SavedMapError::Label);
            let saved = label.and_then(|label| mapper.save(&path, image, label));
            reply(saved.and_then(|saved| {
                let graph = mapper.graph();
                let ids = graph.keyframes().iter().map(|k| k.info.id);
                let views: Arc<dyn ReadKeyframe> = Arc::new(SavedViews::open(&saved.path, ids)?);
                let content = |_| Content::Elsewhere(Arc::clone(&views));
                map.keyframes = snapshot::listed(graph, |_| true, content);
                Ok((saved, map))
            }));
        }))
    }

    /// Saves the map to the file `path`, in an existing folder, on the mapping thread, which does
    /// nothing else meanwhile; tracking continues. The active keyframe is saved with its initial
    /// points. Never waits: returns `false` if too many readers are waiting.
    pub fn save_map_with(&mut self, path: PathBuf, label: LabelMaker, reply: OnSaved) -> bool {
        let image = self.image_shape();
        self.map.look(Look::new(move |mapper| {
            let label = label().map_err(SavedMapError::Label);
            reply(label.and_then(|label| mapper.save(&path, image, label)));
        }))
    }
}

//! The state machine (spec 8.2): what happens to each frame, and who is told.

use super::keyframe::{ActiveKeyframe, Anchor, KeyframeData, Pointmap, PoseTable};
use super::mapper::{KeyframeEvent, Mapper, MappingCounts, RelocaliseReply, RelocaliseRequest};
use super::mapping::Mapping;
use super::retrieval::RetrievalModel;
use super::tracker::{LostReason, Outcome, Tracked, Tracker, millis};
use crate::compute::fusion::FusedPointmap;
use crate::config::{Config, Threads};
use crate::geometry::{Intrinsics, Sim3};
use crate::image::RgbImage;
use crate::inference::{Backend, InferenceError, self_test};
use crate::map::{FrameRecord, MapSnapshot, StageTimes, TrackingState};
use crate::time::Stamp;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::Instant;

/// One preprocessed image.
#[derive(Debug, Clone)]
pub struct FrameInput {
    /// Index in the source.
    pub index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// Of the network's input size.
    pub image: Arc<RgbImage>,
    /// What preprocessing took, in milliseconds; goes into the record.
    pub preprocess_ms: f64,
}

/// Whether frames may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// Files: every frame counts, so a full mapping queue or a relocalisation is waited for.
    #[default]
    EveryFrame,
    /// A live camera: tracking never waits; a keyframe is postponed while mapping is behind.
    Live,
}

/// Why the system stopped.
#[derive(Debug, thiserror::Error)]
pub enum SlamError {
    /// The network could not be run.
    #[error(transparent)]
    Inference(#[from] InferenceError),
    /// The mapping thread is no more.
    #[error("the mapping thread failed: {0}")]
    Thread(String),
    /// The map holds as many keyframes as it may (B50).
    #[error(
        "the map is full: it holds the {keyframes} keyframes of local_opt.max_keyframes; raise that, or start a new run"
    )]
    Full {
        /// `local_opt.max_keyframes`
        keyframes: usize,
    },
    /// An image of another size than the network's.
    #[error("frame {index}: expected a {}×{} image, found {}×{}", expected.0, expected.1, found.0, found.1)]
    ImageSize {
        /// The frame.
        index: usize,
        /// The network's input.
        expected: (usize, usize),
        /// The image.
        found: (usize, usize),
    },
}

/// Frames that are recorded without allocating; then the record doubles, so that a frame that
/// allocates for it becomes ever rarer.
const RECORDS: usize = 4096;

/// Frames in a row without one usable pixel after which the network is tested again: a covered lens
/// passes, a network that lost its weights is an error instead of a search without end.
const BLANK_FRAMES: usize = 10;

struct Entry {
    record: FrameRecord,
    /// Where the frame is, relative to a keyframe; `None` while lost.
    anchor: Option<Anchor>,
}

/// SLAM from images to a map.
pub struct System {
    config: Arc<Config>,
    pace: Pace,
    backend: Box<dyn Backend>,
    intrinsics: Option<Intrinsics>,
    tracker: Tracker,
    mapping: Mapping,
    table: Arc<ArcSwap<PoseTable>>,
    active: Option<ActiveKeyframe>,
    /// Keyframes that the table does not know yet.
    pending: Vec<(u32, Anchor)>,
    /// The last pointmap of a keyframe that tracking left, until the mapper gets it.
    retired: Option<(u32, Pointmap)>,
    next_id: u32,
    lost_tries: usize,
    /// Frames in a row of which the network showed nothing.
    blank: usize,
    /// The frame whose relocalisation the mapping thread is working on, by its place in `entries`.
    asked: Option<usize>,
    last_pose: Sim3,
    entries: Vec<Entry>,
}

impl System {
    /// A system for images of the backend's input size. `intrinsics` are used when
    /// `config.use_calib`; `retrieval` is needed for loop closures and for relocalisation beyond
    /// the newest keyframes.
    pub fn new(
        config: Config,
        pace: Pace,
        backend: Box<dyn Backend>,
        retrieval: Option<Arc<RetrievalModel>>,
        intrinsics: Option<Intrinsics>,
    ) -> Result<Self, SlamError> {
        let config = Arc::new(config);
        let intrinsics = intrinsics.filter(|_| config.use_calib);
        let table = Arc::new(ArcSwap::from_pointee(PoseTable::default()));
        let mapper = Mapper::new(
            backend.share(),
            Arc::clone(&config),
            intrinsics,
            retrieval,
            Arc::clone(&table),
        );
        let mapping = match config.threads {
            Threads::Single => Mapping::Inline(Box::new(mapper)),
            Threads::Pipelined => Mapping::spawn(mapper)?,
        };
        Ok(Self {
            tracker: Tracker::new(backend.shape(), intrinsics),
            config,
            pace,
            backend,
            intrinsics,
            mapping,
            table,
            active: None,
            pending: Vec::new(),
            retired: None,
            next_id: 0,
            lost_tries: 0,
            blank: 0,
            asked: None,
            last_pose: Sim3::identity(),
            entries: Vec::with_capacity(RECORDS),
        })
    }

    /// Takes the next frame and says what became of it. An error ends the run; what was computed
    /// before it stays available through [`System::finish`] and [`System::snapshot`].
    pub fn process(&mut self, input: FrameInput) -> Result<FrameRecord, SlamError> {
        let start = Instant::now();
        let shape = self.backend.shape();
        let (expected, found) = (
            (shape.width, shape.height),
            (input.image.width, input.image.height),
        );
        if expected != found {
            return Err(SlamError::ImageSize {
                index: input.index,
                expected,
                found,
            });
        }
        self.mapping.check()?;
        let known = self.table.load().poses.len();
        self.pending.retain(|(id, _)| *id as usize >= known);
        let mut times = StageTimes {
            preprocess: input.preprocess_ms,
            ..StageTimes::default()
        };
        if self.asked.is_some() {
            self.collect_reply(false)?;
        }
        let encode = Instant::now();
        self.backend
            .encode(&input.image, &mut self.tracker.features)?;
        times.encode = millis(encode);

        self.entries.push(Entry {
            record: FrameRecord {
                index: input.index,
                stamp: input.stamp,
                state: TrackingState::Lost,
                world_from_camera: self.last_pose,
                keyframe: None,
                submap: 0,
                match_fraction: 0.0,
                unique_fraction: 0.0,
                iterations: 0,
                times,
            },
            anchor: None,
        });
        match self.active.take() {
            None if self.entries.len() == 1 || self.next_id == 0 => {
                self.initialise(&input, &mut times)?
            }
            None => {
                let unusable = self.tracker.mono(self.backend.as_mut(), &mut times)?;
                match unusable {
                    Some(reason) => self.still_lost(&reason)?,
                    None => self.relocalise(&input, None, &mut times)?,
                }
            }
            Some(active) => self.track(&input, active, &mut times)?,
        }
        times.total = millis(start) + input.preprocess_ms;
        let Some(entry) = self.entries.last_mut() else {
            return Err(SlamError::Thread("a frame's record is missing".into()));
        };
        entry.record.times = times;
        let anchor = entry.anchor;
        if let Some(anchor) = anchor {
            self.last_pose = self.world_from(&anchor);
        }
        let submap = anchor.map(|a| self.submap_of(a.keyframe));
        let last_pose = self.last_pose;
        let Some(entry) = self.entries.last_mut() else {
            return Err(SlamError::Thread("a frame's record is missing".into()));
        };
        entry.record.world_from_camera = last_pose;
        entry.record.submap = submap.unwrap_or(entry.record.submap);
        Ok(entry.record.clone())
    }

    /// Waits for all mapping and brings the map up to date. Call once after the last frame.
    pub fn finish(&mut self) -> Result<(), SlamError> {
        if self.asked.is_some() {
            self.collect_reply(true)?;
        }
        let last = self.active.take().map(finished).or(self.retired.take());
        self.mapping.finish(last)
    }

    /// The map and every frame's pose, recomposed from the keyframes' present poses (B46). Complete
    /// after [`System::finish`]; before it, keyframes that mapping still holds are missing.
    pub fn snapshot(&self) -> MapSnapshot {
        let table = self.table.load();
        let frames = self.entries.iter().map(|entry| {
            let mut record = entry.record.clone();
            if let Some(anchor) = &entry.anchor {
                record.world_from_camera = self.world_from(anchor);
                record.submap = self.submap_of(anchor.keyframe);
            }
            record
        });
        MapSnapshot {
            intrinsics: self.intrinsics,
            keyframes: self
                .mapping
                .mapper()
                .map(Mapper::records)
                .unwrap_or_default(),
            edges: table.edges.clone(),
            frames: frames.collect(),
        }
    }

    /// Counters of the mapping side; `None` while it runs in its thread.
    pub fn mapping_counts(&self) -> Option<MappingCounts> {
        self.mapping.mapper().map(Mapper::counts)
    }

    fn initialise(&mut self, input: &FrameInput, times: &mut StageTimes) -> Result<(), SlamError> {
        if let Some(reason) = self.tracker.mono(self.backend.as_mut(), times)? {
            return self.still_lost(&reason);
        }
        self.start_submap(input, times)
    }

    /// A keyframe that nothing connects to what was before, at the last known pose.
    fn start_submap(
        &mut self,
        input: &FrameInput,
        times: &mut StageTimes,
    ) -> Result<(), SlamError> {
        let pointmap = self.tracker.pointmap_of_view(&self.config);
        let data = self.keyframe_data(input);
        (self.lost_tries, self.blank) = (0, 0);
        self.hand_over(data, pointmap, None, None, times)?;
        self.note(TrackingState::Initialising, Sim3::identity());
        Ok(())
    }

    fn track(
        &mut self,
        input: &FrameInput,
        mut active: ActiveKeyframe,
        times: &mut StageTimes,
    ) -> Result<(), SlamError> {
        let outcome = self
            .tracker
            .track(self.backend.as_mut(), &mut active, &self.config, times);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                // Its pointmap is still to go into the map.
                self.active = Some(active);
                return Err(error.into());
            }
        };
        match outcome {
            Outcome::Tracked(tracked) => self.tracked(input, active, tracked, times),
            Outcome::Lost {
                reason,
                match_fraction,
            } => {
                tracing::info!("frame {} lost: {reason}", input.index);
                if let Some(entry) = self.entries.last_mut() {
                    entry.record.match_fraction = match_fraction;
                }
                self.lost_tries = 0;
                if self.next_id == 1 && active.tracked == 0 {
                    // Nothing was ever tracked: the first frame was a bad start. Start again here.
                    return self.start_again(input, times);
                }
                if matches!(reason, LostReason::UnusableOutput(_)) {
                    self.retire(active);
                    return self.blank_frame();
                }
                self.relocalise(input, Some(active), times)
            }
        }
    }

    fn tracked(
        &mut self,
        input: &FrameInput,
        active: ActiveKeyframe,
        tracked: Tracked,
        times: &mut StageTimes,
    ) -> Result<(), SlamError> {
        self.blank = 0;
        let anchor = Anchor {
            keyframe: active.data.id,
            keyframe_from_camera: tracked.keyframe_from_frame,
        };
        if let Some(entry) = self.entries.last_mut() {
            let r = &mut entry.record;
            r.state = TrackingState::Tracking;
            r.match_fraction = tracked.match_fraction;
            r.unique_fraction = tracked.unique_fraction;
            r.iterations = tracked.iterations;
            entry.anchor = Some(anchor);
        }
        let may = self.pace == Pace::EveryFrame || self.mapping.has_room();
        if !(tracked.wants_keyframe && may) {
            self.active = Some(active);
            return Ok(());
        }
        let pointmap = self.tracker.pointmap_of_view(&self.config);
        let data = self.keyframe_data(input);
        self.hand_over(data, pointmap, Some(anchor), Some(active), times)?;
        self.note(TrackingState::Tracking, Sim3::identity());
        Ok(())
    }

    /// Makes a keyframe active and tells the mapper.
    fn hand_over(
        &mut self,
        data: Arc<KeyframeData>,
        pointmap: FusedPointmap,
        anchor: Option<Anchor>,
        previous: Option<ActiveKeyframe>,
        times: &mut StageTimes,
    ) -> Result<(), SlamError> {
        let id = data.id;
        let keyframes = self.config.local_opt.max_keyframes;
        if keyframes > 0 && id as usize >= keyframes {
            self.active = previous;
            return Err(SlamError::Full { keyframes });
        }
        self.next_id = id + 1;
        if let Some(anchor) = anchor {
            self.pending.push((id, anchor));
        }
        let event = KeyframeEvent {
            data: Arc::clone(&data),
            pointmap: pointmap_at(&pointmap),
            anchor,
            start: self.last_pose,
            finished: previous.map(finished).or(self.retired.take()),
        };
        let pixels = self.backend.shape().pixels();
        self.active = Some(ActiveKeyframe::new(data, pointmap, pixels));
        let start = Instant::now();
        self.mapping.add_keyframe(event)?;
        times.mapping += millis(start);
        Ok(())
    }

    fn relocalise(
        &mut self,
        input: &FrameInput,
        previous: Option<ActiveKeyframe>,
        times: &mut StageTimes,
    ) -> Result<(), SlamError> {
        self.blank = 0;
        if let Some(previous) = previous {
            self.retire(previous);
        }
        if self.asked.is_some() {
            // The thread is busy with an older frame.
            return Ok(());
        }
        let request = RelocaliseRequest {
            data: self.keyframe_data(input),
            pointmap: pointmap_at(&self.tracker.pointmap_of_view(&self.config)),
            finished: self.retired.take(),
        };
        let start = Instant::now();
        self.asked = Some(self.entries.len() - 1);
        match self.mapping.relocalise(request)? {
            Some(reply) => self.take_reply(reply),
            None if self.pace == Pace::EveryFrame => self.collect_reply(true)?,
            None => {}
        }
        times.mapping += millis(start);
        if self.active.is_none()
            && self.asked.is_none()
            && self.lost_tries > self.config.reloc.max_tries
        {
            tracing::warn!(
                "frame {}: not found in {} tries, a new submap starts",
                input.index,
                self.lost_tries
            );
            return self.start_submap(input, times);
        }
        Ok(())
    }

    fn collect_reply(&mut self, wait: bool) -> Result<(), SlamError> {
        if let Some(reply) = self.mapping.reply(wait)? {
            self.take_reply(reply);
        }
        Ok(())
    }

    fn take_reply(&mut self, reply: RelocaliseReply) {
        let asked = self.asked.take();
        if !reply.found {
            self.lost_tries += 1;
            return;
        }
        self.lost_tries = 0;
        let id = reply.data.id;
        self.next_id = id + 1;
        let seen = &reply.pointmap;
        let map = self
            .tracker
            .pointmap_of(&seen.points, &seen.confidence, &self.config);
        let pixels = self.backend.shape().pixels();
        self.active = Some(ActiveKeyframe::new(reply.data, map, pixels));
        if let Some(entry) = asked.and_then(|k| self.entries.get_mut(k)) {
            entry.record.state = TrackingState::Relocalised;
            entry.record.keyframe = Some(id);
            entry.anchor = Some(Anchor {
                keyframe: id,
                keyframe_from_camera: Sim3::identity(),
            });
        }
    }

    /// Drops the one keyframe that nothing was tracked against, and starts with this frame.
    fn start_again(&mut self, input: &FrameInput, times: &mut StageTimes) -> Result<(), SlamError> {
        self.mapping.reset()?;
        self.next_id = 0;
        self.pending.clear();
        for entry in &mut self.entries {
            entry.anchor = None;
            entry.record.keyframe = None;
            entry.record.state = TrackingState::Lost;
        }
        self.initialise(input, times)
    }

    fn retire(&mut self, active: ActiveKeyframe) {
        self.retired = Some(finished(active));
    }

    fn still_lost(&mut self, reason: &LostReason) -> Result<(), SlamError> {
        self.lost_tries += 1;
        tracing::info!("still lost: {reason}");
        self.blank_frame()
    }

    /// Counts a frame of which the network showed nothing, and tests the network after some.
    fn blank_frame(&mut self) -> Result<(), SlamError> {
        self.blank += 1;
        if self.blank == BLANK_FRAMES {
            tracing::warn!("{BLANK_FRAMES} frames without one usable pixel, the network is tested");
            self_test(self.backend.as_mut())?;
        }
        Ok(())
    }

    fn keyframe_data(&self, input: &FrameInput) -> Arc<KeyframeData> {
        Arc::new(KeyframeData {
            id: self.next_id,
            frame_index: input.index,
            stamp: input.stamp,
            image: Arc::clone(&input.image),
            features: self.tracker.features.clone(),
        })
    }

    /// Marks the newest frame as the active keyframe's own.
    fn note(&mut self, state: TrackingState, keyframe_from_camera: Sim3) {
        let id = self.active.as_ref().map(|a| a.data.id);
        if let (Some(entry), Some(id)) = (self.entries.last_mut(), id) {
            entry.record.state = state;
            entry.record.keyframe = Some(id);
            entry.anchor = Some(Anchor {
                keyframe: id,
                keyframe_from_camera,
            });
        }
    }

    fn submap_of(&self, keyframe: u32) -> u32 {
        let table = self.table.load();
        let mut id = keyframe;
        // A pending keyframe belongs where its anchor belongs; anchors always point to older ones.
        while table.submaps.get(id as usize).is_none() {
            match self.pending.iter().find(|(k, _)| *k == id) {
                Some((_, anchor)) if anchor.keyframe < id => id = anchor.keyframe,
                _ => return 0,
            }
        }
        table.submaps.get(id as usize).copied().unwrap_or(0)
    }

    fn world_from(&self, anchor: &Anchor) -> Sim3 {
        let table = self.table.load();
        let mut pose = anchor.keyframe_from_camera;
        let mut id = anchor.keyframe;
        loop {
            if let Some(world) = table.poses.get(id as usize) {
                return *world * pose;
            }
            match self.pending.iter().find(|(k, _)| *k == id) {
                Some((_, a)) if a.keyframe < id => {
                    pose = a.keyframe_from_camera * pose;
                    id = a.keyframe;
                }
                _ => return self.last_pose,
            }
        }
    }
}

fn pointmap_at(map: &FusedPointmap) -> Pointmap {
    let n = map.confidence.len();
    Pointmap {
        points: map.points.clone(),
        confidence: (0..n).map(|k| map.average_confidence(k)).collect(),
    }
}

fn finished(active: ActiveKeyframe) -> (u32, Pointmap) {
    (active.data.id, pointmap_at(&active.pointmap))
}

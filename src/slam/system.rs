//! The state machine (spec 8.2): what happens to each frame, and who is told.

use super::history::{Entry, History};
use super::keyframe::{Anchor, PoseTable};
use super::mapper::{
    Finished, Found, KeyframeEvent, KeyframeInfo, Mapper, MappingCounts, RelocaliseReply,
    RelocaliseRequest,
};
use super::mapping::Mapping;
use super::uncertainty::Covariance6;
use crate::compute::cpu;
use crate::compute::device::{
    Device, DeviceError, LostReason, Outcome, Setup, Tracked, TrackingDevice,
};
use crate::compute::retrieval::RetrievalModel;
use crate::config::{Config, Threads};
use crate::geometry::{Intrinsics, Sim3};
use crate::image::ImageError;
use crate::image::encoding::RawImage;
use crate::inference::{Backend, InferenceError};
use crate::map::{FrameRecord, MapSnapshot, StageTimes, TrackingState};
use crate::time::{Stamp, millis};
use arc_swap::ArcSwap;
use nalgebra::Isometry3;
use std::sync::Arc;
use std::time::Instant;

/// One image of the camera.
#[derive(Debug, Clone, Copy)]
pub struct FrameInput<'a> {
    /// Index in the source.
    pub index: usize,
    /// The image's time.
    pub stamp: Stamp,
    /// As the device's preprocessor takes it; without one, of the network's input size.
    pub image: RawImage<'a>,
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
    Inference(InferenceError),
    /// The device cannot go on.
    #[error(transparent)]
    Device(DeviceError),
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
    /// An image of the camera cannot be used.
    #[error("frame {index}: {source}")]
    Image {
        /// The frame.
        index: usize,
        /// What is wrong with it.
        source: ImageError,
    },
}

impl From<DeviceError> for SlamError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Inference(error) => Self::Inference(error),
            error => Self::Device(error),
        }
    }
}

/// Frames in a row without one usable pixel after which the network is tested again: a covered lens
/// passes, a network that lost its weights is an error instead of a search without end.
const BLANK_FRAMES: usize = 10;

/// The keyframe that frames are tracked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Active {
    id: u32,
    /// Frames tracked against it.
    tracked: usize,
    /// The map only lent it, and keeps it as it is.
    lent: bool,
}

impl Active {
    /// A keyframe against which nothing was tracked yet.
    pub(super) fn new(id: u32, lent: bool) -> Self {
        let tracked = 0;
        Self { id, tracked, lent }
    }
}

/// SLAM from images to a map.
pub struct System {
    pub(super) config: Arc<Config>,
    pub(super) pace: Pace,
    pub(super) device: Box<dyn TrackingDevice>,
    pub(super) intrinsics: Option<Intrinsics>,
    pub(super) mapping: Mapping,
    pub(super) table: Arc<ArcSwap<PoseTable>>,
    pub(super) active: Option<Active>,
    /// Keyframes that the table does not know yet.
    pub(super) pending: Vec<(u32, Anchor)>,
    /// A keyframe that tracking left, until the mapper gets its last pointmap.
    pub(super) retired: Option<Finished>,
    pub(super) next_id: u32,
    pub(super) lost_tries: usize,
    /// Frames in a row of which the network showed nothing.
    pub(super) blank: usize,
    /// The frame whose relocalisation the mapping thread is working on, by its number in `entries`.
    pub(super) asked: Option<usize>,
    /// What the current frame waited for mapping, in milliseconds.
    mapping_ms: f64,
    pub(super) last_pose: Sim3,
    pub(super) entries: History,
    /// This frame's camera in that of the frame before, as both were tracked.
    pub(super) step: Option<Isometry3<f64>>,
    /// How far this frame may be off, about the world's axes.
    pub(super) covariance: Option<Covariance6>,
    /// Whether frames may become keyframes.
    pub(super) grows: bool,
}

impl System {
    /// A system on the CPU for images of the network's input size. `intrinsics` are used when
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
        let setup = Setup {
            config: Arc::clone(&config),
            preprocessor: None,
            intrinsics,
            places: retrieval,
        };
        let device = cpu::device(backend, setup);
        Self::with_device(config, pace, device, intrinsics)
    }

    /// A system on any device, which was made for the same configuration and intrinsics; with
    /// intrinsics it is calibrated.
    pub fn with_device(
        config: Arc<Config>,
        pace: Pace,
        device: Device,
        intrinsics: Option<Intrinsics>,
    ) -> Result<Self, SlamError> {
        let table = Arc::new(ArcSwap::from_pointee(PoseTable::default()));
        let mapper = Mapper::new(device.mapping, Arc::clone(&config), Arc::clone(&table));
        let mapping = match config.threads {
            Threads::Single => Mapping::Inline(Box::new(mapper)),
            Threads::Pipelined => Mapping::spawn(mapper)?,
        };
        Ok(Self {
            config,
            pace,
            device: device.tracking,
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
            mapping_ms: 0.0,
            last_pose: Sim3::identity(),
            entries: History::new(pace),
            step: None,
            covariance: None,
            grows: true,
        })
    }

    /// Takes the next frame and says what became of it. An error ends the run; what was computed
    /// before it stays available through [`System::finish`] and [`System::snapshot`].
    pub fn process(&mut self, input: FrameInput<'_>) -> Result<FrameRecord, SlamError> {
        let start = Instant::now();
        self.mapping.check()?;
        let known = self.table.load().poses.len();
        self.pending.retain(|(id, _)| *id as usize >= known);
        if self.asked.is_some() {
            self.collect_reply(false)?;
        }
        let encoded = self.device.encode(&input.image);
        encoded.map_err(|error| match error {
            DeviceError::Image(source) => SlamError::Image {
                index: input.index,
                source,
            },
            error => error.into(),
        })?;
        self.mapping_ms = 0.0;
        (self.step, self.covariance) = (None, None);

        self.entries.push(Entry {
            record: FrameRecord::lost(input.index, input.stamp, self.last_pose),
            anchor: None,
        });
        match self.active.take() {
            None if self.next_id == 0 => self.initialise(&input)?,
            None => match self.unusable()? {
                Some(reason) => self.still_lost(&reason)?,
                None => self.relocalise(&input)?,
            },
            Some(active) => self.track(&input, active)?,
        }
        let device = self.device.times();
        let times = StageTimes {
            preprocess: device.preprocess,
            encode: device.encode,
            decode: device.decode,
            matching: device.matching,
            tracking: device.tracking,
            fusion: device.fusion,
            mapping: self.mapping_ms,
            total: millis(start),
        };
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
        let retired = match self.active.take() {
            Some(active) => self.retire(active),
            None => Ok(()),
        };
        self.mapping.finish(self.retired.take())?;
        retired
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

    fn initialise(&mut self, input: &FrameInput<'_>) -> Result<(), SlamError> {
        if let Some(reason) = self.unusable()? {
            return self.still_lost(&reason);
        }
        self.start_submap(input)
    }

    /// Looks at the frame alone; the reason if it shows nothing.
    fn unusable(&mut self) -> Result<Option<LostReason>, SlamError> {
        let usable = self.device.mono()?;
        let pixels = self.device.shape().pixels();
        Ok((usable == 0).then_some(LostReason::UnusableOutput(pixels)))
    }

    /// A keyframe that nothing connects to what was before, at the last known pose.
    fn start_submap(&mut self, input: &FrameInput<'_>) -> Result<(), SlamError> {
        (self.lost_tries, self.blank) = (0, 0);
        self.hand_over(input, None, None)?;
        self.note(TrackingState::Initialising, Sim3::identity());
        Ok(())
    }

    fn track(&mut self, input: &FrameInput<'_>, active: Active) -> Result<(), SlamError> {
        let outcome = match self.device.track() {
            Ok(outcome) => outcome,
            Err(error) => {
                // Its pointmap is still to go into the map.
                self.active = Some(active);
                return Err(error.into());
            }
        };
        match outcome {
            Outcome::Tracked(tracked) => self.tracked(input, active, tracked),
            Outcome::Lost {
                reason,
                match_fraction,
            } => {
                tracing::info!("frame {} lost: {reason}", input.index);
                if let Some(entry) = self.entries.last_mut() {
                    entry.record.match_fraction = match_fraction;
                }
                self.lost_tries = 0;
                if self.next_id == 1 && active.tracked == 0 && !active.lent {
                    // Nothing was ever tracked: the first frame was a bad start. Start again here.
                    return self.start_again(input);
                }
                self.retire(active)?;
                if matches!(reason, LostReason::UnusableOutput(_)) {
                    return self.blank_frame();
                }
                self.relocalise(input)
            }
        }
    }

    fn tracked(
        &mut self,
        input: &FrameInput<'_>,
        mut active: Active,
        tracked: Tracked,
    ) -> Result<(), SlamError> {
        self.blank = 0;
        active.tracked += 1;
        let fractions = &tracked.fractions;
        let anchor = Anchor {
            keyframe: active.id,
            keyframe_from_camera: tracked.keyframe_from_frame,
        };
        self.step = self.step_to(&anchor);
        self.covariance = self.covariance_of(&tracked, active.id);
        if let Some(entry) = self.entries.last_mut() {
            let r = &mut entry.record;
            r.state = TrackingState::Tracking;
            r.match_fraction = fractions.used;
            r.unique_fraction = fractions.unique;
            r.iterations = tracked.iterations;
            entry.anchor = Some(anchor);
        }
        let may = self.grows && (self.pace == Pace::EveryFrame || self.mapping.has_room());
        let weakest = fractions.good.min(fractions.unique);
        let weak = weakest < self.config.tracking.match_frac_thresh;
        if !(weak && may) {
            self.active = Some(active);
            return match weak && !self.grows {
                true => self.look_for_nearer(self.info(input), &anchor),
                false => Ok(()),
            };
        }
        self.hand_over(input, Some(anchor), Some(active))?;
        self.note(TrackingState::Tracking, Sim3::identity());
        Ok(())
    }

    /// Makes the frame the active keyframe and tells the mapper.
    fn hand_over(
        &mut self,
        input: &FrameInput<'_>,
        anchor: Option<Anchor>,
        previous: Option<Active>,
    ) -> Result<(), SlamError> {
        let info = self.info(input);
        let id = info.id;
        let keyframes = self.config.local_opt.max_keyframes;
        if keyframes > 0 && id as usize >= keyframes {
            self.active = previous;
            return Err(SlamError::Full { keyframes });
        }
        if let Some(previous) = previous {
            self.retire(previous)?;
        }
        let event = KeyframeEvent {
            info,
            ticket: self.device.start_keyframe()?,
            anchor,
            start: self.last_pose,
            finished: self.retired.take(),
        };
        self.next_id = id + 1;
        if let Some(anchor) = anchor {
            self.pending.push((id, anchor));
        }
        self.active = Some(Active::new(id, false));
        let start = Instant::now();
        self.mapping.add_keyframe(event)?;
        self.mapping_ms += millis(start);
        Ok(())
    }

    /// Asks the mapper where the frame is.
    fn relocalise(&mut self, input: &FrameInput<'_>) -> Result<(), SlamError> {
        self.blank = 0;
        if self.asked.is_some() {
            // The thread is busy with an older frame.
            return Ok(());
        }
        let request = RelocaliseRequest {
            info: self.info(input),
            ticket: self.device.put_down_frame()?,
            finished: self.retired.take(),
            grows: self.grows,
        };
        let start = Instant::now();
        self.asked = self.entries.newest();
        match self.mapping.relocalise(request)? {
            Some(reply) => self.take_reply(reply)?,
            None if self.pace == Pace::EveryFrame => self.collect_reply(true)?,
            None => {}
        }
        self.mapping_ms += millis(start);
        if self.active.is_none()
            && self.asked.is_none()
            && self.grows
            && self.lost_tries > self.config.reloc.max_tries
        {
            tracing::warn!(
                "frame {}: not found in {} tries, a new submap starts",
                input.index,
                self.lost_tries
            );
            return self.start_submap(input);
        }
        Ok(())
    }

    pub(super) fn collect_reply(&mut self, wait: bool) -> Result<(), SlamError> {
        if let Some(reply) = self.mapping.reply(wait)? {
            self.take_reply(reply)?;
        }
        Ok(())
    }

    pub(super) fn take_reply(&mut self, reply: RelocaliseReply) -> Result<(), SlamError> {
        let asked = self.asked.take();
        let Some(found) = reply.found else {
            self.lost_tries += 1;
            return Ok(());
        };
        self.lost_tries = 0;
        let (keyframe, anchor, ticket) = match found {
            Found::Keyframe(ticket) => {
                let keyframe = reply.info.id;
                self.next_id = keyframe + 1;
                let anchor = Anchor {
                    keyframe,
                    keyframe_from_camera: Sim3::identity(),
                };
                (Some(keyframe), anchor, ticket)
            }
            Found::At(anchor, ticket) => (None, anchor, ticket),
        };
        if let Some(active) = self.active {
            // A nearer one, while the one before is still tracked against.
            self.retire(active)?;
            self.device.resume_keyframe(&ticket)?;
            self.go_over(asked, anchor);
            return Ok(());
        }
        self.device.resume_keyframe(&ticket)?;
        self.active = Some(Active::new(anchor.keyframe, keyframe.is_none()));
        let entry = asked.and_then(|k| self.entries.get_mut(k));
        // A frame that only asked for a nearer keyframe was not lost.
        if let Some(entry) = entry.filter(|entry| entry.anchor.is_none()) {
            entry.record.state = TrackingState::Relocalised;
            entry.record.keyframe = keyframe;
            entry.anchor = Some(anchor);
        }
        Ok(())
    }

    /// Drops the one keyframe that nothing was tracked against, and starts with this frame.
    fn start_again(&mut self, input: &FrameInput<'_>) -> Result<(), SlamError> {
        self.mapping.reset()?;
        self.next_id = 0;
        self.pending.clear();
        for entry in self.entries.iter_mut() {
            entry.anchor = None;
            entry.record.keyframe = None;
            entry.record.state = TrackingState::Lost;
        }
        self.initialise(input)
    }

    /// Keeps the last pointmap of the active keyframe for the mapper, unless the map keeps its own.
    fn retire(&mut self, active: Active) -> Result<(), SlamError> {
        if active.lent {
            return Ok(());
        }
        self.retired = Some((active.id, self.device.put_down_pointmap()?));
        Ok(())
    }

    fn still_lost(&mut self, reason: &LostReason) -> Result<(), SlamError> {
        // No try: there is nothing to search with. When the lens is free again, all tries are left.
        tracing::info!("still lost: {reason}");
        self.blank_frame()
    }

    /// Counts a frame of which the network showed nothing, and tests the network after some.
    fn blank_frame(&mut self) -> Result<(), SlamError> {
        self.blank += 1;
        if self.blank == BLANK_FRAMES {
            tracing::warn!("{BLANK_FRAMES} frames without one usable pixel, the network is tested");
            self.device.self_test()?;
        }
        Ok(())
    }

    /// The frame as the next keyframe.
    pub(super) fn info(&self, input: &FrameInput<'_>) -> KeyframeInfo {
        KeyframeInfo {
            id: self.next_id,
            frame_index: input.index,
            stamp: input.stamp,
        }
    }

    /// Marks the newest frame as the active keyframe's own.
    fn note(&mut self, state: TrackingState, keyframe_from_camera: Sim3) {
        let id = self.active.map(|a| a.id);
        if let (Some(entry), Some(id)) = (self.entries.last_mut(), id) {
            entry.record.state = state;
            entry.record.keyframe = Some(id);
            entry.anchor = Some(Anchor {
                keyframe: id,
                keyframe_from_camera,
            });
        }
    }
}

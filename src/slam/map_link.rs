//! Tracking's interface to the map: hand-over of keyframes, and keyframe poses.

use super::error::SlamError;
use super::events::{DepthNews, Event, Finished, Work};
use super::fit::SavedMapError;
use super::frame::{Frame, Pace, Place};
use super::graph::KeyframeInfo;
use super::hint::PlaceHint;
use super::loans::Loan;
use super::mailbox::Look;
use super::map_source::MapSource;
use super::mapper::Mapper;
use super::mapper_thread::MapperHandle;
use super::metric::depth_offset::DepthOffset;
use super::metric::depth_timer::DepthReport;
use super::metric::motion::CameraMotion;
use super::metric::scale::KeyframeScale;
use super::pose_table::{Anchor, KeyframePoses, Origin};
use super::relocaliser::{RelocaliseRequest, Reply};
use super::reuse::ProbeRequest;
use crate::compute::device::Handle;
use crate::config::Threads;
use crate::geometry::Sim3;
use crate::map::store::Writer;
use crate::time::{Pulse, millis};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Instant;

/// The result of loading a map: what could not be read, in words.
pub type Loaded = Result<String, SavedMapError>;

/// Sends events to the mapper, and tracks keyframe poses until they are published.
pub struct MapLink {
    mapper: MapperHandle,
    poses: KeyframePoses,
    /// Number of the map; a reset starts the next one.
    map: u64,
    /// Id of the next keyframe.
    next_keyframe: u32,
    /// A pointmap to send with the next event.
    finished: Option<Finished>,
    /// For the next event: what depth has shown since the last one.
    depth: DepthNews,
    /// The keyframe of the map that frames are tracked against.
    loan: Option<Loan>,
    pace: Pace,
    /// Whether frames may become keyframes, as requested by the user.
    grows: bool,
    /// Maximum number of keyframes; 0 for no limit.
    max_keyframes: usize,
    /// Whether a full map has been logged.
    full_logged: bool,
    /// A hint of where a lost camera is.
    hint: Option<PlaceHint>,
    /// The error that ended the growth of a live camera's map.
    failure: Option<String>,
    /// The result of the load under way.
    loading: Option<Receiver<Loaded>>,
    /// Number of frames that should have become keyframes while mapping was behind.
    postponed: usize,
    /// Time that the current frame waited for mapping, in milliseconds.
    waited: f64,
    /// Number of keyframes that had been made at the oldest frame that is kept.
    oldest_made: u32,
}

impl MapLink {
    /// Connects to `mapper`, which publishes to the table of `poses`.
    pub fn new(
        mapper: Mapper,
        poses: KeyframePoses,
        threads: Threads,
        pace: Pace,
        max_keyframes: usize,
    ) -> Result<Self, SlamError> {
        Ok(Self {
            mapper: MapperHandle::new(mapper, threads, pace)?,
            poses,
            map: 0,
            next_keyframe: 0,
            finished: None,
            depth: DepthNews::default(),
            loan: None,
            pace,
            grows: true,
            max_keyframes,
            full_logged: false,
            hint: None,
            failure: None,
            loading: None,
            postponed: 0,
            waited: 0.0,
            oldest_made: 0,
        })
    }

    /// Starts a frame: resets its waiting time, and returns the reply to an earlier frame's
    /// request.
    ///
    /// # Errors
    /// The error that ended the mapping thread. A live camera goes on without it, see
    /// [`MapLink::failure`].
    pub fn poll(&mut self) -> Result<Option<Reply>, SlamError> {
        self.waited = 0.0;
        self.poses.refresh();
        if let Some(error) = self.mapper.take_failure() {
            self.fail(&error);
        }
        self.mapper.poll()
    }

    /// The error after which a live camera's map no longer grows.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn fail(&mut self, error: &SlamError) {
        tracing::error!("mapping failed: {error}; tracking continues in the map as it is");
        self.failure.get_or_insert_with(|| error.to_string());
    }

    /// The mapping thread's work; `None` without a thread.
    pub fn pulse(&self) -> Option<Arc<Pulse>> {
        self.mapper.pulse()
    }

    /// Poses of keyframes and the camera.
    pub fn poses(&self) -> &KeyframePoses {
        &self.poses
    }

    /// Moves the camera to `anchor`, if there is one, and returns its pose.
    pub fn move_camera(&mut self, anchor: Option<&Anchor>) -> Sim3 {
        self.poses.move_camera(anchor)
    }

    /// Number of keyframes that have been made since the map was started or loaded, with those of the loaded map.
    pub fn keyframes_made(&self) -> u32 {
        self.next_keyframe
    }

    /// Sets the number of keyframes that had been made at the oldest frame that is kept: keyframes that were removed
    /// before it are forgotten.
    pub fn set_oldest_made(&mut self, made: u32) {
        self.oldest_made = made;
    }

    /// Sets whether frames may become keyframes.
    pub fn set_growing(&mut self, grows: bool) {
        self.grows = grows;
    }

    /// Sets where a lost camera is searched for first, in the next frames; `None`: nowhere in particular.
    pub fn set_hint(&mut self, hint: Option<PlaceHint>) {
        self.hint = hint;
    }

    /// Sets where a lost camera is expected, unless a hint is open.
    pub fn expect_at(&mut self, world_from_camera: Sim3) {
        self.hint.get_or_insert(PlaceHint::new(world_from_camera));
    }

    /// Whether the map has its maximum number of keyframes.
    pub fn is_full(&self) -> bool {
        self.max_keyframes > 0 && self.poses.count() >= self.max_keyframes
    }

    /// Whether frames may become keyframes. Logs once when the map is full.
    pub fn may_grow(&mut self) -> bool {
        let full = self.is_full();
        // With keyframes on their way, a map may look full for a moment.
        let stays = full && self.poses.published() >= self.max_keyframes;
        if stays && !self.full_logged {
            tracing::warn!(
                "the map is full ({} keyframes, local_opt.max_keyframes): tracking continues, but the map \
                 no longer grows",
                self.poses.count()
            );
        }
        self.full_logged = stays || (full && self.full_logged);
        self.grows && !full && self.failure.is_none()
    }

    /// Whether tracking may send an event now: a live camera never waits for room.
    pub fn has_room(&self) -> bool {
        self.pace == Pace::EveryFrame || self.mapper.has_room()
    }

    /// Counts a frame that should have become a keyframe while there was no room.
    pub fn postpone(&mut self) {
        self.postponed += 1;
    }

    /// Frames that should have become keyframes while there was no room.
    pub fn postponed(&self) -> usize {
        self.postponed
    }

    /// Milliseconds that the current frame waited for mapping.
    pub fn waited(&self) -> f64 {
        self.waited
    }

    /// Keeps the final pointmap of a keyframe, with its measured scale, to be sent with the next event.
    pub fn finish_keyframe(&mut self, keyframe: u32, handle: Handle, scale: Option<KeyframeScale>) {
        self.finished = Some(Finished {
            keyframe,
            handle,
            scale,
        });
    }

    /// Keeps a keyframe of the map while frames are tracked against it.
    pub fn use_loan(&mut self, loan: Loan) {
        self.loan = Some(loan);
    }

    /// Frames are no longer tracked against the lent keyframe.
    pub fn return_loan(&mut self) {
        self.loan = None;
    }

    /// Id, index and stamp of `frame` as the next keyframe.
    pub fn next_keyframe(&self, frame: &Frame<'_>) -> KeyframeInfo {
        KeyframeInfo {
            id: self.next_keyframe,
            frame_index: frame.index,
            stamp: frame.stamp,
        }
    }

    /// Hands a keyframe, with its measured scale, to the mapper; returns the frame's place. `motion`: by wheels since an
    /// earlier keyframe.
    pub fn add_keyframe(
        &mut self,
        frame: &Frame<'_>,
        (handle, scale): (Handle, Option<KeyframeScale>),
        anchor: Option<Anchor>,
        motion: Option<(u32, CameraMotion)>,
    ) -> Result<Place, SlamError> {
        let info = self.next_keyframe(frame);
        let origin = anchor.map_or(Origin::Submap(self.poses.camera()), Origin::Tracked);
        self.next_keyframe = info.id + 1;
        self.poses.add(info.id, origin);
        self.send(Work::Keyframe {
            info,
            handle,
            origin,
            motion,
            scale,
        })?;
        Ok(Place::of_keyframe(info.id))
    }

    /// Hands what depth has shown about a keyframe to the mapper, with the next event.
    pub fn add_depth_report(&mut self, report: DepthReport) {
        self.depth.add(report);
    }

    /// Sets the offset of depth, as far as it is known.
    pub fn set_depth_offset(&mut self, offset: DepthOffset) {
        self.depth.offset = Some(offset);
    }

    /// Records that a lost frame became keyframe `id`.
    pub fn found_as_keyframe(&mut self, id: u32) {
        self.next_keyframe = id + 1;
    }

    /// Requests relocalisation of a lost frame. A live camera receives the reply later.
    pub fn relocalise(
        &mut self,
        frame: &Frame<'_>,
        handle: Handle,
        motion: Option<(u32, CameraMotion)>,
    ) -> Result<Option<Reply>, SlamError> {
        let request = RelocaliseRequest {
            info: self.next_keyframe(frame),
            handle,
            hint: self.hint,
            motion,
            grows: self.may_grow(),
        };
        self.hint = self.hint.and_then(PlaceHint::used);
        self.ask(Work::Relocalise(request))
    }

    /// Requests a keyframe of the map for a tracked frame. With `wait`, a file waits for the reply; otherwise it comes
    /// later, as it does for a live camera.
    pub fn probe(&mut self, request: ProbeRequest, wait: bool) -> Result<Option<Reply>, SlamError> {
        match wait {
            true => self.ask(Work::Probe(request)),
            false => self.send(Work::Probe(request)),
        }
    }

    /// The reply to the open request: files wait for it.
    pub fn expect_reply(&mut self) -> Result<Option<Reply>, SlamError> {
        if self.pace == Pace::Live {
            return Ok(None);
        }
        let start = Instant::now();
        let reply = self.mapper.wait_for_reply();
        self.waited += millis(start);
        reply
    }

    /// Whether the images come from a camera that does not wait.
    pub fn is_live(&self) -> bool {
        self.pace == Pace::Live
    }

    /// Requests the keyframe of `anchor`. A live camera receives the reply later.
    pub fn borrow_keyframe(&mut self, anchor: Anchor) -> Result<Option<Reply>, SlamError> {
        self.ask(Work::Borrow(anchor))
    }

    /// Starts to load the map of `source`, which [`MapLink::loaded`] returns the result of; with `keep`, the map is
    /// then written there. Must follow [`MapLink::reset`], so that the queue has room. Never waits.
    pub fn load(&mut self, source: Box<MapSource>, keep: Option<Writer>) -> Result<(), SlamError> {
        let (sender, receiver) = sync_channel(1);
        // The channel has room for the only reply.
        let reply = Box::new(move |loaded| drop(sender.send(loaded)));
        self.next_keyframe = source.next_keyframe();
        self.loading = Some(receiver);
        let work = Work::Load {
            source,
            keep,
            reply,
        };
        self.send(work).map(|_| ())
    }

    /// Writes the map, which is empty, to `writer`.
    pub fn keep(&mut self, writer: Writer) -> Result<(), SlamError> {
        self.send(Work::Keep(writer)).map(|_| ())
    }

    /// The result of the load under way, once: `None` while there is no result.
    pub fn loaded(&mut self) -> Option<Loaded> {
        let result = self.loading.as_ref()?.try_recv();
        if matches!(result, Err(TryRecvError::Empty)) {
            return None;
        }
        self.loading = None;
        Some(result.unwrap_or_else(|_| Err(self.load_ended())))
    }

    /// Waits for the result of the load under way; `None` if there is none.
    pub fn wait_for_load(&mut self) -> Option<Loaded> {
        let result = self.loading.take()?.recv();
        Some(result.unwrap_or_else(|_| Err(self.load_ended())))
    }

    /// The mapping side dropped the load: the reason is its failure or a reset.
    fn load_ended(&mut self) -> SavedMapError {
        let ended = "it ended without loading the map".to_owned();
        let failure = self.mapper.take_failure();
        let failure = failure.or_else(|| self.mapper.poll().err());
        failure.unwrap_or(SlamError::Thread(ended)).into()
    }

    /// Continues in a loaded map, with the camera at the map's first pose; without one, in an empty
    /// map.
    pub fn place_camera(&mut self, first: Option<Sim3>) {
        match first {
            Some(camera) => self.poses.place_camera(camera),
            None => self.next_keyframe = 0,
        }
    }

    /// Starts the next map with the camera at `camera`. Never waits: events that the mapper has not
    /// started are dropped.
    pub fn reset(&mut self, camera: Sim3) -> Result<(), SlamError> {
        self.map += 1;
        self.next_keyframe = 0;
        self.finished = None;
        self.depth = DepthNews::default();
        self.loading = None;
        self.loan = None;
        self.hint = None;
        self.oldest_made = 0;
        self.poses.begin(self.map, camera);
        self.mapper.reset(self.map)
    }

    /// Waits for the reply to the open request.
    pub fn wait_for_reply(&mut self) -> Result<Option<Reply>, SlamError> {
        self.mapper.wait_for_reply()
    }

    /// Calls `look` with the mapper between two events; returns `false` if too many readers are
    /// waiting.
    pub fn look(&mut self, look: Look) -> bool {
        self.mapper.look(look)
    }

    /// Waits until the mapper is done, and moves it to this thread.
    pub fn finish(&mut self) -> Result<(), SlamError> {
        let (finished, depth) = (self.finished.take(), std::mem::take(&mut self.depth));
        self.mapper.finish(finished, depth)
    }

    /// The mapper, if it is on this thread.
    pub fn mapper(&self) -> Option<&Mapper> {
        self.mapper.mapper()
    }

    fn ask(&mut self, work: Work) -> Result<Option<Reply>, SlamError> {
        let reply = self.send(work)?;
        if reply.is_some() {
            return Ok(reply);
        }
        self.expect_reply()
    }

    fn send(&mut self, work: Work) -> Result<Option<Reply>, SlamError> {
        let start = Instant::now();
        let finished = self.finished.take();
        let sent = self.mapper.send(Event {
            finished,
            depth: std::mem::take(&mut self.depth),
            work,
            oldest_made: self.oldest_made,
        });
        self.waited += millis(start);
        match sent {
            // The mapping thread's failures are polled; inline they arrive here.
            Err(error) if self.pace == Pace::Live => {
                self.fail(&error);
                Ok(Some(Reply { found: None }))
            }
            sent => sent,
        }
    }
}

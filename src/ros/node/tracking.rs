//! The tracking thread: passes images from the inbox to SLAM, and tracked frames to the output
//! thread.

use super::autosave::{self, MIN_KEYFRAMES};
use super::engine::{self, ActiveEngine};
use super::grid;
use super::image_filter::{FormatGate, StampGate, Verdict};
use super::inbox::{Arrival, Checked, Next as Input, OnText, Order};
use super::saving::{self, SavedGrid};
use super::settings::{Settings, Transport};
use super::shared::{Event, LoadedPlace, Shared};
use super::status::State;
use crate::compute::device::DeviceError;
use crate::files::export::create_folder;
use crate::image::RgbImage;
use crate::image::encoding::{ImageFormat, RawImage};
use crate::map::TrackingState;
use crate::ros::priority::RaisedPriority;
use crate::slam::{Frame, SavedMap, SavedMapError, SlamError};
use crate::slam_builder::OpenError;
use crate::source::image_message::{self, ImageMessageError};
use crate::time::Stamp;
use crate::wire::messages::Header;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// Maximum time to wait for input.
const PATIENCE: Duration = Duration::from_millis(100);

/// The reason for the first map.
const FIRST: &str = "the first image";

/// The state of the thread.
struct Tracker {
    /// Raised because images wait for this thread.
    priority: RaisedPriority,
    shared: Arc<Shared>,
    engine: Option<ActiveEngine>,
    /// Whether SLAM failed: its map can be read and saved, but no image is processed before a
    /// reset.
    failed: bool,
    /// Whether a reset must recreate SLAM.
    rebuild: bool,
    /// The map that ends once it is on disk.
    ending: Option<Ending>,
    /// Map number and version of the poses that were kept last.
    kept: Option<(u64, u64)>,
    /// Receives the result of the load under way.
    loading: Option<OnText>,
    /// The reason for the next map.
    why: String,
    stamps: StampGate,
    formats: FormatGate,
    index: usize,
    lost: bool,
}

/// A map that is being kept on disk before it ends.
struct Ending {
    why: String,
    next: Next,
    kept: Receiver<Result<(), String>>,
}

/// What follows the end of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// An empty map in the same SLAM.
    Reset,
    /// Another SLAM.
    Rebuild,
}

/// Runs until the inbox is closed.
pub fn run(shared: Arc<Shared>) {
    let priority = RaisedPriority::new();
    if !priority.permitted() {
        tracing::debug!(
            "threads that hand images and poses over may not have a raised priority (RLIMIT_NICE)"
        );
    }
    let mut tracker = Tracker {
        priority,
        shared: Arc::clone(&shared),
        engine: None,
        failed: false,
        rebuild: false,
        ending: None,
        kept: None,
        loading: None,
        why: FIRST.to_owned(),
        stamps: StampGate::default(),
        formats: FormatGate::default(),
        index: 0,
        lost: false,
    };
    loop {
        let input = shared.inbox.next(PATIENCE);
        if matches!(input, Input::Closed) {
            return tracker.close();
        }
        shared.pulses.tracking.begin();
        // A panic in SLAM must end neither the process nor this thread.
        let done = catch_unwind(AssertUnwindSafe(|| {
            tracker.settle();
            match input {
                Input::Image(arrival) => tracker.image(&arrival),
                Input::Order(order) => tracker.order(order),
                Input::Idle | Input::Closed => {}
            }
        }));
        if done.is_err() {
            tracker.rebuild = true;
            tracker.fail("SLAM panicked; see the messages before this one".into());
        }
        shared.pulses.tracking.end();
    }
}

impl Tracker {
    fn order(&mut self, order: Order) {
        match order {
            Order::Reset(why) => self.restart(&why),
            Order::TimeJump(why) => self.end(why, Next::Reset),
            Order::Keyframes(ids, asked, reply) => {
                let engine = self.engine.as_mut();
                // If this fails, the reply is dropped, which its owner notices.
                if !engine.is_some_and(|e| e.slam.read_keyframes_while(asked, ids, reply)) {
                    tracing::debug!("keyframes could not be read now");
                }
            }
            Order::Save {
                file,
                results,
                reply,
            } => self.save(file, results, reply),
            Order::Hint(world_from_camera) => {
                if let Some(engine) = &mut self.engine {
                    engine.slam.hint_place(world_from_camera);
                }
            }
            Order::Load(file, reply) => self.load(file, reply),
            Order::Checked(checked, reply) => self.load_checked(checked, reply),
        }
    }

    /// Saves the map on the mapping thread; tracking continues.
    fn save(&mut self, file: PathBuf, results: Option<PathBuf>, reply: OnText) {
        let placement = self.shared.placement.load_full();
        let placed = placement.as_ref().map(|p| p.map_from_world);
        let grid = self.shared.grid.zip(placement).and_then(|(options, at)| {
            let upright = grid::upright(&at.mount, &at.map_from_world)?;
            let submap = at.submap;
            Some(SavedGrid {
                options,
                upright,
                submap,
            })
        });
        let Some(engine) = &mut self.engine else {
            return;
        };
        if !saving::save(&mut engine.slam, file, results, placed, grid, reply) {
            tracing::debug!("the map cannot be saved now");
        }
    }

    /// Has the map of `file` checked on the mapping thread; tracking continues.
    fn load(&mut self, file: PathBuf, reply: OnText) {
        let refuse = match &self.engine {
            _ if self.failed => Some("SLAM has failed; call ~/reset first"),
            _ if self.loading.is_some() => Some("a map is being loaded; call again afterwards"),
            Some(engine) if engine.slam.mapping_failure().is_some() => {
                Some("mapping has failed; call ~/reset first")
            }
            Some(_) => None,
            None => Some(
                "SLAM starts with the first image; call again when images arrive, or set load_map_on_start",
            ),
        };
        if let Some(why) = refuse {
            return reply(Err(why.into()));
        }
        let inbox = Arc::clone(&self.shared);
        let then = Box::new(move |checked| {
            // If the inbox is full, the reply is dropped, which its owner notices.
            inbox.inbox.order(Order::Checked(checked, reply));
        });
        let engine = self.engine.as_mut();
        if !engine.is_some_and(|e| e.slam.check_map(file, then)) {
            tracing::debug!("the map cannot be loaded now");
        }
    }

    /// Discards the map and has the checked one loaded on the mapping thread.
    fn load_checked(&mut self, checked: Checked, reply: OnText) {
        let reader = match checked {
            Ok(reader) => reader,
            Err(error) => return reply(Err(error.to_string())),
        };
        // It is written before it is discarded: the mapping thread keeps the order.
        if !self.is_in_file() {
            self.keep();
        }
        let Some(engine) = &mut self.engine else {
            return;
        };
        if let Err(error) = engine.slam.start_load(reader) {
            self.fail(error.to_string());
            return reply(Err(error.to_string()));
        }
        self.lost = true;
        self.loading = Some(reply);
        self.shared.status.enter(State::Lost);
    }

    /// Takes the results of work on the mapping thread.
    fn settle(&mut self) {
        let engine = self.engine.as_mut();
        if let Some(loaded) = engine.and_then(|e| e.slam.take_loaded()) {
            self.loaded(loaded);
        }
        let kept = self.ending.as_ref().map(|ending| ending.kept.try_recv());
        match kept {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(Ok(Ok(()))) => {
                if let Some(Ending { why, next, .. }) = self.ending.take() {
                    self.ended(&why, next);
                }
            }
            Some(Ok(Err(_)) | Err(TryRecvError::Disconnected)) => {
                if let Some(Ending { why, next, .. }) = self.ending.take() {
                    self.rebuild |= next == Next::Rebuild;
                    self.fail(format!("{why}, and the map could not be kept on disk"));
                }
            }
        }
    }

    fn loaded(&mut self, loaded: Result<SavedMap, SavedMapError>) {
        let text = match loaded {
            Ok(map) => {
                self.announce(&format!("loaded: {map}"), Some(engine::place_of(&map)));
                Ok(map.to_string())
            }
            Err(error) => {
                self.fail(error.to_string());
                Err(error.to_string())
            }
        };
        if let Some(reply) = self.loading.take() {
            reply(text);
        }
    }

    /// Starts a new map with the next image, as asked. The present one is written first, by the
    /// mapping thread, which keeps the order.
    fn restart(&mut self, why: &str) {
        self.ending = None;
        self.keep();
        let next = match std::mem::take(&mut self.rebuild) {
            true => Next::Rebuild,
            false => Next::Reset,
        };
        self.ended(why, next);
    }

    /// Ends the map once it is on disk.
    fn end(&mut self, why: String, next: Next) {
        if self.ending.is_some() || self.failed {
            return;
        }
        let Some(kept) = self.keep() else {
            return self.ended(&why, next);
        };
        let until = format!("{why}: the map is being written to disk before a new one starts");
        self.shared.status.enter(State::Waiting(until));
        self.ending = Some(Ending { why, next, kept });
    }

    /// Starts a new map with the next image.
    fn ended(&mut self, why: &str, next: Next) {
        tracing::warn!("starting a new map: {why}");
        self.shared.status.recover();
        self.failed = false;
        self.lost = false;
        self.loading = None;
        self.stamps = StampGate::default();
        if next == Next::Rebuild {
            self.engine = None;
        }
        if let Some(engine) = &mut self.engine
            && let Err(error) = engine.slam.reset()
        {
            // It will be recreated.
            tracing::warn!("restarting SLAM: {error}");
            self.engine = None;
        }
        if self.engine.is_some() {
            return self.announce(why, None);
        }
        self.why = why.to_owned();
        let missing = "waiting for the next image, with which a new map starts";
        self.shared.status.enter(State::Waiting(missing.into()));
    }

    /// Has the map written to a file of its own, unless it is very small, was written already, or
    /// `autosaves` is 0. The result follows.
    fn keep(&mut self) -> Option<Receiver<Result<(), String>>> {
        let settings = self.shared.settings.load_full();
        let engine = self.engine.as_mut()?;
        let (poses, count) = (engine.slam.poses(), settings.autosaves);
        let table = poses.load();
        let state = (table.map, table.version);
        if count == 0 || table.poses.len() < MIN_KEYFRAMES || self.kept == Some(state) {
            return None;
        }
        let (sender, receiver) = sync_channel(1);
        let shared = Arc::clone(&self.shared);
        let reply = move |kept: Result<String, String>| {
            shared.status.keep(&kept);
            // The receiver is gone where the result does not matter.
            let _ = sender.send(kept.map(|_| ()));
        };
        let file = autosave::folder(&settings).ok_or("neither map_path nor HOME is set".to_owned());
        let file = file.and_then(|folder| {
            let made = create_folder(&folder).map_err(|e| e.to_string());
            let file = || autosave::file(&folder, &self.shared.name, count);
            made.and_then(|()| file().map_err(|e| e.to_string()))
        });
        let placed = self.shared.placement.load_full().map(|p| p.map_from_world);
        match file {
            Err(error) => reply(Err(error)),
            Ok(file) => {
                let asked =
                    saving::save(&mut engine.slam, file, None, placed, None, Box::new(reply));
                self.kept = asked.then_some(state);
            }
        }
        Some(receiver)
    }

    /// Whether the map is in a file that is written as it is made.
    fn is_in_file(&self) -> bool {
        let slam = self.engine.as_ref().map(|engine| &engine.slam);
        slam.is_some_and(|slam| slam.map_file().is_some() && slam.map_file_failure().is_none())
    }

    /// Keeps the map when the node closes.
    fn close(mut self) {
        if self.is_in_file() {
            return;
        }
        if let Some(kept) = self.keep()
            && !matches!(kept.recv(), Ok(Ok(())))
        {
            tracing::error!("the map could not be kept on disk; see the messages before this one");
        }
    }

    /// Announces the new map to the other threads.
    fn announce(&self, why: &str, loaded: Option<LoadedPlace>) {
        let Some(engine) = &self.engine else { return };
        self.shared.status.maps.add();
        self.shared.poses.store(Some(Arc::new(engine.slam.poses())));
        self.shared.tell(Event::NewMap {
            why: why.to_owned(),
            mount: engine.mount,
            camera_frame: Arc::clone(&engine.camera_frame),
            loaded,
        });
    }

    /// Stops SLAM after a failure. Its map is kept on disk, and can still be read and saved.
    fn fail(&mut self, why: String) {
        tracing::error!("{why}; call ~/save_map to keep the map, ~/reset to start again");
        self.shared.status.enter(State::Failed(why));
        self.failed = true;
        self.keep();
    }

    /// Tells a failure of mapping and keeps the map; tracking goes on in it.
    fn notice_mapping(&mut self) {
        let engine = self.engine.as_ref();
        if let Some(engine) = engine {
            let placement = self.shared.placement.load_full();
            if let Some(placement) = placement.filter(|_| engine.slam.map_file().is_some()) {
                engine.slam.place_map(Some(placement.map_from_world));
            }
            self.shared.status.map_file(engine.slam.map_file_failure());
        }
        let Some(why) = engine.and_then(|e| e.slam.mapping_failure()) else {
            return;
        };
        if self.shared.status.mapping_failed(why) {
            self.keep();
        }
    }

    fn refuse(&self, what: &'static str, why: impl FnOnce() -> String) {
        self.shared.status.refused.add();
        let why = || format!("rejected an image: {}", why());
        self.shared.status.warn(what, why);
    }

    fn image(&mut self, arrival: &Arrival) {
        let shared = Arc::clone(&self.shared);
        let busy = shared.active.load(Ordering::Acquire) && !shared.paused.load(Ordering::Acquire);
        if !busy || self.failed {
            return;
        }
        if self.ending.is_some() {
            return self.refuse("ending", || "the last map is being written to disk".into());
        }
        let settings = shared.settings.load_full();
        match settings.image_transport {
            Transport::Raw => match image_message::raw(&arrival.payload) {
                Ok((header, image)) => {
                    if self.let_through(arrival, &header, &settings)
                        && self.accepts(ImageFormat::from(&image))
                    {
                        self.look(arrival, &header, &image, &settings);
                    }
                }
                Err(error) => self.refuse("message", || error.to_string()),
            },
            Transport::Compressed => {
                let unpacked = self.unpacked(arrival, &settings);
                match unpacked {
                    Ok(Some((header, image))) => {
                        self.look(arrival, &header, &RawImage::from(&image), &settings);
                    }
                    Ok(None) => {}
                    Err(error) => self.refuse("message", || error.to_string()),
                }
            }
        }
    }

    /// Decodes a compressed image that passes the filter.
    fn unpacked(
        &mut self,
        arrival: &Arrival,
        settings: &Settings,
    ) -> Result<Option<(Header, RgbImage)>, ImageMessageError> {
        let (header, file) = image_message::compressed(&arrival.payload)?;
        if !self.let_through(arrival, &header, settings) {
            return Ok(None);
        }
        // Before any pixel is decoded: a small file may hold an image of any size.
        let (width, height) = image_message::size(file)?;
        if !self.accepts(ImageFormat::of_rgb(width, height)) {
            return Ok(None);
        }
        let image = image_message::unpack(file)?;
        Ok(Some((header, image)))
    }

    /// Whether images of this format are used. Images of another format than before are refused, until so many follow
    /// each other that a new map begins with them.
    fn accepts(&mut self, format: ImageFormat) -> bool {
        match self.formats.check(format) {
            Verdict::Refuse(why) => {
                self.refuse(why, || why.to_owned());
                return false;
            }
            Verdict::Restart(why) => {
                self.end(why, Next::Rebuild);
                return self.ending.is_none();
            }
            Verdict::Take | Verdict::Skip => {}
        }
        true
    }

    /// Whether the stamp allows to look at the image.
    fn let_through(&mut self, arrival: &Arrival, header: &Header, settings: &Settings) -> bool {
        let stamp = Stamp::from(&header.stamp);
        match self.stamps.check(stamp, arrival.at, settings.max_rate) {
            Verdict::Take => true,
            Verdict::Skip => {
                self.shared.status.skipped.add();
                false
            }
            Verdict::Refuse(why) => {
                self.refuse(why, || why.to_owned());
                false
            }
            Verdict::Restart(why) => {
                self.end(why, Next::Reset);
                if self.ending.is_some() {
                    return false;
                }
                // The new map's first image, so that the filter knows its stamp.
                self.stamps.check(stamp, arrival.at, settings.max_rate) == Verdict::Take
            }
        }
    }

    fn look(
        &mut self,
        arrival: &Arrival,
        header: &Header,
        image: &RawImage<'_>,
        settings: &Settings,
    ) {
        let format = ImageFormat::from(image);
        let ready = match self.prepare(header, &format, settings) {
            Ok(ready) => ready,
            Err(error) => return self.fail(error.to_string()),
        };
        if !ready {
            return;
        }
        let Some(engine) = &mut self.engine else {
            return;
        };
        let status = &self.shared.status;
        engine.slam.set_growing(!settings.localization_only);
        let stamp = Stamp::from(&header.stamp);
        let frame = Frame {
            index: self.index,
            stamp,
            image: *image,
        };
        self.index += 1;
        status.intake.add(arrival.at.elapsed());
        let start = Instant::now();
        let processed = engine.slam.process(&frame);
        if let Some(loaded) = engine.slam.take_loaded() {
            // The frame may be one of the loaded map.
            self.loaded(loaded);
        }
        let status = &self.shared.status;
        match processed {
            Ok(tracked) => {
                status.slam.add(start.elapsed());
                status.frames.add();
                let lost = tracked.state == TrackingState::Lost;
                if lost {
                    status.lost.add();
                    if !self.lost {
                        status.losses.add();
                    }
                }
                self.lost = lost;
                if let Some(engine) = &self.engine {
                    status.count(engine.slam.mapping_counts(), engine.slam.is_full());
                }
                status.enter(match lost {
                    true => State::Lost,
                    false => State::Tracking,
                });
                let scale = (!lost).then_some(tracked.world_from_camera.scale);
                self.shared.tell(Event::Frame(tracked, Instant::now()));
                if let Some(scale) = scale.filter(|_| self.shared.depth.wanted()) {
                    self.depth(stamp, scale);
                }
                self.notice_mapping();
            }
            Err(
                SlamError::Image { source, .. } | SlamError::Device(DeviceError::Image(source)),
            ) => {
                self.refuse("image", || source.to_string());
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Passes the last frame's pointmap to the depth thread.
    fn depth(&mut self, stamp: Stamp, scale: f64) {
        let Some(engine) = &mut self.engine else {
            return;
        };
        let slot = &self.shared.depth;
        let mut frame = slot.empty();
        if let Err(error) = engine.slam.read_frame(&mut frame.points) {
            // If this is not a transient error, the next frame fails too.
            self.shared.status.warn("depth", || error.to_string());
            return slot.give_back(frame);
        }
        (frame.size, frame.intrinsics) = engine.slam.network_image();
        frame.camera_frame = Arc::clone(&engine.camera_frame);
        (frame.stamp, frame.scale) = (stamp, scale);
        slot.put(frame);
    }

    /// Creates SLAM if none exists for such images; returns `false` while something is missing.
    fn prepare(
        &mut self,
        header: &Header,
        format: &ImageFormat,
        settings: &Settings,
    ) -> Result<bool, OpenError> {
        let shared = Arc::clone(&self.shared);
        let calibration = match engine::calibration(&shared, settings) {
            Ok(calibration) => calibration,
            Err(missing) => {
                engine::wait(&shared, "camera_info", missing);
                return Ok(false);
            }
        };
        if let Some(engine) = &self.engine {
            if engine.calibration == calibration {
                return Ok(true);
            }
            self.end("camera_info has changed".to_owned(), Next::Rebuild);
            if self.ending.is_some() || self.failed {
                return Ok(false);
            }
        }
        let started = engine::start(
            &shared,
            &self.priority,
            header,
            format,
            settings,
            calibration,
        )?;
        let Some((engine, loaded)) = started else {
            return Ok(false);
        };
        self.engine = Some(engine);
        let why = std::mem::replace(&mut self.why, FIRST.to_owned());
        self.announce(&why, loaded);
        Ok(true)
    }
}

//! The tracking thread: passes images from the inbox to SLAM, and tracked frames to the output
//! thread.

mod maps;

use super::depth_input::DepthInput;
use super::engine::{self, ActiveEngine};
use super::image_filter::{FormatGate, StampGate, Verdict};
use super::inbox::{Arrival, Next as Input, OnText, Order};
use super::masks::Masking;
use super::motion_input::{self, MotionInput};
use super::settings::{Settings, Transport};
use super::shared::{Event, Shared};
use super::splat_slot::SplatCamera;
use super::status::State;
use crate::compute::device::DeviceError;
use crate::image::RgbImage;
use crate::image::encoding::{ImageFormat, RawImage};
use crate::map::TrackingState;
use crate::ros::priority::{NOT_PERMITTED, RaisedPriority};
use crate::slam::{Frame, SlamError};
use crate::slam_builder::OpenError;
use crate::source::image_message::{self, ImageMessageError};
use crate::time::Stamp;
use crate::wire::messages::Header;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
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
    masking: Masking,
    depth_input: DepthInput,
    motion_input: MotionInput,
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
        tracing::debug!("{NOT_PERMITTED}");
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
        masking: Masking::default(),
        depth_input: DepthInput::default(),
        motion_input: MotionInput::default(),
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
                Input::Idle => tracker.idle(),
                Input::Closed => {}
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
    /// No image came for a while.
    fn idle(&mut self) {
        if let Some(engine) = &mut self.engine {
            self.shared.page.serve(&mut engine.slam);
        }
    }

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
        if settings.use_mask {
            let now = self.shared.moment();
            self.masking
                .update(&self.shared.mask, &mut engine.slam, status, now);
        }
        if settings.use_depth {
            let camera = Arc::clone(&engine.camera_frame);
            let slam = &mut engine.slam;
            self.depth_input
                .give(&self.shared, slam, settings, (&camera, stamp));
        }
        if settings.use_wheel_odometry || settings.use_gyro {
            let camera = Arc::clone(&engine.camera_frame);
            let image = motion_input::Image {
                frame: &camera,
                stamp,
                at: arrival.at,
            };
            let slam = &mut engine.slam;
            self.motion_input.give(&self.shared, slam, settings, &image);
        }
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
                    if settings.use_wheel_odometry || settings.use_gyro {
                        status.motion(engine.slam.motion_status());
                    }
                }
                status.enter(match (lost, tracked.bridge) {
                    (true, Some(_)) => State::Bridging,
                    (true, None) => State::Lost,
                    (false, _) => State::Tracking,
                });
                if tracked.bridge.is_some() {
                    status.bridged.add();
                }
                if let Some(engine) = &mut self.engine {
                    self.shared.page.frame(&tracked, &mut engine.slam);
                }
                let scale = (!lost).then_some(tracked.world_from_camera.scale);
                if !lost
                    && self.shared.splat_slot.wanted()
                    && let Some(engine) = &self.engine
                {
                    self.shared.splat_slot.put(SplatCamera {
                        stamp,
                        camera_frame: Arc::clone(&engine.camera_frame),
                        size: engine.slam.network_image().0,
                        world_from_camera: tracked.world_from_camera,
                    });
                }
                let done = self.shared.moment();
                self.shared.tell(Event::Frame(tracked, done));
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
        self.depth_input = DepthInput::of(&engine.slam);
        self.motion_input = MotionInput::default();
        self.engine = Some(engine);
        self.masking = Masking::default();
        let why = std::mem::replace(&mut self.why, FIRST.to_owned());
        self.announce(&why, loaded);
        Ok(true)
    }
}

//! The tracking thread: images from the inbox into the engine, poses out to the output thread.

use super::engine::{Engine, EngineError, ImageFormat};
use super::gates::{FormatGate, StampGate, Verdict};
use super::inbox::{Arrival, Next, Order};
use super::settings::{Settings, Transport};
use super::shared::{Event, LoadedPlace, Mount, PoseEvent, Shared};
use super::status::State;
use crate::geometry::Calibration;
use crate::image::RgbImage;
use crate::image::encoding::RawImage;
use crate::map::{TrackingState, saved};
use crate::ros::images::{self, ImageMessageError};
use crate::ros::messages::Header;
use crate::ros::priority::First;
use crate::slam::{FrameInput, SavedMap};
use crate::time::Stamp;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the thread waits for something to do.
const PATIENCE: Duration = Duration::from_millis(100);

/// An engine, and what it was made for.
struct Made {
    engine: Box<dyn Engine>,
    calibration: Option<Calibration>,
    mount: Mount,
    camera_frame: Arc<str>,
}

/// The state of the thread.
struct Tracker {
    /// Images wait for this thread.
    first: First,
    shared: Arc<Shared>,
    made: Option<Made>,
    /// Nothing is made any more until a reset.
    failed: bool,
    stamps: StampGate,
    formats: FormatGate,
    index: usize,
    lost: bool,
}

/// Runs until the inbox is closed.
pub fn run(shared: Arc<Shared>) {
    let first = First::new();
    if !first.permitted() {
        tracing::debug!("threads that hand images and poses over may not come first (RLIMIT_NICE)");
    }
    let mut tracker = Tracker {
        first,
        shared: Arc::clone(&shared),
        made: None,
        failed: false,
        stamps: StampGate::default(),
        formats: FormatGate::default(),
        index: 0,
        lost: false,
    };
    loop {
        let next = shared.inbox.next(PATIENCE);
        if matches!(next, Next::Closed) {
            return;
        }
        // A panic in SLAM must end neither the process nor this thread.
        let done = catch_unwind(AssertUnwindSafe(|| match next {
            Next::Image(arrival) => tracker.image(&arrival),
            Next::Order(order) => tracker.order(order),
            Next::Idle | Next::Closed => {}
        }));
        if done.is_err() {
            tracker.fail("SLAM panicked; see the messages before this one".into());
        }
    }
}

impl Tracker {
    fn order(&mut self, order: Order) {
        match order {
            Order::Reset(why) => self.restart(&why),
            Order::Keyframes(ids, reply) => {
                let made = self.made.as_mut();
                // If not, the reply is dropped, which tells whoever waits for it.
                if !made.is_some_and(|m| m.engine.read_keyframes(ids, reply)) {
                    tracing::debug!("keyframes could not be read now");
                }
            }
            Order::Map(reply) => {
                let made = self.made.as_mut();
                if !made.is_some_and(|m| m.engine.read_map(reply)) {
                    tracing::debug!("the map could not be read now");
                }
            }
            Order::Save(file, reply) => {
                let placed = self.shared.placement.load_full().map(|p| p.map_from_world);
                let made = self.made.as_mut();
                if !made.is_some_and(|m| m.engine.save_map(file, placed, reply)) {
                    tracing::debug!("the map could not be saved now");
                }
            }
            Order::Load(file, reply) => reply(self.load(&file)),
        }
    }

    /// Goes on with the map in `file`.
    fn load(&mut self, file: &Path) -> Result<String, String> {
        let Some(made) = &mut self.made else {
            let why = "SLAM starts with the first image; call again when images come, or set load_map_on_start";
            return Err(why.into());
        };
        match made.engine.load_map(file) {
            Ok(map) => {
                let told = map.to_string();
                self.lost = true;
                self.shared.status.enter(State::Lost);
                self.announce(&format!("loaded: {told}"), Some(place_of(&map)));
                Ok(told)
            }
            Err(EngineError::Refused(why) | EngineError::Image(why)) => Err(why),
            Err(EngineError::Failed(why)) => {
                self.fail(why.clone());
                Err(why)
            }
        }
    }

    /// Begins a new map with the next image.
    fn restart(&mut self, why: &str) {
        tracing::warn!("a new map begins: {why}");
        self.failed = false;
        self.lost = false;
        self.stamps = StampGate::default();
        let Some(made) = &mut self.made else {
            let missing = "the next image has not come yet; a new map begins with it";
            self.shared.status.enter(State::Waiting(missing.into()));
            return;
        };
        if let Err(error) = made.engine.reset() {
            // It is made anew.
            tracing::warn!("SLAM is started again: {error}");
            self.made = None;
            return;
        }
        self.announce(why, None);
    }

    /// Tells the others of the new map.
    fn announce(&self, why: &str, loaded: Option<LoadedPlace>) {
        let Some(made) = &self.made else { return };
        self.shared.status.maps.add();
        self.shared.poses.store(Some(Arc::new(made.engine.poses())));
        self.shared.tell(Event::NewMap {
            why: why.to_owned(),
            mount: made.mount,
            camera_frame: Arc::clone(&made.camera_frame),
            loaded,
        });
    }

    fn fail(&mut self, why: String) {
        tracing::error!("{why}; call ~/reset to start again");
        self.shared.status.enter(State::Failed(why));
        self.made = None;
        self.failed = true;
    }

    fn refuse(&self, what: &'static str, why: impl FnOnce() -> String) {
        self.shared.status.refused.add();
        let why = || format!("an image is not used: {}", why());
        self.shared.status.warn(what, why);
    }

    fn image(&mut self, arrival: &Arrival) {
        let shared = Arc::clone(&self.shared);
        let busy = shared.active.load(Ordering::Acquire) && !shared.paused.load(Ordering::Acquire);
        if !busy || self.failed {
            return;
        }
        let settings = shared.settings.load_full();
        match settings.transport {
            Transport::Raw => match images::raw(&arrival.payload) {
                Ok((header, image)) => {
                    if self.let_through(&header, &settings) {
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

    /// A compressed image that is let through.
    fn unpacked(
        &mut self,
        arrival: &Arrival,
        settings: &Settings,
    ) -> Result<Option<(Header, RgbImage)>, ImageMessageError> {
        let (header, file) = images::compressed(&arrival.payload)?;
        if !self.let_through(&header, settings) {
            return Ok(None);
        }
        let image = images::unpack(file)?;
        Ok(Some((header, image)))
    }

    /// Whether the stamp allows to look at the image.
    fn let_through(&mut self, header: &Header, settings: &Settings) -> bool {
        let stamp = Stamp::from(&header.stamp);
        match self.stamps.check(stamp, settings.max_rate) {
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
                self.restart(&why);
                // The new map's first image, so that the gate knows it.
                self.stamps.check(stamp, settings.max_rate) == Verdict::Take
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
        match self.formats.check(format) {
            Verdict::Refuse(why) => return self.refuse(why, || why.to_owned()),
            Verdict::Restart(why) => {
                self.made = None;
                tracing::warn!("a new map begins: {why}");
            }
            Verdict::Take | Verdict::Skip => {}
        }
        let ready = match self.prepare(header, &format, settings) {
            Ok(ready) => ready,
            Err(error) => return self.fail(error.to_string()),
        };
        if !ready {
            return;
        }
        let Some(made) = &mut self.made else { return };
        made.engine.set_growing(!settings.localization_only);
        let input = FrameInput {
            index: self.index,
            stamp: Stamp::from(&header.stamp),
            image: *image,
        };
        self.index += 1;
        let status = &self.shared.status;
        status.intake.add(arrival.at.elapsed());
        let start = Instant::now();
        match made.engine.process(input) {
            Ok(record) => {
                status.slam.add(start.elapsed());
                status.frames.add();
                let lost = record.state == TrackingState::Lost;
                if lost {
                    status.lost.add();
                    if !self.lost {
                        status.losses.add();
                    }
                }
                self.lost = lost;
                status.enter(match lost {
                    true => State::Lost,
                    false => State::Tracking,
                });
                let scale = (!lost).then_some(record.world_from_camera.scale);
                let pose = PoseEvent {
                    step: made.engine.step(),
                    covariance: made.engine.covariance(),
                    record,
                    done: Instant::now(),
                };
                self.shared.tell(Event::Pose(Box::new(pose)));
                if let Some(scale) = scale.filter(|_| self.shared.depth.wanted()) {
                    self.depth(Stamp::from(&header.stamp), scale);
                }
            }
            Err(EngineError::Image(why)) => self.refuse("image", || why),
            Err(EngineError::Refused(why) | EngineError::Failed(why)) => self.fail(why),
        }
    }

    /// Hands the last frame's pointmap to the depth thread.
    fn depth(&mut self, stamp: Stamp, scale: f64) {
        let Some(made) = &mut self.made else { return };
        let slot = &self.shared.depth;
        let mut frame = slot.empty();
        if let Err(error) = made.engine.read_frame(&mut frame.points) {
            // The next frame fails as well, if it is more than this.
            self.shared.status.warn("depth", || error.to_string());
            return slot.give_back(frame);
        }
        (frame.size, frame.intrinsics) = made.engine.network_image();
        frame.camera_frame = Arc::clone(&made.camera_frame);
        (frame.stamp, frame.scale) = (stamp, scale);
        slot.put(frame);
    }

    /// Makes the engine if there is none for such images; `false` while something is missing.
    fn prepare(
        &mut self,
        header: &Header,
        format: &ImageFormat,
        settings: &Settings,
    ) -> Result<bool, EngineError> {
        let calibration = match settings.use_calibration {
            true => match self.shared.camera().get() {
                Ok(calibration) => Some(calibration),
                Err(missing) => {
                    self.wait("camera_info", missing);
                    return Ok(false);
                }
            },
            false => None,
        };
        let mut why = "the first image";
        if let Some(made) = &self.made {
            if made.calibration == calibration {
                return Ok(true);
            }
            why = "camera_info has changed";
            tracing::warn!("a new map begins: {why}");
            self.made = None;
        }
        let camera_frame: Arc<str> = match settings.camera_optical_frame.as_str() {
            "" => header.frame_id.as_str().into(),
            named => named.into(),
        };
        if camera_frame.is_empty() {
            self.wait(
                "frame",
                "the images name no frame; set camera_optical_frame".into(),
            );
            return Ok(false);
        }
        let Some(mount) = self.mount(&camera_frame, settings, header) else {
            return Ok(false);
        };
        self.shared
            .status
            .enter(State::Waiting("SLAM starts".into()));
        // The threads that SLAM starts are no better than others.
        let factory = &self.shared.factory;
        let make = || factory.make(settings, format, calibration.as_ref());
        let mut engine = self.first.aside(make)?;
        tracing::info!("SLAM: {}", engine.describe());
        let mut loaded = None;
        if settings.load_map_on_start {
            let file = saved::file_of(Path::new(&settings.map_path));
            let map = engine.load_map(&file)?;
            tracing::info!("loaded: {map}");
            loaded = Some(place_of(&map));
        }
        self.made = Some(Made {
            engine,
            calibration,
            mount,
            camera_frame,
        });
        self.announce(why, loaded);
        Ok(true)
    }

    fn mount(&self, camera: &str, settings: &Settings, header: &Header) -> Option<Mount> {
        let base = settings.base_frame.as_str();
        if base.is_empty() || base == camera {
            return Some(Mount::CameraAlone);
        }
        // Where joints say it again and again, their word comes later than the image.
        let stamp = Stamp::from(&header.stamp);
        match self.shared.tf().lookup_held(base, camera, stamp) {
            Ok(base_from_camera) => Some(Mount::On(base_from_camera)),
            Err(error) => {
                let missing = format!(
                    "{error}; publish it (robot_state_publisher, static_transform_publisher), or set \
                     base_frame:='' to take the camera as the robot"
                );
                self.wait("transform", missing);
                None
            }
        }
    }

    fn wait(&self, what: &'static str, missing: String) {
        self.shared
            .status
            .warn(what, || format!("waiting: {missing}"));
        self.shared.status.enter(State::Waiting(missing));
    }
}

fn place_of(map: &SavedMap) -> LoadedPlace {
    LoadedPlace {
        map_from_world: map.map_from_world,
        first: map.first,
    }
}

//! The tracker: tracks frames against the active keyframe, or searches for the camera.

use super::error::SlamError;
use super::frame::{Frame, FrameOutcome, Place};
use super::frozen_map;
use super::map_link::MapLink;
use super::metric::scale::KeyframeScale;
use super::odometry::Odometry;
use super::pose_table::Anchor;
use super::relocaliser::{Found, Reply};
use super::sensors::MotionSensors;
use super::state::{ActiveKeyframe, Question, Search, SearchStep, State};
use super::uncertainty::{Covariance6, covariance_of_camera};
use crate::compute::device::{
    DeviceError, Fractions, LostReason, Outcome, Tracked, TrackingDevice,
};
use crate::config::Config;
use crate::geometry::Sim3;
use crate::image::encoding::RawImage;
use crate::image::exposure::Exposure;
use crate::map::TrackingState;

/// Number of consecutive frames without a usable pixel after which the network is tested: with a
/// covered lens the test passes, while a network that lost its weights must be an error instead of
/// an endless search.
const BLANK_FRAMES: usize = 10;

/// Part of the fraction below which a frame becomes a keyframe that a frame must reach if mapping is too far behind for
/// that. As long as keyframes are made, a frame matches less only after a sudden motion; without them it is what a camera
/// that moves on comes to, and its poses become wrong long before too little matches for any.
const POSTPONED_PART: f32 = 0.5;

/// The state after a frame, and the frame's outcome.
pub type Step = (State, FrameOutcome);

/// A frame that does not overlap enough with the active keyframe.
#[derive(Debug, Clone)]
pub struct Loss {
    pub reason: LostReason,
    pub match_fraction: f32,
}

/// The colour of an image that shows nothing.
fn shows_nothing(frame: &Frame<'_>) -> Option<&'static str> {
    match frame.image.exposure() {
        Exposure::Usable => None,
        Exposure::Black => Some("black"),
        Exposure::White => Some("white"),
    }
}

/// Whether a frame with these match fractions should become a keyframe: fewer than `min_fraction`
/// of the keyframe's pixels are well matched, or fewer distinct pixels of the frame are.
pub fn wants_keyframe(fractions: &Fractions, min_fraction: f32) -> bool {
    fractions.good.min(fractions.unique) < min_fraction
}

/// Tracks the camera with a tracking device.
pub struct Tracker {
    device: Box<dyn TrackingDevice>,
    odometry: Odometry,
    sensors: MotionSensors,
    /// Number of consecutive frames without a usable pixel.
    blank: usize,
    /// See [`wants_keyframe`].
    min_fraction: f32,
    /// A keyframe of the map is looked for below this fraction; `None` if new ones are always made.
    probe_fraction: Option<f32>,
    /// Minimum fraction of a keyframe of the map that makes a new one needless.
    reuse_fraction: f32,
    /// Number of failed searches after which a new submap starts.
    max_tries: usize,
}

impl Tracker {
    /// A tracker on `device`.
    pub fn new(device: Box<dyn TrackingDevice>, config: &Config) -> Self {
        Self {
            device,
            odometry: Odometry::default(),
            sensors: MotionSensors::default(),
            blank: 0,
            min_fraction: config.tracking.match_frac_thresh,
            probe_fraction: (config.economy.reuse)
                .then_some(config.tracking.match_frac_thresh + config.economy.reuse_margin),
            reuse_fraction: config.tracking.match_frac_thresh * config.economy.overlap,
            max_tries: config.reloc.max_tries,
        }
    }

    /// The device.
    pub fn device(&self) -> &dyn TrackingDevice {
        self.device.as_ref()
    }

    /// Mutable access to the device, for reading from it.
    pub fn device_mut(&mut self) -> &mut dyn TrackingDevice {
        self.device.as_mut()
    }

    /// The origin of the next step.
    pub fn odometry(&mut self) -> &mut Odometry {
        &mut self.odometry
    }

    /// The sensors beside the camera.
    pub fn sensors(&self) -> &MotionSensors {
        &self.sensors
    }

    /// See [`Tracker::sensors`].
    pub fn sensors_mut(&mut self) -> &mut MotionSensors {
        &mut self.sensors
    }

    /// Makes `frame` the device's current frame.
    pub fn encode(&mut self, frame: &Frame<'_>) -> Result<(), SlamError> {
        let encoded = self.device.encode(&frame.image);
        encoded.map_err(|error| match error {
            DeviceError::Image(source) => SlamError::Image {
                index: frame.index,
                source,
            },
            error => error.into(),
        })
    }

    /// Lets the device begin with the image that comes after the current frame.
    pub fn expect(&mut self, image: &RawImage<'_>) -> Result<(), SlamError> {
        Ok(self.device.expect(image)?)
    }

    /// Starts a map with the frame if it has usable pixels.
    pub fn start_map(&mut self, frame: &Frame<'_>, map: &mut MapLink) -> Result<Step, SlamError> {
        match self.is_usable(frame)? && map.has_room() {
            true => self.start_submap(frame, map),
            false => Ok((State::Empty, FrameOutcome::lost())),
        }
    }

    /// Tracks the frame, number `number` of the history, against the active keyframe. The inner
    /// error leaves the active keyframe unchanged.
    pub fn track(
        &mut self,
        frame: &Frame<'_>,
        number: usize,
        active: ActiveKeyframe,
        map: &mut MapLink,
    ) -> Result<Result<Step, Loss>, SlamError> {
        if let Some(colour) = shows_nothing(frame) {
            return Ok(Err(Loss {
                reason: LostReason::Unexposed(colour),
                match_fraction: 0.0,
            }));
        }
        let scale = map.poses().world_from(&Anchor::at(active.id)).scale;
        if let Some(start) = self.sensors.predict(frame.stamp, active.id, scale) {
            self.device.start_at(&start)?;
        }
        let tracked = match self.device.track()? {
            Outcome::Tracked(tracked) => tracked,
            Outcome::Lost {
                reason,
                match_fraction,
            } => {
                return Ok(Err(Loss {
                    reason,
                    match_fraction,
                }));
            }
        };
        self.blank = 0;
        let fraction = tracked.fractions.good.min(tracked.fractions.unique);
        let expected = active.expected_fraction(fraction);
        let mut active = active.with_tracked_frame(fraction);
        if let Some(Ok(found)) = self.device.depth_found() {
            active.scale = active.scale.with(&found, &tracked.keyframe_from_frame);
        }
        let anchor = Anchor {
            keyframe: active.id,
            keyframe_from_camera: tracked.keyframe_from_frame,
        };
        let world_from_keyframe = map.poses().world_from(&Anchor::at(active.id));
        let outcome = FrameOutcome {
            state: TrackingState::Tracking,
            keyframe: None,
            anchor: Some(anchor),
            match_fraction: tracked.fractions.used,
            unique_fraction: tracked.fractions.unique,
            iterations: tracked.iterations,
            step: self.odometry.step(&anchor, world_from_keyframe.scale),
            covariance: self.covariance(&tracked, &world_from_keyframe, map),
        };
        let wants = wants_keyframe(&tracked.fractions, self.min_fraction);
        let needed = POSTPONED_PART * self.min_fraction;
        if fraction < needed && map.may_grow() && !map.has_room() {
            let reason = LostReason::MappingBehind {
                found: fraction,
                needed,
            };
            return Ok(Err(Loss {
                reason,
                match_fraction: tracked.fractions.used,
            }));
        }
        let weak = |limit: &f32| wants || fraction < *limit || expected < self.min_fraction;
        if let Some(limit) = self.probe_fraction.filter(weak)
            && map.may_grow()
        {
            let min_fraction = match wants {
                true => self.reuse_fraction.max(fraction),
                false => limit,
            };
            let asked = self.probe(frame, number, active, &anchor, (wants, min_fraction), map)?;
            match asked {
                (State::Tracking(now), None) => active = now,
                (state, place) => {
                    let anchor = place.or(outcome.anchor);
                    return Ok(Ok((state, FrameOutcome { anchor, ..outcome })));
                }
            }
        }
        let unchanged = (State::Tracking(active), outcome);
        Ok(Ok(if !wants {
            unchanged
        } else if !map.may_grow() {
            self.change_keyframe(number, active, anchor, outcome, map)?
        } else if !map.has_room() {
            map.postpone();
            unchanged
        } else {
            self.add_keyframe(frame, active, anchor, outcome, map)?
        }))
    }

    /// Searches for a lost camera with the frame if it has usable pixels. A frame without any does
    /// not count as a try, so that all tries remain when the lens is uncovered.
    pub fn search(
        &mut self,
        frame: &Frame<'_>,
        number: usize,
        search: Search,
        map: &mut MapLink,
    ) -> Result<Step, SlamError> {
        match self.is_usable(frame)? {
            true => self.relocalise(frame, number, search, map),
            false => Ok((State::Lost(search), FrameOutcome::lost())),
        }
    }

    /// Searches for a lost camera with a usable frame.
    pub fn relocalise(
        &mut self,
        frame: &Frame<'_>,
        number: usize,
        search: Search,
        map: &mut MapLink,
    ) -> Result<Step, SlamError> {
        self.blank = 0;
        let lost = Ok((State::Lost(search), FrameOutcome::lost()));
        if let Some((anchor, _)) = self.sensors.bridge(frame.stamp, map.poses()) {
            map.expect_at(map.poses().world_from(&anchor));
        }
        match search.next_step(map.may_grow(), self.max_tries) {
            SearchStep::Wait => return lost,
            _ if !map.has_room() => return lost,
            SearchStep::StartSubmap => return self.give_up(frame, search, map),
            SearchStep::Ask => {}
        }
        let handle = self.device.stash_frame()?;
        let motion = self.sensors.since_keyframe(frame.stamp);
        let reply = map.relocalise(frame, handle, motion)?;
        let asked = State::Lost(search).asked(Question {
            frame: number,
            then: None,
        });
        let Some(reply) = reply else {
            return Ok((asked, FrameOutcome::lost()));
        };
        let (state, found) = self.accept(asked, reply, map)?;
        if let Some(place) = found {
            let found = FrameOutcome::at(TrackingState::Relocalised, place);
            return Ok((state, found));
        }
        match state {
            State::Lost(search)
                if search.next_step(map.may_grow(), self.max_tries) == SearchStep::StartSubmap =>
            {
                self.give_up(frame, search, map)
            }
            state => Ok((state, FrameOutcome::lost())),
        }
    }

    /// Handles the mapper's reply about a frame's place. Later frames are tracked against the
    /// keyframe in the reply.
    pub fn accept(
        &mut self,
        state: State,
        reply: Reply,
        map: &mut MapLink,
    ) -> Result<(State, Option<Place>), SlamError> {
        let found = reply.found.filter(|_| !state.has_moved_on());
        let Some(found) = found else {
            return Ok((state.not_found(), None));
        };
        map.set_hint(None);
        if let State::Tracking(active) = state {
            // The reply is a nearer keyframe.
            self.leave(&active, map)?;
        }
        let (place, lent, handle) = match found {
            Found::Keyframe(id, handle) => {
                map.found_as_keyframe(id);
                (Place::of_keyframe(id), false, handle)
            }
            Found::At(anchor, handle, loan) => {
                let keyframe = None;
                map.use_loan(loan);
                (Place { keyframe, anchor }, true, handle)
            }
        };
        self.device.track_against(&handle)?;
        let left = match state {
            State::Tracking(active) => Some(active.id),
            State::Empty | State::Lost(_) => None,
        };
        let state = State::found(place.anchor.keyframe, lent, left);
        Ok((state, Some(place)))
    }

    /// Hands off the final pointmap of the active keyframe, or returns it to the map, which keeps its own.
    pub fn leave(&mut self, active: &ActiveKeyframe, map: &mut MapLink) -> Result<(), SlamError> {
        match active.lent {
            true => map.return_loan(),
            false => {
                let handle = self.device.stash_pointmap()?;
                let (own, tracked) = (self.keyframe_scale()?, active.scale.scale());
                tracing::debug!(id = active.id, ?own, ?tracked, "scale by depth");
                map.finish_keyframe(active.id, handle, own.or(tracked));
            }
        }
        Ok(())
    }

    /// Counts a frame without a usable pixel, and tests the network after several.
    pub fn blank_frame(&mut self) -> Result<(), SlamError> {
        self.blank += 1;
        if self.blank == BLANK_FRAMES {
            tracing::warn!(
                "{BLANK_FRAMES} consecutive frames without a usable pixel; testing the network"
            );
            self.device.self_test()?;
        }
        Ok(())
    }

    /// Decodes the frame alone to determine whether it has usable pixels, if it shows anything.
    fn is_usable(&mut self, frame: &Frame<'_>) -> Result<bool, SlamError> {
        if shows_nothing(frame).is_some() {
            return Ok(false);
        }
        let usable = self.device.decode_single()? > 0;
        if !usable {
            let pixels = self.device.shape().pixels();
            tracing::info!("still lost: {}", LostReason::UnusableOutput(pixels));
            self.blank_frame()?;
        }
        Ok(usable)
    }

    /// Starts a submap at the last known pose, unconnected to the map so far.
    fn start_submap(&mut self, frame: &Frame<'_>, map: &mut MapLink) -> Result<Step, SlamError> {
        self.blank = 0;
        let handle = self.device.start_keyframe()?;
        let made = (handle, self.keyframe_scale()?);
        let place = map.add_keyframe(frame, made, None, None)?;
        let outcome = FrameOutcome::at(TrackingState::Initialising, place);
        Ok((State::started(place.anchor.keyframe), outcome))
    }

    fn give_up(
        &mut self,
        frame: &Frame<'_>,
        search: Search,
        map: &mut MapLink,
    ) -> Result<Step, SlamError> {
        let bridge = self.sensors.bridge(frame.stamp, map.poses());
        if let Some((anchor, _)) = bridge {
            return self.join_by_odometry(frame, anchor, map);
        }
        tracing::warn!(
            "frame {}: not found in {} tries, starting a new submap",
            frame.index,
            search.tries
        );
        self.start_submap(frame, map)
    }

    /// Goes on in the same submap with the frame as keyframe, at the place where odometry says it is.
    fn join_by_odometry(
        &mut self,
        frame: &Frame<'_>,
        anchor: Anchor,
        map: &mut MapLink,
    ) -> Result<Step, SlamError> {
        tracing::info!("frame {}: the map goes on by wheel odometry", frame.index);
        self.blank = 0;
        let handle = self.device.start_keyframe()?;
        let motion = self.sensors.since_keyframe(frame.stamp);
        let made = (handle, self.keyframe_scale()?);
        let place = map.add_keyframe(frame, made, Some(anchor), motion)?;
        let outcome = FrameOutcome::at(TrackingState::Initialising, place);
        Ok((State::started(place.anchor.keyframe), outcome))
    }

    /// Makes the frame, tracked to `anchor`, the active keyframe.
    fn add_keyframe(
        &mut self,
        frame: &Frame<'_>,
        active: ActiveKeyframe,
        anchor: Anchor,
        outcome: FrameOutcome,
        map: &mut MapLink,
    ) -> Result<Step, SlamError> {
        self.leave(&active, map)?;
        let handle = self.device.start_keyframe()?;
        let made = (handle, self.keyframe_scale()?);
        let motion = self
            .sensors
            .keyframe_motion(frame.stamp, &anchor, map.poses());
        let place = map.add_keyframe(frame, made, Some(anchor), motion)?;
        let outcome = FrameOutcome {
            keyframe: place.keyframe,
            anchor: Some(place.anchor),
            ..outcome
        };
        let (id, asked) = (place.anchor.keyframe, active.asked);
        Ok((State::started_with_open_request(id, asked), outcome))
    }

    /// In a frozen map, requests a nearer keyframe if there is one.
    fn change_keyframe(
        &mut self,
        number: usize,
        active: ActiveKeyframe,
        anchor: Anchor,
        outcome: FrameOutcome,
        map: &mut MapLink,
    ) -> Result<Step, SlamError> {
        let unchanged = State::Tracking(active);
        if active.asked.is_some() || !map.has_room() {
            return Ok((unchanged, outcome));
        }
        let nearer = {
            let (poses, table) = (map.poses(), map.poses().shared().load());
            frozen_map::nearer(&table, &anchor, &poses.world_from(&anchor))
        };
        let Some(there) = nearer else {
            return Ok((unchanged, outcome));
        };
        let asked = unchanged.asked(Question {
            frame: number,
            then: Some(anchor),
        });
        let Some(reply) = map.borrow_keyframe(there)? else {
            return Ok((asked, outcome));
        };
        let (state, place) = self.accept(asked, reply, map)?;
        let anchor = place.map_or(anchor, |place| place.anchor);
        let outcome = FrameOutcome {
            anchor: Some(anchor),
            ..outcome
        };
        Ok((state, outcome))
    }

    /// The measured scale of the active keyframe.
    fn keyframe_scale(&mut self) -> Result<Option<KeyframeScale>, DeviceError> {
        Ok(self.device.keyframe_scale()?.map(KeyframeScale::from))
    }

    fn covariance(
        &self,
        tracked: &Tracked,
        world_from_keyframe: &Sim3,
        map: &MapLink,
    ) -> Option<Covariance6> {
        let frame = &tracked.keyframe_from_frame;
        let scale = map.poses().shared().load().scale;
        covariance_of_camera(
            &tracked.fit,
            self.device.shape().pixels_per_patch(),
            scale.map(|scale| scale.sigma),
            frame,
            world_from_keyframe,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_below_the_fraction_wants_to_be_a_keyframe() {
        let wants = |good: f32, unique: f32| {
            let fractions = Fractions {
                geometric: 1.0,
                used: 1.0,
                good,
                unique,
            };
            wants_keyframe(&fractions, 0.333)
        };
        assert!(!wants(0.333, 0.333), "the limit itself is sufficient");
        assert!(!wants(1.0, 1.0));
        let below = 0.333_f32.next_down();
        assert!(wants(below, 0.333) && wants(0.333, below), "either counts");
        assert!(wants(0.0, 1.0) && wants(1.0, 0.0));
    }

    #[test]
    fn a_fraction_above_one_makes_every_frame_a_keyframe_and_zero_none() {
        let all = Fractions {
            geometric: 1.0,
            used: 1.0,
            good: 1.0,
            unique: 1.0,
        };
        assert!(wants_keyframe(&all, 1.01));
        assert!(!wants_keyframe(&Fractions::default(), 0.0));
    }
}

//! Input and output of processing a frame.

use super::metric::gravity::Up;
use super::pose_table::Anchor;
use super::sensors::Bridge;
use super::uncertainty::Covariance6;
use crate::image::encoding::RawImage;
use crate::map::{FrameRecord, TrackingState};
use crate::time::Stamp;
use nalgebra::Isometry3;
use std::ops::Deref;

/// A camera image.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Index in the source.
    pub index: usize,
    /// Time of the image.
    pub stamp: Stamp,
    /// Pixels in the format for which the device's preprocessor was created; without a
    /// preprocessor, RGB at the network's input size.
    pub image: RawImage<'a>,
}

/// Whether tracking may wait for mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pace {
    /// Files: every frame counts, so tracking waits while the mapping queue is full, and for
    /// relocalisation.
    #[default]
    EveryFrame,
    /// A live camera: tracking never waits; keyframes are postponed while mapping is behind.
    Live,
}

/// The result of processing a frame: its record, which the history keeps, and data that is only
/// valid now. The fields of the record can be accessed directly (`tracked.state`).
#[derive(Debug, Clone, PartialEq)]
pub struct TrackedFrame {
    /// State, pose, fractions and times.
    pub record: FrameRecord,
    /// Motion since the previous frame, in metres: this camera's pose in the previous camera frame.
    /// Both were tracked against the same keyframe, so it is unaffected by global optimisation in
    /// between, except that it uses the keyframe's current scale. If wheel odometry bridges either
    /// frame, the motion by wheels. Otherwise `None` if either frame was not tracked.
    pub step: Option<Isometry3<f64>>,
    /// Covariance of the pose about the world axes, relative to the keyframe that the frame was
    /// tracked against. `None` if the frame was not tracked.
    pub covariance: Option<Covariance6>,
    /// The place by wheel odometry while the camera is lost, which `world_from_camera` then follows. `None` otherwise.
    pub bridge: Option<Bridge>,
    /// Up in the world of the map by an accelerometer, once known to 3.5 degrees.
    pub up: Option<Up>,
}

impl Deref for TrackedFrame {
    type Target = FrameRecord;

    fn deref(&self) -> &FrameRecord {
        &self.record
    }
}

/// Result of a stage, before the world pose is known.
#[derive(Debug, Clone, Copy)]
pub struct FrameOutcome {
    pub state: TrackingState,
    /// The keyframe created from the frame, if any.
    pub keyframe: Option<u32>,
    /// `None` while lost.
    pub anchor: Option<Anchor>,
    pub match_fraction: f32,
    pub unique_fraction: f32,
    pub iterations: u32,
    pub step: Option<Isometry3<f64>>,
    pub covariance: Option<Covariance6>,
}

impl FrameOutcome {
    /// A frame without a pose.
    pub fn lost() -> Self {
        Self {
            state: TrackingState::Lost,
            keyframe: None,
            anchor: None,
            match_fraction: 0.0,
            unique_fraction: 0.0,
            iterations: 0,
            step: None,
            covariance: None,
        }
    }

    /// A frame at `place`, located without tracking.
    pub fn at(state: TrackingState, place: Place) -> Self {
        Self {
            state,
            keyframe: place.keyframe,
            anchor: Some(place.anchor),
            ..Self::lost()
        }
    }
}

/// The place of a frame, and the keyframe created from it, if any.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    pub keyframe: Option<u32>,
    pub anchor: Anchor,
}

impl Place {
    /// The place of a frame that became keyframe `id`.
    pub fn of_keyframe(id: u32) -> Self {
        Self {
            keyframe: Some(id),
            anchor: Anchor::at(id),
        }
    }
}

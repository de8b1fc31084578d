//! State shared by the node's threads.

use super::correction_slot::Correction;
use super::depth_inbox::DepthInbox;
use super::depth_slot::DepthSlot;
use super::inbox::Inbox;
use super::incident_requests::IncidentRequests;
use super::masks::MaskSlot;
use super::moment::Moment;
use super::motion_inbox::MotionInbox;
use super::page_feed::PageFeed;
use super::pulses::Pulses;
use super::settings::Settings;
use super::splat_slot::SplatSlot;
use super::status::Status;
use super::supervisor::Supervisor;
use super::tf_listener::TfBuffer;
use crate::geometry::{Calibration, Sim3};
use crate::map::grid::GridOptions;
use crate::slam::{PoseTable, TrackedFrame};
use crate::slam_builder::SlamBuilder;
use crate::slam_builder::splat::Asker;
use crate::source::ImuReading;
use crate::source::camera_info;
use crate::time::Stamp;
use crate::wire::messages::sensor::CameraInfo;
use arc_swap::{ArcSwap, ArcSwapOption};
use nalgebra::Isometry3;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Pose of the camera on the robot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mount {
    /// `base_from_camera`
    On(Isometry3<f64>),
    /// The camera's optical frame is the robot's base frame.
    CameraAlone,
}

/// Events for the output thread.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "the queue has a fixed size, and the tracking thread does not allocate"
)]
pub enum Event {
    /// A new map starts.
    NewMap {
        /// Reason.
        why: String,
        mount: Mount,
        /// The camera's optical frame.
        camera_frame: Arc<str>,
        /// Pose of a loaded map.
        loaded: Option<LoadedPlace>,
    },
    /// A frame was processed, at this time.
    Frame(TrackedFrame, Moment),
    /// The robot's pose in the map, according to a user or another node.
    InitialPose(Isometry3<f64>),
    /// The map frame's origin moves to where the robot is.
    SetOrigin(SyncSender<bool>),
}

/// Pose of a loaded map in the map frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadedPlace {
    /// `map_from_world` of the node that saved it; `None` if it was not saved by a node.
    pub map_from_world: Option<Isometry3<f64>>,
    /// The first keyframe's camera in the map's world.
    pub first: Sim3,
}

/// The poses of one map; each map has its own allocation.
pub type Poses = Arc<ArcSwap<PoseTable>>;

/// State shared by all threads.
pub struct Shared {
    /// Creates SLAM for the received images.
    pub builder: SlamBuilder,
    /// Clouds and depth images contain points of at least this confidence (`output.C_conf`).
    pub min_confidence: f32,
    /// How the grid is made, if it is asked for (`grid.enable`).
    pub grid: Option<GridOptions>,
    /// Full name of the node.
    pub name: String,
    /// Restarts threads that panic.
    pub supervisor: Supervisor,
    /// The current work of the threads.
    pub pulses: Pulses,
    /// Current values of the parameters.
    pub settings: ArcSwap<Settings>,
    /// Input of the tracking thread.
    pub inbox: Inbox,
    /// Counters and state for diagnostics.
    pub status: Status,
    /// Transforms from other nodes.
    pub tf: Mutex<TfBuffer>,
    /// The camera's calibration.
    pub camera: Mutex<CameraSlot>,
    /// Input of the output thread.
    pub events: SyncSender<Event>,
    /// Poses of the current map; `None` before the first.
    pub poses: ArcSwapOption<Poses>,
    /// Pose of the map in the map frame, for the clouds.
    pub placement: ArcSwapOption<Placement>,
    /// Input of the transforms thread.
    pub correction: Correction,
    /// The newest mask.
    pub mask: MaskSlot,
    /// The newest depth images of a sensor.
    pub depth_input: DepthInbox,
    /// The depth sensor's calibration.
    pub depth_camera: Mutex<CameraSlot>,
    /// Poses of the base by wheels, which no image has used.
    pub odometry: MotionInbox<Isometry3<f64>>,
    /// Rates of a gyro, likewise.
    pub rates: MotionInbox<ImuReading>,
    /// Input of the depth thread.
    pub depth: DepthSlot,
    /// Input of the splats thread.
    pub splat_slot: SplatSlot,
    /// The Gaussian map, once there is one.
    pub splats: ArcSwapOption<Asker>,
    /// The live page.
    pub page: PageFeed,
    /// Takes requests for incidents.
    pub incidents: IncidentRequests,
    /// Whether the threads should end.
    pub closing: AtomicBool,
    /// Whether the node is active.
    pub active: AtomicBool,
    /// Whether `~/pause` was called.
    pub paused: AtomicBool,
    /// Time of `/clock` in nanoseconds; 0 before the first message.
    pub sim_time: AtomicI64,
}

/// Pose of SLAM's world in the map frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// `map_from_world`
    pub map_from_world: Isometry3<f64>,
    /// The camera's optical frame.
    pub camera_frame: Arc<str>,
    pub mount: Mount,
    /// Submap of the last pose.
    pub submap: u32,
}

impl Shared {
    /// The time for messages that do not belong to an image.
    pub fn now(&self) -> Stamp {
        if self.settings.load().use_sim_time {
            let nanos = self.sim_time.load(Ordering::Relaxed);
            return Stamp { nanos };
        }
        Stamp::now()
    }

    /// The present moment on the node's clock.
    pub fn moment(&self) -> Moment {
        let simulated = self.settings.load().use_sim_time;
        let nanos = simulated.then(|| self.sim_time.load(Ordering::Relaxed));
        Moment::new(Instant::now(), nanos.filter(|nanos| *nanos > 0))
    }

    /// Sends an event to the output thread; if the queue is full, the event is dropped and counted.
    pub fn tell(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            self.status.unpublished.add();
        }
    }

    /// Transforms from other nodes.
    pub fn tf(&self) -> MutexGuard<'_, TfBuffer> {
        self.tf.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The camera's calibration.
    pub fn camera(&self) -> MutexGuard<'_, CameraSlot> {
        self.camera.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Number of consecutive deviating messages before a new calibration is accepted.
const IN_A_ROW: usize = 10;

/// The calibration according to camera_info.
#[derive(Debug, Default)]
pub struct CameraSlot {
    current: Option<Calibration>,
    other: Option<Calibration>,
    in_a_row: usize,
    problem: Option<String>,
}

impl CameraSlot {
    /// Handles a message. A deviating calibration is accepted only if it persists.
    pub fn take(&mut self, info: &CameraInfo) {
        let calibration = match camera_info::calibration(info) {
            Ok(calibration) => calibration,
            Err(error) => {
                self.problem = Some(error.to_string());
                return;
            }
        };
        self.problem = None;
        if self.current.is_none() {
            self.current = Some(calibration);
            return;
        }
        if self.current == Some(calibration) {
            (self.other, self.in_a_row) = (None, 0);
            return;
        }
        self.in_a_row = match self.other == Some(calibration) {
            true => self.in_a_row + 1,
            false => 1,
        };
        self.other = Some(calibration);
        if self.in_a_row >= IN_A_ROW {
            (self.current, self.other, self.in_a_row) = (Some(calibration), None, 0);
        }
    }

    /// The calibration, or a message about what is missing.
    pub fn get(&self) -> Result<Calibration, String> {
        self.current.ok_or_else(|| match &self.problem {
            Some(problem) => format!("{problem}; fix it, or run with use_calib:=false"),
            None => "no camera_info received; start its publisher, remap camera_info, set camera_info_qos, or \
                     run with use_calib:=false"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(fx: f64) -> CameraInfo {
        CameraInfo {
            width: 640,
            height: 480,
            k: [fx, 0.0, 320.0, 0.0, fx, 240.0, 0.0, 0.0, 1.0],
            ..Default::default()
        }
    }

    #[test]
    fn a_calibration_changes_only_when_it_stays_changed() {
        let mut slot = CameraSlot::default();
        assert!(slot.get().unwrap_err().contains("no camera_info received"));
        slot.take(&info(0.0));
        assert!(slot.get().unwrap_err().contains("not calibrated"));
        slot.take(&info(500.0));
        for _ in 0..30 {
            slot.take(&info(400.0));
            slot.take(&info(500.0));
            slot.take(&info(0.0));
        }
        assert_eq!(slot.get().unwrap().intrinsics.fx, 500.0);
        for _ in 0..IN_A_ROW {
            slot.take(&info(400.0));
        }
        assert_eq!(slot.get().unwrap().intrinsics.fx, 400.0);
    }
}

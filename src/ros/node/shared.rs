//! What the node's threads share.

use super::depth::DepthSlot;
use super::engine::EngineFactory;
use super::inbox::Inbox;
use super::settings::Settings;
use super::status::Status;
use super::tf::TfBuffer;
use crate::geometry::{Calibration, Sim3};
use crate::map::FrameRecord;
use crate::ros::camera;
use crate::ros::messages::sensor::CameraInfo;
use crate::slam::{Covariance6, PoseTable};
use crate::time::Stamp;
use arc_swap::{ArcSwap, ArcSwapOption};
use nalgebra::Isometry3;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Where the camera sits on the robot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mount {
    /// `base_from_camera`
    On(Isometry3<f64>),
    /// The camera's optical frame is the robot.
    CameraAlone,
}

/// What the output thread is told.
#[derive(Debug)]
pub enum Event {
    /// A new map begins; why, where the camera sits, and its optical frame.
    NewMap {
        /// Why.
        why: String,
        /// Where the camera sits.
        mount: Mount,
        /// Its optical frame.
        camera_frame: Arc<str>,
        /// Where a map that was loaded lies.
        loaded: Option<LoadedPlace>,
    },
    /// A frame was processed.
    Pose(Box<PoseEvent>),
    /// Somebody says where the robot is in the map.
    InitialPose(Isometry3<f64>),
}

/// Where a loaded map lies in the map frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadedPlace {
    /// `map_from_world` of the node that saved it; none if it was no node.
    pub map_from_world: Option<Isometry3<f64>>,
    /// The first keyframe's camera in the map's world.
    pub first: Sim3,
}

/// A processed frame.
#[derive(Debug, Clone)]
pub struct PoseEvent {
    /// What became of it.
    pub record: FrameRecord,
    /// The camera's step since the frame before, metres.
    pub step: Option<Isometry3<f64>>,
    /// How far the camera may be off, about the world's axes.
    pub covariance: Option<Covariance6>,
    /// When SLAM was done with it.
    pub done: Instant,
}

/// The poses of one map, in an allocation of its own: another map has another one.
pub type Poses = Arc<ArcSwap<PoseTable>>;

/// Shared by all threads.
pub struct Shared {
    /// Makes engines.
    pub factory: Arc<dyn EngineFactory>,
    /// The parameters' values now.
    pub settings: ArcSwap<Settings>,
    /// For the tracking thread.
    pub inbox: Inbox,
    /// What is counted and told.
    pub status: Status,
    /// Others' transforms.
    pub tf: Mutex<TfBuffer>,
    /// The camera's calibration.
    pub camera: Mutex<CameraSlot>,
    /// For the output thread.
    pub events: SyncSender<Event>,
    /// Of the map that is being made; none before the first.
    pub poses: ArcSwapOption<Poses>,
    /// The map's place in the map frame, for the clouds.
    pub placement: ArcSwapOption<Placement>,
    /// For the depth thread.
    pub depth: DepthSlot,
    /// Whether the threads are to end.
    pub closing: AtomicBool,
    /// Whether the node is active.
    pub active: AtomicBool,
    /// Whether `~/pause` was called.
    pub paused: AtomicBool,
    /// Nanoseconds of `/clock`; 0 before it came.
    pub sim_time: AtomicI64,
}

/// Where SLAM's world lies in the map frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// `map_from_world`
    pub map_from_world: Isometry3<f64>,
    /// Of the camera's images.
    pub camera_frame: Arc<str>,
    /// The submap that the last pose belongs to.
    pub submap: u32,
}

impl Shared {
    /// The time that messages get which belong to no image.
    pub fn now(&self) -> Stamp {
        if self.settings.load().use_sim_time {
            let nanos = self.sim_time.load(Ordering::Relaxed);
            return Stamp { nanos };
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
        Stamp { nanos }
    }

    /// Tells the output thread; if it is far behind, the event is dropped and counted.
    pub fn tell(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            self.status.unpublished.add();
        }
    }

    /// Others' transforms.
    pub fn tf(&self) -> MutexGuard<'_, TfBuffer> {
        self.tf.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The camera's calibration.
    pub fn camera(&self) -> MutexGuard<'_, CameraSlot> {
        self.camera.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Messages in a row that differ before a new calibration is believed.
const IN_A_ROW: usize = 10;

/// The calibration as camera_info says it.
#[derive(Debug, Default)]
pub struct CameraSlot {
    current: Option<Calibration>,
    other: Option<Calibration>,
    in_a_row: usize,
    problem: Option<String>,
}

impl CameraSlot {
    /// Takes a message. One that differs from those before counts only if it stays so.
    pub fn take(&mut self, info: &CameraInfo) {
        let calibration = match camera::calibration(info) {
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

    /// The calibration, or what is missing.
    pub fn get(&self) -> Result<Calibration, String> {
        self.current.ok_or_else(|| match &self.problem {
            Some(problem) => format!("{problem}; mend it, or run with use_calibration:=false"),
            None => "camera_info has not come; start its publisher, remap camera_info, set camera_info_qos, or \
                     run with use_calibration:=false"
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
        assert!(slot.get().unwrap_err().contains("camera_info has not come"));
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

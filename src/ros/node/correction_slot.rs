//! Where the output thread leaves `map -> odom` for the transforms thread.

use super::moment::Moment;
use crate::time::Stamp;
use nalgebra::Isometry3;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The newest correction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    pub map_from_odom: Isometry3<f64>,
    /// Stamp of the newest frame, and when it was handled.
    pub stamp: Stamp,
    pub at: Moment,
    /// When a frame with a pose was handled.
    pub posed: Moment,
    pub lost: bool,
}

/// Where the output thread leaves `map -> odom` for the transforms thread.
#[derive(Debug, Default)]
pub struct Correction(Mutex<Option<Known>>);

impl Correction {
    /// A frame of this stamp was tracked, and handled at `at`.
    pub fn tracked(&self, map_from_odom: &Isometry3<f64>, stamp: Stamp, at: Moment) {
        *self.lock() = Some(Known {
            map_from_odom: *map_from_odom,
            stamp,
            at,
            posed: at,
            lost: false,
        });
    }

    /// A frame of this stamp, which was handled at `at`, has no pose; the last correction stays. The robot is lost once
    /// it has been without a pose for `patience`.
    pub fn lost(&self, stamp: Stamp, at: Moment, patience: Duration) {
        if let Some(known) = self.lock().as_mut() {
            let lost = known.lost || at.since(&known.posed) >= patience;
            (known.stamp, known.at, known.lost) = (stamp, at, lost);
        }
    }

    /// The newest correction; `None` before the first.
    pub fn get(&self) -> Option<Known> {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_lost_camera_keeps_the_correction_and_its_time_runs_on() {
        let slot = Correction::default();
        let at = Moment::from(Instant::now());
        slot.lost(Stamp { nanos: 1 }, at, Duration::ZERO);
        assert_eq!(slot.get(), None, "no correction is known yet");
        let given = Isometry3::translation(1.0, 2.0, 0.0);
        slot.tracked(&given, Stamp { nanos: 2 }, at);
        slot.lost(Stamp { nanos: 3 }, at, Duration::from_secs(600));
        assert!(
            !slot.get().expect("a correction").lost,
            "wheels may be late"
        );
        slot.lost(Stamp { nanos: 3 }, at, Duration::ZERO);
        let known = slot.get().expect("a correction");
        assert_eq!((known.map_from_odom, known.stamp.nanos), (given, 3));
        assert!(known.lost);
    }
}

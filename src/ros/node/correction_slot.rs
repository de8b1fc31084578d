//! Where the output thread leaves `map -> odom` for the transforms thread.

use crate::time::Stamp;
use nalgebra::Isometry3;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// The newest correction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    pub map_from_odom: Isometry3<f64>,
    /// Stamp of the newest frame, and when it was handled.
    pub stamp: Stamp,
    pub at: Instant,
    pub lost: bool,
}

/// Where the output thread leaves `map -> odom` for the transforms thread.
#[derive(Debug, Default)]
pub struct Correction(Mutex<Option<Known>>);

impl Correction {
    /// A frame of this stamp was tracked.
    pub fn tracked(&self, map_from_odom: &Isometry3<f64>, stamp: Stamp) {
        *self.lock() = Some(Known {
            map_from_odom: *map_from_odom,
            stamp,
            at: Instant::now(),
            lost: false,
        });
    }

    /// The camera was lost in a frame of this stamp; the last correction stays.
    pub fn lost(&self, stamp: Stamp) {
        if let Some(known) = self.lock().as_mut() {
            (known.stamp, known.at, known.lost) = (stamp, Instant::now(), true);
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

    #[test]
    fn a_lost_camera_keeps_the_correction_and_its_time_runs_on() {
        let slot = Correction::default();
        slot.lost(Stamp { nanos: 1 });
        assert_eq!(slot.get(), None, "no correction is known yet");
        let given = Isometry3::translation(1.0, 2.0, 0.0);
        slot.tracked(&given, Stamp { nanos: 2 });
        slot.lost(Stamp { nanos: 3 });
        let known = slot.get().expect("a correction");
        assert_eq!((known.map_from_odom, known.stamp.nanos), (given, 3));
        assert!(known.lost);
    }
}

//! The topic `mask`: which pixels of the camera's images are hidden.

use super::inbox::Arrival;
use super::moment::Moment;
use super::status::Status;
use crate::slam::Slam;
use crate::source::image_message;
use crate::wire::Payload;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Maximum age of a mask; an older one hides nothing, because its publisher has stopped.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The newest mask that the tracking thread has not read.
#[derive(Debug, Default)]
pub struct MaskSlot(Mutex<Option<Arrival>>);

impl MaskSlot {
    /// Stores a `sensor_msgs/Image` that arrived at `at`, in place of an older one.
    pub fn put(&self, payload: Payload, at: Moment) {
        let arrival = Arrival { payload, at };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(arrival);
    }

    fn take(&self) -> Option<Arrival> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The mask in use.
#[derive(Debug, Default)]
pub struct Masking {
    /// When it arrived.
    since: Option<Moment>,
}

impl Masking {
    /// Makes `slam` use the newest mask from now on, or no mask if that one is too old at `now`. A mask that cannot be
    /// used is reported, and the one before stays until it is too old.
    pub fn update(&mut self, slot: &MaskSlot, slam: &mut Slam, status: &Status, now: Moment) {
        if let Some(arrival) = slot.take() {
            let read = image_message::raw(&arrival.payload).map_err(|error| error.to_string());
            let set = read.and_then(|(_, mask)| {
                let set = slam.set_mask(Some(&mask));
                set.map_err(|error| error.to_string())
            });
            match set {
                Ok(()) => self.since = Some(arrival.at),
                Err(error) => status.warn("mask", || format!("ignoring a mask: {error}")),
            }
        }
        if self.since.is_some_and(|since| now.since(&since) > MAX_AGE) {
            self.since = None;
            status.warn("old mask", || {
                let age = MAX_AGE.as_secs_f64();
                format!("no usable mask for {age} s: only mask_file hides pixels until one arrives")
            });
            if let Err(error) = slam.set_mask(None) {
                status.warn("mask", || error.to_string());
            }
        }
    }
}

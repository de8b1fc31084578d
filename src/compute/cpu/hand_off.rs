//! Items handed from tracking to mapping.

use super::unknown;
use crate::compute::device::{self, DeviceError, Handle};
use crate::compute::fusion::FusedPointmap;
use crate::image::RgbImage;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Points and average confidences of a keyframe at one point in time.
#[derive(Debug)]
pub struct Pointmap {
    /// Points, `N × 3`.
    pub points: Arc<Vec<f32>>,
    /// Average confidences, `N`.
    pub confidence: Arc<Vec<f32>>,
}

impl Pointmap {
    /// A copy of the current state of `map`.
    pub fn of(map: &FusedPointmap) -> Self {
        Self {
            points: Arc::new(map.points.clone()),
            confidence: Arc::new(map.average_confidences().collect()),
        }
    }
}

/// The item that a handle refers to.
#[derive(Debug, Clone)]
pub struct HandOffItem {
    /// Image and `T × C` tokens, if the frame is to become a keyframe.
    pub frame: Option<(Arc<RgbImage>, Arc<Vec<f32>>)>,
    pub pointmap: Arc<Pointmap>,
    /// Depth of the frame in metres, `N`; empty without.
    pub depth: Arc<Vec<f32>>,
}

/// Items indexed by handle number.
#[derive(Debug, Default)]
pub struct HandOff(Mutex<Vec<Option<HandOffItem>>>);

impl HandOff {
    /// Stores an item and returns its handle.
    pub fn put(self: &Arc<Self>, item: HandOffItem) -> Handle {
        let mut items = self.lock();
        let number = match items.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                items.push(None);
                items.len() - 1
            }
        };
        items[number] = Some(item);
        // Bounded by the number of keyframes that may wait for the mapper, which is small.
        Handle::new(number as u32, Arc::clone(self) as Arc<dyn device::HandOff>)
    }

    /// The item that `handle` refers to.
    pub fn get(&self, handle: &Handle) -> Result<HandOffItem, DeviceError> {
        let number = handle.number();
        let item = self.lock().get(number as usize).cloned().flatten();
        item.ok_or(unknown("handle", number))
    }

    /// No code under the lock can panic halfway, so the items are valid even if the lock is
    /// poisoned.
    fn lock(&self) -> MutexGuard<'_, Vec<Option<HandOffItem>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl device::HandOff for HandOff {
    fn discard(&self, number: u32) {
        if let Some(item) = self.lock().get_mut(number as usize) {
            *item = None;
        }
    }
}

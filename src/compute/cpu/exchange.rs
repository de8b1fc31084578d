//! What is on its way from tracking to mapping.

use super::unknown;
use crate::compute::device::{self, DeviceError, Ticket};
use crate::compute::fusion::FusedPointmap;
use crate::image::RgbImage;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Points and average confidences of a keyframe at one moment.
#[derive(Debug)]
pub struct Pointmap {
    /// `N × 3`.
    pub points: Arc<Vec<f32>>,
    /// `N`.
    pub confidence: Arc<Vec<f32>>,
}

impl Pointmap {
    /// A copy of `map` as it is.
    pub fn of(map: &FusedPointmap) -> Self {
        Self {
            points: Arc::new(map.points.clone()),
            confidence: Arc::new(map.average_confidences().collect()),
        }
    }
}

/// What a ticket stands for.
#[derive(Debug, Clone)]
pub struct Thing {
    /// Image and `T × C` tokens, of a frame that is to be a keyframe.
    pub frame: Option<(Arc<RgbImage>, Arc<Vec<f32>>)>,
    /// Its pointmap.
    pub pointmap: Arc<Pointmap>,
}

/// Things by ticket number.
#[derive(Debug, Default)]
pub struct Exchange(Mutex<Vec<Option<Thing>>>);

impl Exchange {
    /// Puts a thing down.
    pub fn put(self: &Arc<Self>, thing: Thing) -> Ticket {
        let mut things = self.lock();
        let number = match things.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                things.push(None);
                things.len() - 1
            }
        };
        things[number] = Some(thing);
        // As many as keyframes may wait for the mapper, which is a handful.
        Ticket::new(number as u32, Arc::clone(self) as Arc<dyn device::Exchange>)
    }

    /// What `ticket` stands for.
    pub fn get(&self, ticket: &Ticket) -> Result<Thing, DeviceError> {
        let number = ticket.number();
        let thing = self.lock().get(number as usize).cloned().flatten();
        thing.ok_or(unknown("ticket", number))
    }

    /// Nothing here can panic halfway, so a poisoned lock still guards whole things.
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Thing>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl device::Exchange for Exchange {
    fn discard(&self, number: u32) {
        if let Some(thing) = self.lock().get_mut(number as usize) {
            *thing = None;
        }
    }
}

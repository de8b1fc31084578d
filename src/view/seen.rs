//! Where tracking leaves the image and the matches of a frame for the server.

use crate::compute::device::SeenFrame;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Images that exist at once: one waits, one is encoded, one is filled.
const IMAGES: usize = 3;

/// A frame's image, and its matches if it was tracked.
#[derive(Debug, Default)]
pub struct Seen {
    /// Number of the frame.
    pub number: u64,
    /// Columns and rows of the network's image.
    pub size: (usize, usize),
    /// Whether the matches are those of this frame.
    pub tracked: bool,
    pub content: SeenFrame,
}

/// A slot for one image, which a newer one replaces.
#[derive(Debug, Default)]
pub struct SeenSlot(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    newest: Option<Seen>,
    /// Used again, so that no frame allocates.
    spare: heapless::Vec<Seen, IMAGES>,
}

impl SeenSlot {
    /// An image to fill.
    pub fn empty(&self) -> Seen {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Puts an image in; one that was not taken yet is dropped.
    pub fn put(&self, seen: Seen) {
        let mut places = self.lock();
        let old = places.newest.replace(seen);
        if let Some(old) = old {
            // One too many is dropped.
            let _ = places.spare.push(old);
        }
    }

    /// The newest image, if it was not taken yet.
    pub fn take(&self) -> Option<Seen> {
        self.lock().newest.take()
    }

    /// Gives an image back.
    pub fn give_back(&self, seen: Seen) {
        // One too many is dropped.
        let _ = self.lock().spare.push(seen);
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_image_wins_and_places_are_used_again() {
        let slot = SeenSlot::default();
        for number in 0..10 {
            let mut seen = slot.empty();
            seen.number = number;
            seen.content.image.resize(300, 1);
            slot.put(seen);
        }
        let newest = slot.take().expect("an image");
        assert_eq!(newest.number, 9);
        assert!(slot.take().is_none());
        let place = newest.content.image.as_ptr();
        slot.give_back(newest);
        let again = (0..IMAGES).map(|_| slot.empty());
        let again: Vec<_> = again
            .filter(|seen| !seen.content.image.is_empty())
            .collect();
        assert!(
            again
                .iter()
                .any(|seen| seen.content.image.as_ptr() == place)
        );
        assert!(again.len() < IMAGES);
    }
}

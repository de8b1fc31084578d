//! Handles to items passed between the two halves of a device.

use std::sync::Arc;

/// Storage for items on their way between the halves of a device.
pub trait HandOff: Send + Sync {
    /// Frees the item of handle `number`.
    fn discard(&self, number: u32);
}

/// Refers to an item that the tracking half has stored for the mapping half: a keyframe's image,
/// features and first pointmap, or a keyframe's final pointmap. Dropping the handle frees the item.
pub struct Handle {
    number: u32,
    hand_off: Arc<dyn HandOff>,
}

impl Handle {
    /// A handle to item `number` of `hand_off`; called by devices only.
    pub fn new(number: u32, hand_off: Arc<dyn HandOff>) -> Self {
        Self { number, hand_off }
    }

    /// Number of the item, meaningful only to the device that issued the handle.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.hand_off.discard(self.number);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.number)
    }
}

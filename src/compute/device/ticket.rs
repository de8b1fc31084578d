//! What one half of a device hands to the other.

use std::sync::Arc;

/// Where a device keeps what is on its way between its halves.
pub trait Exchange: Send + Sync {
    /// Nobody wants what ticket `number` stood for any more.
    fn discard(&self, number: u32);
}

/// Stands for one thing that the tracking half has put down for the mapping half: a keyframe's image,
/// features and first pointmap, or a keyframe's last pointmap. Its owner may drop it at any time; what it
/// stood for is then freed.
pub struct Ticket {
    number: u32,
    exchange: Arc<dyn Exchange>,
}

impl Ticket {
    /// For thing `number` of `exchange`; called by devices only.
    pub fn new(number: u32, exchange: Arc<dyn Exchange>) -> Self {
        Self { number, exchange }
    }

    /// Its number, which means something to the device that gave it out.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.exchange.discard(self.number);
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({})", self.number)
    }
}

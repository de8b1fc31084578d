//! Long work that nobody wants any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Asks whoever works for long to come to an end: copies are the same one. It may be asked several times
/// before the first is answered, and counts as asked until all of them were.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Nobody wants what is being done.
    pub fn ask(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One [`Stop::ask`] was answered: what was being done is over.
    pub fn answer(&self) {
        let fewer = |asked: usize| Some(asked.saturating_sub(1));
        // It always says yes.
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
    }

    /// Whether to come to an end.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

//! Cancellation of long operations: a solve, or making the edges of a keyframe.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Cancellation token; clones share its state. It counts requests: it stays cancelled until every
/// [`CancelToken::cancel`] has been acknowledged.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicUsize>);

impl CancelToken {
    /// Requests that the worker stop early.
    pub fn cancel(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Withdraws one [`CancelToken::cancel`]; the worker calls it when the cancelled work has
    /// ended.
    pub fn acknowledge(&self) {
        let fewer = |asked: usize| Some(asked.saturating_sub(1));
        // The closure never returns `None`, so the update cannot fail.
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
    }

    /// Whether the worker should stop early.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

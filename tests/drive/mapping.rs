//! Whether the mapping thread keeps up with tracking.

use mast3r_slam::SlamBuilder;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use testkit::faulty::Faults;

/// Counts what tracking hands to the mapping thread: keyframes, and frames that are searched for.
#[derive(Clone, Default)]
pub struct Mapping {
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    handed: AtomicUsize,
    taken: AtomicUsize,
    /// Whether the newest image was tracked, and whether it is searched for.
    tracked: AtomicBool,
    searches: AtomicBool,
}

impl Counts {
    /// A method of the device is called.
    fn call(&self, method: &str) {
        match method {
            "encode" => {
                self.tracked.store(false, Ordering::Release);
                self.searches.store(false, Ordering::Release);
            }
            "track" => self.tracked.store(true, Ordering::Release),
            "start_keyframe" => {
                self.handed.fetch_add(1, Ordering::AcqRel);
            }
            "stash_frame" => {
                // A tracked frame is stashed to look for a nearer keyframe.
                let lost = !self.tracked.load(Ordering::Acquire);
                self.searches.store(lost, Ordering::Release);
                self.handed.fetch_add(1, Ordering::AcqRel);
            }
            "accept_keyframe" => {
                self.taken.fetch_add(1, Ordering::AcqRel);
            }
            _ => {}
        }
    }
}

impl Mapping {
    /// Observes the device that `builder` makes.
    pub fn observe(&self, builder: SlamBuilder) -> SlamBuilder {
        let (counts, faults) = (Arc::clone(&self.counts), Faults::default());
        faults.set(move |method| {
            counts.call(method);
            Ok(())
        });
        builder.around_device(Arc::new(move |_, device| faults.over(device)))
    }

    /// Whether the thread works on what it was handed last, or has done so.
    pub fn keeps_up(&self) -> bool {
        let taken = self.counts.taken.load(Ordering::Acquire);
        taken >= self.counts.handed.load(Ordering::Acquire)
    }

    /// Whether it was asked where the newest image was taken.
    pub fn searches(&self) -> bool {
        self.counts.searches.load(Ordering::Acquire)
    }
}

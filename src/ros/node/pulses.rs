//! The current work of each thread of the node.

use crate::time::Pulse;
use arc_swap::ArcSwapOption;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thread whose current work takes this long stands still. One frame takes a GPU 10 ms and a CPU a second; a solve of
/// a large map may take longer, which is worth knowing too.
pub const STANDS: Duration = Duration::from_secs(5);
/// The current work of each thread.
#[derive(Debug, Default)]
pub struct Pulses {
    pub tracking: Pulse,
    /// Loading SLAM for the first image, on the tracking thread.
    pub starting: Pulse,
    pub output: Pulse,
    pub transforms: Pulse,
    pub clouds: Pulse,
    pub depth: Pulse,
    pub grid: Pulse,
    pub incidents: Pulse,
    pub splat: Pulse,
    mapping: ArcSwapOption<Pulse>,
}

impl Pulses {
    /// Watches the mapping thread of another SLAM.
    pub fn set_mapping(&self, pulse: Option<Arc<Pulse>>) {
        self.mapping.store(pulse);
    }

    /// The threads that stand still at `now`, in words; empty for none.
    pub fn standing(&self, now: Instant) -> String {
        let mapping = self.mapping.load();
        let threads = [
            ("tracking", Some(&self.tracking)),
            ("mapping", mapping.as_deref()),
            ("output", Some(&self.output)),
            ("transforms", Some(&self.transforms)),
            ("clouds", Some(&self.clouds)),
            ("depth", Some(&self.depth)),
            ("grid", Some(&self.grid)),
            ("incidents", Some(&self.incidents)),
            ("splats", Some(&self.splat)),
        ];
        let words = threads.into_iter().filter_map(|(name, pulse)| {
            let busy = pulse?.busy_for(now).filter(|busy| *busy >= STANDS)?;
            Some(format!(
                "the {name} thread has not moved for {} s",
                busy.as_secs()
            ))
        });
        words.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_stands_is_named_and_one_that_moves_or_waits_is_not() {
        let pulses = Pulses::default();
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(pulses.standing(later(60)), "");
        pulses.tracking.begin();
        let mapping = Arc::new(Pulse::default());
        pulses.set_mapping(Some(Arc::clone(&mapping)));
        assert_eq!(pulses.standing(later(4)), "");
        let words = pulses.standing(later(7));
        assert!(words.starts_with("the tracking thread has not moved for"));
        mapping.begin();
        pulses.tracking.end();
        let words = pulses.standing(later(7));
        assert!(words.contains("mapping") && !words.contains("tracking"));
        pulses.set_mapping(None);
        assert_eq!(pulses.standing(later(60)), "");
    }
}

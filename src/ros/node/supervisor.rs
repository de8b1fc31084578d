//! Supervises the node's threads: a thread that panics continues, and one that panics repeatedly
//! ends the node.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

/// Maximum number of consecutive panics of a thread that are tolerated: a single bad message
/// passes, a permanent failure does not.
const MAX_PANICS: usize = 3;

/// Stores the reason why the node must end.
#[derive(Debug, Default)]
pub struct Supervisor {
    failure: Mutex<Option<String>>,
}

/// Whether a thread continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Continue: the step did its work.
    Continue,
    /// Continue: there was no work.
    Idle,
    /// Stop: the node is closing.
    Stop,
}

impl Supervisor {
    /// Repeats `step` until it stops. A panicking step is logged and followed by the next one;
    /// after [`MAX_PANICS`] in a row, the node is told to end. Idle steps between two panics do not
    /// separate them: a thread that panics at every message may wait in between.
    pub fn run(&self, thread: &str, mut step: impl FnMut() -> Flow) {
        let mut panics = 0;
        while panics < MAX_PANICS {
            // The threads' states are consistent between steps, or reset by the next event.
            match catch_unwind(AssertUnwindSafe(&mut step)) {
                Ok(Flow::Continue) => panics = 0,
                Ok(Flow::Idle) => {}
                Ok(Flow::Stop) => return,
                Err(_) => {
                    panics += 1;
                    tracing::error!("the {thread} thread panicked; continuing");
                }
            }
        }
        self.fail(format!(
            "the {thread} thread panicked {MAX_PANICS} times in a row"
        ));
    }

    /// Tells the node to end.
    pub fn fail(&self, why: String) {
        tracing::error!("the node ends: {why}");
        self.lock().get_or_insert(why);
    }

    /// The reason why the node must end, if any.
    pub fn failure(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_survived_and_many_in_a_row_end_the_node() {
        let supervisor = Supervisor::default();
        let mut steps = 0;
        supervisor.run("test", || {
            steps += 1;
            match steps {
                1..=2 | 4..=5 => panic!("a step fell over (as this test wants it to)"),
                6 => Flow::Stop,
                _ => Flow::Continue,
            }
        });
        assert_eq!((steps, supervisor.failure()), (6, None));
        // A thread that panics at every message, with idle steps between them.
        let mut steps = 0;
        supervisor.run("test", || {
            steps += 1;
            match steps % 2 {
                0 => Flow::Idle,
                _ => panic!("a step fell over (as this test wants it to)"),
            }
        });
        assert_eq!(steps, 2 * MAX_PANICS - 1);
        let why = supervisor.failure().expect("a reason");
        assert!(why.contains("test thread panicked"), "{why}");
    }
}

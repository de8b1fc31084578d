//! Durations of the steps of a mapping event, for the log.

use std::fmt;
use std::time::{Duration, Instant};

/// Steps of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Storing the keyframe, and looking for similar ones.
    Places,
    /// Matching it with its candidates.
    Edges,
    /// Judging the edges.
    Judging,
    /// Solving.
    Solve,
    /// Keeping the graph within its bounds.
    Bounds,
    /// Removing redundant keyframes.
    Removal,
    /// Publishing the poses, and handing changes to the map's file.
    Publishing,
}

const NAMES: [&str; 7] = [
    "places",
    "edges",
    "judging",
    "solve",
    "bounds",
    "removal",
    "publishing",
];

/// Times of an event's steps.
#[derive(Debug)]
pub struct Laps {
    start: Instant,
    last: Instant,
    times: [Duration; NAMES.len()],
}

impl Laps {
    /// Starts with an event.
    pub fn start() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            last: now,
            times: [Duration::ZERO; NAMES.len()],
        }
    }

    /// Counts the time since the last call as that of `step`.
    pub fn end(&mut self, step: Step) {
        let now = Instant::now();
        self.times[step as usize] += now - self.last;
        self.last = now;
    }
}

/// The whole time up to the last step's end, then those of the steps.
impl fmt::Display for Laps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        write!(f, "{:.1} ms", millis(self.last - self.start))?;
        for (name, time) in NAMES.iter().zip(self.times) {
            if !time.is_zero() {
                write!(f, ", {name} {:.1}", millis(time))?;
            }
        }
        Ok(())
    }
}

//! Decides when an incident is written.

use super::ring::Ring;
use super::shelf::{PAUSE, Shelf};
use crate::ros::node::inbox::OnText;
use crate::ros::node::moment::Moment;
use crate::ros::node::shared::Shared;
use crate::ros::node::status::State;
use crate::ros::node::supervisor::Flow;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// A camera that is lost for this long is an incident.
const LOST: Duration = Duration::from_secs(5);
/// Interval between two looks at the node's state.
const TICK: Duration = Duration::from_millis(100);

/// Notices that the camera is lost for long; once for each loss.
#[derive(Debug, Default)]
struct Loss {
    since: Option<Moment>,
    told: bool,
}

impl Loss {
    /// Whether the camera has been lost for [`LOST`] since it was last tracked, and this was not reported yet.
    fn look(&mut self, lost: bool, now: Moment) -> bool {
        if !lost {
            *self = Self::default();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let due = !self.told && now.since(&since) >= LOST;
        self.told |= due;
        due
    }
}

/// Runs until the node closes.
pub fn run(shared: &Shared, ring: &Ring, shelf: &Shelf, requests: &Receiver<OnText>) {
    let mut loss = Loss::default();
    shared.supervisor.run("incidents", || {
        let closing = shared.closing.load(Ordering::Acquire);
        let request = match closing {
            true => requests.try_recv().ok(),
            false => match requests.recv_timeout(TICK) {
                Ok(request) => Some(request),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Flow::Stop,
            },
        };
        let _working = shared.pulses.incidents.work();
        let mut worked = false;
        if loss.look(shared.status.state() == State::Lost, shared.moment()) {
            let words = format!("the camera has been lost for {} s", LOST.as_secs());
            worked |= automatic(shared, ring, shelf, "lost", &words);
        }
        if let Some((name, message)) = ring.take_error() {
            worked |= automatic(shared, ring, shelf, &format!("error {name}"), &message);
        }
        if let Some(reply) = request {
            reply(operator(ring, shelf));
            return Flow::Continue;
        }
        match (closing, worked) {
            (true, _) => Flow::Stop,
            (false, true) => Flow::Continue,
            (false, false) => Flow::Idle,
        }
    });
}

/// Writes an incident unless one of this cause was just written; returns whether it tried.
fn automatic(shared: &Shared, ring: &Ring, shelf: &Shelf, cause: &str, words: &str) -> bool {
    if shelf.recent(cause).is_some() {
        return false;
    }
    match shelf.put(cause, &ring.contents()) {
        Ok(path) => tracing::warn!("incident ({words}): wrote {}", path.display()),
        Err(error) => shared.status.warn("incident", || {
            format!("an incident ({words}) cannot be written: {error}")
        }),
    }
    true
}

fn operator(ring: &Ring, shelf: &Shelf) -> Result<String, String> {
    const CAUSE: &str = "operator";
    if let Some((path, age)) = shelf.recent(CAUSE) {
        return Err(format!(
            "{} was written {} s ago; the next is possible in {} s",
            path.display(),
            age.as_secs(),
            PAUSE.saturating_sub(age).as_secs() + 1
        ));
    }
    let contents = ring.contents();
    let path = shelf.put(CAUSE, &contents).map_err(|e| e.to_string())?;
    let count = contents.messages.len();
    Ok(format!("wrote {count} messages to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_loss_is_told_once_and_only_if_it_lasts() {
        let start = Instant::now();
        let at = |millis| Moment::from(start + Duration::from_millis(millis));
        let mut loss = Loss::default();
        assert!(!loss.look(true, at(0)));
        assert!(!loss.look(true, at(4900)));
        // Found for a moment: the time starts anew.
        assert!(!loss.look(false, at(4950)));
        assert!(!loss.look(true, at(5000)));
        assert!(!loss.look(true, at(9900)));
        assert!(loss.look(true, at(10_000)));
        assert!(!loss.look(true, at(60_000)));
        assert!(!loss.look(false, at(60_100)));
        assert!(!loss.look(true, at(60_200)));
        assert!(loss.look(true, at(65_200)));
    }
}

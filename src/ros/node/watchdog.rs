//! The watchdog names threads that stand still. If the thread that publishes diagnostics is among them, the watchdog
//! publishes them itself.

use super::publish::send;
use super::pulses::STANDS;
use super::shared::Shared;
use super::supervisor::Flow;
use crate::ros::middleware::Publish;
use crate::wire::messages::Header;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Interval at which the end of the node is noticed.
const TICK: Duration = Duration::from_millis(50);

/// Runs until the node closes.
pub fn run(shared: &Shared, diagnostics: &dyn Publish) {
    let mut looked = Instant::now();
    shared.supervisor.run("watchdog", || {
        if shared.closing.load(Ordering::Acquire) {
            return Flow::Stop;
        }
        std::thread::sleep(TICK);
        if looked.elapsed() >= PERIOD {
            looked = Instant::now();
            look(shared, diagnostics, looked);
        }
        Flow::Idle
    });
}

fn look(shared: &Shared, diagnostics: &dyn Publish, now: Instant) {
    let standing = shared.pulses.standing(now);
    if !standing.is_empty() {
        shared.status.warn("standing", || standing.clone());
    }
    shared.status.stands(standing);
    let output = shared.pulses.output.busy_for(now);
    if output.is_some_and(|busy| busy >= STANDS) {
        let header = Header::new(shared.now(), "");
        let message = shared.status.diagnostics(header, &shared.name, None, &[]);
        send(diagnostics, &message, &shared.status);
    }
}

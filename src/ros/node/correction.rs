//! The transforms thread: broadcasts `map -> odom` from a timer of its own, so that it is never stale,
//! whatever tracking is doing.

use super::correction_slot::Known;
use super::publish::{self, send};
use super::settings::Settings;
use super::shared::Shared;
use super::supervisor::Flow;
use crate::ros::middleware::Publish;
use crate::ros::priority::RaisedPriority;
use crate::time::Stamp;
use crate::wire::messages::geometry::TfMessage;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest sleep: how soon a new rate or the end of the node is noticed.
const TICK: Duration = Duration::from_millis(50);
/// Images whose stamps are farther than this from the node's clock use another clock (a bag that is played without
/// `/clock`); the transform then carries their time.
const OTHER_CLOCK_NANOS: i64 = 10_000_000_000;

/// A stamp that is farther behind the last one means that time went back (a bag that starts again).
const BACK_NANOS: i64 = 1_000_000_000;
/// Interval between two stamps where the images' time is slower than assumed.
const STEP_NANOS: i64 = 1_000;

/// Runs until the node closes.
pub fn run(shared: &Shared, tf: &dyn Publish) {
    let _priority = RaisedPriority::new();
    let mut next = Instant::now();
    let mut last = None;
    shared.supervisor.run("transforms", || {
        if shared.closing.load(Ordering::Acquire) {
            return Flow::Stop;
        }
        let settings = shared.settings.load_full();
        let now = Instant::now();
        let Some(period) = period(&settings) else {
            next = now;
            std::thread::sleep(TICK);
            return Flow::Idle;
        };
        // A slower rate that was set before must not delay a faster one.
        let left = next.min(now + period).saturating_duration_since(now);
        if !left.is_zero() {
            std::thread::sleep(left.min(TICK));
            return Flow::Idle;
        }
        // After a delay the timer goes on from now; it does not catch up.
        next = (next + period).max(now);
        let _working = shared.pulses.transforms.work();
        match broadcast(shared, tf, &settings, &mut last) {
            true => Flow::Continue,
            false => Flow::Idle,
        }
    });
}

/// Interval of the timer; `None`: `map -> odom` is sent with each pose.
fn period(settings: &Settings) -> Option<Duration> {
    let rate = settings.transform_publish_rate;
    (rate > 0.0).then(|| Duration::from_secs_f64(rate.recip().min(3600.0)))
}

/// Returns whether the transform was sent; `last` is the stamp of the last one.
fn broadcast(
    shared: &Shared,
    tf: &dyn Publish,
    settings: &Settings,
    last: &mut Option<Stamp>,
) -> bool {
    let wanted = settings.publish_map_to_odom_tf && shared.active.load(Ordering::Acquire);
    let Some(known) = shared.correction.get().filter(|_| wanted) else {
        return false;
    };
    if is_paused(&known, settings) {
        return false;
    }
    let (map, odom) = (&settings.map_frame, &settings.odom_frame);
    let other = shared.tf().parent(odom).map(str::to_owned);
    if let Some(parent) = other.filter(|parent| parent != map) {
        shared.status.warn("map parent", || {
            format!(
                "not broadcasting {map} -> {odom}: {odom} already has the parent {parent}; stop its broadcaster, \
                 or set publish_map_to_odom_tf:=false"
            )
        });
        return false;
    }
    let since = shared.moment().since(&known.at);
    let stamp = stamp(shared.now(), settings, &known, since);
    let stamp = after(*last, stamp);
    *last = Some(stamp);
    let transforms = vec![publish::transform(stamp, map, odom, &known.map_from_odom)];
    send(tf, &TfMessage { transforms }, &shared.status);
    true
}

/// Whether nothing is broadcast. While lost, our own odometry stops, and with it this transform, so that neither claims a
/// place. That alone does not stop a robot: Nav2's servers take the newest transform, however old. Another node's odometry
/// goes on.
pub fn is_paused(known: &Known, settings: &Settings) -> bool {
    known.lost && settings.publish_odom_to_base_tf && !settings.publish_when_lost
}

/// Now plus `transform_tolerance`, by the clock of the images' stamps.
fn stamp(now: Stamp, settings: &Settings, known: &Known, since: Duration) -> Stamp {
    let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let of_images = known.stamp.nanos.saturating_add(nanos(since));
    let gap = now.nanos.saturating_sub(of_images).saturating_abs();
    let simulated = settings.use_sim_time && now.nanos > 0;
    let base = match simulated || gap <= OTHER_CLOCK_NANOS {
        true => now.nanos,
        false => of_images,
    };
    let tolerance = Duration::try_from_secs_f64(settings.transform_tolerance).unwrap_or_default();
    Stamp {
        nanos: base.saturating_add(nanos(tolerance)),
    }
}

/// The stamp, or a little after the last one: tf2 ignores transforms that repeat a stamp.
fn after(last: Option<Stamp>, stamp: Stamp) -> Stamp {
    match last {
        Some(last) if (0..BACK_NANOS).contains(&last.nanos.saturating_sub(stamp.nanos)) => Stamp {
            nanos: last.nanos.saturating_add(STEP_NANOS),
        },
        _ => stamp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ros::node::parameters::Table;
    use crate::ros::node::settings;
    use nalgebra::Isometry3;
    use serde_json::json;

    fn settings(values: &[(&str, serde_json::Value)]) -> Settings {
        let mut table = Table::new(settings::definitions());
        for (name, value) in values {
            table.preset(name, value).unwrap();
        }
        Settings::of(&table)
    }

    #[test]
    fn the_stamp_is_ahead_of_the_clock_that_the_images_have() {
        const SECOND: i64 = 1_000_000_000;
        let known = |nanos| Known {
            map_from_odom: Isometry3::identity(),
            stamp: Stamp { nanos },
            at: Instant::now().into(),
            posed: Instant::now().into(),
            lost: false,
        };
        let (now, since) = (100 * SECOND, Duration::from_secs(1));
        let live = settings(&[]);
        let simulated = settings(&[("use_sim_time", json!(true))]);
        for (settings, clock, image, expected) in [
            (&live, now, now - SECOND, now),
            (&live, now, now - 9 * SECOND, now),
            // A bag without /clock.
            (&live, now, 5 * SECOND, 6 * SECOND),
            (&simulated, now, 5 * SECOND, now),
            // No /clock has been received yet.
            (&simulated, 0, 50 * SECOND, 51 * SECOND),
        ] {
            let clock = Stamp { nanos: clock };
            let found = stamp(clock, settings, &known(image), since);
            assert_eq!(found.nanos, expected + SECOND / 10, "{clock} {image}");
        }
    }

    #[test]
    fn stamps_increase_unless_time_really_goes_back() {
        let at = |nanos| Stamp { nanos };
        assert_eq!(after(None, at(5)), at(5));
        assert_eq!(after(Some(at(5)), at(6)), at(6));
        assert_eq!(after(Some(at(5)), at(5)), at(5 + STEP_NANOS));
        assert_eq!(after(Some(at(900_000_000)), at(0)), at(900_001_000));
        assert_eq!(after(Some(at(60_000_000_000)), at(0)), at(0));
    }

    #[test]
    fn a_rate_of_zero_leaves_the_transform_to_each_pose() {
        assert_eq!(period(&settings(&[])), Some(Duration::from_millis(50)));
        let off = settings(&[("transform_publish_rate", json!(0))]);
        assert_eq!(period(&off), None);
    }
}

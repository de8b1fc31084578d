//! `~/localization_status`: how well the robot knows where it is, for fleet managers and behaviour trees
//! that wait for a localised robot.

use super::moment::Moment;
use super::pose_messages::PoseMessages;
use super::status::State;
use crate::map::TrackingState;
use crate::slam::{ScaleEstimate, TrackedFrame};
use crate::wire::messages::Header;
use crate::wire::messages::diagnostic::{
    DiagnosticArray, DiagnosticStatus, ERROR, KeyValue, OK, WARN,
};
use std::time::Duration;

/// Interval between two messages.
pub const PERIOD: Duration = Duration::from_millis(500);

/// Maximum age of the newest fix of a camera that is tracked: beyond it images have stopped, or take too long.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The last fix.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fix {
    at: Moment,
    /// Trace of the position's covariance in the map, m².
    position: f64,
    /// Trace of the orientation's, rad².
    orientation: f64,
    /// Scale of the keyframe's points.
    scale: f64,
}

/// Knowledge of the robot's place.
#[derive(Debug, Default)]
pub struct Localization {
    /// Name of the loaded map; empty for one that is being made.
    map: String,
    fix: Option<Fix>,
    /// Fraction of the newest frame's pixels that matched.
    matched: f32,
    relocalised: bool,
}

impl Localization {
    /// A map was started, or loaded from a file of this name.
    pub fn new_map(&mut self, name: Option<String>) {
        *self = Self {
            map: name.unwrap_or_default(),
            ..Self::default()
        };
    }

    /// A frame was processed, by `now`.
    pub fn frame(&mut self, tracked: &TrackedFrame, messages: &PoseMessages, now: Moment) {
        self.matched = match tracked.record.state {
            // A relocalised or first frame is the reference that others are matched with.
            TrackingState::Lost | TrackingState::Tracking => tracked.record.match_fraction,
            TrackingState::Initialising | TrackingState::Relocalised => 1.0,
        };
        let Some(pose) = &messages.pose else {
            return;
        };
        let trace = |from: usize| -> f64 {
            let axes = from..from + 3;
            axes.filter_map(|k| pose.pose.covariance.get(k)?.get(k))
                .sum()
        };
        self.relocalised |= tracked.record.state == TrackingState::Relocalised;
        // Wheels that bridge a gap are no fix: its age goes on.
        let last = self.fix.filter(|_| tracked.bridge.is_some());
        self.fix = Some(Fix {
            at: last.map_or(now, |last| last.at),
            position: trace(0),
            orientation: trace(3),
            scale: tracked.record.world_from_camera.scale,
        });
    }

    /// The message at `now`, with the node's state, and the map's number of keyframes and measured scale.
    pub fn message(
        &self,
        (header, node): (Header, &str),
        state: &State,
        (keyframes, scale): (usize, Option<ScaleEstimate>),
        now: Moment,
    ) -> DiagnosticArray {
        let age = (self.fix).map(|fix| now.since(&fix.at));
        let (level, word, why) = match state {
            State::Tracking if age > Some(MAX_AGE) => {
                (WARN, "stale", "no image was tracked for more than a second")
            }
            State::Tracking => (OK, "tracking", ""),
            State::Bridging => (
                WARN,
                "bridging",
                "the camera is lost; wheel odometry goes on",
            ),
            State::Lost => (WARN, "lost", ""),
            State::Idle => (WARN, "idle", ""),
            State::Waiting(why) => (WARN, "waiting", why.as_str()),
            State::Failed(why) => (ERROR, "failed", why.as_str()),
        };
        let of_fix = |value: fn(&Fix) -> f64| {
            let known = self.fix.as_ref().map(value);
            known.map_or_else(|| "unknown".to_owned(), |v| format!("{v:.6}"))
        };
        let age = age.map_or_else(
            || "unknown".to_owned(),
            |age| format!("{:.3}", age.as_secs_f64()),
        );
        let matched = match state {
            State::Tracking | State::Bridging | State::Lost => self.matched,
            _ => 0.0,
        };
        let values = [
            ("state", word.to_owned()),
            ("reason", why.to_owned()),
            ("matched fraction", format!("{matched:.3}")),
            ("age of the last fix, s", age),
            ("position covariance trace, m2", of_fix(|fix| fix.position)),
            (
                "orientation covariance trace, rad2",
                of_fix(|fix| fix.orientation),
            ),
            ("scale", of_fix(|fix| fix.scale)),
            (
                "scale_sigma",
                scale.map_or_else(|| "unknown".to_owned(), |s| format!("{:.6}", s.sigma)),
            ),
            (
                "scale_source",
                scale.map_or("network", |s| s.source.name()).to_owned(),
            ),
            ("map", self.map.clone()),
            ("found again in this map", self.relocalised.to_string()),
            ("keyframes", keyframes.to_string()),
        ];
        let value = |(key, value): (&str, String)| KeyValue {
            key: key.into(),
            value,
        };
        DiagnosticArray {
            header,
            status: vec![DiagnosticStatus {
                level,
                name: format!("{node}: localization"),
                message: word.to_owned(),
                hardware_id: String::new(),
                values: values.map(value).to_vec(),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_camera_whose_images_have_stopped_is_stale() {
        const SECOND: i64 = 1_000_000_000;
        let begun = Instant::now();
        let here = Localization {
            fix: Some(Fix {
                at: Moment::new(begun, Some(SECOND)),
                position: 0.01,
                orientation: 0.01,
                scale: 1.0,
            }),
            ..Localization::default()
        };
        let says = |state: State, millis: u64| {
            let nanos = SECOND + i64::try_from(millis).unwrap_or_default() * 1_000_000;
            // By the clock of the images, which may be at a tenth of real time.
            let now = Moment::new(begun + Duration::from_millis(10 * millis), Some(nanos));
            let message = here.message((Header::default(), "/slam"), &state, (7, None), now);
            (message.status[0].level, message.status[0].message.clone())
        };
        assert_eq!(says(State::Tracking, 1000), (OK, "tracking".into()));
        assert_eq!(says(State::Tracking, 1001), (WARN, "stale".into()));
        // A camera that is lost, and wheels that go on without it, have states of their own.
        assert_eq!(says(State::Lost, 5000), (WARN, "lost".into()));
        assert_eq!(says(State::Bridging, 5000), (WARN, "bridging".into()));
    }

    #[test]
    fn without_a_fix_numbers_are_unknown_and_a_failure_has_its_reason() {
        let mut here = Localization::default();
        here.new_map(Some("house".into()));
        let failed = State::Failed("no device".into());
        let message = here.message(
            (Header::default(), "/slam"),
            &failed,
            (7, None),
            Instant::now().into(),
        );
        let only = &message.status[0];
        assert_eq!((only.level, only.message.as_str()), (ERROR, "failed"));
        let value = |key: &str| {
            let found = only.values.iter().find(|v| v.key == key);
            found.map(|v| v.value.as_str())
        };
        assert_eq!(value("age of the last fix, s"), Some("unknown"));
        assert_eq!(value("reason"), Some("no device"));
        assert_eq!(value("map"), Some("house"));
        assert_eq!(value("keyframes"), Some("7"));
        assert_eq!(value("matched fraction"), Some("0.000"));
        assert_eq!(value("scale_sigma"), Some("unknown"));
        assert_eq!(value("scale_source"), Some("network"));
    }
}

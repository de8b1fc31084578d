//! The metrics that tracking counts itself. They are registered once; counting a frame does not allocate.

use crate::map::{FrameRecord, TrackingState};
use crate::time::Stamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Upper ends of the buckets of durations, in seconds: from a stage on a GPU to a frame on a slow CPU.
const BUCKETS: [f64; 15] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.033, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];
/// The images of a camera that stood still are this far apart at most; a longer gap counts as this.
const MAX_GAP_NANOS: i64 = 5_000_000_000;
/// No frame so far.
const NEVER: i64 = i64::MIN;

const STATES: [TrackingState; 4] = [
    TrackingState::Initialising,
    TrackingState::Tracking,
    TrackingState::Lost,
    TrackingState::Relocalised,
];

/// One label of a metric and its value.
type Label = [(&'static str, &'static str); 1];

/// Counters and histograms of frames.
#[derive(Debug)]
pub struct Meters {
    states: [(TrackingState, Counter); 4],
    stages: [Histogram; 7],
    total: Histogram,
    lost_seconds: Counter<f64, AtomicU64>,
    losses: Counter,
    /// Stamp of the last frame in nanoseconds.
    last_stamp: AtomicI64,
    was_lost: std::sync::atomic::AtomicBool,
}

impl Meters {
    /// Registers all metrics.
    pub fn new(registry: &mut Registry) -> Self {
        let frames = Family::<Label, Counter>::default();
        let states = STATES.map(|state| {
            let counter = frames.get_or_create(&[("state", state.name())]).clone();
            (state, counter)
        });
        registry.register("frames", "Frames processed, by tracking state", frames);
        let durations = || Histogram::new(BUCKETS);
        let stages = Family::<Label, Histogram, fn() -> Histogram>::new_with_constructor(durations);
        let names = crate::time::StageTimes::default()
            .stages()
            .map(|(name, _)| name);
        let handles = names.map(|stage| stages.get_or_create(&[("stage", stage)]).clone());
        registry.register_with_unit(
            "stage",
            "Time of each stage of a frame that ran",
            Unit::Seconds,
            stages,
        );
        let total = durations();
        registry.register_with_unit("frame", "Time of a frame", Unit::Seconds, total.clone());
        let lost_seconds = Counter::<f64, AtomicU64>::default();
        registry.register_with_unit(
            "lost",
            "Time during which the camera was lost, by the stamps of the images",
            Unit::Seconds,
            lost_seconds.clone(),
        );
        let losses = Counter::default();
        registry.register("losses", "Times that tracking was lost", losses.clone());
        Self {
            states,
            stages: handles,
            total,
            lost_seconds,
            losses,
            last_stamp: AtomicI64::new(NEVER),
            was_lost: false.into(),
        }
    }

    /// Counts a frame.
    pub fn frame(&self, record: &FrameRecord) {
        let own = self.states.iter().find(|(state, _)| *state == record.state);
        if let Some((_, counter)) = own {
            counter.inc();
        }
        for (histogram, (_, millis)) in self.stages.iter().zip(record.times.stages()) {
            if millis > 0.0 {
                histogram.observe(millis * 1e-3);
            }
        }
        self.total.observe(record.times.total * 1e-3);
        let lost = record.state == TrackingState::Lost;
        let since = self.since(record.stamp);
        if lost {
            self.lost_seconds.inc_by(since);
        }
        if lost && !self.was_lost.swap(lost, Ordering::Relaxed) {
            self.losses.inc();
        }
        self.was_lost.store(lost, Ordering::Relaxed);
    }

    /// Seconds since the frame before, by the stamps.
    fn since(&self, stamp: Stamp) -> f64 {
        let before = self.last_stamp.swap(stamp.nanos, Ordering::Relaxed);
        if before == NEVER {
            return 0.0;
        }
        let nanos = stamp.nanos.saturating_sub(before).clamp(0, MAX_GAP_NANOS);
        nanos as f64 * 1e-9
    }

    /// Seconds for which the camera was lost.
    pub fn lost_seconds(&self) -> f64 {
        self.lost_seconds.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;
    use crate::time::StageTimes;

    #[test]
    fn frames_are_counted_by_state_stage_and_time_lost() {
        let mut registry = Registry::with_prefix("mast3r_slam");
        let meters = Meters::new(&mut registry);
        // Seconds, state: lost for 2 s, then a gap of an hour, then time goes back.
        for (at, state) in [
            (10.0, TrackingState::Initialising),
            (11.0, TrackingState::Lost),
            (12.0, TrackingState::Lost),
            (13.0, TrackingState::Relocalised),
            (3613.0, TrackingState::Lost),
            (5.0, TrackingState::Lost),
        ] {
            let stamp = Stamp::from_seconds(at);
            meters.frame(&FrameRecord {
                state,
                times: StageTimes {
                    encode: 30.0,
                    total: 40.0,
                    ..StageTimes::default()
                },
                ..FrameRecord::lost(0, stamp, Sim3::identity())
            });
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        for line in [
            "mast3r_slam_frames_total{state=\"lost\"} 4",
            "mast3r_slam_frames_total{state=\"tracking\"} 0",
            "mast3r_slam_frames_total{state=\"relocalised\"} 1",
            "mast3r_slam_stage_seconds_bucket{le=\"0.02\",stage=\"encode\"} 0",
            "mast3r_slam_stage_seconds_bucket{le=\"0.033\",stage=\"encode\"} 6",
            "mast3r_slam_stage_seconds_count{stage=\"decode\"} 0",
            "mast3r_slam_frame_seconds_count 6",
            "mast3r_slam_lost_seconds_total 7.0",
            "mast3r_slam_losses_total 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in:\n{text}");
        }
    }
}

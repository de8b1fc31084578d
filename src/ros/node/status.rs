//! Counters, times and state of the node, and their diagnostics.

use crate::slam::{About, MappingCounts, MotionStatus};
use crate::wire::messages::Header;
use crate::wire::messages::diagnostic::{
    DiagnosticArray, DiagnosticStatus, ERROR, KeyValue, OK, WARN,
};
use heapless::{HistoryBuf, LinearMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Counts events.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Increments the counter.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the counter.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Number of durations kept for percentiles: half a minute of a camera.
const KEPT: usize = 1024;

/// The most recent durations of an operation.
#[derive(Debug, Default)]
pub struct Times(Mutex<HistoryBuf<f32, KEPT>>);

impl Times {
    /// Adds a duration.
    pub fn add(&self, time: Duration) {
        let mut times = self.0.lock().unwrap_or_else(|e| e.into_inner());
        times.write(time.as_secs_f32() * 1e3);
    }

    /// Median and 99th percentile in milliseconds; `None` without data.
    pub fn percentiles(&self) -> Option<(f32, f32)> {
        let times = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let mut millis: Vec<f32> = times.oldest_ordered().copied().collect();
        drop(times);
        millis.sort_by(f32::total_cmp);
        let at = |share: f64| {
            let rank = (millis.len() as f64 * share).ceil() as usize;
            millis.get(rank.saturating_sub(1)).copied()
        };
        Some((at(0.5)?, at(0.99)?))
    }
}

/// State of the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// Not active, or paused.
    #[default]
    Idle,
    /// Waiting for something that is missing.
    Waiting(String),
    /// The camera is being tracked.
    Tracking,
    /// The camera is lost, and wheel odometry tells where it is.
    Bridging,
    /// The camera is lost.
    Lost,
    /// Stopped until `~/reset` is called.
    Failed(String),
}

/// All counters.
#[derive(Debug, Default)]
pub struct Status {
    /// Image messages received.
    pub images: Counter,
    /// Images processed by SLAM.
    pub frames: Counter,
    /// Frames that had depth.
    pub with_depth: Counter,
    /// Images replaced by newer ones before SLAM was ready.
    pub dropped: Counter,
    /// Images skipped because of `max_rate`.
    pub skipped: Counter,
    /// Images that were rejected.
    pub refused: Counter,
    /// Frames that were not tracked.
    pub lost: Counter,
    /// Frames that were not tracked, and whose pose is that by wheels.
    pub bridged: Counter,
    /// Number of times tracking was lost.
    pub losses: Counter,
    /// Number of maps started.
    pub maps: Counter,
    /// Keyframes in the map.
    pub keyframes: Counter,
    /// Loop edges in the map.
    pub loops: Counter,
    /// Poses not published because the output thread was behind.
    pub unpublished: Counter,
    /// Messages rejected by the middleware.
    pub unsent: Counter,
    /// Time from the image message to SLAM.
    pub intake: Times,
    /// Time in SLAM.
    pub slam: Times,
    /// Time from SLAM's pose to its messages.
    pub output: Times,
    state: Mutex<State>,
    full: AtomicBool,
    /// The error that ended the growth of the map.
    mapping_failure: Mutex<Option<String>>,
    /// Why the file of the running map cannot be written at present.
    map_file: Mutex<Option<String>>,
    /// Why frames have no depth, if they should.
    no_depth: Mutex<Option<String>>,
    /// Why wheel odometry is not used, if it should be.
    no_wheels: Mutex<Option<String>>,
    /// Why the gyro is not used, if it should be.
    no_gyro: Mutex<Option<String>>,
    /// What the motion sensors contribute; `None` without any.
    motion: Mutex<Option<MotionStatus>>,
    /// The last map that was kept on disk, or the reason why it was not.
    kept: Mutex<Option<Result<String, String>>>,
    /// Threads that stand still.
    standing: Mutex<String>,
    /// Description and notes of SLAM.
    engine: Mutex<(String, String)>,
    mapping: Mutex<MappingCounts>,
    warned: Mutex<LinearMap<&'static str, Instant, WARNINGS>>,
}

/// Maximum number of warning kinds: about twice as many as exist.
const WARNINGS: usize = 32;

/// Minimum interval between two warnings of one kind.
const WARN_EVERY: Duration = Duration::from_secs(5);

impl Status {
    /// Changes the state. A failure persists until [`Status::recover`]: neither deactivation nor
    /// another image hides it.
    pub fn enter(&self, state: State) {
        let mut current = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if !matches!(*current, State::Failed(_)) {
            *current = state;
        }
    }

    /// A reset ends a failure.
    pub fn recover(&self) {
        *lock(&self.state) = State::Idle;
        *lock(&self.mapping_failure) = None;
    }

    /// Mapping failed; returns whether this is the first report.
    pub fn mapping_failed(&self, why: &str) -> bool {
        let mut failure = lock(&self.mapping_failure);
        let news = failure.is_none();
        failure.get_or_insert_with(|| why.to_owned());
        news
    }

    /// Sets why the file of the running map cannot be written at present.
    pub fn map_file(&self, failure: Option<String>) {
        *lock(&self.map_file) = failure;
    }

    /// Sets why frames have no depth, if they should.
    pub fn depth(&self, failure: Option<String>) {
        *lock(&self.no_depth) = failure;
    }

    /// Sets why wheel odometry is not used, if it should be.
    pub fn wheels(&self, failure: Option<String>) {
        *lock(&self.no_wheels) = failure;
    }

    /// Sets why the gyro is not used, if it should be.
    pub fn gyro(&self, failure: Option<String>) {
        *lock(&self.no_gyro) = failure;
    }

    /// Sets what the motion sensors contribute.
    pub fn motion(&self, status: MotionStatus) {
        *lock(&self.motion) = Some(status);
    }

    /// Why motion sensors are not used, a clause for each.
    fn unused_sensors(&self) -> Vec<String> {
        let motion = lock(&self.motion).unwrap_or_default();
        let said = |name: &str, why: &Mutex<Option<String>>| {
            let why = lock(why);
            why.as_ref().map(|why| format!("no {name}: {why}"))
        };
        let refused = |refused: bool, name: &str| {
            refused.then(|| format!("{name} is not used: its mount is wrong, the log says how"))
        };
        let slips = motion
            .slipping
            .then(|| "the wheels slip or stand still: they are not used meanwhile".to_owned());
        let all = [
            said("wheel odometry", &self.no_wheels),
            said("gyro", &self.no_gyro),
            refused(motion.mount_refused, "wheel odometry"),
            refused(motion.gyro_refused, "the gyro"),
            slips,
        ];
        all.into_iter().flatten().collect()
    }

    /// The error that stopped SLAM or mapping.
    pub fn failure(&self) -> Option<String> {
        match self.state() {
            State::Failed(why) => Some(why),
            _ => lock(&self.mapping_failure).clone(),
        }
    }

    /// A map was kept on disk before it ended, or could not be.
    pub fn keep(&self, kept: &Result<String, String>) {
        match kept {
            Ok(text) => tracing::info!("kept the map: {text}"),
            Err(why) => tracing::error!("could not keep the map on disk: {why}"),
        }
        *lock(&self.kept) = Some(kept.clone());
    }

    /// Sets the threads that stand still, in words; empty for none.
    pub fn stands(&self, threads: String) {
        *lock(&self.standing) = threads;
    }

    /// The threads that stand still, in words; empty for none.
    pub fn standing(&self) -> String {
        lock(&self.standing).clone()
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// Stores a description of SLAM for the diagnostics.
    pub fn describe(&self, about: &About) {
        let notes: Vec<String> = about.notes.iter().map(ToString::to_string).collect();
        let mut engine = self.engine.lock().unwrap_or_else(|e| e.into_inner());
        *engine = (about.description.clone(), notes.join("; "));
    }

    /// Keeps the counters of mapping, and whether the map holds as many keyframes as it may.
    pub fn count(&self, counts: MappingCounts, full: bool) {
        self.full.store(full, Ordering::Relaxed);
        *self.mapping.lock().unwrap_or_else(|e| e.into_inner()) = counts;
    }

    pub fn state(&self) -> State {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Logs a warning, at most every five seconds for the same `what`.
    pub fn warn(&self, what: &'static str, message: impl FnOnce() -> String) {
        let mut warned = self.warned.lock().unwrap_or_else(|e| e.into_inner());
        let now = Instant::now();
        let recently = warned
            .get(what)
            .is_some_and(|at| now.duration_since(*at) < WARN_EVERY);
        if !recently {
            // A kind beyond the limit is logged every time.
            let _ = warned.insert(what, now);
            tracing::warn!("{}", message());
        }
    }

    /// The diagnostics message; `rate` is the frame rate since the last one, if it is known.
    pub fn diagnostics(
        &self,
        header: Header,
        node: &str,
        rate: Option<f64>,
        extra: &[(&str, String)],
    ) -> DiagnosticArray {
        let (level, message) = match self.state() {
            State::Idle => (OK, "idle".to_owned()),
            State::Waiting(what) => (WARN, format!("waiting: {what}")),
            State::Tracking => (OK, "tracking".into()),
            State::Bridging => (WARN, "lost, bridged by wheel odometry".into()),
            State::Lost => (WARN, "lost".into()),
            State::Failed(why) => (ERROR, format!("failed: {why}")),
        };
        let times = |times: &Times| match times.percentiles() {
            Some((p50, p99)) => format!("p50 {p50:.2} ms, p99 {p99:.2} ms"),
            None => "none yet".into(),
        };
        let count = |counter: &Counter| counter.get().to_string();
        let own = [
            (
                "rate",
                rate.map_or("unknown".into(), |rate| format!("{rate:.1} Hz")),
            ),
            ("images received", count(&self.images)),
            ("frames processed", count(&self.frames)),
            ("frames with depth", count(&self.with_depth)),
            (
                "images dropped (replaced by a newer one)",
                count(&self.dropped),
            ),
            ("images skipped (max_rate)", count(&self.skipped)),
            ("images rejected", count(&self.refused)),
            ("frames not tracked", count(&self.lost)),
            ("frames bridged by wheels", count(&self.bridged)),
            ("times tracking was lost", count(&self.losses)),
            ("maps started", count(&self.maps)),
            ("keyframes", count(&self.keyframes)),
            ("loop edges in the map", count(&self.loops)),
            (
                "poses not published (output behind)",
                count(&self.unpublished),
            ),
            ("messages not sent", count(&self.unsent)),
            ("time from message to SLAM", times(&self.intake)),
            ("time in SLAM", times(&self.slam)),
            ("time from pose to message", times(&self.output)),
        ];
        let value = |(key, value): (&str, String)| KeyValue {
            key: key.into(),
            value,
        };
        let mut level = level;
        let mut message = message;
        if self.is_full() {
            message += "; the map is full";
        }
        if let Some(why) = lock(&self.mapping_failure).as_ref() {
            level = ERROR;
            message += &format!(
                "; mapping failed: {why}; the map stays as it is, ~/save_map keeps it, ~/reset starts again"
            );
        }
        if let Some(why) = lock(&self.map_file).as_ref() {
            level = ERROR;
            message +=
                &format!("; {why}; SLAM goes on, and the map is written when that is possible");
        }
        if let Some(why) = lock(&self.no_depth).as_ref() {
            level = level.max(WARN);
            message += &format!("; no depth: {why}; tracking goes on without it");
        }
        for why in self.unused_sensors() {
            level = level.max(WARN);
            message += &format!("; {why}; tracking goes on without it");
        }
        let kept = lock(&self.kept).clone();
        if let Some(Err(why)) = &kept {
            level = ERROR;
            message += &format!("; a map could not be kept on disk: {why}");
        }
        let standing = lock(&self.standing).clone();
        if !standing.is_empty() {
            level = level.max(WARN);
            message += &format!("; {standing}");
        }
        let kept = kept.map_or(String::new(), |kept| kept.unwrap_or_else(|why| why));
        let (engine, notes) = self
            .engine
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone();
        let mapping = *self.mapping.lock().unwrap_or_else(|e| e.into_inner());
        let mapping = mapping.rows();
        let mapping = mapping
            .iter()
            .map(|(name, count)| (*name, count.to_string()));
        let motion = *lock(&self.motion);
        let motion = motion.as_ref().into_iter().flat_map(motion_rows);
        let about = [("SLAM", engine), ("notes", notes), ("last map kept", kept)];
        let own = own.into_iter().chain(mapping).chain(motion).chain(about);
        let extra = extra.iter().map(|(key, v)| value((key, v.clone())));
        DiagnosticArray {
            header,
            status: vec![DiagnosticStatus {
                level,
                name: format!("{node}: SLAM"),
                message,
                hardware_id: String::new(),
                values: own.map(value).chain(extra).collect(),
            }],
        }
    }
}

fn motion_rows(motion: &MotionStatus) -> [(&'static str, String); 7] {
    let known = |known: Option<String>| known.unwrap_or_else(|| "unknown".to_owned());
    [
        (
            "frames predicted by wheels or gyro",
            motion.predicted.to_string(),
        ),
        ("motions by wheels in the map", motion.motions.to_string()),
        ("rotations by the gyro in the map", motion.turns.to_string()),
        (
            "motions by wheels that do not fit",
            motion.outliers.to_string(),
        ),
        ("jumps of wheel odometry", motion.jumps.to_string()),
        (
            "bias of the gyro, rad/s",
            known(motion.gyro_bias.map(|bias| {
                let [x, y, z] = bias.into();
                format!("{x:.5} {y:.5} {z:.5}")
            })),
        ),
        (
            "clock of the gyro, s",
            known(motion.gyro_offset.map(|offset| format!("{offset:.4}"))),
        ),
    ]
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_last_times() {
        let times = Times::default();
        assert_eq!(times.percentiles(), None);
        for k in 1..=100 {
            times.add(Duration::from_millis(k));
        }
        let (p50, p99) = times.percentiles().unwrap();
        assert!(
            (p50 - 50.0).abs() < 1e-3 && (p99 - 99.0).abs() < 1e-3,
            "{p50} {p99}"
        );
        for _ in 0..KEPT {
            times.add(Duration::from_millis(1000));
        }
        assert_eq!(times.percentiles(), Some((1000.0, 1000.0)));
    }

    #[test]
    fn diagnostics_tell_the_state_and_its_gravity() {
        let status = Status::default();
        for (state, level, text) in [
            (State::Idle, OK, "idle"),
            (
                State::Waiting("camera_info".into()),
                WARN,
                "waiting: camera_info",
            ),
            (State::Bridging, WARN, "lost, bridged by wheel odometry"),
            (State::Lost, WARN, "lost"),
            (
                State::Failed("no device".into()),
                ERROR,
                "failed: no device",
            ),
        ] {
            status.enter(state);
            let message = status.diagnostics(
                Header::default(),
                "/slam",
                Some(30.0),
                &[("extra", "1".into())],
            );
            let only = &message.status[0];
            assert_eq!((only.level, only.message.as_str()), (level, text));
            assert_eq!(only.values.last().unwrap().key, "extra");
        }
    }
}

//! The metrics that are read when they are asked for, and `/status`.

use super::feed::{Feed, Now, Scene};
use super::host::{Host, HostReport};
use crate::files::memory;
use crate::map::EdgeKind;
use crate::slam::PoseTable;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use serde_json::{Value, json};
use std::fmt::{self, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The commit, from the environment of the build.
const COMMIT: Option<&str> = option_env!("MAST3R_SLAM_COMMIT");
/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Everything that is read at a scrape.
pub struct Scraped {
    pub feed: Arc<Feed>,
    pub host: Arc<dyn Host>,
    /// Images that pages were too slow for.
    pub left_out: AtomicU64,
    /// Pages that were turned away.
    pub refused: AtomicU64,
}

impl fmt::Debug for Scraped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraped").finish_non_exhaustive()
    }
}

/// What the map holds.
pub struct MapSize {
    pub keyframes: usize,
    pub loops: usize,
}

impl MapSize {
    /// The size of a published map.
    pub fn of(table: &PoseTable) -> Self {
        let closes = |kind| matches!(kind, EdgeKind::Loop | EdgeKind::Relocalisation);
        Self {
            keyframes: table.ids.len(),
            loops: table.edges.iter().filter(|e| closes(e.kind)).count(),
        }
    }
}

impl Scraped {
    /// Tracking state, or the program's own state instead.
    fn state(now: &Now, report: &HostReport) -> String {
        let of_frame = now.record.as_ref().map(|r| r.state.name().to_owned());
        let own = report.state.clone().or(of_frame);
        own.unwrap_or_else(|| "waiting for the first frame".to_owned())
    }

    /// Why the program does not work, if it does not.
    pub fn failure(&self) -> Option<String> {
        self.host.report().failure
    }

    /// The state of the program, as JSON for pages and `/status`.
    pub fn status(&self) -> Value {
        let (now, report, scene) = (self.feed.now(), self.host.report(), self.feed.scene());
        let table = scene.as_ref().map(|scene| scene.poses.load_full());
        let size = table.as_ref().map(|table| MapSize::of(table));
        let scale = table.as_ref().and_then(|table| table.scale);
        let record = now.record.as_ref();
        let times = record.map(|record| {
            let stages = record.times.stages().into_iter();
            let all = stages.chain([("total", record.times.total)]);
            let rounded = |millis: f64| (millis * 100.0).round() / 100.0;
            all.map(|(name, millis)| (name.to_owned(), json!(rounded(millis))))
                .collect::<serde_json::Map<_, _>>()
        });
        let drops = report.drops.iter().map(|(why, count)| (*why, json!(count)));
        json!({
            "version": VERSION,
            "commit": COMMIT,
            "engine": scene.as_ref().map(|scene| scene.engine.as_str()),
            "state": Self::state(&now, &report),
            "failure": report.failure,
            "frames": now.frames,
            "frames_per_second": (now.rate * 100.0).round() / 100.0,
            "frame": record.map(|r| r.index),
            "stamp": record.map(|r| r.stamp.to_string()),
            "age_s": now.age().map(|age| (age.as_secs_f64() * 1e3).round() / 1e3),
            "submap": record.map(|r| r.submap),
            "matched": record.map(|r| f64::from((r.match_fraction * 1e3).round()) / 1e3),
            "world_from_camera": record.map(|r| r.world_from_camera.to_array()),
            "times_ms": times,
            "lost_s": self.feed.meters().lost_seconds(),
            "keyframes": size.as_ref().map_or(0, |size| size.keyframes),
            "loop_edges": size.as_ref().map_or(0, |size| size.loops),
            "map_full": now.full,
            "splats": self.feed.has_splats(),
            "scale": scale.map(|s| json!({"factor": s.factor, "sigma": s.sigma, "source": s.source.name()})),
            "dropped": drops.map(|(why, n)| (why.to_owned(), n)).collect::<serde_json::Map<_, _>>(),
            "pages": self.feed.watchers().load(Ordering::Relaxed),
        })
    }

    fn gauges(&self, out: &mut DescriptorEncoder<'_>, now: &Now) -> Result<(), Error> {
        let failed = u64::from(self.failure().is_some());
        gauge(out, "up", "1 while SLAM works", (1 - failed) as f64)?;
        let rate = ("frame_rate_hertz", "Frames per second, smoothed");
        gauge(out, rate.0, rate.1, now.rate)?;
        if let Some(age) = now.age() {
            let text = "Time since the last frame was done";
            gauge(out, "last_frame_age_seconds", text, age.as_secs_f64())?;
        }
        if let Some(record) = &now.record {
            let text = "Share of the keyframe's pixels that the last frame matched";
            let matched = f64::from(record.match_fraction);
            gauge(out, "match_ratio", text, matched)?;
        }
        gauge(
            out,
            "map_full",
            "1 if the map holds as many keyframes as it may",
            f64::from(u8::from(now.full)),
        )?;
        let pages = self.feed.watchers().load(Ordering::Relaxed) as f64;
        gauge(out, "pages", "Open live pages", pages)
    }

    fn map(&self, out: &mut DescriptorEncoder<'_>, scene: &Scene) -> Result<(), Error> {
        let table = scene.poses.load_full();
        let MapSize { keyframes, loops } = MapSize::of(&table);
        gauge(out, "keyframes", "Keyframes in the map", keyframes as f64)?;
        gauge(out, "loop_edges", "Loop edges in the map", loops as f64)?;
        let edges = table.edges.len() as f64;
        gauge(out, "edges", "Edges in the map", edges)?;
        if let Some(scale) = table.scale {
            let text = "Metres per unit of the map, by sensors";
            gauge(out, "scale_ratio", text, scale.factor)?;
            let text = "Relative standard deviation of the scale";
            gauge(out, "scale_sigma_ratio", text, scale.sigma)?;
        }
        Ok(())
    }

    fn counters(&self, out: &mut DescriptorEncoder<'_>, now: &Now) -> Result<(), Error> {
        let report = self.host.report();
        let postponed = now.counts.postponed_keyframes as u64;
        let postponed = [("keyframe postponed", postponed)];
        let drops = report.drops.into_iter().chain(postponed);
        let drops = drops.map(|(reason, count)| (slug(reason), count));
        family(
            out,
            "dropped",
            "What was left out, by reason",
            "reason",
            drops,
        )?;
        let rows = now.counts.rows();
        let rows = rows.map(|(name, count)| (slug(name), count as u64));
        family(out, "mapping_events", "Events of mapping", "event", rows)?;
        let left_out = self.left_out.load(Ordering::Relaxed);
        let text = "Images that pages were too slow for";
        counter(out, "page_images_left_out", text, left_out)?;
        let refused = self.refused.load(Ordering::Relaxed);
        let text = "Pages that were turned away as too many were open";
        counter(out, "pages_refused", text, refused)
    }

    fn memory(&self, out: &mut DescriptorEncoder<'_>, scene: Option<&Scene>) -> Result<(), Error> {
        let text =
            "Memory by pool: the resident memory of the process, and the GPU memory of each part";
        let gauge = ConstGauge::new(0.0);
        let kind = gauge.metric_type();
        let mut metric = out.encode_descriptor("memory", text, Some(&Unit::Bytes), kind)?;
        let planned = scene.map_or(&[][..], |scene| &scene.memory);
        let planned = planned
            .iter()
            .map(|pool| (pool.name, pool.place, pool.bytes));
        let own = memory::resident().map(|bytes| ("process", "host", bytes));
        for (pool, place, bytes) in own.into_iter().chain(planned) {
            let labels = [("pool", pool), ("place", place)];
            let value = ConstGauge::new(bytes as f64);
            value.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for Scraped {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> Result<(), Error> {
        let (now, scene) = (self.feed.now(), self.feed.scene());
        let engine = scene.as_ref().map_or("", |scene| scene.engine.as_str());
        let about = [
            ("version", VERSION),
            ("commit", COMMIT.unwrap_or("not recorded")),
            ("engine", engine),
        ];
        // Not the type `info`, which readers of the older text format do not know.
        let one = ConstGauge::new(1.0);
        let text = "The program, and what SLAM runs on";
        let kind = one.metric_type();
        let mut build = out.encode_descriptor("build_info", text, None, kind)?;
        one.encode(build.encode_family(&about)?)?;
        self.gauges(&mut out, &now)?;
        if let Some(scene) = &scene {
            self.map(&mut out, scene)?;
        }
        self.counters(&mut out, &now)?;
        self.memory(&mut out, scene.as_deref())
    }
}

fn gauge(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> Result<(), Error> {
    let gauge = ConstGauge::new(value);
    let kind = gauge.metric_type();
    gauge.encode(out.encode_descriptor(name, help, None, kind)?)
}

fn counter(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, n: u64) -> Result<(), Error> {
    let counter = ConstCounter::new(n);
    let kind = counter.metric_type();
    counter.encode(out.encode_descriptor(name, help, None, kind)?)
}

/// A counter for each value of a label.
fn family(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    counts: impl IntoIterator<Item = (String, u64)>,
) -> Result<(), Error> {
    let kind = ConstCounter::new(0_u64).metric_type();
    let mut metric = out.encode_descriptor(name, help, None, kind)?;
    for (value, count) in counts {
        let labels = [(label, value)];
        ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// The words of a label's value: `refused: few matches` becomes `refused_few_matches`.
fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_words_with_underscores() {
        assert_eq!(slug("refused: few matches"), "refused_few_matches");
        assert_eq!(
            slug("not reused: far in the graph"),
            "not_reused_far_in_the_graph"
        );
    }
}

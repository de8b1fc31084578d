//! Progress of a run: a bar on a terminal, single lines in a pipe.

use crate::map::{FrameRecord, TrackingState};
use crate::slam_builder::SlamBuilder;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::io::IsTerminal;

/// Shows progress frame by frame.
pub struct Progress {
    bar: Option<ProgressBar>,
    keyframes: usize,
    state: TrackingState,
    submap: u32,
}

impl Progress {
    /// Shows a bar of `total` frames (if known) if `wanted` and standard error is a terminal.
    pub fn new(total: Option<usize>, wanted: bool) -> Self {
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| bar(total));
        Self {
            bar,
            keyframes: 0,
            state: TrackingState::Initialising,
            submap: 0,
        }
    }

    /// Counts a processed frame.
    pub fn frame(&mut self, record: &FrameRecord) {
        self.keyframes += usize::from(record.keyframe.is_some());
        if let Some(note) = self.change(record) {
            self.note(&note);
        }
        self.state = record.state;
        self.submap = record.submap;
        if let Some(bar) = &self.bar {
            bar.set_message(format!(
                "{}, {:.0} % matched, {} keyframes",
                record.state.name(),
                100.0 * record.match_fraction,
                self.keyframes
            ));
            bar.inc(1);
        }
    }

    /// Counts a processed image that is not a frame of a run.
    pub fn image(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Prints a permanent line, above the bar if there is one.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| super::complain(text)),
            None => super::complain(text),
        }
    }

    /// Shows the activity after the last frame.
    pub fn stage(&self, text: &'static str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// A message for events that the user should know about: tracking lost, relocalised, given up.
    fn change(&self, record: &FrameRecord) -> Option<String> {
        let frame = record.index;
        if record.submap != self.submap {
            let n = record.submap;
            return Some(format!("frame {frame}: a new map starts (number {n})"));
        }
        if record.state == self.state {
            return None;
        }
        match record.state {
            TrackingState::Lost => Some(format!(
                "frame {frame}: tracking lost, looking for a known place"
            )),
            TrackingState::Relocalised => Some(format!("frame {frame}: relocalised")),
            TrackingState::Initialising | TrackingState::Tracking => None,
        }
    }
}

fn bar(total: Option<usize>) -> ProgressBar {
    let (bar, template) = match total {
        Some(n) => (
            ProgressBar::new(n as u64),
            "{bar:28} {pos}/{len} frames, {rate}, {eta} left: {wide_msg}",
        ),
        None => (
            ProgressBar::new_spinner(),
            "{spinner} {pos} frames, {rate}: {wide_msg}",
        ),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.with_key("rate", rate)),
        Err(_) => bar,
    }
}

fn rate(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    // A terminal that rejects text cannot be helped.
    let _ = write!(out, "{:.1} per second", state.per_sec());
}

/// Makes `builder` show the progress of engine builds on the terminal.
pub fn with_build_progress(builder: SlamBuilder) -> SlamBuilder {
    #[cfg(all(feature = "tensorrt", feature = "cuda"))]
    let builder = builder.observer(std::sync::Arc::new(super::engines::BuildProgress::new(
        true,
    )));
    builder
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;

    fn record(index: usize, state: TrackingState, submap: u32) -> FrameRecord {
        FrameRecord {
            state,
            submap,
            match_fraction: 0.5,
            unique_fraction: 0.5,
            iterations: 3,
            ..FrameRecord::lost(index, Default::default(), Sim3::identity())
        }
    }

    #[test]
    fn only_changes_are_told() {
        use TrackingState::{Initialising, Lost, Relocalised, Tracking};
        let mut progress = Progress::new(Some(9), false);
        let mut told = Vec::new();
        for (index, (state, submap)) in [
            (Initialising, 0),
            (Tracking, 0),
            (Lost, 0),
            (Lost, 0),
            (Relocalised, 0),
            (Tracking, 0),
            (Lost, 0),
            (Initialising, 1),
            (Tracking, 1),
        ]
        .into_iter()
        .enumerate()
        {
            let record = record(index, state, submap);
            told.extend(progress.change(&record).map(|note| (index, note)));
            progress.frame(&record);
        }
        let frames: Vec<usize> = told.iter().map(|(index, _)| *index).collect();
        assert_eq!(frames, [2, 4, 6, 7], "{told:?}");
        assert!(told[3].1.contains("number 1"));
    }
}

//! What a soak is asked: whether memory, the map, the speed and the accuracy stay as they were.

use super::{Lap, Wrong};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Instant;

/// Number of frames at the end over which the speed is measured.
const LAST: usize = 1000;

/// When the last frames were done.
pub struct Pace(VecDeque<Instant>);

impl Pace {
    pub fn new() -> Self {
        Self(VecDeque::with_capacity(LAST + 1))
    }

    /// A frame is done.
    pub fn note(&mut self) {
        if self.0.len() > LAST {
            self.0.pop_front();
        }
        self.0.push_back(Instant::now());
    }

    /// Frames a second over the last ones.
    pub fn frames_per_second(&self) -> Option<f64> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let seconds = last.duration_since(*first).as_secs_f64();
        (seconds > 0.0).then(|| (self.0.len() - 1) as f64 / seconds)
    }
}

/// Numbers of a whole soak.
pub struct Summary<'a> {
    pub laps: &'a [Lap],
    /// Frames a second over the last thousand frames.
    pub last: Option<f64>,
    /// Errors of the first lap, and ATE of all frames.
    pub of_all: Option<(Option<Wrong>, f64)>,
}

impl Summary<'_> {
    /// A table: what was asked, the two numbers and their ratio.
    pub fn table(&self) -> String {
        let mut text = "\n| asked | before | at the end | ratio |\n|---|---|---|---|\n".to_owned();
        let mut row = |asked: &str, before: Option<f64>, after: Option<f64>, digits: usize| {
            let number = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
            let ratio = before.zip(after).map(|(a, b)| b / a);
            let ratio = ratio.map_or("-".to_owned(), |r| format!("{r:.3}"));
            let (before, after) = (number(before), number(after));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {asked} | {before} | {after} | {ratio} |");
        };
        let (second, third) = (self.laps.get(1), self.laps.get(2));
        let end = self.laps.last();
        row(
            "keyframes after two laps: at most 1.25",
            second.map(|l| l.keyframes as f64),
            end.map(|l| l.keyframes as f64),
            0,
        );
        let speed = second.zip(third).map(|(a, b)| {
            let seconds = a.seconds + b.seconds;
            (a.frames + b.frames) as f64 / seconds.max(1e-9)
        });
        row(
            "frames/s of laps 2 and 3, of the last 1,000: at least 0.9",
            speed,
            self.last,
            1,
        );
        row(
            "GPU memory after lap 3, MB: 1",
            third.and_then(|l| l.device),
            end.and_then(|l| l.device),
            0,
        );
        row(
            "host memory after lap 3, MB: at most 1.02",
            third.and_then(|l| l.resident),
            end.and_then(|l| l.resident),
            1,
        );
        let lost: usize = self.laps.iter().map(|l| l.lost).sum();
        row("frames lost: none", Some(0.0), Some(lost as f64), 0);
        let (first, all) = self.of_all.unzip();
        row(
            "ATE of lap 1 and of all, m: at most 1.1",
            first.flatten().map(|w| w.ate),
            all,
            4,
        );
        text
    }
}

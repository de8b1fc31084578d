//! One page about a run, in one file: no script, nothing loaded from anywhere.

mod chart;
mod picture;
mod sections;

use super::cloud::{self, CloudOptions};
use super::trajectory::StampedPose;
use super::{ExportError, MapSnapshot, atomic};
use crate::eval::Evaluation;
use std::io::Write;
use std::path::Path;

/// What the map itself does not know about its run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunSummary {
    /// Frames per second over the whole run.
    pub fps: Option<f64>,
    /// Most memory that the process held, bytes.
    pub peak_memory: Option<u64>,
    /// What ran the network, such as `rten, 2 threads`. Empty when unknown.
    pub backend: String,
}

/// What a report is made of.
#[derive(Debug, Clone, Copy)]
pub struct ReportInput<'a> {
    /// The map. The page shows its largest submap.
    pub snapshot: &'a MapSnapshot,
    /// Heading, such as the sequence's name.
    pub title: &'a str,
    /// Names and values of the settings worth showing, in order.
    pub settings: &'a [(String, String)],
    /// Of the every-frame trajectory of the largest submap, when there is ground truth. The
    /// trajectory is drawn in its frame and scale.
    pub evaluation: Option<&'a Evaluation>,
    /// Drawn beside the estimate when there is an evaluation.
    pub ground_truth: Option<&'a [StampedPose]>,
    /// Which points count and are drawn (voxels only count).
    pub cloud: CloudOptions,
    /// Speed and memory.
    pub run: &'a RunSummary,
}

/// Writes the page.
pub fn write(path: &Path, input: &ReportInput) -> Result<(), ExportError> {
    cloud::check(input.snapshot)?;
    let submap = input.snapshot.largest_submap();
    let page = sections::page(path, input, submap)?;
    atomic::write(path, |out| out.write_all(page.as_bytes()))
}

/// Text as it may stand in HTML, attributes too. Control characters are left out.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

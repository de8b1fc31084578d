//! HTML report of a run: a single self-contained file, with the viewer of the live page for the map.

mod chart;
mod graph;
mod grid;
mod sections;
mod splats;
mod viewer;

use crate::eval::Evaluation;
use crate::files::export::{self, ExportError};
use crate::map::MapSnapshot;
use crate::map::cloud::{self, CloudOptions};
use crate::map::grid::OccupancyMap;
use crate::trajectory::StampedPose;
use std::io::Write;
use std::path::Path;

/// Properties of a run that are not part of the map.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunSummary {
    /// Average frame rate over the whole run, in frames per second.
    pub fps: Option<f64>,
    /// Peak memory of the process, in bytes.
    pub peak_memory: Option<u64>,
    /// Network runtime, such as `rten, 2 threads`. Empty if unknown.
    pub backend: String,
    /// What sensors say about the map's scale; `None` if they measured nothing.
    pub scale: Option<String>,
    /// Counters of mapping: name and value.
    pub mapping: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy)]
pub struct ReportInput<'a> {
    /// The map. The page shows its largest submap.
    pub snapshot: &'a MapSnapshot,
    /// Heading, such as the name of the sequence.
    pub title: &'a str,
    /// Names and values of the settings to show, in order.
    pub settings: &'a [(String, String)],
    /// Evaluation of the full trajectory of the largest submap, if ground truth is available. The
    /// trajectory is plotted in the frame and scale of the ground truth.
    pub evaluation: Option<&'a Evaluation>,
    /// Plotted with the estimate if there is an evaluation.
    pub ground_truth: Option<&'a [StampedPose]>,
    /// Selection of points to count and draw (the voxel size only affects the count).
    pub cloud: CloudOptions,
    /// The occupancy grid, if it was made.
    pub grid: Option<&'a OccupancyMap>,
    /// Splats to show, each in the form of [`Splat::packed`](crate::map::splat::Splat::packed); empty if there are none.
    pub splats: &'a [u8],
    pub run: &'a RunSummary,
}

/// Writes the page.
pub fn write(path: &Path, input: &ReportInput) -> Result<(), ExportError> {
    cloud::check(input.snapshot)?;
    let submap = input.snapshot.largest_submap();
    let page = sections::page(path, input, submap)?;
    export::write(path, |out| out.write_all(page.as_bytes()))
}

/// Escapes text for HTML, including attributes. Control characters are removed.
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

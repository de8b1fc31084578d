//! The self-test: loads weights and engine as a run or the node would, compares the network's outputs on two bundled
//! images with recorded figures, and tracks the first frames of the bundled sequence. It says whether a new engine,
//! driver or weights file is safe to use on a robot.

mod figures;
mod limits;
mod network;
mod report;
mod track;

pub use figures::FiguresError;
pub use report::{Check, Report};

use crate::image::ImageError;
use crate::inference::InferenceError;
use crate::slam::SlamError;
use crate::slam_builder::{DEMO_SEQUENCE, FIGURES, OpenError, SlamBuilder, find_asset};
use crate::source::SourceError;
use figures::Figures;
use limits::Limits;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Frames that are tracked.
pub const FRAMES: usize = 20;

/// Recorded figures to compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Golden {
    /// Those that come with the program for these weights and this size, if there are any.
    IfKnown,
    /// The same, which must exist.
    Required,
    /// Those of this file.
    File(PathBuf),
}

/// Error that ends the self-test before there is a report.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Inference(#[from] InferenceError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Slam(#[from] SlamError),
    #[error(transparent)]
    Figures(#[from] FiguresError),
    /// The bundled sequence is damaged.
    #[error("{}: expected {expected} frames or more, found {found}; install the program's assets again", path.display())]
    Frames {
        path: PathBuf,
        expected: usize,
        found: usize,
    },
    /// A check failed.
    #[error("the self-test failed: {0}")]
    Failed(String),
}

/// Runs the self-test with the settings of `builder`, except those that belong to one camera or map.
///
/// # Errors
/// See [`SelfTestError`]. A check that fails is no error: see [`Report::passed`].
pub fn run(builder: SlamBuilder, golden: &Golden) -> Result<Report, SelfTestError> {
    let builder = builder.for_bundled_sequence();
    let sequence = find_asset(DEMO_SEQUENCE)?;
    let settings = builder.settings()?;
    let start = Instant::now();
    let outputs = network::run(&builder, &settings, &sequence)?;
    let network_seconds = start.elapsed().as_secs_f64();
    let known = match golden {
        Golden::File(path) => Some(Figures::read(path)?),
        Golden::IfKnown | Golden::Required => {
            let found = find_asset(FIGURES)
                .map(|folder| Figures::find(&folder, &outputs.weights, outputs.size));
            match (found, golden) {
                (Ok(found), _) => found?,
                (Err(error), Golden::Required) => return Err(error.into()),
                (Err(_), _) => None,
            }
        }
    };
    if let Some(known) = &known {
        known.check_made_for(&outputs.weights, outputs.size)?;
    } else if *golden == Golden::Required {
        return Err(FiguresError::unknown(&outputs.weights, outputs.size).into());
    }
    let limits = Limits::of(outputs.precision);
    let mut checks = Vec::new();
    if let Some(known) = &known {
        checks.extend(limits.compare(&known.sampled, &outputs.sampled, outputs.descriptor_dim));
    }
    let start = Instant::now();
    let tracked = track::run(builder, &sequence)?;
    checks.push(Check::at_most("lost frames", tracked.lost as f64, 0.0));
    checks.push(limits.ate(tracked.ate, known.as_ref().map(|known| known.header.ate)));
    Ok(Report {
        weights: settings.weights_name(),
        weights_sha256: outputs.weights,
        network: outputs.name,
        precision: outputs.precision.name(),
        size: [outputs.size.0, outputs.size.1],
        slam: tracked.description,
        notes: tracked.notes,
        compared_with: known.map(|known| known.path.display().to_string()),
        frames: tracked.frames,
        path_metres: tracked.path,
        network_seconds,
        tracking_seconds: start.elapsed().as_secs_f64(),
        checks,
    })
}

/// Records the figures of `builder`, which should select the CPU, whose code defines what is correct.
///
/// # Errors
/// See [`SelfTestError`]; [`SelfTestError::Failed`] if a frame is lost.
pub fn record(builder: SlamBuilder, path: &Path) -> Result<(), SelfTestError> {
    let builder = builder.for_bundled_sequence();
    let sequence = find_asset(DEMO_SEQUENCE)?;
    let settings = builder.settings()?;
    let outputs = network::run(&builder, &settings, &sequence)?;
    let tracked = track::run(builder, &sequence)?;
    if tracked.lost > 0 {
        let lost = tracked.lost;
        return Err(SelfTestError::Failed(format!(
            "{lost} frames are lost with these settings"
        )));
    }
    Ok(Figures::new(path, outputs, tracked.ate).write()?)
}

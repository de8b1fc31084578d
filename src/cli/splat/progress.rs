//! Progress of `splat train`: a bar on a terminal, lines in a pipe.

use crate::cli::{CliError, say};
use crate::compute::splat::loss::psnr;
use crate::compute::splat::trainer::{StepReport, Trainer};
use crate::slam_builder::splat::{Measuring, Views, quality};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Lines of progress in a pipe, and the minimum number of iterations between two.
const LINES: u64 = 10;
const MIN_STEPS: u64 = 100;
/// Views of each kind that are compared for a line.
const LINE_VIEWS: usize = 8;

/// Progress for a pipe: a line now and then.
pub(super) struct Lines {
    every: u64,
    /// Sum of the views' PSNR since the last line, and their number.
    psnr: f64,
    steps: u64,
}

impl Lines {
    pub(super) fn new(iterations: u64) -> Self {
        Self {
            every: (iterations / LINES).max(MIN_STEPS),
            psnr: 0.0,
            steps: 0,
        }
    }

    /// After a step. Returns the time that a line took.
    pub(super) fn step(
        &mut self,
        report: &StepReport,
        trainer: &mut Trainer,
        views: &mut Views,
    ) -> Result<Duration, CliError> {
        self.psnr += psnr(report.loss.mse.max(1e-12));
        self.steps += 1;
        if !report.step.is_multiple_of(self.every) {
            return Ok(Duration::ZERO);
        }
        let start = Instant::now();
        let measuring = Measuring {
            max: LINE_VIEWS,
            ..Measuring::GIVEN
        };
        let measured = quality(trainer, views, measuring)?;
        say(&format!(
            "iteration {}: PSNR {:.2} dB on views trained on; {}; {} splats",
            report.step,
            self.psnr / self.steps as f64,
            super::told(&measured),
            trainer.device().counts().rows
        ));
        (self.psnr, self.steps) = (0.0, 0);
        Ok(start.elapsed())
    }
}

/// A bar for a terminal.
pub(super) fn bar(iterations: u64) -> ProgressBar {
    let bar = ProgressBar::new(iterations);
    let template = "{bar:28} {pos}/{len} iterations, {per_sec}, {eta} left: {wide_msg}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

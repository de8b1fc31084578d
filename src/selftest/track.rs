//! Tracks the first frames of the bundled sequence.

use super::{FRAMES, SelfTestError};
use crate::map::TrackingState;
use crate::slam_builder::SlamBuilder;
use crate::source::{self, SourceOptions};
use std::path::Path;

/// What tracking did.
pub struct Tracked {
    pub description: String,
    pub notes: Vec<String>,
    pub frames: usize,
    pub lost: usize,
    /// RMSE of positions after alignment by a similarity transform, in metres; not a number if too few are left.
    pub ate: f64,
    /// Length of the true path in metres.
    pub path: f64,
}

pub fn run(builder: SlamBuilder, sequence: &Path) -> Result<Tracked, SelfTestError> {
    let options = SourceOptions {
        end: Some(FRAMES),
        ..SourceOptions::default()
    };
    let mut frames = source::open(sequence, options)?;
    let truth = frames.ground_truth().map(Path::to_owned);
    let mut slam = builder.source(frames.as_mut()).build()?;
    let about = slam.about();
    let description = about.description.clone();
    let mut notes: Vec<String> = about.notes.iter().map(ToString::to_string).collect();
    let (mut count, mut lost) = (0, 0);
    while let Some(frame) = frames.next_frame()? {
        let tracked = slam.process(&(&frame).into())?;
        count += 1;
        // A map that is given up is lost too.
        lost += usize::from(tracked.state == TrackingState::Lost || tracked.submap > 0);
    }
    let damaged = |found| SelfTestError::Frames {
        path: sequence.to_owned(),
        expected: FRAMES,
        found,
    };
    let Some(truth) = truth.filter(|_| count == FRAMES) else {
        return Err(damaged(count));
    };
    let map = slam.finish().map_err(|error| error.cause)?;
    let (ate, path) = match map.evaluate(&truth) {
        Ok(evaluation) => (evaluation.ate.rmse, evaluation.path_length),
        // Too few poses are left: a failed check of the report, with its reason.
        Err(error) => {
            notes.push(format!("not compared with the true path: {error}"));
            (f64::NAN, 0.0)
        }
    };
    Ok(Tracked {
        description,
        notes,
        frames: count,
        lost,
        ate,
        path,
    })
}

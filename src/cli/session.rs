//! The loop that feeds a source's frames to the system, whatever ends it.

use super::CliError;
use super::progress::Progress;
use crate::map::{FrameRecord, MapSnapshot};
use crate::source::{Source, SourceFrame};
use std::time::Instant;

/// What makes a map of frames.
pub trait Engine {
    /// Network, input size and calibration, for the user.
    fn describe(&self) -> String;
    /// Preprocesses and tracks one frame.
    fn process(&mut self, frame: SourceFrame) -> Result<FrameRecord, CliError>;
    /// Waits until everything that the frames gave rise to is in the map.
    fn finish(&mut self) -> Result<(), CliError>;
    /// The map as it is; valid after an error too.
    fn snapshot(&self) -> MapSnapshot;
}

/// How a session ended. Whatever it was, the engine's snapshot holds what was computed.
#[derive(Debug)]
pub struct Ended {
    /// Frames processed.
    pub frames: usize,
    /// Seconds from the first frame to the end of mapping.
    pub seconds: f64,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
    /// What failed, if anything did.
    pub error: Option<CliError>,
}

/// Processes `first`, then what `source` gives until its end, an error, or `stop`.
pub fn drive(
    first: SourceFrame,
    source: &mut dyn Source,
    engine: &mut dyn Engine,
    progress: &mut Progress,
    stop: &dyn Fn() -> bool,
) -> Ended {
    let start = Instant::now();
    let mut frames = 0;
    let mut next = Ok(Some(first));
    let mut interrupted = false;
    let mut error = loop {
        match next {
            Ok(Some(frame)) => match engine.process(frame) {
                Ok(record) => progress.frame(&record),
                Err(error) => break Some(error),
            },
            // Ctrl-C reaches ffmpeg as well, which then ends early or fails.
            _ if stop() => {
                interrupted = true;
                break None;
            }
            Ok(None) => break None,
            Err(error) => break Some(CliError::from(error)),
        }
        frames += 1;
        if stop() {
            interrupted = true;
            break None;
        }
        next = source.next_frame();
    };
    progress.stage("finishing the map");
    if let Err(late) = engine.finish() {
        // The first error is the cause, so it is the one to tell.
        error.get_or_insert(late);
    }
    Ended {
        frames,
        seconds: start.elapsed().as_secs_f64(),
        interrupted,
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Calibration, Sim3};
    use crate::image::RgbImage;
    use crate::inference::InferenceError;
    use crate::map::TrackingState;
    use crate::source::SourceError;
    use std::cell::Cell;
    use std::path::Path;

    fn frame(index: usize) -> SourceFrame {
        SourceFrame {
            index,
            stamp: Default::default(),
            origin: "test".into(),
            image: RgbImage::new(2, 2),
        }
    }

    /// Frames 1 and on; number `broken` cannot be read.
    struct Numbers {
        next: usize,
        count: usize,
        broken: Option<usize>,
    }

    impl Source for Numbers {
        fn describe(&self) -> String {
            "numbers".into()
        }
        fn remaining(&self) -> Option<usize> {
            Some(self.count - self.next)
        }
        fn calibration(&self) -> Option<&Calibration> {
            None
        }
        fn ground_truth(&self) -> Option<&Path> {
            None
        }
        fn next_frame(&mut self) -> Result<Option<SourceFrame>, SourceError> {
            let index = self.next;
            self.next += 1;
            if Some(index) == self.broken {
                return Err(SourceError::Content {
                    path: format!("{index}.png").into(),
                    expected: "an image".into(),
                    found: "half of one".into(),
                });
            }
            Ok((index < self.count).then(|| frame(index)))
        }
    }

    #[derive(Default)]
    struct Recorder {
        map: MapSnapshot,
        finished: Cell<usize>,
        fail_at: Option<usize>,
        fail_finish: bool,
    }

    impl Engine for Recorder {
        fn describe(&self) -> String {
            "recorder".into()
        }
        fn process(&mut self, frame: SourceFrame) -> Result<FrameRecord, CliError> {
            if Some(frame.index) == self.fail_at {
                return Err(InferenceError::SelfTest("frame".into()).into());
            }
            let record = FrameRecord {
                state: TrackingState::Tracking,
                match_fraction: 1.0,
                unique_fraction: 1.0,
                iterations: 1,
                ..FrameRecord::lost(frame.index, frame.stamp, Sim3::identity())
            };
            self.map.frames.push(record.clone());
            Ok(record)
        }
        fn finish(&mut self) -> Result<(), CliError> {
            self.finished.set(self.finished.get() + 1);
            match self.fail_finish {
                true => Err(InferenceError::SelfTest("finish".into()).into()),
                false => Ok(()),
            }
        }
        fn snapshot(&self) -> MapSnapshot {
            self.map.clone()
        }
    }

    fn session(broken: Option<usize>, engine: &mut Recorder, stop_after: usize) -> Ended {
        let mut source = Numbers {
            next: 1,
            count: 10,
            broken,
        };
        let mut progress = Progress::new(None, false);
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() == stop_after
        };
        drive(frame(0), &mut source, engine, &mut progress, &stop)
    }

    #[test]
    fn every_frame_is_processed_once_and_in_order() {
        let mut engine = Recorder::default();
        let ended = session(None, &mut engine, usize::MAX);
        assert!(ended.error.is_none() && !ended.interrupted);
        assert_eq!(ended.frames, 10);
        let seen: Vec<usize> = engine.snapshot().frames.iter().map(|f| f.index).collect();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
        assert_eq!(engine.finished.get(), 1);
    }

    #[test]
    fn a_broken_image_ends_the_run_and_keeps_what_was_computed() {
        let mut engine = Recorder::default();
        let ended = session(Some(4), &mut engine, usize::MAX);
        let message = ended.error.expect("an error").to_string();
        assert!(message.contains("4.png"), "{message}");
        assert_eq!(ended.frames, 4);
        assert_eq!(engine.snapshot().frames.len(), 4);
        assert_eq!(engine.finished.get(), 1);
    }

    #[test]
    fn ctrl_c_ends_the_run_without_an_error() {
        let mut engine = Recorder::default();
        let ended = session(None, &mut engine, 3);
        assert!(ended.interrupted && ended.error.is_none());
        assert_eq!(engine.snapshot().frames.len(), 3);
        assert_eq!(engine.finished.get(), 1);
    }

    #[test]
    fn a_source_that_ctrl_c_broke_too_is_no_error() {
        let mut engine = Recorder::default();
        // Asked once after each of four frames, and then at the one that cannot be read.
        let ended = session(Some(4), &mut engine, 5);
        assert!(ended.interrupted && ended.error.is_none());
        assert_eq!((ended.frames, engine.finished.get()), (4, 1));
    }

    #[test]
    fn the_first_error_is_the_one_told() {
        let mut engine = Recorder {
            fail_at: Some(2),
            fail_finish: true,
            ..Default::default()
        };
        let ended = session(None, &mut engine, usize::MAX);
        let message = ended.error.expect("an error").to_string();
        assert!(message.contains("frame"), "{message}");
        assert_eq!(ended.frames, 2);

        let mut engine = Recorder {
            fail_finish: true,
            ..Default::default()
        };
        let ended = session(None, &mut engine, usize::MAX);
        let message = ended.error.expect("an error").to_string();
        assert!(message.contains("finish"), "{message}");
        assert_eq!(ended.frames, 10);
    }
}

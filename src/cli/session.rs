//! The loop that feeds a source's frames to SLAM, however it ends.

use super::CliError;
use super::progress::Progress;
use crate::slam::{SlamError, TrackedFrame};
use crate::source::{Source, SourceFrame};

/// Result of a session.
#[derive(Debug)]
pub struct Ended {
    /// Number of frames processed.
    pub frames: usize,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
    /// The error that ended it, if any.
    pub error: Option<CliError>,
}

/// Processes a frame; the other one, if there is one, comes after it.
pub type Process<'a> =
    dyn FnMut(&SourceFrame, Option<&SourceFrame>) -> Result<TrackedFrame, SlamError> + 'a;

/// Passes each frame of `source` to `process`, with the one after it, until the source ends, an error
/// occurs, or `stop` returns true.
pub fn drive(
    source: &mut dyn Source,
    process: &mut Process<'_>,
    progress: &mut Progress,
    stop: &dyn Fn() -> bool,
) -> Ended {
    let mut frames = 0;
    let mut interrupted = false;
    let mut unreadable = None;
    let error = loop {
        let frame = match unreadable.take() {
            Some(error) => Err(error),
            None => source.next_frame(),
        };
        match frame {
            Ok(Some(frame)) => {
                // This frame comes before an error of the next.
                let next = source.peek().unwrap_or_else(|error| {
                    unreadable = Some(error);
                    None
                });
                match process(&frame, next) {
                    Ok(tracked) => progress.frame(&tracked.record),
                    Err(error) => break Some(error.into()),
                }
            }
            // Ctrl-C also reaches ffmpeg, which then ends early or fails.
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
    };
    Ended {
        frames,
        interrupted,
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::device::DeviceError;
    use crate::geometry::{Calibration, Sim3};
    use crate::image::RgbImage;
    use crate::inference::InferenceError;
    use crate::map::FrameRecord;
    use crate::source::SourceError;
    use std::cell::Cell;
    use std::path::Path;

    fn frame(index: usize) -> SourceFrame {
        SourceFrame {
            index,
            stamp: Default::default(),
            origin: "test".into(),
            image: RgbImage::new(2, 2),
            depth: None,
        }
    }

    /// Frames from 0 on; number `broken` cannot be read.
    struct Numbers {
        next: usize,
        count: usize,
        broken: Option<usize>,
        ahead: Option<SourceFrame>,
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
            if let Some(frame) = self.ahead.take() {
                return Ok(Some(frame));
            }
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
        fn peek(&mut self) -> Result<Option<&SourceFrame>, SourceError> {
            if self.ahead.is_none() {
                self.ahead = self.next_frame()?;
            }
            Ok(self.ahead.as_ref())
        }
    }

    /// Records the frames; some fail.
    #[derive(Default)]
    struct Recorder {
        seen: Vec<usize>,
        announced: Vec<usize>,
        fail_at: Option<usize>,
    }

    impl Recorder {
        fn process(
            &mut self,
            frame: &SourceFrame,
            next: Option<&SourceFrame>,
        ) -> Result<TrackedFrame, SlamError> {
            self.announced.extend(next.map(|next| next.index));
            if Some(frame.index) == self.fail_at {
                return Err(SlamError::Device(DeviceError::Inference(
                    InferenceError::SelfTest("frame".into()),
                )));
            }
            self.seen.push(frame.index);
            Ok(TrackedFrame {
                record: FrameRecord::lost(frame.index, frame.stamp, Sim3::identity()),
                step: None,
                covariance: None,
                bridge: None,
                up: None,
            })
        }
    }

    fn session(broken: Option<usize>, recorder: &mut Recorder, stop_after: usize) -> Ended {
        let mut source = Numbers {
            next: 0,
            count: 10,
            broken,
            ahead: None,
        };
        let mut progress = Progress::new(None, false);
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() == stop_after
        };
        let mut process =
            |frame: &SourceFrame, next: Option<&SourceFrame>| recorder.process(frame, next);
        drive(&mut source, &mut process, &mut progress, &stop)
    }

    #[test]
    fn every_frame_is_processed_once_and_in_order() {
        let mut recorder = Recorder::default();
        let ended = session(None, &mut recorder, usize::MAX);
        assert!(ended.error.is_none() && !ended.interrupted);
        assert_eq!(ended.frames, 10);
        assert_eq!(recorder.seen, (0..10).collect::<Vec<_>>());
        assert_eq!(recorder.announced, recorder.seen[1..]);
    }

    #[test]
    fn a_broken_image_ends_the_run_and_keeps_what_was_computed() {
        let mut recorder = Recorder::default();
        let ended = session(Some(4), &mut recorder, usize::MAX);
        let message = ended.error.expect("an error").to_string();
        assert!(message.contains("4.png"), "{message}");
        assert_eq!((ended.frames, recorder.seen.len()), (4, 4));
    }

    #[test]
    fn ctrl_c_ends_the_run_without_an_error() {
        let mut recorder = Recorder::default();
        let ended = session(None, &mut recorder, 3);
        assert!(ended.interrupted && ended.error.is_none());
        assert_eq!(recorder.seen.len(), 3);
    }

    #[test]
    fn a_source_that_ctrl_c_broke_too_is_no_error() {
        let mut recorder = Recorder::default();
        // Checked once after each of four frames, and then at the unreadable one.
        let ended = session(Some(4), &mut recorder, 5);
        assert!(ended.interrupted && ended.error.is_none());
        assert_eq!(ended.frames, 4);
    }

    #[test]
    fn a_frame_that_fails_ends_the_run() {
        let mut recorder = Recorder {
            fail_at: Some(2),
            ..Default::default()
        };
        let ended = session(None, &mut recorder, usize::MAX);
        let message = ended.error.expect("an error").to_string();
        assert!(message.contains("frame"), "{message}");
        assert_eq!(ended.frames, 2);
    }
}

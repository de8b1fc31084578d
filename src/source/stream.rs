//! Reading ahead: a thread makes the frames, in order, while earlier ones are being used.

use super::{Source, SourceError, SourceFrame};
use crate::geometry::Calibration;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// A ground-truth trajectory in TUM format.
#[derive(Debug)]
pub(super) enum GroundTruth {
    /// The dataset's own.
    File(PathBuf),
    /// Converted from another format; deleted with the source.
    Converted(tempfile::TempPath),
}

/// What a [`Stream`] says of itself.
pub(super) struct About {
    pub description: String,
    /// Frames in all, when known.
    pub count: Option<usize>,
    pub calibration: Option<Calibration>,
    pub always_undistort: bool,
    pub ground_truth: Option<GroundTruth>,
    /// The camera's optical frame, when the source names it.
    pub camera_frame: Option<String>,
}

type Frame = Result<SourceFrame, SourceError>;

/// A source that reads two frames ahead.
pub(super) struct Stream {
    about: About,
    remaining: Option<usize>,
    /// `None` at the end.
    frames: Option<Receiver<Frame>>,
    thread: Option<JoinHandle<()>>,
    /// Wakes the thread when it waits for something other than its reader.
    stop: Option<Box<dyn FnOnce() + Send>>,
}

impl Stream {
    pub fn new(
        about: About,
        frames: impl Iterator<Item = Frame> + Send + 'static,
        stop: Option<Box<dyn FnOnce() + Send>>,
    ) -> Result<Self, SourceError> {
        // One frame in the channel and one in the thread's hand.
        let (sender, receiver) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("decode".to_owned())
            .spawn(move || {
                for frame in frames {
                    if sender.send(frame).is_err() {
                        break;
                    }
                }
            })
            .map_err(|cause| SourceError::Program {
                program: "decoding thread",
                message: format!("cannot be started: {cause}"),
            })?;
        Ok(Self {
            remaining: about.count,
            about,
            frames: Some(receiver),
            thread: Some(thread),
            stop,
        })
    }

    fn finish(&mut self) -> std::thread::Result<()> {
        self.frames = None;
        if let Some(stop) = self.stop.take() {
            stop();
        }
        self.thread.take().map_or(Ok(()), JoinHandle::join)
    }
}

impl Source for Stream {
    fn describe(&self) -> String {
        self.about.description.clone()
    }

    fn remaining(&self) -> Option<usize> {
        self.remaining
    }

    fn calibration(&self) -> Option<&Calibration> {
        self.about.calibration.as_ref()
    }

    fn always_undistort(&self) -> bool {
        self.about.always_undistort
    }

    fn ground_truth(&self) -> Option<&Path> {
        match &self.about.ground_truth {
            Some(GroundTruth::File(path)) => Some(path),
            Some(GroundTruth::Converted(path)) => Some(path),
            None => None,
        }
    }

    fn camera_frame(&self) -> Option<&str> {
        self.about.camera_frame.as_deref()
    }

    fn next_frame(&mut self) -> Result<Option<SourceFrame>, SourceError> {
        let Some(frames) = &self.frames else {
            return Ok(None);
        };
        match frames.recv() {
            Ok(frame) => {
                self.remaining = self.remaining.map(|n| n.saturating_sub(1));
                frame.map(Some)
            }
            Err(_) => {
                self.remaining = Some(0);
                // A decoder that panicked must not look like the end.
                self.finish().map_err(|_| SourceError::Program {
                    program: "decoding thread",
                    message: "ended by a panic, the frames after it are lost: \
                              please report the file that it was reading"
                        .to_owned(),
                })?;
                Ok(None)
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A panic of the thread has been printed where it happened.
        let _ = self.finish();
    }
}

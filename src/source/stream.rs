//! Read-ahead: a thread produces frames in order while earlier ones are processed.

use super::{Source, SourceError, SourceFrame};
use crate::geometry::Calibration;
use crate::image::depth::DepthCamera;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// A ground-truth trajectory in TUM format.
#[derive(Debug)]
pub(super) enum GroundTruth {
    /// A file of the dataset.
    File(PathBuf),
    /// Converted from another format; deleted together with the source.
    Converted(tempfile::TempPath),
}

/// Properties of a [`Stream`].
pub(super) struct About {
    pub description: String,
    /// Total number of frames, if known.
    pub count: Option<usize>,
    pub calibration: Option<Calibration>,
    /// The camera of the frames' depth images, if they have any.
    pub depth_camera: Option<DepthCamera>,
    pub always_undistort: bool,
    pub ground_truth: Option<GroundTruth>,
    /// The camera's optical frame, if the source provides it.
    pub camera_frame: Option<String>,
}

/// Frames that wait in the channel; the iterator that makes them may have some more.
const FRAMES_AHEAD: usize = 1;

type Frame = Result<SourceFrame, SourceError>;

/// A source that reads some frames ahead.
pub(super) struct Stream {
    about: About,
    remaining: Option<usize>,
    /// `None` at the end.
    frames: Option<Receiver<Frame>>,
    /// The next frame, where it was read ahead.
    ahead: Option<SourceFrame>,
    thread: Option<JoinHandle<()>>,
    /// Wakes the thread if it is waiting for something other than its reader.
    stop: Option<Box<dyn FnOnce() + Send>>,
}

impl Stream {
    pub fn new(
        about: About,
        frames: impl Iterator<Item = Frame> + Send + 'static,
        stop: Option<Box<dyn FnOnce() + Send>>,
    ) -> Result<Self, SourceError> {
        let (sender, receiver) = sync_channel(FRAMES_AHEAD);
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
            ahead: None,
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

    fn depth_camera(&self) -> Option<&DepthCamera> {
        self.about.depth_camera.as_ref()
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
        let frame = match self.ahead.take() {
            Some(frame) => Ok(Some(frame)),
            None => self.receive(),
        };
        if !matches!(frame, Ok(None)) {
            self.remaining = self.remaining.map(|n| n.saturating_sub(1));
        }
        frame
    }

    fn peek(&mut self) -> Result<Option<&SourceFrame>, SourceError> {
        if self.ahead.is_none() {
            self.ahead = self.receive()?;
        }
        Ok(self.ahead.as_ref())
    }
}

impl Stream {
    fn receive(&mut self) -> Result<Option<SourceFrame>, SourceError> {
        let Some(frames) = &self.frames else {
            return Ok(None);
        };
        match frames.recv() {
            Ok(frame) => frame.map(Some),
            Err(_) => {
                self.remaining = Some(0);
                // A panic of the decoder must not look like the end of the source.
                self.finish().map_err(|_| SourceError::Program {
                    program: "decoding thread",
                    message: "panicked; the remaining frames are lost: \
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
        // The panic has already been printed where it happened.
        let _ = self.finish();
    }
}

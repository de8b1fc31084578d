//! ROS 2 bags: the images of one camera, in order of their stamps, without duplicates.

mod depth;
mod depth_topic;
mod motion;
mod static_tf;
mod topics;

pub(super) use motion::open as open_motion;
pub use topics::BagTopics;

use super::calibration::fit_calibration;
use super::stream::{About, Stream};
use super::{SourceError, SourceFrame, SourceOptions};
use crate::bag::{Bag, BagError, BagMessage, Messages};
use crate::geometry::Calibration;
use crate::image::RgbImage;
use crate::source::{camera_info, image_message};
use crate::time::Stamp;
use crate::wire::cdr;
use crate::wire::messages::sensor::CameraInfo;
use crate::wire::messages::{Header, Message};
use depth::DepthMessages;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use topics::Camera;

/// Size of the reordering window in images: images recorded slightly out of order are sorted.
const WINDOW: usize = 4;
/// An image older than its predecessor by less than this is dropped; an image older by more starts
/// another run in the same bag.
const REORDERED_NANOS: i64 = 1_000_000_000;

impl From<BagError> for SourceError {
    fn from(error: BagError) -> Self {
        match error {
            BagError::Io { path, cause } => Self::Io { path, cause },
            BagError::Content {
                path,
                expected,
                found,
            } => Self::Content {
                path,
                expected,
                found,
            },
        }
    }
}

pub(super) fn open(
    path: &Path,
    options: &SourceOptions,
    named: &BagTopics,
) -> Result<Stream, SourceError> {
    let bag = Bag::open(path)?;
    let chosen = topics::choose(bag.topics(), named);
    let camera = chosen.map_err(|(expected, found)| SourceError::content(path, expected, found))?;
    let total = camera.images.and_then(|n| usize::try_from(n).ok());
    if let Some(total) = total
        && options.start >= total
    {
        return Err(SourceError::Selection {
            option: "start",
            expected: format!("less than the number of frames, {total}"),
            found: options.start,
        });
    }
    let calibration = match options.calibration {
        Some(given) => Some(given),
        None => recorded_calibration(&bag, &camera)?,
    };
    let mut frames = Frames {
        origin: origin(path, &camera.image),
        compressed: camera.compressed,
        ordered: Ordered::new(bag.messages(&[&camera.image])),
        size: None,
        frame_id: None,
        index: 0,
        promised: total,
        options: *options,
        ended: false,
        depth: None,
    };
    let depth_topic = match options.depth {
        Some(_) => Some(
            depth_topic::choose(bag.topics(), named)
                .map_err(|(expected, found)| SourceError::content(path, expected, found))?,
        ),
        None => None,
    };
    frames.depth = depth_topic.as_ref().map(|t| DepthMessages::new(&bag, t));
    // The first image determines the size.
    let first = frames.next().transpose()?;
    let depth_camera = match (&depth_topic, &frames.frame_id) {
        (Some(topic), Some(frame)) => Some(depth::camera(&bag, topic, frame)?),
        _ => None,
    };
    let calibration = match (calibration, frames.size) {
        (Some(calibration), Some(size)) => Some(fit(&calibration, size, path, &camera)?),
        (calibration, _) => calibration,
    };
    let end = match (options.end, total) {
        (Some(end), Some(total)) => Some(end.min(total)),
        (end, total) => end.or(total),
    };
    let count = end.map(|end| end.saturating_sub(options.start).div_ceil(options.stride));
    let about = About {
        description: match (count, total) {
            (Some(count), Some(total)) if count != total => {
                format!("ROS 2 bag, {}, {count} of {total} frames", camera.image)
            }
            (Some(count), _) => format!("ROS 2 bag, {}, {}", camera.image, super::frames(count)),
            (None, _) => format!("ROS 2 bag, {}", camera.image),
        },
        count,
        calibration,
        depth_camera,
        always_undistort: false,
        ground_truth: None,
        camera_frame: frames.frame_id.take(),
    };
    Stream::new(about, first.map(Ok).into_iter().chain(frames), None)
}

/// `bag:/topic`, used in messages.
fn origin(bag: &Path, topic: &str) -> PathBuf {
    let mut origin = bag.as_os_str().to_owned();
    origin.push(":");
    origin.push(topic);
    origin.into()
}

/// Calibration from the first `camera_info`; an unusable one is logged and ignored.
fn recorded_calibration(bag: &Bag, camera: &Camera) -> Result<Option<Calibration>, SourceError> {
    let Some(topic) = &camera.camera_info else {
        return Ok(None);
    };
    let message = match bag.messages(&[topic]).next() {
        Some(Ok(message)) => message,
        // Damage is reported when an image read reaches it.
        Some(Err(_)) | None => return Ok(None),
    };
    let info = CameraInfo::decode(&message.payload).map_err(|e| {
        SourceError::content(&origin(bag.path(), topic), CameraInfo::TYPE, e.to_string())
    })?;
    let found = match camera.rectified {
        true => camera_info::rectified(&info),
        false => camera_info::calibration(&info),
    };
    match found {
        Ok(calibration) => Ok(Some(calibration)),
        Err(error) => {
            tracing::warn!("ignoring the calibration on {topic}: {error}");
            Ok(None)
        }
    }
}

fn fit(
    calibration: &Calibration,
    size: (usize, usize),
    path: &Path,
    camera: &Camera,
) -> Result<Calibration, SourceError> {
    fit_calibration(calibration, size).map_err(|e| {
        SourceError::content(
            &origin(path, &camera.image),
            format!(
                "images of {}×{} pixels, which the calibration is for",
                calibration.width, calibration.height
            ),
            format!("{}×{} ({e})", size.0, size.1),
        )
    })
}

/// The camera's messages in order of their stamps.
struct Ordered {
    messages: Messages,
    window: VecDeque<(Stamp, BagMessage)>,
    last: Option<Stamp>,
    /// The newest recorded stamp.
    newest: Option<Stamp>,
    /// The error that ended the messages early, if any.
    trouble: Option<Trouble>,
    done: bool,
    dropped: usize,
}

impl Ordered {
    fn new(messages: Messages) -> Self {
        Self {
            messages,
            window: VecDeque::with_capacity(WINDOW),
            last: None,
            newest: None,
            trouble: None,
            done: false,
            dropped: 0,
        }
    }

    fn fill(&mut self) {
        while !self.done && self.window.len() < WINDOW {
            match self.messages.next() {
                None => self.done = true,
                Some(Err(error)) => {
                    self.trouble = Some(Trouble::Bag(error));
                    self.done = true;
                }
                Some(Ok(message)) => {
                    let newest = self.newest.unwrap_or(Stamp { nanos: i64::MIN });
                    let stamp = stamp(&message).unwrap_or(Stamp {
                        nanos: newest.nanos.saturating_add(1),
                    });
                    if newest.nanos.saturating_sub(stamp.nanos) >= REORDERED_NANOS {
                        let last = newest;
                        self.trouble = Some(Trouble::Back { last, stamp });
                        self.done = true;
                        return;
                    }
                    self.newest = Some(newest.max(stamp));
                    let later = self.window.iter().rposition(|(s, _)| *s <= stamp);
                    self.window
                        .insert(later.map_or(0, |k| k + 1), (stamp, message));
                }
            }
        }
    }

    /// The next message; `None` after an error.
    fn next(&mut self) -> Option<Result<(Stamp, BagMessage), Trouble>> {
        loop {
            self.fill();
            let Some((stamp, message)) = self.window.pop_front() else {
                if self.dropped > 0 {
                    tracing::warn!(
                        "dropped {} images with repeated or older stamps",
                        self.dropped
                    );
                }
                return self.trouble.take().map(Err);
            };
            match self.last {
                Some(last) if stamp <= last => self.dropped += 1,
                _ => {
                    self.last = Some(stamp);
                    return Some(Ok((stamp, message)));
                }
            }
        }
    }
}

/// Reasons for ending the image stream early.
enum Trouble {
    Bag(BagError),
    /// Time jumps back so far that another run begins.
    Back {
        last: Stamp,
        stamp: Stamp,
    },
}

/// The stamp in the header, or the recording time for drivers that leave it zero. `None` for a
/// message that cannot be parsed; the error is reported when the message is read.
fn stamp(message: &BagMessage) -> Option<Stamp> {
    let header = cdr::decode::<Header>(Header::TYPE, &message.payload).ok()?;
    let stamp = Stamp::from(&header.stamp);
    Some(match stamp.nanos {
        0 => message.log_time,
        _ => stamp,
    })
}

struct Frames {
    origin: PathBuf,
    compressed: bool,
    ordered: Ordered,
    /// Size of the first image.
    size: Option<(usize, usize)>,
    /// `frame_id` of the first image.
    frame_id: Option<String>,
    /// Index of the next image.
    index: usize,
    /// Number of images according to the bag's metadata.
    promised: Option<usize>,
    options: SourceOptions,
    ended: bool,
    depth: Option<DepthMessages>,
}

impl Frames {
    fn image(&mut self, stamp: Stamp, message: &BagMessage) -> Result<RgbImage, SourceError> {
        let unusable = |found: String| {
            let expected = "an image in each message";
            SourceError::content(&self.origin, expected, format!("at {stamp}: {found}"))
        };
        let payload = &message.payload;
        let (header, image) = if self.compressed {
            let (header, file) =
                image_message::compressed(payload).map_err(|e| unusable(e.to_string()))?;
            let image = image_message::unpack(file).map_err(|e| unusable(e.to_string()))?;
            (header, image)
        } else {
            let (header, raw) = image_message::raw(payload).map_err(|e| unusable(e.to_string()))?;
            let mut image = RgbImage::default();
            raw.to_rgb(&mut image)
                .map_err(|e| unusable(e.to_string()))?;
            (header, image)
        };
        let size = *self.size.get_or_insert((image.width, image.height));
        if (image.width, image.height) != size {
            return Err(SourceError::content(
                &self.origin,
                format!(
                    "images of {}×{} pixels, the size of the first",
                    size.0, size.1
                ),
                format!("{}×{} at {stamp}", image.width, image.height),
            ));
        }
        self.frame_id.get_or_insert(header.frame_id);
        Ok(image)
    }
}

impl Iterator for Frames {
    type Item = Result<SourceFrame, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.ended || self.options.end.is_some_and(|end| self.index >= end) {
                return None;
            }
            let (stamp, message) = match self.ordered.next() {
                Some(Ok(next)) => next,
                None => {
                    self.ended = true;
                    let read = self.index + self.ordered.dropped;
                    if let Some(promised) = self.promised.filter(|n| read < *n) {
                        tracing::warn!(
                            "{}: the bag metadata lists {promised} images, but only {read} were found",
                            self.origin.display()
                        );
                    }
                    return None;
                }
                Some(Err(trouble)) => {
                    self.ended = true;
                    return Some(Err(match trouble {
                        Trouble::Bag(error) => error.into(),
                        Trouble::Back { last, stamp } => SourceError::content(
                            &self.origin,
                            "increasing times (use --start and --end to read one run of a bag that holds several)",
                            format!("{stamp} after {last}"),
                        ),
                    }));
                }
            };
            let index = self.index;
            self.index += 1;
            let past = index.checked_sub(self.options.start);
            if past.is_none_or(|past| !past.is_multiple_of(self.options.stride)) {
                continue;
            }
            let image = self.image(stamp, &message);
            let depth = self.depth.as_mut().and_then(|depth| depth.at(stamp));
            return Some(image.map(|image| SourceFrame {
                index,
                stamp,
                origin: self.origin.clone(),
                image,
                depth,
            }));
        }
    }
}

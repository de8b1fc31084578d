//! The last minute of messages, in bounded memory.

use crate::image::{self, RgbImage};
use crate::ros::tap::{Listener, Tapped};
use crate::source::image_message;
use crate::time::Stamp;
use crate::wire::messages::Message;
use crate::wire::messages::diagnostic::{DiagnosticArray, ERROR};
use crate::wire::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use crate::wire::messages::nav::Odometry;
use crate::wire::messages::sensor::{CameraInfo, CompressedImage, Image, Imu};
use crate::wire::{Payload, Qos};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Types of the messages that are kept as they are.
const KEPT: [&str; 7] = [
    TfMessage::TYPE,
    Odometry::TYPE,
    PoseWithCovarianceStamped::TYPE,
    Imu::TYPE,
    CameraInfo::TYPE,
    CompressedImage::TYPE,
    DiagnosticArray::TYPE,
];
/// The topics of images whose pixels are kept as JPEG; masks and depth are not kept.
const IMAGE: &str = "image";
/// Maximum number of messages: a minute of IMU at 400 Hz, with all the rest.
const MAX_MESSAGES: usize = 1 << 16;
/// Maximum number of messages on latched topics (`/tf_static`), which never get too old.
const MAX_LATCHED: usize = 64;
/// Larger messages on latched topics are not kept.
const MAX_LATCHED_BYTES: usize = 1 << 20;
/// Quality of the kept images.
const JPEG_QUALITY: u8 = 85;
/// Maximum number of characters that are kept of an error.
const MAX_WORDS: usize = 1000;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Length of time.
    pub seconds: f64,
    /// Sum of the messages' sizes.
    pub bytes: usize,
    /// Minimum interval between two images that arrive uncompressed, in nanoseconds.
    pub image_period: i64,
}

/// A topic of the bag.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptTopic {
    pub name: String,
    pub kind: &'static str,
    pub qos: Qos,
}

/// A kept message.
#[derive(Debug, Clone)]
pub struct Kept {
    /// When it was sent or received.
    pub time: Stamp,
    /// Index into the topics.
    pub topic: usize,
    pub payload: Payload,
}

/// What the ring holds, oldest message first.
#[derive(Debug, Default)]
pub struct Contents {
    pub topics: Vec<KeptTopic>,
    pub messages: Vec<Kept>,
}

/// What is done with a topic's messages.
#[derive(Debug, Clone, Copy)]
pub enum Handle {
    /// Kept as they are; `published` by the node itself.
    Message { topic: usize, published: bool },
    /// Latched: kept until [`MAX_LATCHED`] newer ones came.
    Latched { topic: usize },
    /// Images that become JPEG on another thread.
    Pixels { topic: usize },
}

#[derive(Default)]
struct State {
    topics: Vec<KeptTopic>,
    messages: VecDeque<Kept>,
    bytes: usize,
    latched: VecDeque<Kept>,
    /// The newest error in the node's own diagnostics: name of the status and its message.
    error: Option<(String, String)>,
}

/// An image that waits to be compressed.
#[derive(Default)]
struct Waiting {
    image: Option<Kept>,
    /// Time of the last image that was taken.
    last: Option<Stamp>,
}

/// Keeps the newest messages.
pub struct Ring {
    limits: Limits,
    state: Mutex<State>,
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

impl Ring {
    /// An empty ring.
    pub fn new(limits: Limits) -> Self {
        let state = State {
            messages: VecDeque::with_capacity(MAX_MESSAGES),
            latched: VecDeque::with_capacity(MAX_LATCHED),
            ..State::default()
        };
        Self {
            limits,
            state: Mutex::new(state),
            waiting: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything can panic.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn keep(&self, message: Kept) {
        let mut state = self.lock();
        state.bytes += message.payload.data.len();
        let from = message.time.nanos - (self.limits.seconds * 1e9) as i64;
        state.messages.push_back(message);
        while let Some(oldest) = state.messages.front() {
            let fits = state.bytes <= self.limits.bytes && state.messages.len() < MAX_MESSAGES;
            if fits && oldest.time.nanos >= from {
                break;
            }
            let size = oldest.payload.data.len();
            state.messages.pop_front();
            state.bytes -= size;
        }
    }

    fn keep_latched(&self, message: Kept) {
        if message.payload.data.len() > MAX_LATCHED_BYTES {
            return;
        }
        let mut state = self.lock();
        if state.latched.len() == MAX_LATCHED {
            state.latched.pop_front();
        }
        state.latched.push_back(message);
    }

    /// Looks for an error in the node's own diagnostics.
    fn look(&self, payload: &Payload) {
        // It is what the node has just encoded.
        let Ok(array) = DiagnosticArray::decode(payload) else {
            return;
        };
        if let Some(status) = array.status.into_iter().find(|s| s.level == ERROR) {
            let words = status.message.chars().take(MAX_WORDS).collect();
            self.lock().error = Some((status.name, words));
        }
    }

    /// Takes the newest error that the node's diagnostics named since the last call.
    pub fn take_error(&self) -> Option<(String, String)> {
        self.lock().error.take()
    }

    /// Waits up to `patience` for an image, compresses it and keeps it; `scratch` is for its pixels. Returns whether
    /// there was one.
    pub fn compress(&self, scratch: &mut RgbImage, patience: Duration) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
        let waited = self
            .arrived
            .wait_timeout_while(waiting, patience, |w| w.image.is_none());
        let taken = match waited {
            Ok((mut waiting, _)) => waiting.image.take(),
            Err(poisoned) => poisoned.into_inner().0.image.take(),
        };
        let Some(image) = taken else { return false };
        // An image that cannot be used is reported by tracking.
        if let Some(payload) = compressed(&image.payload, scratch) {
            self.keep(Kept { payload, ..image });
        }
        true
    }

    /// Everything that is kept; messages of latched topics come first, with the time of the oldest of the others.
    pub fn contents(&self) -> Contents {
        let state = self.lock();
        let mut messages: Vec<Kept> = state.messages.iter().cloned().collect();
        let latched: Vec<Kept> = state.latched.iter().cloned().collect();
        let topics = state.topics.clone();
        drop(state);
        // A compressed image was added after the messages that came while it was compressed.
        messages.sort_by_key(|message| message.time);
        let start = messages.first().map(|message| message.time);
        let latched = latched.into_iter().map(|message| Kept {
            time: start.unwrap_or(message.time),
            ..message
        });
        Contents {
            topics,
            messages: latched.chain(messages).collect(),
        }
    }
}

/// A `CompressedImage` of the `Image` in `payload`.
fn compressed(payload: &Payload, scratch: &mut RgbImage) -> Option<Payload> {
    let (header, raw) = image_message::raw(payload).ok()?;
    raw.to_rgb(scratch).ok()?;
    let jpeg = image::jpeg(scratch, JPEG_QUALITY).ok()?;
    let message = CompressedImage {
        header,
        format: "rgb8; jpeg compressed rgb8".to_owned(),
        data: serde_bytes::Bytes::new(&jpeg),
    };
    Some(message.encode().ok()?.into())
}

/// The message alone: a received one may be a part of a larger buffer.
fn own(payload: &Payload) -> Payload {
    Payload {
        data: Bytes::copy_from_slice(&payload.data),
        big_endian: payload.big_endian,
    }
}

impl Listener for Ring {
    type Handle = Handle;

    fn topic(&self, topic: Tapped<'_>) -> Option<Handle> {
        let pixels = topic.topic == IMAGE && topic.kind == Image::TYPE;
        if !pixels && !KEPT.contains(&topic.kind) {
            return None;
        }
        let kept = match pixels {
            // As image_transport names it.
            true => KeptTopic {
                name: format!("{}/compressed", topic.name),
                kind: CompressedImage::TYPE,
                qos: topic.qos,
            },
            false => KeptTopic {
                name: topic.name.to_owned(),
                kind: topic.kind,
                qos: topic.qos,
            },
        };
        let mut state = self.lock();
        let same = |known: &KeptTopic| known.name == kept.name && known.kind == kept.kind;
        let known = state.topics.iter().position(same);
        let index = known.unwrap_or_else(|| {
            state.topics.push(kept);
            state.topics.len() - 1
        });
        Some(match (pixels, topic.qos.transient_local) {
            (true, _) => Handle::Pixels { topic: index },
            (false, true) => Handle::Latched { topic: index },
            (false, false) => Handle::Message {
                topic: index,
                published: topic.published,
            },
        })
    }

    fn message(&self, handle: Handle, payload: &Payload) {
        let time = Stamp::now();
        match handle {
            Handle::Message { topic, published } => {
                let payload = match published {
                    true => payload.clone(),
                    false => own(payload),
                };
                if published && self.lock().topics[topic].kind == DiagnosticArray::TYPE {
                    self.look(&payload);
                }
                self.keep(Kept {
                    time,
                    topic,
                    payload,
                });
            }
            Handle::Latched { topic } => self.keep_latched(Kept {
                time,
                topic,
                payload: own(payload),
            }),
            Handle::Pixels { topic } => {
                let mut waiting = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
                let since = waiting.last.map(|last| time.nanos - last.nanos);
                // A clock that was set back does not end the recording.
                if since.is_some_and(|nanos| (0..self.limits.image_period).contains(&nanos)) {
                    return;
                }
                waiting.last = Some(time);
                waiting.image = Some(Kept {
                    time,
                    topic,
                    payload: payload.clone(),
                });
                self.arrived.notify_one();
            }
        }
    }

    fn subscribes(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::Header;
    use crate::wire::messages::diagnostic::{DiagnosticStatus, OK};

    fn ring(seconds: f64, bytes: usize) -> Ring {
        Ring::new(Limits {
            seconds,
            bytes,
            image_period: 0,
        })
    }

    fn tapped(
        topic: &'static str,
        kind: &'static str,
        qos: Qos,
        published: bool,
    ) -> Tapped<'static> {
        Tapped {
            topic,
            name: topic,
            kind,
            qos,
            published,
        }
    }

    fn message(nanos: i64, bytes: usize) -> Kept {
        Kept {
            time: Stamp { nanos },
            topic: 0,
            payload: Bytes::from(vec![0; bytes]).into(),
        }
    }

    fn times(ring: &Ring) -> Vec<i64> {
        let messages = ring.contents().messages;
        messages
            .iter()
            .map(|m| m.time.nanos / 1_000_000_000)
            .collect()
    }

    #[test]
    fn time_size_and_number_are_bounded() {
        let second = 1_000_000_000;
        let by_time = ring(3.0, 1 << 20);
        (0..10).for_each(|k| by_time.keep(message(k * second, 10)));
        assert_eq!(times(&by_time), [6, 7, 8, 9]);
        let by_size = ring(60.0, 100);
        (0..10).for_each(|k| by_size.keep(message(k * second, 30)));
        assert_eq!(times(&by_size), [7, 8, 9]);
        // One that is larger than everything together is not kept.
        by_size.keep(message(10 * second, 101));
        assert!(times(&by_size).is_empty());
        assert_eq!(by_size.lock().bytes, 0);
        let by_number = ring(60.0, 1 << 30);
        (0..MAX_MESSAGES as i64 + 10).for_each(|_| by_number.keep(message(0, 1)));
        let state = by_number.lock();
        assert!(
            state.messages.len() < MAX_MESSAGES,
            "{}",
            state.messages.len()
        );
        assert!(state.messages.capacity() <= MAX_MESSAGES + 1);
    }

    #[test]
    fn latched_messages_stay_and_start_the_bag() {
        let ring = ring(1.0, 1 << 20);
        let fixed = tapped("/tf_static", TfMessage::TYPE, Qos::latched(1), false);
        let fixed = ring.topic(fixed).unwrap();
        let moving = tapped("/tf", TfMessage::TYPE, Qos::reliable(1), false);
        let moving = ring.topic(moving).unwrap();
        ring.message(fixed, &Payload::default());
        (0..5).for_each(|_| ring.message(moving, &Payload::default()));
        let contents = ring.contents();
        let topics: Vec<usize> = contents.messages.iter().map(|m| m.topic).collect();
        assert_eq!(topics, [0, 1, 1, 1, 1, 1]);
        assert_eq!(contents.messages[0].time, contents.messages[1].time);
        (0..2 * MAX_LATCHED).for_each(|_| ring.message(fixed, &Payload::default()));
        assert_eq!(ring.lock().latched.len(), MAX_LATCHED);
    }

    #[test]
    fn an_error_of_the_node_is_noticed_and_one_of_others_is_not() {
        let ring = ring(60.0, 1 << 20);
        let diagnostics = |published| {
            let topic = tapped(
                "/diagnostics",
                DiagnosticArray::TYPE,
                Qos::reliable(1),
                published,
            );
            ring.topic(topic).unwrap()
        };
        let (own, foreign) = (diagnostics(true), diagnostics(false));
        let tell = |handle, level| {
            let status = DiagnosticStatus {
                level,
                name: "slam: tracking".into(),
                message: "failed".into(),
                ..Default::default()
            };
            let array = DiagnosticArray {
                header: Header::default(),
                status: vec![status],
            };
            ring.message(handle, &array.encode().unwrap().into());
        };
        tell(own, OK);
        tell(foreign, ERROR);
        assert_eq!(ring.take_error(), None);
        tell(own, ERROR);
        let error = ring.take_error().unwrap();
        assert_eq!(error, ("slam: tracking".into(), "failed".into()));
        assert_eq!(ring.take_error(), None);
    }

    #[test]
    fn pixels_become_jpeg_and_what_is_no_image_is_left_out() {
        let ring = ring(60.0, 1 << 20);
        let image = ring
            .topic(tapped("image", Image::TYPE, Qos::sensor_data(1), false))
            .unwrap();
        assert!(
            ring.topic(tapped("mask", Image::TYPE, Qos::sensor_data(1), false))
                .is_none()
        );
        let mut scratch = RgbImage::new(0, 0);
        let none = Duration::ZERO;
        assert!(!ring.compress(&mut scratch, none));
        ring.message(image, &Payload::default());
        assert!(ring.compress(&mut scratch, none));
        assert!(ring.contents().messages.is_empty());
        let data = vec![200; 8 * 4];
        let grey = Image {
            header: Header::new(Stamp { nanos: 7 }, "camera"),
            height: 4,
            width: 8,
            encoding: "mono8".into(),
            is_bigendian: 0,
            step: 8,
            data: serde_bytes::Bytes::new(&data),
        };
        ring.message(image, &grey.encode().unwrap().into());
        assert!(ring.compress(&mut scratch, none));
        let contents = ring.contents();
        assert_eq!(contents.topics[0].name, "image/compressed");
        let (header, file) = image_message::compressed(&contents.messages[0].payload).unwrap();
        assert_eq!(header.frame_id, "camera");
        let read = image_message::unpack(file).unwrap();
        assert_eq!((read.width, read.height), (8, 4));
        assert!(read.data.iter().all(|v| v.abs_diff(200) < 4));
    }
}

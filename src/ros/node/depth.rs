//! The depth thread: what the network saw of each tracked frame as `~/depth`, while somebody is subscribed.

use super::publish::send;
use super::shared::Shared;
use crate::compute::device::FramePoints;
use crate::geometry::Intrinsics;
use crate::map::CloudOptions;
use crate::ros::messages::sensor::{CameraInfo, Image, RegionOfInterest};
use crate::ros::messages::{Header, Message};
use crate::ros::middleware::{Middleware, MiddlewareError, Publish, Qos};
use crate::time::Stamp;
use serde_bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How often the thread looks whether somebody is subscribed.
const TICK: Duration = Duration::from_millis(50);

/// A tracked frame's pointmap.
#[derive(Debug, Default)]
pub struct DepthFrame {
    /// The image's time.
    pub stamp: Stamp,
    /// The camera's optical frame.
    pub camera_frame: Arc<str>,
    /// Of the network's image: columns and rows.
    pub size: (usize, usize),
    /// Of the network's image, where they are known.
    pub intrinsics: Option<Intrinsics>,
    /// Scale of the frame's pose.
    pub scale: f64,
    /// Before scale.
    pub points: FramePoints,
}

/// A place for one frame, of which a newer one takes the place.
#[derive(Debug, Default)]
pub struct DepthSlot {
    wanted: AtomicBool,
    frames: Mutex<Frames>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Frames {
    newest: Option<DepthFrame>,
    /// Used again, so that no frame allocates.
    spare: Vec<DepthFrame>,
}

/// Frames that are there at once: waiting, being sent, being filled.
const FRAMES: usize = 3;

impl DepthSlot {
    /// Whether somebody is subscribed.
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// A frame to fill.
    pub fn empty(&self) -> DepthFrame {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Puts a frame in; one that was not sent yet is dropped.
    pub fn put(&self, frame: DepthFrame) {
        let mut frames = self.lock();
        let old = frames.newest.replace(frame);
        keep(&mut frames, old);
        drop(frames);
        self.changed.notify_one();
    }

    /// Gives a frame back that was not filled or was sent.
    pub fn give_back(&self, frame: DepthFrame) {
        keep(&mut self.lock(), Some(frame));
    }

    fn next(&self, patience: Duration) -> Option<DepthFrame> {
        let empty = |frames: &mut Frames| frames.newest.is_none();
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience, empty);
        let (mut frames, _) = waited.unwrap_or_else(|e| e.into_inner());
        frames.newest.take()
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn keep(frames: &mut Frames, frame: Option<DepthFrame>) {
    if frames.spare.len() < FRAMES {
        frames.spare.extend(frame);
    }
}

/// Publishers.
pub struct DepthTopics {
    depth: Box<dyn Publish>,
    info: Box<dyn Publish>,
}

impl DepthTopics {
    /// Advertises them.
    pub fn new(middleware: &dyn Middleware) -> Result<Self, MiddlewareError> {
        let advertise = |topic, kind| middleware.advertise(topic, kind, Qos::sensor_data(1));
        Ok(Self {
            depth: advertise("~/depth", Image::TYPE)?,
            info: advertise("~/camera_info", CameraInfo::TYPE)?,
        })
    }
}

/// Runs until the node closes.
pub fn run(shared: &Shared, topics: &DepthTopics) {
    let mut data = Vec::new();
    while !shared.closing.load(Ordering::Acquire) {
        let slot = &shared.depth;
        slot.wanted
            .store(topics.depth.subscribers() > 0, Ordering::Relaxed);
        let Some(frame) = slot.next(TICK) else {
            continue;
        };
        publish(shared, topics, &frame, &mut data);
        slot.give_back(frame);
    }
}

fn publish(shared: &Shared, topics: &DepthTopics, frame: &DepthFrame, data: &mut Vec<u8>) {
    let (width, height) = frame.size;
    let header = Header::new(frame.stamp, &frame.camera_frame);
    depths(frame, data);
    let message = Image {
        header: header.clone(),
        height: height as u32,
        width: width as u32,
        encoding: "32FC1".to_owned(),
        is_bigendian: 0,
        step: 4 * width as u32,
        data: Bytes::new(data),
    };
    if let Some(camera) = &frame.intrinsics {
        let info = camera_info(header, frame.size, camera);
        send(topics.info.as_ref(), &info, &shared.status);
    }
    send(topics.depth.as_ref(), &message, &shared.status);
}

/// Metres along the optical axis, little endian; NaN where the network is unsure or saw nothing.
fn depths(frame: &DepthFrame, dst: &mut Vec<u8>) {
    let least = CloudOptions::default().min_confidence;
    let FramePoints { points, confidence } = &frame.points;
    dst.clear();
    dst.extend(
        points
            .chunks_exact(3)
            .zip(confidence)
            .flat_map(|(point, confidence)| {
                let sure = *confidence >= least && point[2] > 0.0 && point[2].is_finite();
                let depth = match sure {
                    true => (f64::from(point[2]) * frame.scale) as f32,
                    false => f32::NAN,
                };
                depth.to_le_bytes()
            }),
    );
}

/// A pinhole without distortion, as the network's images are.
fn camera_info(header: Header, (width, height): (usize, usize), k: &Intrinsics) -> CameraInfo {
    CameraInfo {
        header,
        height: height as u32,
        width: width as u32,
        distortion_model: "plumb_bob".to_owned(),
        d: vec![0.0; 5],
        k: [k.fx, 0.0, k.cx, 0.0, k.fy, k.cy, 0.0, 0.0, 1.0],
        r: [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p: [
            k.fx, 0.0, k.cx, 0.0, 0.0, k.fy, k.cy, 0.0, 0.0, 0.0, 1.0, 0.0,
        ],
        binning_x: 0,
        binning_y: 0,
        roi: RegionOfInterest::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(z: &[f32], confidence: &[f32], scale: f64) -> DepthFrame {
        DepthFrame {
            scale,
            points: FramePoints {
                points: z.iter().flat_map(|z| [9.0, 9.0, *z]).collect(),
                confidence: confidence.to_vec(),
            },
            ..Default::default()
        }
    }

    #[test]
    fn depths_are_metres_where_the_network_is_sure() {
        let least = CloudOptions::default().min_confidence;
        let z = [2.0, 2.0, 0.0, -1.0, f32::INFINITY, f32::NAN];
        let sure = least * 2.0;
        let frame = frame(&z, &[sure, least * 0.5, sure, sure, sure, sure], 1.5);
        let mut bytes = vec![7];
        depths(&frame, &mut bytes);
        let (values, rest) = bytes.as_chunks::<4>();
        assert!(rest.is_empty());
        let values: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(values[0], 3.0);
        assert_eq!(values.len(), 6);
        assert!(values[1..].iter().all(|v| v.is_nan()), "{values:?}");
    }

    #[test]
    fn the_newest_frame_wins_and_places_are_used_again() {
        let slot = DepthSlot::default();
        for k in 0..10 {
            let mut frame = slot.empty();
            frame.stamp = Stamp { nanos: k };
            slot.put(frame);
        }
        let newest = slot.next(Duration::ZERO).expect("a frame");
        assert_eq!(newest.stamp.nanos, 9);
        assert!(slot.next(Duration::ZERO).is_none());
        slot.give_back(newest);
        assert!(slot.lock().spare.len() <= FRAMES);
    }
}

//! The depth thread: publishes the network's depth of each tracked frame on `~/depth`, and few of its
//! points on `~/cloud`, while there are subscribers.

use super::depth_slot::DepthFrame;
use super::frame_cloud::{self, RateLimit};
use super::publish::send;
use super::shared::Shared;
use super::supervisor::Flow;
use crate::compute::device::FramePoints;
use crate::geometry::Intrinsics;
use crate::ros::middleware::{Middleware, MiddlewareError, Publish};
use crate::wire::Qos;
use crate::wire::messages::sensor::{CameraInfo, Image, PointCloud2, RegionOfInterest};
use crate::wire::messages::{Header, Message};
use serde_bytes::Bytes;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval at which the number of subscribers is checked.
const TICK: Duration = Duration::from_millis(50);

/// Clouds kept for a subscriber that is slow: a costmap wants the newest.
const CLOUDS_KEPT: usize = 5;

/// Publishers.
pub struct DepthTopics {
    depth: Box<dyn Publish>,
    info: Box<dyn Publish>,
    cloud: Box<dyn Publish>,
}

impl DepthTopics {
    /// Advertises the topics.
    pub fn new(middleware: &dyn Middleware) -> Result<Self, MiddlewareError> {
        let advertise = |topic, kind| middleware.advertise(topic, kind, Qos::sensor_data(1));
        Ok(Self {
            depth: advertise("~/depth", Image::TYPE)?,
            info: advertise("~/camera_info", CameraInfo::TYPE)?,
            cloud: middleware.advertise(
                "~/cloud",
                PointCloud2::TYPE,
                Qos::reliable(CLOUDS_KEPT),
            )?,
        })
    }
}

/// Runs until the node closes.
pub fn run(shared: &Shared, topics: &DepthTopics) {
    let mut data = Vec::new();
    let mut limit = RateLimit::default();
    shared.supervisor.run("depth", || {
        if shared.closing.load(Ordering::Acquire) {
            return Flow::Stop;
        }
        let slot = &shared.depth;
        let (depth, cloud) = (
            topics.depth.subscribers() > 0,
            topics.cloud.subscribers() > 0,
        );
        slot.want(depth || cloud);
        let Some(frame) = slot.next(TICK) else {
            return Flow::Idle;
        };
        let working = shared.pulses.depth.work();
        if depth {
            publish(shared, topics, &frame, &mut data);
        }
        if cloud && limit.take(frame.stamp, shared.settings.load().cloud_rate) {
            let message = frame_cloud::message(&frame, shared.min_confidence);
            send(topics.cloud.as_ref(), &message, &shared.status);
        }
        drop(working);
        slot.give_back(frame);
        Flow::Continue
    });
}

fn publish(shared: &Shared, topics: &DepthTopics, frame: &DepthFrame, data: &mut Vec<u8>) {
    let (width, height) = frame.size;
    let header = Header::new(frame.stamp, &frame.camera_frame);
    depths(frame, shared.min_confidence, data);
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

/// Metres along the optical axis, little-endian; NaN where the network is not confident or has no
/// point.
fn depths(frame: &DepthFrame, min_confidence: f32, dst: &mut Vec<u8>) {
    let FramePoints { points, confidence } = &frame.points;
    dst.clear();
    dst.extend(
        points
            .chunks_exact(3)
            .zip(confidence)
            .flat_map(|(point, confidence)| {
                let sure = *confidence >= min_confidence && point[2] > 0.0 && point[2].is_finite();
                let depth = match sure {
                    true => (f64::from(point[2]) * frame.scale) as f32,
                    false => f32::NAN,
                };
                depth.to_le_bytes()
            }),
    );
}

/// Intrinsics without distortion, like the network's images.
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
        let least = 1.5;
        let z = [2.0, 2.0, 0.0, -1.0, f32::INFINITY, f32::NAN];
        let sure = least * 2.0;
        let frame = frame(&z, &[sure, least * 0.5, sure, sure, sure, sure], 1.5);
        let mut bytes = vec![7];
        depths(&frame, least, &mut bytes);
        let (values, rest) = bytes.as_chunks::<4>();
        assert!(rest.is_empty());
        let values: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(values[0], 3.0);
        assert_eq!(values.len(), 6);
        assert!(values[1..].iter().all(|v| v.is_nan()), "{values:?}");
    }
}

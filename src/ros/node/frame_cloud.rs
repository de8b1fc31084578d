//! `~/cloud`: a tracked frame's points in the camera's optical frame, few enough for one message that any
//! DDS peer receives. Consumers that clear space along rays need the sensor's own frame and stamp.

use super::depth_slot::DepthFrame;
use crate::time::Stamp;
use crate::wire::messages::Header;
use crate::wire::messages::sensor::{FLOAT32, PointCloud2, PointField};
use nalgebra::Vector3;
use serde_bytes::ByteBuf;

/// Maximum size of a message in bytes.
pub const MAX_BYTES: usize = 60_000;
/// Bytes per message in addition to its points, with a long frame name.
const OVERHEAD: usize = 512;
/// Bytes per point: x, y and z.
const POINT_BYTES: usize = 12;

/// Limits the rate of clouds by the stamps of their images.
#[derive(Debug, Default)]
pub struct RateLimit {
    last: Option<Stamp>,
}

impl RateLimit {
    /// Whether a frame of this stamp is due at `rate` per second (0: always); if so, it counts as sent.
    pub fn take(&mut self, stamp: Stamp, rate: f64) -> bool {
        let due = match self.last {
            Some(last) if rate > 0.0 && stamp.nanos >= last.nanos => {
                let since = stamp.nanos.saturating_sub(last.nanos) as f64 * 1e-9;
                // Stamps of a camera are not quite regular.
                since * rate > 0.9
            }
            // Time went back, or nothing limits it.
            _ => true,
        };
        if due {
            self.last = Some(stamp);
        }
        due
    }
}

/// The most confident point of each block of pixels, in metres; blocks are as small as [`MAX_BYTES`]
/// allows.
pub fn message(frame: &DepthFrame, min_confidence: f32) -> PointCloud2 {
    let (width, height) = frame.size;
    let side = block(width, height);
    let mut data = Vec::with_capacity(MAX_BYTES);
    for row in (0..height).step_by(side) {
        for column in (0..width).step_by(side) {
            let rows = row..(row + side).min(height);
            let pixels =
                rows.flat_map(|v| (column..(column + side).min(width)).map(move |u| (u, v)));
            let mut best: Option<(f32, Vector3<f64>)> = None;
            for (u, v) in pixels {
                if let Some((confidence, point)) = point(frame, u, v)
                    && confidence >= min_confidence
                    && best.is_none_or(|(before, _)| confidence > before)
                {
                    best = Some((confidence, point));
                }
            }
            for v in best.iter().flat_map(|(_, point)| point.iter()) {
                data.extend_from_slice(&(*v as f32).to_le_bytes());
            }
        }
    }
    let bytes = data.len() as u32;
    let field = |(k, name): (u32, &str)| PointField {
        name: name.into(),
        offset: 4 * k,
        datatype: FLOAT32,
        count: 1,
    };
    PointCloud2 {
        header: Header::new(frame.stamp, &frame.camera_frame),
        height: 1,
        width: bytes / POINT_BYTES as u32,
        fields: [(0, "x"), (1, "y"), (2, "z")].map(field).to_vec(),
        is_bigendian: false,
        point_step: POINT_BYTES as u32,
        row_step: bytes,
        data: ByteBuf::from(data),
        is_dense: true,
    }
}

/// Side of the smallest blocks of which there are not too many.
fn block(width: usize, height: usize) -> usize {
    let max = (MAX_BYTES - OVERHEAD) / POINT_BYTES;
    let count = |side: usize| width.div_ceil(side) * height.div_ceil(side);
    (1..=width.max(height))
        .find(|side| count(*side) <= max)
        .unwrap_or(1)
}

/// A pixel's confidence and point, on the pixel's ray if the camera is known.
fn point(frame: &DepthFrame, u: usize, v: usize) -> Option<(f32, Vector3<f64>)> {
    let index = v * frame.size.0 + u;
    let confidence = *frame.points.confidence.get(index)?;
    let p = frame.points.points.get(3 * index..3 * index + 3)?;
    let mut p = Vector3::new(p[0], p[1], p[2]).map(f64::from) * frame.scale;
    if let Some(k) = &frame.intrinsics {
        p = k.ray(u as f64, v as f64) * p.z;
    }
    let fine = p.iter().all(|v| v.is_finite()) && p.z > 0.0 && confidence.is_finite();
    fine.then_some((confidence, p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::device::FramePoints;
    use crate::geometry::Intrinsics;
    use crate::wire::messages::Message;

    fn frame(width: usize, height: usize) -> DepthFrame {
        let count = width * height;
        DepthFrame {
            stamp: Stamp { nanos: 77 },
            camera_frame: "camera".into(),
            size: (width, height),
            scale: 2.0,
            points: FramePoints {
                points: (0..count).flat_map(|k| [k as f32, 1.0, 3.0]).collect(),
                confidence: (0..count).map(|k| k as f32).collect(),
            },
            ..Default::default()
        }
    }

    fn points(message: &PointCloud2) -> Vec<[f32; 3]> {
        let (values, rest) = message.data.as_chunks::<4>();
        assert!(rest.is_empty());
        let values: Vec<f32> = values.iter().map(|b| f32::from_le_bytes(*b)).collect();
        values.as_chunks::<3>().0.to_vec()
    }

    #[test]
    fn a_message_of_any_image_is_small_and_uses_its_room() {
        for (width, height) in [(512, 384), (128, 96), (64, 48), (4096, 16), (1, 1), (0, 0)] {
            let message = message(&frame(width, height), -1.0);
            let bytes = message.encode().unwrap().len();
            assert!(bytes <= MAX_BYTES, "{width}×{height}: {bytes}");
            assert!(
                bytes > 24_000 || width * height < 4000,
                "{width}×{height}: {bytes}"
            );
            assert_eq!(message.data.len(), 12 * message.width as usize);
            assert_eq!(message.header.frame_id, "camera");
            assert_eq!(Stamp::from(&message.header.stamp).nanos, 77);
        }
        assert_eq!(
            message(&frame(64, 48), -1.0).width,
            64 * 48,
            "no need to decimate"
        );
    }

    #[test]
    fn each_block_keeps_its_most_confident_valid_point_in_metres() {
        let mut all = frame(160, 96);
        let side = block(160, 96);
        assert!(side > 1);
        // The last pixel of the first block is the most confident one, and has no depth.
        let last = (side - 1) * 160 + side - 1;
        all.points.points[3 * last + 2] = f32::NAN;
        let found = points(&message(&all, 0.5));
        assert_eq!(found[0], [2.0 * (last - 1) as f32, 2.0, 6.0]);
        let none = message(&all, f32::INFINITY);
        assert_eq!((none.width, none.data.len()), (0, 0));
    }

    #[test]
    fn a_known_camera_puts_points_on_the_rays_of_their_pixels() {
        let mut one = frame(2, 1);
        one.intrinsics = Some(Intrinsics {
            fx: 2.0,
            fy: 2.0,
            cx: 0.0,
            cy: 0.0,
        });
        assert_eq!(
            points(&message(&one, 0.0)),
            [[0.0, 0.0, 6.0], [3.0, 0.0, 6.0]]
        );
    }

    #[test]
    fn the_rate_is_limited_by_stamps_and_time_may_go_back() {
        let mut limit = RateLimit::default();
        let third = 33_333_333;
        let sent = |limit: &mut RateLimit, rate| {
            let due = |k: &i64| limit.take(Stamp { nanos: k * third }, rate);
            (0..31).filter(due).count()
        };
        assert_eq!(sent(&mut limit, 10.0), 11);
        // A bag that starts again, without a limit.
        assert_eq!(sent(&mut limit, 0.0), 31);
        assert_eq!(sent(&mut limit, 1000.0), 31);
    }
}

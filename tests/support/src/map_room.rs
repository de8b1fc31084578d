//! A small furnished room, ray-cast into keyframes with exact pointmaps.
use crate::camera::centred;
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::{
    EdgeKind, FrameRecord, KeyframeRecord, KeyframeView, MapEdge, MapSnapshot, TrackingState,
};
use mast3r_slam::time::{StageTimes, Stamp};
use nalgebra::Vector3;
use std::sync::Arc;

/// Corners of boxes: the room, seen from inside, and furniture. y is down.
const BOXES: [[[f64; 3]; 2]; 5] = [
    [[-3.0, -1.4, -2.5], [3.0, 1.2, 2.5]],
    [[-0.8, 0.45, -0.6], [0.9, 1.2, 0.6]],
    [[2.2, -0.9, -1.2], [3.0, 1.2, 0.4]],
    [[-2.9, 0.7, 1.3], [-1.0, 1.2, 2.4]],
    [[0.2, 0.2, -0.1], [0.45, 0.45, 0.15]],
];

/// Where the ray `eye + t·ray` ends: t and the colour there.
fn cast(eye: &Vector3<f64>, ray: &Vector3<f64>) -> (f64, [u8; 3]) {
    let mut best = (f64::INFINITY, 0, 0);
    for (index, [lo, hi]) in BOXES.iter().enumerate() {
        let (mut near, mut far, mut near_axis, mut far_axis) =
            (f64::NEG_INFINITY, f64::INFINITY, 0, 0);
        for a in 0..3 {
            let (t0, t1) = ((lo[a] - eye[a]) / ray[a], (hi[a] - eye[a]) / ray[a]);
            if t0.min(t1) > near {
                (near, near_axis) = (t0.min(t1), a);
            }
            if t0.max(t1) < far {
                (far, far_axis) = (t0.max(t1), a);
            }
        }
        let (t, axis) = if index == 0 {
            (far, far_axis)
        } else {
            (near, near_axis)
        };
        if t > 1e-6 && (index == 0 || near < far) && t < best.0 {
            best = (t, index, axis);
        }
    }
    let p = eye + ray * best.0;
    let base = match (best.1, best.2) {
        (0, 1) if p.y > 0.0 => [150.0, 112.0, 78.0],
        (0, 1) => [235.0, 235.0, 230.0],
        (0, 0) => [214.0, 203.0, 180.0],
        (0, _) => [176.0, 196.0, 204.0],
        (1, _) => [120.0, 74.0, 44.0],
        (2, _) => [92.0, 122.0, 150.0],
        (3, _) => [164.0, 70.0, 66.0],
        _ => [236.0, 190.0, 40.0],
    };
    let (u, v) = match best.2 {
        0 => (p.y, p.z),
        1 => (p.x, p.z),
        _ => (p.x, p.y),
    };
    let tile = if best.1 == 0 { 0.5 } else { 0.2 };
    let odd = ((u / tile).floor() + (v / tile).floor()).rem_euclid(2.0);
    let light = [0.84, 1.0, 0.92][best.2] * (1.0 - 0.12 * odd) * (1.0 - 0.04 * best.0);
    (
        best.0,
        base.map(|c: f64| (c * light).clamp(0.0, 255.0) as u8),
    )
}

/// A repeatable number in -1..1.
fn noise(seed: usize) -> f64 {
    let mut x = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for _ in 0..3 {
        x ^= x >> 30;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 27;
    }
    (x >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// The true camera of a walk around the table that ends where it began.
pub fn camera(part: f64) -> Sim3 {
    let a = part * std::f64::consts::TAU;
    let eye = Vector3::new(1.9 * a.cos(), -0.15 + 0.1 * (3.0 * a).sin(), 1.6 * a.sin());
    let target = Vector3::new(-0.9 * a.cos(), 0.35, -0.7 * a.sin());
    Sim3::look_at(eye, target, Vector3::y())
}

pub fn intrinsics(width: usize, height: usize) -> Intrinsics {
    centred(0.72, (width, height))
}

/// The content of a keyframe at its true pose. Its Sim(3) has an arbitrary scale, its points the inverse.
pub fn keyframe(id: u32, pose: Sim3, scale: f64, width: usize, height: usize) -> KeyframeRecord {
    let k = intrinsics(width, height);
    let mut image = RgbImage::new(width, height);
    let (mut points, mut confidence) = (Vec::new(), Vec::new());
    for i in 0..width * height {
        let ray = k.ray((i % width) as f64, (i / width) as f64);
        let (t, color) = cast(&pose.translation, &(pose.rotation * ray));
        image.data[3 * i..3 * i + 3].copy_from_slice(&color);
        let p = ray * t / scale;
        points.extend([p.x as f32, p.y as f32, p.z as f32]);
        confidence.push((4.0 - 0.5 * t + 0.8 * noise(i)) as f32);
    }
    KeyframeRecord {
        id,
        frame_index: 0,
        stamp: Stamp::default(),
        submap: 0,
        world_from_camera: Sim3 { scale, ..pose },
        content: KeyframeView {
            image: Arc::new(image),
            points: Arc::new(points),
            confidence: Arc::new(confidence),
        }
        .into(),
    }
}

/// A calibrated run of `frames` frames with a keyframe every `every`, some drift, a lost stretch
/// in longer runs, and loop edges at the end.
pub fn room(frames: usize, every: usize, width: usize, height: usize) -> MapSnapshot {
    let mut map = MapSnapshot {
        intrinsics: Some(intrinsics(width, height)),
        ..MapSnapshot::default()
    };
    for i in 0..frames {
        let part = i as f64 / frames.max(1) as f64;
        let mut pose = camera(part);
        let stamp = Stamp::from_seconds(1000.0 + i as f64 / 30.0);
        let drift = 0.05 * (part * std::f64::consts::PI).sin();
        pose.translation += Vector3::new(drift, 0.3 * drift, -drift)
            + Vector3::new(noise(3 * i), noise(3 * i + 1), noise(3 * i + 2)) * 0.004;
        let lost = frames > 100 && (frames * 6 / 10..frames * 6 / 10 + frames / 30).contains(&i);
        let id = map.keyframes.len() as u32;
        let is_keyframe = i % every == 0 && !lost;
        if is_keyframe {
            let scale = 1.0 + 0.1 * noise(i);
            map.keyframes.push(KeyframeRecord {
                frame_index: i,
                stamp,
                ..keyframe(id, pose, scale, width, height)
            });
            if id > 0 {
                map.edges.push(MapEdge {
                    i: id - 1,
                    j: id,
                    kind: EdgeKind::Consecutive,
                });
            }
        }
        let wobble = 1.0 + 0.15 * noise(i + 7);
        let mapping = if is_keyframe { 240.0 * wobble } else { 0.0 };
        let stages = StageTimes {
            preprocess: 2.1 * wobble,
            encode: 310.0 * wobble,
            decode: 255.0 * wobble,
            matching: 21.0 * wobble,
            tracking: 9.0 * wobble,
            fusion: 3.0,
            mapping,
            total: 0.0,
        };
        let sum: f64 = stages.stages().iter().map(|(_, ms)| ms).sum();
        map.frames.push(FrameRecord {
            index: i,
            stamp,
            state: match i {
                0 => TrackingState::Initialising,
                _ if lost => TrackingState::Lost,
                _ => TrackingState::Tracking,
            },
            world_from_camera: pose,
            keyframe: is_keyframe.then_some(id),
            submap: 0,
            match_fraction: if lost {
                0.03
            } else {
                (0.95 - 0.6 * (i % every) as f64 / every as f64 + 0.04 * noise(i)) as f32
            },
            unique_fraction: 0.5,
            iterations: 6,
            times: StageTimes {
                total: sum + 4.0,
                ..stages
            },
        });
    }
    let last = map.keyframes.len() as u32;
    if last > 6 {
        let loops = [(0, last - 1), (1, last - 1), (0, last - 2), (2, last - 1)];
        let kind = EdgeKind::Loop;
        map.edges.extend(loops.map(|(i, j)| MapEdge { i, j, kind }));
        // A neighbour, which is no loop.
        let kind = EdgeKind::Neighbour;
        map.edges.push(MapEdge { i: 2, j: 4, kind });
    }
    map
}

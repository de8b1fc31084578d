//! A recorded frame, in memory and in the bytes of the file of frames.

use super::super::pose_table::Anchor;
use crate::geometry::Sim3;
use crate::map::{FrameRecord, TrackingState};
use crate::time::{StageTimes, Stamp};
use nalgebra::{Quaternion, UnitQuaternion};

/// Bytes of an entry in a file.
pub const BYTES: usize = 8 + 8 + 3 + 4 + 64 + 32 + 32 + 16 + 4;

/// A recorded frame, in less than half of a [`FrameRecord`]'s memory: there are many.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub stamp: Stamp,
    pub index: usize,
    pub place: Recorded,
    /// Milliseconds of [`StageTimes`].
    times: [f32; 8],
    match_fraction: f32,
    unique_fraction: f32,
    iterations: u32,
    submap: u32,
    pub keyframe: Option<u32>,
    pub state: TrackingState,
    /// Number of keyframes that had been made; not kept in a file.
    pub made: u32,
}

/// Where a frame was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recorded {
    /// Relative to a keyframe, whose pose may change; and where that was, should the map lose the keyframe.
    At(Anchor, [f32; 8]),
    /// The last known pose, while lost.
    Last(Sim3),
}

fn rounded(pose: &Sim3) -> [f32; 8] {
    pose.to_array().map(|v| v as f32)
}

impl Entry {
    /// Records a frame after which `made` keyframes had been made.
    pub fn new(record: &FrameRecord, anchor: Option<Anchor>, made: u32) -> Self {
        let t = &record.times;
        let times = [
            t.preprocess,
            t.encode,
            t.decode,
            t.matching,
            t.tracking,
            t.fusion,
            t.mapping,
            t.total,
        ];
        Self {
            stamp: record.stamp,
            index: record.index,
            place: match anchor {
                Some(anchor) => Recorded::At(anchor, rounded(&record.world_from_camera)),
                None => Recorded::Last(record.world_from_camera),
            },
            times: times.map(|ms| ms as f32),
            match_fraction: record.match_fraction,
            unique_fraction: record.unique_fraction,
            iterations: record.iterations,
            submap: record.submap,
            keyframe: record.keyframe,
            state: record.state,
            made,
        }
    }

    /// The frame was relocalised at `anchor`, and became `keyframe`, if it became one.
    pub fn relocalise(&mut self, anchor: Anchor, keyframe: Option<u32>) {
        self.state = TrackingState::Relocalised;
        self.keyframe = keyframe;
        let last = match &self.place {
            Recorded::At(_, pose) => *pose,
            Recorded::Last(pose) => rounded(pose),
        };
        self.place = Recorded::At(anchor, last);
    }

    /// The map of the frame is gone.
    pub fn lose(&mut self) {
        if let Recorded::At(_, pose) = self.place {
            self.place = Recorded::Last(Sim3::from_array(pose.map(f64::from)));
        }
        self.keyframe = None;
        self.state = TrackingState::Lost;
        self.made = 0;
    }

    /// The record; with an anchor, its pose is rounded to `f32`.
    pub fn unpacked(&self) -> (FrameRecord, Option<Anchor>) {
        let (world_from_camera, anchor) = match &self.place {
            Recorded::At(anchor, pose) => (Sim3::from_array(pose.map(f64::from)), Some(*anchor)),
            Recorded::Last(pose) => (*pose, None),
        };
        let [
            preprocess,
            encode,
            decode,
            matching,
            tracking,
            fusion,
            mapping,
            total,
        ] = self.times.map(f64::from);
        let record = FrameRecord {
            index: self.index,
            stamp: self.stamp,
            state: self.state,
            world_from_camera,
            keyframe: self.keyframe,
            submap: self.submap,
            match_fraction: self.match_fraction,
            unique_fraction: self.unique_fraction,
            iterations: self.iterations,
            times: StageTimes {
                preprocess,
                encode,
                decode,
                matching,
                tracking,
                fusion,
                mapping,
                total,
            },
        };
        (record, anchor)
    }

    /// Appends [`BYTES`] bytes, from which [`Entry::from_bytes`] restores the same entry, to the bit.
    pub fn to_bytes(&self, out: &mut Vec<u8>) {
        let (keyframe, pose, last) = match &self.place {
            Recorded::At(anchor, last) => {
                (Some(anchor.keyframe), &anchor.keyframe_from_camera, *last)
            }
            Recorded::Last(pose) => (None, pose, [0.0; 8]),
        };
        let state = match self.state {
            TrackingState::Initialising => 0,
            TrackingState::Tracking => 1,
            TrackingState::Lost => 2,
            TrackingState::Relocalised => 3,
        };
        out.extend(self.stamp.nanos.to_le_bytes());
        out.extend((self.index as u64).to_le_bytes());
        let flags = [
            state,
            u8::from(keyframe.is_some()),
            u8::from(self.keyframe.is_some()),
        ];
        out.extend(flags);
        out.extend(keyframe.unwrap_or(0).to_le_bytes());
        pose.to_array()
            .iter()
            .for_each(|v| out.extend(v.to_le_bytes()));
        let fractions = [self.match_fraction, self.unique_fraction];
        let floats = last.iter().chain(&self.times).chain(&fractions);
        floats.for_each(|v| out.extend(v.to_le_bytes()));
        let numbers = [self.iterations, self.submap, self.keyframe.unwrap_or(0)];
        numbers.iter().for_each(|v| out.extend(v.to_le_bytes()));
    }

    /// Reads what [`Entry::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut bytes = Bytes(bytes);
        let stamp = Stamp {
            nanos: i64::from_le_bytes(bytes.take()),
        };
        let index = u64::from_le_bytes(bytes.take()) as usize;
        let [state, anchored, has_keyframe] = bytes.take();
        let keyframe = u32::from_le_bytes(bytes.take());
        let pose: [f64; 8] = std::array::from_fn(|_| f64::from_le_bytes(bytes.take()));
        // Not `Sim3::from_array`, which would normalise the quaternion once more.
        let [x, y, z, i, j, k, w, scale] = pose;
        let pose = Sim3 {
            translation: nalgebra::Vector3::new(x, y, z),
            rotation: UnitQuaternion::new_unchecked(Quaternion::new(w, i, j, k)),
            scale,
        };
        let mut f32 = || f32::from_le_bytes(bytes.take());
        let last = std::array::from_fn(|_| f32());
        let times = std::array::from_fn(|_| f32());
        let (match_fraction, unique_fraction) = (f32(), f32());
        let mut u32 = || u32::from_le_bytes(bytes.take());
        let (iterations, submap, became) = (u32(), u32(), u32());
        let anchor = Anchor {
            keyframe,
            keyframe_from_camera: pose,
        };
        Self {
            stamp,
            index,
            place: match anchored {
                0 => Recorded::Last(pose),
                _ => Recorded::At(anchor, last),
            },
            times,
            match_fraction,
            unique_fraction,
            iterations,
            submap,
            keyframe: (has_keyframe != 0).then_some(became),
            state: match state {
                0 => TrackingState::Initialising,
                1 => TrackingState::Tracking,
                3 => TrackingState::Relocalised,
                _ => TrackingState::Lost,
            },
            made: 0,
        }
    }
}

/// What is left to read; zeros after the end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => [0; N],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Tangent;

    #[test]
    fn an_entry_comes_back_to_the_bit() {
        let mut record = FrameRecord::lost(7, Stamp { nanos: -5 }, Sim3::identity());
        record.world_from_camera = Sim3::exp(&Tangent::from_fn(|k, _| {
            0.1 + k as f64 / std::f64::consts::PI
        }));
        record.keyframe = Some(3);
        record.submap = 9;
        record.iterations = 11;
        record.match_fraction = 0.3;
        record.unique_fraction = 0.2;
        record.times.mapping = 1.7;
        let mut anchor = Anchor::at(u32::MAX);
        anchor.keyframe_from_camera = record.world_from_camera * record.world_from_camera;
        for state in [
            TrackingState::Initialising,
            TrackingState::Tracking,
            TrackingState::Lost,
            TrackingState::Relocalised,
        ] {
            for anchor in [None, Some(anchor)] {
                record.state = state;
                let entry = Entry::new(&record, anchor, 0);
                let mut bytes = Vec::new();
                entry.to_bytes(&mut bytes);
                assert_eq!(bytes.len(), BYTES);
                assert_eq!(Entry::from_bytes(&bytes), entry);
            }
        }
    }
}

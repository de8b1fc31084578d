//! Corrections of keyframes' pointmaps by what is known later about the moments of their depth.
//!
//! Depth whose stamps are off, and depth that is carried to a frame without any, is moved to its frame by a prediction: the
//! camera's motion about the frame is known when the frame has been tracked, and the offset only after some seconds. By
//! then the pointmap of a keyframe is made; its points are moved by what the prediction missed.

use super::depth_moment::MeasuredKeyframe;
use nalgebra::Isometry3;
use rustc_hash::FxHashMap;

/// Pointmaps are not corrected by less, in metres and in radians: each correction takes its points from the nearest pixel.
const LEAST: [f64; 2] = [1e-3, 5e-4];

/// The depth of a keyframe, and how it was moved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyframeDepth {
    pub measured: MeasuredKeyframe,
    /// From the camera that measured depth to the keyframe's, as its pointmap has it.
    pub applied: Isometry3<f64>,
}

impl KeyframeDepth {
    /// The motion that corrects the pointmap, if depth was measured `offset` seconds after its stamp.
    fn correction(&self, offset: f64) -> Option<Isometry3<f64>> {
        let motion = self.measured.keyframe_from_depth(offset) * self.applied.inverse();
        let way = motion.translation.vector.norm();
        (way > LEAST[0] || motion.rotation.angle() > LEAST[1]).then_some(motion)
    }
}

/// The depths of a graph's keyframes, by id.
#[derive(Debug, Default)]
pub struct KeyframeDepths(FxHashMap<u32, KeyframeDepth>);

impl KeyframeDepths {
    /// Adds that of a keyframe.
    pub fn add(&mut self, depth: KeyframeDepth) {
        self.0.insert(depth.measured.id, depth);
    }

    /// Forgets a keyframe.
    pub fn remove(&mut self, id: u32) {
        self.0.remove(&id);
    }

    /// The next keyframe whose pointmap has to be corrected, and the motion that does it, of those for which `is_final`
    /// holds: it counts as corrected from now on. `offset` is that of depth, in seconds.
    pub fn correct_next(
        &mut self,
        offset: f64,
        is_final: impl Fn(u32) -> bool,
    ) -> Option<(u32, Isometry3<f64>)> {
        let wrong = self.0.values().filter_map(|depth| {
            let motion = depth.correction(offset)?;
            let id = depth.measured.id;
            is_final(id).then_some((id, motion))
        });
        // The order of a map of hashes is not that of ids.
        let (id, motion) = wrong.min_by_key(|(id, _)| *id)?;
        let depth = self.0.get_mut(&id)?;
        depth.applied = depth.measured.keyframe_from_depth(offset);
        Some((id, motion))
    }
}

#[cfg(test)]
mod tests {
    use super::super::depth_moment::{DepthMoment, Passage, Velocity};
    use super::*;
    use crate::time::Stamp;
    use nalgebra::Vector6;

    /// A keyframe of a camera that drives forward at 1 m/s, whose depth was not moved.
    fn keyframe(id: u32) -> KeyframeDepth {
        let velocity = Some(Velocity {
            twist: Vector6::new(0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
            seconds: 0.033,
        });
        let path_from_camera = Isometry3::translation(0.0, 0.0, f64::from(id));
        KeyframeDepth {
            measured: MeasuredKeyframe {
                id,
                stamp: Stamp::from_seconds(f64::from(id)),
                path_from_camera,
                depth: DepthMoment {
                    stamp: Stamp::from_seconds(f64::from(id)),
                    path_from_camera,
                    passage: Passage {
                        before: velocity,
                        after: velocity,
                    },
                    shift: 0.0,
                },
            },
            applied: Isometry3::identity(),
        }
    }

    #[test]
    fn final_pointmaps_are_corrected_once_for_each_offset() {
        let mut depths = KeyframeDepths::default();
        for id in [7, 3, 5, 4] {
            depths.add(keyframe(id));
        }
        depths.remove(4);
        assert_eq!(depths.correct_next(0.0, |_| true), None);
        // Depth that is late shows the scene from farther behind: points are nearer.
        let is_final = |id: u32| id != 5;
        let mut found = Vec::new();
        while let Some((id, motion)) = depths.correct_next(-0.02, is_final) {
            found.push(id);
            assert!((motion.translation.z + 0.02).abs() < 1e-9, "{motion}");
        }
        assert_eq!(found, [3, 7]);
        // Half a millimetre is not corrected.
        assert_eq!(depths.correct_next(-0.0205, is_final), None);
        let (id, motion) = depths
            .correct_next(-0.03, |_| true)
            .expect("another offset");
        assert!(id == 3 && (motion.translation.z + 0.01).abs() < 1e-9);
        let (id, motion) = depths.correct_next(-0.03, |_| true).expect("final now");
        assert!(id == 5 && (motion.translation.z + 0.03).abs() < 1e-9);
    }
}

//! Keyframes as views to train on, with their poses as they are now.

use crate::compute::splat::SplatError;
use crate::compute::splat::camera::{Camera, Pointmap};
use crate::compute::splat::pose::PoseCorrection;
use crate::compute::splat::trainer::{LoadedView, ViewSource};
use crate::geometry::{Intrinsics, Sim3};
use crate::image::RgbImage;
use crate::map::KeyframeView;

/// Views that are kept beside SLAM: 360 MB of images and depths at 512×384. Beyond that every second one goes, as those
/// of a long run show each place many times.
pub const LIVE_VIEWS: usize = 256;
/// Views of an offline training; of more keyframes, every second, third, … is used.
pub const OFFLINE_VIEWS: usize = 1024;

/// Added to the numbers of frames that are no keyframes.
const FRAMES: u32 = 1 << 31;

/// A view with the pose that it was made with.
#[derive(Debug)]
struct Kept {
    world_from_camera: Sim3,
    loaded: LoadedView,
}

/// Views of keyframes of one camera.
#[derive(Debug)]
pub struct Views {
    intrinsics: Intrinsics,
    kept: Vec<Kept>,
    max: usize,
}

impl Views {
    /// No views yet, and never more than `max`.
    pub fn new(intrinsics: Intrinsics, max: usize) -> Self {
        Self {
            intrinsics,
            kept: Vec::new(),
            max: max.max(1),
        }
    }

    /// The camera of all views.
    pub fn intrinsics(&self) -> Intrinsics {
        self.intrinsics
    }

    /// Adds a keyframe; returns its index. A keyframe whose image is lost, or that is there already, is left out.
    pub fn add(&mut self, id: u32, world_from_camera: Sim3, view: &KeyframeView) -> Option<usize> {
        let size = (view.image.width, view.image.height);
        let n = size.0 * size.1;
        let complete = n > 0 && view.image.data.len() == 3 * n && view.points.len() == 3 * n;
        if !complete || self.kept.iter().any(|kept| kept.loaded.id == id) {
            return None;
        }
        let scale = world_from_camera.scale as f32;
        let (points, _) = view.points.as_chunks::<3>();
        let depth = points.iter().map(|p| p[2] * scale).collect();
        let image = view.image.data.clone();
        Some(self.push(id, world_from_camera, size, (image, depth)))
    }

    /// Adds a frame that is no keyframe, without depths; returns its index. `number` tells it from other frames.
    pub fn add_frame(&mut self, number: u32, pose: Sim3, image: RgbImage) -> usize {
        let size = (image.width, image.height);
        self.push(FRAMES | number, pose, size, (image.data, Vec::new()))
    }

    fn push(
        &mut self,
        id: u32,
        world_from_camera: Sim3,
        size: (usize, usize),
        (image, depth): (Vec<u8>, Vec<f32>),
    ) -> usize {
        if self.kept.len() >= self.max {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 0
            });
        }
        self.kept.push(Kept {
            world_from_camera,
            loaded: LoadedView {
                id,
                camera: Camera::new(self.intrinsics, size, &world_from_camera),
                image,
                depth,
                correction: PoseCorrection::default(),
            },
        });
        self.kept.len() - 1
    }

    /// Moves the views of keyframes for which `pose` has another pose.
    pub fn set_poses(&mut self, pose: impl Fn(u32) -> Option<Sim3>) {
        for kept in &mut self.kept {
            let pose = pose(kept.loaded.id).filter(Sim3::is_finite);
            let Some(pose) = pose.filter(|pose| *pose != kept.world_from_camera) else {
                continue;
            };
            let ratio = (pose.scale / kept.world_from_camera.scale) as f32;
            let camera = &mut kept.loaded.camera;
            *camera = Camera::new(self.intrinsics, (camera.width, camera.height), &pose);
            kept.loaded.depth.iter_mut().for_each(|z| *z *= ratio);
            kept.world_from_camera = pose;
        }
    }

    /// Keyframes' ids and how their poses were corrected.
    pub fn corrections(&self) -> impl ExactSizeIterator<Item = (u32, &PoseCorrection)> {
        let kept = self.kept.iter();
        kept.map(|kept| (kept.loaded.id, &kept.loaded.correction))
    }

    /// Corrects the pose of a keyframe, if it is there.
    pub fn correct(&mut self, id: u32, correction: PoseCorrection) {
        let mut kept = self.kept.iter_mut();
        if let Some(kept) = kept.find(|kept| kept.loaded.id == id) {
            kept.loaded.correction = correction;
        }
    }
}

impl ViewSource for Views {
    fn len(&self) -> usize {
        self.kept.len()
    }

    fn with(
        &mut self,
        index: usize,
        with: &mut dyn FnMut(&mut LoadedView) -> Result<(), SplatError>,
    ) -> Result<(), SplatError> {
        match self.kept.get_mut(index) {
            Some(kept) => with(&mut kept.loaded),
            None => Err(SplatError::View {
                id: index as u32,
                cause: "there is no such view".into(),
            }),
        }
    }
}

/// The pointmap of a keyframe, from which rows are seeded.
pub fn pointmap<'a>(
    intrinsics: Intrinsics,
    id: u32,
    world_from_camera: &Sim3,
    view: &'a KeyframeView,
) -> Pointmap<'a> {
    let size = (view.image.width, view.image.height);
    Pointmap {
        camera: Camera::new(intrinsics, size, world_from_camera),
        world_from_camera: *world_from_camera,
        points: &view.points,
        confidence: &view.confidence,
        image: &view.image.data,
        anchor: id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const K: Intrinsics = Intrinsics {
        fx: 4.0,
        fy: 4.0,
        cx: 1.5,
        cy: 1.0,
    };

    fn keyframe(z: f32) -> KeyframeView {
        KeyframeView {
            image: Arc::new(RgbImage::new(4, 3)),
            points: Arc::new([0.0, 0.0, z].repeat(12)),
            confidence: Arc::new(vec![2.0; 12]),
        }
    }

    #[test]
    fn depths_are_in_metres_of_the_world_and_poses_follow() {
        let mut views = Views::new(K, 9);
        let mut pose = Sim3::identity();
        pose.scale = 2.0;
        assert_eq!(views.add(3, pose, &keyframe(1.5)), Some(0));
        let look = |views: &mut Views| {
            let mut seen = None;
            let with = &mut |view: &mut LoadedView| {
                seen = Some((view.depth[5], view.camera.centre().x));
                Ok(())
            };
            views.with(0, with).unwrap();
            seen.unwrap()
        };
        assert_eq!(look(&mut views), (3.0, 0.0));
        pose.scale = 4.0;
        pose.translation.x = 1.0;
        views.set_poses(|id| (id == 3).then_some(pose));
        assert_eq!(look(&mut views), (6.0, 1.0));
        assert!(views.with(1, &mut |_| Ok(())).is_err());
    }

    #[test]
    fn views_are_bounded_and_each_keyframe_is_kept_once() {
        let mut views = Views::new(K, 16);
        for id in 0..50 {
            assert!(views.add(id, Sim3::identity(), &keyframe(1.0)).is_some());
            assert!(views.len() <= 16);
        }
        assert_eq!(views.add(49, Sim3::identity(), &keyframe(1.0)), None);
        let lost = KeyframeView::default();
        assert_eq!(views.add(50, Sim3::identity(), &lost), None);
    }
}

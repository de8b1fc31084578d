//! Depth moved into the moment of its frame: for stamps that are off, and for frames without depth.
//!
//! The camera's motion carries depth to the frames of a camera that is faster than its depth sensor. Without it, the
//! network's next passes, whose scales and shapes differ, would be corrected by what an earlier one got wrong.

use super::depth_moment::{Moment, exp, grid};
use super::depth_motion::{DepthMoment, DepthMotions};
use super::depth_offset::{DepthOffset, OffsetFinder};
use super::motions::MeasuredMotion;
use super::wheels::seconds_between;
use crate::compute::depth::moved::DepthMotion;
use crate::geometry::{Intrinsics, Sim3, rotation_log};
use crate::image::depth::DepthLimits;
use crate::time::Stamp;
use nalgebra::{Isometry3, Vector6};

/// Longest time between two frames that shows the velocity.
const MAX_STEP: f64 = 0.5;
/// Depth is carried to frames without it for so many seconds, which bridges a missing image of a sensor with 3 images a
/// second, while they see at least this part of its points.
const CARRIED: f64 = 1.0;
const SEEN: f64 = 0.3;
/// Pixels along the longer side that are looked at for that.
const LOOKS: usize = 32;

/// Depth images of which at most two are needed beside the next one.
const IMAGES: usize = 3;

/// Depth that the next frame uses as its own.
#[derive(Debug, Clone, Copy)]
struct Used {
    image: usize,
    /// Seconds from the frame that it came with to the next frame.
    shift: f64,
}

/// The newest depth that a frame used as its own.
#[derive(Debug, Clone, Copy)]
struct Origin {
    /// The camera at the frame.
    moment: Moment,
    used: Used,
}

/// Finds the motions that carry depth and correct it for its offset. All memory is allocated in the beginning.
#[derive(Debug)]
pub struct DepthTimer {
    camera: Intrinsics,
    size: (usize, usize),
    images: [Vec<f32>; IMAGES],
    /// Where the next frame's depth is put.
    next: usize,
    /// Whether it came.
    has_next: bool,
    /// What the next frame uses.
    used: Option<Used>,
    /// What came with the newest frame. Depth that is early shows what the next frame sees.
    held: Option<usize>,
    origin: Option<Origin>,
    last: Option<Stamp>,
    /// Seconds between the newest two frames.
    interval: Option<f64>,
    /// The camera at the newest frame.
    here: Option<Moment>,
    /// The path of steps starts at the newest frame.
    starts: bool,
    finder: OffsetFinder,
    motions: DepthMotions,
}

impl DepthTimer {
    /// For depth images of `width × height`, of this camera, with depth between these limits, measured `offset` seconds
    /// after their stamps.
    pub fn new(size: (usize, usize), camera: Intrinsics, limits: DepthLimits, offset: f64) -> Self {
        let pixels = size.0 * size.1;
        Self {
            camera,
            size,
            images: [(); IMAGES].map(|()| vec![0.0; pixels]),
            next: 0,
            has_next: false,
            used: None,
            held: None,
            origin: None,
            last: None,
            interval: None,
            here: None,
            starts: true,
            finder: OffsetFinder::new(size, camera, limits, offset),
            motions: DepthMotions::new(size, camera, limits),
        }
    }

    /// Takes the depth that came with the next frame, if any. Returns the depth that the frame uses, and the motion from
    /// the moment of that depth to the moment of the frame, if they differ. Depth that is early is used for the frame
    /// after the one that it came with, if that is nearer to its time. Depth of another size is returned as it is.
    pub fn give<'a>(
        &'a mut self,
        metres: Option<&'a [f32]>,
    ) -> Option<(&'a [f32], Option<DepthMotion>)> {
        (self.has_next, self.used) = (false, None);
        if let Some(metres) = metres {
            let next = self.images.get_mut(self.next)?;
            if next.len() != metres.len() {
                return Some((metres, None));
            }
            next.copy_from_slice(metres);
            self.has_next = true;
        }
        let offset = self.finder.offset();
        let is_next = |shift: &f64| offset.is_some_and(|offset| offset > (offset - shift).abs());
        self.used = match self.interval.filter(is_next) {
            Some(shift) => self.held.map(|image| Used { image, shift }),
            None => self.has_next.then_some(Used {
                image: self.next,
                shift: 0.0,
            }),
        };
        let used = self.used?;
        let motion = self.here.and_then(|here| self.since_depth(&here, used));
        let motion = motion.map(|motion| DepthMotion::new(&motion, &self.camera));
        let image: &[f32] = self.images.get(used.image)?;
        Some((image, motion))
    }

    /// The motion from the moment of the depth that a frame uses to that of the frame, by the velocity at `moment`. `None`
    /// if they are the same as far as is known.
    fn since_depth(&self, moment: &Moment, used: Used) -> Option<Sim3> {
        let (offset, velocity) = self.finder.offset().zip(moment.velocity)?;
        Some(exp(&(velocity * (offset - used.shift))))
    }

    /// The next frame, and the depth that it was given, cannot be used.
    pub fn skip(&mut self) {
        (self.has_next, self.used, self.held) = (false, None, None);
        // The device may have taken the depth for the newest.
        self.origin = None;
    }

    /// For a frame without depth of its own: the camera's motion since the newest depth, which goes on as in the last
    /// step. `None` if that is too old, or if most of it is out of sight.
    pub fn carried(&self) -> Option<DepthMotion> {
        let (origin, here) = self.origin.zip(self.here).filter(|_| self.used.is_none())?;
        let Origin { moment, used } = origin;
        if !(0.0..CARRIED).contains(&seconds_between(moment.stamp, here.stamp)) {
            return None;
        }
        let next = here.path_from_camera * here.step;
        let mut motion = next.inverse() * moment.path_from_camera;
        if let Some(since_depth) = self.since_depth(&moment, used) {
            motion = motion * since_depth;
        }
        let motion = DepthMotion::new(&motion, &self.camera);
        self.is_seen(&motion).then_some(motion)
    }

    /// The newest frame became keyframe `id`. Unless depth was known there, the path from it is not in metres, and no later
    /// depth measures it.
    pub fn start_keyframe(&mut self, id: u32) {
        match self.here.filter(|_| self.origin.is_some()) {
            Some(here) => self.motions.start_keyframe(id, &here),
            None => self.motions.pass_over(),
        }
    }

    /// If the newest frame has depth of its own, and the newest keyframe had none until now: the motion to it from an
    /// earlier one. Depth of the first frame of a path does not count, because its velocity and so the effect of an offset
    /// are unknown.
    pub fn motion(&mut self) -> Option<MeasuredMotion> {
        let here = self.here.filter(|_| !self.starts)?;
        let is_here = |origin: &Origin| origin.moment.stamp == here.stamp;
        let Used { image, shift } = self.origin.filter(is_here)?.used;
        let depth = DepthMoment {
            path_from_camera: here.path_from_camera.rigid(),
            velocity: here.velocity.unwrap_or(Vector6::zeros()),
            shift,
        };
        let offset = DepthOffset {
            seconds: self.finder.offset().unwrap_or(0.0),
            sigma: self.finder.uncertainty(),
        };
        self.motions.note(self.images.get(image)?, depth, &offset)
    }

    /// Whether enough of the newest depth's points are seen after this motion: a look at some of its pixels.
    fn is_seen(&self, motion: &DepthMotion) -> bool {
        let latest = self
            .origin
            .and_then(|origin| self.images.get(origin.used.image));
        let (mut had, mut has) = (0_usize, 0_usize);
        for (u, v) in grid(self.size, LOOKS) {
            let z = latest.and_then(|latest| latest.get(v * self.size.0 + u).copied());
            if let Some(z) = z.filter(|z| *z > 0.0) {
                had += 1;
                has += usize::from(motion.pixel((u, v), z, self.size).is_some());
            }
        }
        had > 0 && has as f64 >= SEEN * had as f64
    }

    /// Notes the camera's motion from the frame before to the next frame, in metres, now that this was processed. Without
    /// it, as where the camera was lost, earlier depth is of no use. Depth of the frame that was `refused` is not carried.
    pub fn tracked(&mut self, stamp: Stamp, step: Option<&Isometry3<f64>>, refused: bool) {
        let before = self.last.replace(stamp);
        let seconds = before.map(|before| seconds_between(before, stamp));
        let seconds = seconds.filter(|s| *s > 0.0 && *s <= MAX_STEP);
        self.interval = seconds;
        let path = self.here.map(|here| here.path_from_camera);
        let moment = path.zip(step).map(|(path, step)| Moment {
            stamp,
            path_from_camera: path * Sim3::from(step),
            velocity: seconds.map(|seconds| log(step) / seconds),
            step: Sim3::from(step),
        });
        self.starts = moment.is_none();
        if self.starts {
            self.origin = None;
            self.finder.forget();
            self.motions.forget();
        } else if let Some((before, moment)) = self.here.zip(moment) {
            let held = self.held.and_then(|held| self.images.get(held));
            if let Some((held, after)) = held.zip(moment.velocity) {
                self.finder.note(held, &before, &after);
            }
        }
        let here = moment.unwrap_or(Moment {
            stamp,
            path_from_camera: Sim3::identity(),
            velocity: None,
            step: Sim3::identity(),
        });
        self.here = Some(here);
        self.held = self.has_next.then_some(self.next);
        if let Some(used) = self.used.take() {
            self.origin = (!refused).then_some(Origin { moment: here, used });
        }
        let kept = [self.held, self.origin.map(|origin| origin.used.image)];
        let free = (0..IMAGES).find(|image| !kept.contains(&Some(*image)));
        self.next = free.unwrap_or(0);
        self.has_next = false;
    }
}

/// The twist of a short motion, `[t, φ]`: for the turn between two frames, `τ` and `t` differ by less than the
/// velocity is known.
fn log(motion: &Isometry3<f64>) -> Vector6<f64> {
    let (t, turn) = (motion.translation.vector, rotation_log(&motion.rotation));
    Vector6::new(t.x, t.y, t.z, turn.x, turn.y, turn.z)
}

#[cfg(test)]
mod tests;

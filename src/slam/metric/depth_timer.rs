//! Depth moved into the moment of its frame: for stamps that are off, and for frames without depth.
//!
//! The camera's motion carries depth to the frames of a camera that is faster than its depth sensor. Without it, the
//! network's next passes, whose scales and shapes differ, would be corrected by what an earlier one got wrong.

use super::depth_moment::{DepthMoment, MeasuredKeyframe, Moment, Passage, Velocity, exp, grid};
use super::depth_motion::DepthMotions;
use super::depth_offset::{DepthOffset, OffsetFinder};
use super::keyframe_depth::KeyframeDepth;
use super::motions::MeasuredMotion;
use super::steps::Steps;
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
    passage: Passage,
    /// Whether the step after the frame is known.
    is_closed: bool,
}

impl Origin {
    fn depth(&self) -> DepthMoment {
        DepthMoment {
            path_from_camera: self.moment.path_from_camera.rigid(),
            passage: self.passage,
            shift: self.used.shift,
        }
    }
}

/// What depth shows of a keyframe, as far as it is known one frame later.
#[derive(Debug, Clone, Copy, Default)]
pub struct DepthReport {
    /// The keyframe's depth, and how it was moved.
    pub keyframe: Option<KeyframeDepth>,
    /// The motion to the keyframe from an earlier one.
    pub motion: Option<MeasuredMotion>,
}

impl DepthReport {
    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.keyframe.is_none() && self.motion.is_none()
    }
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
    /// From the camera that measured the current frame's depth to that of the frame, as the depth was moved.
    applied: Option<Isometry3<f64>>,
    /// About the newest frame, which lacks the motion after it.
    open: DepthReport,
    /// About the frame before.
    closed: DepthReport,
    last: Option<Stamp>,
    /// Seconds between the newest two frames.
    interval: Option<f64>,
    /// The camera at the newest frame.
    here: Option<Moment>,
    /// The newest steps of the path.
    steps: Steps,
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
            applied: None,
            open: DepthReport::default(),
            closed: DepthReport::default(),
            last: None,
            interval: None,
            here: None,
            steps: Steps::default(),
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
        (self.has_next, self.used, self.applied) = (false, None, None);
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
        let known = self.steps.expected().zip(self.finder.offset());
        let motion = known.map(|(velocity, offset)| exp(&(velocity * (offset - used.shift))));
        self.applied = Some(motion.map_or(Isometry3::identity(), |motion| motion.rigid()));
        let motion = motion.map(|motion| DepthMotion::new(&motion, &self.camera));
        let image: &[f32] = self.images.get(used.image)?;
        Some((image, motion))
    }

    /// The next frame, and the depth that it was given, cannot be used.
    pub fn skip(&mut self) {
        (self.has_next, self.used, self.held) = (false, None, None);
        // The device may have taken the depth for the newest.
        self.origin = None;
    }

    /// For a frame without depth of its own: the camera's motion since the newest depth, which goes on as in the last
    /// step. `None` if that is too old, or if most of it is out of sight.
    pub fn carried(&mut self) -> Option<DepthMotion> {
        let (origin, here) = self.origin.zip(self.here).filter(|_| self.used.is_none())?;
        let moment = origin.moment;
        if !(0.0..CARRIED).contains(&seconds_between(moment.stamp, here.stamp)) {
            return None;
        }
        let next = here.path_from_camera * here.step;
        let mut motion = next.inverse() * moment.path_from_camera;
        if let Some(offset) = self.finder.offset() {
            motion = motion * exp(&origin.passage.twist(offset - origin.used.shift));
        }
        let applied = motion.rigid();
        let motion = DepthMotion::new(&motion, &self.camera);
        let is_seen = self.is_seen(&motion);
        self.applied = is_seen.then_some(applied);
        is_seen.then_some(motion)
    }

    /// The newest frame became keyframe `id`. Unless depth was known there, the path from it is not in metres, and no later
    /// depth measures it.
    pub fn start_keyframe(&mut self, id: u32) {
        let Some((here, origin)) = self.here.zip(self.origin) else {
            self.motions.pass_over();
            return;
        };
        self.motions.start_keyframe(id, &here);
        self.open.keyframe = self.applied.map(|applied| KeyframeDepth {
            measured: MeasuredKeyframe::new(id, &here, origin.depth()),
            applied,
        });
    }

    /// If the newest frame has depth of its own, and the newest keyframe had none until now: measures the motion to it
    /// from an earlier one. Depth of the first frame of a path does not count, because its velocity and so the effect of
    /// an offset are unknown.
    pub fn measure_motion(&mut self) {
        let here = self.here.filter(|_| !self.starts);
        let is_here = |origin: &Origin| here.is_some_and(|here| origin.moment.stamp == here.stamp);
        let Some(origin) = self.origin.filter(is_here) else {
            return;
        };
        let offset = self.offset();
        if let Some(image) = self.images.get(origin.used.image) {
            self.open.motion = self.motions.note(image, origin.depth(), &offset);
        }
    }

    /// What is known about the keyframe that the frame before the newest one became, once.
    pub fn report(&mut self) -> DepthReport {
        std::mem::take(&mut self.closed)
    }

    /// The offset of depth, as far as it is known.
    pub fn offset(&self) -> DepthOffset {
        DepthOffset {
            seconds: self.finder.offset().unwrap_or(0.0),
            sigma: self.finder.uncertainty(),
        }
    }

    /// Completes what is known about the frame before the newest one, now that the step after it is known if it was tracked.
    fn close(&mut self) {
        let mut report = std::mem::take(&mut self.open);
        let passage = self.steps.passage();
        if passage.after.is_some() {
            if let Some(origin) = self.origin.as_mut().filter(|origin| !origin.is_closed) {
                (origin.passage, origin.is_closed) = (passage, true);
                self.motions.close(&origin.depth());
                let ends = report.motion.as_mut().and_then(|of| of.ends.as_mut());
                let of_keyframe = report.keyframe.as_mut().map(|of| &mut of.measured);
                for depth in [ends.map(|ends| &mut ends.j), of_keyframe]
                    .into_iter()
                    .flatten()
                {
                    depth.depth = origin.depth();
                }
            }
            if let Some(motion) = &mut report.motion
                && let Some(ends) = motion.ends
            {
                *motion = MeasuredMotion::by_depth(ends, &self.offset());
            }
        }
        self.closed = report;
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
        let velocity = moment.and_then(|moment| moment.velocity).zip(seconds);
        let velocity = velocity.map(|(twist, seconds)| Velocity { twist, seconds });
        match velocity {
            Some(step) => self.steps.add(step),
            None => self.steps.forget(),
        }
        if refused {
            self.applied = None;
        }
        self.close();
        if self.starts {
            // The map may be another one now, in which the ids are those of other keyframes.
            self.closed = DepthReport::default();
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
            let expected = velocity.zip(self.steps.expected());
            let passage = Passage {
                before: expected.map(|(step, twist)| Velocity { twist, ..step }),
                after: None,
            };
            self.origin = (!refused).then_some(Origin {
                moment: here,
                used,
                passage,
                is_closed: false,
            });
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

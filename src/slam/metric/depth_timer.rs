//! Depth moved into the moment of its frame: for stamps that are off, and for frames without depth.
//!
//! The camera's motion carries depth to the frames of a camera that is faster than its depth sensor. Without it, the
//! network's next passes, whose scales and shapes differ, would be corrected by what an earlier one got wrong.

use super::depth_moment::{
    DepthMoment, MeasuredKeyframe, Moment, Passage, Velocity, exp, grid, log,
};
use super::depth_motion::DepthMotions;
use super::depth_offset::{DepthOffset, OffsetFinder};
use super::keyframe_depth::KeyframeDepth;
use super::motions::MeasuredMotion;
use super::path::Path;
use super::steps::Steps;
use super::wheels::seconds_between;
use crate::compute::depth::moved::DepthMotion;
use crate::geometry::{Intrinsics, Sim3};
use crate::image::depth::DepthLimits;
use crate::time::Stamp;
use nalgebra::Isometry3;

/// Longest time between two frames that shows the velocity.
const MAX_STEP: f64 = 0.5;
/// Depth is carried to frames without it for so many seconds, which bridges a missing image of a sensor with 3 images a
/// second, while they see at least this part of its points.
const CARRIED: f64 = 1.0;
const SEEN: f64 = 0.3;
/// Pixels along the longer side that are looked at for that.
const LOOKS: usize = 32;

/// Reports that wait for the motion about their frames: two for each keyframe.
const REPORTS: usize = 16;
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
            stamp: self.moment.stamp,
            path_from_camera: self.moment.path_from_camera.rigid(),
            passage: self.passage,
            shift: self.used.shift,
        }
    }
}

/// What depth shows of a keyframe, once the camera's motion about it is known.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be allocated while a frame is tracked"
)]
pub enum DepthReport {
    /// The keyframe's depth, and how it was moved.
    Keyframe(KeyframeDepth),
    /// The motion to the keyframe from an earlier one.
    Motion(MeasuredMotion),
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
    /// What is reported once the path shows the motion about these frames. The oldest first.
    open: heapless::Deque<(Stamp, DepthReport), REPORTS>,
    /// The newest keyframe, if the image that comes with the next frame shows what it sees.
    awaiting: Option<Moment>,
    last: Option<Stamp>,
    /// Seconds between the newest two frames.
    interval: Option<f64>,
    /// The camera at the newest frame.
    here: Option<Moment>,
    /// The newest steps of the path, and its newest poses.
    steps: Steps,
    path: Path,
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
            open: heapless::Deque::new(),
            awaiting: None,
            last: None,
            interval: None,
            here: None,
            steps: Steps::default(),
            path: Path::default(),
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
        self.measure_awaited();
        let Some((here, origin)) = self.here.zip(self.origin) else {
            self.motions.pass_over();
            return;
        };
        self.motions.start_keyframe(id, &here);
        if let Some(applied) = self.applied {
            let measured = MeasuredKeyframe::new(id, &here, origin.depth());
            self.add_report(DepthReport::Keyframe(KeyframeDepth { measured, applied }));
        }
        let is_shown_later = |shift: f64| {
            let offset = self.finder.offset();
            offset.is_some_and(|offset| -offset > (offset + shift).abs())
        };
        self.awaiting = self.interval.is_some_and(is_shown_later).then_some(here);
    }

    /// Adds what is reported once the motion about the newest frame is known.
    fn add_report(&mut self, report: DepthReport) {
        let Some(here) = self.here else {
            return;
        };
        if self.open.is_full() {
            self.open.pop_front();
        }
        // There is room now.
        let _ = self.open.push_back((here.stamp, report));
    }

    /// If the newest frame has depth of its own, and the newest keyframe had none until now: measures the motion to it
    /// from an earlier one. Depth of the first frame of a path does not count, because its velocity and so the effect of
    /// an offset are unknown. Late depth that comes with the frame after a keyframe is the keyframe's.
    pub fn measure_motion(&mut self) {
        self.measure_awaited();
        if self.awaiting.is_none() {
            self.measure_by(self.here.map(|here| here.stamp));
        }
    }

    /// If the newest frame is the one after a keyframe that late depth shows: measures the motion to that, by what came
    /// with the frame, or else by what the keyframe used.
    fn measure_awaited(&mut self) {
        let Some((keyframe, here)) = self.awaiting.zip(self.here) else {
            return;
        };
        if keyframe.stamp == here.stamp {
            return;
        }
        self.awaiting = None;
        match self.held {
            Some(image) => {
                let depth = DepthMoment {
                    stamp: keyframe.stamp,
                    path_from_camera: keyframe.path_from_camera.rigid(),
                    passage: Passage::default(),
                    shift: -seconds_between(keyframe.stamp, here.stamp),
                };
                self.measure(image, depth);
            }
            None => self.measure_by(Some(keyframe.stamp)),
        }
    }

    /// Measures the motion by the newest depth, if it is that of the frame with this stamp.
    fn measure_by(&mut self, stamp: Option<Stamp>) {
        let is_there = |origin: &Origin| stamp == Some(origin.moment.stamp);
        if let Some(origin) = self
            .origin
            .filter(|origin| is_there(origin) && !self.starts)
        {
            self.measure(origin.used.image, origin.depth());
        }
    }

    fn measure(&mut self, image: usize, depth: DepthMoment) {
        let offset = self.offset();
        let image = self.images.get(image);
        let motion = image.and_then(|image| self.motions.note(image, depth, &offset));
        if let Some(motion) = motion {
            self.add_report(DepthReport::Motion(motion));
        }
    }

    /// What is known now about a keyframe some frames ago, once. To be called until there is none.
    pub fn report(&mut self) -> Option<DepthReport> {
        let (stamp, _) = self.open.front()?;
        if self.path.is_open(*stamp) {
            return None;
        }
        let (_, mut report) = self.open.pop_front()?;
        match &mut report {
            DepthReport::Keyframe(of) => self.path.complete(&mut of.measured.depth),
            DepthReport::Motion(motion) => {
                if let Some(mut ends) = motion.ends {
                    for end in [&mut ends.i, &mut ends.j] {
                        self.path.complete(&mut end.depth);
                    }
                    *motion = MeasuredMotion::by_depth(ends, &self.offset());
                }
            }
        }
        Some(report)
    }

    /// The offset of depth, as far as it is known.
    pub fn offset(&self) -> DepthOffset {
        DepthOffset {
            seconds: self.finder.offset().unwrap_or(0.0),
            sigma: self.finder.uncertainty(),
        }
    }

    /// Completes the newest depth, now that the step after its frame is known if it was tracked.
    fn close(&mut self) {
        let passage = self.steps.passage();
        if passage.after.is_some()
            && let Some(origin) = self.origin.as_mut().filter(|origin| !origin.is_closed)
        {
            (origin.passage, origin.is_closed) = (passage, true);
        }
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
            step: Sim3::from(step),
        });
        self.starts = moment.is_none();
        let velocity = step.filter(|_| !self.starts).zip(seconds);
        let velocity = velocity.map(|(step, seconds)| Velocity {
            twist: log(step) / seconds,
            seconds,
        });
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
            self.open.clear();
            (self.origin, self.awaiting) = (None, None);
            self.finder.forget();
            self.motions.forget();
        }
        let here = moment.unwrap_or(Moment {
            stamp,
            path_from_camera: Sim3::identity(),
            step: Sim3::identity(),
        });
        self.here = Some(here);
        if velocity.is_none() {
            self.path.forget();
        }
        let (pose, averages) = (here.path_from_camera.rigid(), self.steps.averages());
        self.path.add(stamp, pose, averages);
        self.finder.follow(&self.path);
        self.motions.complete(&self.path);
        let came = self.images.get(self.next).filter(|_| self.has_next);
        if let Some(came) = came.filter(|_| velocity.is_some()) {
            self.finder.note(came, &here);
        }
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

#[cfg(test)]
mod tests;

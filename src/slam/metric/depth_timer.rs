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
use crate::compute::depth::moved::DepthMotion;
use crate::geometry::{Intrinsics, Sim3};
use crate::image::depth::DepthLimits;
use crate::newest;
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
/// Depth measured within so many seconds of a frame is that of the frame: the camera moves by a millimetre at most.
const AT_ONCE: f64 = 0.001;

/// A depth image that belongs to a frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrameDepth<'a> {
    /// Metres along the camera's z axis for each pixel of the network's image, row by row, 0 where there is none.
    pub metres: &'a [f32],
    /// Seconds from the frame's stamp to the depth image's.
    pub after: f64,
}

impl<'a> From<&'a [f32]> for FrameDepth<'a> {
    /// Depth with the frame's stamp.
    fn from(metres: &'a [f32]) -> Self {
        Self { metres, after: 0.0 }
    }
}

/// Depth beside a frame.
#[derive(Debug, Clone, Copy)]
struct Used {
    image: usize,
    /// Seconds from the stamp of the depth image to that of the frame.
    shift: f64,
}

impl Used {
    /// The same depth beside a frame `seconds` later.
    fn later(self, seconds: f64) -> Self {
        Self {
            shift: self.shift + seconds,
            ..self
        }
    }

    /// Seconds from the frame to the time at which the depth was measured, `offset` seconds after its stamp.
    fn time(&self, offset: f64) -> f64 {
        offset - self.shift
    }
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
    /// What came with the next frame.
    came: Option<Used>,
    /// What the next frame uses.
    used: Option<Used>,
    /// What came with the newest frame. Depth that is early shows what the next frame sees.
    held: Option<Used>,
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
            came: None,
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
        depth: Option<FrameDepth<'a>>,
    ) -> Option<(&'a [f32], Option<DepthMotion>)> {
        (self.came, self.used, self.applied) = (None, None, None);
        if let Some(FrameDepth { metres, after }) = depth {
            let next = self.images.get_mut(self.next)?;
            if next.len() != metres.len() {
                return Some((metres, None));
            }
            next.copy_from_slice(metres);
            self.came = Some(Used {
                image: self.next,
                shift: -after,
            });
        }
        self.used = self.nearest();
        let used = self.used?;
        let known = self.steps.expected().zip(self.apart(&used));
        let motion = known.map(|(velocity, seconds)| exp(&(velocity * seconds)));
        self.applied = Some(motion.map_or(Isometry3::identity(), |motion| motion.rigid()));
        let motion = motion.map(|motion| DepthMotion::new(&motion, &self.camera));
        let image: &[f32] = self.images.get(used.image)?;
        Some((image, motion))
    }

    /// What the next frame uses: what came with it, or with the frame before if that was measured nearer to this one. Depth
    /// that is nearer to the frame after the next waits for that.
    fn nearest(&self) -> Option<Used> {
        let time = |used: &Used| used.time(self.finder.offset()).abs();
        let is_of_next = |used: &Used| {
            let later = self.interval.map(|seconds| used.later(seconds));
            later.is_some_and(|later| time(&later) < time(used))
        };
        let held = self.held.filter(is_of_next).zip(self.interval);
        let held = held.map(|(held, seconds)| held.later(seconds));
        let own = self.came.filter(|came| !is_of_next(came));
        let both = held.into_iter().chain(own);
        both.min_by(|a, b| time(a).total_cmp(&time(b)))
    }

    /// Seconds from a frame to its depth, unless it was measured at once.
    fn apart(&self, used: &Used) -> Option<f64> {
        let seconds = used.time(self.finder.offset());
        (seconds.abs() > AT_ONCE).then_some(seconds)
    }

    /// The next frame, and the depth that it was given, cannot be used.
    pub fn skip(&mut self) {
        (self.came, self.used, self.held) = (None, None, None);
        // The device may have taken the depth for the newest.
        self.origin = None;
    }

    /// For a frame without depth of its own: the camera's motion since the newest depth, which goes on as in the last
    /// step. `None` if that is too old, or if most of it is out of sight.
    pub fn carried(&mut self) -> Option<DepthMotion> {
        let (origin, here) = self.origin.zip(self.here).filter(|_| self.used.is_none())?;
        let moment = origin.moment;
        if !(0.0..CARRIED).contains(&moment.stamp.seconds_to(here.stamp)) {
            return None;
        }
        let next = here.path_from_camera * here.step;
        let mut motion = next.inverse() * moment.path_from_camera;
        if let Some(seconds) = self.apart(&origin.used) {
            motion = motion * exp(&origin.passage.twist(seconds));
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
        let offset = self.finder.offset();
        let own = (origin.moment.stamp == here.stamp).then(|| origin.used.time(offset).abs());
        let last = self.held.map_or(offset, |held| held.time(offset));
        // What comes with the next frame, stamped like the last, is nearer to this frame than to that, and than what this
        // one used.
        let is_shown_later = |seconds: f64| {
            let next = (last + seconds).abs();
            next < last.abs() && own.is_none_or(|own| next < own)
        };
        self.awaiting = self.interval.is_some_and(is_shown_later).then_some(here);
    }

    /// Adds what is reported once the motion about the newest frame is known.
    fn add_report(&mut self, report: DepthReport) {
        let Some(here) = self.here else {
            return;
        };
        newest::push(&mut self.open, (here.stamp, report));
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
            Some(held) => {
                let of_keyframe = held.later(-keyframe.stamp.seconds_to(here.stamp));
                let depth = DepthMoment {
                    stamp: keyframe.stamp,
                    path_from_camera: keyframe.path_from_camera.rigid(),
                    passage: Passage::default(),
                    shift: of_keyframe.shift,
                };
                self.measure(of_keyframe.image, depth);
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
            seconds: self.finder.offset(),
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
        let seconds = before.map(|before| before.seconds_to(stamp));
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
        self.held = self.came.take();
        let held = self.held.filter(|_| velocity.is_some());
        let image = held.and_then(|held| self.images.get(held.image));
        if let Some((held, image)) = held.zip(image) {
            self.finder.note(image, &here, -held.shift);
        }
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
        let kept = [self.held, self.origin.map(|origin| origin.used)];
        let is_kept = |image: &usize| kept.iter().flatten().any(|used| used.image == *image);
        self.next = (0..IMAGES).find(|image| !is_kept(image)).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests;

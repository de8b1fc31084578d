//! The newest poses of tracked frames, and the camera's velocity at one of them.
//!
//! Where the pose of a single frame errs by a large part of a step, the velocity is the slope of the line through the
//! poses of a tenth of a second, which are on both sides of the frame: its error then has nothing in common with that of
//! the frame's own pose, other than that of one step.

use super::depth_moment::{DepthMoment, Passage, Velocity, log};
use crate::newest;
use crate::time::Stamp;
use nalgebra::{Isometry3, Vector6};

/// Number of the newest poses that are kept, and the number of poses after a frame that suffice for its velocity.
const KEPT: usize = 32;
const ENOUGH: usize = 12;
/// Seconds of the poses about a frame: on the side on which the velocity is asked for, and on the other one. With 30
/// frames a second the middle is half a frame away.
const NEAR_SIDE: f64 = 0.105;
const FAR_SIDE: f64 = 0.07;
/// Seconds after a frame from which on there are enough poses.
const COMPLETE: f64 = 0.095;

/// Poses of consecutive tracked frames.
#[derive(Debug, Default)]
pub struct Path {
    /// The oldest first.
    newest: heapless::Deque<(Stamp, Isometry3<f64>), KEPT>,
    /// Whether velocities are those of more than one step.
    averages: bool,
}

impl Path {
    /// The camera was lost, or frames are too far apart: the next pose is the first of another path.
    pub fn forget(&mut self) {
        self.newest.clear();
    }

    /// Adds the pose of the next frame, whose stamp is later. `averages` says whether steps are so noisy that their means
    /// are better velocities than they are.
    pub fn add(&mut self, stamp: Stamp, path_from_camera: Isometry3<f64>, averages: bool) {
        self.averages = averages;
        newest::push(&mut self.newest, (stamp, path_from_camera));
    }

    /// Whether a frame is on it, and too few frames after that are known for its velocity.
    pub fn is_open(&self, stamp: Stamp) -> bool {
        self.has(stamp) && !self.is_known(stamp)
    }

    fn has(&self, stamp: Stamp) -> bool {
        self.newest.iter().any(|(at, _)| *at == stamp)
    }

    /// Seconds from a frame to each that is later.
    fn later(&self, stamp: Stamp) -> impl Iterator<Item = f64> {
        let seconds = self.newest.iter().map(move |(at, _)| stamp.seconds_to(*at));
        seconds.filter(|t| *t > 0.0)
    }

    fn is_known(&self, stamp: Stamp) -> bool {
        let (enough, complete) = match self.averages {
            true => (ENOUGH, COMPLETE),
            false => (1, 0.0),
        };
        self.later(stamp).count() >= enough || self.later(stamp).any(|t| t >= complete)
    }

    /// Completes what is known about the camera's motion about a frame with depth, if the path shows it.
    pub fn complete(&self, depth: &mut DepthMoment) {
        if let Some(passage) = self.passage(depth.stamp) {
            depth.passage = passage;
        }
    }

    /// The camera's motion about a frame: its velocities somewhat before and somewhat after, of which the first frame has
    /// one. `None` until enough frames after it are known, and after more, which replace the frames before it.
    pub fn passage(&self, stamp: Stamp) -> Option<Passage> {
        if !self.is_known(stamp) || self.later(stamp).count() > ENOUGH {
            return None;
        }
        let (_, here) = self.newest.iter().find(|(at, _)| *at == stamp)?;
        let here = here.inverse();
        let poses = || {
            let about = self.newest.iter();
            about.map(|(at, pose)| (stamp.seconds_to(*at), here * *pose))
        };
        let [near, far] = match self.averages {
            true => [NEAR_SIDE, FAR_SIDE],
            false => [0.0, 0.0],
        };
        let velocity = |seconds: f64, from: f64, to: f64| {
            let twist = slope(|| poses().filter(move |(t, _)| *t >= from && *t <= to))?;
            Some(Velocity { twist, seconds })
        };
        let before = poses().map(|(t, _)| t).rfind(|t| *t < 0.0);
        let after = self.later(stamp).next();
        Some(Passage {
            before: before.and_then(|t| velocity(-t, t.min(-near), far)),
            after: after.and_then(|t| velocity(t, -far, t.max(near))),
        })
    }
}

/// The slope of the line that fits poses at these seconds best; `None` for fewer than two.
fn slope<I: Iterator<Item = (f64, Isometry3<f64>)>>(poses: impl Fn() -> I) -> Option<Vector6<f64>> {
    let (count, sum) = poses().fold((0.0, 0.0), |(count, sum), (t, _)| (count + 1.0, sum + t));
    let middle = sum / count;
    let (mut top, mut bottom) = (Vector6::zeros(), 0.0);
    for (t, pose) in poses() {
        top += log(&pose) * (t - middle);
        bottom += (t - middle).powi(2);
    }
    (bottom > 0.0).then(|| top / bottom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::Vector3;

    /// A path of frames at these seconds, along which the camera turns and goes sideways, faster and faster.
    fn path(seconds: impl Iterator<Item = f64>) -> Path {
        let mut path = Path::default();
        for t in seconds {
            let pose = Isometry3::new(Vector3::x() * (0.5 * t + t * t), Vector3::z() * 0.3 * t);
            path.add(Stamp::from_seconds(t), pose, true);
        }
        path
    }

    #[test]
    fn velocities_are_those_half_a_frame_before_and_after() {
        let path = path((0..40).map(|k| f64::from(k) / 30.0));
        let at = Stamp::from_seconds(1.0);
        let passage = path.passage(at).expect("it is known");
        // In the camera's frame, which has turned by 0.3 rad.
        for (side, t) in [
            (passage.before, 1.0 - 1.0 / 60.0),
            (passage.after, 1.0 + 1.0 / 60.0),
        ] {
            let Velocity { twist, seconds } = side.expect("a velocity");
            assert!((seconds - 1.0 / 30.0).abs() < 1e-9);
            let speed = 0.5 + 2.0 * t;
            assert!(
                (twist[0] - speed * 0.3_f64.cos()).abs() < 1e-3 * speed,
                "{twist}"
            );
            assert!(
                (twist[1] + speed * 0.3_f64.sin()).abs() < 1e-3 * speed,
                "{twist}"
            );
            assert!((twist[5] - 0.3).abs() < 1e-9, "{twist}");
        }
    }

    #[test]
    fn without_averages_velocities_are_those_of_the_steps() {
        let mut path = path((0..40).map(|k| f64::from(k) / 30.0));
        let (_, last) = *path.newest.back().expect("a pose");
        let turned = last * Isometry3::translation(0.1, 0.0, 0.0);
        path.add(Stamp::from_seconds(40.0 / 30.0), turned, false);
        assert!(path.is_open(Stamp::from_seconds(40.0 / 30.0)));
        path.add(Stamp::from_seconds(43.0 / 30.0), turned, false);
        let passage = path.passage(Stamp::from_seconds(40.0 / 30.0));
        let Some(Passage {
            before: Some(before),
            after: Some(after),
        }) = passage
        else {
            panic!("{passage:?}");
        };
        assert!((before.twist[0] - 3.0).abs() < 1e-6 && after.twist.norm() < 1e-6);
        assert!((before.seconds - 1.0 / 30.0).abs() < 1e-9 && (after.seconds - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_frame_is_known_once_there_are_enough_frames_after_it() {
        // Frames a second, the frame, and the number of frames after it: a tenth of a second, or one, or twelve.
        for (rate, frame, after) in [(30.0, 10, 3), (5.0, 3, 1), (200.0, 15, 12)] {
            let at = Stamp::from_seconds(f64::from(frame) / rate);
            for frames in 0..=frame + after {
                let path = path((0..=frames).map(|k| f64::from(k) / rate));
                assert_eq!(path.has(at), frames >= frame);
                assert_eq!(
                    path.is_known(at),
                    frames == frame + after,
                    "{rate} {frames}"
                );
                assert_eq!(path.passage(at).is_some(), frames == frame + after);
            }
        }
    }

    #[test]
    fn a_frame_is_no_longer_looked_at_when_those_before_it_go() {
        let at = Stamp::from_seconds(1.0);
        for (frames, is_there) in [(43, true), (44, false), (62, false)] {
            let path = path((0..frames).map(|k| f64::from(k) / 30.0));
            assert!(path.has(at) && !path.is_open(at));
            assert_eq!(path.passage(at).is_some(), is_there, "{frames}");
        }
    }

    #[test]
    fn the_ends_of_a_path_have_one_velocity_or_none() {
        let slow = path([0.0, 0.3, 0.6].into_iter());
        let passage = |path: &Path, t: f64| path.passage(Stamp::from_seconds(t));
        let first = passage(&slow, 0.0).expect("it is known");
        assert!(first.before.is_none() && first.after.is_some());
        let middle = passage(&slow, 0.3).expect("it is known");
        let [before, after] = [middle.before, middle.after].map(|side| side.expect("a velocity"));
        assert!(
            (before.twist[0] - after.twist[0]).abs() > 0.3,
            "steps of their own"
        );
        assert_eq!(passage(&slow, 0.6), None);
        let mut long = path((0..100).map(|k| f64::from(k) / 30.0));
        assert!(!long.has(Stamp::from_seconds(1.0)) && long.has(Stamp::from_seconds(99.0 / 30.0)));
        long.forget();
        assert!(!long.has(Stamp::from_seconds(99.0 / 30.0)));
        // Frames of one moment have no velocity.
        let still = path([1.0, 1.0, 1.2].into_iter());
        assert_eq!(passage(&still, 1.0).expect("it is known").before, None);
    }
}

//! Up, by an accelerometer (docs/algorithm.md, Wheel odometry and gyro).
//!
//! An accelerometer measures the camera's acceleration less gravity. In the axes of the world the accelerations of a
//! camera that ends about as fast as it started cancel, and what is left of a long mean points up. Readings are summed
//! up in the axes of the keyframe that the camera was tracked against, so that the map may still turn them.

use crate::time::Stamp;
use nalgebra::{Unit, UnitQuaternion, Vector3};
use std::collections::VecDeque;

/// Gravity at sea level, in m/s².
const GRAVITY: f64 = 9.81;
/// Readings older than this are dropped, in seconds.
const KEPT: f64 = 1.0;
/// Maximum number of readings: 1 s at 2 kHz.
const MAX_READINGS: usize = 2000;
/// Maximum number of keyframes whose readings count: the newest ones.
const MAX_KEYFRAMES: usize = 64;
/// Readings count for a frame that is at most so much later, in seconds: the camera turns meanwhile.
const AT_FRAME: f64 = 0.1;
/// A frame stands for the time since the frame before, at most this, in seconds.
const FRAME_TIME: f64 = 0.2;
/// A camera is at rest if its readings are within `STEADY` m/s² of their mean for `REST` seconds; such a frame counts as
/// `REST_TIME` seconds of motion.
const STEADY: f64 = 0.3;
const REST: f64 = 0.4;
const REST_TIME: f64 = 5.0;
/// By how much a camera's speeds at the two ends differ, in m/s.
const SPEED: f64 = 1.0;
/// Standard deviation of the direction by the sensor's bias and mount, in radians.
const BIAS: f64 = 0.02;
/// Directions that are less certain are not used, in radians (3.5 degrees).
const USABLE: f64 = 0.06;
/// A mean within this of gravity is one, in m/s².
const PLAUSIBLE: f64 = 1.5;
/// No robot survives more, in m/s².
const MAX_READING: f64 = 200.0;

/// The direction against gravity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Up {
    /// In the axes of SLAM's world.
    pub direction: Unit<Vector3<f64>>,
    /// Standard deviation of the angle about each horizontal axis, in radians.
    pub sigma: f64,
}

/// What was measured while the camera was tracked against a keyframe.
#[derive(Debug, Clone, Copy)]
struct Share {
    keyframe: u32,
    /// Acceleration less gravity times seconds, in the keyframe's axes.
    sum: Vector3<f64>,
    seconds: f64,
}

/// The newest readings of an accelerometer, and what they say of up.
#[derive(Debug)]
pub struct Gravity {
    /// Axes of the sensor.
    readings: VecDeque<(Stamp, Vector3<f64>)>,
    shares: VecDeque<Share>,
    newest: Option<Stamp>,
}

impl Default for Gravity {
    fn default() -> Self {
        Self {
            readings: VecDeque::with_capacity(MAX_READINGS),
            shares: VecDeque::with_capacity(MAX_KEYFRAMES),
            newest: None,
        }
    }
}

impl Gravity {
    /// Appends a reading in m/s² along the sensor's axes. One that no accelerometer of a robot measures, or that is not
    /// newer than the last, is ignored.
    pub fn add(&mut self, stamp: Stamp, reading: &Vector3<f64>) {
        // False for NaN.
        let possible = reading.norm() < MAX_READING;
        if let Some((newest, _)) = self.readings.back() {
            let dt = newest.seconds_to(stamp);
            if dt < -KEPT {
                // The source started again.
                self.readings.clear();
            } else if dt <= 0.0 {
                return;
            }
        }
        if possible {
            let old = |at: &(Stamp, Vector3<f64>)| at.0.seconds_to(stamp) > KEPT;
            while self.readings.front().is_some_and(old) || self.readings.len() >= MAX_READINGS {
                self.readings.pop_front();
            }
            self.readings.push_back((stamp, *reading));
        }
    }

    /// Forgets the keyframes: the map was reset, or another one was loaded.
    pub fn forget_map(&mut self) {
        self.shares.clear();
        self.newest = None;
    }

    /// The frame with this stamp on the sensor's clock was tracked against `keyframe`, in whose axes the sensor's are
    /// turned by `keyframe_from_imu`.
    pub fn saw_frame(
        &mut self,
        stamp: Stamp,
        keyframe: u32,
        keyframe_from_imu: &UnitQuaternion<f64>,
    ) {
        let before = self.newest.replace(stamp);
        let until = || {
            let past = |at: &&(Stamp, Vector3<f64>)| at.0.seconds_to(stamp) >= 0.0;
            self.readings.iter().filter(past)
        };
        let at_frame = |at: &&(Stamp, Vector3<f64>)| at.0.seconds_to(stamp) <= AT_FRAME;
        let Some(mean) = mean(until().filter(at_frame)) else {
            return;
        };
        let span = until().next().map_or(0.0, |at| at.0.seconds_to(stamp));
        let rests = span >= REST && until().all(|(_, a)| (a - mean).norm() < STEADY);
        let since = before.map_or(0.0, |before| before.seconds_to(stamp));
        let seconds = match rests {
            true => REST_TIME,
            false => since.clamp(0.0, FRAME_TIME),
        };
        if !self.shares.iter().any(|share| share.keyframe == keyframe) {
            if self.shares.len() >= MAX_KEYFRAMES {
                self.shares.pop_front();
            }
            self.shares.push_back(Share {
                keyframe,
                sum: Vector3::zeros(),
                seconds: 0.0,
            });
        }
        let share = self
            .shares
            .iter_mut()
            .find(|share| share.keyframe == keyframe);
        if let Some(share) = share {
            share.sum += keyframe_from_imu * mean * seconds;
            share.seconds += seconds;
        }
    }

    /// Up in the world, in which `world_from_keyframe` are the rotations of the keyframes that still exist. `None` before
    /// it is known to 3.5 degrees, or if what is measured is not gravity.
    pub fn up(
        &self,
        world_from_keyframe: impl Fn(u32) -> Option<UnitQuaternion<f64>>,
    ) -> Option<Up> {
        let (mut sum, mut seconds) = (Vector3::zeros(), 0.0);
        for share in &self.shares {
            if let Some(rotation) = world_from_keyframe(share.keyframe) {
                sum += rotation * share.sum;
                seconds += share.seconds;
            }
        }
        let sigma = BIAS.hypot(SPEED / (GRAVITY * seconds));
        // False for NaN.
        let known = sigma < USABLE && ((sum / seconds).norm() - GRAVITY).abs() < PLAUSIBLE;
        known.then(|| Up {
            direction: Unit::new_normalize(sum),
            sigma,
        })
    }
}

fn mean<'a>(readings: impl Iterator<Item = &'a (Stamp, Vector3<f64>)>) -> Option<Vector3<f64>> {
    let (sum, count) = readings.fold((Vector3::zeros(), 0), |(sum, n), (_, a)| (sum + a, n + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::random::Random;

    fn stamp(seconds: f64) -> Stamp {
        Stamp::from_seconds(1000.0 + seconds)
    }

    /// A walk of `seconds` at 200 Hz and 30 frames per second: the camera turns about the world's up and sways, with a
    /// new keyframe every second, whose axes are turned by the map's drift `drift` against the truth.
    fn walk(seconds: f64, factor: f64, sway: f64) -> (Gravity, Vector3<f64>) {
        let mut random = Random(5);
        let up = Vector3::new(0.1, -0.9, 0.3).normalize();
        let world_from_camera = |t: f64| UnitQuaternion::from_scaled_axis(up * (0.7 * t));
        let mut gravity = Gravity::default();
        let mut read = 0.0;
        for frame in 0..(30.0 * seconds) as usize {
            let t = frame as f64 / 30.0;
            while read <= t {
                let noise = Vector3::from_fn(|_, _| 0.1 * random.normal());
                let swaying = Vector3::new((5.0 * read).cos(), 0.4, (3.0 * read).sin()) * sway;
                let felt = up * GRAVITY + swaying.component_mul(&Vector3::new(1.0, 0.0, 1.0));
                gravity.add(
                    stamp(read),
                    &((world_from_camera(read).inverse() * felt + noise) * factor),
                );
                read += 0.005;
            }
            let keyframe = t as u32;
            let at = world_from_camera(f64::from(keyframe)).inverse() * world_from_camera(t);
            gravity.saw_frame(stamp(t), keyframe, &at);
        }
        (gravity, up)
    }

    fn keyframes(up: Vector3<f64>) -> impl Fn(u32) -> Option<UnitQuaternion<f64>> {
        move |id| Some(UnitQuaternion::from_scaled_axis(up * (0.7 * f64::from(id))))
    }

    #[test]
    fn a_walk_shows_up_after_some_seconds() {
        let (short, up) = walk(1.0, 1.0, 1.0);
        assert_eq!(short.up(keyframes(up)), None);
        let (long, up) = walk(12.0, 1.0, 1.0);
        let found = long.up(keyframes(up)).expect("known");
        let off = found.direction.angle(&up);
        assert!(
            off < 2.0 * found.sigma && found.sigma < 0.03,
            "{off} {found:?}"
        );
        // A map that turns turns what was measured.
        let turn = UnitQuaternion::from_scaled_axis(Vector3::new(0.3, 0.2, 0.9));
        let there = keyframes(up);
        let turned = long.up(|id| there(id).map(|r| turn * r)).expect("known");
        assert!(turned.direction.angle(&(turn * *found.direction)) < 1e-9);
    }

    #[test]
    fn a_camera_at_rest_knows_up_at_its_first_frame() {
        let up = Vector3::new(0.2, -0.8, -0.5).normalize();
        let mut gravity = Gravity::default();
        for k in 0..120 {
            let shake = Vector3::x() * (0.05 * f64::from(k % 3));
            gravity.add(stamp(f64::from(k) * 0.005), &(up * 9.79 + shake));
        }
        gravity.saw_frame(stamp(0.597), 3, &UnitQuaternion::identity());
        let found = gravity.up(|_| Some(UnitQuaternion::identity()));
        let found = found.expect("known");
        assert!(
            found.direction.angle(&up) < 0.01 && found.sigma < 0.04,
            "{found:?}"
        );
        assert_eq!(gravity.up(|_| None), None, "a keyframe that is gone");
        gravity.forget_map();
        assert_eq!(gravity.up(|_| Some(UnitQuaternion::identity())), None);
    }

    #[test]
    fn what_is_not_gravity_is_not_up() {
        // Readings in units of g, an accelerometer without gravity, and readings of a broken one.
        let (in_g, up) = walk(12.0, 1.0 / GRAVITY, 1.0);
        assert_eq!(in_g.up(keyframes(up)), None);
        let mut broken = Gravity::default();
        for (k, v) in [f64::NAN, 1e9, f64::INFINITY].into_iter().enumerate() {
            broken.add(stamp(k as f64), &Vector3::repeat(v));
        }
        broken.saw_frame(stamp(3.0), 0, &UnitQuaternion::identity());
        assert_eq!(broken.up(|_| Some(UnitQuaternion::identity())), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut gravity = Gravity::default();
        for k in 0..20_000_u32 {
            let t = f64::from(k) * 1e-4;
            gravity.add(stamp(t), &(Vector3::z() * GRAVITY));
            gravity.saw_frame(stamp(t), k, &UnitQuaternion::identity());
        }
        assert!(gravity.readings.len() <= MAX_READINGS && gravity.shares.len() <= MAX_KEYFRAMES);
    }
}

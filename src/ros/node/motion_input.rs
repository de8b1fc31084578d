//! The topics `odom` and `imu`: wheel odometry and a gyro for SLAM.

use super::moment::Moment;
use super::motion_inbox::{Frames, MotionInbox, QUIET, Reading, WAITING};
use super::settings::Settings;
use super::shared::Shared;
use crate::slam::{GyroNoise, Slam};
use crate::source::ImuReading;
use crate::time::Stamp;
use nalgebra::Isometry3;
use std::sync::Arc;
use std::time::Duration;

/// Measurements are not used if they are farther than this from the images, by their stamps and by their arrivals.
const MAX_APART: Duration = Duration::from_secs(1);

/// The image that is processed next.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    /// The camera's optical frame.
    pub frame: &'a str,
    pub stamp: Stamp,
    /// Time of arrival.
    pub at: Moment,
}

/// A sensor as SLAM takes it.
trait Kind {
    type Value: Copy;
    /// The topic, and the name of the sensor.
    const NAMES: (&'static str, &'static str);

    /// Tells SLAM where the sensor is.
    fn mount(
        shared: &Shared,
        slam: &mut Slam,
        frame: &str,
        image: &Image<'_>,
    ) -> Result<(), String>;

    /// Gives SLAM a measurement.
    fn add(slam: &mut Slam, stamp: Stamp, value: &Self::Value) -> Result<(), String>;
}

struct Wheels;

impl Kind for Wheels {
    type Value = Isometry3<f64>;
    const NAMES: (&'static str, &'static str) = ("odom", "wheel odometry");

    fn mount(
        shared: &Shared,
        slam: &mut Slam,
        frame: &str,
        image: &Image<'_>,
    ) -> Result<(), String> {
        let base_from_camera = shared.tf().lookup_held(frame, image.frame, image.stamp);
        slam.set_odometry_mount(base_from_camera.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn add(slam: &mut Slam, stamp: Stamp, value: &Self::Value) -> Result<(), String> {
        slam.add_odometry(stamp, value).map_err(|e| e.to_string())
    }
}

struct Gyro;

impl Kind for Gyro {
    type Value = ImuReading;
    const NAMES: (&'static str, &'static str) = ("imu", "gyro");

    fn mount(
        shared: &Shared,
        slam: &mut Slam,
        frame: &str,
        image: &Image<'_>,
    ) -> Result<(), String> {
        let camera_from_imu = shared.tf().lookup_held(image.frame, frame, image.stamp);
        let rotation = camera_from_imu.map_err(|error| error.to_string())?.rotation;
        slam.set_gyro_mount(rotation, GyroNoise::default());
        Ok(())
    }

    fn add(slam: &mut Slam, stamp: Stamp, value: &Self::Value) -> Result<(), String> {
        if let Some(acceleration) = &value.acceleration {
            slam.add_acceleration(stamp, acceleration);
        }
        slam.add_gyro(stamp, &value.rate).map_err(|e| e.to_string())
    }
}

/// A sensor's way from its inbox to SLAM.
struct Input<K: Kind> {
    /// The frames of the measurements, once SLAM knows the mount.
    mounted: Option<Arc<Frames>>,
    /// Used again for each image.
    readings: Vec<Reading<K::Value>>,
    /// Since when there is nothing to use.
    missing: Option<Moment>,
}

impl<K: Kind> Default for Input<K> {
    fn default() -> Self {
        Self {
            mounted: None,
            readings: Vec::with_capacity(WAITING),
            missing: None,
        }
    }
}

impl<K: Kind> Input<K> {
    /// Gives SLAM what was measured since the last image. Returns why the sensor is not used, once that has been so for
    /// a while.
    fn give(
        &mut self,
        shared: &Shared,
        slam: &mut Slam,
        inbox: &MotionInbox<K::Value>,
        base: &str,
        image: &Image<'_>,
    ) -> Option<String> {
        let why = self.try_give(shared, slam, inbox, base, image).err();
        let (topic, name) = K::NAMES;
        let Some(why) = why else {
            self.missing = None;
            return None;
        };
        let now = shared.moment();
        let since = *self.missing.get_or_insert(now);
        if now.since(&since) < QUIET {
            return None;
        }
        let kind = match topic {
            "odom" => "wheels missing",
            _ => "gyro missing",
        };
        shared.status.warn(kind, || format!("no {name}: {why}"));
        Some(why)
    }

    fn try_give(
        &mut self,
        shared: &Shared,
        slam: &mut Slam,
        inbox: &MotionInbox<K::Value>,
        base: &str,
        image: &Image<'_>,
    ) -> Result<(), String> {
        let silence = inbox.silence(K::NAMES.0, &shared.moment());
        let Some(frames) = inbox.frames() else {
            return silence.map_or(Ok(()), Err);
        };
        if self.mounted.as_ref() != Some(&frames) {
            self.mount(shared, slam, &frames, base, image)?;
        }
        self.readings.clear();
        if inbox.take(&mut self.readings).as_ref() != Some(&frames) {
            // Another source has just taken over; its mount comes first.
            return Ok(());
        }
        let mut wrong = None;
        for reading in &self.readings {
            let added = apart(reading.stamp, reading.at, image)
                .and_then(|()| K::add(slam, reading.stamp, &reading.value));
            wrong = added.err().or(wrong);
        }
        if let Some(why) = wrong.or(silence) {
            return Err(why);
        }
        Ok(())
    }

    /// Tells SLAM the mount of measurements of these frames.
    fn mount(
        &mut self,
        shared: &Shared,
        slam: &mut Slam,
        frames: &Arc<Frames>,
        base: &str,
        image: &Image<'_>,
    ) -> Result<(), String> {
        let (topic, name) = K::NAMES;
        let frame = match frames.frame.as_str() {
            "" if base.is_empty() => {
                return Err(format!("the messages on {topic} name no frame that moves"));
            }
            "" => base,
            named => named,
        };
        K::mount(shared, slam, frame, image)?;
        tracing::info!(
            "{name}: frame {frame}, mounted as the transform to {} says",
            image.frame
        );
        self.mounted = Some(Arc::clone(frames));
        Ok(())
    }
}

/// Refuses a measurement whose clock is not the images'. After a pause of tracking an old measurement was also received
/// long before the image, which is not an error.
fn apart(stamp: Stamp, at: Moment, image: &Image<'_>) -> Result<(), String> {
    let by_stamps = (i128::from(stamp.nanos) - i128::from(image.stamp.nanos)) as f64 * 1e-9;
    let earlier = image.at.since(&at).as_secs_f64();
    let later = at.since(&image.at).as_secs_f64();
    let beyond_arrival = by_stamps + earlier - later;
    let least = match beyond_arrival.abs() < by_stamps.abs() {
        true => beyond_arrival,
        false => by_stamps,
    };
    let limit = MAX_APART.as_secs_f64();
    match least.abs() <= limit {
        true => Ok(()),
        false => Err(format!(
            "the newest message is stamped {:.3} s {} the image, expected at most {limit} s: are both stamped by one \
             clock, at the time of measurement?",
            least.abs(),
            if least < 0.0 { "before" } else { "after" }
        )),
    }
}

/// Gives SLAM the measurements of its motion sensors.
#[derive(Default)]
pub struct MotionInput {
    wheels: Input<Wheels>,
    gyro: Input<Gyro>,
}

impl MotionInput {
    /// Gives `slam` what was measured before `image`. What cannot be used is left out; if it stays so, the reason is
    /// reported.
    pub fn give(
        &mut self,
        shared: &Shared,
        slam: &mut Slam,
        settings: &Settings,
        image: &Image<'_>,
    ) {
        if settings.use_wheel_odometry {
            let base = settings.base_frame.as_str();
            let why = self
                .wheels
                .give(shared, slam, &shared.odometry, base, image);
            shared.status.wheels(why);
        }
        if settings.use_gyro {
            let why = self.gyro.give(shared, slam, &shared.rates, "", image);
            shared.status.gyro(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn clocks_that_differ_are_refused_and_a_pause_is_not() {
        const SECOND: i64 = 1_000_000_000;
        let start = Instant::now();
        let after = |seconds: u64| Moment::from(start + Duration::from_secs(seconds));
        let image = Image {
            frame: "camera",
            stamp: Stamp {
                nanos: 100 * SECOND,
            },
            at: after(50),
        };
        let check = |stamp: i64, at: u64| {
            apart(
                Stamp {
                    nanos: stamp * SECOND,
                },
                after(at),
                &image,
            )
        };
        assert_eq!(check(100, 50), Ok(()));
        // SLAM was being started for 20 s.
        assert_eq!(check(80, 30), Ok(()));
        assert_eq!(check(105, 55), Ok(()));
        // A bag that is played at ten times its speed: the stamps alone fit.
        assert_eq!(check(101, 60), Ok(()));
        let late = check(97, 50).expect_err("late");
        assert!(late.contains("3.000 s before"), "{late}");
        let early = check(103, 50).expect_err("early");
        assert!(early.contains("3.000 s after"), "{early}");
        let other = check(-1_000, 50).expect_err("another clock");
        assert!(other.contains("1100.000 s before"), "{other}");
    }
}

//! Gives SLAM the measurements of a source's motion sensors.

use crate::slam::{GyroNoise, Slam};
use crate::source::{ImuReading, MotionSource, Series};
use crate::time::Stamp;
use nalgebra::Isometry3;
use std::fmt::Display;
use std::iter::Peekable;

/// Measurements that are so much later than a frame are known when it is processed, in nanoseconds: a motion is
/// interpolated between two of them.
const AHEAD_NANOS: i64 = 100_000_000;

/// A sensor's measurements that SLAM has not been given.
struct Waiting<T> {
    series: Peekable<Series<T>>,
    given: usize,
    refused: usize,
}

impl<T> Waiting<T> {
    fn new(series: Series<T>) -> Self {
        Self {
            series: series.peekable(),
            given: 0,
            refused: 0,
        }
    }

    /// Passes on what was measured until shortly after a frame.
    fn give<E: Display>(&mut self, frame: Stamp, mut add: impl FnMut(Stamp, &T) -> Result<(), E>) {
        let until = frame.nanos.saturating_add(AHEAD_NANOS);
        while let Some((stamp, value)) = self.series.next_if(|(at, _)| at.nanos <= until) {
            match add(stamp, &value) {
                Ok(()) => self.given += 1,
                Err(error) => {
                    if self.refused == 0 {
                        tracing::warn!("{error}; it is left out");
                    }
                    self.refused += 1;
                }
            }
        }
    }

    fn counted(&self) -> String {
        match self.refused {
            0 => format!("{}", self.given),
            refused => format!("{} ({refused} could not be used)", self.given),
        }
    }
}

/// Gives SLAM wheel odometry and gyro as its frames are processed, and counts.
pub struct MotionFeed {
    wheels: Option<Waiting<Isometry3<f64>>>,
    gyro: Option<Waiting<ImuReading>>,
}

impl MotionFeed {
    /// Tells `slam` the mounts of the sensors. `None` without any.
    pub fn new(slam: &mut Slam, source: MotionSource) -> Option<Self> {
        let wheels = source.wheels.map(|(base_from_camera, poses)| {
            slam.set_odometry_mount(base_from_camera);
            Waiting::new(poses)
        });
        let gyro = source.gyro.map(|gyro| {
            let noise = gyro
                .noise
                .map(|(density, walk)| GyroNoise { density, walk });
            slam.set_gyro_mount(gyro.camera_from_imu, noise.unwrap_or_default());
            Waiting::new(gyro.readings)
        });
        (wheels.is_some() || gyro.is_some()).then_some(Self { wheels, gyro })
    }

    /// Gives the frame with this stamp, which is processed next, what was measured until then.
    pub fn give(&mut self, slam: &mut Slam, frame: Stamp) {
        if let Some(wheels) = &mut self.wheels {
            wheels.give(frame, |stamp, pose| slam.add_odometry(stamp, pose));
        }
        if let Some(gyro) = &mut self.gyro {
            gyro.give(frame, |stamp, reading| {
                if let Some(acceleration) = &reading.acceleration {
                    slam.add_acceleration(stamp, acceleration);
                }
                slam.add_gyro(stamp, &reading.rate)
            });
        }
    }

    /// For people: what the sensors contributed, with the status of `slam` after the last frame.
    pub fn summary(&self, slam: &Slam) -> String {
        let status = slam.motion_status();
        let mut text = format!("motion sensors: {} frames predicted", status.predicted);
        if let Some(wheels) = &self.wheels {
            text += &format!(
                "; {} poses by wheels, {} motions in the map, {} that do not fit, {} jumps",
                wheels.counted(),
                status.motions,
                status.outliers,
                status.jumps
            );
        }
        if status.mount_refused {
            text += "; the mount of the wheels was refused";
        }
        if let Some(gyro) = &self.gyro {
            text += &format!("; {} rates by the gyro", gyro.counted());
        }
        if let Some(bias) = status.gyro_bias {
            text += &format!(", bias {:.4} rad/s", bias.norm());
        }
        if let Some(offset) = status.gyro_offset {
            text += &format!(", clock {:+.1} ms", offset * 1e3);
        }
        if status.gyro_refused {
            text += "; the gyro was refused";
        }
        text
    }
}

//! The gyroscope with its mount, bias and clock: rotations of the camera.

use super::gyro::{GyroError, GyroNoise, Rates, angle, rotation_sigma, shifted};
use super::gyro_calibration::{Bias, BiasEstimator, OffsetEstimator};
use super::gyro_mount::{GyroMountTest, WrongGyro};
use crate::time::Stamp;
use nalgebra::{UnitQuaternion, Vector3};

/// Seconds for which a camera stands still before the gyro's mean rate is its bias.
const STILL: f64 = 1.0;
/// A camera stands still while it turns less than this in all, in radians; the bias is then known to `STILL_SIGMA`.
const STILL_TURN: f64 = 5e-3;
const STILL_SIGMA: f64 = 3e-3;
/// Rates of a sensor at rest are within this of their mean, in rad/s.
const STEADY: f64 = 0.05;
/// Standard deviation of a bias that is not known, in rad/s.
const UNKNOWN_BIAS: f64 = 0.02;
/// Number of frames between two searches for the time offset.
const BETWEEN_OFFSETS: usize = 90;
/// A larger offset between the clocks is reported, in seconds.
const LARGE_OFFSET: f64 = 5e-3;

/// The camera's rotation between two times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CameraRotation {
    /// Rotation from the camera's frame at `j` to that at `i`.
    pub i_from_j: UnitQuaternion<f64>,
    /// Standard deviation about each axis, in radians.
    pub sigma: f64,
}

/// Since when the camera has hardly turned, and by how much.
#[derive(Debug, Clone, Copy)]
struct Rest {
    since: Stamp,
    turned: UnitQuaternion<f64>,
}

/// A gyroscope fixed to the camera.
#[derive(Debug)]
pub struct Gyroscope {
    rates: Rates,
    camera_from_imu: UnitQuaternion<f64>,
    noise: GyroNoise,
    bias: Option<Bias>,
    /// Seconds from a frame's stamp to its time on the gyro's clock.
    offset: Option<f64>,
    from_keyframes: BiasEstimator,
    from_frames: OffsetEstimator,
    frames: usize,
    rest: Option<Rest>,
    mount: GyroMountTest,
}

impl Gyroscope {
    /// A gyroscope whose axes are turned against the camera's (z forward, x right, y down) by `camera_from_imu`.
    pub fn new(camera_from_imu: UnitQuaternion<f64>, noise: GyroNoise) -> Self {
        Self {
            rates: Rates::default(),
            camera_from_imu,
            noise,
            bias: None,
            offset: None,
            from_keyframes: BiasEstimator::default(),
            from_frames: OffsetEstimator::default(),
            frames: 0,
            rest: None,
            mount: GyroMountTest::default(),
        }
    }

    /// Appends an angular rate in rad/s, about the sensor's axes.
    ///
    /// # Errors
    /// See [`Rates::add`].
    pub fn add(&mut self, stamp: Stamp, rate: &Vector3<f64>) -> Result<(), GyroError> {
        self.rates.add(stamp, rate)
    }

    /// The bias, once known.
    pub fn bias(&self) -> Option<Bias> {
        self.bias
    }

    /// Seconds to add to a frame's stamp for its time on the gyro's clock, once known.
    pub fn offset(&self) -> Option<f64> {
        self.offset
    }

    fn clock(&self, stamp: Stamp) -> Stamp {
        shifted(stamp, self.offset.unwrap_or(0.0))
    }

    fn bias_rate(&self) -> Vector3<f64> {
        self.bias.map_or(Vector3::zeros(), |bias| bias.rate)
    }

    fn in_imu(&self, of_camera: &UnitQuaternion<f64>) -> UnitQuaternion<f64> {
        self.camera_from_imu.inverse() * of_camera * self.camera_from_imu
    }

    /// The camera's rotation between the times of two frames; `None` if the rates do not cover them.
    pub fn between(&self, from: Stamp, to: Stamp) -> Option<CameraRotation> {
        let turned = self
            .rates
            .between(self.clock(from), self.clock(to), &self.bias_rate())?;
        let bias_sigma = self.bias.map_or(UNKNOWN_BIAS, |bias| bias.sigma);
        let mount = self.camera_from_imu;
        Some(CameraRotation {
            i_from_j: mount * turned.i_from_j * mount.inverse(),
            sigma: rotation_sigma(from.seconds_to(to), &self.noise, bias_sigma),
        })
    }

    /// Learns from the camera's rotation `i_from_j` between two consecutive frames, as tracking found it.
    pub fn saw_frames(&mut self, from: Stamp, to: Stamp, i_from_j: &UnitQuaternion<f64>) {
        self.from_frames.add(from, to, i_from_j);
        self.note_rest(from, to, i_from_j);
        self.frames += 1;
        if self.frames.is_multiple_of(BETWEEN_OFFSETS)
            && let Some(offset) = self.from_frames.solve(&self.rates)
        {
            if self.offset.is_none() && offset.abs() > LARGE_OFFSET {
                tracing::warn!(
                    "the gyro's clock is {:.1} ms ahead of the camera's, expected at most {:.0} ms: it is corrected, but \
                     check how the stamps are made",
                    offset * 1e3,
                    LARGE_OFFSET * 1e3
                );
            }
            self.offset = Some(offset);
        }
    }

    fn note_rest(&mut self, from: Stamp, to: Stamp, i_from_j: &UnitQuaternion<f64>) {
        let rest = self.rest.unwrap_or(Rest {
            since: from,
            turned: UnitQuaternion::identity(),
        });
        let turned = rest.turned * i_from_j;
        self.rest = (angle(&turned) < STILL_TURN).then_some(Rest { turned, ..rest });
        if self.rest.is_none() || rest.since.seconds_to(to) < STILL {
            return;
        }
        self.rest = None;
        let (start, end) = (self.clock(rest.since), self.clock(to));
        if let Some(rate) = self.rates.steady_rate(start, end, STEADY) {
            let sigma = STILL_SIGMA;
            self.improve(Bias { rate, sigma });
        }
    }

    /// Learns from the camera's rotation `i_from_j` between two keyframes.
    ///
    /// # Errors
    /// The camera has contradicted the gyro for some turns.
    pub fn saw_keyframes(
        &mut self,
        from: Stamp,
        to: Stamp,
        i_from_j: &UnitQuaternion<f64>,
    ) -> Result<(), WrongGyro> {
        let bias = self.bias_rate();
        let Some(by_gyro) = self.rates.between(self.clock(from), self.clock(to), &bias) else {
            return Ok(());
        };
        let in_camera = self.camera_from_imu * by_gyro.i_from_j * self.camera_from_imu.inverse();
        self.mount.add(&in_camera, i_from_j)?;
        let seen = self.in_imu(i_from_j);
        self.from_keyframes
            .add(by_gyro, &bias, &seen, from.seconds_to(to));
        if let Some(bias) = self.from_keyframes.solve() {
            self.improve(bias);
        }
        Ok(())
    }

    /// Takes a bias unless the known one is better. The newest of equally good ones counts: a bias changes slowly.
    fn improve(&mut self, bias: Bias) {
        if self
            .bias
            .is_none_or(|known| bias.sigma <= 1.1 * known.sigma)
        {
            self.bias = Some(bias);
        }
    }
}

//! The sensors beside the camera, as tracking uses them: where the camera is expected, where it is while it sees
//! nothing, and what goes to the map with a keyframe.

use super::metric::gravity::{Gravity, Up};
use super::metric::gyro::{GyroError, GyroNoise};
use super::metric::gyroscope::Gyroscope;
use super::metric::motion::{CameraMotion, Extent, visual_motion};
use super::metric::mount::MountTest;
use super::metric::slip::{SlipTest, Verdict};
use super::metric::wheels::{OdometryError, Wheels};
use super::pose_table::{Anchor, KeyframePoses};
use super::uncertainty::Covariance6;
use crate::geometry::Sim3;
use crate::time::Stamp;
use nalgebra::{Isometry3, Matrix3, UnitQuaternion, Vector3};

/// Maximum distance and time for which odometry alone locates the camera, in metres and seconds.
const BRIDGED: (f64, f64) = (5.0, 20.0);

/// How far the rotations between two keyframes by the camera and by the gyro may be apart beside the gyro's own error,
/// in radians (6 degrees).
const CAMERA_TURN: f64 = 0.1;

/// Pose by odometry of a camera that cannot be located by what it sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bridge {
    /// Covariance of the pose about the world axes, relative to the keyframe that the camera was last tracked against,
    /// as that of a tracked frame; it grows with the way.
    pub covariance: Covariance6,
    /// Metres driven since the camera was last located.
    pub driven: f64,
    /// Seconds since then.
    pub seconds: f64,
}

/// What the sensors have contributed so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MotionStatus {
    /// Frames whose solve started at a predicted pose.
    pub predicted: usize,
    /// Motions by wheels between keyframes that went to the map.
    pub motions: usize,
    /// Rotations by the gyro between keyframes that went to the map.
    pub turns: usize,
    /// Motions by wheels that did not fit what the camera saw, and were dropped.
    pub outliers: usize,
    /// Whether the wheels slip now.
    pub slipping: bool,
    /// Jumps and restarts of wheel odometry.
    pub jumps: usize,
    /// Whether the mount of the odometry was refused; the log says why.
    pub mount_refused: bool,
    /// Whether the gyro was refused, because of its mount or its unit; the log says why.
    pub gyro_refused: bool,
    /// Bias of the gyro in rad/s about its axes, once known.
    pub gyro_bias: Option<Vector3<f64>>,
    /// Seconds to add to a frame's stamp for its time on the gyro's clock, once known.
    pub gyro_offset: Option<f64>,
}

/// The newest frame that was located.
#[derive(Debug, Clone, Copy)]
struct Located {
    stamp: Stamp,
    anchor: Anchor,
    covariance: Covariance6,
}

/// The wheels with the tests of their motions.
struct Driven {
    wheels: Wheels,
    slip: SlipTest,
    mount: MountTest,
    refused: bool,
}

/// The sensors.
#[derive(Default)]
pub struct MotionSensors {
    driven: Option<Driven>,
    gyro: Option<Gyroscope>,
    /// Rotation from the IMU's axes to the camera's.
    camera_from_imu: UnitQuaternion<f64>,
    gravity: Gravity,
    located: Option<Located>,
    /// The newest keyframe.
    keyframe: Option<(u32, Stamp)>,
    /// The newest frame, and whether wheels bridged it.
    newest: Option<(Stamp, bool)>,
    gyro_refused: bool,
    predicted: usize,
    motions: usize,
    turns: usize,
}

impl MotionSensors {
    /// Sets where the camera is mounted on the base whose poses [`MotionSensors::add_odometry`] takes. Poses and tests so
    /// far are dropped.
    pub fn set_odometry_mount(&mut self, base_from_camera: Isometry3<f64>) {
        self.driven = Some(Driven {
            wheels: Wheels::new(base_from_camera),
            slip: SlipTest::default(),
            mount: MountTest::default(),
            refused: false,
        });
    }

    /// Sets how the gyro's axes are turned against the camera's. Rates and bias so far are dropped.
    pub fn set_gyro_mount(&mut self, camera_from_imu: UnitQuaternion<f64>, noise: GyroNoise) {
        self.gyro = Some(Gyroscope::new(camera_from_imu, noise));
        self.camera_from_imu = camera_from_imu;
        self.gravity = Gravity::default();
        self.gyro_refused = false;
    }

    /// See [`Wheels::add`]. Without a mount the pose is ignored.
    pub fn add_odometry(
        &mut self,
        stamp: Stamp,
        odom_from_base: &Isometry3<f64>,
    ) -> Result<(), OdometryError> {
        let driven = self.driven.as_mut();
        driven.map_or(Ok(()), |driven| driven.wheels.add(stamp, odom_from_base))
    }

    /// See [`Gyroscope::add`]. Without a mount the rate is ignored.
    pub fn add_gyro(&mut self, stamp: Stamp, rate: &Vector3<f64>) -> Result<(), GyroError> {
        self.gyro
            .as_mut()
            .map_or(Ok(()), |gyro| gyro.add(stamp, rate))
    }

    /// See [`Gravity::add`]. Without a mount of the gyro the reading is ignored.
    pub fn add_acceleration(&mut self, stamp: Stamp, reading: &Vector3<f64>) {
        if self.gyro.is_some() {
            self.gravity.add(stamp, reading);
        }
    }

    /// Up in the world by the accelerometer, once known.
    pub fn up(&self, poses: &KeyframePoses) -> Option<Up> {
        self.gravity
            .up(|id| Some(poses.find(&Anchor::at(id))?.rotation))
    }

    /// What the sensors have contributed.
    pub fn status(&self) -> MotionStatus {
        let driven = self.driven.as_ref();
        let gyro = self.gyro.as_ref();
        MotionStatus {
            predicted: self.predicted,
            motions: self.motions,
            turns: self.turns,
            outliers: driven.map_or(0, |d| d.slip.outliers()),
            slipping: driven.is_some_and(|d| d.slip.is_slipping()),
            jumps: driven.map_or(0, |d| d.wheels.jumps()),
            mount_refused: driven.is_some_and(|d| d.refused),
            gyro_refused: self.gyro_refused,
            gyro_bias: gyro.and_then(|g| g.bias()).map(|bias| bias.rate),
            gyro_offset: gyro.and_then(Gyroscope::offset),
        }
    }

    /// The camera's motion by wheels, unless these slip or their mount is wrong.
    fn by_wheels(&self, from: Stamp, to: Stamp) -> Option<CameraMotion> {
        let usable = |d: &&Driven| !d.refused && !d.slip.is_slipping();
        self.driven
            .as_ref()
            .filter(usable)?
            .wheels
            .between(from, to)
    }

    /// Forgets the map: it was reset, or another one was loaded.
    pub fn forget_map(&mut self) {
        (self.located, self.keyframe, self.newest) = (None, None, None);
        self.gravity.forget_map();
    }

    /// The frame with this stamp was located at `anchor`. `step` is its motion since the frame before, if both were
    /// tracked against one keyframe.
    pub fn locate(
        &mut self,
        stamp: Stamp,
        anchor: Anchor,
        step: Option<&Isometry3<f64>>,
        covariance: Option<Covariance6>,
    ) {
        if let (Some(gyro), Some(before), Some(step)) = (&mut self.gyro, &self.located, step) {
            gyro.saw_frames(before.stamp, stamp, &step.rotation);
        }
        let turn = anchor.keyframe_from_camera.rotation * self.camera_from_imu;
        self.gravity.saw_frame(stamp, anchor.keyframe, &turn);
        self.located = Some(Located {
            stamp,
            anchor,
            covariance: covariance.unwrap_or(Covariance6::zeros()),
        });
    }

    /// Re-expresses the newest frame relative to another keyframe, given that an earlier frame at `then` is at `there`
    /// relative to it.
    pub fn change_keyframe(&mut self, then: &Anchor, there: &Anchor) {
        if let Some(located) = self
            .located
            .as_mut()
            .filter(|l| l.anchor.keyframe == then.keyframe)
        {
            let since = then.keyframe_from_camera.inverse() * located.anchor.keyframe_from_camera;
            located.anchor = Anchor {
                keyframe: there.keyframe,
                keyframe_from_camera: there.keyframe_from_camera * since,
            };
        }
    }

    /// Where the frame with this stamp is expected relative to keyframe `active`, whose scale in the world is `scale`:
    /// the place of the newest frame moved as wheels and gyro say. The gyro's rotation is the better one; without wheels
    /// the camera's position stays. `None` without a sensor that covers the time in between.
    pub fn predict(&mut self, stamp: Stamp, active: u32, scale: f64) -> Option<Sim3> {
        let located = self.located.filter(|l| l.anchor.keyframe == active)?;
        let wheels = self.by_wheels(located.stamp, stamp);
        let gyro = self
            .gyro
            .as_ref()
            .and_then(|gyro| gyro.between(located.stamp, stamp));
        let by_wheels = wheels.map(|motion| motion.i_from_j);
        let rotation = gyro
            .map(|gyro| gyro.i_from_j)
            .or(by_wheels.map(|motion| motion.rotation))?;
        let shift = by_wheels.map_or(Vector3::zeros(), |motion| motion.translation.vector);
        self.predicted += 1;
        Some(moved(
            &located.anchor.keyframe_from_camera,
            &shift,
            rotation,
            scale,
        ))
    }

    /// Where a camera that is lost is at this time by odometry: its place, and how well that is known. `None` without
    /// odometry since the camera was located, or if that is too long ago or too far away.
    pub fn bridge(&self, stamp: Stamp, poses: &KeyframePoses) -> Option<(Anchor, Bridge)> {
        let located = self.located?;
        let motion = self.by_wheels(located.stamp, stamp)?;
        if motion.driven > BRIDGED.0 || motion.seconds > BRIDGED.1 {
            return None;
        }
        let start = poses.find(&located.anchor)?;
        let from = &located.anchor.keyframe_from_camera;
        let scale = start.scale / from.scale;
        let (shift, turn) = (motion.i_from_j.translation.vector, motion.i_from_j.rotation);
        let anchor = Anchor {
            keyframe: located.anchor.keyframe,
            keyframe_from_camera: moved(from, &shift, turn, scale),
        };
        let bridge = Bridge {
            covariance: bridged_covariance(&located.covariance, &start.rotation, &motion),
            driven: motion.driven,
            seconds: motion.seconds,
        };
        Some((anchor, bridge))
    }

    /// The frame with this stamp was processed, and `bridged` says whether wheels bridged it. Returns its motion by
    /// wheels since the frame before if they bridged either.
    pub fn note_frame(&mut self, stamp: Stamp, bridged: bool) -> Option<Isometry3<f64>> {
        let (before, by_wheels) = self.newest.replace((stamp, bridged))?;
        let motion = self
            .by_wheels(before, stamp)
            .filter(|_| bridged || by_wheels)?;
        Some(motion.i_from_j)
    }

    /// The camera's motion by wheels since the newest keyframe, with that keyframe's id.
    pub fn since_keyframe(&self, stamp: Stamp) -> Option<(u32, CameraMotion)> {
        let (keyframe, start) = self.keyframe?;
        Some((keyframe, self.by_wheels(start, stamp)?))
    }

    /// A frame at `anchor`, which tracking found, becomes the next keyframe: its motion by wheels and gyro since the
    /// newest one, with that one's id. Wheels count if they fit what the camera saw; the gyro alone measures the rotation.
    pub fn keyframe_motion(
        &mut self,
        stamp: Stamp,
        anchor: &Anchor,
        poses: &KeyframePoses,
    ) -> Option<(u32, CameraMotion)> {
        let (keyframe, start) = self.keyframe?;
        let (world_from_i, world_from_j) =
            (poses.find(&Anchor::at(keyframe))?, poses.find(anchor)?);
        let visual = visual_motion(&world_from_i, &world_from_j);
        if let Some(gyro) = &mut self.gyro
            && let Err(wrong) = gyro.saw_keyframes(start, stamp, &visual.rotation)
        {
            tracing::error!("{wrong}");
            (self.gyro, self.gyro_refused) = (None, true);
        }
        let gyro = self.gyro.as_ref();
        let turn = gyro.and_then(|gyro| gyro.between(start, stamp));
        // A gyro that is wrong, but not yet refused, or rates that were lost, must not bend the map.
        let turn = turn.filter(|turn| {
            let off = turn.i_from_j.angle_to(&visual.rotation);
            off < CAMERA_TURN + 3.0 * turn.sigma
        });
        let by_wheels = self.wheels_that_fit(start, stamp, &visual);
        let motion = match (by_wheels, turn) {
            (Some(motion), Some(turn)) => motion.with_turn(&turn.i_from_j, turn.sigma),
            (Some(motion), None) => motion,
            (None, turn) => {
                let turn = turn?;
                let seconds = start.seconds_to(stamp);
                CameraMotion::turn_alone(turn.i_from_j, turn.sigma, seconds)
            }
        };
        self.motions += usize::from(by_wheels.is_some());
        self.turns += usize::from(turn.is_some());
        Some((keyframe, motion))
    }

    /// The motion by wheels between two keyframes, if it fits what the camera saw.
    fn wheels_that_fit(
        &mut self,
        start: Stamp,
        stamp: Stamp,
        visual: &Isometry3<f64>,
    ) -> Option<CameraMotion> {
        let driven = self.driven.as_mut().filter(|driven| !driven.refused)?;
        let motion = driven.wheels.between(start, stamp)?;
        if let Err(wrong) = driven.mount.add(&motion, visual) {
            tracing::error!("{wrong}");
            driven.refused = true;
            return None;
        }
        let slipped = driven.slip.is_slipping();
        let verdict = driven.slip.judge(&motion, visual);
        if verdict == Verdict::Slips && !slipped {
            tracing::warn!(
                "wheel odometry does not fit what the camera sees for two keyframes ({} against {}, {:.1} degrees \
                 apart): the wheels slip or stand still, or the camera sways on the robot; their motions are not used \
                 until they fit again",
                Extent(&motion.i_from_j),
                Extent(visual),
                motion
                    .i_from_j
                    .rotation
                    .angle_to(&visual.rotation)
                    .to_degrees()
            );
        }
        (verdict == Verdict::Fits).then_some(motion)
    }

    /// The frame with this stamp became keyframe `id`.
    pub fn start_keyframe(&mut self, id: u32, stamp: Stamp) {
        self.keyframe = Some((id, stamp));
    }
}

/// A place moved by `shift`, in metres of the camera's frame, and `rotation`; `scale` is that of its keyframe.
fn moved(from: &Sim3, shift: &Vector3<f64>, rotation: UnitQuaternion<f64>, scale: f64) -> Sim3 {
    *from
        * Sim3 {
            translation: shift / (scale * from.scale),
            rotation,
            scale: 1.0,
        }
}

/// Covariance about the world's axes of a camera after `motion`, from that of the camera before, whose rotation to the
/// world is `start`: `δp = δp₀ − [R p]× δθ₀ + R δp_m` and `δθ = δθ₀ + R R_m δθ_m`.
fn bridged_covariance(
    before: &Covariance6,
    start: &UnitQuaternion<f64>,
    motion: &CameraMotion,
) -> Covariance6 {
    let matrix = |q: &UnitQuaternion<f64>| -> Matrix3<f64> { q.to_rotation_matrix().into_inner() };
    let lever = (start * motion.i_from_j.translation.vector).cross_matrix();
    let mut by_start = Covariance6::identity();
    by_start.fixed_view_mut::<3, 3>(0, 3).copy_from(&-lever);
    let mut by_motion = Covariance6::zeros();
    by_motion
        .fixed_view_mut::<3, 3>(0, 0)
        .copy_from(&matrix(start));
    let end = start * motion.i_from_j.rotation;
    by_motion
        .fixed_view_mut::<3, 3>(3, 3)
        .copy_from(&matrix(&end));
    let covariance = by_start * before * by_start.transpose()
        + by_motion * motion.covariance * by_motion.transpose();
    (covariance + covariance.transpose()) * 0.5
}

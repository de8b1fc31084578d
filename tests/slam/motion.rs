//! Wheel odometry and gyroscope beside the camera, in the room.

use mast3r_slam::config::Config;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::inference::Backend;
use mast3r_slam::map::{MapSnapshot, TrackingState};
use mast3r_slam::slam::{Frame, GyroNoise, Pace, ScaleSource, Slam, TrackedFrame};
use mast3r_slam::time::Stamp;
use nalgebra::{Isometry3, Matrix3, Rotation3, UnitQuaternion, Vector3};
use testkit::random::Random;
use testkit::room::walk::{ate, config, images, lost, stamp, vocabulary};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, path_length, square_walk};

/// A camera on a base whose x is ahead and whose z is up.
fn mount() -> Isometry3<f64> {
    let r = Matrix3::new(0.0, 0.0, 1.0, -1.0, 0.0, 0.0, 0.0, -1.0, 0.0);
    let rotation = UnitQuaternion::from_rotation_matrix(&Rotation3::from_matrix_unchecked(r));
    Isometry3::from_parts(Vector3::new(0.15, 0.02, 0.4).into(), rotation)
}

fn isometry(pose: &Sim3) -> Isometry3<f64> {
    Isometry3::from_parts(pose.translation.into(), pose.rotation)
}

/// Poses of the base as wheels measure them that are `1 + bias` too large, with 1 % and 1 degree of noise per metre.
fn odometry(cameras: &[Sim3], bias: f64, seed: u64) -> Vec<Isometry3<f64>> {
    let mut random = Random(2 * seed + 1);
    let bases: Vec<_> = cameras
        .iter()
        .map(|c| isometry(c) * mount().inverse())
        .collect();
    let mut at = Isometry3::translation(5.0, -3.0, 0.0);
    let steps = bases.windows(2).map(|pair| pair[0].inverse() * pair[1]);
    let later = steps.map(|mut step| {
        let length = step.translation.vector.norm();
        let noise = length.sqrt();
        step.translation.vector *= 1.0 + bias;
        step.translation.vector.x += 0.01 * noise * random.normal();
        step.translation.vector.y += 0.005 * noise * random.normal();
        let yaw = 0.017_453 * noise * random.normal();
        step.rotation *= UnitQuaternion::from_axis_angle(&Vector3::z_axis(), yaw);
        at *= step;
        at
    });
    let later: Vec<_> = later.collect();
    [Isometry3::translation(5.0, -3.0, 0.0)]
        .into_iter()
        .chain(later)
        .collect()
}

/// A system in the room.
fn system(poses: &[Sim3], spoil: Spoil, config: Config) -> (Slam, RoomBackend) {
    let mut room = RoomBackend::new(SIZE, poses.to_vec(), spoil);
    let places = vocabulary(&mut room);
    let backend = room.share();
    let camera = Some(intrinsics(SIZE));
    let slam = cpu_slam(config, Pace::EveryFrame, backend, Some(places), camera);
    (slam, room)
}

struct Run {
    frames: Vec<TrackedFrame>,
    map: MapSnapshot,
    slam: Slam,
}

/// Shows every frame of the walk that is not in `black`; `before` feeds sensors before frame `k`.
fn run(
    poses: &[Sim3],
    black: std::ops::Range<usize>,
    (spoil, config): (Spoil, Config),
    mut before: impl FnMut(&mut Slam, usize),
) -> Run {
    let (mut slam, room) = system(poses, spoil, config);
    let order = (0..poses.len()).map(|k| (!black.contains(&k)).then_some(k));
    let shown = images(&room, order);
    let frames = shown.iter().enumerate().map(|(k, image)| {
        before(&mut slam, k);
        let input = Frame {
            index: k,
            stamp: stamp(k),
            image: image.into(),
        };
        slam.process(&input).expect("frame")
    });
    let frames = frames.collect();
    slam.complete().expect("finish");
    let map = slam.snapshot();
    Run { frames, map, slam }
}

fn with_wheels(
    poses: &[Sim3],
    black: std::ops::Range<usize>,
    how: (Spoil, Config),
    wheels: &[Isometry3<f64>],
) -> Run {
    run(poses, black, how, |slam, k| {
        if k == 0 {
            slam.set_odometry_mount(mount());
        }
        slam.add_odometry(stamp(k), &wheels[k]).expect("a pose");
    })
}

const NOISY: Spoil = Spoil {
    noise: 0.01,
    outliers: 0.05,
    bias: 0.0,
};

/// Error of the position at frame `to` as seen from the camera at frame `from`, in metres.
fn error_since(from: (&Sim3, &Sim3), to: (&Sim3, &Sim3)) -> f64 {
    let relative = |a: &Sim3, b: &Sim3| a.rotation.inverse() * (b.translation - a.translation);
    (relative(from.0, to.0) - relative(from.1, to.1)).norm()
}

#[test]
fn wheels_bridge_twenty_black_frames_in_the_same_map() {
    // Slowly: the camera comes back to what it knows. Fast: it comes back to a place it has never seen.
    for (frames, laps, black) in [(160, 0.5, 60..80), (60, 0.6, 25..45)] {
        let poses = square_walk(frames, laps);
        let wheels = odometry(&poses, 0.0, 3);
        let mut config = config(false);
        config.reloc.max_tries = 3;
        let run = with_wheels(&poses, black.clone(), (NOISY, config), &wheels);
        let (before, gap) = (black.start - 1, &run.frames[black.clone()]);
        assert!(gap.iter().all(|f| f.state == TrackingState::Lost));
        // The pose goes on, and is known the worse the farther the robot drives.
        let bridges: Vec<_> = gap.iter().map(|f| f.bridge.expect("a bridge")).collect();
        assert!(bridges.is_sorted_by(|a, b| {
            a.driven < b.driven && a.covariance.trace() < b.covariance.trace()
        }));
        // Each step is that of the wheels.
        for (k, frame) in gap.iter().enumerate() {
            let [from, to] = [k, k + 1].map(|k| wheels[before + k] * mount());
            let off = frame.step.expect("a step").inverse() * (from.inverse() * to);
            assert!(off.translation.vector.norm() < 1e-9 && off.rotation.angle() < 1e-9);
        }
        let start = (&run.frames[before].world_from_camera, &poses[before]);
        let back = wheels[black.end] * mount();
        let lost_at = wheels[before] * mount();
        let by_wheels = |pose: &Isometry3<f64>| Sim3 {
            translation: pose.translation.vector,
            rotation: pose.rotation,
            scale: 1.0,
        };
        let of_odometry = error_since(
            (&by_wheels(&lost_at), &poses[before]),
            (&by_wheels(&back), &poses[black.end]),
        );
        for (k, frame) in gap.iter().enumerate() {
            let at = black.start + k;
            let error = error_since(start, (&frame.world_from_camera, &poses[at]));
            assert!(error <= of_odometry + 0.03, "frame {at}: {error} m");
        }
        let found = run.frames[black.end..]
            .iter()
            .position(|f| f.state != TrackingState::Lost);
        let found = black.end + found.expect("found again");
        let error = error_since(start, (&run.frames[found].world_from_camera, &poses[found]));
        assert!(
            error <= of_odometry + 0.03,
            "{error} m, odometry {of_odometry} m"
        );
        assert!(run.map.keyframes.iter().all(|k| k.submap == 0));
        assert!(
            run.frames[found + 1..]
                .iter()
                .all(|f| f.state != TrackingState::Lost)
        );
    }
}

#[test]
fn without_wheels_a_black_stretch_costs_a_submap_or_the_way() {
    let poses = square_walk(60, 0.6);
    let mut config = config(false);
    config.reloc.max_tries = 3;
    let run = run(&poses, 25..45, (NOISY, config), |_, _| {});
    assert!(run.frames.iter().all(|f| f.bridge.is_none()));
    assert!(run.map.keyframes.iter().any(|k| k.submap > 0), "a submap");
}

#[test]
fn sensors_without_messages_change_nothing() {
    let poses = square_walk(40, 0.4);
    let bits = |mounted: bool| {
        let run = run(&poses, 15..20, (NOISY, config(true)), |slam, k| {
            if mounted && k == 0 {
                slam.set_odometry_mount(mount());
                slam.set_gyro_mount(UnitQuaternion::identity(), GyroNoise::default());
            }
        });
        let poses = run
            .map
            .frames
            .iter()
            .flat_map(|f| f.world_from_camera.to_array());
        poses.map(f64::to_bits).collect::<Vec<u64>>()
    };
    assert_eq!(bits(true), bits(false));
}

#[test]
fn wheels_give_the_map_its_scale() {
    let poses = square_walk(120, 0.9);
    let length = path_length(&poses);
    let wheels = odometry(&poses, 0.02, 5);
    // Wheels of a robot in a room that is four fifths as large as the network says.
    let small: Vec<_> = wheels
        .iter()
        .map(|w| {
            let camera = w * mount();
            let at = camera.translation.vector * 0.8;
            Isometry3::from_parts(at.into(), camera.rotation) * mount().inverse()
        })
        .collect();
    let run = with_wheels(&poses, 0..0, (NOISY, config(false)), &small);
    assert_eq!(lost(&run.map), 0);
    let driven: f64 = run
        .map
        .frames
        .windows(2)
        .map(|w| (w[1].world_from_camera.translation - w[0].world_from_camera.translation).norm())
        .sum();
    let scale = driven / (0.8 * length);
    // The wheels' own bias, and a percent.
    assert!((scale - 1.02).abs() < 0.01, "{scale}");
    assert!(ate(&run.map, &poses) <= 1e-2 * length);
    let status = run.slam.motion_status();
    assert!(
        status.motions > 5 && status.outliers <= 1 && !status.mount_refused,
        "{status:?}"
    );
    assert!(status.predicted > 100, "{status:?}");
    let scale = run.slam.scale().expect("a scale");
    assert_eq!(scale.source, ScaleSource::Wheels);
    // What the map has taken over is left out of the ratio; the wheels' radius is known to 2 %.
    assert!((0.02..0.03).contains(&scale.sigma), "{scale:?}");
    assert!((scale.factor.ln()).abs() < 2.0 * scale.sigma, "{scale:?}");
}

#[test]
fn a_wrong_mount_is_refused_and_the_map_is_as_good_as_without() {
    let poses = square_walk(120, 0.9);
    let wheels = odometry(&poses, 0.02, 5);
    let turned = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), std::f64::consts::FRAC_PI_2);
    let run = run(&poses, 0..0, (NOISY, config(false)), |slam, k| {
        if k == 0 {
            let mut wrong = mount();
            wrong.rotation = turned * wrong.rotation;
            slam.set_odometry_mount(wrong);
        }
        slam.add_odometry(stamp(k), &wheels[k]).expect("a pose");
    });
    assert!(run.slam.motion_status().mount_refused);
    assert_eq!(run.slam.motion_status().motions, 0);
    assert_eq!(lost(&run.map), 0);
    let length = path_length(&poses);
    assert!(
        ate(&run.map, &poses) <= 1e-2 * length,
        "{}",
        ate(&run.map, &poses)
    );
}

/// Samples of the gyro between two frames.
const SAMPLES: usize = 8;

/// Poses of the finely sampled walk between two samples of the gyro.
const FINE: usize = 128;

/// Frames of a walk that hurries and lingers by the fraction `sway`, and the rates of a gyro with a bias, whose clock is
/// `offset` seconds ahead of the camera's.
fn walk_with_gyro(
    (frames, laps, sway): (usize, f64, f64),
    bias: Vector3<f64>,
    offset: f64,
) -> (Vec<Sim3>, Vec<(Stamp, Vector3<f64>)>) {
    let fine = square_walk(frames * SAMPLES * FINE, laps);
    let dense: Vec<Sim3> = (0..frames * SAMPLES)
        .map(|n| {
            // Six times slower and faster; never past the end.
            let phase = std::f64::consts::TAU * 6.0 * n as f64 / (frames * SAMPLES) as f64;
            let lead =
                sway * phase.sin() * (frames * SAMPLES) as f64 / (std::f64::consts::TAU * 6.0);
            let at = ((n as f64 + lead) * FINE as f64).round() as usize;
            fine[at.min(fine.len() - 1)]
        })
        .collect();
    let (from, to) = (stamp(0).nanos, stamp(1).nanos);
    let time = |n: usize| Stamp {
        nanos: from + (to - from) * n as i64 / SAMPLES as i64 + (offset * 1e9) as i64,
    };
    let dt = 2.0 * (to - from) as f64 * 1e-9 / SAMPLES as f64;
    let rates = dense.windows(3).enumerate().map(|(n, w)| {
        let turn = w[0].rotation.inverse() * w[2].rotation;
        (time(n + 1), turn.scaled_axis() / dt + bias)
    });
    let rates = rates.collect();
    (dense.into_iter().step_by(SAMPLES).collect(), rates)
}

fn with_gyro(
    poses: &[Sim3],
    rates: &[(Stamp, Vector3<f64>)],
    camera_from_imu: UnitQuaternion<f64>,
) -> Run {
    let mut rates = rates.iter().peekable();
    let back = camera_from_imu.inverse();
    run(poses, 0..0, (NOISY, config(false)), |slam, k| {
        if k == 0 {
            slam.set_gyro_mount(camera_from_imu, GyroNoise::default());
        }
        // The sensor is faster than the camera's driver.
        while let Some((at, rate)) = rates.next_if(|r| r.0.nanos <= stamp(k).nanos + 30_000_000) {
            slam.add_gyro(*at, &(back * rate)).expect("a rate");
        }
    })
}

#[test]
fn solves_of_a_fast_turn_need_fewer_iterations_with_a_gyro() {
    // 36 degrees from frame to frame.
    let (poses, rates) = walk_with_gyro((40, 4.0, 0.0), Vector3::zeros(), 0.0);
    let without = run(&poses, 0..0, (NOISY, config(false)), |_, _| {});
    let mount = UnitQuaternion::from_scaled_axis(Vector3::new(0.3, -1.2, 0.5));
    let with = with_gyro(&poses, &rates, mount);
    let iterations = |run: &Run| run.frames.iter().map(|f| f.iterations).sum::<u32>();
    assert_eq!((lost(&without.map), lost(&with.map)), (0, 0));
    assert!(with.slam.motion_status().predicted > 35);
    let (with, without) = (iterations(&with), iterations(&without));
    assert!(
        10 * with <= 9 * without,
        "{with} with, {without} without a gyro"
    );
}

#[test]
fn a_gyro_s_bias_and_clock_are_found_while_walking() {
    let bias = Vector3::new(0.01, -0.02, 0.015);
    let (poses, rates) = walk_with_gyro((120, 0.9, 0.6), bias, 0.008);
    let mount = UnitQuaternion::from_scaled_axis(Vector3::new(0.3, -1.2, 0.5));
    let run = with_gyro(&poses, &rates, mount);
    let status = run.slam.motion_status();
    let offset = status.gyro_offset.expect("an offset");
    assert!((offset - 0.008).abs() < 2e-3, "{offset}");
    let found = status.gyro_bias.expect("a bias");
    // About the sensor's axes.
    assert!((mount * found - bias).amax() < 5e-3, "{found}");
}

#[test]
fn a_gyro_that_is_mounted_otherwise_is_refused_and_the_map_is_as_good_as_without() {
    let (poses, rates) = walk_with_gyro((120, 0.9, 0.0), Vector3::zeros(), 0.0);
    let turned = UnitQuaternion::from_axis_angle(&Vector3::x_axis(), std::f64::consts::FRAC_PI_2);
    let mut rates = rates.into_iter().peekable();
    let run = run(&poses, 0..0, (NOISY, config(false)), |slam, k| {
        if k == 0 {
            slam.set_gyro_mount(turned, GyroNoise::default());
        }
        // Its axes are those of the camera.
        while let Some((at, rate)) = rates.next_if(|r| r.0.nanos <= stamp(k).nanos + 30_000_000) {
            slam.add_gyro(at, &rate).expect("a rate");
        }
    });
    let status = run.slam.motion_status();
    assert!(
        status.gyro_refused && status.gyro_bias.is_none(),
        "{status:?}"
    );
    assert_eq!(lost(&run.map), 0);
    let error = ate(&run.map, &poses);
    assert!(error <= 1e-2 * path_length(&poses), "{error}");
}

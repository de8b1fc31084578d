//! Offsets of depth that is rendered at another moment than the frame's.

use super::*;
use nalgebra::UnitQuaternion;

const SIZE: (usize, usize) = (128, 96);
const FRAME: f64 = 1.0 / 30.0;

fn camera() -> Intrinsics {
    Intrinsics {
        fx: 100.0,
        fy: 100.0,
        cx: 63.5,
        cy: 47.5,
    }
}

/// The camera in a room of 6 × 3 × 6 m, which it looks about in.
fn pose(t: f64) -> Isometry3<f64> {
    let yaw = 0.5 * (1.9 * t).sin() + 0.2 * (5.0 * t).sin();
    let pitch = 0.2 * (2.6 * t).cos();
    let place = Vector3::new(
        0.5 * (1.3 * t).sin(),
        0.1 * (3.1 * t).sin(),
        0.6 * (0.9 * t).cos(),
    );
    Isometry3::from_parts(
        place.into(),
        UnitQuaternion::from_euler_angles(pitch, yaw, 0.0),
    )
}

/// A constant velocity: a turn of 0.4 rad/s with 0.5 m/s ahead.
fn steady(t: f64) -> Isometry3<f64> {
    let twist = Vector6::new(0.0, 0.0, 0.5, 0.0, 0.4, 0.0) * t;
    let moved = exp(&twist);
    Isometry3::from_parts(moved.translation.into(), moved.rotation)
}

/// Depth of the room's walls along z.
fn depth(at: &Isometry3<f64>) -> Vec<f32> {
    let half = Vector3::new(3.0, 1.5, 3.0);
    let pixels = (0..SIZE.0 * SIZE.1).map(|n| {
        let ray = camera().ray((n % SIZE.0) as f64, (n / SIZE.0) as f64);
        let way = at.rotation * ray;
        let from = at.translation.vector;
        let walls = (0..3).map(|k| {
            let wall = f64::copysign(half[k], way[k]);
            (wall - from[k]) / way[k]
        });
        walls.fold(f64::INFINITY, f64::min) as f32
    });
    pixels.collect()
}

fn sim3(pose: &Isometry3<f64>) -> Sim3 {
    Sim3 {
        translation: pose.translation.vector,
        rotation: pose.rotation,
        scale: 0.8,
    }
}

/// A walk of `seconds`, with depth that was measured `offset` seconds after each third frame, and poses that err.
fn walk(
    path: impl Fn(f64) -> Isometry3<f64>,
    offset: f64,
    seconds: f64,
    error: impl Fn(f64) -> Isometry3<f64>,
) -> DepthTimer {
    let mut timer = DepthTimer::new(SIZE, camera());
    let seen = |t: f64| path(t) * error(t);
    for frame in 0..(seconds / FRAME) as usize {
        let t = frame as f64 * FRAME;
        match frame.is_multiple_of(3) {
            true => {
                timer.give(&depth(&path(t + offset)));
            }
            false => timer.give_none(),
        }
        let step = seen(t - FRAME).inverse() * seen(t);
        timer.tracked(Stamp::from_seconds(t), Some((&sim3(&seen(t)), &step)));
    }
    timer
}

fn exact(_: f64) -> Isometry3<f64> {
    Isometry3::identity()
}

/// What tracking gets wrong: some millimetres and tenths of a degree, which change within seconds.
fn drift(t: f64) -> Isometry3<f64> {
    let shift = Vector3::new((7.0 * t).sin(), (5.0 * t).cos(), (11.0 * t).sin()) * 4e-3;
    let turn = Vector3::new((6.0 * t).cos(), (9.0 * t).sin(), (4.0 * t).cos()) * 2e-3;
    Isometry3::new(shift, turn)
}

#[test]
fn an_offset_is_found_of_either_sign() {
    for offset in [-0.04, -0.02, 0.02, 0.04] {
        for error in [exact, drift] {
            let found = walk(pose, offset, 12.0, error).offset().expect("an offset");
            // Velocity is that of the middle of a step.
            assert!((found.seconds - offset).abs() < 4e-3, "{offset}: {found:?}");
            assert!(found.sigma < 8e-3, "{found:?}");
        }
    }
}

#[test]
fn depth_of_the_right_moment_has_none() {
    for error in [exact, drift] {
        let timer = walk(pose, 0.0, 12.0, error);
        assert_eq!(timer.offset(), None);
        // It is known, not only unseen.
        let found = timer.solve().expect("an estimate");
        assert!(
            found.sigma < MAX_SIGMA && found.seconds.abs() < CORRECTED[0],
            "{found:?}"
        );
    }
}

#[test]
fn a_constant_velocity_shows_no_offset() {
    for error in [exact, drift] {
        assert_eq!(walk(steady, 0.04, 4.0, error).offset(), None);
    }
}

#[test]
fn depth_is_moved_into_the_moment_of_its_frame() {
    let mut timer = walk(pose, -0.04, 12.0, exact);
    let offset = timer.offset().expect("an offset").seconds;
    let t = timer.last.expect("a frame").seconds() + FRAME;
    let (came, expected) = (depth(&pose(t - 0.04)), depth(&pose(t)));
    let off = |metres: &[f32]| {
        let both = metres.iter().zip(&expected).filter(|(z, _)| **z > 0.0);
        let mut logs: Vec<f32> = both.map(|(z, e)| (z / e).ln().abs()).collect();
        logs.sort_unstable_by(f32::total_cmp);
        (logs[logs.len() * 9 / 10], logs.len())
    };
    let (before, _) = off(&came);
    let moved = timer.give(&came).to_vec();
    let (after, pixels) = off(&moved);
    assert!(after < 0.35 * before, "{before} {after} at {offset}");
    assert!(pixels > SIZE.0 * SIZE.1 * 8 / 10, "{pixels}");
    // The nearest of several points at a pixel counts.
    timer.next.fill(2.0);
    timer.next[SIZE.0 * 40] = 1.0;
    timer.move_by(&exp(&Vector6::new(-0.01, 0.0, 0.0, 0.0, 0.0, 0.0)));
    assert_eq!(
        timer.moved.iter().filter(|z| **z == 1.0).count(),
        0,
        "outside"
    );
    timer.next[SIZE.0 * 40 + 64] = 1.0;
    timer.move_by(&exp(&Vector6::new(0.01, 0.0, 0.0, 0.0, 0.0, 0.0)));
    assert_eq!(timer.moved[SIZE.0 * 40 + 65], 1.0);
}

#[test]
fn what_shows_nothing_is_left_alone() {
    let mut timer = DepthTimer::new(SIZE, camera());
    let pixels = SIZE.0 * SIZE.1;
    let odd = [
        vec![f32::NAN; pixels],
        vec![f32::INFINITY; pixels],
        vec![0.0; pixels],
        vec![1.0; 3],
    ];
    for (n, metres) in (0_i32..).zip(odd.iter().cycle().take(40)) {
        let t = 0.3 * f64::from(n);
        assert_eq!(timer.give(metres).len(), metres.len());
        let step = pose(t - 0.3).inverse() * pose(t);
        timer.tracked(Stamp::from_seconds(t), Some((&sim3(&pose(t)), &step)));
    }
    assert_eq!(timer.pairs.len(), 0);
    // Frames that were not tracked, far apart, or of one moment, have no velocity.
    for (n, seconds) in [(0, 0.4), (1, 0.6), (2, 0.0)] {
        let mut timer = DepthTimer::new(SIZE, camera());
        for k in 0..20 {
            let t = seconds * f64::from(k);
            timer.give(&depth(&pose(t)));
            let step = pose(t - seconds).inverse() * pose(t);
            let seen = (sim3(&pose(t)), step);
            timer.tracked(
                Stamp::from_seconds(t),
                (n > 0).then_some((&seen.0, &seen.1)),
            );
        }
        assert_eq!(timer.pairs.len(), 0, "{seconds}");
        assert_eq!(timer.velocity, None);
    }
}

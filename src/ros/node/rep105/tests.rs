use super::*;
use std::f64::consts::FRAC_PI_2;

fn pose(x: f64, y: f64, z: f64, about_y: f64) -> Sim3 {
    Sim3 {
        translation: Vector3::new(x, y, z),
        rotation: UnitQuaternion::from_axis_angle(&Vector3::y_axis(), about_y),
        scale: 1.0,
    }
}

fn near(a: &Isometry3<f64>, b: &Isometry3<f64>) -> bool {
    let d = a.inverse() * b;
    d.translation.vector.norm() < 1e-9 && d.rotation.angle() < 1e-9
}

fn step(from: &Sim3, to: &Sim3) -> Isometry3<f64> {
    from.rigid().inverse() * to.rigid()
}

/// A camera 0.2 m in front of the base and 0.5 m above it, looking forward.
fn mount() -> Isometry3<f64> {
    Isometry3::translation(0.2, 0.0, 0.5) * body_from_optical()
}

#[test]
fn optical_axes_become_those_of_a_robot() {
    let t = body_from_optical();
    assert!((t * Vector3::z() - Vector3::x()).norm() < 1e-12, "forward");
    assert!((t * Vector3::x() + Vector3::y()).norm() < 1e-12, "right");
    assert!((t * Vector3::y() + Vector3::z()).norm() < 1e-12, "down");
}

#[test]
fn a_robot_that_drives_forward_does_so_in_the_map() {
    let mut frames = Rep105::new(mount());
    let first = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
    assert!(near(&first.map_from_base, &Isometry3::identity()));
    assert!(near(&first.map_from_odom, &Isometry3::identity()));
    // Two metres along the optical axis.
    let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 2.0, 0.0));
    let then = frames.tracked(&b, Some(&step(&a, &b)), None);
    assert!(near(
        &then.map_from_base,
        &Isometry3::translation(2.0, 0.0, 0.0)
    ));
    assert!(near(&then.odom_from_base, &then.map_from_base));
}

/// A square path with drift; then a loop closes, which corrects the camera and changes the
/// scale.
#[test]
fn a_loop_closure_with_a_change_of_scale_moves_map_to_odom_and_never_odom_to_base() {
    let mut frames = Rep105::new(mount());
    let mut camera = pose(0.0, 0.0, 0.0, 0.0);
    let mut last = frames.tracked(&camera, None, None);
    let turn = pose(0.0, 0.0, 0.1, FRAC_PI_2 / 10.0);
    for _ in 0..40 {
        let next = camera * turn;
        let now = frames.tracked(&next, Some(&step(&camera, &next)), None);
        assert!(near(&now.map_from_odom, &Isometry3::identity()));
        (camera, last) = (next, now);
    }
    // The world is optimised: everything is 10 % smaller and shifted. The camera stands still.
    let shift = Sim3 {
        translation: Vector3::new(0.3, -0.1, 0.2),
        rotation: UnitQuaternion::from_euler_angles(0.02, -0.1, 0.05),
        scale: 0.9,
    };
    let closed = shift * camera;
    let after = frames.tracked(&closed, Some(&Isometry3::identity()), None);
    assert!(
        near(&after.odom_from_base, &last.odom_from_base),
        "odom -> base jumped"
    );
    assert!(
        !near(&after.map_from_odom, &last.map_from_odom),
        "the correction is nowhere"
    );
    // The chain of transforms agrees with SLAM.
    let expected = *frames.map_from_world().unwrap() * closed.rigid() * mount().inverse();
    assert!(near(
        &(after.map_from_odom * after.odom_from_base),
        &expected
    ));
    assert!(near(&after.map_from_base, &expected));
    // From here on both move by the same metric step, and the correction is constant.
    let ahead = Isometry3::translation(0.0, 0.0, 0.05);
    let moved = Sim3 {
        translation: closed.translation + closed.rotation * ahead.translation.vector,
        ..closed
    };
    let next = frames.tracked(&moved, Some(&ahead), None);
    let gone = after.odom_from_base.inverse() * next.odom_from_base;
    assert!(
        near(&gone, &Isometry3::translation(0.05, 0.0, 0.0)),
        "{gone}"
    );
    assert!(near(&next.map_from_odom, &after.map_from_odom));
}

#[test]
fn found_again_elsewhere_the_odometry_stands_where_it_stood() {
    let mut frames = Rep105::new(mount());
    frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
    let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 1.0, 0.0));
    let before = frames.tracked(&b, Some(&step(&a, &b)), None);
    let again = frames.tracked(&pose(3.0, 0.0, 2.0, 1.0), None, None);
    assert!(near(&again.odom_from_base, &before.odom_from_base));
    let chain = again.map_from_odom * again.odom_from_base;
    assert!(near(&chain, &again.map_from_base));
    assert!(!near(&again.map_from_odom, &before.map_from_odom));
}

#[test]
fn an_odometry_from_elsewhere_is_kept_and_the_map_starts_where_it_stands() {
    let mut frames = Rep105::new(mount());
    let wheels = Isometry3::translation(5.0, 1.0, 0.0);
    let first = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, Some(&wheels));
    assert!(near(&first.map_from_odom, &Isometry3::identity()));
    assert!(near(&first.map_from_base, &wheels));
    // The wheels slip: they report 1 m, SLAM 0.8 m.
    let slipped = Isometry3::translation(6.0, 1.0, 0.0);
    let then = frames.tracked(&pose(0.0, 0.0, 0.8, 0.0), None, Some(&slipped));
    assert!(near(&then.odom_from_base, &slipped));
    assert!(near(
        &then.map_from_base,
        &Isometry3::translation(5.8, 1.0, 0.0)
    ));
    assert!(near(
        &then.map_from_odom,
        &Isometry3::translation(-0.2, 0.0, 0.0)
    ));
}

/// Roll, pitch and z are zero.
fn is_planar(t: &Isometry3<f64>) -> bool {
    let (roll, pitch, _) = t.rotation.euler_angles();
    roll.abs() < 1e-9 && pitch.abs() < 1e-9 && t.translation.z.abs() < 1e-9
}

#[test]
fn in_a_plane_a_tilting_world_neither_tilts_nor_lifts_the_robot() {
    // The world tilts and sinks while the robot drives 2 m ahead and turns: drift.
    let drifted = |x: f64, yaw: f64| Sim3 {
        translation: Vector3::new(0.01, 0.2, x),
        rotation: UnitQuaternion::from_euler_angles(0.04, 0.0, -0.03)
            * UnitQuaternion::from_axis_angle(&Vector3::y_axis(), -yaw),
        scale: 1.0,
    };
    let start = pose(0.0, 0.0, 0.0, 0.0);
    for wheels in [
        None,
        Some(Isometry3::new(
            Vector3::new(3.0, 1.0, 0.0),
            Vector3::z() * 0.7,
        )),
    ] {
        let mut frames = Rep105::new(mount());
        frames.set_freedom(Freedom::Plane);
        let first = frames.tracked(&start, None, wheels.as_ref());
        let mut before = start;
        for k in 1..=20 {
            let share = f64::from(k) / 20.0;
            let now = drifted(2.0 * share, 0.5 * share);
            let seen = frames.tracked(&now, Some(&step(&before, &now)), wheels.as_ref());
            before = now;
            assert!(is_planar(&seen.map_from_odom), "{}", seen.map_from_odom);
            assert!(is_planar(&seen.odom_from_base), "{}", seen.odom_from_base);
            let chain = seen.map_from_odom * seen.odom_from_base;
            assert!(near(&chain, &seen.map_from_base));
            // Where SLAM sees the robot, but for what leaves the plane.
            let free = frames.map_from_world().unwrap() * now.rigid() * mount().inverse();
            let gap = (free.translation.vector - seen.map_from_base.translation.vector).xy();
            assert!(gap.norm() < 1e-9, "{gap}");
            let yaw = (first.map_from_base.rotation.inverse() * seen.map_from_base.rotation)
                .euler_angles()
                .2;
            assert!((yaw - 0.5 * share).abs() < 0.05, "{yaw}");
        }
    }
}

#[test]
fn a_camera_alone_keeps_its_tilt_and_only_the_correction_is_planar() {
    let mut frames = Rep105::of_camera_alone();
    frames.set_freedom(Freedom::PlaneCorrection);
    let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, -0.3, 1.0, 0.0));
    frames.tracked(&a, None, None);
    let up = frames.tracked(&b, Some(&step(&a, &b)), None);
    assert!((up.odom_from_base.translation.z - 0.3).abs() < 1e-9);
    let closed = frames.tracked(&a, Some(&Isometry3::identity()), None);
    assert!(is_planar(&closed.map_from_odom));
    assert!((closed.map_from_odom.translation.x + 1.0).abs() < 1e-9);
}

#[test]
fn a_given_pose_moves_the_map_and_a_reset_only_the_map() {
    let mut frames = Rep105::new(mount());
    assert!(!frames.set_pose(&Isometry3::translation(1.0, 0.0, 0.0)));
    let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 1.0, 0.0));
    frames.tracked(&a, None, None);
    let before = frames.tracked(&b, Some(&step(&a, &b)), None);
    let given = Isometry3::translation(7.0, 2.0, 0.0);
    assert!(frames.set_pose(&given));
    let after = frames.tracked(&b, Some(&Isometry3::identity()), None);
    assert!(near(&after.map_from_base, &given));
    assert!(near(&after.odom_from_base, &before.odom_from_base));
    frames.new_map();
    let anew = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
    assert!(near(&anew.map_from_base, &Isometry3::identity()));
    assert!(near(&anew.odom_from_base, &before.odom_from_base));
}

#[test]
fn a_loaded_map_lies_where_it_lay_and_the_odometry_goes_on() {
    let mut frames = Rep105::new(mount());
    let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 1.0, 0.0));
    frames.tracked(&a, None, None);
    let before = frames.tracked(&b, Some(&step(&a, &b)), None);
    let placed = Isometry3::translation(4.0, -2.0, 0.0) * body_from_optical();
    frames.new_map();
    frames.load(Some(&placed), &a);
    assert!(
        !frames.set_pose(&Isometry3::identity()),
        "no pose is known in it yet"
    );
    assert!(near(frames.map_from_world().unwrap(), &placed));
    let found = pose(0.5, 0.0, 3.0, 0.4);
    let after = frames.tracked(&found, None, None);
    assert!(near(&after.odom_from_base, &before.odom_from_base));
    let expected = placed * found.rigid() * mount().inverse();
    assert!(near(&after.map_from_base, &expected));
    assert!(near(
        &(after.map_from_odom * after.odom_from_base),
        &expected
    ));
    assert!(frames.set_pose(&Isometry3::identity()));
    // A map that no node had placed: the robot was at the origin when its first keyframe was
    // made.
    let mut fresh = Rep105::new(mount());
    fresh.load(None, &found);
    let there = fresh.tracked(&found, None, None);
    assert!(near(&there.map_from_base, &Isometry3::identity()));
}

#[test]
fn with_the_camera_alone_the_map_still_has_z_up() {
    let mut frames = Rep105::of_camera_alone();
    let first = frames.tracked(&pose(0.0, 0.0, 0.0, 0.0), None, None);
    assert!(near(&first.map_from_base, &body_from_optical()));
    assert!(near(&first.map_from_odom, &Isometry3::identity()));
}

#[test]
fn wheels_move_the_odometry_and_the_correction_stays() {
    let step_ahead = Isometry3::translation(0.0, 0.0, 0.5);
    let seen = pose(0.0, 0.0, 1.5, 0.0);
    let mut frames = Rep105::new(mount());
    assert_eq!(frames.bridged(&seen, Some(&step_ahead), None), None);
    let (a, b) = (pose(0.0, 0.0, 0.0, 0.0), pose(0.0, 0.0, 1.0, 0.0));
    frames.tracked(&a, None, None);
    // A loop closes, so that the correction is not the identity.
    let closed = pose(0.3, 0.0, 1.0, 0.1);
    let before = frames.tracked(&closed, Some(&step(&a, &b)), None);
    let gap = frames.bridged(&seen, Some(&step_ahead), None).unwrap();
    let moved = before.odom_from_base.inverse() * gap.odom_from_base;
    assert!(near(&moved, &Isometry3::translation(0.5, 0.0, 0.0)));
    assert!(near(&gap.map_from_odom, &before.map_from_odom));
    let chain = gap.map_from_odom * gap.odom_from_base;
    assert!(near(&gap.map_from_base, &chain));
    // Without a step the odometry stands.
    let still = frames.bridged(&seen, None, None).unwrap();
    assert!(near(&still.odom_from_base, &gap.odom_from_base));
    // Another node's odometry counts as it is.
    let external = Isometry3::translation(9.0, 1.0, 0.0);
    let beside = frames.bridged(&seen, Some(&step_ahead), Some(&external));
    let beside = beside.unwrap();
    assert!(near(&beside.odom_from_base, &external));
    let expected = before.map_from_odom * external;
    assert!(near(&beside.map_from_base, &expected));
    // A new map has no pose to go on from.
    frames.new_map();
    assert_eq!(frames.bridged(&seen, None, None), None);
}

#[test]
fn a_map_that_begins_on_a_slope_is_level_if_up_was_measured() {
    // The robot stands on a ramp: its nose is up by 0.2 rad.
    let ramp = UnitQuaternion::from_axis_angle(&Vector3::y_axis(), -0.2);
    let camera = pose(0.3, -0.1, 2.0, 0.4);
    let world_from_base = camera.rigid() * mount().inverse();
    let up_in_base = ramp.inverse() * Vector3::z();
    let up = world_from_base.rotation * up_in_base;
    let mut frames = Rep105::new(mount());
    frames.set_up(Some(up));
    let first = frames.tracked(&camera, None, None);
    assert!(first.map_from_base.translation.vector.norm() < 1e-9);
    let found = first.map_from_base.rotation;
    assert!(found.angle_to(&ramp) < 1e-9, "{found}");
    let placed = *frames.map_from_world().expect("placed");
    assert!((placed * up - Vector3::z()).norm() < 1e-9);
    assert!(near(&first.map_from_odom, &Isometry3::identity()));
    // What is measured later moves nothing.
    frames.set_up(Some(Vector3::x()));
    frames.tracked(&camera, None, None);
    assert!(near(frames.map_from_world().expect("placed"), &placed));
    // Other odometry has its own up.
    let mut outside = Rep105::new(mount());
    outside.set_up(Some(up));
    let external = Isometry3::translation(4.0, 1.0, 0.0);
    let there = outside.tracked(&camera, None, Some(&external));
    assert!(near(&there.map_from_base, &external));
    // A camera alone that looks down at its start.
    let mut alone = Rep105::of_camera_alone();
    let down = pose(0.0, 0.0, 0.0, 0.0);
    let up = Vector3::new(0.0, -0.6, -0.8);
    alone.set_up(Some(up));
    let first = alone.tracked(&down, None, None);
    assert!((first.map_from_base * up - Vector3::z()).norm() < 1e-9);
}

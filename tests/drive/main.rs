//! A robot that drives by the node: the real node and the real system, with the bundled network on the CPU, in a
//! rendered flat. The robot's commands come from the node's poses, and the truth is known. Limits are what an engineer
//! would require, and no time of the machine is compared with anything.

#[path = "../ros/support/memory.rs"]
#[allow(dead_code, reason = "the tests of the node use the rest")]
mod memory;

mod chart;
mod errors;
mod mapping;
mod rig;
mod wander;

use errors::Errors;
use rig::{Fault, PERIOD, Rig, SECOND};
use testkit::flat::Leg::{self, To};
use testkit::flat::Place;

/// Distance in truth at which a goal counts as reached, in metres: Nav2's tolerance.
const GOAL: f64 = 0.25;
/// Maximum error of a position, in metres, at any image and root mean square.
const POSITION: [f64; 2] = [0.20, 0.05];
/// Maximum error of a heading at any image, in degrees.
const HEADING: f64 = 10.0;
/// Maximum time from an uncovered lens to a pose, in nanoseconds of the robot's clock.
const FOUND_WITHIN: i64 = SECOND;

/// Through a door, around the coffee table, and back.
const GOALS: &[&[Leg]] = &[
    &[To([1.9, 2.85])],
    &[To([2.7, 2.45]), To([2.7, 1.35])],
    &[To([0.9, 1.3])],
    &[To([0.87, 2.4]), To([1.8, 2.95]), To([1.9, 4.1])],
];

/// The poses agree with the truth.
fn check(errors: &Errors) {
    println!("{errors}");
    assert!(errors.max_position() <= POSITION[0], "{errors}");
    assert!(errors.rms_position() <= POSITION[1], "{errors}");
    assert!(errors.max_heading() <= HEADING, "{errors}");
}

/// The robot touched nothing, and the lens was uncovered at `uncovered`: the camera was found soon, in the same map.
fn check_way(rig: &mut Rig, uncovered: i64) {
    println!(
        "{:.1} m, {} images, at least {:.2} m from everything",
        rig.world.driven(),
        rig.images(),
        rig.world.nearest()
    );
    assert!(
        rig.world.nearest() > 0.0,
        "the robot touched something: {:.3} m",
        rig.world.nearest()
    );
    let found = rig
        .errors
        .first_since(uncovered)
        .expect("a pose after the covered lens");
    println!(
        "found {:.1} s after the covered lens",
        (found - uncovered) as f64 * 1e-9
    );
    assert!(
        found - uncovered <= FOUND_WITHIN,
        "found after {} ms",
        (found - uncovered) / 1_000_000
    );
    assert_eq!(rig.submaps(), [0], "the camera was found in another map");
    assert_eq!(rig.value("maps started"), 1);
}

#[test]
fn a_robot_reaches_its_goals_by_the_poses_of_the_node() {
    let mut rig = Rig::new("", Place::new(1.9, 4.3, -std::f64::consts::FRAC_PI_2), 3);
    // The lens is covered for a second.
    let covered = 11 * SECOND..12 * SECOND;
    rig.fail(covered.clone(), Fault::Covered);
    for (k, goal) in GOALS.iter().enumerate() {
        let Some(&To(end)) = goal.last() else {
            unreachable!("a goal is a point")
        };
        let arrived = rig.drive(goal, 0.5, 300);
        let off = rig
            .world
            .robot
            .place
            .distance(&Place::new(end[0], end[1], 0.0));
        println!("goal {k}: {off:.3} m off, at image {}", rig.images());
        assert!(arrived, "goal {k} was not reached: {}", rig.errors);
        assert!(off <= GOAL, "goal {k}: {off} m off; {}", rig.errors);
    }
    let grid = rig.grid();
    check_way(&mut rig, covered.end);
    check(&rig.errors);
    let verdict = chart::judge(&grid, &rig.errors, &rig.world.flat, rig.floor());
    println!("{verdict}");
    // Walls and furniture are there, and the floor that the camera saw.
    assert!(verdict.occupied >= 100, "{verdict}");
    assert!(50 * verdict.astray.len() <= verdict.occupied, "{verdict}");
    assert!(2 * verdict.covered >= verdict.floor, "{verdict}");
    assert!(verdict.inside.is_empty(), "{verdict}");
}

#[test]
fn a_robot_drives_on_by_its_wheels_while_its_lens_is_covered() {
    let mut rig = Rig::new("use_wheel_odometry:=true", Place::new(1.5, 4.4, 0.0), 5);
    let covered = 4 * SECOND..5 * SECOND + SECOND / 2;
    rig.fail(covered.clone(), Fault::Covered);
    let way = [To([3.3, 4.2]), To([4.8, 4.15]), To([5.6, 4.4])];
    let arrived = rig.drive(&way, 0.4, 300);
    let off = rig.world.robot.place.distance(&Place::new(5.6, 4.4, 0.0));
    println!("the goal: {off:.3} m off; {}", rig.errors);
    assert!(
        arrived && off <= GOAL,
        "{off} m off the goal; {}",
        rig.errors
    );
    // Each covered image has a pose, and the robot did not stop.
    let blind = (covered.end - covered.start) / PERIOD;
    let during = rig.errors.poses_in(covered.clone());
    assert_eq!(during as i64, blind, "poses while the lens was covered");
    let slowest = rig.slowest(covered.clone());
    println!("at least {slowest:.2} m/s while the lens was covered");
    assert!(slowest >= 0.2, "the robot slowed down to {slowest} m/s");
    assert!(rig.value("frames bridged by wheels") as i64 >= blind);
    // The wheels' poses go on until the camera is found.
    let lost = rig.value("frames not tracked") as i64;
    println!("{lost} images without a pose by the camera, {blind} of them covered");
    assert!(
        lost - blind <= FOUND_WITHIN / PERIOD,
        "{lost} images were lost"
    );
    check_way(&mut rig, covered.end);
    check(&rig.errors);
}

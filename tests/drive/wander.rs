//! A robot that is sent to places at random while its lens is covered, and images and depth stop, for some time.
//!
//! `MAST3R_DRIVE_GOALS` sends it to so many, `MAST3R_DRIVE_SEED` to others; `MAST3R_DRIVE_PARAMETERS` are parameters of
//! the node, such as `device:=cuda slam.network.backend:=native`.

use crate::chart;
use crate::rig::{Fault, Rig, SECOND};
use crate::{GOAL, check};
use std::f64::consts::TAU;
use testkit::flat::{Flat, Leg, Place, is_clear, way};
use testkit::random::Random;

const GOALS: u64 = 2;
const SEED: u64 = 7;
/// Distances of the robot's centre from everything at goals and on the way, in metres.
const CLEAR: [f64; 2] = [0.3, 0.4];
/// Images for a goal.
const MAX_IMAGES: usize = 1000;
/// The lowest distance of a goal from the one before, in metres.
const AWAY: f64 = 1.5;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a whole number"))
}

/// A way to another place, and a turn there.
fn errand(flat: &Flat, from: [f64; 2], random: &mut Random) -> (Vec<Leg>, [f64; 2]) {
    loop {
        let to = [8.0, 6.0].map(|side| side * random.uniform());
        let away = (to[0] - from[0]).hypot(to[1] - from[1]);
        if away < AWAY || !is_clear(flat, to, CLEAR[0]) {
            continue;
        }
        if let Some(mut legs) = way(flat, from, to, CLEAR[1]) {
            legs.push(Leg::Turn(TAU * (2.0 * random.uniform() - 1.0)));
            return (legs, to);
        }
    }
}

#[test]
fn a_robot_that_is_sent_to_places_at_random_arrives() {
    let parameters = std::env::var("MAST3R_DRIVE_PARAMETERS").unwrap_or_default();
    let seed = number("MAST3R_DRIVE_SEED", SEED);
    let mut random = Random(seed);
    let mut rig = Rig::new(&parameters, Place::new(1.9, 4.3, 0.0), seed);
    let mut missed = Vec::new();
    for k in 0..number("MAST3R_DRIVE_GOALS", GOALS) {
        let place = rig.world.robot.place;
        let (legs, to) = errand(&rig.world.flat, [place.x, place.y], &mut random);
        let now = rig.world.nanos() + SECOND;
        let lasts = |from: f64, to: f64, random: &mut Random| {
            let seconds = from + (to - from) * random.uniform();
            now..now + (seconds * SECOND as f64) as i64
        };
        match k % 4 {
            1 => rig.fail(lasts(0.5, 2.0, &mut random), Fault::Covered),
            2 => rig.fail(lasts(0.5, 2.0, &mut random), Fault::NoDepth),
            3 => rig.fail(lasts(0.5, 3.0, &mut random), Fault::NoImages),
            _ => {}
        }
        let arrived = rig.drive(&legs, 0.2 + 0.3 * random.uniform(), MAX_IMAGES);
        let off = rig
            .world
            .robot
            .place
            .distance(&Place::new(to[0], to[1], 0.0));
        println!(
            "goal {k} at {to:.2?}: {off:.3} m off; {:.0} s, {:.1} m, {} images, {} keyframes ({} removed), {} recoveries, at least \
             {:.2} m from everything",
            rig.world.nanos() as f64 * 1e-9,
            rig.world.driven(),
            rig.images(),
            rig.value("keyframes"),
            rig.value("removed keyframes"),
            rig.recoveries(),
            rig.world.nearest()
        );
        if !arrived || off > GOAL {
            missed.push((k, off));
        }
        if !arrived {
            break;
        }
    }
    let verdict = chart::judge(&rig.grid(), &rig.errors, &rig.world.flat, rig.floor());
    println!("{verdict}");
    assert!(missed.is_empty(), "{missed:?}; {}", rig.errors);
    assert!(rig.world.nearest() > 0.0, "{} m", rig.world.nearest());
    assert_eq!(rig.recoveries(), 0);
    assert_eq!(rig.submaps(), [0]);
    check(&rig.errors);
    assert!(verdict.inside.is_empty(), "{verdict}");
}

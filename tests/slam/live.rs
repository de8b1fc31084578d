//! What a live camera's owner needs of the system: the camera's own motion, a look at the map while it is made,
//! a fresh start.

use mast3r_slam::config::Threads;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::map::{MapSnapshot, TrackingState};
use mast3r_slam::slam::Pace;
use nalgebra::Isometry3;
use std::sync::mpsc::channel;
use std::time::Duration;
use testkit::room::rig::{Mood, Rig, TOLERANCE};
use testkit::room::square_walk;

fn rig(threads: Threads) -> (Rig, Vec<Sim3>) {
    let walk = square_walk(60, 0.6);
    let rig = Rig::new(walk.clone(), threads, Pace::EveryFrame, Mood::Works);
    (rig, walk)
}

#[test]
fn steps_add_up_to_the_camera_s_walk() {
    let (mut rig, walk) = rig(Threads::Single);
    let first = rig.show(Some(0)).expect("frame");
    assert!(first.step.is_none(), "a step before the second frame");
    let mut walked = Isometry3::identity();
    for k in 1..40 {
        let tracked = rig.show(Some(k)).expect("frame");
        assert_eq!(tracked.state, TrackingState::Tracking);
        walked *= tracked.step.expect("a step");
        let truth = walk[0].inverse() * walk[k];
        let off = (walked.translation.vector - truth.translation).norm();
        // Each keyframe brings its own half pixel.
        assert!(
            off < TOLERANCE * (1.0 + rig.keyframes() as f64),
            "frame {k}: {off} m"
        );
    }
    assert!(rig.keyframes() > 1, "one keyframe tests nothing");
    // Lost, and found again: no step over the gap.
    let black = rig.show(None).expect("black");
    assert_eq!(black.state, TrackingState::Lost);
    assert!(black.step.is_none());
}

#[test]
fn the_map_can_be_looked_at_while_it_is_made() {
    for threads in [Threads::Single, Threads::Pipelined] {
        let (mut rig, _) = rig(threads);
        for k in 0..40 {
            rig.show(Some(k)).expect("frame");
        }
        let (sender, looks) = channel::<MapSnapshot>();
        let reply = || {
            let sender = sender.clone();
            Box::new(move |map| sender.send(map).expect("the test listens"))
        };
        // Refused while too much waits for the mapping thread.
        let mut tries = 0..10_000;
        let mut ask = |asked: bool| {
            asked
                || tries
                    .next()
                    .map(|_| std::thread::sleep(Duration::from_millis(1)))
                    .is_none()
        };
        while !ask(rig.system.read_keyframes(vec![0, 99], reply())) {}
        while !ask(rig.system.read_map(reply())) {}
        let next = || {
            looks
                .recv_timeout(Duration::from_secs(100))
                .expect("a look")
        };
        let some = next();
        assert_eq!(some.keyframes.iter().map(|k| k.id).collect::<Vec<_>>(), [0]);
        assert!(some.frames.is_empty() && !some.keyframes[0].view().points.is_empty());
        let all = next();
        assert_eq!(all.frames.len(), 40, "{threads:?}");
        assert!(all.keyframes.len() > 1, "{threads:?}");
        let table = rig.system.poses().load_full();
        assert!(
            table.poses.len() >= all.keyframes.len() && table.stamps.len() == table.poses.len()
        );
        assert!(table.stamps.is_sorted());
        // And it goes on.
        assert_eq!(
            rig.show(Some(40)).expect("frame").state,
            TrackingState::Tracking
        );
    }
}

#[test]
fn after_a_reset_it_is_as_new() {
    for threads in [Threads::Single, Threads::Pipelined] {
        let (mut fresh, _) = rig(threads);
        let expected: Vec<_> = (20..35)
            .map(|k| fresh.show(Some(k)).expect("frame").state)
            .collect();
        let (mut rig, _) = rig(threads);
        for k in 0..30 {
            rig.show(Some(k)).expect("frame");
        }
        rig.show(None).expect("black");
        rig.system.reset().expect("a reset");
        assert!(rig.system.poses().load().poses.is_empty());
        let again: Vec<_> = (20..35)
            .map(|k| rig.show(Some(k)).expect("frame").state)
            .collect();
        assert_eq!(again, expected, "{threads:?}");
        rig.system.complete().expect("the map");
        let map = rig.system.snapshot();
        assert_eq!((map.frames.len(), map.keyframes[0].id), (15, 0));
        let first = map.frames[0].world_from_camera;
        assert!(
            first.translation.norm() < 1e-9,
            "the new map starts elsewhere: {first:?}"
        );
    }
}

#[test]
fn a_map_that_does_not_grow_gets_no_keyframes() {
    let (mut growing, _) = rig(Threads::Single);
    let becomes = |rig: &mut Rig, k| rig.show(Some(k)).expect("frame").keyframe.is_some();
    becomes(&mut growing, 0);
    let second = (1..40)
        .find(|k| becomes(&mut growing, *k))
        .expect("a second keyframe");
    let (mut rig, _) = rig(Threads::Single);
    becomes(&mut rig, 0);
    rig.system.set_growing(false);
    for k in 1..=second {
        assert!(!becomes(&mut rig, k), "frame {k}");
    }
    assert_eq!((growing.keyframes(), rig.keyframes()), (2, 1));
    // A view seen again becomes a keyframe as soon as possible.
    rig.system.set_growing(true);
    assert!(becomes(&mut rig, second));
}

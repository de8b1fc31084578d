//! Measured motions of a graph.

use super::super::depth_moment::{DepthMoment, MeasuredKeyframe, Passage, Velocity};
use super::*;
use crate::time::Stamp;
use nalgebra::{Isometry3, Matrix6, UnitQuaternion, Vector6};

fn motion(i: u32, j: u32, x: f64, variance: f64) -> MeasuredMotion {
    MeasuredMotion {
        i,
        j,
        ends: None,
        motion: CameraMotion {
            i_from_j: Isometry3::new(Vector3::new(x, 0.0, 0.0), Vector3::zeros()),
            covariance: Matrix6::identity() * variance,
            driven: x,
            seconds: 1.0,
        },
    }
}

#[test]
fn the_scale_is_the_ratio_of_the_ways() {
    let pose = |x: f64| Sim3 {
        translation: Vector3::new(x, 0.0, 0.0),
        ..Sim3::identity()
    };
    let mut motions = Motions::default();
    let (ids, poses) = ([1, 4, 5, 9], [0.0, 0.5, 1.0, 2.0].map(pose));
    assert_eq!(motions.scale(&ids, &poses), None);
    motions.add(motion(1, 4, 0.4, 0.01));
    assert_eq!(motions.scale(&ids, &poses), None, "too short a way");
    motions.add(motion(4, 5, 0.4, 0.01));
    motions.add(motion(5, 9, 0.8, 0.01));
    motions.add(motion(9, 12, 7.0, 0.01));
    let found = motions.scale(&ids, &poses).expect("a scale");
    assert!((found.factor - 0.8).abs() < 1e-12, "{found:?}");
    // Three lengths with a variance of 0.01 less the wheels' common part, over 1.6 m.
    let common = 0.02_f64.powi(2);
    let random = 0.03 - common * (0.16 + 0.16 + 0.64);
    let sigma = (common + random / 2.56).sqrt();
    assert!((found.sigma - sigma).abs() < 1e-12, "{found:?}");
    assert_eq!((found.source, found.keyframes), (ScaleSource::Wheels, 3));
    // Ways that contradict each other say less.
    motions.add(motion(5, 9, 1.6, 0.01));
    let apart = motions.scale(&ids, &poses).expect("a scale");
    assert!((apart.factor - 1.2).abs() < 1e-12, "{apart:?}");
    let scatter = 0.2_f64.powi(2) + 0.2_f64.powi(2) + 0.4_f64.powi(2);
    let sigma = (common + scatter / 5.76).sqrt();
    assert!((apart.sigma - sigma).abs() < 1e-12, "{apart:?}");
    // A place that stands still tells nothing.
    assert_eq!(motions.scale(&ids, &[0.0; 4].map(pose)), None);
}

/// Poses along x.
fn along(places: &[f64]) -> Vec<Sim3> {
    let pose = |x: &f64| Sim3 {
        translation: Vector3::new(*x, 0.0, 0.0),
        ..Sim3::identity()
    };
    places.iter().map(pose).collect()
}

#[test]
fn measured_motions_are_longer_than_a_map_that_is_too_short() {
    let place = |id: u32| Some(id as usize);
    let mut motions = Motions::default();
    for (j, x) in [(1, 0.4), (2, 0.9), (3, 1.3)] {
        motions.add(motion(0, j, x, 1e-4));
    }
    let short = along(&[0.0, 0.4 / 1.01, 0.9 / 1.01, 1.3 / 1.01]);
    assert_eq!(motions.excess(place, &short), None, "nothing was solved");
    motions.note_solved(|id| id == 1, 0.0);
    let one = motions.excess(place, &short).expect("one motion");
    assert!((one.value - 0.01).abs() < 1e-12, "{one:?}");
    // Three motions share the noise of keyframe 0, so that each says half.
    let information = (0.4 / 1.01_f64).powi(2) / 1e-4 / 2.0;
    assert!(
        (one.sigma - information.powf(-0.5).hypot(EACH)).abs() < 1e-12,
        "{one:?}"
    );
    // The map has become longer where it was solved again; the others were solved before.
    motions.note_solved(|id| id == 0, 0.0);
    let longer = along(&[0.0, 0.4 / 1.01, 0.9 / 1.01, 1.3 / 1.004]);
    motions.note_solved(|id| id == 3, 0.006);
    let all = motions.excess(place, &longer).expect("three motions");
    assert!((all.value - 0.01).abs() < 1e-12, "{all:?}");
    assert!(all.sigma < one.sigma, "{all:?}");
    // A motion that is measured again was not solved yet.
    motions.add(motion(0, 3, 9.0, 1e-4));
    let rest = motions.excess(place, &longer).expect("two motions");
    assert!((rest.value - 0.01).abs() < 1e-12, "{rest:?}");
    // Keyframes at one place say nothing.
    assert_eq!(motions.excess(place, &along(&[0.0; 4])), None);
}

#[test]
fn a_precise_motion_that_the_map_follows_counts_no_more_than_others() {
    let place = |id: u32| Some(id as usize);
    let mut motions = Motions::default();
    for (j, x, variance) in [(1, 0.5, 1e-8), (2, 0.5, 1e-6), (3, 0.5, 1e-6)] {
        motions.add(motion(j - 1, j, x, variance));
    }
    // The map is too short by 1 % but for the first motion.
    let (first, short) = (0.5, 0.5 / 1.01);
    let poses = along(&[0.0, first, first + short, first + 2.0 * short]);
    motions.note_solved(|_| true, 0.0);
    let found = motions.excess(place, &poses).expect("three motions");
    assert!((0.006..0.009).contains(&found.value), "{found:?}");
}

#[test]
fn a_motion_that_another_offset_has_changed_counts_once_it_is_solved_again() {
    let place = |id: u32| Some(id as usize);
    let keyframe = |id: u32, x: f64, speed: f64| {
        let (stamp, path_from_camera) = (
            Stamp::from_seconds(f64::from(id)),
            Isometry3::translation(x, 0.0, 0.0),
        );
        let before = Some(Velocity {
            twist: Vector6::x() * speed,
            seconds: 0.033,
        });
        let depth = DepthMoment {
            stamp,
            path_from_camera,
            passage: Passage {
                before,
                after: None,
            },
            shift: 0.0,
        };
        MeasuredKeyframe {
            id,
            stamp,
            path_from_camera,
            depth,
        }
    };
    let offset = |seconds: f64| DepthOffset {
        seconds,
        sigma: 0.01,
    };
    let ends = DepthEnds {
        i: keyframe(0, 0.0, 0.2),
        j: keyframe(1, 0.5, 0.6),
        between: motion(0, 1, 0.5, 1e-6).motion,
    };
    let mut motions = Motions::default();
    motions.set_offset(&offset(0.0));
    motions.add(MeasuredMotion::by_depth(ends, &offset(0.0)));
    let poses = along(&[0.0, 0.5]);
    motions.note_solved(|_| true, 0.0);
    assert!(motions.excess(place, &poses).is_some());
    motions.set_offset(&offset(0.0));
    assert!(
        motions.excess(place, &poses).is_some(),
        "it is the same motion"
    );
    motions.set_offset(&offset(-0.03));
    assert_eq!(motions.excess(place, &poses), None);
    motions.note_solved(|_| true, 0.0);
    let found = motions.excess(place, &poses).expect("it was solved");
    assert!(found.value.abs() > 0.01, "{found:?}");
}

#[test]
fn a_removed_keyframe_leaves_the_motion_past_it() {
    let mut motions = Motions::default();
    for (i, x) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
        motions.add(motion(i, i + 1, x, 0.5));
    }
    motions.add(motion(3, 3, 1.0, 1.0));
    motions.remove(2, None);
    let all = motions.priors(1.0, |id| Some(id as usize));
    let pairs: Vec<_> = all.iter().map(|p| (p.i, p.j)).collect();
    assert_eq!(pairs, [(0, 1), (1, 3)]);
    let index = |id: u32| (id > 0).then_some(id as usize - 1);
    let priors = motions.priors(3.0, index);
    assert_eq!(priors.len(), 1, "keyframe 0 is not in the window");
    assert_eq!(
        (priors[0].i, priors[0].j, priors[0].i_from_j.translation.x),
        (0, 2, 6.0)
    );
    // Variances along the way add up.
    assert!(
        (priors[0].information[(0, 0)] - 3.0).abs() < 1e-12,
        "{}",
        priors[0].information
    );
    motions.remove(3, None);
    motions.remove(0, None);
    assert!(motions.kept.is_empty());
}

#[test]
fn motions_from_a_removed_keyframe_start_elsewhere() {
    let start = |id: u32| -> Motions {
        let mut motions = Motions::default();
        motions.add(motion(0, id, 1.0, 0.5));
        for (j, x) in [(4, 2.0), (5, 3.0), (6, 4.0)] {
            motions.add(motion(3, j, x, 0.25));
        }
        motions
    };
    let pairs = |motions: &Motions| -> Vec<_> {
        let all = motions.priors(1.0, |id| Some(id as usize));
        let all = all.iter().map(|p| (p.i, p.j, p.i_from_j.translation.x));
        all.collect()
    };
    let mut with = start(3);
    with.remove(3, None);
    assert_eq!(pairs(&with), [(0, 4, 3.0), (0, 5, 4.0), (0, 6, 5.0)]);
    // Nothing leads to it: the map says where it is.
    let mut without = start(9);
    let by_map = motion(5, 3, -3.0, 0.01).motion;
    without.remove(3, Some((5, by_map)));
    assert_eq!(pairs(&without), [(0, 9, 1.0), (5, 4, -1.0), (5, 6, 1.0)]);
    without.remove(5, None);
    assert_eq!(pairs(&without), [(0, 9, 1.0)]);
}

/// Poses along x at these places, and motions of wheels between neighbours that are `factor(k)` as long as the map's.
fn driven(count: u32, factor: impl Fn(u32) -> f64) -> (Motions, Vec<Sim3>) {
    let places: Vec<f64> = (0..=count).map(|k| 0.3 * f64::from(k)).collect();
    let mut motions = Motions::default();
    for k in 0..count {
        motions.add(motion(k, k + 1, 0.3 * factor(k), 1e-5));
    }
    (motions, along(&places))
}

fn slipping(k: u32) -> f64 {
    match k {
        5..8 => 1.2,
        _ => 1.0,
    }
}

#[test]
fn motions_of_wheels_that_slipped_hardly_count() {
    let place = |id: u32| Some(id as usize);
    let (mut motions, poses) = driven(20, slipping);
    let ids: Vec<u32> = (0..=20).collect();
    let of_all = motions.scale(&ids, &poses).expect("a scale");
    assert!((of_all.factor - 1.03).abs() < 1e-9, "{of_all:?}");
    motions.judge(place, &poses);
    let fitting = motions.scale(&ids, &poses).expect("a scale");
    assert!((fitting.factor - 1.0).abs() < 1e-9, "{fitting:?}");
    assert_eq!(fitting.keyframes, 17);
    // The length of those is known no better than it is off; the rest of them counts as before.
    for prior in motions.priors(1.0, place) {
        // Lengths are compared with 5 cm more.
        let off = 0.3 * (0.41_f64 / 0.35).ln();
        let along = match prior.i {
            5..8 => 1.0 / (1e-5 + off * off),
            _ => 1e5,
        };
        let found = prior.information[(0, 0)];
        assert!((found / along - 1.0).abs() < 0.01, "{}: {found}", prior.i);
        assert!((prior.information[(1, 1)] / 1e5 - 1.0).abs() < 1e-9);
    }
    // The map turns out to be as long as the wheels said.
    let mut longer = poses;
    for (k, pose) in longer.iter_mut().enumerate() {
        pose.translation.x += 0.06 * k.clamp(5, 8) as f64;
    }
    motions.judge(place, &longer);
    let all = motions.priors(1.0, place);
    assert!(
        all.iter()
            .all(|p| (p.information[(0, 0)] / 1e5 - 1.0).abs() < 1e-9)
    );
}

#[test]
fn a_motion_past_a_removed_keyframe_is_doubted_with_its_parts() {
    let place = |id: u32| Some(id as usize);
    let (mut motions, poses) = driven(20, slipping);
    motions.judge(place, &poses);
    motions.remove(8, None);
    motions.remove(5, None);
    for prior in motions.priors(1.0, place) {
        let doubted = matches!(prior.i, 4 | 6 | 7);
        assert_eq!(prior.information[(0, 0)] < 1e3, doubted, "{}", prior.i);
    }
}

#[test]
fn lengths_that_were_not_measured_are_not_judged() {
    let place = |id: u32| Some(id as usize);
    let (mut motions, poses) = driven(20, |_| 1.0);
    let turn = UnitQuaternion::identity();
    for k in 0..20 {
        let alone = CameraMotion::turn_alone(turn, 0.01, 1.0);
        motions.add(MeasuredMotion {
            motion: alone,
            ..motion(k, k + 1, 0.0, 1.0)
        });
    }
    motions.judge(place, &poses);
    assert!(motions.kept.iter().all(|kept| kept.doubt.is_none()));
}

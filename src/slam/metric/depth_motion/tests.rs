//! Motions between keyframes in a room, by depth images that are rendered.

use super::super::depth_moment::{Passage, Velocity};
use super::super::depth_room::{FRAME, LIMITS, SIZE, camera, depth, drift, normal, pose, random};
use super::super::motions::Motions;
use super::*;
use crate::time::Stamp;
use nalgebra::Isometry3;

/// Frames from one keyframe to the next.
const EVERY: usize = 10;

type Path = fn(f64) -> Isometry3<f64>;

/// What tracking sees: the truth, a hundredth too short.
fn short(t: f64) -> Isometry3<f64> {
    let mut short = pose(t);
    short.translation.vector *= 0.99;
    short
}

/// The same with some millimetres of noise.
fn noisy(t: f64) -> Isometry3<f64> {
    short(t) * drift(t) * drift(3.0 * t + 1.0)
}

fn moment(path: Path, t: f64) -> DepthMoment {
    let step = pose(t - FRAME).inverse() * pose(t);
    DepthMoment {
        stamp: Stamp::from_seconds(t),
        path_from_camera: path(t),
        passage: Passage {
            before: Some(Velocity {
                twist: Sim3::from(&step).log().fixed_rows::<6>(0) / FRAME,
                seconds: FRAME,
            }),
            after: None,
        },
        shift: 0.0,
    }
}

fn offset(seconds: f64, sigma: f64) -> DepthOffset {
    DepthOffset { seconds, sigma }
}

fn here(path: Path, t: f64) -> Moment {
    Moment {
        stamp: Stamp::from_seconds(t),
        path_from_camera: Sim3::from(&path(t)),
        step: Sim3::identity(),
    }
}

/// The motions of a walk of 20 keyframes, of which those that `has` have depth, made `spoilt`.
fn walk(
    path: Path,
    has: impl Fn(usize) -> bool,
    offset_sigma: f64,
    spoil: impl Fn(usize, &mut f32),
) -> Vec<MeasuredMotion> {
    let mut motions = DepthMotions::new(SIZE, camera(), LIMITS);
    let mut found = Vec::new();
    for keyframe in (0..20).filter(|keyframe| has(*keyframe)) {
        let t = (keyframe * EVERY) as f64 * FRAME;
        let mut metres = depth(&pose(t));
        for (n, z) in metres.iter_mut().enumerate() {
            spoil(keyframe * SIZE.0 * SIZE.1 + n, z);
        }
        motions.start_keyframe(keyframe as u32, &here(path, t));
        found.extend(motions.note(&metres, moment(path, t), &offset(0.0, offset_sigma)));
    }
    found
}

fn truth(of: &MeasuredMotion) -> Isometry3<f64> {
    let at = |id: u32| pose(f64::from(id) * EVERY as f64 * FRAME);
    at(of.i).inverse() * at(of.j)
}

fn ends(motions: &[MeasuredMotion]) -> Vec<u32> {
    motions.iter().map(|of| of.j).collect()
}

/// Those that depth shows in every direction: where the camera sees one wall and the floor, the way along both is open.
fn determined(motions: &[MeasuredMotion]) -> Vec<MeasuredMotion> {
    let is_known = |of: &&MeasuredMotion| of.motion.covariance.diagonal().max() < 5e-3_f64.powi(2);
    motions.iter().filter(is_known).copied().collect()
}

/// Root mean square of the errors of position, in metres, and of rotation, of measured and of tracked motions.
fn errors(path: Path, motions: &[MeasuredMotion]) -> [(f64, f64); 2] {
    let (mut by_depth, mut by_tracking) = ((0.0, 0.0), (0.0, 0.0));
    for of in motions {
        let truth = truth(of);
        let at = |id: u32| path(f64::from(id) * EVERY as f64 * FRAME);
        let add = |sum: &mut (f64, f64), motion: &Isometry3<f64>| {
            let off = truth.inverse() * motion;
            sum.0 += off.translation.vector.norm_squared() / motions.len() as f64;
            sum.1 += off.rotation.angle().powi(2) / motions.len() as f64;
        };
        add(&mut by_depth, &of.motion.i_from_j);
        add(&mut by_tracking, &(at(of.i).inverse() * at(of.j)));
    }
    [by_depth, by_tracking].map(|(p, r)| (p.sqrt(), r.sqrt()))
}

fn as_it_is(_: usize, _: &mut f32) {}

#[test]
fn depth_at_every_frame_measures_every_motion() {
    let motions = walk(noisy, |_| true, 0.0, as_it_is);
    assert_eq!(ends(&motions), (1..20).collect::<Vec<_>>());
    // Many start at one keyframe.
    assert!(motions.iter().filter(|of| of.j > of.i + 1).count() >= 4);
    let known = determined(&motions);
    assert!(known.len() >= 5, "{}", known.len());
    let [(position, turn), (tracked, tracked_turn)] = errors(noisy, &known);
    assert!(
        tracked > 8e-3 && tracked_turn > 2e-3,
        "{tracked} {tracked_turn}"
    );
    assert!(position < 1e-3 && turn < 5e-4, "{position} {turn}");
    for of in &motions {
        let chi2 = of.motion.chi2(&truth(of), &Matrix6::zeros());
        assert!(chi2.is_some_and(|chi2| chi2 < 16.8), "{of:?}: {chi2:?}");
        let seconds = f64::from(of.j - of.i) * EVERY as f64 * FRAME;
        assert!((of.motion.seconds - seconds).abs() < 1e-6);
    }
}

#[test]
fn noise_is_in_the_covariance() {
    let exact = walk(noisy, |_| true, 0.0, as_it_is);
    for sigma in [0.01, 0.05, 0.1] {
        let spoilt = walk(
            noisy,
            |_| true,
            0.0,
            |n, z| *z *= (1.0 + sigma * normal(n)) as f32,
        );
        assert_eq!(spoilt.len(), exact.len(), "{sigma}");
        let (mut mean, mut outside) = (0.0, 0);
        for (of, without) in spoilt.iter().zip(&exact) {
            let chi2 = of.motion.chi2(&truth(of), &Matrix6::zeros());
            let chi2 = chi2.expect("a covariance");
            // 99 % of χ² with six degrees of freedom.
            outside += usize::from(chi2 > 16.8);
            mean += chi2 / spoilt.len() as f64;
            let information = |of: &MeasuredMotion| of.motion.information().map(|of| of.trace());
            let (with, without) = (information(of), information(without));
            assert!(
                with.zip(without)
                    .is_some_and(|(with, without)| with < 0.25 * without),
                "{with:?}"
            );
        }
        assert!(mean < 6.0 && outside <= 1, "{sigma}: {mean}, {outside}");
    }
}

#[test]
fn three_percent_of_the_pixels_are_nearly_as_good_as_all() {
    let few = walk(
        noisy,
        |_| true,
        0.0,
        |n, z| {
            if random(n) > 0.03 {
                *z = 0.0
            }
        },
    );
    assert_eq!(few.len(), 19);
    let known = determined(&few);
    assert!(known.len() >= 3, "{}", known.len());
    let [(position, turn), (tracked, _)] = errors(noisy, &known);
    assert!(
        position < 2e-3 && turn < 1e-3 && tracked > 8e-3,
        "{position} {turn} {tracked}"
    );
}

#[test]
fn keyframes_without_depth_are_passed_over() {
    let motions = walk(noisy, |keyframe| keyframe % 3 != 1, 0.0, as_it_is);
    assert_eq!(ends(&motions)[..5], [2, 3, 5, 6, 8]);
    assert!(motions.iter().all(|of| of.i % 3 != 1 && of.i < of.j));
    let known = determined(&motions);
    assert!(known.len() >= 4, "{}", known.len());
    let [(position, _), (tracked, _)] = errors(noisy, &known);
    assert!(position < 0.3 * tracked, "{position} {tracked}");
}

/// Depth at every tenth frame, and keyframes four frames before it: a sensor that is slower than the camera.
#[test]
fn depth_of_a_later_frame_stands_for_a_keyframe_without() {
    let mut motions = DepthMotions::new(SIZE, camera(), LIMITS);
    let mut found = Vec::new();
    let at = |frame: usize| frame as f64 * FRAME;
    for keyframe in 0..20 {
        let frame = keyframe * EVERY;
        motions.start_keyframe(keyframe as u32, &here(short, at(frame)));
        for frame in [frame + 4, frame + 5] {
            let depth = depth(&pose(at(frame)));
            found.extend(motions.note(&depth, moment(short, at(frame)), &offset(0.0, 0.0)));
        }
    }
    assert_eq!(ends(&found), (1..20).collect::<Vec<_>>());
    for of in &found {
        let chi2 = of.motion.chi2(&truth(of), &Matrix6::zeros());
        assert!(chi2.is_some_and(|chi2| chi2 < 16.8), "{of:?}: {chi2:?}");
        let trace = |of: &MeasuredMotion| of.motion.covariance.trace();
        let start = at(of.i as usize * EVERY);
        let lever = short(start).inverse() * short(start + 4.0 * FRAME);
        let least = (0.02 * lever.rotation.angle()).powi(2);
        assert!(trace(of) > least);
    }
    let [(position, _), (tracked, _)] = errors(short, &determined(&found));
    assert!(position < 0.5 * tracked, "{position} {tracked}");
}

/// The camera of a frame whose depth is late by 40 ms, which is corrected for, and that of the depth.
#[test]
fn a_known_offset_is_corrected() {
    let mut motions = DepthMotions::new(SIZE, camera(), LIMITS);
    let late = 0.04;
    let mut found = Vec::new();
    for keyframe in 0..20 {
        let t = (keyframe * EVERY) as f64 * FRAME;
        let metres = depth(&pose(t - late));
        motions.start_keyframe(keyframe as u32, &here(noisy, t));
        // It becomes known in the end.
        let known = match keyframe {
            0..4 => offset(0.0, 0.033),
            _ => offset(-late, 0.0),
        };
        found.extend(motions.note(&metres, moment(noisy, t), &known));
    }
    let found = found.split_off(3);
    let [(position, turn), (tracked, _)] = errors(noisy, &determined(&found));
    assert!(
        position < 0.5 * tracked && turn < 5e-3,
        "{position} {turn} {tracked}"
    );
}

/// Motions of a graph, measured while depth was taken to be in time, which was late.
#[test]
fn motions_are_measured_again_once_the_offset_is_known() {
    let late = 0.04;
    let mut motions = DepthMotions::new(SIZE, camera(), LIMITS);
    let mut graph = Motions::default();
    let mut before = Vec::new();
    for keyframe in 0..20 {
        let t = (keyframe * EVERY) as f64 * FRAME;
        motions.start_keyframe(keyframe as u32, &here(pose, t));
        let metres = depth(&pose(t - late));
        if let Some(motion) = motions.note(&metres, moment(pose, t), &offset(0.0, 0.033)) {
            before.push(motion);
            graph.add(motion);
        }
    }
    graph.set_offset(&offset(-late, 2e-3));
    let after: Vec<_> = graph.measured().copied().collect();
    assert_eq!(ends(&after), ends(&before));
    let [(wrong, wrong_turn), _] = errors(pose, &determined(&after));
    let known = determined(&after);
    let same = before.iter().filter(|of| ends(&known).contains(&of.j));
    let same: Vec<_> = same.copied().collect();
    let [(position, turn), _] = errors(pose, &same);
    assert!(known.len() >= 5, "{}", known.len());
    // The velocity is that of the step before, which is the middle of the time that depth is late.
    assert!(wrong < 2e-3 && wrong_turn < 2e-3, "{wrong} {wrong_turn}");
    assert!(
        position > 5.0 * wrong && turn > 5.0 * wrong_turn,
        "{position} {turn}"
    );
    for (after, before) in known.iter().zip(&same) {
        let trace = |of: &MeasuredMotion| of.motion.covariance.trace();
        assert!(trace(after) < trace(before));
    }
}

#[test]
fn an_unknown_offset_leaves_the_change_of_velocity_open() {
    let (known, unknown) = (
        walk(noisy, |_| true, 0.0, as_it_is),
        walk(noisy, |_| true, 0.033, as_it_is),
    );
    for (known, unknown) in known.iter().zip(&unknown) {
        let at = |id: u32| {
            let moment = moment(short, f64::from(id) * EVERY as f64 * FRAME);
            moment.passage.twist(1.0)
        };
        let motion = Sim3::from(&known.motion.i_from_j);
        let change = motion.adjoint().fixed_view::<6, 6>(0, 0) * at(known.j) - at(known.i);
        let more = (unknown.motion.covariance - known.motion.covariance).trace();
        // Rotations of the residual keep lengths, its lever adds to them.
        let turn = change.fixed_rows::<3>(3).norm_squared();
        assert!(more >= 0.99 * 0.033_f64.powi(2) * turn, "{more} {change}");
        assert_eq!(known.motion.i_from_j, unknown.motion.i_from_j);
    }
}

#[test]
fn a_wall_shows_its_distance_alone() {
    let mut motions = DepthMotions::new(SIZE, camera(), LIMITS);
    let wall = |z: f32| vec![z; SIZE.0 * SIZE.1];
    let at = |z: f64, seconds: f64| {
        let path = Isometry3::translation(0.0, 0.0, z);
        let stamp = Stamp::from_seconds(seconds);
        let moment = DepthMoment {
            stamp,
            path_from_camera: path,
            passage: Passage::default(),
            shift: 0.0,
        };
        let here = Moment {
            stamp,
            path_from_camera: Sim3::from(&path),
            step: Sim3::identity(),
        };
        (moment, here)
    };
    // The camera moves by 0.2 m; tracking says 0.19 m.
    let ((first, start), (second, end)) = (at(0.0, 0.0), at(0.19, 1.0));
    motions.start_keyframe(4, &start);
    assert_eq!(motions.note(&wall(3.0), first, &offset(0.0, 0.0)), None);
    motions.start_keyframe(5, &end);
    let found = motions.note(&wall(2.8), second, &offset(0.0, 0.0));
    let found = found.expect("a motion");
    let z = found.motion.i_from_j.translation.z;
    assert!((z - 0.2).abs() < 2e-4, "{z}");
    let sigma = |k: usize| found.motion.covariance[(k, k)].sqrt();
    assert!(sigma(2) < 1e-3, "{}", sigma(2));
    assert!(sigma(0) > 10.0 && sigma(1) > 10.0 && sigma(5) > 10.0);
    assert!(found.motion.information().is_some());
}

/// Windows that noise has tilted fit best where they are, in front of the same pixels.
#[test]
fn noise_does_not_hold_a_camera_that_moves_along_a_wall() {
    for (seed, sigma) in [(0, 0.02), (1, 0.05), (2, 0.1)] {
        let mut motions = DepthMotions::new(SIZE, camera(), LIMITS);
        let wall = |image: usize| -> Vec<f32> {
            let count = SIZE.0 * SIZE.1;
            let pixel = |n: usize| 2.0 * (1.0 + sigma * normal((2 * seed + image) * count + n));
            (0..count).map(|n| pixel(n) as f32).collect()
        };
        let mut found = None;
        for (id, x) in [(0, 0.0), (1, 0.03)] {
            let path_from_camera = Isometry3::translation(x, 0.0, 0.0);
            let stamp = Stamp::from_seconds(f64::from(id));
            let here = Moment {
                stamp,
                path_from_camera: Sim3::from(&path_from_camera),
                step: Sim3::identity(),
            };
            let moment = DepthMoment {
                stamp,
                path_from_camera,
                passage: Passage::default(),
                shift: 0.0,
            };
            motions.start_keyframe(id, &here);
            found = motions.note(&wall(id as usize), moment, &offset(0.0, 0.0));
        }
        let motion = found.expect("a motion").motion;
        let off = motion.i_from_j.translation.x - 0.03;
        assert!(off.abs() < 8e-3, "{sigma}: {off}");
        assert!(motion.covariance[(0, 0)].sqrt() > 0.03, "{sigma}");
    }
}

#[test]
fn what_does_not_fit_is_no_motion() {
    // Few pixels have no planes.
    let few = walk(
        noisy,
        |_| true,
        0.0,
        |n, z| {
            if n % 331 != 0 {
                *z = 0.0
            }
        },
    );
    assert!(few.is_empty(), "{}", few.len());
    let no_numbers = walk(noisy, |_| true, 0.0, |_, z| *z = f32::NAN);
    assert!(no_numbers.is_empty());
    // Depth of another place.
    let mut motions = DepthMotions::new(SIZE, camera(), LIMITS);
    let elsewhere = Isometry3::translation(0.0, 0.0, 0.25) * pose(0.0);
    let images = [pose(0.0), elsewhere, pose(0.2), pose(0.3)].map(|at| depth(&at));
    let motion = |id: u32, motions: &mut DepthMotions| {
        let t = 0.1 * f64::from(id);
        motions.start_keyframe(id, &here(short, t));
        motions.note(&images[id as usize], moment(short, t), &offset(0.0, 0.0))
    };
    assert_eq!(motion(0, &mut motions), None);
    assert_eq!(motion(1, &mut motions), None);
    // A camera that was lost in between.
    motions.forget();
    assert_eq!(motion(2, &mut motions), None);
    assert!(motion(3, &mut motions).is_some());
}

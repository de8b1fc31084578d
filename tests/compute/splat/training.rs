//! Seeding from pointmaps and training over views.

use super::common::state;
use mast3r_slam::compute::splat::CpuSplat;
use mast3r_slam::compute::splat::camera::{Camera, Pointmap, Rendering};
use mast3r_slam::compute::splat::device::{SeedRules, SplatDevice};
use mast3r_slam::compute::splat::layout::Field;
use mast3r_slam::compute::splat::pose::PoseCorrection;
use mast3r_slam::compute::splat::schedule::{Mode, Schedule};
use mast3r_slam::compute::splat::trainer::{Compared, LoadedView, Trainer};
use mast3r_slam::config::{SplatConfig, SplatStrategy};
use mast3r_slam::geometry::{Intrinsics, Sim3};
use nalgebra::{UnitQuaternion, Vector2, Vector3};

const WIDTH: usize = 64;
const HEIGHT: usize = 48;

fn intrinsics() -> Intrinsics {
    Intrinsics {
        fx: 60.0,
        fy: 60.0,
        cx: 31.5,
        cy: 23.5,
    }
}

/// A camera at `x` that looks at a painted wall at z = 2, and what it sees: the pose has a scale.
struct Shot {
    pose: Sim3,
    points: Vec<f32>,
    image: Vec<u8>,
    depth: Vec<f32>,
}

fn shot(x: f64, turn: f64) -> Shot {
    let eye = Vector3::new(x, 0.1 * x, 0.0);
    let mut pose = Sim3::look_at(eye, Vector3::new(x * turn, 0.0, 2.0), Vector3::y());
    pose.scale = 1.25;
    let (mut points, mut image, mut depth) = (Vec::new(), Vec::new(), Vec::new());
    for v in 0..HEIGHT {
        for u in 0..WIDTH {
            let ray = intrinsics().ray(u as f64, v as f64);
            let along = pose.rotation * ray;
            let z = (2.0 - eye.z) / along.z;
            let wall = eye + along * z;
            points.extend((ray * (z / pose.scale)).iter().map(|c| *c as f32));
            depth.push(z as f32);
            let wave =
                |f: f64, p: f64| (0.5 + 0.4 * (f * wall.x + p).sin() * (f * wall.y).cos()) * 255.0;
            image.extend([
                wave(5.0, 0.0) as u8,
                wave(8.0, 1.0) as u8,
                wave(3.0, 2.0) as u8,
            ]);
        }
    }
    Shot {
        pose,
        points,
        image,
        depth,
    }
}

impl Shot {
    fn camera(&self) -> Camera {
        Camera::new(intrinsics(), (WIDTH, HEIGHT), &self.pose)
    }

    fn pointmap<'a>(&'a self, confidence: &'a [f32], anchor: u32) -> Pointmap<'a> {
        Pointmap {
            camera: self.camera(),
            world_from_camera: self.pose,
            points: &self.points,
            confidence,
            image: &self.image,
            anchor,
        }
    }

    fn loaded(&self, id: u32) -> LoadedView {
        LoadedView {
            id,
            camera: self.camera(),
            image: self.image.clone(),
            depth: self.depth.clone(),
            correction: PoseCorrection::default(),
        }
    }
}

fn seed_rules(stride: u32) -> SeedRules {
    SeedRules {
        stride,
        min_confidence: 1.5,
        max_silhouette: 0.5,
        depth_margin: 0.05,
        logit: 0.0,
        spread: 0.7,
    }
}

#[test]
fn a_keyframe_becomes_rows_on_its_surface_once() {
    let shot = shot(0.3, 0.0);
    let mut confidence = vec![2.0; WIDTH * HEIGHT];
    confidence[0..WIDTH].fill(1.0);
    confidence[WIDTH] = f32::NAN;
    let mut map = CpuSplat::new(10_000, 1).expect("a map");
    let pointmap = shot.pointmap(&confidence, 42);
    let seeded = map.seed(&pointmap, &seed_rules(1)).expect("seeded");
    let expected = (WIDTH * (HEIGHT - 1) - 1) as u64;
    assert_eq!((seeded.wanted, seeded.added), (expected, expected));
    let rows = state(&mut map);
    for row in 0..rows.rows() {
        let p = &rows.parameters;
        assert!(
            (p.row(Field::Mean, 1, row)[2] - 2.0).abs() < 1e-4,
            "on the wall"
        );
        // The third axis is the wall's normal.
        let q = p.row(Field::Rotation, 1, row);
        let z = 1.0 - 2.0 * (q[1] * q[1] + q[2] * q[2]);
        assert!(z.abs() > 0.999, "{q:?}");
        let s = p.row(Field::Scale, 1, row);
        let across = (0.7 * 2.0 / 60.0_f32).ln();
        assert!((s[1] - across).abs() < 0.2 && s[0] >= s[1], "{s:?}");
        assert!((s[1] - s[2] - 5.0_f32.ln()).abs() < 1e-4);
    }
    assert!(rows.anchor.iter().all(|a| *a == 42));
    // Its colours are those of the image.
    let mut out = Rendering::default();
    map.render(&shot.camera(), &mut out).expect("an image");
    let middle = 3 * (HEIGHT / 2 * WIDTH + WIDTH / 2);
    for k in 0..3 {
        let color = out.color[middle + k] / out.silhouette[middle / 3];
        assert!((color - f32::from(shot.image[middle + k]) / 255.0).abs() < 0.05);
    }
    // What the map shows is not added again, but what is in front of it is.
    let again = map.seed(&pointmap, &seed_rules(1)).expect("seeded");
    assert!(again.wanted < 30, "{again:?}");
    let mut near = self::shot(0.3, 0.0);
    near.points.iter_mut().for_each(|v| *v *= 0.8);
    let added = map
        .seed(&near.pointmap(&confidence, 1), &seed_rules(4))
        .expect("seeded");
    assert!(added.added > 170, "{added:?}");
}

#[test]
fn pixels_that_do_not_fit_are_left_out_evenly() {
    let shot = shot(0.0, 0.0);
    let confidence = vec![2.0; WIDTH * HEIGHT];
    let mut map = CpuSplat::new(100, 0).expect("a map");
    let seeded = map
        .seed(&shot.pointmap(&confidence, 0), &seed_rules(1))
        .expect("seeded");
    assert_eq!(
        (seeded.wanted, seeded.added),
        ((WIDTH * HEIGHT) as u64, 100)
    );
    let rows = state(&mut map);
    let above = (0..100)
        .filter(|row| rows.parameters.row(Field::Mean, 0, *row)[1] < 0.0)
        .count();
    assert!((45..=55).contains(&above));
    map.verify().expect("canaries");
    let none = map
        .seed(&shot.pointmap(&confidence, 0), &seed_rules(1))
        .expect("seeded");
    assert_eq!(none.added, 0);
}

#[test]
fn points_that_are_not_finite_or_behind_the_camera_become_no_rows() {
    let mut shot = shot(0.0, 0.0);
    let confidence = vec![2.0; WIDTH * HEIGHT];
    for (pixel, value) in [
        (100, f32::NAN),
        (101, f32::INFINITY),
        (102, -1.0),
        (103, 0.0),
    ] {
        shot.points[3 * pixel + 2] = value;
    }
    let mut map = CpuSplat::new(10_000, 0).expect("a map");
    let seeded = map
        .seed(&shot.pointmap(&confidence, 0), &seed_rules(1))
        .expect("seeded");
    assert_eq!(seeded.added, (WIDTH * HEIGHT - 4) as u64);
    let rows = state(&mut map);
    assert!(
        Field::ALL
            .into_iter()
            .all(|f| rows.parameters.get(f).iter().all(|v| v.is_finite()))
    );
}

/// Nine views, the ninth of which is held out.
fn views() -> Vec<LoadedView> {
    (0..9)
        .map(|i| shot(f64::from(i) * 0.1 - 0.4, 0.5).loaded(i))
        .collect()
}

fn config(strategy: SplatStrategy) -> SplatConfig {
    SplatConfig {
        capacity: 2500,
        degree: 1,
        strategy,
        holdout: 9,
        refine_every: 10,
        refine_from: 10,
        reset_every: 0,
        ..SplatConfig::default()
    }
}

fn trainer(config: SplatConfig, iterations: u64) -> Trainer {
    let device = CpuSplat::new(config.capacity as u64, config.degree as u8).expect("a map");
    let schedule = Schedule::new(config, Mode::Offline { iterations });
    Trainer::new(Box::new(device), schedule)
}

fn seeded(config: SplatConfig, iterations: u64) -> Trainer {
    let mut trainer = trainer(config, iterations);
    let confidence = vec![2.0; WIDTH * HEIGHT];
    for (anchor, x) in [(0, -0.4), (4, 0.0), (8, 0.4)] {
        trainer
            .seed(&shot(x, 0.5).pointmap(&confidence, anchor))
            .expect("seeded");
    }
    trainer
}

#[test]
fn training_improves_a_view_that_was_held_out() {
    for strategy in [SplatStrategy::Adc, SplatStrategy::Mcmc] {
        let mut views = views();
        let mut trainer = seeded(config(strategy), 80);
        let before = trainer
            .evaluate(&mut views, Compared::HeldOut, 99)
            .expect("a quality");
        assert_eq!(before.views, 1);
        let (mut grew, mut last) = (0, 0);
        while trainer.step() < 80 {
            let report = trainer.train(&mut views).expect("a step").expect("a step");
            assert_ne!(report.view, 8, "the last view is held out");
            assert_eq!(report.step, last + 1);
            last = report.step;
            grew += u64::from(report.refined.is_some() || report.relocated.is_some());
        }
        let after = trainer
            .evaluate(&mut views, Compared::HeldOut, 99)
            .expect("a quality");
        assert!(grew > 0);
        assert!(
            after.psnr > before.psnr + 3.0 && after.ssim > before.ssim,
            "{before:?} {after:?}"
        );
        trainer.device().verify().expect("canaries");
    }
}

/// A camera that is 3 cm and half a degree from where it was.
fn displace(view: &mut LoadedView) {
    let moved = Sim3 {
        translation: Vector3::new(0.02, -0.02, 0.01),
        rotation: UnitQuaternion::from_euler_angles(0.006, -0.005, 0.004),
        scale: 1.0,
    };
    let correction = PoseCorrection {
        moved,
        ..PoseCorrection::default()
    };
    view.camera = correction.apply(&view.camera);
}

/// Mean distance between what two cameras see of the wall, pixels: before it, shifts and turns are much alike.
fn apart(a: &Camera, b: &Camera) -> f64 {
    let wall = (-4..=4).flat_map(|x| (-3..=3).map(move |y| (x, y)));
    let wall = wall.map(|(x, y)| Vector3::new(0.15 * f64::from(x), 0.15 * f64::from(y), 2.0));
    let see = |camera: &Camera, point: &Vector3<f64>| {
        let p = camera.rotation * point + camera.translation;
        Vector2::new(p.x / p.z, p.y / p.z) * camera.intrinsics.fx
    };
    let distances = wall.map(|point| (see(a, &point) - see(b, &point)).norm());
    distances.sum::<f64>() / 63.0
}

#[test]
fn a_held_out_view_is_aligned_with_the_map() {
    let mut views = views();
    let settings = SplatConfig {
        lr_pose: 1e-3,
        ..config(SplatStrategy::Adc)
    };
    let mut trainer = seeded(settings, 120);
    while trainer.step() < 120 {
        trainer.train(&mut views).expect("a step").expect("a step");
    }
    let best = trainer.evaluate(&mut views, Compared::HeldOut, 99);
    let right = views[8].camera;
    displace(&mut views[8]);
    let away = apart(&views[8].camera, &right);
    assert!(away > 0.6, "{away} pixels");
    let rows = state(trainer.device());
    trainer.align(&mut views, 100, 99).expect("aligned");
    let at_given = trainer.evaluate(&mut views, Compared::HeldOut, 99);
    let aligned = trainer.evaluate(&mut views, Compared::HeldOutCorrected, 99);
    let [best, at_given, aligned] = [best, at_given, aligned].map(|q| q.expect("a quality").psnr);
    assert!(
        aligned > best - 0.5 && aligned > at_given + 3.0,
        "{best} dB at the right pose, {at_given} dB displaced, {aligned} dB aligned"
    );
    let found = views[8].correction.apply(&views[8].camera);
    let left = apart(&found, &right);
    assert!(left < 0.5 * away, "{away} pixels before, {left} after");
    // The map and its statistics are as they were.
    assert_eq!(state(trainer.device()), rows);
}

#[test]
fn training_corrects_the_poses_of_its_views_but_not_of_the_first() {
    let mut quality = [0.0; 2];
    for (result, lr_pose) in quality.iter_mut().zip([0.0, 5e-3]) {
        let mut views = views();
        let right: Vec<Camera> = views.iter().map(|view| view.camera).collect();
        for index in [2, 5] {
            displace(&mut views[index]);
        }
        let settings = SplatConfig {
            lr_pose,
            pose_from: 30,
            ..config(SplatStrategy::Adc)
        };
        let mut trainer = seeded(settings, 300);
        while trainer.step() < 300 {
            trainer.train(&mut views).expect("a step").expect("a step");
        }
        *result = (trainer.evaluate(&mut views, Compared::Trained, 99))
            .expect("a quality")
            .psnr;
        assert_eq!(views[0].correction, PoseCorrection::default());
        let found = |i: usize| views[i].correction.apply(&views[i].camera);
        for index in [2, 5] {
            let (before, after) = (
                apart(&views[index].camera, &right[index]),
                apart(&found(index), &right[index]),
            );
            match lr_pose > 0.0 {
                true => assert!(
                    after < 0.6 * before,
                    "{before} pixels before, {after} after"
                ),
                false => assert_eq!(after, before),
            }
        }
    }
    let [without, with] = quality;
    assert!(with > without + 0.3, "{without} dB without, {with} dB with");
}

#[test]
fn a_resumed_training_gives_the_same_bits() {
    let mut views = views();
    let mut whole = seeded(config(SplatStrategy::Adc), 40);
    let mut first = seeded(config(SplatStrategy::Adc), 40);
    for _ in 0..17 {
        first.train(&mut views).expect("a step");
    }
    let mut second = trainer(config(SplatStrategy::Adc), 40);
    let device = second.device();
    first
        .save(&mut |block| device.append(block).map(drop))
        .expect("saved");
    second.resume(first.step());
    for _ in 0..40 {
        whole.train(&mut views).expect("a step");
    }
    for _ in 17..40 {
        second.train(&mut views).expect("a step");
    }
    assert_eq!(whole.step(), second.step());
    assert_eq!(state(whole.device()), state(second.device()));
}

#[test]
fn without_views_or_rows_nothing_is_trained() {
    let mut none: Vec<LoadedView> = Vec::new();
    let mut empty = trainer(config(SplatStrategy::Adc), 10);
    assert_eq!(empty.train(&mut views()).expect("no step"), None);
    let mut trainer = seeded(config(SplatStrategy::Adc), 10);
    assert_eq!(trainer.train(&mut none).expect("no step"), None);
    assert_eq!(trainer.step(), 0);
    let quality = trainer
        .evaluate(&mut none, Compared::All, 99)
        .expect("a quality");
    assert_eq!(quality.views, 0);
}

#[test]
fn live_training_sees_every_view_and_the_newest_most() {
    let config = SplatConfig {
        holdout: 0,
        ..config(SplatStrategy::Adc)
    };
    let device = CpuSplat::new(10, 1).expect("a map");
    let mut trainer = Trainer::new(Box::new(device), Schedule::new(config, Mode::Live));
    trainer
        .device()
        .append(&super::common::rows(1, 1, 1, super::common::SMOOTH))
        .expect("room");
    let mut small: Vec<LoadedView> = (0..30)
        .map(|id| LoadedView {
            id,
            camera: Camera::new(intrinsics(), (4, 4), &Sim3::identity()),
            image: vec![0; 48],
            depth: Vec::new(),
            correction: PoseCorrection::default(),
        })
        .collect();
    let mut counts = [0; 30];
    for _ in 0..900 {
        let report = trainer.train(&mut small).expect("a step").expect("a step");
        counts[report.view] += 1;
    }
    assert!(counts.iter().all(|n| *n > 0), "{counts:?}");
    let newest: usize = counts[22..].iter().sum();
    assert!((500..700).contains(&newest), "{counts:?}");
}

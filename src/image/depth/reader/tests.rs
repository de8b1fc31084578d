//! Expectations: planes and their closed-form depth, and the intrinsics of the preprocessor.

use super::super::camera::OwnCamera;
use super::*;
use crate::geometry::Calibration;
use crate::geometry::{Distortion, Intrinsics};
use crate::image::{PreprocessOptions, Preprocessor};
use nalgebra::{Isometry3, UnitQuaternion, Vector3};
use proptest::prelude::*;

const LIMITS: DepthLimits = DepthLimits {
    min: 0.2,
    max: 8.0,
    max_jump: 0.05,
};

fn camera(width: usize, height: usize, f: f64, distortion: Distortion) -> Calibration {
    Calibration {
        width,
        height,
        intrinsics: Intrinsics {
            fx: f,
            fy: f * 1.01,
            cx: width as f64 * 0.51,
            cy: height as f64 * 0.48,
        },
        distortion,
    }
}

const LENS: Distortion = Distortion::PlumbBob([0.05, -0.08, 0.001, 0.001, 0.0]);

fn preprocessor(calibration: &Calibration, size: usize) -> Preprocessor {
    let (width, height) = (calibration.width, calibration.height);
    Preprocessor::new(
        width,
        height,
        size,
        Some(calibration),
        PreprocessOptions::default(),
    )
    .expect("a preprocessor")
}

/// Depth images of `camera` at `size`, of the plane `normal · p = 1` in its frame.
fn plane(camera: &Calibration, size: (usize, usize), normal: &Vector3<f64>) -> DepthImage {
    let (sx, sy) = (
        camera.width as f64 / size.0 as f64,
        camera.height as f64 / size.1 as f64,
    );
    let depth = |k: usize| {
        let u = ((k % size.0) as f64 + 0.5) * sx - 0.5;
        let v = ((k / size.0) as f64 + 0.5) * sy - 0.5;
        let ray = camera.intrinsics.ray(u, v);
        let (x, y) = crate::image::undistort::undistort(&camera.distortion, ray.x, ray.y)
            .expect("a mild lens");
        (1.0 / normal.dot(&Vector3::new(x, y, 1.0))) as f32
    };
    DepthImage {
        width: size.0,
        height: size.1,
        metres: (0..size.0 * size.1).map(depth).collect(),
    }
}

/// The depth that the network's pixels must have, and what they have, where they have one.
fn compare(found: &[f32], preprocessor: &Preprocessor, normal: &Vector3<f64>) -> (usize, f64) {
    let k = preprocessor.intrinsics().expect("calibrated");
    let width = preprocessor.output_size().0;
    let mut measured = 0;
    let mut worst: f64 = 0.0;
    for (n, found) in found.iter().enumerate().filter(|(_, z)| **z > 0.0) {
        let ray = k.ray((n % width) as f64, (n / width) as f64);
        let expected = 1.0 / normal.dot(&ray);
        worst = worst.max((f64::from(*found) / expected - 1.0).abs());
        measured += 1;
    }
    (measured, worst)
}

#[test]
fn registered_depth_of_any_size_follows_the_colour_image() {
    let normal = Vector3::new(0.1, -0.15, 0.5);
    for distortion in [Distortion::None, LENS] {
        let colour = camera(320, 240, 260.0, distortion);
        let made = preprocessor(&colour, 128);
        let mut reader = DepthReader::new(made.view(), LIMITS);
        for size in [(320, 240), (640, 480), (160, 120)] {
            let image = plane(&colour, size, &normal);
            let depth = reader
                .read(&image, &DepthCamera::Registered)
                .expect("depth");
            let (measured, worst) = compare(depth.metres, &made, &normal);
            // Everything that is undistorted lies inside the raw image.
            assert_eq!((measured, measured), (128 * 96, depth.measured));
            // Half a pixel of the coarser image beside, on a slanted plane: |grad z| / z < 0.4 per focal length.
            let pixel = (320.0 / size.0 as f64).max(1.0) / 260.0;
            assert!(worst < 0.4 * pixel, "{size:?}: {worst}");
        }
    }
}

#[test]
fn depth_of_its_own_camera_is_moved_into_the_colour_image() {
    let rotation = UnitQuaternion::from_euler_angles(0.02, -0.03, 0.04);
    let colour_from_depth = Isometry3::from_parts(Vector3::new(-0.05, 0.01, 0.02).into(), rotation);
    let normal = Vector3::new(0.08, -0.1, 0.6);
    // n · (R q + t) = 1 for q in the depth camera.
    let moved =
        (rotation.inverse() * normal) / (1.0 - normal.dot(&colour_from_depth.translation.vector));
    // The depth camera sees more than the colour camera, coarser and finer than the network.
    for (width, height, f) in [(240, 180, 120.0), (640, 480, 320.0), (96, 72, 48.0)] {
        for distortion in [Distortion::None, LENS] {
            let colour = camera(320, 240, 260.0, distortion);
            let made = preprocessor(&colour, 128);
            let mut reader = DepthReader::new(made.view(), LIMITS);
            let calibration = camera(width, height, f, distortion);
            let image = plane(&calibration, (width, height), &moved);
            let own = DepthCamera::Own(OwnCamera {
                calibration,
                colour_from_depth,
                colour: None,
            });
            let depth = reader.read(&image, &own).expect("depth");
            let (measured, worst) = compare(depth.metres, &made, &normal);
            assert_eq!(measured, 128 * 96, "holes, from {width}×{height}");
            // A rectangle reaches half a pixel of the depth camera from its centre, and 5 % more.
            assert!(worst < 0.4 * 1.1 / f, "{width}×{height}: {worst}");
            // The same without the extrinsic is wrong.
            let own = DepthCamera::Own(OwnCamera {
                calibration,
                colour_from_depth: Isometry3::identity(),
                colour: None,
            });
            let depth = reader.read(&image, &own).expect("depth");
            let (_, worst) = compare(depth.metres, &made, &normal);
            assert!(worst > 0.02, "{worst}");
        }
    }
}

/// A wall at 2 m, and a board at 1 m before its left half: in the colour camera, 10 cm to the right of the depth camera,
/// the board hides more of the wall, and beside the board is a strip that the depth camera did not see.
#[test]
fn what_is_nearer_hides_what_is_behind() {
    let calibration = Calibration {
        intrinsics: Intrinsics {
            fx: 100.0,
            fy: 100.0,
            cx: 49.5,
            cy: 49.5,
        },
        ..camera(100, 100, 100.0, Distortion::None)
    };
    let view = NetworkView::same((100, 100)).or_lens(Some(calibration));
    let depth = |k: usize| if k % 100 < 50 { 1.0 } else { 2.0 };
    let image = DepthImage {
        width: 100,
        height: 100,
        metres: (0..10_000).map(depth).collect(),
    };
    let mut reader = DepthReader::new(view, LIMITS);
    let mut seen = |x: f64| {
        let own = DepthCamera::Own(OwnCamera {
            calibration,
            colour_from_depth: Isometry3::translation(x, 0.0, 0.0),
            colour: None,
        });
        let depth = reader.read(&image, &own).expect("depth").metres;
        depth[50 * 100..51 * 100].to_vec()
    };
    // The depth camera moves to the left of the colour camera: points move by f t / z, 10 and 5 pixels, to the left.
    let row = seen(-0.1);
    let expected = |u: usize| match u {
        // Columns 49 and 50 are the edge, and both are dropped.
        0..39 => 1.0,
        39..46 => 0.0,
        46..95 => 2.0,
        _ => 0.0,
    };
    assert!(
        row.iter().enumerate().all(|(u, z)| *z == expected(u)),
        "{row:?}"
    );
    // To the right, the board hides 5 columns of the wall.
    let row = seen(0.1);
    let expected = |u: usize| match u {
        0..10 => 0.0,
        10..59 => 1.0,
        59..100 => 2.0,
        _ => unreachable!("100 columns"),
    };
    assert!(
        row.iter().enumerate().all(|(u, z)| *z == expected(u)),
        "{row:?}"
    );
}

#[test]
fn limits_holes_and_edges_become_zero() {
    let view = NetworkView::same((6, 1));
    let mut reader = DepthReader::new(view, LIMITS);
    let mut read = |metres: [f32; 6]| {
        let image = DepthImage {
            width: 6,
            height: 1,
            metres: metres.to_vec(),
        };
        let depth = reader
            .read(&image, &DepthCamera::Registered)
            .expect("depth");
        (depth.metres.to_vec(), depth.measured)
    };
    // A jump of 5 % of the nearer one is allowed, one of 6 % is not; what is beside a hole is used.
    let (metres, measured) = read([1.0, 1.05, 0.0, 2.0, 2.12, 2.12]);
    assert_eq!(metres, [1.0, 1.05, 0.0, 0.0, 0.0, 2.12]);
    assert_eq!(measured, 3);
    let (metres, _) = read([0.19, 0.0, 0.2, 0.0, 8.0, 0.0]);
    assert_eq!(metres, [0.0, 0.0, 0.2, 0.0, 8.0, 0.0]);
    let (metres, measured) = read([f32::NAN, f32::INFINITY, 3.0, f32::NAN, -1.0, 0.0]);
    assert_eq!(metres, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(measured, 0, "what borders on infinity is an edge");
}

#[test]
fn a_noisy_sensor_has_edges_only_where_surfaces_end() {
    let (width, height) = (128, 96);
    let mut reader = DepthReader::new(NetworkView::same((width, height)), LIMITS);
    for sigma in [0.0, 0.01, 0.05, 0.1] {
        let mut state = 1_u32;
        let mut normal = || {
            // The sum of twelve uniform numbers.
            let mut uniform = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f64::from(state >> 8) / f64::from(1_u32 << 24)
            };
            (0..12).map(|_| uniform()).sum::<f64>() - 6.0
        };
        let surface = |u: usize| if u < width / 2 { 1.0 } else { 3.0 };
        let metres =
            (0..width * height).map(|k| (surface(k % width) * (1.0 + sigma * normal())) as f32);
        let image = DepthImage {
            width,
            height,
            metres: metres.collect(),
        };
        let depth = reader
            .read(&image, &DepthCamera::Registered)
            .expect("depth");
        let part = depth.measured as f64 / (width * height) as f64;
        assert!(part > 0.9, "{part} is used with {sigma}");
        let edge = |k: usize| (width / 2 - 1..=width / 2).contains(&(k % width));
        let kept = (0..width * height).filter(|&k| edge(k) && depth.metres[k] > 0.0);
        assert_eq!(kept.count(), 0, "{sigma}");
    }
}

#[test]
fn images_that_cannot_be_used_are_refused_with_the_reason() {
    let colour = camera(320, 240, 260.0, Distortion::None);
    let made = preprocessor(&colour, 128);
    let mut reader = DepthReader::new(made.view(), LIMITS);
    let constant = |width, height, value| DepthImage {
        width,
        height,
        metres: vec![value; width * height],
    };
    let own = |calibration, x| {
        DepthCamera::Own(OwnCamera {
            calibration,
            colour_from_depth: Isometry3::translation(x, 0.0, 0.0),
            colour: None,
        })
    };
    let small = camera(160, 120, 130.0, Distortion::None);
    let mut text = |image: &DepthImage, camera: &DepthCamera| {
        let refused = reader.read(image, camera);
        refused.expect_err("it cannot be used").to_string()
    };
    let registered = DepthCamera::Registered;
    let shape = text(&constant(320, 200, 1.0), &registered);
    assert!(
        shape.contains("320×200") && shape.contains("320×240"),
        "{shape}"
    );
    assert!(text(&constant(320, 240, 0.0), &registered).contains("no pixel"));
    assert!(text(&constant(320, 240, f32::NAN), &registered).contains("no pixel"));
    let unit = text(&constant(320, 240, 1500.0), &registered);
    assert!(
        unit.contains("1500 m") && unit.contains("is the unit right?"),
        "{unit}"
    );
    assert!(text(&constant(320, 240, 0.0015), &registered).contains("0.0015 m"));
    assert!(text(&constant(0, 0, 0.0), &registered).contains("0×0"));
    let mut short = constant(320, 240, 1.0);
    short.metres.pop();
    assert!(text(&short, &registered).contains("76799"));
    let size = text(&constant(320, 240, 1.0), &own(small, 0.0));
    assert!(
        size.contains("160×120") && size.contains("320×240"),
        "{size}"
    );
    let endless = Calibration {
        width: 1 << 30,
        height: 1 << 30,
        ..small
    };
    assert!(text(&constant(160, 120, 1.0), &own(endless, 0.0)).contains("1073741824"));
    let invalid = Calibration {
        intrinsics: Intrinsics {
            fx: 0.0,
            ..small.intrinsics
        },
        ..small
    };
    assert!(text(&constant(160, 120, 1.0), &own(invalid, 0.0)).contains("fx"));
    assert!(text(&constant(160, 120, 1.0), &own(small, f64::NAN)).contains("finite"));
    // Nothing is known of the colour camera.
    let mut blind = DepthReader::new(NetworkView::same((160, 120)), LIMITS);
    let refused = blind.read(&constant(160, 120, 1.0), &own(small, 0.0));
    assert_eq!(refused, Err(DepthError::NoCamera));
    // After all of this, the reader works.
    let good = constant(320, 240, 1.5);
    assert_eq!(
        reader.read(&good, &registered).map(|d| d.measured),
        Ok(128 * 96)
    );
    assert_eq!(
        reader
            .read(&constant(160, 120, 1.0), &own(small, 0.0))
            .map(|d| d.measured > 0),
        Ok(true)
    );
}

proptest! {
    /// Every pixel is 0 or a measurement of the image within the limits, whatever the image holds.
    #[test]
    fn nothing_is_invented(
        values in prop::collection::vec(prop_oneof![
            any::<f32>(), 0.1f32..9.0, Just(0.0), Just(1.0)
        ], 48),
        x in -0.5..0.5, angle in -3.2..3.2, own in any::<bool>(),
    ) {
        let image = DepthImage { width: 8, height: 6, metres: values };
        let calibration = camera(8, 6, 8.0, Distortion::None);
        let view = NetworkView::same((8, 6)).or_lens(Some(calibration));
        let mut reader = DepthReader::new(view, LIMITS);
        let rotation = UnitQuaternion::from_euler_angles(0.0, 0.0, angle);
        let place = Isometry3::from_parts(Vector3::new(x, 0.0, 0.0).into(), rotation);
        let camera = match own {
            false => DepthCamera::Registered,
            true => DepthCamera::Own(OwnCamera { calibration, colour_from_depth: place, colour: None }),
        };
        if let Ok(depth) = reader.read(&image, &camera) {
            // Rotation about the optical axis and a shift across it keep the depth.
            for z in depth.metres.iter().filter(|z| **z != 0.0) {
                let near = |other: &f32| (z / other - 1.0).abs() < 1e-5;
                prop_assert!((0.2..=8.0).contains(z) && image.metres.iter().any(near), "{z}");
            }
        }
    }
}

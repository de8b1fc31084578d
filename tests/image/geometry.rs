//! That the intrinsics of a network image say where its pixels look: a pattern on the plane z = 1 is
//! rendered through a lens, preprocessed, and compared with the pattern along the new pinhole's rays.

use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::image::undistort::{distort, optimal_camera, undistort};
use mast3r_slam::image::{ImageError, PreprocessOptions, Preprocessor, RgbImage};
use proptest::prelude::*;

/// Waves per unit; some 60 pixels each in the cameras below.
const RATE: f64 = 45.0;

fn pattern(x: f64, y: f64) -> f64 {
    127.5 + 50.0 * (RATE * x).sin() + 50.0 * (RATE * y).sin()
}

/// The exact inverse of a mild lens: the error shrinks at least by half each time.
fn invert(distortion: &Distortion, xd: f64, yd: f64) -> (f64, f64) {
    let (mut x, mut y) = (xd, yd);
    for _ in 0..25 {
        let (u, v) = distort(distortion, x, y);
        x += xd - u;
        y += yd - v;
    }
    (x, y)
}

fn render(camera: &Calibration) -> RgbImage {
    let mut image = RgbImage::new(camera.width, camera.height);
    for (i, px) in image.data.chunks_exact_mut(3).enumerate() {
        let (u, v) = (i % camera.width, i / camera.width);
        let ray = camera.intrinsics.ray(u as f64, v as f64);
        let (x, y) = invert(&camera.distortion, ray.x, ray.y);
        px.fill(pattern(x, y).round() as u8);
    }
    image
}

/// By how many pixels (across, down) the image lies beside where `k` says, in the least-squares sense.
fn offset(image: &RgbImage, k: &Intrinsics) -> (f64, f64) {
    let mut sums = [0.0f64; 4];
    for (i, px) in image.data.chunks_exact(3).enumerate() {
        let ray = k.ray((i % image.width) as f64, (i / image.width) as f64);
        let residual = f64::from(px[0]) - pattern(ray.x, ray.y);
        let gu = 50.0 * RATE * (RATE * ray.x).cos() / k.fx;
        let gv = 50.0 * RATE * (RATE * ray.y).cos() / k.fy;
        sums[0] -= residual * gu;
        sums[1] += gu * gu;
        sums[2] -= residual * gv;
        sums[3] += gv * gv;
    }
    (sums[0] / sums[1], sums[2] / sums[3])
}

fn camera(width: usize, height: usize, distortion: Distortion) -> Calibration {
    Calibration {
        width,
        height,
        intrinsics: Intrinsics {
            fx: 0.61 * width as f64,
            fy: 0.612 * width as f64,
            cx: 0.488 * width as f64,
            cy: 0.517 * height as f64,
        },
        distortion,
    }
}

#[test]
fn intrinsics_match_the_pixels_and_the_reference_s_are_off_by_what_they_lack() {
    let mild = Distortion::PlumbBob([-0.2834, 0.0739, 0.00019, 1.7e-5, 0.0]);
    let rational = Distortion::Rational([0.3, 0.05, 1e-4, -2e-4, 0.002, 0.5, 0.1, 0.01]);
    let fisheye = Distortion::Equidistant([-0.013, 0.021, -0.016, 0.004]);
    for (width, height, lens) in [
        (640, 480, Distortion::None),
        (752, 480, mild),
        (739, 458, rational),
        (640, 480, fisheye),
        (480, 640, Distortion::None),
    ] {
        let camera = camera(width, height, lens);
        let raw = render(&camera);
        for center_principal_point in [false, true] {
            for parity_intrinsics in [false, true] {
                let options = PreprocessOptions {
                    center_principal_point,
                    parity_intrinsics,
                    ..PreprocessOptions::default()
                };
                let what = format!("{camera:?} {options:?}");
                let mut p = Preprocessor::new(width, height, 512, Some(&camera), options).unwrap();
                let mut image = RgbImage::default();
                p.run(&raw, &mut image).unwrap();
                let (across, down) = offset(&image, &p.intrinsics().unwrap());
                // cx·s instead of (cx + ½)·s − ½, and half a row more when an odd number is cut.
                let scale = 512.0 / width.max(height) as f64;
                let half = 0.5 * (1.0 - scale);
                let odd = [752, 739].contains(&width);
                let expected = match (parity_intrinsics, odd) {
                    (false, _) => (0.0, 0.0),
                    (true, false) => (-half, -half),
                    (true, true) => (-half, -half + 0.5),
                };
                // Rounding to 8 bits twice is 0.4 grey levels a pixel; 1.5e5 pixels with slopes of
                // some 3 levels leave 0.4/3/400 = 3e-4 pixels of noise. Rounding the rows to a whole
                // number changes `scale` by at most 1e-3 of half a pixel.
                let near = (across - expected.0).abs() < 3e-3 && (down - expected.1).abs() < 3e-3;
                assert!(near, "{what}: {across} {down}, expected {expected:?}");
            }
        }
    }
}

#[test]
fn no_pixel_of_the_optimal_camera_lies_outside_the_raw_image() {
    let lens = Distortion::PlumbBob([-0.2834, 0.0739, 0.00019, 1.7e-5, 0.0]);
    let camera = camera(320, 200, lens);
    for centre in [false, true] {
        let options = PreprocessOptions {
            center_principal_point: centre,
            ..PreprocessOptions::default()
        };
        let mut p = Preprocessor::new(320, 200, 320, Some(&camera), options).unwrap();
        let mut white = RgbImage::new(320, 200);
        white.data.fill(255);
        let mut out = RgbImage::default();
        p.run(&white, &mut out).unwrap();
        assert!(out.data.iter().all(|&v| v == 255));
    }
}

#[test]
fn what_lies_outside_the_raw_image_is_black() {
    use mast3r_slam::image::undistort::Undistorter;
    let camera = camera(64, 48, Distortion::None);
    // Half the focal length: the raw image fills the middle quarter.
    let wide = Intrinsics {
        fx: camera.intrinsics.fx / 2.0,
        fy: camera.intrinsics.fy / 2.0,
        cx: 31.5,
        cy: 23.5,
    };
    let mut white = RgbImage::new(64, 48);
    white.data.fill(255);
    let mut out = RgbImage::default();
    Undistorter::to_camera(&camera, wide)
        .unwrap()
        .run(&white, &mut out)
        .unwrap();
    assert_eq!(out.data[..3], [0, 0, 0]);
    let middle = (24 * 64 + 32) * 3;
    assert_eq!(out.data[middle..middle + 3], [255, 255, 255]);
}

#[test]
fn lenses_that_are_no_pinhole_are_refused() {
    // A fisheye that sees more than a half-space across: 320 pixels at 80 a radian are ±2 radians.
    let mut wide = camera(320, 240, Distortion::Equidistant([0.0; 4]));
    wide.intrinsics.fx = 80.0;
    wide.intrinsics.fy = 80.0;
    // A lens folded over so often that the borders change places.
    let absurd = camera(
        320,
        240,
        Distortion::PlumbBob([50.0, -9000.0, 3.0, -7.0, 1e6]),
    );
    // A principal point outside the image cannot be centred.
    let mut aside = camera(320, 240, Distortion::None);
    aside.intrinsics.cx = -10.0;
    let mut nan = camera(320, 240, Distortion::PlumbBob([0.0; 5]));
    nan.distortion = Distortion::PlumbBob([f64::NAN, 0.0, 0.0, 0.0, 0.0]);
    for (camera, part) in [
        (wide, "85°"),
        (absurd, "cannot undistort"),
        (aside, "principal point"),
        (nan, "NaN"),
    ] {
        let options = PreprocessOptions::default();
        let error: ImageError =
            Preprocessor::new(320, 240, 256, Some(&camera), options).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(part), "{camera:?}: {text}");
    }
}

proptest! {
    #[test]
    fn a_fisheye_can_be_undone(
        k1 in -0.03f64..0.03, k2 in -0.02f64..0.02, x in -2.0f64..2.0, y in -2.0f64..2.0
    ) {
        // Up to 70.5° off the axis, where these polynomials still grow.
        let lens = Distortion::Equidistant([k1, k2, 0.0, 0.0]);
        let (u, v) = distort(&lens, x, y);
        let (back_x, back_y) = undistort(&lens, u, v).expect("within 85°");
        // Newton ends at 1e-12 of angle; tan grows tenfold faster at 70°.
        prop_assert!((back_x - x).abs() < 1e-9 && (back_y - y).abs() < 1e-9);
    }

    #[test]
    fn any_numbers_give_a_camera_or_an_error(
        d in prop::array::uniform8(-1e3f64..1e3), cx in -500.0f64..500.0, centre: bool
    ) {
        for lens in [
            Distortion::Rational(d),
            Distortion::PlumbBob([d[0], d[1], d[2], d[3], d[4]]),
            Distortion::Equidistant([d[0], d[1], d[2], d[3]]),
        ] {
            let mut camera = camera(48, 32, lens);
            camera.intrinsics.cx = cx;
            if let Ok(k) = optimal_camera(&camera, centre) {
                prop_assert!(k.fx.is_finite() && k.fx > 0.0 && k.fy.is_finite() && k.fy > 0.0);
                let options = PreprocessOptions {
                    center_principal_point: centre,
                    ..PreprocessOptions::default()
                };
                let mut p = Preprocessor::new(48, 32, 48, Some(&camera), options).unwrap();
                let mut out = RgbImage::default();
                p.run(&RgbImage::new(48, 32), &mut out).unwrap();
                prop_assert!(out.data.iter().all(|&v| v == 0));
            }
        }
    }
}

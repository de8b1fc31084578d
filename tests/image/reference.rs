//! Resampling against Pillow 11, undistortion and raw encodings against OpenCV 4, on procedural images: the results
//! come from tests/data/image/make_fixtures.py, which computes the same images.

use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::image::encoding::{Encoding, RawImage};
use mast3r_slam::image::resample::{Crop, Filter, Resampler};
use mast3r_slam::image::undistort::{Undistorter, map_at, optimal_camera};
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};
use std::str::FromStr;

const RESAMPLE: &str = include_str!("../data/image/resample.txt");
const ENCODING: &str = include_str!("../data/image/encoding.txt");
const UNDISTORT: &str = include_str!("../data/image/undistort.txt");

/// Tiles of 64 pixels: saw-tooth ramps, noise, hard black and white stripes.
fn scene(width: usize, height: usize, grey: bool) -> RgbImage {
    let mut image = RgbImage::new(width, height);
    for (i, px) in image.data.chunks_exact_mut(3).enumerate() {
        let (x, y) = ((i % width) as u64, (i / width) as u64);
        for (c, value) in px.iter_mut().enumerate() {
            let c = if grey { 0 } else { c as u64 };
            *value = match (x / 64 + y / 64) % 3 {
                0 => (x * 7 + y * 13 + c * 29 + ((x * y) >> 3)) as u8,
                1 => {
                    let n = (x * 374_761_393 + y * 668_265_263 + c * 1_442_695_041) as u32;
                    let n = (n ^ (n >> 13)).wrapping_mul(1_274_126_177);
                    (n >> 24) as u8
                }
                _ => ((x / 5 + y / 3 + c) & 1) as u8 * 255,
            };
        }
    }
    image
}

fn fnv(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

fn number<T: FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().unwrap()
}

/// Compares with a hash and, for a message that helps, some pixels first.
fn check(image: &RgbImage, hash: &str, pixels: &[&str], what: &str) {
    for pixel in pixels {
        let (at, value) = pixel.split_once('=').unwrap();
        let (x, y) = at.split_once(',').unwrap();
        let at = (number::<usize>(y) * image.width + number::<usize>(x)) * 3;
        let value: Vec<u8> = value.split(',').map(number::<u8>).collect();
        assert_eq!(image.data[at..at + 3], value[..], "{what}, pixel {pixel}");
    }
    assert_eq!(format!("{:016x}", fnv(&image.data)), hash, "{what}");
}

#[test]
fn resampling_equals_pillow_bit_for_bit() {
    let (mut resized, mut whole) = (0, 0);
    for line in RESAMPLE.lines() {
        let f: Vec<&str> = line.split(' ').collect();
        let mut out = RgbImage::default();
        match f[0] {
            "resize" => {
                let n: Vec<usize> = f[1..5].iter().map(|t| number(t)).collect();
                let filter = match f[5] {
                    "bicubic" => Filter::Bicubic,
                    _ => Filter::Lanczos3,
                };
                let src = scene(n[0], n[1], f[6] == "grey");
                Resampler::new((n[0], n[1]), (n[2], n[3]), filter, Crop::all(n[2], n[3]))
                    .run(&src, &mut out)
                    .unwrap();
                check(&out, f[7], &f[8..], line);
                resized += 1;
            }
            "network" => {
                let n: Vec<usize> = f[1..6].iter().map(|t| number(t)).collect();
                let src = scene(n[0], n[1], f[6] == "grey");
                let options = PreprocessOptions::default();
                let mut p = Preprocessor::new(n[0], n[1], n[2], None, options).unwrap();
                assert_eq!(p.output_size(), (n[3], n[4]), "{line}");
                p.run(&src, &mut out).unwrap();
                check(&out, f[7], &f[8..], line);
                whole += 1;
            }
            _ => {}
        }
    }
    assert_eq!((resized, whole), (14 * 2 * 2, 14 * 2 * 3));
}

fn camera(f: &[&str]) -> Calibration {
    let d: Vec<f64> = f[8..].iter().map(|t| number(t)).collect();
    Calibration {
        width: number(f[2]),
        height: number(f[3]),
        intrinsics: Intrinsics {
            fx: number(f[4]),
            fy: number(f[5]),
            cx: number(f[6]),
            cy: number(f[7]),
        },
        distortion: match f[1] {
            "plumb_bob" => Distortion::PlumbBob(d.try_into().unwrap()),
            "rational_polynomial" => Distortion::Rational(d.try_into().unwrap()),
            _ => Distortion::Equidistant(d.try_into().unwrap()),
        },
    }
}

#[test]
fn undistortion_equals_opencv() {
    let mut calibration = None;
    let mut target = None;
    let mut counts = [0; 3];
    for line in UNDISTORT.lines() {
        let f: Vec<&str> = line.split(' ').collect();
        match f[0] {
            "camera" => calibration = Some(camera(&f[1..])),
            "matrix" => {
                let calibration = calibration.unwrap();
                let n: Vec<f64> = f[3..].iter().map(|t| number(t)).collect();
                let expected = Intrinsics {
                    fx: n[0],
                    fy: n[1],
                    cx: n[2],
                    cy: n[3],
                };
                target = Some(expected);
                if !matches!(calibration.distortion, Distortion::Equidistant(_)) {
                    let k = optimal_camera(&calibration, f[2] == "1").unwrap();
                    for (ours, theirs) in [
                        (k.fx, expected.fx),
                        (k.fy, expected.fy),
                        (k.cx, expected.cx),
                        (k.cy, expected.cy),
                    ] {
                        // Both are f64 throughout; some hundred operations on values below 1000.
                        assert!((ours - theirs).abs() < 1e-9, "{line}: {ours} {theirs}");
                    }
                    counts[0] += 1;
                }
            }
            "map" => {
                for point in &f[3..] {
                    let (uv, xy) = point.split_once('=').unwrap();
                    let (u, v) = uv.split_once(',').unwrap();
                    let (x, y) = xy.split_once(',').unwrap();
                    let (u, v, x, y): (f64, f64, f32, f32) =
                        (number(u), number(v), number(x), number(y));
                    let ours = map_at(&calibration.unwrap(), &target.unwrap(), u, v);
                    // f32 coordinates below 1024 are 6e-5 apart.
                    let near = (ours.0 - x).abs() < 6.2e-5 && (ours.1 - y).abs() < 6.2e-5;
                    assert!(near, "{line}: {ours:?} for {point}");
                    counts[1] += 1;
                }
            }
            "remap" => {
                let calibration = calibration.unwrap();
                let src = scene(calibration.width, calibration.height, false);
                let mut out = RgbImage::default();
                Undistorter::to_camera(&calibration, target.unwrap())
                    .unwrap()
                    .run(&src, &mut out)
                    .unwrap();
                check(&out, f[3], &f[4..], line);
                counts[2] += 1;
            }
            _ => {}
        }
    }
    assert_eq!(counts, [12, 98, 14]);
}

#[test]
fn yuv_and_bayer_equal_opencv_bit_for_bit() {
    let mut checked = 0;
    for line in ENCODING.lines().filter(|l| !l.starts_with('#')) {
        let f: Vec<&str> = line.split(' ').collect();
        let (width, height, cut): (usize, usize, usize) =
            (number(f[1]), number(f[2]), number(f[3]));
        let encoding = Encoding::from_name(f[0], false).unwrap();
        let raw = RawImage {
            encoding,
            width,
            height,
            stride: encoding.row_bytes(width),
            data: &scene(width, height, false).data,
        };
        let mut rgb = RgbImage::default();
        raw.to_rgb(&mut rgb).unwrap();
        let rows = (cut..height - cut).flat_map(|y| {
            let row = &rgb.data[3 * y * width..3 * (y + 1) * width];
            &row[3 * cut..3 * (width - cut)]
        });
        let kept: Vec<u8> = rows.copied().collect();
        assert_eq!(format!("{:016x}", fnv(&kept)), f[4], "{line}");
        checked += 1;
    }
    assert_eq!(checked, 7);
}

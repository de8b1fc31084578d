//! Preprocessing, and reading depth, allocate nothing once they have seen one image.

use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::image::depth::{
    DepthCamera, DepthDecoder, DepthEncoding, DepthImage, DepthLimits, DepthReader, OwnCamera,
    RawDepth,
};
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};
use nalgebra::Isometry3;
use testkit::counting;

fn camera() -> Calibration {
    Calibration {
        width: 640,
        height: 480,
        intrinsics: Intrinsics {
            fx: 517.3,
            fy: 516.5,
            cx: 318.6,
            cy: 255.3,
        },
        distortion: Distortion::PlumbBob([0.2624, -0.9531, -0.0054, 0.0026, 1.1633]),
    }
}

pub fn preprocessing_does_not_allocate() {
    let camera = camera();
    let options = PreprocessOptions::default();
    let mut p = Preprocessor::new(640, 480, 512, Some(&camera), options).unwrap();
    let (src, mut dst) = (RgbImage::new(640, 480), RgbImage::default());
    // On a worker of the pool: a call from outside may make rayon grow its queue.
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .unwrap();
    let count = pool.install(|| {
        p.run(&src, &mut dst).unwrap();
        let before = counting::allocations();
        for _ in 0..5 {
            p.run(&src, &mut dst).unwrap();
        }
        counting::allocations() - before
    });
    assert_eq!(count, 0);
}

pub fn reading_depth_does_not_allocate() {
    let calibration = camera();
    let options = PreprocessOptions::default();
    let p = Preprocessor::new(640, 480, 512, Some(&calibration), options).unwrap();
    let limits = DepthLimits {
        min: 0.2,
        max: 8.0,
        max_jump: 0.05,
    };
    let raw = RawDepth {
        encoding: DepthEncoding::Millimetres { big_endian: false },
        width: 640,
        height: 480,
        stride: 1280,
        data: &1500u16.to_le_bytes().repeat(640 * 480),
    };
    let own = DepthCamera::Own(OwnCamera {
        calibration,
        colour_from_depth: Isometry3::translation(0.05, 0.0, 0.0),
        colour: None,
    });
    let (decoder, mut image) = (DepthDecoder::default(), DepthImage::default());
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .unwrap();
    for camera in [DepthCamera::Registered, own] {
        let mut reader = DepthReader::new(p.view(), limits);
        let count = pool.install(|| {
            let mut read = || {
                decoder.raw(&raw, &mut image).unwrap();
                reader.read(&image, &camera).unwrap().measured
            };
            read();
            let before = counting::allocations();
            for _ in 0..5 {
                assert!(read() > 100_000);
            }
            counting::allocations() - before
        });
        assert_eq!(count, 0);
    }
}

//! Preprocessing allocates nothing once it has seen one image.

use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};
use testkit::counting;

pub fn preprocessing_does_not_allocate() {
    let camera = Calibration {
        width: 640,
        height: 480,
        intrinsics: Intrinsics {
            fx: 517.3,
            fy: 516.5,
            cx: 318.6,
            cy: 255.3,
        },
        distortion: Distortion::PlumbBob([0.2624, -0.9531, -0.0054, 0.0026, 1.1633]),
    };
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

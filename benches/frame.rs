//! Everything but the network: a frame of the bundled sequence through [`Slam`], with outputs of
//! the bundled network that were computed before. Times are those that the system itself takes, less
//! encoding and decoding (which here is copying).

use benches::Canned;
use criterion::{Criterion, criterion_group, criterion_main};
use mast3r_slam::config::{Config, Loops};
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};
use mast3r_slam::slam::{Frame, Pace, Slam};
use mast3r_slam::time::{StageTimes, Stamp};
use std::time::{Duration, Instant};
use testkit::room::cpu_slam;

/// A system that has seen frame 0.
fn started(canned: &Canned, config: &Config) -> Slam {
    let backend = Box::new(canned.clone());
    let intrinsics = canned.intrinsics;
    let mut system = cpu_slam(config.clone(), Pace::EveryFrame, backend, None, intrinsics);
    process(&mut system, canned, 0, 0);
    system
}

fn process(system: &mut Slam, canned: &Canned, index: usize, frame: usize) -> StageTimes {
    let input = Frame {
        index,
        stamp: Stamp {
            nanos: 1 + index as i64,
        },
        image: canned.images[frame].as_ref().into(),
    };
    system.process(&input).expect("a frame").times
}

fn frame(c: &mut Criterion) {
    for size in [256, 512] {
        // A keyframe and the frames 3 and 4 of it, 0.3 and 0.4 s later.
        let canned = Canned::new(size, &[0, 3, 4]);
        let shape = &canned.shape;
        let mut group = c.benchmark_group(format!("frame/{}x{}", shape.width, shape.height));
        group
            .sample_size(20)
            .measurement_time(Duration::from_secs(4));
        let mut config = benches::config();
        config.loops = Loops::Off;
        let raw = &canned.raw[0];
        let options = PreprocessOptions::default();
        let mut preprocessor =
            Preprocessor::new(raw.width, raw.height, size, None, options).expect("a preprocessor");
        let mut image = RgbImage::default();
        // It must be tracked all the time and never become a keyframe.
        config.tracking.match_frac_thresh = 0.0;
        let mut system = started(&canned, &config);
        let mut index = 0;
        group.bench_function("tracked", |b| {
            b.iter_custom(|iterations| {
                let mut sum = Duration::ZERO;
                for _ in 0..iterations {
                    index += 1;
                    let start = Instant::now();
                    preprocessor.run(raw, &mut image).expect("an image");
                    let times = process(&mut system, &canned, index, 1 + index % 2);
                    assert!(times.fusion > 0.0, "frame {index} was not tracked");
                    let network = Duration::from_secs_f64((times.encode + times.decode) / 1e3);
                    sum += start.elapsed().saturating_sub(network);
                }
                sum
            });
        });
        // Every frame becomes one: an edge (two searches), a global solve of one edge.
        config.tracking.match_frac_thresh = 2.0;
        group.bench_function("second keyframe's mapping", |b| {
            b.iter_custom(|iterations| {
                let mut sum = 0.0;
                for _ in 0..iterations {
                    let mut system = started(&canned, &config);
                    sum += process(&mut system, &canned, 1, 1).mapping;
                }
                Duration::from_secs_f64(sum / 1e3)
            });
        });
        group.finish();
    }
}

criterion_group!(benches, frame);
criterion_main!(benches);

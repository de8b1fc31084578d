//! Depth of a sensor: the GPU's map is metric, and the CPU's.

use super::{On, SPOIL, Walked, compare, system};
use mast3r_slam::eval::Alignment;
use mast3r_slam::slam::Slam;
use testkit::room::metric::Misscaled;
use testkit::room::walk::{config, evaluation, images, show, vocabulary};
use testkit::room::{RoomBackend, SIZE, square_walk};

const FRAMES: usize = 60;

/// Thirty percent too large, and another ten percent up and down from pass to pass.
fn wrong(pass: usize) -> f32 {
    1.3 * (1.0 + 0.1 * (1.7 * pass as f32).sin())
}

/// What the sensor gives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sensor {
    /// Depth of most frames.
    Holes,
    /// Depth of the frame before, by an offset that is set.
    Late,
}

fn walked(on: &On<'_>, calibrated: bool, sensor: Sensor) -> (Walked, Slam) {
    let poses = square_walk(FRAMES, 0.6);
    let mut config = config(calibrated);
    config.depth.enabled = true;
    if sensor == Sensor::Late {
        config.depth.offset = -0.033;
    }
    let mut room = RoomBackend::new(SIZE, poses.clone(), SPOIL);
    let (places, truth) = (vocabulary(&mut room), RoomBackend::new(SIZE, poses, SPOIL));
    let backend = Box::new(Misscaled::new(Box::new(room), wrong));
    let mut slam = system(on, backend, &config, Some(places));
    for (k, image) in images(&truth, (0..FRAMES).map(Some)).iter().enumerate() {
        // Frames without, with useless and with good depth; what the network makes of the first two is in the scale of
        // the frame before.
        let metres = match (sensor, k % 10) {
            (Sensor::Late, _) => k.checked_sub(1).map(|before| truth.depth(before)),
            (Sensor::Holes, 3) => None,
            (Sensor::Holes, 6) => Some(vec![0.0; SIZE.0 * SIZE.1]),
            (Sensor::Holes, _) => Some(truth.depth(k)),
        };
        let depth = metres.as_deref().map(Into::into);
        slam.set_depth(depth).expect("depth");
        show(&mut slam, k, image);
    }
    slam.complete().expect("finish");
    let (map, counts) = (slam.snapshot(), slam.mapping_counts());
    (Walked { map, counts }, slam)
}

#[test]
fn depth_makes_the_gpu_s_map_metric_as_the_cpu_s() {
    let Some(context) = crate::cuda() else { return };
    let poses = square_walk(FRAMES, 0.6);
    for (calibrated, sensor) in [
        (false, Sensor::Holes),
        (true, Sensor::Holes),
        (true, Sensor::Late),
    ] {
        let [(cpu, on_cpu), (gpu, on_gpu)] =
            [On::Cpu, On::Gpu(&context)].map(|on| walked(&on, calibrated, sensor));
        let [a, b] = [&on_cpu, &on_gpu].map(|slam| slam.scale().expect("depth measures the scale"));
        assert!((a.factor - b.factor).abs() < a.sigma, "{a:?}, GPU {b:?}");
        assert_eq!((a.source, a.keyframes), (b.source, b.keyframes));
        let what = format!("depth, {sensor:?}, calibrated {calibrated}");
        compare(&what, &cpu, &gpu, &poses);
        for (a, b) in cpu.map.keyframes.iter().zip(&gpu.map.keyframes) {
            let (points, on_gpu) = (a.view().points, b.view().points);
            let depths = points.chunks_exact(3).zip(on_gpu.chunks_exact(3));
            let mut apart: Vec<f32> = depths.map(|(p, q)| (q[2] / p[2] - 1.0).abs()).collect();
            apart.sort_unstable_by(f32::total_cmp);
            let median = apart[apart.len() / 2];
            assert!(median < 1e-3, "{what}: keyframe {}: {median}", a.id);
        }
        let of = |map| evaluation(map, &poses, Alignment::Sim3).alignment.scale;
        let [on_cpu, on_gpu] = [&cpu.map, &gpu.map].map(of);
        println!("{what}: scale {on_cpu}, GPU {on_gpu}");
        // Without depth it is the 1.3 of the network.
        assert!((on_cpu - 1.0).abs() < 0.1, "{on_cpu}");
        assert!(
            (on_gpu / on_cpu - 1.0).abs() < 0.005,
            "{on_gpu}, CPU {on_cpu}"
        );
    }
}

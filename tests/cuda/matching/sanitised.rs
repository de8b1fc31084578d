//! Sanitising against the CPU, bit for bit.

use crate::{assert_same_bits, cuda};
use mast3r_slam::compute::cuda::sanitise::{Sanitiser, SanitiserBuffers, ViewBuffers};
use mast3r_slam::gpu::{Context, Priority};
use mast3r_slam::inference::{ViewOutput, sanitise};
use testkit::matching_scene::Random;

#[test]
fn sanitised_views_equal_the_cpu_s() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let mut random = Random(17);
    for (width, height, dim) in [
        (1, 1, 24),
        (7, 9, 25),
        (33, 31, 24),
        (64, 48, 8),
        (512, 384, 24),
    ] {
        let n = width * height;
        let shape = crate::view_shape(width, height, dim);
        let scratch = crate::carve(context, SanitiserBuffers::carve);
        let sanitiser = Sanitiser::new(context, &stream, scratch, n, dim).unwrap();
        let counts = crate::buffer::<u32>(context, 2);
        let buffers = [0, 1].map(|_| crate::carve(context, |c| ViewBuffers::carve(c, n, dim)));
        // Twice, as the scratch must be as it was; the third time one view alone; then all bad.
        for round in 0..4 {
            let mut views = [0, 1].map(|_| ViewOutput::zeros(&shape));
            for view in &mut views {
                let mut value = |scale: f64| -> f32 {
                    match random.next() % 900 {
                        0 => f32::NAN,
                        1 => f32::INFINITY,
                        2 => f32::NEG_INFINITY,
                        3 => 3e38,
                        4 => 1e-30,
                        5 => -1e-3,
                        _ => (scale * (0.5 + random.signed().abs())) as f32,
                    }
                };
                for slice in [&mut view.points, &mut view.descriptors] {
                    slice.iter_mut().for_each(|v| *v = value(1.0));
                }
                for slice in [&mut view.confidence, &mut view.descriptor_confidence] {
                    slice.iter_mut().for_each(|v| *v = value(4.0));
                }
                if round == 3 {
                    view.points.fill(0.0);
                }
            }
            for (to, from) in buffers.iter().zip(&views) {
                stream.write(&from.points, to.points.all()).unwrap();
                stream.write(&from.confidence, to.confidence.all()).unwrap();
                stream
                    .write(&from.descriptors, to.descriptors.all())
                    .unwrap();
                let q = to.descriptor_confidence.all();
                stream.write(&from.descriptor_confidence, q).unwrap();
            }
            stream.fill(counts.all(), 0xee).unwrap();
            let second = (round != 2).then(|| buffers[1].view());
            sanitiser
                .enqueue(&stream, buffers[0].view(), second, counts.all())
                .unwrap();
            let found = stream.read_vec(counts.all()).unwrap();
            for (k, view) in views.iter_mut().enumerate() {
                let what = format!("{width}×{height}×{dim}, round {round}, view {k}");
                let expected = if k == 1 && round == 2 {
                    0xeeee_eeee
                } else {
                    sanitise(view) as u32
                };
                assert_eq!(found[k], expected, "{what}: unusable");
                let buffers = &buffers[k];
                for (name, buffer, expected) in [
                    ("points", &buffers.points, &view.points),
                    ("confidence", &buffers.confidence, &view.confidence),
                    ("descriptors", &buffers.descriptors, &view.descriptors),
                    (
                        "descriptor confidence",
                        &buffers.descriptor_confidence,
                        &view.descriptor_confidence,
                    ),
                ] {
                    let found = stream.read_vec(buffer.all()).unwrap();
                    assert_same_bits(&format!("{what}: {name}"), &found, expected);
                }
            }
            if round == 3 {
                assert_eq!(found, [n as u32; 2]);
            }
        }
    }
}

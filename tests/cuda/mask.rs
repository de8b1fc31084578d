//! Hiding pixels against the CPU, bit for bit.

use crate::{assert_same_bits, cuda};
use half::f16;
use mast3r_slam::compute::cuda::mask::Masker;
use mast3r_slam::compute::cuda::sanitise::ViewBuffers;
use mast3r_slam::compute::mask;
use mast3r_slam::gpu::{Context, Floats, Priority};
use mast3r_slam::inference::ViewOutput;
use testkit::matching_scene::Random;

#[test]
fn hidden_pixels_equal_the_cpu_s() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let mut random = Random(23);
    // Descriptors in quads of numbers, and not.
    for (width, height, channels) in [(1, 1, 8), (7, 9, 7), (33, 31, 24), (512, 384, 24)] {
        let n = width * height;
        let shape = crate::view_shape(width, height, channels);
        let masker = Masker::new(context, n, channels).unwrap();
        let buffers = crate::carve(context, |c| ViewBuffers::carve(c, n, channels));
        let mut start = ViewOutput::zeros(&shape);
        for values in slices(&mut start) {
            values.fill_with(|| 1.0 + random.signed().abs() as f32);
        }
        let used: Vec<u8> = (0..n).map(|_| (random.next() % 3) as u8).collect();
        let keyframe: Vec<f32> = (0..n)
            .map(|_| match random.next() % 6 {
                0 => 0.0,
                1 => -0.0,
                2 => f32::NAN,
                3 => -1.0,
                4 => f32::INFINITY,
                _ => 2.5,
            })
            .collect();
        let halves: Vec<f16> = keyframe.iter().map(|v| f16::from_f32(*v)).collect();
        let of_used = crate::buffer::<u8>(context, n);
        let of_keyframe = crate::buffer::<f32>(context, n);
        let of_halves = crate::buffer::<f16>(context, n);
        stream.write(&used, of_used.all()).unwrap();
        stream.write(&keyframe, of_keyframe.all()).unwrap();
        stream.write(&halves, of_halves.all()).unwrap();
        for way in 0..3 {
            let view = buffers.view();
            for (values, on_device) in slices(&mut start.clone()).into_iter().zip(view.slices()) {
                stream.write(values, on_device).unwrap();
            }
            let mut expected = start.clone();
            match way {
                0 => {
                    mask::hide(&mut expected, &used);
                    masker.hide(&stream, view, of_used.all()).unwrap();
                }
                1 => {
                    mask::hide_as_in(&mut expected, &keyframe);
                    let by = Floats::F32(of_keyframe.all());
                    masker.hide_as_in(&stream, view, by).unwrap();
                }
                _ => {
                    mask::hide_as_in(&mut expected, &keyframe);
                    let by = Floats::F16(of_halves.all());
                    masker.hide_as_in(&stream, view, by).unwrap();
                }
            }
            let mut found = start.clone();
            for (values, on_device) in slices(&mut found).into_iter().zip(view.slices()) {
                stream.read(on_device, values).unwrap();
            }
            let what = format!("{width}x{height}, {way}");
            for (found, expected) in slices(&mut found).into_iter().zip(slices(&mut expected)) {
                assert_same_bits(&what, found, expected);
            }
        }
        // A mask that is too short is refused.
        if n > 1 {
            let short = of_used.slice(0..n - 1).unwrap();
            assert!(masker.hide(&stream, buffers.view(), short).is_err());
        }
    }
}

/// In the order of [`DeviceView::slices`](mast3r_slam::inference::DeviceView::slices).
fn slices(view: &mut ViewOutput) -> [&mut [f32]; 4] {
    [
        &mut view.points,
        &mut view.confidence,
        &mut view.descriptors,
        &mut view.descriptor_confidence,
    ]
}

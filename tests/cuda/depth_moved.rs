//! Moved depth against the CPU's: the same bits.

use crate::cuda;
use mast3r_slam::compute::cuda::depth::moved::{DepthMover, DepthMoverBuffers};
use mast3r_slam::compute::depth::moved::{DepthMotion, move_depth};
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::gpu::{Context, Priority};
use nalgebra::Vector6;
use testkit::matching_scene::Random;

/// The camera of an image of this size.
pub fn camera(width: usize, height: usize) -> Intrinsics {
    Intrinsics {
        fx: 0.8 * width as f64,
        fy: 0.83 * width as f64,
        cx: 0.49 * width as f64,
        cy: 0.52 * height as f64,
    }
}

/// Depth images: smooth, with edges, with holes, and of numbers that are no depths.
fn images(width: usize, height: usize, random: &mut Random) -> Vec<(&'static str, Vec<f32>)> {
    let n = width * height;
    let smooth = |k: usize| 2.0 + ((k % width) as f32 * 0.05).sin() + 0.01 * (k / width) as f32;
    let mut with = |make: &mut dyn FnMut(usize, f32) -> f32| -> Vec<f32> {
        (0..n).map(|k| make(k, random.signed() as f32)).collect()
    };
    vec![
        ("smooth", with(&mut |k, _| smooth(k))),
        (
            "edges",
            with(&mut |k, _| smooth(k) * (1 + k / 7 % 3) as f32),
        ),
        ("noise", with(&mut |_, r| 3.0 + 2.9 * r)),
        (
            "3 %",
            with(&mut |k, r| if r.abs() < 0.03 { smooth(k) } else { 0.0 }),
        ),
        ("nothing", vec![0.0; n]),
        (
            "no depths",
            with(&mut |k, r| match k % 7 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -1.0,
                3 => f32::MIN_POSITIVE / 8.0,
                4 => f32::MAX,
                5 => -0.0,
                _ => 2.0 + r,
            }),
        ),
    ]
}

fn motions(random: &mut Random) -> Vec<Sim3> {
    let exp = |twist: [f64; 6]| Sim3::exp(&Vector6::from(twist).push(0.0));
    let mut motions = vec![
        Sim3::identity(),
        // Away, behind all points, far off, and unknown.
        exp([0.0, 0.0, 0.0, 0.0, 2.5, 0.0]),
        exp([0.0, 0.0, -50.0, 0.0, 0.0, 0.0]),
        exp([1e30, -1e30, 1e30, 0.0, 0.0, 0.0]),
        Sim3 {
            scale: f64::NAN,
            ..Sim3::identity()
        },
    ];
    motions.extend((0..20).map(|_| exp(std::array::from_fn(|_| 0.2 * random.signed()))));
    motions
}

#[test]
fn moved_depth_has_the_bits_of_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let mut random = Random(7);
    for (width, height) in [(512, 384), (256, 192), (64, 48), (33, 17), (1, 1), (1, 50)] {
        let buffers = crate::carve(context, |c| DepthMoverBuffers::carve(c, width, height));
        let mover = DepthMover::new(context, buffers, width, height).unwrap();
        let n = width * height;
        let (from, to) = (crate::buffer(context, n), crate::buffer(context, n));
        for (name, metres) in images(width, height, &mut random) {
            stream.write(&metres, from.all()).unwrap();
            for motion in motions(&mut random) {
                let motion = DepthMotion::new(&motion, &camera(width, height));
                let (mut expected, mut found) = (vec![1.0; n], vec![1.0_f32; n]);
                move_depth(
                    metres.iter().copied(),
                    &motion,
                    (width, height),
                    &mut vec![0; n],
                    &mut expected,
                );
                mover.run(&stream, from.all(), &motion, to.all()).unwrap();
                stream.read(to.all(), &mut found).unwrap();
                let bits = |v: &[f32]| v.iter().map(|z| z.to_bits()).collect::<Vec<_>>();
                assert!(
                    bits(&found) == bits(&expected),
                    "{width}×{height}, {name}, {motion:?}"
                );
            }
        }
        // Too short an array is refused.
        let short = crate::buffer::<f32>(context, n - 1);
        let motion = DepthMotion::new(&Sim3::identity(), &camera(width, height));
        assert!(mover.run(&stream, short.all(), &motion, to.all()).is_err());
        assert!(
            mover
                .run(&stream, from.all(), &motion, short.all())
                .is_err()
        );
    }
}

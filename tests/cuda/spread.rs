//! Where matches are in an image, on the GPU: the counts of the CPU.

use crate::cuda;
use half::f16;
use mast3r_slam::compute::cuda::global::DeviceMatches;
use mast3r_slam::compute::cuda::spread::{SpreadBuffers, SpreadCounter};
use mast3r_slam::compute::spread::spread;
use mast3r_slam::gpu::{Context, Priority};
use testkit::random::Random;

#[test]
fn matches_are_counted_in_cells_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::Low).unwrap();
    let mut random = Random(7);
    // A pixel, fewer rows or columns than cells, cells of different sizes, and an image.
    for (width, height) in [(1, 1), (3, 50), (61, 2), (33, 29), (128, 96)] {
        let pixels = width * height;
        let (counter, index, quality) = crate::carve(context, |c| {
            Ok((
                SpreadCounter::new(context, SpreadBuffers::carve(c)?, (width, height))?,
                c.device("index", &[pixels])?,
                c.device("quality", &[2, pixels])?,
            ))
        });
        for _ in 0..3 {
            // The limit and its neighbours, and what a third of the pixels have: no match.
            let odd = [1.499, 1.5, 1.501, 6e-8, -0.0, f32::NAN, f32::INFINITY, -1.0];
            let stored: Vec<f16> = (0..2 * pixels)
                .map(|_| match random.bits() % 12 {
                    0..4 => f16::ZERO,
                    4 => f16::from_f32(odd[random.bits() as usize % odd.len()]),
                    _ => f16::from_f64(random.uniform() * 4.0),
                })
                .collect();
            let qualities: Vec<f32> = stored.iter().map(|q| q.to_f32()).collect();
            stream.write(&stored, quality.all()).unwrap();
            let ranges = [0..pixels, pixels..2 * pixels];
            let ways = ranges.clone().map(|range| DeviceMatches {
                index: index.all(),
                quality: quality.slice(range).unwrap(),
            });
            let found = counter.count(&stream, ways, 1.5).unwrap();
            let expected = ranges.map(|range| spread(&qualities[range], width, 1.5));
            assert_eq!(found, expected, "{width}×{height}");
            assert!(pixels < 1000 || found[0] != found[1]);
        }
    }
}

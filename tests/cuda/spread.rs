//! Where matches are in an image, on the GPU: the counts of the CPU.

use crate::cuda;
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
        let (counter, index, valid, quality) = crate::carve(context, |c| {
            Ok((
                SpreadCounter::new(context, SpreadBuffers::carve(c)?, (width, height))?,
                c.device("index", &[pixels])?,
                c.device("valid", &[2, pixels])?,
                c.device("quality", &[2, pixels])?,
            ))
        });
        for _ in 0..3 {
            let flags: Vec<u8> = (0..2 * pixels).map(|_| (random.bits() % 3) as u8).collect();
            let odd = [1.5, f32::NAN, f32::INFINITY, -1.0];
            let qualities: Vec<f32> = (0..2 * pixels)
                .map(|_| match random.bits() % 8 {
                    0 => odd[random.bits() as usize % odd.len()],
                    _ => random.uniform() as f32 * 4.0,
                })
                .collect();
            stream.write(&flags, valid.all()).unwrap();
            stream.write(&qualities, quality.all()).unwrap();
            let ranges = [0..pixels, pixels..2 * pixels];
            let ways = ranges.clone().map(|range| DeviceMatches {
                index: index.all(),
                valid: valid.slice(range.clone()).unwrap(),
                quality: quality.slice(range).unwrap(),
            });
            let found = counter.count(&stream, ways, 1.5).unwrap();
            let expected =
                ranges.map(|range| spread(&flags[range.clone()], &qualities[range], width, 1.5));
            assert_eq!(found, expected, "{width}×{height}");
            assert!(pixels < 1000 || found[0] != found[1]);
        }
    }
}

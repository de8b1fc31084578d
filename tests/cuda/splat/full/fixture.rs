//! Maps that are filled block by block, what is in them, and the GPU's free memory.

use mast3r_slam::compute::cuda::splat::{CudaSplat, SplatSizes};
use mast3r_slam::compute::splat::block::{BlockContent, RowBlock};
use mast3r_slam::compute::splat::camera::{Camera, View};
use mast3r_slam::compute::splat::device::{
    AdamStep, LossWeights, RefineRules, RelocateRules, RowGradients, SplatDevice,
};
use mast3r_slam::compute::splat::layout::{FIELDS, Field, PlaneKind};
use mast3r_slam::compute::splat::synthetic;
use mast3r_slam::gpu::Context;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Rows of a block on the host: 190 MB at degree 3.
pub const CHUNK: usize = 1 << 18;
/// The image of the large views, pixels.
pub const FULL_HD: (usize, usize) = (1920, 1080);

/// Rules by which nothing happens.
pub const NOTHING: RefineRules = RefineRules {
    seed: 0x1234_5678_9abc,
    step: 1,
    hot: f32::INFINITY,
    ln_small: f32::INFINITY,
    ln_prune: f32::INFINITY,
    logit_prune: f32::NEG_INFINITY,
    // The logarithm of 1.6.
    ln_shrink: 0.470_003_63,
    revised_opacity: 0,
    reserved: 0,
};

/// A training step of moderate rates.
pub const STEP: AdamStep = AdamStep {
    rates: [1e-4; FIELDS],
    bias1: 0.1,
    bias2: 0.001,
    opacity_weight: 0.0,
    scale_weight: 0.0,
    noise: 0.0,
    seed: 1,
    step: 1,
};

/// A random word of a number (the finaliser of SplitMix64 by Steele et al., 2014).
pub fn hash(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// A number from 0 to 1 of a row; `k` tells several apart.
pub fn unit(row: u64, k: u64) -> f32 {
    (hash(row << 8 | k) >> 40) as f32 / 16_777_216.0
}

/// Sizes of a map that draws small views only, so that nearly all of its memory is the pool.
pub fn narrow(capacity: u64, degree: u8) -> SplatSizes {
    SplatSizes {
        visible: 1 << 14,
        entries: 1 << 18,
        ..SplatSizes::new(capacity, degree, (160, 112))
    }
}

/// Free memory of the GPU, bytes.
pub fn free(context: &Context) -> u64 {
    context.memory().expect("free memory").0
}

/// Runs every kernel once on a small map, so that none is loaded later, which takes memory.
pub fn warm(context: &Context) {
    let size = (160, 112);
    let mut small = CudaSplat::allocate(context, narrow(5000, 3)).expect("a small map");
    small.append(&synthetic::block(4900, 3, 1)).expect("room");
    let image = vec![100; 3 * size.0 * size.1];
    let view = View {
        camera: synthetic::camera(size),
        image: &image,
        depth: None,
    };
    let weights = LossWeights::COLOR_ONLY;
    small.gradients(&view, &weights).expect("gradients");
    let mut gradients = RowGradients::default();
    small.read_gradients(&mut gradients).expect("gradients");
    small.step(&STEP).expect("a step");
    let rules = RefineRules {
        hot: -1.0,
        ..NOTHING
    };
    small.refine(&rules).expect("refined within the capacity");
    let rules = RefineRules {
        logit_prune: 0.0,
        ..NOTHING
    };
    small.refine(&rules).expect("pruned");
    let rules = RelocateRules {
        seed: 1,
        step: 1,
        logit_dead: 1.0,
        growth: 0.1,
    };
    small.relocate(&rules).expect("relocated");
    small.reset_opacity(0.0).expect("reset");
    small.verify().expect("canaries");
}

/// A map on a GPU whose kernels are all loaded.
pub fn allocate(context: &Context, sizes: SplatSizes) -> CudaSplat {
    warm(context);
    CudaSplat::allocate(context, sizes).expect("a map")
}

/// Appends `rows` rows all around the origin, with moments unless the content leaves them out. A row's anchor is its
/// number; at degree 1 and above the ends of its higher bands and of their moments tell the number too. `change` gets
/// each block with the number of its first row.
pub fn fill(
    device: &mut CudaSplat,
    rows: u64,
    content: BlockContent,
    mut change: impl FnMut(&mut RowBlock, u64),
) {
    let degree = device.layout().degree();
    let pattern = synthetic::block(CHUNK, degree, 1);
    let mut block = RowBlock::new(CHUNK, degree, content);
    let state = content == BlockContent::State;
    if state {
        for (k, field) in (1..).zip(Field::ALL) {
            for (i, value) in block.first.get_mut(field).iter_mut().enumerate() {
                *value = 1e-3 * unit(i as u64, k);
            }
            for (i, value) in block.second.get_mut(field).iter_mut().enumerate() {
                *value = 1e-5 * unit(i as u64, k + 8);
            }
        }
    }
    let mut first = 0;
    while first < rows {
        let count = (rows - first).min(CHUNK as u64) as usize;
        block.resize(count);
        for field in Field::ALL {
            let to = block.parameters.get_mut(field);
            let len = to.len();
            to.copy_from_slice(&pattern.parameters.get(field)[..len]);
        }
        if state {
            block.gradient_sum.fill(1.0);
            block.seen.fill(1);
            block.observed.fill(5);
        }
        for row in 0..count {
            block.anchor[row] = (first + row as u64) as u32;
            let ends = ends(first + row as u64);
            let planes = [&mut block.parameters, &mut block.first, &mut block.second];
            for plane in planes.into_iter().take(if state { 3 } else { 1 }) {
                if let [low, .., high] = plane.row_mut(Field::Rest, degree, row) {
                    [*low, *high] = ends;
                }
            }
        }
        change(&mut block, first);
        assert_eq!(device.append(&block).expect("room"), first);
        first += count as u64;
    }
}

/// The ends of a row's higher bands: halves of its number.
pub fn ends(row: u64) -> [f32; 2] {
    [(row & 0xffff) as f32, (row >> 16) as f32]
}

/// Rows from `start` on.
pub fn read(device: &mut CudaSplat, start: u64, rows: usize, content: BlockContent) -> RowBlock {
    let mut block = RowBlock::new(rows, device.layout().degree(), content);
    device.read(start, &mut block).expect("rows");
    block
}

/// Gives `look` all rows from `start` to `end`, block by block, with the number of each block's first row.
pub fn scan(
    device: &mut CudaSplat,
    (start, end): (u64, u64),
    content: BlockContent,
    mut look: impl FnMut(&RowBlock, u64),
) {
    let mut block = RowBlock::new(CHUNK, device.layout().degree(), content);
    for first in (start..end).step_by(CHUNK) {
        block.resize((end - first).min(CHUNK as u64) as usize);
        device.read(first, &mut block).expect("rows");
        look(&block, first);
    }
}

/// Copies the parameters and the anchor of a row.
pub fn copy_row((from, row): (&RowBlock, usize), (to, at): (&mut RowBlock, usize)) {
    let degree = from.degree();
    for field in Field::ALL {
        let values = from.parameters.row(field, degree, row);
        (to.parameters.row_mut(field, degree, at)).copy_from_slice(values);
    }
    to.anchor[at] = from.anchor[row];
}

/// The bits of a row that refinement copies: parameters and anchor.
pub fn parameters(block: &RowBlock, row: usize) -> Vec<u32> {
    let fields = Field::ALL.into_iter();
    let values = fields.flat_map(|field| block.parameters.row(field, block.degree(), row));
    let values = values.map(|v| v.to_bits());
    values.chain([block.anchor[row]]).collect()
}

/// The bits of a row that are 0 in new rows: moments and observations.
pub fn state(block: &RowBlock, row: usize) -> Vec<u32> {
    let degree = block.degree();
    let moments = [&block.first, &block.second].into_iter();
    let values = moments.flat_map(|planes| Field::ALL.map(|field| planes.row(field, degree, row)));
    let values = values.flatten().map(|v| v.to_bits());
    values.chain([block.observed[row]]).collect()
}

/// A hash of each plane's bits.
pub fn hashes(device: &mut CudaSplat) -> Vec<(PlaneKind, u64)> {
    let kinds: Vec<PlaneKind> = (device.layout().planes().iter()).map(|p| p.kind).collect();
    let mut sums: Vec<(PlaneKind, u64)> = kinds.into_iter().map(|kind| (kind, 1)).collect();
    let rows = (0, device.counts().rows);
    scan(device, rows, BlockContent::State, |block, _| {
        for (kind, sum) in &mut sums {
            let floats = |values: &[f32], sum| values.iter().fold(sum, |s, v| mix(s, v.to_bits()));
            let words = |values: &[u32], sum| values.iter().fold(sum, |s, v| mix(s, *v));
            *sum = match *kind {
                PlaneKind::Parameter(field) => floats(block.parameters.get(field), *sum),
                PlaneKind::First(field) => floats(block.first.get(field), *sum),
                PlaneKind::Second(field) => floats(block.second.get(field), *sum),
                PlaneKind::GradientSum => floats(&block.gradient_sum, *sum),
                PlaneKind::Seen => words(&block.seen, *sum),
                PlaneKind::Anchor => words(&block.anchor, *sum),
                PlaneKind::Observed => words(&block.observed, *sum),
            };
        }
    });
    sums
}

fn mix(sum: u64, word: u32) -> u64 {
    (sum ^ u64::from(word))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
}

/// The planes with other hashes.
pub fn changed(a: &[(PlaneKind, u64)], b: &[(PlaneKind, u64)]) -> Vec<PlaneKind> {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b).filter(|(a, b)| a != b);
    pairs.map(|(a, _)| a.0).collect()
}

/// Ends the questions of [`memory_stays`] if its work panics, too.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Checks that the GPU's free memory is the same to the byte before `work`, whenever another thread asks during it, and
/// afterwards. Returns how often the other thread asked, too.
pub fn memory_stays<T>(context: &Context, work: impl FnOnce() -> T) -> (T, usize) {
    let before = free(context);
    let done = AtomicBool::new(false);
    let (result, during) = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut found = Vec::new();
            while !done.load(Ordering::Acquire) {
                found.push(free(context));
                thread::sleep(Duration::from_micros(200));
            }
            found
        });
        let guard = Done(&done);
        let result = work();
        drop(guard);
        (result, asking.join().expect("free memory"))
    });
    assert_eq!(free(context), before, "free memory afterwards");
    for free in &during {
        assert_eq!(*free, before, "free memory during the work");
    }
    (result, during.len())
}

/// A mean that the camera sees well within its image, from 1 to 20 m away.
pub fn in_view(camera: &Camera, row: u64) -> [f32; 3] {
    let k = &camera.intrinsics;
    let z = 1.0 + 19.0 * f64::from(unit(row, 32));
    let along = |size: usize, k: u64| size as f64 * (0.05 + 0.9 * f64::from(unit(row, k)));
    let (u, v) = (along(camera.width, 33), along(camera.height, 34));
    [(u - k.cx) / k.fx * z, (v - k.cy) / k.fy * z, z].map(|v| v as f32)
}

/// Moves row `row` of a block, row number `number` of the map, into the camera's view or behind the camera.
pub fn place(block: &mut RowBlock, row: usize, number: u64, camera: &Camera, visible: bool) {
    let [x, y, z] = in_view(camera, number);
    let mean = if visible { [x, y, z] } else { [x, y, -z] };
    let degree = block.degree();
    let p = &mut block.parameters;
    p.row_mut(Field::Mean, degree, row).copy_from_slice(&mean);
    // As large in the image wherever it is.
    let size = (0.004 * z).ln();
    for (k, scale) in (35..).zip(p.row_mut(Field::Scale, degree, row)) {
        *scale = size + unit(number, k) - 0.5;
    }
}

//! What a solve keeps on the device, all of it fixed at start.

use super::super::{
    CudaError, DeviceArena, DeviceBuffer, DevicePointer, Element, KernelArgument, PinnedArena,
    PinnedBuffer,
};
use super::GlobalError;
use crate::compute::plan::Spec;
use half::f16;

/// Pixels of a word of bits.
const WORD: usize = 32;
/// Pixels that a block adds up: `kWarps * kTile` in `global.cu`.
const CHUNK: usize = 4096;
/// Words that a block tests: `kTestWords`.
const TEST_WORDS: usize = 64;
/// Pixels of a keyframe that a thread tests: `kMaskPixels`.
pub(super) const MASK_PIXELS: usize = 4;
/// Sums of a block: `kSums`.
const SUMS: usize = 32;
/// Bits of a keyframe's pixel: `kMasks`.
const MASKS: usize = 3;
/// Numbers of a pose on the device.
const POSE: usize = 8;
/// `ms::Pose`: a scaled rotation and a translation.
const RELATIVE: usize = 12;

/// The largest problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalCapacity {
    /// Pixels of a keyframe.
    pub pixels: usize,
    /// Keyframes that take part in a solve, fixed ones too.
    pub keyframes: usize,
    /// Edges of a solve, each of two directions.
    pub edges: usize,
}

impl GlobalCapacity {
    /// Refuses what the kernels cannot count.
    pub fn validate(self) -> Result<Self, GlobalError> {
        let most_blocks = i32::MAX as usize;
        let blocks = (2 * self.edges).saturating_mul(self.pixels.div_ceil(TEST_WORDS * WORD));
        let limits = [
            ("pixels of a keyframe", self.pixels, most_blocks),
            ("keyframes of a solve", self.keyframes, u16::MAX as usize),
            ("blocks of a solve's edges", blocks, most_blocks),
        ];
        match limits.into_iter().find(|(_, found, most)| found > most) {
            Some((what, found, most)) => Err(GlobalError::Capacity { what, found, most }),
            None => Ok(self),
        }
    }

    /// Words of one bit a pixel.
    pub(super) fn words(&self) -> usize {
        self.pixels.div_ceil(WORD)
    }

    /// Blocks that add up a direction.
    pub(super) fn chunks(&self) -> usize {
        self.pixels.div_ceil(CHUNK)
    }

    /// Blocks that test a direction.
    pub(super) fn test_blocks(&self) -> usize {
        self.words().div_ceil(TEST_WORDS)
    }

    /// The device buffers, in the order in which they are carved.
    pub fn device_buffers(&self) -> Vec<Spec> {
        let [k, d, e] = [self.keyframes, 2 * self.edges, self.edges];
        vec![
            Spec::of::<KeyframeArgument>("keyframes", &[k]),
            Spec::of::<DirectionArgument>("directions", &[d]),
            Spec::of::<f64>("poses", &[k, POSE]),
            Spec::of::<u8>("active edges", &[e]),
            Spec::of::<u32>("usable pixels", &[k, MASKS, self.words()]),
            Spec::of::<u32>("usable matches", &[d, self.words()]),
            Spec::of::<u64>("matches outside", &[1]),
            Spec::of::<f32>("relative poses", &[d, RELATIVE]),
            Spec::of::<f32>("sums", &[d, self.chunks(), SUMS]),
            Spec::of::<u32>("counts", &[d, self.chunks()]),
        ]
    }

    /// The pinned buffers, in the order in which they are carved.
    pub fn pinned_buffers(&self) -> Vec<Spec> {
        let [k, d, e] = [self.keyframes, 2 * self.edges, self.edges];
        vec![
            Spec::of::<KeyframeArgument>("keyframes", &[k]),
            Spec::of::<DirectionArgument>("directions", &[d]),
            Spec::of::<f64>("poses", &[k, POSE]),
            Spec::of::<u8>("active edges", &[e]),
            Spec::of::<u64>("matches outside", &[1]),
            Spec::of::<Equations>("equations", &[e]),
        ]
    }
}

/// `Keyframe` in `global.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KeyframeArgument {
    pub(super) points: DevicePointer<f32>,
    pub(super) confidence: DevicePointer<f16>,
}

// SAFETY: two addresses, any bits, as in `global.cu`; the host never follows them.
unsafe impl Element for KeyframeArgument {}

/// `Direction` in `global.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct DirectionArgument {
    pub(super) index: DevicePointer<u32>,
    pub(super) valid: DevicePointer<u8>,
    pub(super) quality: DevicePointer<f32>,
    pub(super) i: u32,
    pub(super) j: u32,
}

// SAFETY: three addresses and two u32 without padding, any bits, as in `global.cu`.
unsafe impl Element for DirectionArgument {}

/// `Equations` in `global.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Equations {
    /// Upper triangle, row by row.
    pub(super) hessian: [f64; 28],
    pub(super) gradient: [f64; 7],
    pub(super) robust: f64,
    pub(super) matches: u64,
}

// SAFETY: f64 and one u64 without padding, any bits, as in `global.cu`.
unsafe impl Element for Equations {}

impl Equations {
    /// Of an edge without matches.
    pub(super) const ZERO: Self = Self {
        hessian: [0.0; 28],
        gradient: [0.0; 7],
        robust: 0.0,
        matches: 0,
    };
}

/// `Problem` in `global.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProblemArgument {
    pub(super) keyframes: DevicePointer<KeyframeArgument>,
    pub(super) directions: DevicePointer<DirectionArgument>,
    pub(super) pixels: u32,
    pub(super) words: u32,
    pub(super) chunks: u32,
    pub(super) width: u32,
    pub(super) magic: u32,
    pub(super) shift: u32,
    pub(super) calibrated: u32,
    pub(super) quality: f32,
    pub(super) confidence: f32,
    pub(super) depth: f32,
    /// `Noise`: 1/σ of both, Huber's constant.
    pub(super) noise: [f32; 3],
    /// `View`: focal lengths, principal point, middle, reach, least depth.
    pub(super) view: [f32; 9],
    pub(super) inverse_focal: [f32; 2],
}

// SAFETY: the layout of the struct in `global.cu`.
unsafe impl KernelArgument for ProblemArgument {}

const _: () = {
    assert!(size_of::<KeyframeArgument>() == 16);
    assert!(size_of::<DirectionArgument>() == 32);
    assert!(size_of::<Equations>() == 296);
    assert!(size_of::<ProblemArgument>() == 112);
};

/// Buffers on the device.
pub(super) struct DeviceMemory {
    pub(super) keyframes: DeviceBuffer<KeyframeArgument>,
    pub(super) directions: DeviceBuffer<DirectionArgument>,
    pub(super) poses: DeviceBuffer<f64>,
    pub(super) active: DeviceBuffer<u8>,
    pub(super) masks: DeviceBuffer<u32>,
    pub(super) gates: DeviceBuffer<u32>,
    pub(super) outside: DeviceBuffer<u64>,
    pub(super) relative: DeviceBuffer<f32>,
    pub(super) sums: DeviceBuffer<f32>,
    pub(super) used: DeviceBuffer<u32>,
}

impl DeviceMemory {
    pub(super) fn new(arena: &mut DeviceArena, c: &GlobalCapacity) -> Result<Self, CudaError> {
        let [k, d, e] = [c.keyframes, 2 * c.edges, c.edges];
        Ok(Self {
            keyframes: arena.carve("keyframes", k)?,
            directions: arena.carve("directions", d)?,
            poses: arena.carve("poses", POSE * k)?,
            active: arena.carve("active edges", e)?,
            masks: arena.carve("usable pixels", MASKS * c.words() * k)?,
            gates: arena.carve("usable matches", c.words() * d)?,
            outside: arena.carve("matches outside", 1)?,
            relative: arena.carve("relative poses", RELATIVE * d)?,
            sums: arena.carve("sums", SUMS * c.chunks() * d)?,
            used: arena.carve("counts", c.chunks() * d)?,
        })
    }
}

/// Buffers on the host that the device copies from and to, or writes.
pub(super) struct PinnedMemory {
    pub(super) keyframes: PinnedBuffer<KeyframeArgument>,
    pub(super) directions: PinnedBuffer<DirectionArgument>,
    pub(super) poses: PinnedBuffer<f64>,
    pub(super) active: PinnedBuffer<u8>,
    pub(super) outside: PinnedBuffer<u64>,
    pub(super) equations: PinnedBuffer<Equations>,
    /// Where the device writes them: a copy afterwards would cost more than the writing.
    pub(super) equations_on_device: DevicePointer<Equations>,
}

impl PinnedMemory {
    pub(super) fn new(arena: &mut PinnedArena, c: &GlobalCapacity) -> Result<Self, CudaError> {
        let [k, d, e] = [c.keyframes, 2 * c.edges, c.edges];
        let keyframes = arena.carve("keyframes", k)?;
        let directions = arena.carve("directions", d)?;
        let poses = arena.carve("poses", POSE * k)?;
        let active = arena.carve("active edges", e)?;
        let outside = arena.carve("matches outside", 1)?;
        let equations: PinnedBuffer<Equations> = arena.carve("equations", e)?;
        Ok(Self {
            keyframes,
            directions,
            poses,
            active,
            outside,
            equations_on_device: equations.on_device()?,
            equations,
        })
    }
}

/// `(magic, shift)` with `n / width = (n·magic >> 32) >> shift` for all `n` below 2³¹: with
/// `magic = ⌈2^(31+l)/width⌉`, `l = ⌈log₂ width⌉`, the error is below `n·2^l / 2^(31+l)/width`.
pub(super) fn division(width: u32) -> (u32, u32) {
    let l = width.max(2).next_power_of_two().trailing_zeros();
    let magic = (1_u64 << (31 + l)).div_ceil(u64::from(width.max(1)));
    // 2^32 for a width of 1, whose only pixel then is 0; else below.
    (u32::try_from(magic).unwrap_or(u32::MAX), l - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_multiplication_is_exact() {
        let of = |n: u32, (magic, shift): (u32, u32)| {
            ((u64::from(n) * u64::from(magic)) >> 32) as u32 >> shift
        };
        for width in (2..600).chain([1023, 1024, 1025, 4095, 4096, 65_535]) {
            let division = division(width);
            let edges = (1..=((1_u64 << 31) - 1) / u64::from(width))
                .step_by(1 + 50_000_000 / width as usize / width as usize);
            for row in edges {
                let first = (row * u64::from(width)) as u32;
                for n in [first - 1, first] {
                    assert_eq!(of(n, division), n / width, "{n} / {width}");
                }
            }
            let last = (1 << 31) - 1;
            assert_eq!(of(last, division), last / width);
        }
    }

    #[test]
    fn what_the_kernels_cannot_count_is_refused() {
        let good = GlobalCapacity {
            pixels: 196_608,
            keyframes: 200,
            edges: 300,
        };
        assert_eq!(good.validate().unwrap(), good);
        let bad = |change: fn(&mut GlobalCapacity)| {
            let mut capacity = good;
            change(&mut capacity);
            capacity.validate().unwrap_err().to_string()
        };
        assert!(bad(|c| c.pixels = 1 << 31).starts_with("pixels of a keyframe"));
        assert!(bad(|c| c.keyframes = 70_000).starts_with("keyframes of a solve"));
        assert!(bad(|c| c.edges = 12_000_000).starts_with("blocks of a solve's edges"));
        // The largest of issue 3: gates and sums, not copies of the matches.
        let total: u64 = good.device_buffers().iter().map(Spec::bytes).sum();
        assert!(total < 35 << 20, "{total}");
    }
}

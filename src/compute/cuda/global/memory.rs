//! Device memory of a solve, fixed at start-up.

use super::GlobalError;
use crate::gpu::{
    Carver, CudaError, DeviceBuffer, DevicePointer, Element, KernelArgument, PinnedBuffer,
};
use half::f16;

/// Pixels per word of bits.
const WORD: usize = 32;
/// Pixels summed per block: `kWarps * kTile` in `global.cu`.
const CHUNK: usize = 4096;
/// Words tested per block: `kTestWords`.
const TEST_WORDS: usize = 64;
/// Keyframe pixels tested per thread: `kMaskPixels`.
pub(super) const MASK_PIXELS: usize = 4;
/// Sums per block: `kSums`.
const SUMS: usize = 32;
/// Bits per keyframe pixel: `kMasks`.
const MASKS: usize = 3;
/// Values per pose on the device.
const POSE: usize = 8;
/// Values of `ms::Pose`: a scaled rotation and a translation.
const RELATIVE: usize = 12;

/// The maximum problem size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalCapacity {
    /// Pixels per keyframe.
    pub pixels: usize,
    /// Keyframes in a solve, including fixed ones.
    pub keyframes: usize,
    /// Edges in a solve, with two directions each.
    pub edges: usize,
}

impl GlobalCapacity {
    /// Rejects sizes that the kernels cannot represent.
    pub fn validate(self) -> Result<Self, GlobalError> {
        let max_blocks = i32::MAX as usize;
        let blocks = (2 * self.edges).saturating_mul(self.pixels.div_ceil(TEST_WORDS * WORD));
        let limits = [
            ("pixels of a keyframe", self.pixels, max_blocks),
            ("keyframes of a solve", self.keyframes, u16::MAX as usize),
            ("blocks of a solve's edges", blocks, max_blocks),
        ];
        match limits.into_iter().find(|(_, found, max)| found > max) {
            Some((what, found, max)) => Err(GlobalError::Capacity { what, found, max }),
            None => Ok(self),
        }
    }

    /// Words of one bit per pixel.
    pub(super) fn words(&self) -> usize {
        self.pixels.div_ceil(WORD)
    }

    /// Blocks that sum one direction.
    pub(super) fn chunks(&self) -> usize {
        self.pixels.div_ceil(CHUNK)
    }

    /// Blocks that test one direction.
    pub(super) fn test_blocks(&self) -> usize {
        self.words().div_ceil(TEST_WORDS)
    }
}

/// `Keyframe` in `global.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KeyframeArgument {
    pub(super) points: DevicePointer<f32>,
    pub(super) confidence: DevicePointer<f16>,
}

// SAFETY: two addresses, any bits, as in `global.cu`; the host never dereferences them.
unsafe impl Element for KeyframeArgument {}

/// `Direction` in `global.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct DirectionArgument {
    pub(super) index: DevicePointer<u32>,
    pub(super) quality: DevicePointer<f16>,
    pub(super) i: u32,
    pub(super) j: u32,
}

// SAFETY: two addresses and two u32 without padding, any bits, as in `global.cu`.
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
    /// Equations of an edge without matches.
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
    /// `Noise`: 1/σ of both components, Huber constant.
    pub(super) noise: [f32; 3],
    /// `View`: focal lengths, principal point, middle, reach, minimum depth.
    pub(super) view: [f32; 9],
    pub(super) inverse_focal: [f32; 2],
}

// SAFETY: the layout of the struct in `global.cu`.
unsafe impl KernelArgument for ProblemArgument {}

const _: () = {
    assert!(size_of::<KeyframeArgument>() == 16);
    assert!(size_of::<DirectionArgument>() == 24);
    assert!(size_of::<Equations>() == 296);
    assert!(size_of::<ProblemArgument>() == 112);
};

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
    fn carve(device: &mut Carver<'_, '_>, capacity: &GlobalCapacity) -> Result<Self, CudaError> {
        let [k, d, e] = [capacity.keyframes, 2 * capacity.edges, capacity.edges];
        let (words, chunks) = (capacity.words(), capacity.chunks());
        Ok(Self {
            keyframes: device.device("keyframes", &[k])?,
            directions: device.device("directions", &[d])?,
            poses: device.device("poses", &[k, POSE])?,
            active: device.device("active edges", &[e])?,
            masks: device.device("usable pixels", &[k, MASKS, words])?,
            gates: device.device("usable matches", &[d, words])?,
            outside: device.device("matches outside", &[1])?,
            relative: device.device("relative poses", &[d, RELATIVE])?,
            sums: device.device("sums", &[d, chunks, SUMS])?,
            used: device.device("counts", &[d, chunks])?,
        })
    }
}

/// Pinned buffers for copies to and from the device, or written by the device directly.
pub(super) struct PinnedMemory {
    pub(super) keyframes: PinnedBuffer<KeyframeArgument>,
    pub(super) directions: PinnedBuffer<DirectionArgument>,
    pub(super) poses: PinnedBuffer<f64>,
    pub(super) active: PinnedBuffer<u8>,
    pub(super) outside: PinnedBuffer<u64>,
    /// The device writes here: a copy afterwards would cost more than the writing.
    pub(super) equations: PinnedBuffer<Equations>,
}

impl PinnedMemory {
    fn carve(pinned: &mut Carver<'_, '_>, capacity: &GlobalCapacity) -> Result<Self, CudaError> {
        let [k, d, e] = [capacity.keyframes, 2 * capacity.edges, capacity.edges];
        Ok(Self {
            keyframes: pinned.pinned("keyframes", &[k])?,
            directions: pinned.pinned("directions", &[d])?,
            poses: pinned.pinned("poses", &[k, POSE])?,
            active: pinned.pinned("active edges", &[e])?,
            outside: pinned.pinned("matches outside", &[1])?,
            equations: pinned.pinned("equations", &[e])?,
        })
    }
}

/// Memory of a [`super::DeviceGlobalSolver`].
pub struct GlobalBuffers {
    pub(super) capacity: GlobalCapacity,
    pub(super) device: DeviceMemory,
    pub(super) pinned: PinnedMemory,
}

impl GlobalBuffers {
    /// Buffers for problems up to `capacity`.
    pub fn carve(c: &mut Carver<'_, '_>, capacity: GlobalCapacity) -> Result<Self, CudaError> {
        Ok(Self {
            device: DeviceMemory::carve(c, &capacity)?,
            pinned: PinnedMemory::carve(c, &capacity)?,
            capacity,
        })
    }
}

/// `(magic, shift)` such that `n / width = (n·magic >> 32) >> shift` for all `n` below 2³¹: with
/// `magic = ⌈2^(31+l)/width⌉`, `l = ⌈log₂ width⌉`, the error is below `n·2^l / 2^(31+l)/width`.
pub(super) fn division(width: u32) -> (u32, u32) {
    let l = width.max(2).next_power_of_two().trailing_zeros();
    let magic = (1_u64 << (31 + l)).div_ceil(u64::from(width.max(1)));
    // 2^32 for a width of 1, where the only pixel is 0; smaller otherwise.
    (u32::try_from(magic).unwrap_or(u32::MAX), l - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Carving;
    use crate::gpu::plan::Group;

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
        // Gates and sums, not copies of the matches.
        let mut carving = Carving::on_paper();
        let mut part = carving.part(Group::Mapping, "solve");
        GlobalBuffers::carve(&mut part, good).expect("on paper");
        let total = carving.into_plan().device_bytes();
        assert!(total < 35 << 20, "{total}");
    }
}

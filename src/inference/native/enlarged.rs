//! The kernels of `enlarged.cu`: a convolution of a map that is enlarged on the way.

use super::name::{Name, name};
use super::operand::HALF;

/// Outputs of each kernel.
pub(super) const OUTPUTS: usize = 32;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Columns and lines of a block's output pixels.
const TILE: [usize; 2] = [32, 8];

/// A kernel of `enlarged.cu`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: Name,
    pub(super) channels: usize,
    /// With the layer of points that follows.
    pub(super) points: bool,
}

pub(super) const KINDS: [Kind; 2] = [
    Kind {
        name: name!("ms_native_enlarged_64"),
        channels: 64,
        points: false,
    },
    Kind {
        name: name!("ms_native_enlarged_32_points"),
        channels: 32,
        points: true,
    },
];

impl Kind {
    /// As in `enlarged.cu`: pixels, filters, bias and last weights, places between pixels.
    pub(super) fn shared_bytes(&self) -> u32 {
        const FILL: usize = 8;
        let [columns, lines] = TILE.map(|n| n + 2);
        let halves =
            columns * lines * (self.channels + FILL) + OUTPUTS * (9 * self.channels + FILL);
        (halves * HALF + OUTPUTS * 5 * size_of::<f32>() + (columns + lines) * 12) as u32
    }
}

/// Whether there is a kernel for a convolution.
pub(super) fn suits(channels: usize, outputs: usize, points: bool) -> bool {
    let mut kinds = KINDS.iter();
    outputs == OUTPUTS && kinds.any(|kind| (kind.channels, kind.points) == (channels, points))
}

/// Blocks of a map of so many rows and columns.
pub(super) fn tiles([height, width]: [usize; 2]) -> usize {
    width.div_ceil(TILE[0]) * height.div_ceil(TILE[1])
}

#[cfg(test)]
mod tests {
    use super::{KINDS, tiles};

    /// Two blocks of a desktop GPU's multiprocessor would be one too many for the larger kernel; one must fit.
    #[test]
    fn kernels_fit_a_multiprocessor() {
        for kind in KINDS {
            assert!(kind.shared_bytes() <= 99 << 10, "{kind:?}");
        }
    }

    #[test]
    fn tiles_cover_a_map() {
        assert_eq!(tiles([384, 512]), 48 * 16);
        assert_eq!(tiles([1, 33]), 2);
        assert_eq!(tiles([9, 32]), 2);
    }
}

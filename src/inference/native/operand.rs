//! Operands of the steps, what they stand for in a run, and the sizes that the kernels support.

/// Bytes of a 16-bit number.
pub(super) const HALF: usize = 2;
/// Bytes of a binary32 number.
pub(super) const SINGLE: usize = 4;
/// Channels of a head that there is a kernel for; heads of others are filled up with zeros.
pub(super) const HEADS: [usize; 3] = [16, 32, 64];
/// Queries, and keys, of a tile of the portable attention.
pub(super) const ATTENTION_TILE: usize = 64;
/// Greatest width of a token.
pub(super) const WIDEST: usize = 1024;

/// Shared memory of a block of the portable attention with heads of `head` channels: two tiles of keys and two of
/// values.
pub(super) const fn attention_shared_bytes(head: usize) -> u32 {
    (4 * ATTENTION_TILE * head * HALF) as u32
}

/// Shared memory of a block of points from maps of `channels` channels: the weights of four outputs.
pub(super) const fn points_shared_bytes(channels: usize) -> u32 {
    (4 * channels * size_of::<f32>()) as u32
}

/// Memory of the caller that several kinds of steps touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum External {
    /// The encoder's output, `T × C` binary32; a run writes this or [`External::HalfFeatures`].
    Features,
    /// The encoder's output as 16-bit numbers.
    HalfFeatures,
    /// The decoder's input of a view, `B × T × C`; see [`Addresses::half_tokens`].
    View(usize),
}

/// An operand of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    /// Absent.
    None,
    /// Bytes from the start of the weights.
    Weight(usize),
    /// A buffer, and bytes from its start.
    Buffer(usize, usize),
    /// Bytes from the start of the workspace: a buffer that has been placed.
    Workspace(usize),
    External(External),
}

impl Operand {
    /// `bytes` further on.
    pub(super) fn offset(self, bytes: usize) -> Self {
        match self {
            Self::Buffer(buffer, at) => Self::Buffer(buffer, at + bytes),
            Self::Workspace(at) => Self::Workspace(at + bytes),
            Self::Weight(at) => Self::Weight(at + bytes),
            other => other,
        }
    }
}

/// What operands stand for in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) weights: u64,
    pub(super) workspace: u64,
    /// The encoder's input, `3 × H × W` binary32.
    pub(super) planes: u64,
    /// Where the encoder's output goes, one of them 0.
    pub(super) features: u64,
    pub(super) half_features: u64,
    /// The decoder's inputs, and whether they are 16-bit numbers, not binary32.
    pub(super) views: [u64; 2],
    pub(super) half_tokens: bool,
    /// Outputs per view, in the order of [`crate::inference::DeviceView::slices`].
    pub(super) outputs: [[u64; 4]; 2],
    /// Counts of unusable pixels per view, one for each image; 0: the outputs are not sanitised.
    pub(super) unusable: [u64; 2],
}

impl Addresses {
    /// With the address of the network's weights; the rest is unknown yet.
    pub(super) fn new(weights: u64) -> Self {
        Self {
            weights,
            workspace: 0,
            planes: 0,
            features: 0,
            half_features: 0,
            views: [0; 2],
            half_tokens: false,
            outputs: [[0; 4]; 2],
            unusable: [0; 2],
        }
    }

    pub(super) fn of(&self, operand: Operand) -> u64 {
        match operand {
            Operand::None | Operand::Buffer(..) => 0,
            Operand::Weight(at) => self.weights + at as u64,
            Operand::Workspace(at) => self.workspace + at as u64,
            Operand::External(external) => match external {
                External::Features => self.features,
                External::HalfFeatures => self.half_features,
                External::View(view) => self.views[view % 2],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HEADS, attention_shared_bytes, points_shared_bytes};
    use crate::gpu::Half;
    use crate::inference::native::enlarged;
    use crate::inference::native::name::{Name, name};
    use crate::inference::native::size::SIZES;
    use crate::inference::native::tile::{NARROW, Quantised, SMALL, WIDE};
    use std::collections::BTreeMap;

    /// `.ci/kernels.py` checks by that list that every kernel fits on each kind of GPU.
    #[test]
    fn the_list_of_dynamic_shared_memory_is_that_of_the_launches() {
        let mut expected = BTreeMap::new();
        for half in [Half::F16, Half::Bf16] {
            let mut add = |name: Name, bytes| expected.insert(name.of(half), bytes);
            let attention = [
                name!("ms_native_attention_16"),
                name!("ms_native_attention_32"),
                name!("ms_native_attention_64"),
            ];
            for (name, head) in attention.into_iter().zip(HEADS) {
                add(name, attention_shared_bytes(head));
            }
            // Maps of the official network have the most channels.
            add(name!("ms_native_points"), points_shared_bytes(128));
            // Their file declares such memory, and they take none.
            add(name!("ms_native_descriptors"), 0);
            add(name!("ms_native_enlarge"), 0);
            for kind in enlarged::KINDS {
                add(kind.name, kind.shared_bytes());
            }
            for kind in SIZES {
                add(kind.name, kind.shared_bytes());
            }
            for tile in [NARROW, SMALL].iter().chain(&WIDE) {
                for name in tile.kernels() {
                    add(name, tile.block().shared_bytes);
                }
            }
        }
        expected.insert(Quantised::NAME, Quantised::BLOCK.shared_bytes);
        let list = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/kernels/shared_memory.txt"
        ));
        for (name, bytes) in expected {
            let row = format!("{name} all {bytes}");
            assert!(
                list.lines().any(|line| line == row),
                "kernels/shared_memory.txt lacks {row:?}"
            );
        }
    }
}

//! The steps of a plan.

use super::operand::Operand;

/// What a linear layer or convolution does beside the product; bits as in `linear.cu`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    pub const NONE: Self = Self(0);
    /// `max(x, 0)` of the input.
    pub const RELU_INPUT: Self = Self(1);
    pub const GELU: Self = Self(2);
    pub const RELU: Self = Self(4);
    /// The output is binary32.
    pub const OUT_F32: Self = Self(8);
    /// The first summand is binary32.
    pub const ADD_F32: Self = Self(16);

    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A map's extents around a 3×3 convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) out_height: usize,
    pub(super) out_width: usize,
    /// Channels of an input pixel.
    pub(super) channels: usize,
    pub(super) step: usize,
}

/// How a linear layer finds its inputs and puts its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Rows,
    /// 3×3, padded by one pixel.
    Convolution(Map),
    /// Each row's outputs are a patch of `side × side` pixels of a map whose input has rows of `width`.
    Patches {
        side: usize,
        width: usize,
    },
}

/// Outputs that are rotated by their token's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rotation {
    /// `tokens × head`, see [`super::layer::rotary`].
    pub(super) table: Operand,
    pub(super) tokens: usize,
    /// Channels of a head.
    pub(super) head: usize,
    /// Outputs are parts of so many; bit `i` of `parts`: part `i` is rotated.
    pub(super) part: usize,
    pub(super) parts: u32,
}

/// A value that is added to a layer's outputs, of the outputs' layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summand {
    pub(super) at: Operand,
    /// Elements from group to group.
    pub(super) group: usize,
}

impl Summand {
    pub(super) const NONE: Self = Self {
        at: Operand::None,
        group: 0,
    };
}

/// `out = act(A · Wᵀ + bias) + first + second` for each of `groups` groups with weights of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Linear {
    pub(super) a: Operand,
    /// Elements of `a` from row to row (or pixel to pixel), and from group to group.
    pub(super) a_stride: usize,
    pub(super) a_group: usize,
    pub(super) weight: usize,
    /// Where weights are E4M3 numbers: the factors of the outputs' sums.
    pub(super) scale: Option<usize>,
    pub(super) bias: usize,
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) groups: usize,
    pub(super) form: Form,
    pub(super) rotation: Option<Rotation>,
    pub(super) flags: Flags,
    pub(super) first: Summand,
    pub(super) second: Summand,
    pub(super) out: Operand,
    /// As for `a`.
    pub(super) out_stride: usize,
    pub(super) out_group: usize,
}

/// One launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Linear(Linear),
    Attention {
        /// Queries, keys, values: elements from token to token.
        inputs: [(Operand, usize); 3],
        out: Operand,
        tokens: usize,
        heads: usize,
        head: usize,
        /// Items that are computed, of `items`; item `i` reads keys and values of item `i + shift`.
        wanted: usize,
        items: usize,
        shift: usize,
    },
    Patches {
        height: usize,
        width: usize,
        patch: usize,
        out: Operand,
        stride: usize,
    },
    Norm {
        x: Operand,
        /// Scale and offset.
        gain: [Operand; 2],
        /// binary16, and its elements from row to row.
        out: Operand,
        stride: usize,
        out_f32: Operand,
        rows: usize,
        width: usize,
        epsilon: u32,
    },
    Convert {
        views: [Operand; 2],
        /// Views that are converted.
        wanted: usize,
        items: usize,
        tokens: usize,
        width: usize,
        partner: bool,
        out: Operand,
        stride: usize,
    },
    Copy {
        from: Operand,
        to: Operand,
        bytes: usize,
    },
    Enlarge {
        x: Operand,
        out: Operand,
        images: usize,
        channels: usize,
        from: [usize; 2],
        full: [usize; 2],
        kept: [usize; 2],
    },
    /// A 3×3 convolution of a map enlarged to `to` rows and columns.
    Enlarged {
        x: Operand,
        weight: usize,
        bias: usize,
        /// Absent with points.
        out: Operand,
        /// Weight and bias of the layer of points that follows, after `max(x, 0)`; the outputs are then sanitised.
        points: Option<[Operand; 2]>,
        /// Values of a descriptor.
        dim: usize,
        views: usize,
        /// Images of a view.
        images: usize,
        channels: usize,
        outputs: usize,
        from: [usize; 2],
        to: [usize; 2],
    },
    /// Those of one image of a view, and sanitising of all its outputs.
    Points {
        x: Operand,
        weight: Operand,
        bias: Operand,
        view: usize,
        item: usize,
        pixels: usize,
        channels: usize,
        /// Values of a descriptor.
        dim: usize,
    },
    Descriptors {
        x: Operand,
        views: usize,
        items: usize,
        height: usize,
        width: usize,
        patch: usize,
        dim: usize,
        stride: usize,
    },
}

impl Step {
    /// Calls `f` with each operand that may lie in the workspace.
    pub(super) fn for_operands(&mut self, mut f: impl FnMut(&mut Operand)) {
        match self {
            Self::Linear(linear) => {
                let Linear {
                    a,
                    first,
                    second,
                    out,
                    ..
                } = linear;
                [a, &mut first.at, &mut second.at, out]
                    .into_iter()
                    .for_each(f);
            }
            Self::Attention { inputs, out, .. } => {
                inputs.iter_mut().for_each(|(input, _)| f(input));
                f(out);
            }
            Self::Patches { out, .. } => f(out),
            Self::Norm {
                x, out, out_f32, ..
            } => [x, out, out_f32].into_iter().for_each(f),
            Self::Convert { views, out, .. } => {
                views.iter_mut().for_each(&mut f);
                f(out);
            }
            Self::Copy { from, to, .. } => [from, to].into_iter().for_each(f),
            Self::Enlarge { x, out, .. } | Self::Enlarged { x, out, .. } => {
                [x, out].into_iter().for_each(f);
            }
            Self::Points { x, .. } | Self::Descriptors { x, .. } => f(x),
        }
    }
}

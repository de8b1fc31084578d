//! Operands of the steps, what they stand for in a run, and the sizes that the kernels support.

/// Bytes of a 16-bit number.
pub(super) const HALF: usize = 2;
/// Channels of a head that there is a kernel for; heads of others are filled up with zeros.
pub(super) const HEADS: [usize; 3] = [16, 32, 64];
/// Greatest width of a token.
pub(super) const WIDEST: usize = 1024;

/// Memory of the caller that several kinds of steps touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum External {
    /// The encoder's output, `T × C` binary32.
    Features,
    /// The decoder's input of a view, `B × T × C` binary32.
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
    pub(super) features: u64,
    /// The decoder's inputs.
    pub(super) views: [u64; 2],
    /// Outputs per view, in the order of [`crate::inference::DeviceView::slices`].
    pub(super) outputs: [[u64; 4]; 2],
}

impl Addresses {
    /// With the address of the network's weights; the rest is unknown yet.
    pub(super) fn new(weights: u64) -> Self {
        Self {
            weights,
            workspace: 0,
            planes: 0,
            features: 0,
            views: [0; 2],
            outputs: [[0; 4]; 2],
        }
    }

    pub(super) fn of(&self, operand: Operand) -> u64 {
        match operand {
            Operand::None | Operand::Buffer(..) => 0,
            Operand::Weight(at) => self.weights + at as u64,
            Operand::Workspace(at) => self.workspace + at as u64,
            Operand::External(external) => match external {
                External::Features => self.features,
                External::View(view) => self.views[view % 2],
            },
        }
    }
}

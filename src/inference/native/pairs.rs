//! The pairs of images of one decoding.

/// Which pairs are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Pairs {
    /// One pair; only view 1's outputs are wanted.
    First,
    /// One pair.
    Both,
    /// So many pairs both ways: item `i` is image `i` with image `i ^ 1`.
    BothWays(usize),
}

impl Pairs {
    /// Items that are decoded: each has two views.
    pub(super) fn items(self) -> usize {
        match self {
            Self::First | Self::Both => 1,
            Self::BothWays(edges) => 2 * edges,
        }
    }

    /// Views whose outputs are wanted.
    pub(super) fn views(self) -> usize {
        match self {
            Self::First => 1,
            Self::Both | Self::BothWays(_) => 2,
        }
    }
}

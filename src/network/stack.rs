//! The dimensions of a stack of transformer blocks.

/// One stack of transformer blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// Channels per token.
    pub width: usize,
    /// Number of blocks (per branch, for the decoder).
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Hidden channels of the MLP.
    pub hidden: usize,
}

//! The size of one call of the network: images, columns and rows, in whole patches.

/// Side of a patch in pixels, MASt3R encoder. DUNE uses [`super::dune::PATCH`].
pub const PATCH: usize = 16;

/// Input size of an emitted model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputSize {
    /// Images (encoder) or pairs (decoder) per call.
    pub batch: usize,
    /// Columns; a multiple of the patch side.
    pub width: usize,
    /// Rows; a multiple of the patch side.
    pub height: usize,
    /// Side of a patch in pixels.
    pub(super) patch: usize,
}

impl InputSize {
    /// The size for networks with MASt3R's own encoder; `None` unless both sides are positive
    /// multiples of 16 and the batch is not empty. For any network, see
    /// [`Architecture::input_size`](super::Architecture::input_size).
    pub fn new(batch: usize, width: usize, height: usize) -> Option<Self> {
        Self::in_patches(PATCH, batch, width, height)
    }

    pub(super) fn in_patches(
        patch: usize,
        batch: usize,
        width: usize,
        height: usize,
    ) -> Option<Self> {
        let side = |n: usize| n > 0 && n.is_multiple_of(patch);
        (batch > 0 && side(width) && side(height)).then_some(Self {
            batch,
            width,
            height,
            patch,
        })
    }

    /// The same image size with batch size `batch`; `None` if that is zero.
    pub fn with_batch(self, batch: usize) -> Option<Self> {
        (batch > 0).then_some(Self { batch, ..self })
    }

    /// Number of token columns.
    pub fn columns(&self) -> usize {
        self.width / self.patch
    }

    /// Number of token rows.
    pub fn rows(&self) -> usize {
        self.height / self.patch
    }

    /// Number of tokens per image.
    pub fn tokens(&self) -> usize {
        self.columns() * self.rows()
    }
}

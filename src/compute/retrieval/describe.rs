//! Computes an image's description from its features (docs/algorithm.md, Place recognition).

use super::{
    BinaryWords, Nearest, RetrievalError, RetrievalModel, binary_residuals, strongest, whiten,
};

/// Maximum number of features used per image: those with the largest norm after whitening.
pub const MAX_FEATURES: usize = 300;

/// Words to which a feature of a query is assigned; a stored feature is assigned to one.
pub const QUERY_NEAREST: usize = 5;

/// Description of an image for place recognition. Reusable: [`RetrievalModel::describe`] replaces
/// its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    /// Bits per word, `C`.
    pub(super) dim: usize,
    /// Features aggregated in their five nearest words.
    pub query: BinaryWords,
    /// Features aggregated in their nearest word.
    pub stored: BinaryWords,
}

/// Buffers that [`RetrievalModel::describe`] reuses from image to image.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    whitened: Vec<f32>,
    kept: Vec<u32>,
    /// The strongest whitened features.
    pub(super) rows: Vec<f32>,
    nearest: Vec<Nearest>,
    assignments: Vec<(u32, u32)>,
    sum: Vec<f32>,
}

impl RetrievalModel {
    /// Describes an image by its encoder features, `T × C` in row-major order (as returned by
    /// [`crate::inference::Backend::encode`]).
    ///
    /// # Errors
    /// [`RetrievalError::FeatureLength`], [`RetrievalError::NotFinite`] or
    /// [`RetrievalError::AllZero`]; `dst` is then unspecified but usable.
    pub fn describe(
        &self,
        features: &[f32],
        scratch: &mut Scratch,
        dst: &mut Description,
    ) -> Result<(), RetrievalError> {
        let dim = self.dim();
        self.local_features(features, scratch)?;
        let count = scratch.rows.len() / dim;
        scratch.nearest.clear();
        scratch.nearest.resize(count * QUERY_NEAREST, Nearest::NONE);
        self.codebook()
            .nearest(&scratch.rows, QUERY_NEAREST, &mut scratch.nearest);

        dst.dim = dim;
        for (count, words) in [(QUERY_NEAREST, &mut dst.query), (1, &mut dst.stored)] {
            scratch.assignments.clear();
            for (row, nearest) in scratch.nearest.chunks_exact(QUERY_NEAREST).enumerate() {
                // With a codebook of fewer than `count` words, some entries are empty.
                let found = nearest[..count].iter().filter(|n| **n != Nearest::NONE);
                scratch
                    .assignments
                    .extend(found.map(|n| (n.word, row as u32)));
            }
            binary_residuals(
                self.codebook(),
                &scratch.rows,
                &mut scratch.assignments,
                &mut scratch.sum,
                words,
            );
        }
        Ok(())
    }

    /// Whitens features and stores the strongest in `scratch.rows`.
    pub(super) fn local_features(
        &self,
        features: &[f32],
        scratch: &mut Scratch,
    ) -> Result<(), RetrievalError> {
        let dim = self.dim();
        check_features(features, dim)?;
        scratch.whitened.clear();
        scratch.whitened.resize(features.len(), 0.0);
        whiten(
            features,
            self.mean(),
            self.projection(),
            &mut scratch.whitened,
        );
        // Finite f64 values can still overflow when rounded to f32.
        check_finite(&scratch.whitened, dim)?;
        strongest(&scratch.whitened, dim, MAX_FEATURES, &mut scratch.kept);
        scratch.rows.clear();
        for &row in &scratch.kept {
            let start = row as usize * dim;
            scratch
                .rows
                .extend_from_slice(&scratch.whitened[start..start + dim]);
        }
        Ok(())
    }
}

fn check_finite(rows: &[f32], dim: usize) -> Result<(), RetrievalError> {
    match rows.iter().position(|v| !v.is_finite()) {
        Some(at) => Err(RetrievalError::NotFinite { row: at / dim }),
        None => Ok(()),
    }
}

/// Checks that features are `T × dim`, finite and not all zero.
pub(super) fn check_features(features: &[f32], dim: usize) -> Result<(), RetrievalError> {
    if features.is_empty() || dim == 0 || !features.len().is_multiple_of(dim) {
        return Err(RetrievalError::FeatureLength {
            dim,
            found: features.len(),
        });
    }
    check_finite(features, dim)?;
    if features.iter().all(|&v| v == 0.0) {
        return Err(RetrievalError::AllZero);
    }
    Ok(())
}

//! Retrieval models.

use super::{Codebook, RetrievalError};

/// Maximum dimension: keeps sums of `C³` over all words of an image within 64 bits.
pub(super) const MAX_DIM: usize = 1 << 14;

/// Whitening and visual words for the features of one network.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrievalModel {
    /// `C`.
    mean: Vec<f64>,
    /// `C × C`, applied to a row vector from the right.
    projection: Vec<f64>,
    /// `K × C`.
    codebook: Codebook,
    info: CodebookInfo,
}

/// Origin of a codebook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CodebookInfo {
    /// Hash of the weights whose features it was learnt from; empty if unknown.
    pub weights_hash: String,
    /// Number of images it was learnt from; 0 if unknown.
    pub images: usize,
}

impl RetrievalModel {
    /// Builds a model from a mean (`C`), a projection (`C × C`) and centroids (`K × C`).
    ///
    /// # Errors
    /// [`RetrievalError::Model`] if sizes do not match or a value is not finite.
    pub fn new(
        mean: Vec<f64>,
        projection: Vec<f64>,
        centroids: &[f32],
        info: CodebookInfo,
    ) -> Result<Self, RetrievalError> {
        let dim = mean.len();
        let wrong = |expected: String, found: String| RetrievalError::Model { expected, found };
        if dim == 0 || dim > MAX_DIM {
            return Err(wrong(
                format!("a dimension of 1 to {MAX_DIM}"),
                format!("a mean of {dim} values"),
            ));
        }
        if projection.len() != dim * dim {
            return Err(wrong(
                format!("a projection of {dim} × {dim}, as the mean has {dim} values"),
                format!("{} values", projection.len()),
            ));
        }
        if mean.iter().chain(&projection).any(|v| !v.is_finite()) {
            return Err(wrong(
                "a finite mean and projection".into(),
                "NaN or infinity".into(),
            ));
        }
        let codebook = Codebook::new(dim, centroids).ok_or_else(|| {
            let finite = centroids.iter().all(|v| v.is_finite());
            wrong(
                format!("finite centroids of {dim} values each, at least one"),
                format!(
                    "{} values{}",
                    centroids.len(),
                    if finite {
                        ""
                    } else {
                        ", some of them NaN or infinite"
                    }
                ),
            )
        })?;
        Ok(Self {
            mean,
            projection,
            codebook,
            info,
        })
    }

    /// Components of a feature, `C`.
    pub fn dim(&self) -> usize {
        self.mean.len()
    }

    /// Number of visual words, `K`.
    pub fn words(&self) -> usize {
        self.codebook.words()
    }

    /// Mean subtracted from every feature, `C`.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Projection applied to centred features from the right, `C × C` row-major.
    pub fn projection(&self) -> &[f64] {
        &self.projection
    }

    pub fn codebook(&self) -> &Codebook {
        &self.codebook
    }

    pub fn info(&self) -> &CodebookInfo {
        &self.info
    }
}

//! Errors of place recognition.

use crate::network::CheckpointError;
use std::path::PathBuf;

/// Error from place recognition.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum RetrievalError {
    /// A whitening or codebook file cannot be read.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// A codebook cannot be written; an existing file is unchanged.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Mean, projection and centroids do not match.
    #[error("not a retrieval model: expected {expected}, found {found}")]
    Model { expected: String, found: String },
    /// The number of feature values is not a positive multiple of the model's dimension.
    #[error(
        "expected rows of {dim} feature values, found {found} values: the codebook belongs to another \
         network; build one for these weights with `mast3r-slam codebook build`"
    )]
    FeatureLength {
        /// Components of a feature, `C`.
        dim: usize,
        found: usize,
    },
    /// The network's features contain NaN or infinity.
    #[error("feature {row} of the image is not finite: the network's output is unusable")]
    NotFinite {
        /// The first such row.
        row: usize,
    },
    /// The network's features are all zero.
    #[error("the image's features are all zero: the network did not run")]
    AllZero,
    /// The keyframe is already in the database.
    #[error("keyframe {id} is already in the retrieval database")]
    Duplicate { id: u32 },
    /// The description was made with another model.
    #[error(
        "a description with {found} bits per word does not match a database with {expected}: both must come \
         from one retrieval model"
    )]
    OtherModel {
        /// `C` of the database.
        expected: usize,
        /// `C` of the description.
        found: usize,
    },
    /// Not enough features to learn a codebook.
    #[error(
        "{found} features from {images} images are too few for {clusters} visual words: provide more \
         images or request fewer words"
    )]
    TooFewFeatures {
        images: usize,
        /// Features found in them.
        found: usize,
        clusters: usize,
    },
}

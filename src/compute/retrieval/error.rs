//! Why place recognition failed.

use crate::network::CheckpointError;
use std::path::PathBuf;

/// Why place recognition failed.
#[derive(Debug, thiserror::Error)]
pub enum RetrievalError {
    /// A whitening or codebook file could not be read.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// A codebook could not be written; what was there before is untouched.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// Mean, projection and centroids do not belong together.
    #[error("not a retrieval model: expected {expected}, found {found}")]
    Model {
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The number of features is not a positive multiple of the model's dimension.
    #[error(
        "{found} feature values where rows of {dim} were expected: the codebook belongs to another \
         network; build one for these weights with `mast3r-slam codebook build`"
    )]
    FeatureLength {
        /// Components of a feature, `C`.
        dim: usize,
        /// Values given.
        found: usize,
    },
    /// The network's features hold NaN or infinity.
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
    Duplicate {
        /// Its id.
        id: u32,
    },
    /// A description made with another model.
    #[error(
        "a description for {found} with a database for {expected} (bits per word): both must come \
         from one retrieval model"
    )]
    OtherModel {
        /// `C` of the database.
        expected: usize,
        /// `C` of the description.
        found: usize,
    },
    /// Too few features to learn a codebook from.
    #[error(
        "{found} features from {images} images cannot make {clusters} visual words: give more \
         images or ask for fewer words"
    )]
    TooFewFeatures {
        /// Images given.
        images: usize,
        /// Features found in them.
        found: usize,
        /// Words asked for.
        clusters: usize,
    },
}

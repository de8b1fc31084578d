//! Place recognition by appearance (ASMK; docs/algorithm.md, Place recognition).
//!
//! A [`RetrievalModel`] converts an image's encoder features into a [`Description`]; a [`Database`]
//! stores descriptions by keyframe id and finds the most similar ones.
//!
//! ```no_run
//! use mast3r_slam::compute::retrieval::{Database, Description, RetrievalModel, Scratch};
//! # fn main() -> Result<(), mast3r_slam::compute::retrieval::RetrievalError> {
//! # let (features, keyframe_id) = (vec![0.0f32; 192 * 192], 0u32);
//! let model = RetrievalModel::load("codebook.safetensors".as_ref())?;
//! let mut database = Database::new(&model);
//! let (mut scratch, mut description) = (Scratch::default(), Description::default());
//! let mut hits = Vec::new();
//! model.describe(&features, &mut scratch, &mut description)?;
//! database.query(&description, 3, 5e-3, &mut hits)?;
//! database.insert(keyframe_id, &description)?;
//! # Ok(()) }
//! ```
//!
//! Matrices are row-major. `T` is the number of features per image, `C` their dimension, `K` the
//! number of visual words. Results do not depend on the number of threads.

mod build;
mod codebook;
mod database;
mod describe;
mod error;
mod file;
mod model;
mod official;
mod whitening;
mod words;

pub use build::BuildOptions;
pub use codebook::{Codebook, MAX_NEAREST, Nearest};
pub use database::{Database, Hit};
pub use describe::{Description, MAX_FEATURES, QUERY_NEAREST, Scratch};
pub use error::RetrievalError;
pub use model::{CodebookInfo, RetrievalModel};
pub use whitening::{strongest, whiten};
pub use words::{BinaryWords, binary_residuals, hamming};

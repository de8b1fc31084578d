//! Place recognition arithmetic: whitening, assignment, binary residuals, scoring (spec 7).
//!
//! Matrices are row-major. `T` is the number of an image's features, `C` their dimension, `K` the
//! number of visual words. Every result is independent of the number of threads.

mod codebook;
mod whitening;
mod words;

pub use codebook::{Codebook, MAX_NEAREST, Nearest};
pub use whitening::{strongest, whiten};
pub use words::{BinaryWords, binary_residuals, hamming};

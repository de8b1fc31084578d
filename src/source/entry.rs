//! A file of a dataset's list.

use crate::time::Stamp;
use std::path::PathBuf;

/// An image file and its stamp.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub stamp: Stamp,
    pub path: PathBuf,
}

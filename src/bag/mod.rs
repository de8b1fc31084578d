//! ROS 2 bags (rosbag2): reads `.mcap` and `.db3`, compressed or not, and writes `.mcap`.
//!
//! Messages are read one after another in the order in which they were recorded, so memory does not grow with a
//! bag's length. What a message means is not known here.

mod definitions;
mod file;
mod mcap_file;
mod metadata;
mod reader;
mod sqlite_file;
mod writer;

pub use definitions::definition;
pub use reader::{Bag, BagMessage, Messages};
pub use writer::{BagWriter, Channel};

use std::path::{Path, PathBuf};

/// A topic of a bag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its full name.
    pub name: String,
    /// `package/msg/Type`
    pub kind: String,
    /// How its messages are serialised: `cdr` in ROS 2.
    pub format: String,
    /// How many messages it has, where the bag says so.
    pub messages: Option<u64>,
}

/// Why a bag could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum BagError {
    /// A file or folder that could not be read.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// A file whose content is not what it should be.
    #[error("{path}: expected {expected}, found {found}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: String,
        /// What is.
        found: String,
    },
}

impl BagError {
    fn io(path: &Path, cause: std::io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            cause,
        }
    }

    fn content(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Content {
            path: path.to_owned(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// Most bytes that a message may have: far above any camera's image, far below what a broken length can say.
const MESSAGE_BYTES: usize = 1 << 28;

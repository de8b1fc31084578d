//! ROS 2 bags (rosbag2): reads `.mcap` and `.db3`, compressed or not, and writes `.mcap`.
//!
//! Messages are read one after another in the order in which they were recorded, so memory does not grow with a
//! bag's length. This module moves bytes; it does not know what a message means.

mod file;
mod mcap_file;
mod metadata;
mod reader;
mod sqlite_file;
mod stored;
mod unpack;
mod writer;

pub use reader::{Bag, BagMessage, Messages};
pub use writer::{BagWriter, Channel};

use std::path::{Path, PathBuf};

/// A topic in a bag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    pub name: String,
    /// `package/msg/Type`
    pub kind: String,
    /// Serialisation format; `cdr` in ROS 2.
    pub format: String,
    /// Number of messages, if the bag records it.
    pub messages: Option<u64>,
}

#[cfg(test)]
impl Topic {
    /// Topics with these names and types of sensor_msgs.
    pub(crate) fn of_sensors(all: &[(&str, &str)]) -> Vec<Self> {
        let topic = |(name, kind): &(&str, &str)| Self {
            name: (*name).to_owned(),
            kind: format!("sensor_msgs/msg/{kind}"),
            format: "cdr".to_owned(),
            messages: Some(5),
        };
        all.iter().map(topic).collect()
    }
}

/// Error from opening or reading a bag.
#[derive(Debug, thiserror::Error)]
pub enum BagError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Io {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// A file does not have the expected content.
    #[error("{path}: expected {expected}, found {found}", path = path.display())]
    Content {
        path: PathBuf,
        expected: String,
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

/// Largest message in bytes: far above any camera's image, far below what a broken length field can say.
const MESSAGE_BYTES: usize = 1 << 28;

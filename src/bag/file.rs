//! One file of a bag: detects its kind, and unpacks a file that is compressed as a whole.

use super::stored::StoredMessages;
use super::{BagError, Topic, mcap_file, sqlite_file, unpack};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

enum Kind {
    Mcap,
    Sqlite,
}

/// A file of a bag.
pub struct BagFile {
    /// For messages; `unpacked` is read instead, if there is one.
    path: PathBuf,
    kind: Kind,
    /// A temporary copy of a file that is compressed as a whole.
    unpacked: Option<TempPath>,
}

impl BagFile {
    /// Detects the kind of a file by its first bytes. A file that is compressed as a whole is unpacked into the
    /// folder for temporary files.
    pub fn open(path: &Path) -> Result<Self, BagError> {
        let io = |e| BagError::io(path, e);
        let mut start = first_bytes(path).map_err(io)?;
        let mut unpacked = None;
        if unpack::is_compressed(&start) {
            let copy = unpack::file(path)?;
            start = first_bytes(&copy).map_err(io)?;
            unpacked = Some(copy);
        }
        let kind = if start.starts_with(mcap::MAGIC) {
            Kind::Mcap
        } else if start.starts_with(b"SQLite format 3\0") {
            Kind::Sqlite
        } else {
            let found = match &start[..] {
                [] => "an empty file",
                s if s.starts_with(b"#ROSBAG") => {
                    "a ROS 1 bag; convert it, for example with rosbags-convert (PyPI rosbags)"
                }
                _ => "a file of another kind",
            };
            return Err(BagError::content(
                path,
                "a ROS 2 bag (.mcap or .db3)",
                found,
            ));
        };
        Ok(Self {
            path: path.to_owned(),
            kind,
            unpacked,
        })
    }

    /// The file to read.
    fn place(&self) -> &Path {
        self.unpacked.as_deref().unwrap_or(&self.path)
    }

    /// The file's topics.
    pub fn topics(&self) -> Result<Vec<Topic>, BagError> {
        match self.kind {
            Kind::Mcap => mcap_file::topics(self.place(), &self.path),
            Kind::Sqlite => sqlite_file::topics(self.place(), &self.path),
        }
    }

    /// Messages of the named topics, in recording order. Iteration ends after an error.
    pub fn messages(self, wanted: &[String]) -> Result<StoredMessages, BagError> {
        let mut inner: StoredMessages = match self.kind {
            Kind::Mcap => Box::new(mcap_file::messages(self.place(), &self.path, wanted)?),
            Kind::Sqlite => Box::new(sqlite_file::messages(self.place(), &self.path, wanted)?),
        };
        let (path, unpacked) = (self.path, self.unpacked);
        Ok(Box::new(std::iter::from_fn(move || {
            // Keeps the temporary file until the last message was read.
            let _kept = &unpacked;
            let mut stored = match inner.next()? {
                Ok(stored) => stored,
                Err(error) => return Some(Err(error)),
            };
            if unpack::is_compressed(&stored.data) {
                match unpack::message(&stored.data) {
                    Ok(data) => stored.data = data,
                    Err(e) => {
                        let found = format!("a damaged one at {}: {e}", stored.log_time);
                        let expected = "whole zstd-compressed messages";
                        return Some(Err(BagError::content(&path, expected, found)));
                    }
                }
            }
            Some(Ok(stored))
        })))
    }
}

fn first_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(16).read_to_end(&mut start)?;
    Ok(start)
}

//! One file of a bag: what kind it is, and, if it is compressed as a whole, a temporary copy that is not.

use super::{BagError, MESSAGE_BYTES, Topic, mcap_file, sqlite_file};
use crate::time::Stamp;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// A message as it lies in the file.
pub struct Stored {
    /// Place of its topic among those wanted.
    pub topic: usize,
    /// When it was recorded.
    pub log_time: Stamp,
    /// Its bytes, with the encapsulation header, decompressed.
    pub data: Vec<u8>,
}

/// What reads a file's messages.
pub type StoredMessages = Box<dyn Iterator<Item = Result<Stored, BagError>> + Send>;

enum Kind {
    Mcap,
    Sqlite,
}

/// A file of a bag.
pub struct BagFile {
    /// As the user knows it.
    path: PathBuf,
    kind: Kind,
    /// If it was compressed as a whole.
    unpacked: Option<TempPath>,
}

/// What a zstd frame begins with.
const ZSTD: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

impl BagFile {
    /// Looks at a file's first bytes. One that is compressed as a whole is unpacked into the folder for temporary
    /// files.
    pub fn open(path: &Path) -> Result<Self, BagError> {
        let io = |e| BagError::io(path, e);
        let mut start = first_bytes(path).map_err(io)?;
        let mut unpacked = None;
        if start.starts_with(&ZSTD) {
            let copy = unpack(path)?;
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

    fn place(&self) -> &Path {
        self.unpacked.as_deref().unwrap_or(&self.path)
    }

    /// The topics that are in this file.
    pub fn topics(&self) -> Result<Vec<Topic>, BagError> {
        match self.kind {
            Kind::Mcap => mcap_file::topics(self.place(), &self.path),
            Kind::Sqlite => sqlite_file::topics(self.place(), &self.path),
        }
    }

    /// The messages of the topics of these names, in the order in which they were recorded. After an error there
    /// are no more.
    pub fn messages(self, wanted: &[String]) -> Result<StoredMessages, BagError> {
        let mut inner: StoredMessages = match self.kind {
            Kind::Mcap => Box::new(mcap_file::messages(self.place(), &self.path, wanted)?),
            Kind::Sqlite => Box::new(sqlite_file::messages(self.place(), &self.path, wanted)?),
        };
        let (path, unpacked) = (self.path, self.unpacked);
        Ok(Box::new(std::iter::from_fn(move || {
            // The temporary file lives as long as whoever reads it.
            let _kept = &unpacked;
            let mut stored = match inner.next()? {
                Ok(stored) => stored,
                Err(error) => return Some(Err(error)),
            };
            if stored.data.starts_with(&ZSTD) {
                match unpack_message(&stored.data) {
                    Ok(data) => stored.data = data,
                    Err(e) => {
                        let found = format!("one at {} that is damaged: {e}", stored.log_time);
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

fn unpack(path: &Path) -> Result<TempPath, BagError> {
    let file = File::open(path).map_err(|e| BagError::io(path, e))?;
    let damaged = |e: io::Error| {
        BagError::content(
            path,
            "a whole zstd-compressed file",
            format!("a failure: {e}"),
        )
    };
    let mut decoder = zstd::Decoder::new(BufReader::new(file)).map_err(damaged)?;
    let space = |e: io::Error| {
        let cause = io::Error::new(
            e.kind(),
            format!(
                "{e} (it is unpacked into {})",
                std::env::temp_dir().display()
            ),
        );
        BagError::io(path, cause)
    };
    let mut copy = tempfile::NamedTempFile::new().map_err(space)?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => return Ok(copy.into_temp_path()),
            Ok(n) => {
                let part = buffer.get(..n).unwrap_or_default();
                io::Write::write_all(&mut copy, part).map_err(space)?;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // What was read is whole as far as it goes, and the bag's reader says where it breaks off.
            Err(e) => {
                tracing::warn!("{}: {}", path.display(), damaged(e));
                return Ok(copy.into_temp_path());
            }
        }
    }
}

fn unpack_message(data: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let most = MESSAGE_BYTES as u64 + 1;
    zstd::Decoder::new(data)?.take(most).read_to_end(&mut out)?;
    if out.len() > MESSAGE_BYTES {
        return Err(io::Error::other("it has more bytes than any message"));
    }
    Ok(out)
}

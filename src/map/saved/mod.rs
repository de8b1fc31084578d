//! A map in one file, with all that SLAM needs to go on with it.
//!
//! Everything is little endian. In order:
//!
//! | part | content |
//! |---|---|
//! | magic, version | `M3RSLMAP`, u32 [`VERSION`], u32 bytes of the header that follows |
//! | header | [`Header`] |
//! | keyframes | for each, in the order of their numbers: [`SavedKeyframe`], its numbers first, then image, points, confidences, features |
//! | edges | for each: [`SavedEdge`], its numbers first, then both directions' matches |
//! | checksum | SHA-256 of all before it |
//!
//! The header says how long all of it is, so that a file that was cut off is known before it is read. What
//! place recognition knows is not in the file: it is made anew from the features.

mod bytes;
mod header;
mod read;
mod write;

pub use header::{Header, ImageShape};
pub use read::Reader;
pub use write::{WriteError, Writer, write};

use super::EdgeKind;
use crate::compute::device::{EdgeContent, KeyframeContent};
use crate::geometry::Sim3;
use crate::time::Stamp;
use std::io;
use std::path::{Path, PathBuf};

/// What every file begins with.
const MAGIC: [u8; 8] = *b"M3RSLMAP";

/// The version that this program writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// The extension of map files.
pub const EXTENSION: &str = "map";

/// The file's name in a folder of results.
pub const FILE_NAME: &str = "slam.map";

/// Bytes of the checksum.
const CHECKSUM: u64 = 32;

/// The file that `path` stands for: itself, or, unless it has the extension of map files, the one in that
/// folder.
pub fn file_of(path: &Path) -> PathBuf {
    let is_file = path.is_file() || path.extension().is_some_and(|e| e == EXTENSION);
    match is_file {
        true => path.to_owned(),
        false => path.join(FILE_NAME),
    }
}

/// Where a keyframe was when it was made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavedChain {
    /// The keyframe before it.
    pub keyframe: u32,
    /// This camera to that keyframe's camera.
    pub keyframe_from_camera: Sim3,
}

/// A keyframe in the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedKeyframe {
    /// Its number: keyframes are counted from 0.
    pub id: u32,
    /// Which unconnected map it belongs to.
    pub submap: u32,
    /// Index in the source.
    pub frame_index: u64,
    /// The image's time.
    pub stamp: Stamp,
    /// Camera to world, with the scale of its points.
    pub world_from_camera: Sim3,
    /// What tracking said of it.
    pub chain: Option<SavedChain>,
    /// Image, points, confidences, features.
    pub content: KeyframeContent,
}

/// An edge in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedEdge {
    /// The keyframe that it was made with as `i`.
    pub i: u32,
    /// The other.
    pub j: u32,
    /// What proposed it.
    pub kind: EdgeKind,
    /// The smaller of the two fractions of pixels matched with enough quality.
    pub match_fraction: f32,
    /// The matches.
    pub content: EdgeContent,
}

impl Default for SavedEdge {
    fn default() -> Self {
        Self {
            i: 0,
            j: 0,
            kind: EdgeKind::Consecutive,
            match_fraction: 0.0,
            content: EdgeContent::default(),
        }
    }
}

/// Kinds of edges by their number in the file.
const KINDS: [EdgeKind; 4] = [
    EdgeKind::Consecutive,
    EdgeKind::Neighbour,
    EdgeKind::Loop,
    EdgeKind::Relocalisation,
];

/// Why a map's file could not be written or read. What stood at the path before is untouched.
#[derive(Debug, thiserror::Error)]
pub enum MapFileError {
    /// The system refused.
    #[error("cannot {action} the map {path}: {cause}", path = path.display())]
    Io {
        /// `read`, `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// Another kind of file.
    #[error(
        "{path} is no map of this program (it does not begin as one); maps are written by `run --save-map FILE.map` and ~/save_map",
        path = path.display()
    )]
    NotAMap {
        /// The file.
        path: PathBuf,
    },
    /// Of another version.
    #[error(
        "the map {path} has version {found} of the format, expected {VERSION}: it was written by another version of this program; use that one, or make the map again",
        path = path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Cut off, or something behind its end.
    #[error(
        "the map {path} has {found} bytes, expected {expected}: it was not copied or written to its end; copy it again",
        path = path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that its header promises.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// Changed since it was written.
    #[error(
        "the map {path} is damaged: its checksum does not fit its content; copy it again, or take another",
        path = path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A value that makes no sense.
    #[error("the map {path} makes no sense: {what}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        what: String,
    },
    /// Of another network, image size or camera.
    #[error("the map {path} cannot be used here: {why}", path = path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What was expected, what was found, what to do.
        why: String,
    },
    /// The device did not give what it holds.
    #[error("the map {path} is not written: {cause}", path = path.display())]
    Device {
        /// The file.
        path: PathBuf,
        /// The device's reason.
        cause: crate::compute::device::DeviceError,
    },
}

//! Map files: the complete SLAM state, sufficient to resume mapping.
//!
//! All values are little-endian. In order:
//!
//! | part | content |
//! |---|---|
//! | magic, version | `M3RSLMAP`, u32 [`VERSION`], u32 bytes of the header that follows |
//! | header | [`Header`] |
//! | keyframes | for each, in the order of their numbers: [`SavedKeyframe`], its numbers first, then image, points, confidences, features |
//! | edges | for each: [`SavedEdge`], its numbers first, then both directions' matches |
//! | factors | for each, since version 2: both ids, the relative pose, the upper half of its information |
//! | checksum | SHA-256 of all before it |
//!
//! The header determines the total length, so that a truncated file is detected before it is read.
//! The state of place recognition is not stored: it is rebuilt from the features.

pub(in crate::map) mod bytes;
mod header;
mod read;
mod target;
mod views;
mod write;

pub use header::{Header, ImageShape};
pub use read::Reader;
pub use target::{check_target, target_in};
pub use views::SavedViews;
pub use write::{WriteError, Writer, write};

use super::EdgeKind;
use crate::compute::device::{EdgeContent, KeyframeContent};
use crate::geometry::Sim3;
use crate::time::Stamp;
use std::io;
use std::path::{Path, PathBuf};

/// Magic bytes at the start of every map file.
pub(in crate::map) const MAGIC: [u8; 8] = *b"M3RSLMAP";

/// The newest format version.
pub const VERSION: u32 = 2;

/// The oldest format version, without factors.
const OLDEST: u32 = 1;

/// File name extension of map files.
pub const EXTENSION: &str = "map";

/// File name of the map in a results folder.
pub const FILE_NAME: &str = "slam.map";

/// Size of the checksum in bytes.
const CHECKSUM: u64 = 32;

/// The map file to read for `path`: `path` itself if it has the map extension, otherwise the map
/// file in that folder.
pub fn file_of(path: &Path) -> PathBuf {
    let is_file = path.is_file() || path.extension().is_some_and(|e| e == EXTENSION);
    match is_file {
        true => path.to_owned(),
        false => path.join(FILE_NAME),
    }
}

/// Relative pose of a keyframe at creation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavedChain {
    /// The previous keyframe.
    pub keyframe: u32,
    /// Transform from this camera to that keyframe's camera.
    pub keyframe_from_camera: Sim3,
}

/// A keyframe as stored in the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedKeyframe {
    /// Id; keyframes are numbered from 0.
    pub id: u32,
    /// Unconnected submap of the keyframe.
    pub submap: u32,
    pub frame_index: u64,
    pub stamp: Stamp,
    /// Camera to world, with the scale of its points.
    pub world_from_camera: Sim3,
    /// Relative pose from tracking.
    pub chain: Option<SavedChain>,
    /// Image, points, confidences and features.
    pub content: KeyframeContent,
}

/// An edge as stored in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedEdge {
    /// The keyframe with role `i` when the edge was made.
    pub i: u32,
    /// The other keyframe.
    pub j: u32,
    pub kind: EdgeKind,
    /// The smaller of the two fractions of pixels matched with sufficient quality.
    pub match_fraction: f32,
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

/// Edge kinds by their code in the file.
pub(in crate::map) const KINDS: [EdgeKind; 4] = [
    EdgeKind::Consecutive,
    EdgeKind::Neighbour,
    EdgeKind::Loop,
    EdgeKind::Relocalisation,
];

/// Error from writing or reading a map file. A failed write leaves an existing file untouched.
#[derive(Debug, thiserror::Error)]
pub enum MapFileError {
    /// The operation failed.
    #[error("cannot {action} the map {path}: {cause}", path = path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
    /// The file is not a map.
    #[error(
        "{path} is not a map file of this program (wrong magic bytes); maps are written by `run --save-map FILE.map` and ~/save_map",
        path = path.display()
    )]
    NotAMap { path: PathBuf },
    /// A file that is not a map stands where the map should go.
    #[error(
        "{path} is not a map and is not replaced; choose a folder, or a name that ends in .map and is not taken",
        path = path.display()
    )]
    Foreign { path: PathBuf },
    /// The map should go to a place where this program may not write.
    #[error(
        "{path} is outside of {root}, below which maps are written",
        path = path.display(), root = root.display()
    )]
    Outside { path: PathBuf, root: PathBuf },
    /// The file has another format version.
    #[error(
        "the map {path} has format version {found}, expected at most {VERSION}: it was written by another version of this program; use that version, or create the map again",
        path = path.display()
    )]
    Version { path: PathBuf, found: u32 },
    /// The file is truncated or has trailing data.
    #[error(
        "the map {path} has {found} bytes, expected {expected}: it was not copied or written completely; copy it again",
        path = path.display()
    )]
    Length {
        path: PathBuf,
        expected: u64,
        found: u64,
    },
    /// The file was modified after it was written.
    #[error(
        "the map {path} is damaged: the checksum does not match the content; copy it again, or use another map",
        path = path.display()
    )]
    Damaged { path: PathBuf },
    /// A value is invalid.
    #[error("the map {path} is invalid: {what}", path = path.display())]
    Content { path: PathBuf, what: String },
    /// The device could not export its content.
    #[error("the map {path} was not written: {cause}", path = path.display())]
    Device {
        path: PathBuf,
        cause: crate::compute::device::DeviceError,
    },
}

//! The map's file: an SQLite database that holds the map as it is made, and that a new session continues.
//!
//! | table | key | content |
//! |---|---|---|
//! | `meta` | name | `header`: network, weights, image size, calibration; `state`; `session` |
//! | `keyframe` | id | time, submap, pose, pose relative to the keyframe before it |
//! | `image` | id | image and tokens, written once |
//! | `points` | id | points and confidences: those of the first frame, then the fused ones |
//! | `edge`, `matches` | number | keyframes, kind; the matches of both directions |
//! | `factor` | both ids | what remains of edges and keyframes that were removed |
//! | `removed` | id | where a removed keyframe was, relative to one that exists |
//!
//! Each row ends with a checksum of its table, its key and its content, so that damage is found where it is and the
//! rest can be used. [`Writer`] owns the file of a running map, on a thread of its own; [`Reader`] reads a snapshot of
//! a file, also while another process writes it.
//!
//! [`pack()`] makes a packed map: the same tables under another application id, with images without tokens, points in a
//! shorter form, and no matches. The network makes both anew when the map is loaded.

mod coding;
mod create;
mod file;
mod hand_over;
mod lock;
mod on_disk;
mod pack;
mod reader;
mod rows;
mod work;
mod writer;

pub use create::create;
pub use file::{Kind, kind_of};
pub use hand_over::{Job, Key, Monitor, State};
pub use pack::{Packed, pack};
pub use reader::{Damage, Reader};
pub use rows::{EdgeRow, KeyframeRow, RemovedRow, Rest};
pub use writer::Writer;

use crate::map::saved::MapFileError;
use std::io;
use std::path::PathBuf;

/// The schema's version that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The same of packed maps.
pub const PACKED_VERSION: u32 = 1;

/// Error from the map's file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum StoreError {
    /// The file cannot be opened.
    #[error("cannot open the map {path}: {cause}", path = path.display())]
    Open { path: PathBuf, cause: io::Error },
    /// The file can be read and not written.
    #[error(
        "the map {path} cannot be continued: {cause}; use it with --read-only, or copy it to a folder that can be written",
        path = path.display()
    )]
    NotWritable { path: PathBuf, cause: io::Error },
    /// The database failed.
    #[error("the map {path}: {}", explain(cause), path = path.display())]
    Database {
        path: PathBuf,
        cause: rusqlite::Error,
    },
    /// Another process writes the file.
    #[error(
        "the map {path} is in use by {holder}; end that program, or use the map with --read-only",
        path = path.display()
    )]
    InUse { path: PathBuf, holder: String },
    /// The file is something else.
    #[error(
        "{path} is not a map of this program; choose another file, which is then created",
        path = path.display()
    )]
    Foreign { path: PathBuf },
    /// A newer program wrote the file.
    #[error(
        "the map {path} has version {found}, this program knows versions up to {known}: a newer program wrote it; \
         use that program",
        path = path.display()
    )]
    Newer {
        path: PathBuf,
        found: u32,
        known: u32,
    },
    /// There is a packed map already.
    #[error(
        "{path} exists; choose another file, or replace it with --force",
        path = path.display()
    )]
    Taken { path: PathBuf },
    /// Another file stands where the packed map should go.
    #[error(
        "{path} exists, is not a packed map and is not replaced; choose a name that is not taken",
        path = path.display()
    )]
    NotPacked { path: PathBuf },
    /// The map is packed already.
    #[error(
        "{path} is a packed map already; use it as it is, or a copy of it",
        path = path.display()
    )]
    IsPacked { path: PathBuf },
    /// A map that was saved at once cannot be read.
    #[error(transparent)]
    Saved(#[from] MapFileError),
    /// The description of the map is damaged, without which no row can be read.
    #[error("the map {path} cannot be used: {what}", path = path.display())]
    Unusable { path: PathBuf, what: String },
    /// Some rows are damaged.
    #[error(
        "the map {path} is damaged: {what}; the rest can be used, or use a copy of it",
        path = path.display()
    )]
    Damaged { path: PathBuf, what: String },
    /// A row is damaged.
    #[error("{0}")]
    Row(&'static str),
    /// The file was moved, replaced or deleted while it was open.
    #[error("the map {path} was moved or deleted while it was in use", path = path.display())]
    Gone { path: PathBuf },
    /// The thread that writes the file has ended.
    #[error("the thread that writes the map has ended")]
    Ended,
}

/// What a database error means to the user.
fn explain(error: &rusqlite::Error) -> String {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseCorrupt, DiskFull, NotADatabase, PermissionDenied,
        ReadOnly, SystemIoFailure,
    };
    let what = match error.sqlite_error_code() {
        Some(DiskFull) => "the disk is full",
        Some(ReadOnly | PermissionDenied) => "it cannot be written to",
        Some(CannotOpen) => "it cannot be opened",
        Some(DatabaseBusy) => "another program is using it",
        Some(DatabaseCorrupt | NotADatabase) => {
            "the file's structure is damaged; use a copy of it, or what --read-only still reads"
        }
        Some(SystemIoFailure) => "reading or writing failed",
        _ => return error.to_string(),
    };
    format!("{what} ({error})")
}

//! Errors of named weights.

use std::path::PathBuf;

/// Error of named weights.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// They were not fetched yet.
    #[error(
        "the weights {name} are not in {folder}; fetch them: mast3r-slam weights get {name}",
        folder = folder.display()
    )]
    NotFetched { name: &'static str, folder: PathBuf },
    /// A file or folder cannot be written or read.
    #[error("cannot write {path}: {cause}; change its permissions, or set MAST3R_SLAM_WEIGHTS to another folder",
        path = path.display())]
    Io {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// The disk is full.
    #[error(
        "{folder} has {free} bytes free, and {needed} are needed; free some, or set MAST3R_SLAM_WEIGHTS to another folder",
        folder = folder.display()
    )]
    NoSpace {
        folder: PathBuf,
        needed: u64,
        free: u64,
    },
    /// Another process fetches the same file.
    #[error("another process is fetching {path}; wait for it to end", path = path.display())]
    Busy { path: PathBuf },
    /// The server cannot be reached, or breaks off.
    #[error(
        "cannot fetch {address}: {cause}; what was fetched is kept, run the command again to continue"
    )]
    Network { address: String, cause: String },
    /// The server has no such file.
    #[error(
        "cannot fetch {address}: expected status 200 or 206, found {status}; check the address"
    )]
    Status { address: String, status: u16 },
    /// The file has another size than it should.
    #[error(
        "{address}: expected {expected} bytes, found {found}; it is not the file that was asked for"
    )]
    Size {
        address: String,
        expected: u64,
        found: u64,
    },
    /// The file has another hash than it should.
    #[error(
        "{address}: expected the SHA-256 {expected}, found {found}; the file was removed, fetch it again or check where \
         it comes from"
    )]
    Hash {
        address: String,
        expected: String,
        found: String,
    },
}

//! Writing results: complete files or none, and errors that say what to do.

use crate::files;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Why a result could not be written. What stood at the path before is untouched.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The system refused.
    #[error("cannot {action} {path}: {cause}; {advice}", path = path.display())]
    Io {
        /// `create the folder`, `write`, ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// A keyframe's arrays do not fit its image.
    #[error(
        "keyframe {id}: expected {expected} {what} for its {width}×{height} image, found {found}: this map cannot be exported"
    )]
    Keyframe {
        /// Which.
        id: u32,
        /// Which array.
        what: &'static str,
        /// Its image's columns.
        width: usize,
        /// Its image's rows.
        height: usize,
        /// Length that belongs to the image.
        expected: usize,
        /// Length that it has.
        found: usize,
    },
    /// An image could not be encoded.
    #[error("cannot encode {path}: {reason}", path = path.display())]
    Encode {
        /// The file it was for.
        path: PathBuf,
        /// The encoder's reason.
        reason: String,
    },
}

impl ExportError {
    /// An I/O failure with advice that fits its kind.
    pub fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        let advice = match cause.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                "the disk is full: free some space or choose another output folder"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "choose an output folder that you may write to, or change its permissions"
            }
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                "a file stands where a folder is needed: choose another output folder"
            }
            ErrorKind::IsADirectory => {
                "a folder stands where the file should go: remove it or choose another name"
            }
            ErrorKind::InvalidFilename | ErrorKind::InvalidInput => {
                "choose a name that this file system takes"
            }
            _ => "choose another output folder if this one does not work",
        };
        Self::Io {
            action,
            path: path.to_owned(),
            cause,
            advice,
        }
    }
}

/// Creates a folder and those above it; one that exists is fine.
pub fn create_folder(folder: &Path) -> Result<(), ExportError> {
    fs::create_dir_all(folder).map_err(|e| ExportError::io("create the folder", folder, e))
}

/// Writes `path` as [`files::write`] does, and makes the folders above it.
pub fn write<F>(path: &Path, body: F) -> Result<(), ExportError>
where
    F: FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
{
    if let Some(parent) = path.parent()
        && !parent.as_os_str().is_empty()
    {
        create_folder(parent)?;
    }
    files::write(path, body).map_err(|e| ExportError::io("write", path, e))
}

/// [`write()`] for content that is already in memory.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    write(path, |out| out.write_all(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> Vec<String> {
        let list = fs::read_dir(folder).unwrap();
        list.map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn folders_are_made_and_an_old_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/c.txt");
        write_bytes(&path, b"one").unwrap();
        write_bytes(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(entries(path.parent().unwrap()), ["c.txt"]);
    }

    #[test]
    fn a_full_disk_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.ply");
        write_bytes(&path, b"old").unwrap();
        // The disk takes some blocks and then no more.
        let error = write(&path, |out| {
            out.write_all(&[7; 200_000])?;
            Err(ErrorKind::StorageFull.into())
        })
        .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("c.ply") && text.contains("free some space"),
            "{text}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(folder.path()), ["c.ply"]);
    }

    #[test]
    fn a_file_in_the_way_of_a_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let blocker = folder.path().join("out");
        fs::write(&blocker, b"").unwrap();
        let text = write_bytes(&blocker.join("trajectory.txt"), b"x")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("create the folder") && text.contains("out"),
            "{text}"
        );
        assert!(
            text.contains("a file stands where a folder is needed"),
            "{text}"
        );
        assert_eq!(entries(folder.path()), ["out"]);
    }

    #[test]
    fn a_folder_in_the_way_of_a_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        fs::create_dir(&path).unwrap();
        let text = write_bytes(&path, b"x").unwrap_err().to_string();
        assert!(
            text.contains("a folder stands where the file should go"),
            "{text}"
        );
        assert_eq!(entries(folder.path()), ["report.html"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_that_takes_no_files_is_named() {
        // /proc refuses new files even to root.
        let text = write_bytes(Path::new("/proc/x.txt"), b"x")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("/proc/x.txt") && text.contains("choose"),
            "{text}"
        );
    }
}

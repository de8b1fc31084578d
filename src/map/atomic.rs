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

    #[test]
    fn folders_above_are_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/c.txt");
        write_bytes(&path, b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
    }

    /// What a failed write leaves behind is [`files`]' affair; here it is what is said of it.
    #[test]
    fn a_failure_names_the_path_and_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let (file, inner) = (folder.path().join("out"), folder.path().join("report.html"));
        fs::write(&file, b"").unwrap();
        fs::create_dir(&inner).unwrap();
        let full = |path| write(path, |_| Err(ErrorKind::StorageFull.into()));
        let said = [
            (
                full(&folder.path().join("c.ply")),
                ["write", "c.ply", "free some space"],
            ),
            (
                write_bytes(&file.join("trajectory.txt"), b"x"),
                [
                    "create the folder",
                    "out",
                    "a file stands where a folder is needed",
                ],
            ),
            (
                write_bytes(&inner, b"x"),
                [
                    "write",
                    "report.html",
                    "a folder stands where the file should go",
                ],
            ),
            #[cfg(target_os = "linux")]
            // /proc refuses new files even to root.
            (
                write_bytes(Path::new("/proc/x.txt"), b"x"),
                ["write", "/proc/x.txt", "choose"],
            ),
        ];
        for (result, words) in said {
            let text = result.unwrap_err().to_string();
            for word in words {
                assert!(text.contains(word), "{word:?} is not in: {text}");
            }
        }
    }
}

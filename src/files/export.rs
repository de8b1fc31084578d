//! Writing of result files, complete or not at all, with errors that advise the user.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Error from writing results. An existing file at the path is unchanged.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum ExportError {
    /// The operation failed.
    #[error("cannot {action} {path}: {cause}; {advice}", path = path.display())]
    Io {
        /// `create the folder`, `write`, ...
        action: &'static str,
        path: PathBuf,
        cause: io::Error,
        advice: &'static str,
    },
    /// A keyframe's arrays do not match its image size.
    #[error(
        "keyframe {id}: expected {expected} {what} for its {width}×{height} image, found {found}: this map cannot be exported"
    )]
    Keyframe {
        id: u32,
        what: &'static str,
        width: usize,
        height: usize,
        expected: usize,
        found: usize,
    },
    /// An image cannot be encoded.
    #[error("cannot encode {path}: {reason}", path = path.display())]
    Encode { path: PathBuf, reason: String },
}

impl ExportError {
    /// An I/O error with advice according to its kind.
    pub fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        let advice = match cause.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                "the disk is full: free some space or choose another output folder"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "choose a writable output folder, or change its permissions"
            }
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                "a file exists where a folder is needed: choose another output folder"
            }
            ErrorKind::IsADirectory => {
                "a folder exists where the file should be written: remove it or choose another name"
            }
            ErrorKind::InvalidFilename | ErrorKind::InvalidInput => {
                "choose a name that this file system supports"
            }
            _ => "choose another output folder if the error persists",
        };
        Self::Io {
            action,
            path: path.to_owned(),
            cause,
            advice,
        }
    }
}

/// Creates a folder and its parents if they do not exist.
pub fn create_folder(folder: &Path) -> Result<(), ExportError> {
    fs::create_dir_all(folder).map_err(|e| ExportError::io("create the folder", folder, e))
}

/// Writes `path` like [`super::write`], creating its parent folders.
pub fn write<F>(path: &Path, body: F) -> Result<(), ExportError>
where
    F: FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
{
    if let Some(parent) = path.parent()
        && !parent.as_os_str().is_empty()
    {
        create_folder(parent)?;
    }
    super::write(path, body).map_err(|e| ExportError::io("write", path, e))
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

    /// Tests the messages; tests of [`files`] cover what a failed write leaves behind.
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
                    "a file exists where a folder is needed",
                ],
            ),
            (
                write_bytes(&inner, b"x"),
                [
                    "write",
                    "report.html",
                    "a folder exists where the file should be written",
                ],
            ),
            #[cfg(target_os = "linux")]
            // /proc rejects new files even from root.
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

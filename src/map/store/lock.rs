//! The lock of a map, which keeps a second program from writing it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens the map at `path` for writing and locks it until the returned file is dropped; `None` if another program
/// holds the lock.
///
/// # Errors
/// If the map, or on Windows the file next to it, cannot be written to.
pub fn hold(path: &Path) -> io::Result<Option<File>> {
    let map = OpenOptions::new().read(true).write(true).open(path)?;
    system::hold(map, path)
}

#[cfg(not(windows))]
mod system {
    use std::fs::{File, TryLockError};
    use std::io;
    use std::path::Path;

    pub fn hold(map: File, _: &Path) -> io::Result<Option<File>> {
        match map.try_lock() {
            Ok(()) => Ok(Some(map)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(cause)) => Err(cause),
        }
    }
}

#[cfg(windows)]
mod system {
    use std::fs::{File, OpenOptions};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};

    /// GENERIC_READ, GENERIC_WRITE and DELETE of winnt.h.
    const ACCESS: u32 = 0x8000_0000 | 0x4000_0000 | 0x0001_0000;
    /// FILE_FLAG_DELETE_ON_CLOSE of winbase.h: Windows removes the file, even if the program crashes.
    const DELETE_ON_CLOSE: u32 = 0x0400_0000;
    /// ERROR_SHARING_VIOLATION of winerror.h.
    const SHARING_VIOLATION: i32 = 32;

    /// A lock of the map itself would keep SQLite's handle in this process from reading it, since locks of Windows are
    /// mandatory. A file next to the map, which one handle at a time can open, stands for the lock.
    pub fn hold(map: File, path: &Path) -> io::Result<Option<File>> {
        drop(map);
        let mut name = path.as_os_str().to_owned();
        name.push("-lock");
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .access_mode(ACCESS)
            .share_mode(0)
            .custom_flags(DELETE_ON_CLOSE)
            .open(PathBuf::from(name));
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(cause) if cause.raw_os_error() == Some(SHARING_VIOLATION) => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_once_and_the_map_stays_readable_through_other_handles() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("house.map");
        std::fs::write(&path, b"rooms").unwrap();
        let held = hold(&path).unwrap().expect("a free lock");
        assert!(hold(&path).unwrap().is_none());
        assert_eq!(std::fs::read(&path).unwrap(), b"rooms");
        drop(held);
        assert!(hold(&path).unwrap().is_some());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_map_is_an_error_and_is_not_created() {
        let folder = tempfile::tempdir().unwrap();
        let error = hold(&folder.path().join("no.map")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

//! The spill file to which keyframes move when host memory is full.

use crate::files::at::{read_at, write_at};
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of records for which disk space is reserved at a time.
const BLOCK: u64 = 16;

/// Spill file error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SpillError {
    /// No spill directory is configured.
    #[error(
        "host memory for keyframes is full and no spill directory is configured; set one, or raise the number of keyframes in host memory"
    )]
    NoFile,
    /// The file cannot be created.
    #[error("cannot create a temporary file in {}: {source}", directory.display())]
    Create {
        directory: PathBuf,
        source: Arc<io::Error>,
    },
    /// The disk is full.
    #[error(
        "no space left for a keyframe of {bytes} bytes on the disk of {} ({source}): free some space, or choose another directory",
        directory.display()
    )]
    DiskFull {
        directory: PathBuf,
        bytes: u64,
        source: Arc<io::Error>,
    },
    /// Permission denied.
    #[error("no permission to write keyframes in {}: {source}", directory.display())]
    Permission {
        directory: PathBuf,
        source: Arc<io::Error>,
    },
    /// Another write error.
    #[error("writing a keyframe in {} failed: {source}", directory.display())]
    Write {
        directory: PathBuf,
        source: Arc<io::Error>,
    },
    /// A read error, including a truncated file.
    #[error("reading a keyframe in {} failed: {source}", directory.display())]
    Read {
        directory: PathBuf,
        source: Arc<io::Error>,
    },
    /// The content read differs from what was written.
    #[error("a keyframe in {} was modified by another program or damaged by the disk", directory.display())]
    Damaged { directory: PathBuf },
}

/// A file of fixed-size records, unnamed where the system supports that, and deleted with the
/// process in any case. Records are read and written by index, from any thread.
pub struct SpillFile {
    file: File,
    directory: PathBuf,
    bytes: u64,
    /// Number of records for which disk space is reserved.
    set_aside: Mutex<u64>,
}

impl SpillFile {
    /// Creates a file in `directory` for records of `bytes`.
    pub fn new(directory: &Path, bytes: usize) -> Result<Self, SpillError> {
        let file = tempfile::tempfile_in(directory).map_err(|e| {
            let (directory, source) = (directory.to_owned(), Arc::new(e));
            if forbidden(&source) {
                SpillError::Permission { directory, source }
            } else {
                SpillError::Create { directory, source }
            }
        })?;
        Ok(Self::from_file(file, directory, bytes))
    }

    /// Uses an open file, overwriting its content; `directory` is used in errors.
    pub fn from_file(file: File, directory: &Path, bytes: usize) -> Self {
        Self {
            file,
            directory: directory.to_owned(),
            bytes: bytes as u64,
            set_aside: Mutex::new(0),
        }
    }

    /// Writes a record; returns its checksum.
    pub fn write(&self, record: u32, bytes: &[u8]) -> Result<u64, SpillError> {
        self.set_aside(u64::from(record))
            .and_then(|()| write_at(&self.file, bytes, u64::from(record) * self.bytes))
            .map_err(|e| self.unwritten(e))?;
        Ok(checksum(bytes))
    }

    /// Reads a record with checksum `sum`.
    pub fn read(&self, record: u32, sum: u64, dst: &mut [u8]) -> Result<(), SpillError> {
        read_at(&self.file, dst, u64::from(record) * self.bytes).map_err(|e| SpillError::Read {
            directory: self.directory.clone(),
            source: Arc::new(e),
        })?;
        if checksum(dst) != sum {
            return Err(SpillError::Damaged {
                directory: self.directory.clone(),
            });
        }
        Ok(())
    }

    fn unwritten(&self, error: io::Error) -> SpillError {
        use io::ErrorKind as K;
        let (directory, source) = (self.directory.clone(), Arc::new(error));
        match source.kind() {
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => SpillError::DiskFull {
                directory,
                bytes: self.bytes,
                source,
            },
            _ if forbidden(&source) => SpillError::Permission { directory, source },
            _ => SpillError::Write { directory, source },
        }
    }

    /// Reserves disk space up to and including `record`, and for some more records while there is
    /// space.
    fn set_aside(&self, record: u64) -> io::Result<()> {
        let mut done = self
            .set_aside
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if record < *done {
            return Ok(());
        }
        for more in [BLOCK, 1] {
            let wanted = record + more;
            match allocate(&self.file, *done * self.bytes, wanted * self.bytes) {
                Ok(()) => {
                    *done = wanted;
                    return Ok(());
                }
                Err(e) if more == 1 => return Err(e),
                Err(_) => {}
            }
        }
        Ok(())
    }
}

fn forbidden(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::PermissionDenied | K::ReadOnlyFilesystem)
}

/// A 64-bit checksum, only compared within the process.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// Reserves disk blocks for bytes `from..to`.
#[cfg(target_os = "linux")]
fn allocate(file: &File, from: u64, to: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::empty(), from, to - from) {
        // Not supported by the file system (NFS before 4.2) or not a regular file: errors will
        // surface on writing.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODEV | rustix::io::Errno::NOSYS) => {
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Extends the file; except on Linux, lack of space surfaces only on writing.
#[cfg(not(target_os = "linux"))]
fn allocate(file: &File, _from: u64, to: u64) -> io::Result<()> {
    file.set_len(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_gets_a_name() {
        use io::ErrorKind as K;
        let file = SpillFile::new(&std::env::temp_dir(), 8).unwrap();
        let named = |kind: K| file.unwritten(kind.into());
        for kind in [K::StorageFull, K::QuotaExceeded, K::FileTooLarge] {
            assert!(matches!(named(kind), SpillError::DiskFull { bytes: 8, .. }));
        }
        for kind in [K::PermissionDenied, K::ReadOnlyFilesystem] {
            assert!(matches!(named(kind), SpillError::Permission { .. }));
        }
        assert!(matches!(named(K::TimedOut), SpillError::Write { .. }));
    }

    #[test]
    fn records_are_written_and_read_in_any_order() {
        let file = SpillFile::new(&std::env::temp_dir(), 3).unwrap();
        let records = [70, 0, 16, 15, 3];
        let content = |record: u32| [record as u8, 1, 2];
        let sums = records.map(|r| file.write(r, &content(r)).unwrap());
        for (record, sum) in records.into_iter().zip(sums) {
            let mut found = [0; 3];
            file.read(record, sum, &mut found).unwrap();
            assert_eq!(found, content(record));
            let other = file.read(record, sum ^ 1, &mut found);
            assert!(matches!(other, Err(SpillError::Damaged { .. })));
        }
    }
}

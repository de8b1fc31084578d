//! Reading and writing at a place in a file.

use std::fs::File;
use std::io;

/// A file for this process alone, without a name where the system supports that; it ends with the process.
pub struct TemporaryFile(File);

impl TemporaryFile {
    /// An empty file in the system's folder for temporary files.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new() -> io::Result<Self> {
        Ok(Self(tempfile::tempfile()?))
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// As [`write_at`].
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        write_at(&self.0, bytes, offset)
    }

    /// Fills `bytes` with what is at `offset`.
    ///
    /// # Errors
    /// As [`read_at`].
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        read_at(&self.0, bytes, offset)
    }
}

impl From<File> for TemporaryFile {
    fn from(file: File) -> Self {
        Self(file)
    }
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// As [`std::io::Write::write_all`].
#[cfg(unix)]
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Fills `bytes` with what is at `offset`.
///
/// # Errors
/// As [`std::io::Read::read_exact`].
#[cfg(unix)]
pub fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// As [`std::io::Write::write_all`].
#[cfg(windows)]
pub fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = bytes.get(n..).unwrap_or_default();
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Fills `bytes` with what is at `offset`.
///
/// # Errors
/// As [`std::io::Read::read_exact`].
#[cfg(windows)]
pub fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match std::os::windows::fs::FileExt::seek_read(file, rest, offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

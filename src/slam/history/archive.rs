//! The older frames of a long sequence, in a temporary file.

use super::entry::{BYTES, Entry};
use crate::files::at::TemporaryFile;
use std::io;

/// Number of frames that are written and read at a time.
pub const BLOCK: usize = 512;

/// Frames by number, from 0.
pub struct Archive {
    file: TemporaryFile,
    count: usize,
    /// The bytes of a block on their way.
    bytes: Vec<u8>,
}

impl Archive {
    /// An empty file in the system's folder for temporary files.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new() -> io::Result<Self> {
        Ok(Self::of(TemporaryFile::new()?))
    }

    /// Frames in `file`, which is empty.
    pub fn of(file: TemporaryFile) -> Self {
        Self {
            file,
            count: 0,
            bytes: Vec::with_capacity(BLOCK * BYTES),
        }
    }

    /// Number of frames.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Appends frames.
    ///
    /// # Errors
    /// If they cannot be written: none of them is then in the file.
    pub fn append<'a>(&mut self, entries: impl Iterator<Item = &'a Entry>) -> io::Result<()> {
        self.bytes.clear();
        entries.for_each(|entry| entry.to_bytes(&mut self.bytes));
        self.file.write_at(&self.bytes, offset(self.count))?;
        self.count += self.bytes.len() / BYTES;
        Ok(())
    }

    /// Changes frame `number`, if there is one.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn change(&mut self, number: usize, change: impl FnOnce(&mut Entry)) -> io::Result<()> {
        if number >= self.count {
            return Ok(());
        }
        let mut entry = self.read(number)?;
        change(&mut entry);
        self.bytes.clear();
        entry.to_bytes(&mut self.bytes);
        self.file.write_at(&self.bytes, offset(number))
    }

    /// Frame `number`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self, number: usize) -> io::Result<Entry> {
        let mut bytes = [0; BYTES];
        self.file.read_at(&mut bytes, offset(number))?;
        Ok(Entry::from_bytes(&bytes))
    }

    /// All frames in order with their numbers, read block by block. A block that cannot be read is an error.
    pub fn iter(&self) -> impl Iterator<Item = io::Result<(usize, Entry)>> {
        let block = |from: usize| {
            let count = BLOCK.min(self.count - from);
            let mut bytes = vec![0; count * BYTES];
            if let Err(error) = self.file.read_at(&mut bytes, offset(from)) {
                return vec![Err(error)];
            }
            let entries = bytes.chunks_exact(BYTES).map(Entry::from_bytes);
            (from..).zip(entries).map(Ok).collect()
        };
        (0..self.count).step_by(BLOCK).flat_map(block)
    }
}

fn offset(number: usize) -> u64 {
    (number * BYTES) as u64
}

//! The state of a training in a file, from which it goes on: all rows with their moments and statistics.
//!
//! Little-endian: `M3RSPLAT`, u32 version, u32 degree, u64 rows, u64 step; then blocks of rows, each plane after the
//! other; SHA-256 of all before it.

use crate::compute::splat::block::{BlockContent, FieldBuffers, RowBlock};
use crate::compute::splat::layout::Field;
use crate::compute::splat::trainer::{BLOCK_ROWS, Trainer};
use crate::files;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::Path;

const MAGIC: [u8; 8] = *b"M3RSPLAT";
const VERSION: u32 = 1;
const HEADER: u64 = 8 + 4 + 4 + 8 + 8;
const CHECKSUM: u64 = 32;

/// A writer that also hashes.
struct Hashed<W> {
    to: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.to.read(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }
}

/// Calls `each` with every plane of a block, as words of 4 bytes.
fn planes(
    block: &mut RowBlock,
    each: &mut dyn FnMut(Plane<'_>) -> io::Result<()>,
) -> io::Result<()> {
    for buffers in [&mut block.parameters, &mut block.first, &mut block.second] {
        fields(buffers, each)?;
    }
    each(Plane::Floats(&mut block.gradient_sum))?;
    for words in [&mut block.anchor, &mut block.seen, &mut block.observed] {
        each(Plane::Words(words))?;
    }
    Ok(())
}

enum Plane<'a> {
    Floats(&'a mut [f32]),
    Words(&'a mut [u32]),
}

fn fields(
    buffers: &mut FieldBuffers,
    each: &mut dyn FnMut(Plane<'_>) -> io::Result<()>,
) -> io::Result<()> {
    Field::ALL
        .into_iter()
        .try_for_each(|field| each(Plane::Floats(buffers.get_mut(field))))
}

fn put(out: &mut dyn Write, plane: &Plane<'_>) -> io::Result<()> {
    match plane {
        Plane::Floats(values) => values
            .iter()
            .try_for_each(|v| out.write_all(&v.to_le_bytes())),
        Plane::Words(values) => values
            .iter()
            .try_for_each(|v| out.write_all(&v.to_le_bytes())),
    }
}

fn get(src: &mut dyn Read, plane: Plane<'_>) -> io::Result<()> {
    let mut bytes = [0; 4];
    match plane {
        Plane::Floats(values) => values.iter_mut().try_for_each(|v| {
            src.read_exact(&mut bytes)?;
            *v = f32::from_le_bytes(bytes);
            Ok(())
        }),
        Plane::Words(values) => values.iter_mut().try_for_each(|v| {
            src.read_exact(&mut bytes)?;
            *v = u32::from_le_bytes(bytes);
            Ok(())
        }),
    }
}

/// Bytes of a row.
fn row_bytes(degree: u8) -> u64 {
    let floats: usize = Field::ALL.into_iter().map(|f| f.width(degree)).sum();
    4 * (3 * floats as u64 + 4)
}

/// Writes the state to `path`, completely or not at all.
///
/// # Errors
/// If the file cannot be written, or the device fails.
pub fn save(path: &Path, trainer: &mut Trainer) -> io::Result<()> {
    let (rows, degree) = (
        trainer.device().counts().rows,
        trainer.device().layout().degree(),
    );
    let step = trainer.step();
    files::write(path, |out| {
        let mut out = Hashed {
            to: out,
            hash: Sha256::new(),
        };
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&u32::from(degree).to_le_bytes())?;
        out.write_all(&rows.to_le_bytes())?;
        out.write_all(&step.to_le_bytes())?;
        let mut failed = Ok(());
        let saved = trainer.save(&mut |block| {
            if failed.is_ok() {
                failed = planes(&mut block.clone(), &mut |plane| put(&mut out, &plane));
            }
            Ok(())
        });
        failed?;
        saved.map_err(io::Error::other)?;
        let Hashed { to, hash } = out;
        to.write_all(&hash.finalize())
    })
}

/// Why a state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read.
    #[error("cannot read the state of the training {path}: {cause}")]
    Io { path: String, cause: io::Error },
    /// The file is something else, or damaged.
    #[error(
        "{path} is not a state of a training that can be continued: {what}; train without --resume"
    )]
    Unusable { path: String, what: String },
    /// The device refused the rows.
    #[error("the training {path} cannot be continued: {cause}")]
    Device {
        path: String,
        cause: crate::compute::splat::SplatError,
    },
}

/// Continues the training in `path` with a trainer whose device is empty.
///
/// # Errors
/// If the file is not a complete state of this degree, or has more rows than the device's capacity.
pub fn resume(path: &Path, trainer: &mut Trainer) -> Result<(), StateError> {
    let name = || path.display().to_string();
    let io = |cause| StateError::Io {
        path: name(),
        cause,
    };
    let unusable = |what: String| StateError::Unusable { path: name(), what };
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let degree = trainer.device().layout().degree();
    let mut src = Hashed {
        to: BufReader::with_capacity(1 << 16, file),
        hash: Sha256::new(),
    };
    let short = |error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof => unusable("it is incomplete".to_owned()),
        _ => io(error),
    };
    let mut header = [0u8; HEADER as usize];
    src.read_exact(&mut header).map_err(short)?;
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let wide = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if header[..8] != MAGIC || word(8) != VERSION {
        return Err(unusable("it is another file".to_owned()));
    }
    let (found, rows, step) = (word(12), wide(16), wide(24));
    if found != u32::from(degree) {
        return Err(unusable(format!(
            "its colours have degree {found}, expected {degree}"
        )));
    }
    let capacity = trainer.device().counts().capacity;
    if rows > capacity {
        return Err(unusable(format!(
            "it has {rows} rows, the capacity is {capacity}"
        )));
    }
    let expected = HEADER + rows * row_bytes(degree) + CHECKSUM;
    if bytes != expected {
        return Err(unusable(format!(
            "it has {bytes} bytes, expected {expected}"
        )));
    }
    let device = |cause| StateError::Device {
        path: name(),
        cause,
    };
    let mut block = RowBlock::new(0, degree, BlockContent::State);
    let mut left = rows;
    while left > 0 {
        block.resize(left.min(BLOCK_ROWS as u64) as usize);
        planes(&mut block, &mut |plane| get(&mut src, plane)).map_err(short)?;
        trainer.device().append(&block).map_err(device)?;
        left -= block.rows() as u64;
    }
    let Hashed { mut to, hash } = src;
    let mut sum = [0; CHECKSUM as usize];
    to.read_exact(&mut sum).map_err(short)?;
    if hash.finalize()[..] != sum {
        trainer.device().clear().map_err(device)?;
        return Err(unusable(
            "it is damaged: its checksum does not match".to_owned(),
        ));
    }
    trainer.resume(step);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::splat::CpuSplat;
    use crate::compute::splat::schedule::{Mode, Schedule};
    use crate::config::SplatConfig;

    fn trainer(capacity: u64) -> Trainer {
        let device = CpuSplat::new(capacity, 1).unwrap();
        let schedule = Schedule::new(SplatConfig::default(), Mode::Live);
        Trainer::new(Box::new(device), schedule)
    }

    fn filled() -> Trainer {
        let mut trainer = trainer(100);
        let mut block = RowBlock::new(70, 1, BlockContent::State);
        let mut next = 0;
        planes(&mut block, &mut |plane| {
            match plane {
                Plane::Floats(values) => values.iter_mut().for_each(|v| {
                    next += 1;
                    *v = next as f32 * 0.01;
                }),
                Plane::Words(values) => values.iter_mut().for_each(|v| {
                    next += 1;
                    *v = next;
                }),
            }
            Ok(())
        })
        .unwrap();
        trainer.device().append(&block).unwrap();
        trainer.resume(42);
        trainer
    }

    fn state(trainer: &mut Trainer) -> Vec<RowBlock> {
        let mut all = Vec::new();
        let sink = &mut |block: &RowBlock| {
            all.push(block.clone());
            Ok(())
        };
        trainer.save(sink).unwrap();
        all
    }

    #[test]
    fn a_training_goes_on_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.state");
        let mut before = filled();
        save(&path, &mut before).unwrap();
        let bytes = path.metadata().unwrap().len();
        assert_eq!(bytes, 32 + 70 * 4 * (3 * 23 + 4) + 32);
        let mut after = trainer(70);
        resume(&path, &mut after).unwrap();
        assert_eq!(after.step(), 42);
        assert_eq!(state(&mut after), state(&mut before));
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.state");
        save(&path, &mut filled()).unwrap();
        let error = resume(&path, &mut trainer(69)).unwrap_err();
        assert!(error.to_string().contains("capacity is 69"), "{error}");
        let good = std::fs::read(&path).unwrap();
        for (change, word) in [
            (0, "another file"),
            (40, "damaged"),
            (good.len() - 1, "damaged"),
        ] {
            let mut bad = good.clone();
            bad[change] ^= 1;
            std::fs::write(&path, bad).unwrap();
            let mut other = trainer(100);
            let error = resume(&path, &mut other).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(other.device().counts().rows, 0);
        }
        std::fs::write(&path, &good[..good.len() - 9]).unwrap();
        assert!(resume(&path, &mut trainer(100)).is_err());
        std::fs::write(&path, b"M3R").unwrap();
        assert!(resume(&path, &mut trainer(100)).is_err());
    }
}

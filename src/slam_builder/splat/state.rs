//! The state of a training in a file, from which it goes on: all rows with their moments and statistics, and how the
//! poses of views were corrected.
//!
//! Little-endian: `M3RSPLAT`, u32 version, u32 degree, u64 rows, u64 step, u64 views; then blocks of rows, each plane
//! after the other; for each view u32 id, u32 steps, 19 f64 (translation 3, quaternion x y z w, first and second moments
//! 6 each); SHA-256 of all before it.

use crate::compute::splat::block::{BlockContent, FieldBuffers, RowBlock};
use crate::compute::splat::layout::Field;
use crate::compute::splat::pose::PoseCorrection;
use crate::compute::splat::trainer::{BLOCK_ROWS, Trainer};
use crate::files;
use crate::geometry::Sim3;
use nalgebra::{Quaternion, UnitQuaternion, Vector3};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::Path;

use super::views::{OFFLINE_VIEWS, Views};

const MAGIC: [u8; 8] = *b"M3RSPLAT";
const VERSION: u32 = 2;
const HEADER: u64 = 8 + 4 + 4 + 8 + 8 + 8;
const CHECKSUM: u64 = 32;
const VIEW_BYTES: u64 = 4 + 4 + 19 * 8;
/// Views of a file: more are not trained on.
const MAX_VIEWS: u64 = OFFLINE_VIEWS as u64;

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

/// A view's id and correction.
fn put_view(out: &mut dyn Write, id: u32, correction: &PoseCorrection) -> io::Result<()> {
    out.write_all(&id.to_le_bytes())?;
    out.write_all(&correction.steps.to_le_bytes())?;
    let moved = correction.moved.to_array();
    let values = moved[..7].iter();
    let mut values = values.chain(&correction.first).chain(&correction.second);
    values.try_for_each(|v| out.write_all(&v.to_le_bytes()))
}

/// What [`put_view`] wrote; `None` for a correction that is not a finite pose.
fn get_view(src: &mut dyn Read) -> io::Result<Option<(u32, PoseCorrection)>> {
    let mut word = [0; 4];
    src.read_exact(&mut word)?;
    let id = u32::from_le_bytes(word);
    src.read_exact(&mut word)?;
    let mut values = [0.0; 19];
    for value in &mut values {
        let mut bytes = [0; 8];
        src.read_exact(&mut bytes)?;
        *value = f64::from_le_bytes(bytes);
    }
    let quaternion = Quaternion::new(values[6], values[3], values[4], values[5]);
    let correction = PoseCorrection {
        moved: Sim3 {
            translation: Vector3::new(values[0], values[1], values[2]),
            rotation: UnitQuaternion::new_normalize(quaternion),
            scale: 1.0,
        },
        first: std::array::from_fn(|k| values[7 + k]),
        second: std::array::from_fn(|k| values[13 + k]),
        steps: u32::from_le_bytes(word),
    };
    let sound = values.iter().all(|v| v.is_finite()) && correction.moved.is_finite();
    Ok(sound.then_some((id, correction)))
}

/// Writes the state to `path`, completely or not at all.
///
/// # Errors
/// If the file cannot be written, or the device fails.
pub fn save(path: &Path, trainer: &mut Trainer, views: &Views) -> io::Result<()> {
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
        out.write_all(&(views.corrections().len() as u64).to_le_bytes())?;
        let mut failed = Ok(());
        let saved = trainer.save(&mut |block| {
            if failed.is_ok() {
                failed = planes(&mut block.clone(), &mut |plane| put(&mut out, &plane));
            }
            Ok(())
        });
        failed?;
        saved.map_err(io::Error::other)?;
        for (id, correction) in views.corrections() {
            put_view(&mut out, id, correction)?;
        }
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

/// Continues the training in `path` with a trainer whose device is empty. Returns the views' corrections, by keyframe.
///
/// # Errors
/// If the file is not a complete state of this degree, or has more rows than the device's capacity.
pub fn resume(
    path: &Path,
    trainer: &mut Trainer,
) -> Result<Vec<(u32, PoseCorrection)>, StateError> {
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
    let (found, rows, step, views) = (word(12), wide(16), wide(24), wide(32));
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
    if views > MAX_VIEWS {
        return Err(unusable(format!(
            "it has {views} views, at most {MAX_VIEWS} can be"
        )));
    }
    let expected = HEADER + rows * row_bytes(degree) + views * VIEW_BYTES + CHECKSUM;
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
    let mut corrections = Vec::with_capacity(views as usize);
    for _ in 0..views {
        // What is not sound does not pass the checksum either.
        corrections.extend(get_view(&mut src).map_err(short)?);
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
    Ok(corrections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::splat::CpuSplat;
    use crate::compute::splat::schedule::{Mode, Schedule};
    use crate::config::SplatConfig;
    use crate::geometry::Intrinsics;
    use crate::image::RgbImage;
    use crate::map::KeyframeView;
    use std::sync::Arc;

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

    /// Two views, of keyframes 3 and 7.
    fn views() -> Views {
        let k = Intrinsics {
            fx: 4.0,
            fy: 4.0,
            cx: 1.5,
            cy: 1.0,
        };
        let view = KeyframeView {
            image: Arc::new(RgbImage::new(4, 3)),
            points: Arc::new([0.0, 0.0, 1.0].repeat(12)),
            confidence: Arc::new(vec![2.0; 12]),
        };
        let mut views = Views::new(k, 9);
        for id in [3, 7] {
            views.add(id, Sim3::identity(), &view).unwrap();
        }
        views
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
        let mut views = views();
        let mut moved = PoseCorrection::default();
        for k in 0..3 {
            moved.step(&[0.1, 0.2, -0.3, f64::from(k), 0.5, -0.6], 1e-3, 1.0);
        }
        views.correct(7, moved);
        save(&path, &mut before, &views).unwrap();
        let bytes = path.metadata().unwrap().len();
        assert_eq!(bytes, 40 + 70 * 4 * (3 * 23 + 4) + 2 * 160 + 32);
        let mut after = trainer(70);
        let corrections = resume(&path, &mut after).unwrap();
        assert_eq!(
            (corrections[0].0, corrections[0].1),
            (3, PoseCorrection::default())
        );
        let (id, found) = corrections[1];
        assert_eq!(
            (id, found.first, found.second, found.steps),
            (7, moved.first, moved.second, 3)
        );
        let (distance, angle) = found.moved.apart(&moved.moved);
        assert!(distance < 1e-15 && angle < 1e-7);
        assert_eq!(after.step(), 42);
        assert_eq!(state(&mut after), state(&mut before));
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.state");
        save(&path, &mut filled(), &views()).unwrap();
        let error = resume(&path, &mut trainer(69)).unwrap_err();
        assert!(error.to_string().contains("capacity is 69"), "{error}");
        let good = std::fs::read(&path).unwrap();
        for (change, word) in [
            (0, "another file"),
            (48, "damaged"),
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

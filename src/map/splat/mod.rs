//! Files of Gaussian splats: PLY in the layout of 3D Gaussian Splatting, compressed PLY in that of PlayCanvas, and spz
//! version 4.
//!
//! Every file holds raw values: positions in metres in the map's frame, natural logarithms of scales, logits of
//! opacities, quaternions `w x y z`, coefficients of spherical harmonics. Axes are those of the map, except in spz,
//! whose y and z axes point the other way. Readers and writers stream: none holds a whole cloud, except that a
//! compressed PLY is written in Morton order and needs it in memory.

mod compressed;
mod header;
mod ply;
mod reader;
mod row;
mod spz;

pub use reader::{Info, Reader, load};
pub use row::{Splat, Splats, coefficients};

use crate::files::export::{self, ExportError};
use std::io;
use std::path::{Path, PathBuf};

/// File name in a folder of results.
pub const FILE_NAME: &str = "splat.ply";
/// Rows of a file: a cloud of more has no use here, and a damaged header may claim any number.
pub const MAX_ROWS: u64 = 1 << 30;
/// Rows that are converted at a time: 3.8 MB of them.
const BLOCK: usize = 1 << 14;

/// A file format of splats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// PLY of 32-bit floats, 62 for each splat of degree 3.
    Ply,
    /// PLY of chunks of 256 splats in 16 bytes each, beside the spherical harmonics.
    CompressedPly,
    /// Niantic's spz, version 4.
    Spz,
}

impl Format {
    /// The format for a file's name: `.spz`, `.compressed.ply`, `.ply`. `None` for other names.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        if name.ends_with(".spz") {
            Some(Self::Spz)
        } else if name.ends_with(".compressed.ply") {
            Some(Self::CompressedPly)
        } else if name.ends_with(".ply") {
            Some(Self::Ply)
        } else {
            None
        }
    }

    /// The format's name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ply => "PLY (3DGS)",
            Self::CompressedPly => "compressed PLY",
            Self::Spz => "spz 4",
        }
    }
}

/// Rows of splats that can be read again and again, in blocks: a cloud in memory, on a device, or in a file.
pub trait SplatRows {
    /// Number of rows.
    fn count(&self) -> u64;

    /// Degree of the spherical harmonics, 0 to 3.
    fn degree(&self) -> u8;

    /// Fills `dst` with the rows from `first` on.
    ///
    /// # Errors
    /// If the rows cannot be read, or there are fewer.
    fn read(&mut self, first: u64, dst: &mut [Splat]) -> io::Result<()>;
}

/// Writes the rows to `path`, completely or not at all. Returns the bytes of the file.
///
/// # Errors
/// If the file cannot be written, or the rows cannot be read.
pub fn write(path: &Path, format: Format, rows: &mut dyn SplatRows) -> Result<u64, ExportError> {
    if rows.count() > MAX_ROWS || rows.degree() > 3 {
        let text = format!(
            "{} splats of degree {}, expected at most {MAX_ROWS} of degree 3",
            rows.count(),
            rows.degree()
        );
        return Err(ExportError::io("write", path, io::Error::other(text)));
    }
    let mut bytes = 0;
    export::write(path, |out| {
        bytes = match format {
            Format::Ply => ply::write(out, rows)?,
            Format::CompressedPly => compressed::write(out, rows)?,
            Format::Spz => spz::write(out, rows)?,
        };
        Ok(())
    })?;
    Ok(bytes)
}

/// Passes the rows to `each` one by one.
fn for_each(
    rows: &mut dyn SplatRows,
    each: &mut dyn FnMut(&Splat) -> io::Result<()>,
) -> io::Result<()> {
    let count = rows.count();
    let mut block = vec![Splat::default(); BLOCK.min(count as usize)];
    let mut first = 0;
    while first < count {
        let now = (count - first).min(BLOCK as u64) as usize;
        let block = &mut block[..now];
        rows.read(first, block)?;
        block.iter().try_for_each(&mut *each)?;
        first += now as u64;
    }
    Ok(())
}

/// Error from reading a file of splats.
#[derive(Debug, thiserror::Error)]
pub enum SplatFileError {
    /// The operation failed.
    #[error("cannot read the splats {path}: {cause}", path = path.display())]
    Io { path: PathBuf, cause: io::Error },
    /// The file has another format.
    #[error(
        "{path} is not a file of splats ({what}); expected PLY in the layout of 3D Gaussian Splatting, compressed PLY or spz version 4",
        path = path.display()
    )]
    Format { path: PathBuf, what: String },
    /// The file is truncated or has trailing data.
    #[error(
        "the splats {path} have {found} bytes, expected {expected}: the file was not copied or written completely; copy it again",
        path = path.display()
    )]
    Length {
        path: PathBuf,
        expected: u64,
        found: u64,
    },
    /// The file has more rows than allowed.
    #[error("the splats {path} have {found} rows, expected at most {max}", path = path.display())]
    TooMany { path: PathBuf, found: u64, max: u64 },
    /// A row is invalid.
    #[error(
        "the splats {path} are invalid: {what} in row {row}; write the file again",
        path = path.display()
    )]
    Row {
        path: PathBuf,
        row: u64,
        what: &'static str,
    },
}

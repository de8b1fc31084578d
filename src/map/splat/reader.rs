//! Reads files of splats row by row, whatever their format.

use super::header::{self, PlyHeader};
use super::ply::Columns;
use super::spz::Fault;
use super::{Format, MAX_ROWS, Splat, SplatFileError, SplatRows, Splats, compressed, spz};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What a file's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// The file's format.
    pub format: Format,
    /// Number of rows.
    pub count: u64,
    /// Degree of the spherical harmonics, 0 to 3.
    pub degree: u8,
    /// Bytes of the file.
    pub bytes: u64,
}

#[derive(Debug)]
enum Rows {
    Ply(Columns, BufReader<File>),
    Compressed(Box<compressed::Rows<BufReader<File>>>),
    Spz(spz::Rows),
}

/// An open file of splats.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    info: Info,
    rows: Rows,
    read: u64,
}

impl Reader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file has another format, or not the size that its header implies.
    pub fn open(path: &Path) -> Result<Self, SplatFileError> {
        let io = |cause| SplatFileError::Io {
            path: path.to_owned(),
            cause,
        };
        let open_at = |offset: u64| -> io::Result<BufReader<File>> {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(offset))?;
            Ok(BufReader::new(file))
        };
        let mut src = open_at(0).map_err(io)?;
        let bytes = src.get_ref().metadata().map_err(io)?.len();
        let mut magic = Vec::new();
        (&mut src).take(4).read_to_end(&mut magic).map_err(io)?;
        src.seek(SeekFrom::Start(0)).map_err(io)?;
        let wrong = |what: String| SplatFileError::Format {
            path: path.to_owned(),
            what,
        };
        let length = |expected| SplatFileError::Length {
            path: path.to_owned(),
            expected,
            found: bytes,
        };
        let (format, count, degree, rows) = match magic.as_slice() {
            m if m == spz::MAGIC => {
                let layout = spz::Layout::read(&mut src, bytes).map_err(io)?;
                let layout = layout.map_err(|fault| match fault {
                    Fault::Format(what) => wrong(what),
                    Fault::Length { expected } => length(expected),
                })?;
                let rows = spz::Rows::new(&layout, open_at).map_err(io)?;
                (Format::Spz, layout.count, layout.degree, Rows::Spz(rows))
            }
            [0x1f, 0x8b, ..] => {
                let what = "gzip, as of spz before version 4: convert it with splat-transform";
                return Err(wrong(what.to_owned()));
            }
            _ => {
                let header = header::read(&mut src).map_err(io)?.map_err(wrong)?;
                let is_compressed = header.elements.iter().any(|e| e.name == "chunk");
                let (count, degree, expected, rows) = if is_compressed {
                    let layout = compressed::Layout::of(&header, MAX_ROWS).map_err(wrong)?;
                    let at = |offset| open_at(offset).map_err(io);
                    let rows = compressed::Rows::new(
                        at(layout.chunks)?,
                        at(layout.rows)?,
                        at(layout.rest)?,
                        layout.degree,
                    );
                    let rows = Rows::Compressed(Box::new(rows));
                    (layout.count, layout.degree, layout.bytes, rows)
                } else {
                    let (count, columns) = plain(&header).map_err(wrong)?;
                    let expected = header.bytes + count * columns.row_bytes();
                    (count, columns.degree(), expected, Rows::Ply(columns, src))
                };
                if bytes != expected {
                    return Err(length(expected));
                }
                let format = match rows {
                    Rows::Compressed(_) => Format::CompressedPly,
                    _ => Format::Ply,
                };
                (format, count, degree, rows)
            }
        };
        if count > MAX_ROWS {
            return Err(SplatFileError::TooMany {
                path: path.to_owned(),
                found: count,
                max: MAX_ROWS,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            info: Info {
                format,
                count,
                degree,
                bytes,
            },
            rows,
            read: 0,
        })
    }

    /// What the header says.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Reads the next row into `dst`; returns `false` after the last.
    ///
    /// # Errors
    /// If the row cannot be read or is invalid.
    pub fn next(&mut self, dst: &mut Splat) -> Result<bool, SplatFileError> {
        if self.read >= self.info.count {
            return Ok(false);
        }
        let read = match &mut self.rows {
            Rows::Ply(columns, src) => columns.read(src, dst),
            Rows::Compressed(rows) => rows.read(dst),
            Rows::Spz(rows) => rows.read(dst),
        };
        read.map_err(|cause| SplatFileError::Io {
            path: self.path.clone(),
            cause,
        })?;
        if let Some(what) = dst.fault() {
            return Err(SplatFileError::Row {
                path: self.path.clone(),
                row: self.read,
                what,
            });
        }
        self.read += 1;
        Ok(true)
    }
}

/// Reads a file of at most `max` rows into memory.
///
/// # Errors
/// If the file cannot be read, is invalid, or has more rows.
pub fn load(path: &Path, max: u64) -> Result<Splats, SplatFileError> {
    let mut reader = Reader::open(path)?;
    let info = reader.info;
    if info.count > max {
        return Err(SplatFileError::TooMany {
            path: path.to_owned(),
            found: info.count,
            max,
        });
    }
    let mut splats = Splats::new(info.degree);
    let mut row = Splat::default();
    while reader.next(&mut row)? {
        splats.push(&row);
    }
    Ok(splats)
}

/// From the file, which is opened again for rows that were read before.
impl SplatRows for Reader {
    fn count(&self) -> u64 {
        self.info.count
    }

    fn degree(&self) -> u8 {
        self.info.degree
    }

    fn read(&mut self, first: u64, dst: &mut [Splat]) -> io::Result<()> {
        let mut skipped = Splat::default();
        if first < self.read {
            *self = Self::open(&self.path).map_err(io::Error::other)?;
        }
        while self.read < first && self.next(&mut skipped).map_err(io::Error::other)? {}
        for row in dst {
            if !self.next(row).map_err(io::Error::other)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// Rows and columns of a PLY of floats; the error says what is wrong.
fn plain(header: &PlyHeader) -> Result<(u64, Columns), String> {
    let [vertex] = header.elements.as_slice() else {
        return Err("expected one element, vertex".to_owned());
    };
    if vertex.name != "vertex" {
        return Err(format!("its element is {}, expected vertex", vertex.name));
    }
    if vertex.count > MAX_ROWS {
        let found = vertex.count;
        return Err(format!("it has {found} rows, expected at most {MAX_ROWS}"));
    }
    Ok((vertex.count, Columns::find(vertex)?))
}

//! Reads map files.

use super::bytes::{get, one, pose, some, symmetric};
use super::{CHECKSUM, Header, KINDS, MapFileError, SavedChain, SavedEdge, SavedKeyframe};
use crate::compute::device::{Floats, MatchContent};
use crate::compute::global::PoseFactor;
use crate::compute::store::FloatFormat;
use crate::time::Stamp;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Replaces the keyframe id if a keyframe has no chain.
pub(super) const NO_CHAIN: u32 = u32::MAX;

/// Number of bytes hashed at a time.
const BLOCK: usize = 1 << 16;

/// An open map: header, then keyframes, edges and factors, one at a time.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    header: Header,
    /// Offset of the keyframes in bytes.
    start: u64,
    /// Keyframes and edges read so far.
    keyframes: u32,
    edges: u32,
    /// Flags of the matches being read.
    flags: Vec<u8>,
    /// The file's state when it was verified.
    verified: Option<State>,
}

/// What changes when a file is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Seconds and nanoseconds of the last change, which only the system sets.
    changed: Option<(i64, i64)>,
}

impl State {
    fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        #[cfg(unix)]
        let changed = {
            use std::os::unix::fs::MetadataExt;
            Some((meta.ctime(), meta.ctime_nsec()))
        };
        #[cfg(not(unix))]
        let changed = None;
        Ok(Self {
            bytes: meta.len(),
            modified: meta.modified().ok(),
            changed,
        })
    }
}

impl Reader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// The file is not a map, has another version, or does not have the length that its header
    /// implies.
    pub fn open(path: &Path) -> Result<Self, MapFileError> {
        let io = |cause| MapFileError::Io {
            action: "read",
            path: path.to_owned(),
            cause,
        };
        let file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?.len();
        let mut file = BufReader::with_capacity(BLOCK, file);
        let (header, start) = match Header::read(path, &mut file) {
            // Truncated within the header.
            Err(MapFileError::Length { path, expected, .. }) => {
                return Err(MapFileError::Length {
                    path,
                    expected,
                    found,
                });
            }
            read => read?,
        };
        let expected = header.rest().and_then(|rest| rest.checked_add(start));
        let expected = expected.unwrap_or(u64::MAX);
        if found != expected {
            return Err(MapFileError::Length {
                path: path.to_owned(),
                expected,
                found,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            header,
            start,
            keyframes: 0,
            edges: 0,
            flags: Vec::new(),
            verified: None,
        })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file and checks the checksum and all values, then returns to the first
    /// keyframe.
    ///
    /// # Errors
    /// A wrong checksum or an invalid value.
    pub fn verify(&mut self) -> Result<(), MapFileError> {
        let state = State::of(self.file.get_ref());
        let state = state.map_err(|error| self.failed(error))?;
        let sum = self.sum();
        let fits = sum.map_err(|error| self.failed(error))?;
        if !fits {
            return Err(MapFileError::Damaged {
                path: self.path.clone(),
            });
        }
        let (keyframes, edges) = (self.header.keyframes, self.header.edges);
        let mut keyframe = SavedKeyframe::default();
        for _ in 0..keyframes {
            self.keyframe(&mut keyframe)?;
        }
        let mut edge = SavedEdge::default();
        for _ in 0..edges {
            self.edge(&mut edge)?;
        }
        for _ in 0..self.header.factors {
            self.factor()?;
        }
        let back = self.back();
        back.map_err(|error| self.failed(error))?;
        self.verified = Some(state);
        Ok(())
    }

    /// Whether the file that was verified is the one that has been read since.
    ///
    /// # Errors
    /// [`MapFileError::Damaged`] if it has been written to.
    pub fn check_unchanged(&self) -> Result<(), MapFileError> {
        let Some(verified) = self.verified else {
            return Ok(());
        };
        match State::of(self.file.get_ref()) {
            Ok(now) if now == verified => Ok(()),
            _ => Err(MapFileError::Damaged {
                path: self.path.clone(),
            }),
        }
    }

    /// Returns to the first keyframe.
    fn back(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.start))?;
        (self.keyframes, self.edges) = (0, 0);
        Ok(())
    }

    /// Has keyframe `number` read next.
    fn go_to_keyframe(&mut self, number: u32) -> Result<(), MapFileError> {
        let bytes = self.header.keyframe_bytes().unwrap_or(0);
        let offset = bytes.checked_mul(u64::from(number));
        match offset.filter(|_| number < self.header.keyframes) {
            Some(offset) => {
                let moved = self.file.seek(SeekFrom::Start(self.start + offset));
                moved.map_err(|error| self.failed(error))?;
                (self.keyframes, self.edges) = (number, 0);
                Ok(())
            }
            None => Err(self.nonsense(format!(
                "there is no keyframe {number} among {}",
                self.header.keyframes
            ))),
        }
    }

    fn sum(&mut self) -> io::Result<bool> {
        let rest = self.header.rest().unwrap_or(CHECKSUM);
        let mut left = self.start + rest.saturating_sub(CHECKSUM);
        self.file.seek(SeekFrom::Start(0))?;
        let mut hasher = Sha256::new();
        let mut block = vec![0; BLOCK];
        while left > 0 {
            let some = usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK));
            let bytes = &mut block[..some];
            self.file.read_exact(bytes)?;
            hasher.update(&*bytes);
            left -= some as u64;
        }
        let mut expected = [0; CHECKSUM as usize];
        self.file.read_exact(&mut expected)?;
        self.back()?;
        Ok(hasher.finalize()[..] == expected)
    }

    /// Reads the next keyframe into `dst`, reusing its allocation.
    ///
    /// # Errors
    /// Invalid values, even if the checksum matches.
    pub fn keyframe(&mut self, dst: &mut SavedKeyframe) -> Result<(), MapFileError> {
        let id = self.keyframes;
        let read = self.read_view(dst).and_then(|()| self.read_features(dst));
        read.map_err(|error| self.failed(error))?;
        self.keyframes += 1;
        let fine = dst.id == id && dst.chain.is_none_or(|c| c.keyframe < id);
        match fine {
            true => Ok(()),
            false => Err(self.nonsense(format!("keyframe {id} is invalid"))),
        }
    }

    /// Reads keyframe `number` into `dst` without its features, then returns to the first keyframe.
    ///
    /// # Errors
    /// If there is none of this number, or invalid values.
    pub fn view(&mut self, number: u32, dst: &mut SavedKeyframe) -> Result<(), MapFileError> {
        self.go_to_keyframe(number)?;
        let read = self.read_view(dst).and_then(|()| self.back());
        read.map_err(|error| self.failed(error))?;
        match dst.id == number {
            true => Ok(()),
            false => Err(self.nonsense(format!("keyframe {number} is invalid"))),
        }
    }

    /// Everything but the features.
    fn read_view(&mut self, dst: &mut SavedKeyframe) -> io::Result<()> {
        let Self { file, header, .. } = self;
        let bad = || io::Error::from(ErrorKind::InvalidData);
        [dst.id, dst.submap] = some(file)?;
        dst.frame_index = one(file)?;
        dst.stamp = Stamp { nanos: one(file)? };
        dst.world_from_camera = pose(file)?.ok_or_else(bad)?;
        let keyframe: u32 = one(file)?;
        let keyframe_from_camera = pose(file)?.ok_or_else(bad)?;
        dst.chain = (keyframe != NO_CHAIN).then_some(SavedChain {
            keyframe,
            keyframe_from_camera,
        });
        let pixels = header.shape.pixels();
        let content = &mut dst.content;
        get(file, 3 * pixels, &mut content.image)?;
        get(file, 3 * pixels, &mut content.points)?;
        content.confidence = floats(file, pixels, header.formats.confidence)?;
        Ok(())
    }

    fn read_features(&mut self, dst: &mut SavedKeyframe) -> io::Result<()> {
        let Self { file, header, .. } = self;
        let features = header.shape.features();
        dst.content.features = floats(file, features, header.formats.features)?;
        Ok(())
    }

    /// Reads the next edge into `dst`, reusing its allocation. Edges follow the keyframes.
    ///
    /// # Errors
    /// Invalid values, even if the checksum matches.
    pub fn edge(&mut self, dst: &mut SavedEdge) -> Result<(), MapFileError> {
        let number = self.edges;
        let read = self.read_edge(dst);
        read.map_err(|error| self.failed(error))?;
        self.edges += 1;
        let (pixels, keyframes) = (self.header.shape.pixels(), self.header.keyframes);
        // The solver ignores non-finite values but would dereference an index out of range.
        let way = |way: &MatchContent| way.index.iter().all(|k| (*k as usize) < pixels);
        let fine = dst.i != dst.j
            && dst.i < keyframes
            && dst.j < keyframes
            && (0.0..=1.0).contains(&dst.match_fraction)
            && way(&dst.content.i_from_j)
            && way(&dst.content.j_from_i);
        match fine {
            true => Ok(()),
            false => Err(self.nonsense(format!("edge {number} is invalid"))),
        }
    }

    fn read_edge(&mut self, dst: &mut SavedEdge) -> io::Result<()> {
        let Self {
            file,
            header,
            flags,
            ..
        } = self;
        let kind: u32;
        [dst.i, dst.j, kind] = some(file)?;
        let kind = KINDS.get(kind as usize).copied();
        dst.kind = kind.ok_or(ErrorKind::InvalidData)?;
        dst.match_fraction = one(file)?;
        let pixels = header.shape.pixels();
        for way in [&mut dst.content.i_from_j, &mut dst.content.j_from_i] {
            get(file, pixels, &mut way.index)?;
            get(file, pixels, flags)?;
            get(file, pixels, &mut way.quality)?;
            let unmatched = flags.iter().zip(&mut way.quality);
            for (_, quality) in unmatched.filter(|(flag, _)| **flag == 0) {
                *quality = 0.0;
            }
        }
        Ok(())
    }

    /// Reads the next factor. Factors follow the edges.
    ///
    /// # Errors
    /// Invalid values, even if the checksum matches.
    pub fn factor(&mut self) -> Result<PoseFactor, MapFileError> {
        let keyframes = self.header.keyframes;
        let read = self.read_factor().map_err(|error| self.failed(error))?;
        let fine = |f: &PoseFactor| f.i != f.j && f.i.max(f.j) < keyframes as usize;
        let factor = read.filter(fine);
        factor.ok_or_else(|| self.nonsense("a factor is invalid".to_owned()))
    }

    fn read_factor(&mut self) -> io::Result<Option<PoseFactor>> {
        let file = &mut self.file;
        let [i, j]: [u32; 2] = some(file)?;
        let (i_from_j, information) = (pose(file)?, symmetric(file)?);
        let factor = |(i_from_j, information)| PoseFactor {
            i: i as usize,
            j: j as usize,
            i_from_j,
            information,
        };
        Ok(i_from_j.zip(information).map(factor))
    }

    fn failed(&self, cause: io::Error) -> MapFileError {
        match cause.kind() {
            ErrorKind::InvalidData => {
                self.nonsense("a number is outside its valid range".to_owned())
            }
            _ => MapFileError::Io {
                action: "read",
                path: self.path.clone(),
                cause,
            },
        }
    }

    pub(super) fn nonsense(&self, what: String) -> MapFileError {
        let path = self.path.clone();
        MapFileError::Content { path, what }
    }
}

fn floats(src: &mut dyn Read, count: usize, format: FloatFormat) -> io::Result<Floats> {
    Ok(match format {
        FloatFormat::F16 => {
            let mut values = Vec::new();
            get(src, count, &mut values)?;
            Floats::F16(values)
        }
        FloatFormat::F32 => {
            let mut values = Vec::new();
            get(src, count, &mut values)?;
            Floats::F32(values)
        }
    })
}

//! Reading a map's file.

use super::bytes::{get, one, pose, some};
use super::{CHECKSUM, Header, KINDS, MapFileError, SavedChain, SavedEdge, SavedKeyframe};
use crate::compute::device::{Floats, MatchContent};
use crate::compute::store::FloatFormat;
use crate::time::Stamp;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// In place of a keyframe's number where there is none.
pub(super) const NO_CHAIN: u32 = u32::MAX;

/// Bytes that the checksum is made of at once.
const BLOCK: usize = 1 << 16;

/// An open map: header, then keyframes, then edges, one at a time.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    header: Header,
    /// Bytes before the keyframes.
    start: u64,
    /// Keyframes and edges read so far.
    keyframes: u32,
    edges: u32,
}

impl Reader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If it is no map, of another version, or not as long as its header says.
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
            // Cut off within the header.
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
        })
    }

    /// What the file says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all of it: whether the checksum fits, and whether all values make sense. Then the first keyframe
    /// is the next thing again.
    ///
    /// # Errors
    /// If not.
    pub fn verify(&mut self) -> Result<(), MapFileError> {
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
        let back = self.back();
        back.map_err(|error| self.failed(error))
    }

    /// The first keyframe is the next thing.
    fn back(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.start))?;
        (self.keyframes, self.edges) = (0, 0);
        Ok(())
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

    /// Reads the next keyframe into `dst`, whose place is used again.
    ///
    /// # Errors
    /// Values that make no sense, though the checksum be right.
    pub fn keyframe(&mut self, dst: &mut SavedKeyframe) -> Result<(), MapFileError> {
        let id = self.keyframes;
        let read = self.read_keyframe(dst);
        read.map_err(|error| self.failed(error))?;
        self.keyframes += 1;
        let fine = dst.id == id && dst.chain.is_none_or(|c| c.keyframe < id);
        match fine {
            true => Ok(()),
            false => Err(self.nonsense(format!("keyframe {id} is none"))),
        }
    }

    fn read_keyframe(&mut self, dst: &mut SavedKeyframe) -> io::Result<()> {
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
        let (pixels, features) = (header.shape.pixels(), header.shape.features());
        let content = &mut dst.content;
        get(file, 3 * pixels, &mut content.image)?;
        get(file, 3 * pixels, &mut content.points)?;
        content.confidence = floats(file, pixels, header.formats.confidence)?;
        content.features = floats(file, features, header.formats.features)?;
        Ok(())
    }

    /// Reads the next edge into `dst`, whose place is used again; after the keyframes.
    ///
    /// # Errors
    /// Values that make no sense, though the checksum be right.
    pub fn edge(&mut self, dst: &mut SavedEdge) -> Result<(), MapFileError> {
        let number = self.edges;
        let read = self.read_edge(dst);
        read.map_err(|error| self.failed(error))?;
        self.edges += 1;
        let (pixels, keyframes) = (self.header.shape.pixels(), self.header.keyframes);
        // What is not finite no solve uses; an index it would follow.
        let way = |way: &MatchContent| way.index.iter().all(|k| (*k as usize) < pixels);
        let fine = dst.i != dst.j
            && dst.i < keyframes
            && dst.j < keyframes
            && (0.0..=1.0).contains(&dst.match_fraction)
            && way(&dst.content.i_from_j)
            && way(&dst.content.j_from_i);
        match fine {
            true => Ok(()),
            false => Err(self.nonsense(format!("edge {number} is none"))),
        }
    }

    fn read_edge(&mut self, dst: &mut SavedEdge) -> io::Result<()> {
        let Self { file, header, .. } = self;
        let kind: u32;
        [dst.i, dst.j, kind] = some(file)?;
        let kind = KINDS.get(kind as usize).copied();
        dst.kind = kind.ok_or(ErrorKind::InvalidData)?;
        dst.match_fraction = one(file)?;
        let pixels = header.shape.pixels();
        for way in [&mut dst.content.i_from_j, &mut dst.content.j_from_i] {
            get(file, pixels, &mut way.index)?;
            get(file, pixels, &mut way.valid)?;
            get(file, pixels, &mut way.quality)?;
        }
        Ok(())
    }

    fn failed(&self, cause: io::Error) -> MapFileError {
        match cause.kind() {
            ErrorKind::InvalidData => self.nonsense("a number in it stands for nothing".to_owned()),
            _ => MapFileError::Io {
                action: "read",
                path: self.path.clone(),
                cause,
            },
        }
    }

    fn nonsense(&self, what: String) -> MapFileError {
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

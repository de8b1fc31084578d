//! Writes map files.

use super::bytes::{put, put_one, put_pose, put_symmetric};
use super::{Header, KINDS, MapFileError, SavedEdge, SavedKeyframe};
use crate::compute::device::{DeviceError, Floats, MatchContent};
use crate::compute::global::PoseFactor;
use crate::files;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

/// Writes keyframes, then edges, then factors, as many as the header declares.
pub struct Writer<'a> {
    out: &'a mut dyn Write,
    hasher: Sha256,
    header: &'a Header,
    keyframes: u32,
    edges: u32,
    factors: u32,
}

/// Error from producing the content.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The device could not export its content.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Writes `path` atomically (a temporary file next to it, then a rename): the header, then the
/// items that `body` passes to the writer. The folder must exist.
///
/// # Errors
/// A file at `path` that is not a map, which is never replaced; a file that cannot be written; a device that
/// cannot export its content.
pub fn write(
    path: &Path,
    header: &Header,
    body: impl FnOnce(&mut Writer<'_>) -> Result<(), WriteError>,
) -> Result<(), MapFileError> {
    super::check_target(path)?;
    let mut device = None;
    let written = files::write(path, |out: &mut BufWriter<&mut File>| {
        let mut writer = Writer {
            out,
            hasher: Sha256::new(),
            header,
            keyframes: 0,
            edges: 0,
            factors: 0,
        };
        header.write(&mut writer)?;
        match body(&mut writer) {
            Ok(()) => writer.end(),
            Err(WriteError::Io(error)) => Err(error),
            Err(WriteError::Device(error)) => {
                device = Some(error);
                Err(ErrorKind::Other.into())
            }
        }
    });
    match (written, device) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(cause)) => Err(MapFileError::Device {
            path: path.to_owned(),
            cause,
        }),
        (Err(cause), None) => Err(MapFileError::Io {
            action: "write",
            path: path.to_owned(),
            cause,
        }),
    }
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Writer<'_> {
    /// Writes the next keyframe.
    pub fn keyframe(&mut self, keyframe: &SavedKeyframe) -> Result<(), WriteError> {
        let SavedKeyframe {
            id,
            submap,
            frame_index,
            stamp,
            world_from_camera,
            chain,
            content,
        } = keyframe;
        put(self, &[*id, *submap])?;
        put_one(self, *frame_index)?;
        put_one(self, stamp.nanos)?;
        put_pose(self, world_from_camera)?;
        put_one(self, chain.map_or(super::read::NO_CHAIN, |c| c.keyframe))?;
        put_pose(
            self,
            &chain.map_or_else(Default::default, |c| c.keyframe_from_camera),
        )?;
        let shape = self.header.shape;
        self.expect(3 * shape.pixels(), content.image.len())?;
        put(self, &content.image)?;
        self.expect(3 * shape.pixels(), content.points.len())?;
        put(self, &content.points)?;
        self.expect(shape.pixels(), content.confidence.len())?;
        self.floats(&content.confidence, self.header.formats.confidence)?;
        self.expect(shape.features(), content.features.len())?;
        self.floats(&content.features, self.header.formats.features)?;
        self.keyframes += 1;
        Ok(())
    }

    /// Writes the next edge. Edges follow the keyframes.
    pub fn edge(&mut self, edge: &SavedEdge) -> Result<(), WriteError> {
        let kind = KINDS.iter().position(|k| *k == edge.kind).unwrap_or(0);
        put(self, &[edge.i, edge.j, kind as u32])?;
        put_one(self, edge.match_fraction)?;
        for way in [&edge.content.i_from_j, &edge.content.j_from_i] {
            let MatchContent { index, quality } = way;
            let pixels = self.header.shape.pixels();
            for found in [index.len(), quality.len()] {
                self.expect(pixels, found)?;
            }
            put(self, index)?;
            // The format has a flag of each match, which its quality implies.
            let flags = Vec::from_iter(quality.iter().map(|q| u8::from(*q > 0.0)));
            put(self, &flags)?;
            put(self, quality)?;
        }
        self.edges += 1;
        Ok(())
    }

    /// Writes the next factor, between keyframes by their ids in the file. Factors follow the edges.
    pub fn factor(&mut self, factor: &PoseFactor) -> Result<(), WriteError> {
        put(self, &[factor.i as u32, factor.j as u32])?;
        put_pose(self, &factor.i_from_j)?;
        put_symmetric(self, &factor.information)?;
        self.factors += 1;
        Ok(())
    }

    fn floats(
        &mut self,
        values: &Floats,
        format: crate::compute::store::FloatFormat,
    ) -> Result<(), WriteError> {
        if values.format() != format {
            return Err(defect(
                "floats of another format than declared in the header",
            ));
        }
        match values {
            Floats::F16(values) => put(self, values)?,
            Floats::F32(values) => put(self, values)?,
        }
        Ok(())
    }

    /// Content of a size that does not belong to the network indicates a defect in the device; such
    /// a file must not be written.
    fn expect(&self, expected: usize, found: usize) -> Result<(), WriteError> {
        if expected == found {
            return Ok(());
        }
        Err(defect("content of a size that does not match the network"))
    }

    fn end(self) -> io::Result<()> {
        let declared = |h: &Header| [h.keyframes, h.edges, h.factors];
        if [self.keyframes, self.edges, self.factors] != declared(self.header) {
            return Err(io::Error::other(
                "the numbers of keyframes, edges and factors differ from the header",
            ));
        }
        self.out.write_all(&self.hasher.finalize())
    }
}

fn defect(what: &'static str) -> WriteError {
    WriteError::Io(io::Error::other(what))
}

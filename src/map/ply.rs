//! Export of the cloud as binary little-endian PLY: `x y z` f32, `red green blue` u8, `confidence`
//! f32.

use super::cloud::{self, CloudOptions, CloudPoint};
use super::{MapSnapshot, submap_path};
use crate::files::export::{self, ExportError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes the cloud: submap 0 to `path`, others next to it (see [`submap_path`]). `path` is written
/// even if it has no points. Returns the files with their point counts.
///
/// Without voxel filtering, points are streamed: one pass counts them and a second writes them.
pub fn write(
    path: &Path,
    snapshot: &MapSnapshot,
    options: &CloudOptions,
) -> Result<Vec<(PathBuf, u64)>, ExportError> {
    cloud::check(snapshot)?;
    let mut files = Vec::new();
    for submap in super::with_first(snapshot.submaps()) {
        let file = submap_path(path, submap);
        let count = if options.voxel_size > 0.0 {
            let points = cloud::collect(snapshot, submap, options)?;
            write_points(&file, points.len() as u64, points.iter().copied())?;
            points.len() as u64
        } else {
            let points = || cloud::points(snapshot, submap, options.min_confidence);
            let count = points().map(|_| 1u64).sum();
            write_points(&file, count, points())?;
            count
        };
        files.push((file, count));
    }
    Ok(files)
}

/// Writes `count` points; the iterator must yield exactly that many.
pub fn write_points(
    path: &Path,
    count: u64,
    points: impl Iterator<Item = CloudPoint>,
) -> Result<(), ExportError> {
    export::write(path, |out| {
        write!(
            out,
            "ply\nformat binary_little_endian 1.0\nelement vertex {count}\n\
             property float x\nproperty float y\nproperty float z\n\
             property uchar red\nproperty uchar green\nproperty uchar blue\n\
             property float confidence\nend_header\n"
        )?;
        let mut written = 0u64;
        for p in points {
            let mut record = [0u8; 19];
            for (bytes, v) in record.chunks_exact_mut(4).zip(p.position) {
                bytes.copy_from_slice(&v.to_le_bytes());
            }
            record[12..15].copy_from_slice(&p.color);
            record[15..].copy_from_slice(&p.confidence.to_le_bytes());
            out.write_all(&record)?;
            written += 1;
        }
        if written != count {
            let text = format!("expected {count} points, found {written}");
            return Err(io::Error::other(text));
        }
        Ok(())
    })
}

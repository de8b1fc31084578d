//! The grid as files of nav2's `map_server`: an image and a YAML file beside it.

use super::OccupancyMap;
use crate::files::export::{self, ExportError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Grey of free, unknown and occupied cells. `map_server` takes `(255 - grey) / 255` as the probability
/// that a cell is occupied.
const FREE: u8 = 254;
const UNKNOWN: u8 = 205;
const OCCUPIED: u8 = 0;
/// Probabilities above this are occupied.
const OCCUPIED_FROM: f64 = 0.65;
/// Probabilities below this are free. That of an unknown cell, 0.19608, is not.
const FREE_BELOW: f64 = 0.196;

/// The two files of a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GridFiles {
    pub image: PathBuf,
    pub yaml: PathBuf,
}

/// The files for a path: `map.pgm` and `map.yaml` in a folder, or beside each other with the name of a
/// path that ends in `.yaml` or `.pgm`.
pub fn files_at(path: &Path) -> GridFiles {
    let named = path.extension().is_some_and(|e| e == "yaml" || e == "pgm");
    let stem = match named {
        true => path.with_extension(""),
        false => path.join("map"),
    };
    let with = |extension: &str| {
        let mut name = stem.clone().into_os_string();
        name.push(extension);
        PathBuf::from(name)
    };
    GridFiles {
        image: with(".pgm"),
        yaml: with(".yaml"),
    }
}

/// Writes a grid to the files of `path` (see [`files_at`]).
///
/// # Errors
/// A file cannot be written.
pub fn write(path: &Path, grid: &OccupancyMap) -> Result<GridFiles, ExportError> {
    let files = files_at(path);
    export::write(&files.image, |out| {
        write!(out, "P5\n{} {}\n255\n", grid.columns, grid.rows)?;
        // The image's first row is the farthest in y.
        for row in grid.cells.chunks(grid.columns.max(1)).rev() {
            let grey: Vec<u8> = row.iter().map(|value| grey(*value)).collect();
            out.write_all(&grey)?;
        }
        Ok(())
    })?;
    let name = files.image.file_name().unwrap_or_default();
    let name = serde_json::Value::from(name.to_string_lossy());
    export::write(&files.yaml, |out| {
        writeln!(out, "image: {name}")?;
        writeln!(out, "mode: trinary")?;
        writeln!(out, "resolution: {}", grid.resolution)?;
        writeln!(out, "origin: [{}, {}, 0.0]", grid.origin[0], grid.origin[1])?;
        writeln!(out, "negate: 0")?;
        writeln!(out, "occupied_thresh: {OCCUPIED_FROM}")?;
        writeln!(out, "free_thresh: {FREE_BELOW}")
    })?;
    Ok(files)
}

fn grey(value: i8) -> u8 {
    match value {
        0 => FREE,
        100 => OCCUPIED,
        _ => UNKNOWN,
    }
}

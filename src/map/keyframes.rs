//! Export of keyframe images and `keyframes.csv`.

use super::MapSnapshot;
use crate::files::export::{self, ExportError};
use crate::image::RgbImage;
use rayon::prelude::*;
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The header of `keyframes.csv`. The pose is camera to world; `scale` belongs to the keyframe's
/// points: `world = scale · R · point + t`.
pub const COLUMNS: &str = "id,frame,stamp,submap,tx,ty,tz,qx,qy,qz,qw,scale,file";

/// The image file name of each keyframe: `<stamp>.png`, or `<stamp>_<id>.png` if the stamp occurred
/// before. Names use only digits, `.`, `-` and `_`, which every file system accepts.
pub fn file_names(snapshot: &MapSnapshot) -> Vec<String> {
    let mut seen = HashSet::new();
    let keyframes = snapshot.keyframes.iter();
    keyframes
        .map(|k| {
            if seen.insert(k.stamp) {
                format!("{}.png", k.stamp)
            } else {
                format!("{}_{}.png", k.stamp, k.id)
            }
        })
        .collect()
}

/// Writes `folder/keyframes/<stamp>.png` (the network's input images), then `folder/keyframes.csv`,
/// so that every file it lists exists; a keyframe without an image has no file. Returns the path of
/// the table.
pub fn write(folder: &Path, snapshot: &MapSnapshot) -> Result<PathBuf, ExportError> {
    let images = folder.join("keyframes");
    export::create_folder(&images)?;
    let names = file_names(snapshot);
    let jobs = snapshot.keyframes.par_iter().zip(&names);
    let jobs = jobs.map(|(k, name)| {
        let image = k.view().image;
        let has_file = !image.data.is_empty();
        if has_file {
            let path = images.join(name);
            export::write_bytes(&path, &png(&image, &path)?)?;
        }
        Ok(has_file)
    });
    let have_files = jobs.collect::<Result<Vec<bool>, ExportError>>()?;
    let table = folder.join("keyframes.csv");
    export::write(&table, |out| {
        writeln!(out, "{COLUMNS}")?;
        let rows = snapshot.keyframes.iter().zip(&names).zip(&have_files);
        for ((k, name), has_file) in rows {
            write!(out, "{},{},{},{}", k.id, k.frame_index, k.stamp, k.submap)?;
            for v in k.world_from_camera.to_array() {
                write!(out, ",{v:.9}")?;
            }
            match has_file {
                true => writeln!(out, ",keyframes/{name}")?,
                false => writeln!(out, ",")?,
            }
        }
        Ok(())
    })?;
    Ok(table)
}

/// Encodes an image as PNG; `path` is used in messages.
pub(crate) fn png(image: &RgbImage, path: &Path) -> Result<Vec<u8>, ExportError> {
    encode(image, image::ImageFormat::Png, path)
}

/// Encodes an image; `path` is used in messages.
pub fn encode(
    rgb: &RgbImage,
    format: image::ImageFormat,
    path: &Path,
) -> Result<Vec<u8>, ExportError> {
    let fail = |reason: String| ExportError::Encode {
        path: path.to_owned(),
        reason,
    };
    let size =
        |n: usize| u32::try_from(n).map_err(|_| fail(format!("{n} pixels exceed the limit")));
    let (width, height) = (size(rgb.width)?, size(rgb.height)?);
    if rgb.data.len() != rgb.width * rgb.height * 3 || rgb.data.is_empty() {
        let (found, w, h) = (rgb.data.len(), rgb.width, rgb.height);
        return Err(fail(format!("a {w}×{h} RGB image with {found} bytes")));
    }
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::write_buffer_with_format(
        &mut bytes,
        &rgb.data,
        width,
        height,
        image::ExtendedColorType::Rgb8,
        format,
    )
    .map_err(|e| fail(e.to_string()))?;
    Ok(bytes.into_inner())
}

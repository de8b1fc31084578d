//! The messages of the stream that are made of SLAM's own types; `page::messages` has the rest.

use super::feed::GridImage;
use crate::compute::device::SeenFrame;
use crate::image::{ImageError, RgbImage, jpeg};
use crate::map::EdgeKind;
use crate::page::messages::{self as page, GraphKeyframe, Kind, message, put, text};
use crate::slam::PoseTable;
use axum::body::Bytes;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use serde_json::{Value, json};

/// Quality of the page's images.
const JPEG_QUALITY: u8 = 75;
/// Maximum number of matches drawn over an image.
const MATCHES: usize = 500;
/// Maximum number of cells of a page's grid; of a larger one, blocks of cells are shown.
const GRID_CELLS: usize = 1 << 20;

/// A message of JSON.
pub fn json_text(kind: Kind, value: &Value) -> Bytes {
    text(kind, &value.to_string()).into()
}

/// An image with its matches: frame, columns, rows, matches; for each match x and y in the keyframe and in the frame
/// (16 bits each); a JPEG.
///
/// # Errors
/// If the image cannot be encoded.
pub fn image(
    number: u64,
    size: (usize, usize),
    content: &mut SeenFrame,
    tracked: bool,
) -> Result<Bytes, ImageError> {
    let (width, height) = size;
    let rgb = RgbImage {
        width,
        height,
        data: std::mem::take(&mut content.image),
    };
    let encoded = jpeg(&rgb, JPEG_QUALITY);
    content.image = rgb.data;
    let encoded = encoded?;
    let matches = match tracked {
        true => matches(size, content),
        false => Vec::new(),
    };
    let bytes = message(Kind::Image, |out| {
        put(out, number as u32);
        for value in [width, height, matches.len()] {
            put(out, value as u32);
        }
        for value in matches.iter().flatten() {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&encoded);
    });
    Ok(bytes.into())
}

/// Matches that the pose uses, one for each of at most [`MATCHES`] places that are evenly spread over the keyframe.
fn matches((width, height): (usize, usize), content: &SeenFrame) -> Vec<[u16; 4]> {
    let per_match = (width * height).div_ceil(MATCHES).max(1);
    let step = ((per_match as f64).sqrt().ceil() as usize).max(1);
    let mut all = Vec::with_capacity(MATCHES);
    for v in (step / 2..height).step_by(step) {
        for u in (step / 2..width).step_by(step) {
            let pixel = v * width + u;
            let used = content.quality.get(pixel).is_some_and(|q| *q > 0.0);
            let Some(to) = content.index.get(pixel).filter(|_| used) else {
                continue;
            };
            let to = *to as usize;
            let place = [u, v, to % width, to / width];
            all.push(place.map(|v| u16::try_from(v).unwrap_or(u16::MAX)));
        }
    }
    all
}

/// The part of the map's graph that is shown.
pub fn graph(table: &PoseTable, shown: impl Fn(u32) -> bool) -> Bytes {
    let rows = table.ids.iter().zip(&table.submaps).zip(&table.poses);
    let rows = rows.filter(|((id, _), pose)| shown(**id) && pose.is_finite());
    let keyframes: Vec<_> = rows
        .map(|((id, submap), pose)| GraphKeyframe {
            id: *id,
            submap: *submap,
            world_from_camera: *pose,
        })
        .collect();
    let closes = |kind| matches!(kind, EdgeKind::Loop | EdgeKind::Relocalisation);
    let loops = table.edges.iter();
    let loops = loops.filter(|e| closes(e.kind) && shown(e.i) && shown(e.j));
    let loops: Vec<_> = loops.map(|e| (e.i, e.j)).collect();
    page::graph(table.map, &keyframes, &loops).into()
}

/// A grid: the length of a JSON text, that, and a PNG of grey values: 0 free, 255 occupied, 127 unknown.
pub fn grid(grid: &GridImage) -> Option<Bytes> {
    let (columns, rows) = (grid.columns, grid.rows);
    if grid.cells.len() != columns * rows || grid.cells.is_empty() {
        return None;
    }
    let side = (1..).find(|side| columns.div_ceil(*side) * rows.div_ceil(*side) <= GRID_CELLS)?;
    let (w, h) = (columns.div_ceil(side), rows.div_ceil(side));
    let mut grey = vec![127_u8; w * h];
    for (k, value) in grid.cells.iter().enumerate() {
        let place = (k / columns / side) * w + k % columns / side;
        if let Some(cell) = grey.get_mut(place) {
            *cell = match (*value, *cell) {
                (0..=100, 127) => (i32::from(*value) * 255 / 100) as u8,
                // An obstacle anywhere in a block is an obstacle.
                (0..=100, before) => before.max((i32::from(*value) * 255 / 100) as u8),
                (_, before) => before,
            };
        }
    }
    let mut png = Vec::new();
    let (width, height) = (u32::try_from(w).ok()?, u32::try_from(h).ok()?);
    let encoder = PngEncoder::new(&mut png);
    encoder
        .write_image(&grey, width, height, ExtendedColorType::L8)
        .ok()?;
    let pose = &grid.world_from_grid;
    let (t, q) = (pose.translation.vector, pose.rotation.coords);
    let about = json!({
        "width": w as f64 * side as f64 * grid.resolution,
        "height": h as f64 * side as f64 * grid.resolution,
        "origin": grid.origin,
        "pose": [t.x, t.y, t.z, q.x, q.y, q.z, q.w, 1.0],
    })
    .to_string();
    let bytes = message(Kind::Grid, |out| {
        put(out, about.len() as u32);
        out.extend_from_slice(about.as_bytes());
        out.extend_from_slice(&png);
    });
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::Isometry3;

    #[test]
    fn only_matches_that_the_pose_uses_are_drawn_and_few_of_them() {
        let n = 64 * 48;
        let mut content = SeenFrame {
            image: vec![9; 3 * n],
            index: (0..n as u32).map(|k| n as u32 - 1 - k).collect(),
            quality: (0..n).map(|k| (k % 64 < 32) as u8 as f32).collect(),
        };
        let found = matches((64, 48), &content);
        assert!(
            found.len() > 100 && found.len() <= MATCHES,
            "{}",
            found.len()
        );
        for [u, v, x, y] in found {
            assert!(u < 32);
            assert_eq!((x, y), (63 - u, 47 - v));
        }
        let bytes = image(7, (64, 48), &mut content, false).expect("an image");
        assert_eq!(content.image.len(), 3 * n, "the buffer is used again");
        assert_eq!(
            &bytes[5..21],
            [7, 0, 0, 0, 64, 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0]
        );
        let decoded = image::load_from_memory(&bytes[21..]).expect("a JPEG");
        assert_eq!((decoded.width(), decoded.height()), (64, 48));
        assert!(image_of_wrong_size().is_err());
    }

    fn image_of_wrong_size() -> Result<Bytes, ImageError> {
        image(0, (4, 4), &mut SeenFrame::default(), true)
    }

    #[test]
    fn a_large_grid_is_shown_in_blocks_that_keep_obstacles() {
        let (columns, rows) = (3000, 1000);
        let mut cells = vec![0_i8; columns * rows];
        cells[..columns].fill(-1);
        cells[500 * columns + 2999] = 100;
        let of = GridImage {
            cells,
            columns,
            rows,
            resolution: 0.05,
            origin: [1.0, 2.0],
            world_from_grid: Isometry3::identity(),
        };
        let bytes = grid(&of).expect("a grid");
        let length = u32::from_le_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]) as usize;
        let about: Value = serde_json::from_slice(&bytes[9..9 + length]).expect("JSON");
        assert_eq!(about["width"], 150.0);
        let png = image::load_from_memory(&bytes[9 + length..])
            .expect("a PNG")
            .to_luma8();
        assert_eq!(png.dimensions(), (1500, 500));
        assert_eq!(png.get_pixel(1499, 250)[0], 255);
        assert_eq!(png.get_pixel(0, 400)[0], 0);
        let broken = GridImage { rows: 7, ..of };
        assert!(grid(&broken).is_none());
    }
}

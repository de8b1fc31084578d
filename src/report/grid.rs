//! The occupancy grid as a picture.

use crate::files::export::ExportError;
use crate::map::grid::OccupancyMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::fmt::Write;
use std::path::Path;

/// Maximum side of the picture in pixels. A larger grid is shown in blocks of cells, each occupied if one of them is.
const SIDE: usize = 1024;

/// Colours of free and occupied cells; unknown ones are transparent.
const FREE: [u8; 4] = [186, 199, 213, 255];
const OCCUPIED: [u8; 4] = [17, 24, 39, 255];

/// Appends the section; nothing for a grid without cells.
pub(super) fn section(
    out: &mut String,
    path: &Path,
    grid: &OccupancyMap,
) -> Result<(), ExportError> {
    let Some(picture) = Picture::of(grid) else {
        return Ok(());
    };
    let [width, height] = picture.size;
    let area = |value: i8| {
        let cells = grid.cells.iter().filter(|cell| **cell == value).count();
        cells as f64 * grid.resolution * grid.resolution
    };
    let _ = write!(
        out,
        "<section class=\"card\"><h2>Occupancy grid</h2>\
         <img class=\"cells\" width=\"{width}\" height=\"{height}\" alt=\"Free and occupied cells from above\" \
         src=\"data:image/png;base64,{}\"/>\
         <p class=\"plain\">{} × {} cells of {:.0} mm, {:.1} × {:.1} m · {:.1} m² free · {:.1} m² occupied</p></section>",
        BASE64.encode(png(path, &picture.pixels, picture.size)?),
        grid.columns,
        grid.rows,
        grid.resolution * 1e3,
        grid.columns as f64 * grid.resolution,
        grid.rows as f64 * grid.resolution,
        area(0),
        area(100),
    );
    Ok(())
}

/// RGBA pixels as PNG; `path` is used in messages.
fn png(path: &Path, pixels: &[u8], size: [usize; 2]) -> Result<Vec<u8>, ExportError> {
    let fail = |reason: String| ExportError::Encode {
        path: path.to_owned(),
        reason,
    };
    let side =
        |n: usize| u32::try_from(n).map_err(|_| fail(format!("{n} pixels exceed the limit")));
    let (width, height) = (side(size[0])?, side(size[1])?);
    let mut png = std::io::Cursor::new(Vec::new());
    image::write_buffer_with_format(
        &mut png,
        pixels,
        width,
        height,
        image::ExtendedColorType::Rgba8,
        image::ImageFormat::Png,
    )
    .map_err(|e| fail(e.to_string()))?;
    Ok(png.into_inner())
}

/// RGBA pixels, the farthest row first.
struct Picture {
    size: [usize; 2],
    pixels: Vec<u8>,
}

impl Picture {
    fn of(grid: &OccupancyMap) -> Option<Self> {
        let (columns, rows) = (grid.columns, grid.rows);
        let block = columns.max(rows).div_ceil(SIDE).max(1);
        let size = [columns.div_ceil(block), rows.div_ceil(block)];
        if size.contains(&0) {
            return None;
        }
        let mut pixels = vec![0; 4 * size[0] * size[1]];
        for (index, cell) in grid.cells.iter().enumerate() {
            let (column, row) = (index % columns / block, index / columns / block);
            let colour = match cell {
                0 => FREE,
                100 => OCCUPIED,
                _ => continue,
            };
            let at = 4 * ((size[1].checked_sub(1 + row)?) * size[0] + column);
            let pixel = pixels.get_mut(at..at + 4)?;
            if *pixel != OCCUPIED {
                pixel.copy_from_slice(&colour);
            }
        }
        Some(Self { size, pixels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_farthest_row_is_on_top_and_a_block_is_occupied_if_a_cell_is() {
        let small = OccupancyMap {
            resolution: 0.05,
            columns: 2,
            rows: 2,
            cells: vec![0, 100, -1, 0],
            ..OccupancyMap::default()
        };
        let picture = Picture::of(&small).expect("a picture");
        assert_eq!(picture.size, [2, 2]);
        let unknown = [0; 4];
        assert_eq!(picture.pixels, [unknown, FREE, FREE, OCCUPIED].concat());

        let (columns, rows) = (2 * SIDE, 3);
        let mut cells = vec![-1; columns * rows];
        cells[1] = 0;
        cells[columns] = 100;
        cells[columns + 1] = 0;
        let large = OccupancyMap {
            columns,
            rows,
            cells,
            ..small.clone()
        };
        let picture = Picture::of(&large).expect("a picture");
        assert_eq!(picture.size, [SIDE, 2]);
        assert_eq!(picture.pixels[4 * SIDE..4 * SIDE + 4], OCCUPIED);
        assert!(picture.pixels[..4 * SIDE].iter().all(|v| *v == 0));

        let empty = OccupancyMap::default();
        assert!(Picture::of(&empty).is_none());
        let mut page = String::new();
        section(&mut page, Path::new("report.html"), &empty).expect("nothing to encode");
        assert!(page.is_empty());
        section(&mut page, Path::new("report.html"), &small).expect("a section");
        assert!(page.contains("2 × 2 cells of 50 mm"), "{page}");
    }
}

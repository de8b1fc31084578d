//! Rendering of a view and the gradients by what rows are in it.

use super::arguments::{DeviceCamera, Pool, Visible};
use super::buffers::{GRADIENTS, SplatBuffers, TILE_ROWS};
use super::sort::{Scratch, Sorter};
use crate::compute::cuda::small;
use crate::compute::splat::SplatError;
use crate::compute::splat::constants::SCAN_TILE;
use crate::gpu::{Context, CudaError, DevicePointer, Grid, Kernel, Stream};
use std::ops::Range;

/// Threads of a block; must match `splat_view.cu`.
const THREADS: u32 = 256;
/// Bits of a depth.
const DEPTH_BITS: u32 = 32;

/// A band of tile rows of a view whose entries fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Band {
    rows: Range<u32>,
    entries: usize,
}

/// A view that was projected.
pub(super) struct Frame {
    pub(super) camera: DeviceCamera,
    pub(super) visible: usize,
    bands: Vec<Band>,
    /// Which array holds the order by depth, and the list of the band listed last.
    order: usize,
    listed: Option<(usize, usize)>,
}

impl Frame {
    /// Rows in tiles.
    pub(super) fn entries(&self) -> u64 {
        self.bands.iter().map(|band| band.entries as u64).sum()
    }
}

/// Divides tile rows of so many entries into bands of at most `limit`.
fn bands(entries: &[u64], limit: usize) -> Result<Vec<Band>, SplatError> {
    let limit = limit as u64;
    let mut bands: Vec<(Range<u32>, u64)> = Vec::new();
    for (row, count) in (0..).zip(entries) {
        if *count > limit {
            return Err(SplatError::Crowded {
                what: "entries of a row of tiles",
                found: *count,
                limit,
            });
        }
        match bands.last_mut() {
            Some((rows, sum)) if *sum + count <= limit => {
                rows.end = row + 1;
                *sum += count;
            }
            _ => bands.push((row..row + 1, *count)),
        }
    }
    let band = |(rows, entries): (Range<u32>, u64)| Band {
        rows,
        entries: entries as usize,
    };
    Ok(bands.into_iter().map(band).collect())
}

/// The renderer's kernels.
pub(super) struct Renderer {
    project: Kernel,
    list: Kernel,
    ranges: Kernel,
    blend: Kernel,
    backward: Kernel,
    sorter: Sorter,
}

impl Renderer {
    pub(super) fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self {
            project: context.kernel("ms_splat_project")?,
            list: context.kernel("ms_splat_list")?,
            ranges: context.kernel("ms_splat_ranges")?,
            blend: context.kernel("ms_splat_blend")?,
            backward: context.kernel("ms_splat_blend_backward")?,
            sorter: Sorter::new(context)?,
        })
    }

    /// Projects `rows` rows, packs the visible ones, and sorts them by depth. Waits for their number.
    pub(super) fn project(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        pool: Pool,
        rest: u32,
        rows: u64,
        camera: DeviceCamera,
    ) -> Result<Frame, SplatError> {
        let tile_rows = camera.tiles_y as usize;
        b.images.depth.all().at_least("pixels", camera.pixels())?;
        let tiles = small("blocks of a scan", rows.div_ceil(SCAN_TILE) as usize)?;
        let mut counts = vec![0; 1 + tile_rows.min(TILE_ROWS)];
        if tiles > 0 {
            let words = b.words.slice(0..tiles as usize)?;
            let totals = b.view_counts.slice(0..counts.len())?;
            stream.fill(words, 0)?;
            stream.fill(b.ticket.all(), 0)?;
            stream.fill(totals, 0)?;
            let visible = Visible {
                row: b.visible.row.pointer(),
                place: b.visible.place.pointer(),
                conic: b.visible.conic.pointer(),
                colour: b.visible.colour.pointer(),
                height: b.visible.height.pointer(),
                key: b.visible.order.keys[0].pointer(),
            };
            let arguments = (
                pool,
                rest,
                rows,
                camera,
                visible,
                small("visible rows", b.visible.row.len())?,
                words.pointer(),
                b.ticket.pointer(),
                totals.pointer(),
                b.view_counts.slice(1..counts.len())?.pointer(),
            );
            // SAFETY: the pool has `rows` rows, the packed arrays as many elements as the limit says, and there is a
            // word for each block and a count for each tile row.
            unsafe { (self.project).launch(stream, Grid::blocks(tiles, THREADS), arguments)? };
            stream.read(totals, &mut counts)?;
        }
        let (visible, entries) = (counts[0], &counts[1..]);
        let limit = b.visible.row.len();
        if visible > limit as u64 {
            return Err(SplatError::Crowded {
                what: "rows in a view",
                found: visible,
                limit: limit as u64,
            });
        }
        let visible = visible as usize;
        let bands = bands(entries, b.entries.keys[0].len())?;
        let order = &b.visible.order;
        let order = (self.sorter).sort(stream, order, visible, DEPTH_BITS, true, &scratch(b))?;
        Ok(Frame {
            camera,
            visible,
            bands,
            order,
            listed: None,
        })
    }

    /// Lists the entries of a band, sorted by tile and depth. Returns which array holds the list. Enqueues.
    fn list(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        frame: &Frame,
        band: &Band,
    ) -> Result<usize, CudaError> {
        let camera = &frame.camera;
        let tiles = (band.rows.end - band.rows.start) * camera.tiles_x;
        let ranges = b.ranges.slice(0..tiles as usize)?;
        stream.fill(ranges, 0)?;
        if band.entries == 0 || frame.visible == 0 {
            return Ok(0);
        }
        let blocks = frame.visible.div_ceil(THREADS as usize);
        let words = b.words.slice(0..blocks)?;
        stream.fill(words, 0)?;
        stream.fill(b.ticket.all(), 0)?;
        let arguments = (
            b.visible.place.pointer(),
            b.visible.conic.pointer(),
            b.visible.height.pointer(),
            b.visible.order.values[frame.order].pointer(),
            small("visible rows", frame.visible)?,
            band.rows.start,
            band.rows.end,
            camera.tiles_x,
            small("entries of tiles", band.entries)?,
            words.pointer(),
            b.ticket.pointer(),
            b.entries.keys[0].pointer(),
            b.entries.values[0].pointer(),
        );
        let grid = Grid::blocks(small("blocks of a list", blocks)?, THREADS);
        // SAFETY: there are as many visible rows as the arrays hold, a word for each block, and no more entries are
        // written than there is room for.
        unsafe { self.list.launch(stream, grid, arguments)? };
        let bits = u32::BITS - (tiles - 1).leading_zeros();
        let (n, entries) = (band.entries, &b.entries);
        let list = (self.sorter).sort(stream, entries, n, bits, false, &scratch(b))?;
        let keys = entries.keys[list].pointer();
        let arguments = (keys, small("entries", n)?, ranges.pointer());
        // SAFETY: the keys are tiles of the band, each of which has a range.
        unsafe { (self.ranges).launch(stream, Grid::over(n, THREADS), arguments)? };
        Ok(list)
    }

    /// Draws the view into the images. Enqueues.
    pub(super) fn blend(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        frame: &mut Frame,
    ) -> Result<(), CudaError> {
        frame.listed = None;
        for (number, band) in frame.bands.iter().enumerate() {
            let list = self.list(stream, b, frame, band)?;
            let camera = frame.camera;
            let tiles = (band.rows.end - band.rows.start) * camera.tiles_x;
            let arguments = (
                b.visible.place.pointer(),
                b.visible.conic.pointer(),
                b.visible.colour.pointer(),
                b.entries.values[list].pointer(),
                b.ranges.pointer(),
                band.rows.start,
                camera,
                b.images.colour.pointer(),
                b.images.depth.pointer(),
                b.images.left.pointer(),
                b.images.last.pointer(),
            );
            // SAFETY: the images have the camera's pixels; ranges and list are those of the band.
            unsafe { (self.blend).launch(stream, Grid::blocks(tiles, THREADS), arguments)? };
            frame.listed = Some((number, list));
        }
        Ok(())
    }

    /// Sets the gradients of the visible rows by the image, of which the gradients are in the images. Enqueues.
    pub(super) fn backward(
        &self,
        stream: &Stream,
        b: &SplatBuffers,
        frame: &mut Frame,
        depth: bool,
    ) -> Result<(), CudaError> {
        let gradients = b.visible.gradients.slice(0..frame.visible * GRADIENTS)?;
        stream.fill(gradients, 0)?;
        let null = DevicePointer::NULL;
        for (number, band) in frame.bands.iter().enumerate().rev() {
            // The last band is still listed.
            let list = match frame.listed {
                Some((listed, list)) if listed == number => list,
                _ => self.list(stream, b, frame, band)?,
            };
            let camera = frame.camera;
            let tiles = (band.rows.end - band.rows.start) * camera.tiles_x;
            let [by_depth, by_silhouette] = match depth {
                true => [&b.images.by_depth, &b.images.by_silhouette].map(|image| image.pointer()),
                false => [null, null],
            };
            let arguments = (
                b.visible.place.pointer(),
                b.visible.conic.pointer(),
                b.visible.colour.pointer(),
                b.entries.values[list].pointer(),
                b.ranges.pointer(),
                band.rows.start,
                camera,
                b.images.left.pointer(),
                b.images.last.pointer(),
                b.images.by_colour.pointer(),
                by_depth,
                by_silhouette,
                gradients.pointer(),
            );
            // SAFETY: as for the drawing, and each visible row has a record of gradients.
            unsafe { (self.backward).launch(stream, Grid::blocks(tiles, THREADS), arguments)? };
        }
        frame.listed = None;
        Ok(())
    }
}

fn scratch(b: &SplatBuffers) -> Scratch<'_> {
    Scratch {
        words: &b.sort_words,
        counts: &b.sort_counts,
        ticket: &b.ticket,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tile_rows_are_grouped_into_bands_that_fit() {
        let band = |rows, entries| Band { rows, entries };
        let all = bands(&[3, 0, 4, 7, 1, 9], 9).expect("bands");
        let expected = [band(0..3, 7), band(3..5, 8), band(5..6, 9)];
        assert_eq!(all, expected);
        assert_eq!(bands(&[0; 4], 1).expect("a band"), [band(0..4, 0)]);
        let crowded = bands(&[3, 10], 9).expect_err("a row that does not fit");
        assert!(crowded.to_string().contains("10"), "{crowded}");
    }
}

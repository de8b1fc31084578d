//! Memory of a Gaussian map on the GPU: the pool, and what one view needs.

use crate::compute::cuda::small;
use crate::compute::splat::SplatError;
use crate::compute::splat::constants::{SCAN_TILE, TILE};
use crate::compute::splat::device::SplatMemory;
use crate::compute::splat::layout::Layout;
use crate::gpu::{Carver, CudaError, DeviceBuffer};

/// Maximum number of rows that are visible at once, unless the map is smaller.
const VISIBLE: usize = 6_000_000;
/// Maximum number of entries (a row in a tile) of a band; a view with more is drawn in bands.
const ENTRIES: usize = 24_000_000;
/// Minimum number of entries that there is room for.
const MIN_ENTRIES: usize = 1 << 20;
/// A row's rank has 30 bits while the map is refined.
const MAX_ROWS: u64 = 1 << 30;
/// Keys of one block of the sort; must match `splat_sort.cu`.
pub(super) const SORT_TILE: usize = 4096;
/// Values of a sort's digit.
pub(super) const DIGITS: usize = 256;
/// Bins of a selection; must match `splat_refine.cu`.
pub(super) const BINS: usize = 2048;
/// Largest number of tile rows of an image; must match `splat_view.cu`.
pub(super) const TILE_ROWS: usize = 1024;
/// Floats of a visible row's gradients; must match `splat_view.cuh`.
pub(super) const GRADIENTS: usize = 16;
/// Moves of keyframes in one launch.
pub(super) const MOVES: usize = 256;
/// Floats of a move; must match `splat_move.cu`.
pub(super) const MOVE_FLOATS: usize = 100;

/// Sizes of a Gaussian map on the GPU, from which its memory follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplatSizes {
    /// Maximum number of rows.
    pub capacity: u64,
    /// Degree of the spherical harmonics, 0 to 3.
    pub degree: u8,
    /// Maximum number of rows that a view may show.
    pub visible: usize,
    /// Maximum number of entries (a row in a tile) of a band of a view; a tile row must fit.
    pub entries: usize,
    /// Maximum number of pixels of an image.
    pub pixels: usize,
}

impl SplatSizes {
    /// For images of `size` (columns, rows).
    pub fn new(capacity: u64, degree: u8, size: (usize, usize)) -> Self {
        let visible = usize::try_from(capacity).map_or(VISIBLE, |rows| rows.min(VISIBLE));
        Self {
            capacity,
            degree,
            visible,
            entries: (4 * visible).clamp(MIN_ENTRIES, ENTRIES),
            pixels: size.0.saturating_mul(size.1),
        }
    }

    /// The layout of the pool.
    ///
    /// # Errors
    /// Those of [`Layout::new`], and [`SplatError::Setting`] for 2³⁰ rows or more.
    pub fn layout(&self) -> Result<Layout, SplatError> {
        if self.capacity >= MAX_ROWS {
            return Err(SplatError::Setting {
                name: "capacity",
                found: self.capacity,
                expected: "less than 1073741824 rows on a GPU",
            });
        }
        Layout::new(self.capacity, self.degree)
    }

    /// Maximum capacity of a map with the same images that takes at most `bytes` bytes; 0 if none does.
    pub fn fitting(&self, bytes: u64) -> u64 {
        let fits = |capacity| {
            let visible = usize::try_from(capacity).map_or(self.visible, |c| c.min(self.visible));
            let sizes = Self {
                capacity,
                visible,
                ..*self
            };
            super::CudaSplat::plan(&sizes).is_ok_and(|plan| plan.device_bytes() <= bytes)
        };
        let (mut low, mut high) = (0, MAX_ROWS);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Words of the scans: one for 2048 rows, or for 256 visible ones.
    fn words(&self) -> usize {
        let rows = self.capacity.div_ceil(SCAN_TILE);
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        rows.max(self.visible.div_ceil(256)).max(1)
    }

    /// Tiles of an image: as many as an image of one row of pixels could have.
    fn tiles(&self) -> usize {
        let side = TILE as usize;
        // At most this many for any shape whose sides are limited by `TILE_ROWS` tiles.
        self.pixels / (side * side) + 2 * TILE_ROWS + 1
    }
}

/// Two arrays that a sort uses in turn.
pub(super) struct Pair {
    pub(super) keys: [DeviceBuffer<u32>; 2],
    pub(super) values: [DeviceBuffer<u32>; 2],
}

impl Pair {
    fn carve(c: &mut Carver<'_, '_>, len: usize) -> Result<Self, CudaError> {
        Ok(Self {
            keys: [c.device("keys", &[len])?, c.device("keys again", &[len])?],
            values: [
                c.device("values", &[len])?,
                c.device("values again", &[len])?,
            ],
        })
    }
}

/// The rows that a view shows, packed.
pub(super) struct VisibleBuffers {
    pub(super) row: DeviceBuffer<u32>,
    pub(super) place: DeviceBuffer<[f32; 4]>,
    pub(super) conic: DeviceBuffer<[f32; 4]>,
    pub(super) colour: DeviceBuffer<[f32; 4]>,
    pub(super) height: DeviceBuffer<f32>,
    pub(super) gradients: DeviceBuffer<f32>,
    pub(super) order: Pair,
}

/// Images of a view.
pub(super) struct ImageBuffers {
    pub(super) colour: DeviceBuffer<f32>,
    pub(super) depth: DeviceBuffer<f32>,
    pub(super) left: DeviceBuffer<f32>,
    pub(super) last: DeviceBuffer<u32>,
    pub(super) by_colour: DeviceBuffer<f32>,
    pub(super) by_depth: DeviceBuffer<f32>,
    pub(super) by_silhouette: DeviceBuffer<f32>,
    pub(super) maps: DeviceBuffer<f32>,
    pub(super) image: DeviceBuffer<u8>,
    pub(super) measured: DeviceBuffer<f32>,
}

/// Memory of a [`CudaSplat`](super::CudaSplat).
pub struct SplatBuffers {
    pub(super) pool: DeviceBuffer<u8>,
    pub(super) visible: VisibleBuffers,
    pub(super) entries: Pair,
    pub(super) ranges: DeviceBuffer<[u32; 2]>,
    pub(super) images: ImageBuffers,
    /// Look-back words of the scans.
    pub(super) words: DeviceBuffer<u64>,
    pub(super) sort_words: DeviceBuffer<u32>,
    pub(super) sort_counts: DeviceBuffer<u32>,
    pub(super) bins: DeviceBuffer<u32>,
    /// Visible rows, then entries per tile row.
    pub(super) view_counts: DeviceBuffer<u64>,
    /// Counters of a refinement.
    pub(super) counters: DeviceBuffer<u64>,
    pub(super) ticket: DeviceBuffer<u32>,
    /// Sums of the loss, then the gradient by the camera.
    pub(super) sums: DeviceBuffer<f64>,
    pub(super) anchors: DeviceBuffer<u32>,
    pub(super) moves: DeviceBuffer<f32>,
}

impl SplatBuffers {
    /// Buffers for a map.
    ///
    /// # Errors
    /// Those of the carver; [`CudaError::Length`] for sizes beyond 32 bits.
    pub fn carve(c: &mut Carver<'_, '_>, sizes: &SplatSizes) -> Result<Self, CudaError> {
        small("visible rows", sizes.visible)?;
        small("entries of tiles", sizes.entries)?;
        small("pixels of an image", sizes.pixels)?;
        let (visible, pixels) = (sizes.visible, sizes.pixels);
        let pool = sizes.layout().map_or(u64::MAX, |layout| layout.bytes());
        let pool = usize::try_from(pool).unwrap_or(usize::MAX);
        let sorted = visible.max(sizes.entries).div_ceil(SORT_TILE) * DIGITS;
        Ok(Self {
            pool: c.device("pool", &[pool])?,
            visible: {
                let mut c = c.part("visible rows");
                VisibleBuffers {
                    row: c.device("row", &[visible])?,
                    place: c.device("place", &[visible])?,
                    conic: c.device("conic", &[visible])?,
                    colour: c.device("colour", &[visible])?,
                    height: c.device("height", &[visible])?,
                    gradients: c.device("gradients", &[visible, GRADIENTS])?,
                    order: Pair::carve(&mut c.part("order"), visible)?,
                }
            },
            entries: Pair::carve(&mut c.part("entries"), sizes.entries)?,
            ranges: c.device("ranges", &[sizes.tiles()])?,
            images: {
                let mut c = c.part("image");
                ImageBuffers {
                    colour: c.device("colour", &[pixels, 3])?,
                    depth: c.device("depth", &[pixels])?,
                    left: c.device("transmittance", &[pixels])?,
                    last: c.device("last entry", &[pixels])?,
                    by_colour: c.device("gradient by colour", &[pixels, 3])?,
                    by_depth: c.device("gradient by depth", &[pixels])?,
                    by_silhouette: c.device("gradient by silhouette", &[pixels])?,
                    maps: c.device("similarity", &[3, pixels])?,
                    image: c.device("view", &[pixels, 3])?,
                    measured: c.device("measured depth", &[pixels])?,
                }
            },
            words: c.device("scan", &[sizes.words()])?,
            sort_words: c.device("sort", &[sorted])?,
            sort_counts: c.device("digits", &[4, DIGITS])?,
            bins: c.device("bins", &[BINS])?,
            view_counts: c.device("counts of a view", &[1 + TILE_ROWS])?,
            counters: c.device("counters", &[8])?,
            ticket: c.device("ticket", &[1])?,
            sums: c.device("sums", &[10])?,
            anchors: c.device("anchors", &[MOVES])?,
            moves: c.device("moves", &[MOVES, MOVE_FLOATS])?,
        })
    }

    /// What the memory is used for.
    pub(super) fn memory(&self, sizes: &SplatSizes) -> SplatMemory {
        let refine = 8 * sizes.capacity.div_ceil(SCAN_TILE) + 4 * BINS as u64 + 64;
        let v = &self.visible;
        let visible = 4 * (5 * v.row.len() + v.height.len() + v.gradients.len())
            + 16 * (v.place.len() + v.conic.len() + v.colour.len());
        let entries = 16 * self.entries.keys[0].len() + 8 * self.ranges.len();
        let image = 4 * (self.images.colour.len() * 3 + self.images.depth.len() * 6)
            + self.images.image.len();
        let scratch = 4 * (self.sort_words.len() + self.sort_counts.len());
        SplatMemory {
            pool: self.pool.len() as u64,
            view: (visible + entries + image + scratch) as u64,
            pinned: 0,
            refine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CudaSplat;
    use super::*;

    #[test]
    fn a_view_of_49_million_rows_takes_less_than_1_5_gb_beside_the_pool() {
        let sizes = SplatSizes::new(49_000_000, 0, (1920, 1080));
        let plan = CudaSplat::plan(&sizes).expect("a plan");
        let pool = sizes.layout().expect("a layout").bytes();
        assert!(plan.device_bytes() - pool < 1_500_000_000, "{plan}");
        assert_eq!(pool, plan.requests()[0].bytes);
    }

    #[test]
    fn the_largest_map_that_fits_is_found() {
        let sizes = SplatSizes::new(40_000_000, 3, (512, 384));
        let needed = CudaSplat::plan(&sizes).expect("a plan").device_bytes();
        assert!(sizes.fitting(needed) >= 40_000_000);
        let fewer = sizes.fitting(needed - (1 << 30));
        assert!((38_000_000..39_500_000).contains(&fewer), "{fewer}");
        assert_eq!(sizes.fitting(1000), 0);
    }

    #[test]
    fn ranks_of_rows_have_30_bits() {
        let sizes = |capacity| SplatSizes::new(capacity, 0, (64, 48));
        assert!(sizes((1 << 30) - 1).layout().is_ok());
        assert!(matches!(
            sizes(1 << 30).layout(),
            Err(SplatError::Setting { .. })
        ));
    }
}

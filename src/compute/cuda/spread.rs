//! Where matches are in an image, on the device, with the same counts as [`crate::compute::spread`].

use super::global::DeviceMatches;
use super::small;
use crate::compute::spread::{CELLS, Spread};
use crate::gpu::{Carver, Context, CudaError, DeviceBuffer, Grid, Kernel, Stream};

/// Threads per block, one per pixel; must match `spread.cu`.
const THREADS: u32 = 256;

/// Cells of an image.
const IMAGE: usize = CELLS * CELLS;

/// Memory of a [`SpreadCounter`].
pub struct SpreadBuffers {
    counts: DeviceBuffer<u32>,
}

impl SpreadBuffers {
    /// Counts of two images.
    pub fn carve(c: &mut Carver<'_, '_>) -> Result<Self, CudaError> {
        Ok(Self {
            counts: c.device("counts", &[2, IMAGE])?,
        })
    }
}

/// Counts the matches of both images of an edge.
pub struct SpreadCounter {
    add: Kernel,
    width: usize,
    height: usize,
    buffers: SpreadBuffers,
}

impl SpreadCounter {
    /// For images of this size.
    pub fn new(
        context: &Context,
        buffers: SpreadBuffers,
        (width, height): (usize, usize),
    ) -> Result<Self, CudaError> {
        small("pixels of an image", width * height)?;
        buffers
            .counts
            .all()
            .at_least("counts of cells", 2 * IMAGE)?;
        Ok(Self {
            add: context.kernel("ms_spread_add")?,
            width,
            height,
            buffers,
        })
    }

    /// Counts, in each of two images, the matches of a quality above `q_conf`. Waits.
    pub fn count(
        &self,
        stream: &Stream,
        matches: [DeviceMatches<'_>; 2],
        q_conf: f32,
    ) -> Result<[Spread; 2], CudaError> {
        let pixels = self.width * self.height;
        stream.fill(self.buffers.counts.all(), 0)?;
        for (image, matches) in matches.iter().enumerate() {
            let arguments = (
                matches
                    .quality
                    .at_least("match qualities", pixels)?
                    .pointer(),
                small("columns of an image", self.width)?,
                small("rows of an image", self.height)?,
                q_conf,
                self.buffers
                    .counts
                    .slice(image * IMAGE..(image + 1) * IMAGE)?
                    .pointer(),
            );
            // SAFETY: the lengths were checked above and on creation.
            unsafe {
                self.add
                    .launch(stream, Grid::over(pixels, THREADS), arguments)?;
            }
        }
        let mut both = [0; 2 * IMAGE];
        stream.read(self.buffers.counts.all(), &mut both)?;
        let mut counts = [Spread::default(); 2];
        counts.as_flattened_mut().copy_from_slice(&both);
        Ok(counts)
    }
}

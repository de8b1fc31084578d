//! Matching on the device, bit-identical to [`crate::compute::matching`] with
//! [`Refinement::Single`] and [`Refinement::SingleAll`], including match quality and the tracker's
//! gates.

use crate::compute::matching::{MAX_QUALITY, NOISE, Refinement};
use crate::config::MatchingConfig;
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Element, Floats, Grid,
    Kernel, KernelArgument, Stream,
};
use crate::inference::DeviceView;
use half::f16;

/// Channels and radius supported by the fast refinement kernel.
const CHANNELS: usize = 24;
const RADIUS: usize = 3;
/// Floats per pixel of the ray image, as on the CPU.
const RAY: usize = 12;
/// Block tiles in `matching.cu` and `matching_refine.cu`, in pixels.
const RAY_TILE: (u32, u32) = (32, 8);
const REFINE_TILE: (u32, u32) = (16, 16);
const SEARCH_THREADS: u32 = 128;
const PAD_THREADS: u32 = 256;
const ROUND_THREADS: u32 = 256;

/// Exact counts of one call: `MatchCounts` of `matching.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct MatchCounts {
    /// Pixels with a geometrically valid match.
    pub valid: u32,
    /// Valid matches that refinement moved to another pixel.
    pub refined: u32,
    /// Matches with a quality above `q_conf`.
    pub good: u32,
    /// Matches past every gate; zero without [`Gates`].
    pub used: u32,
    /// Distinct target pixels of valid matches; zero without [`Gates`].
    pub unique: u32,
    /// Zero.
    pub reserved: [u32; 3],
}

// SAFETY: eight u32 without padding, as in the `.cu` file.
unsafe impl Element for MatchCounts {}

/// Start of the searches.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// At the same pixel.
    Identity,
    /// At a previous match, possibly from the result's own index map; indices outside the image are
    /// ignored.
    Map {
        /// `N` indices.
        map: DeviceSlice<'a, u32>,
        /// A single value: 0 disables the map.
        used: Option<DeviceSlice<'a, u32>>,
    },
}

/// The tracker's gates on a match in addition to its quality.
#[derive(Debug, Clone, Copy)]
pub struct Gates<'a> {
    /// `N` accumulated confidences of the keyframe, whose pixels are those of view 2.
    pub key_confidence: DeviceSlice<'a, f32>,
    /// A single value: the number of accumulated estimates.
    pub key_count: DeviceSlice<'a, u32>,
    /// Both points' confidences must be above this.
    pub c_conf: f32,
    /// `N` qualities, zero if a gate is not passed.
    pub gated: DeviceSlice<'a, f32>,
}

/// Matching of every pixel of `query` (view 2) with a pixel of `target` (view 1).
#[derive(Debug, Clone, Copy)]
pub struct MatchTask<'a> {
    /// View 1.
    pub target: DeviceView<'a>,
    /// View 2, in the frame of view 1.
    pub query: DeviceView<'a>,
    /// Start of the searches.
    pub start: Start<'a>,
    /// Threshold for good qualities.
    pub q_conf: f32,
    /// If set, also applies the gates and counts distinct matches.
    pub gates: Option<Gates<'a>>,
    /// `N` row-major indices into view 1, always below `N`.
    pub index: DeviceSlice<'a, u32>,
    /// `N` flags: 1 for a usable match.
    pub valid: DeviceSlice<'a, u8>,
    /// `N` qualities, as by [`match_quality`](crate::compute::matching::match_quality). An edge's are rounded to
    /// binary16; gates and counts compare the f32.
    pub quality: Floats<'a>,
    /// A single set of counts.
    pub counts: DeviceSlice<'a, MatchCounts>,
}

/// A quality of another device or a file as edges store it: rounded to nearest, ties to even. Finite ones stay finite:
/// those beyond the range of binary16 become its maximum, [`MAX_QUALITY`].
pub fn stored_quality(quality: f32) -> f16 {
    f16::from_f32(match quality.is_finite() {
        true => quality.clamp(-MAX_QUALITY, MAX_QUALITY),
        false => quality,
    })
}

/// `SearchArgs` of `matching.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SearchArgs {
    rays: DevicePointer<f32>,
    query_points: DevicePointer<f32>,
    start: DevicePointer<u32>,
    use_start: DevicePointer<u32>,
    index: DevicePointer<u32>,
    converged: DevicePointer<u8>,
    width: u32,
    height: u32,
    max_iter: u32,
    lambda_init: f32,
    convergence: f32,
    noise: f32,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for SearchArgs {}

/// `RefineArgs` of `matching_refine.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RefineArgs {
    target_points: DevicePointer<f32>,
    query_points: DevicePointer<f32>,
    target_descriptors: DevicePointer<f32>,
    query_descriptors: DevicePointer<f32>,
    target_rounded: DevicePointer<u32>,
    query_rounded: DevicePointer<u32>,
    target_quality: DevicePointer<f32>,
    query_quality: DevicePointer<f32>,
    target_confidence: DevicePointer<f32>,
    key_confidence: DevicePointer<f32>,
    key_count: DevicePointer<u32>,
    index: DevicePointer<u32>,
    valid: DevicePointer<u8>,
    quality: DevicePointer<f32>,
    stored: DevicePointer<f16>,
    gated: DevicePointer<f32>,
    seen: DevicePointer<u32>,
    counts: DevicePointer<MatchCounts>,
    width: u32,
    height: u32,
    quads: u32,
    radius: u32,
    levels: u32,
    all: u32,
    q_conf: f32,
    c_conf: f32,
    distance: f32,
    reserved: u32,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for RefineArgs {}

/// Memory of a [`Matcher`].
pub struct MatcherBuffers {
    rays: DeviceBuffer<f32>,
    seen: DeviceBuffer<u32>,
    /// Target and query descriptors padded to a multiple of eight channels; `None` if the input
    /// already is.
    padded: Option<[DeviceBuffer<f32>; 2]>,
    /// Four rounded channels a word, of the padded target and query descriptors.
    rounded: [DeviceBuffer<u32>; 2],
}

impl MatcherBuffers {
    /// Buffers for images of `width × height` with `channels` channels per descriptor.
    pub fn carve(
        c: &mut Carver<'_, '_>,
        width: usize,
        height: usize,
        channels: usize,
    ) -> Result<Self, CudaError> {
        let (n, padded) = (width * height, channels.next_multiple_of(8));
        Ok(Self {
            rays: c.device("rays", &[height, width, RAY])?,
            seen: c.device("distinct matches", &[n.div_ceil(32)])?,
            rounded: [
                c.device("rounded descriptors 1", &[n, padded / 4])?,
                c.device("rounded descriptors 2", &[n, padded / 4])?,
            ],
            padded: match padded == channels {
                true => None,
                false => Some([
                    c.device("padded descriptors 1", &[n, padded])?,
                    c.device("padded descriptors 2", &[n, padded])?,
                ]),
            },
        })
    }
}

/// Matches pixels of images of one size. Owns the kernels and all scratch memory.
pub struct Matcher {
    width: u32,
    height: u32,
    channels: usize,
    refinement: Refinement,
    rays_kernel: Kernel,
    search_kernel: Kernel,
    pad_kernel: Kernel,
    round_kernel: Kernel,
    refine_kernel: Kernel,
    refine_any_kernel: Kernel,
    buffers: MatcherBuffers,
}

impl Matcher {
    /// Loads kernels and carves scratch memory for images of `width × height` with descriptors of
    /// `channels`.
    ///
    /// # Errors
    /// [`CudaError::Length`] for more than 2³² pixels and for buffers of another size.
    pub fn new(
        context: &Context,
        buffers: MatcherBuffers,
        width: usize,
        height: usize,
        channels: usize,
        refinement: Refinement,
    ) -> Result<Self, CudaError> {
        let n = width * height;
        super::small("pixels", n)?;
        let padded = channels.next_multiple_of(8);
        buffers.rays.all().at_least("rays of the image", n * RAY)?;
        let seen = buffers.seen.all();
        seen.at_least("bits of distinct matches", n.div_ceil(32))?;
        for copy in buffers.padded.iter().flatten() {
            copy.all().at_least("padded descriptors", n * padded)?;
        }
        if padded != channels && buffers.padded.is_none() {
            return Err(CudaError::Length {
                what: "padded descriptors",
                expected: n * padded,
                found: 0,
            });
        }
        super::small("descriptor values of a pixel", padded)?;
        for rounded in &buffers.rounded {
            let words = n * (padded / 4);
            rounded.all().at_least("rounded descriptors", words)?;
        }
        Ok(Self {
            width: super::small("columns", width)?,
            height: super::small("rows", height)?,
            channels,
            refinement,
            rays_kernel: context.kernel("ms_match_rays")?,
            search_kernel: context.kernel("ms_match_search")?,
            pad_kernel: context.kernel("ms_match_pad")?,
            round_kernel: context.kernel("ms_match_round")?,
            refine_kernel: context.kernel("ms_match_refine")?,
            refine_any_kernel: context.kernel("ms_match_refine_any")?,
            buffers,
        })
    }

    /// Pixels of a view.
    pub fn pixels(&self) -> usize {
        self.width as usize * self.height as usize
    }

    /// Enqueues the launches of a matching.
    pub fn enqueue(
        &self,
        stream: &Stream,
        params: &MatchingConfig,
        task: &MatchTask<'_>,
    ) -> Result<(), CudaError> {
        self.search(stream, params, task)?.round()?.refine()
    }

    /// Enqueues the search, which depends only on the directions of points: they may be scaled, each along its
    /// direction, before [`Rounded::refine`].
    pub fn search<'a>(
        &'a self,
        stream: &'a Stream,
        params: &'a MatchingConfig,
        task: &'a MatchTask<'a>,
    ) -> Result<Searched<'a>, CudaError> {
        let n = self.pixels();
        task.target.check(n, self.channels)?;
        task.query.check(n, self.channels)?;
        task.index.at_least("indices", n)?;
        task.valid.at_least("valid flags", n)?;
        task.quality.at_least("qualities", n)?;
        task.counts.at_least("counts", 1)?;
        if let Some(gates) = &task.gates {
            gates
                .key_confidence
                .at_least("confidences of the keyframe", n)?;
            gates.key_count.at_least("number of estimates", 1)?;
            gates.gated.at_least("gated qualities", n)?;
        }
        if n > 0 {
            self.launch_rays(stream, task)?;
            self.launch_search(stream, params, task)?;
        }
        Ok(Searched {
            matcher: self,
            stream,
            params,
            task,
        })
    }

    fn tiles(&self, tile: (u32, u32), threads: u32) -> Grid {
        Grid {
            blocks: (self.width.div_ceil(tile.0), self.height.div_ceil(tile.1), 1),
            threads: (threads, 1, 1),
            shared_bytes: 0,
        }
    }

    fn launch_rays(&self, stream: &Stream, task: &MatchTask<'_>) -> Result<(), CudaError> {
        let seen = match task.gates {
            Some(_) => self.buffers.seen.pointer(),
            None => DevicePointer::NULL,
        };
        let arguments = (
            task.target.points.pointer(),
            self.width,
            self.height,
            self.buffers.rays.pointer(),
            seen,
            task.counts.pointer(),
        );
        let grid = self.tiles(RAY_TILE, RAY_TILE.0 * RAY_TILE.1);
        // SAFETY: the points were checked, the rays have twelve floats and `seen` one bit per
        // pixel.
        unsafe { self.rays_kernel.launch(stream, grid, arguments) }
    }

    fn launch_search(
        &self,
        stream: &Stream,
        params: &MatchingConfig,
        task: &MatchTask<'_>,
    ) -> Result<(), CudaError> {
        let n = self.pixels();
        let (start, use_start) = match task.start {
            Start::Identity => (DevicePointer::NULL, DevicePointer::NULL),
            Start::Map { map, used } => {
                map.at_least("earlier matches", n)?;
                let used = match used {
                    Some(used) => used.at_least("flag of the earlier matches", 1)?.pointer(),
                    None => DevicePointer::NULL,
                };
                (map.pointer(), used)
            }
        };
        let arguments = SearchArgs {
            rays: self.buffers.rays.pointer(),
            query_points: task.query.points.pointer(),
            start,
            use_start,
            index: task.index.pointer(),
            converged: task.valid.pointer(),
            width: self.width,
            height: self.height,
            max_iter: u32::try_from(params.max_iter).unwrap_or(u32::MAX),
            lambda_init: params.lambda_init,
            convergence: params.convergence_thresh,
            noise: NOISE.min(params.convergence_thresh),
        };
        let grid = Grid::over(n, SEARCH_THREADS);
        // SAFETY: every buffer has elements for `n` pixels, checked above and in `search`; the
        // search reads rays and points only at positions that it keeps inside the image.
        unsafe { self.search_kernel.launch(stream, grid, (arguments,)) }
    }

    /// Radius of the refinement, and its widest step; 0: none.
    fn extent(&self, params: &MatchingConfig) -> (usize, usize) {
        let longest = self.width.max(self.height) as usize;
        // Steps wider than the image leave only the centre, even if there are more of them.
        let radius = params.radius.min(longest);
        let too_small = self.width < 3 || self.height < 3;
        match radius == 0 || too_small {
            true => (radius, 0),
            false => (radius, params.dilation_max.min(longest)),
        }
    }

    /// Pads the descriptors of both views and rounds them; returns them padded.
    fn launch_round<'a>(
        &'a self,
        stream: &Stream,
        mut descriptors: [DeviceSlice<'a, f32>; 2],
    ) -> Result<[DeviceSlice<'a, f32>; 2], CudaError> {
        let padded = self.channels.next_multiple_of(8);
        if let Some(copies) = &self.buffers.padded {
            for (descriptors, copy) in descriptors.iter_mut().zip(copies) {
                let grid = Grid::over(copy.len(), PAD_THREADS);
                let arguments = (
                    descriptors.pointer(),
                    self.channels as u32,
                    padded as u32,
                    copy.pointer(),
                    copy.len() as u64,
                );
                // SAFETY: the source has `channels` values per pixel, checked in `search`, the copy has `padded`.
                unsafe { self.pad_kernel.launch(stream, grid, arguments)? };
                *descriptors = copy.all();
            }
        }
        let words = self.pixels() * (padded / 4);
        let arguments = (
            descriptors[0].pointer(),
            descriptors[1].pointer(),
            self.buffers.rounded[0].pointer(),
            self.buffers.rounded[1].pointer(),
            words as u64,
        );
        let grid = Grid::over(2 * words, ROUND_THREADS);
        // SAFETY: each side has `padded` values for each pixel, a word for four of them.
        unsafe { self.round_kernel.launch(stream, grid, arguments)? };
        Ok(descriptors)
    }

    /// # Safety
    /// The task was checked and its search enqueued on `stream`; `descriptors` are padded, and rounded if there is a
    /// refinement.
    unsafe fn launch_refine(
        &self,
        stream: &Stream,
        params: &MatchingConfig,
        task: &MatchTask<'_>,
        descriptors: [DeviceSlice<'_, f32>; 2],
    ) -> Result<(), CudaError> {
        let (radius, levels) = self.extent(params);
        let padded = self.channels.next_multiple_of(8);
        let null = DevicePointer::NULL;
        let gates = task.gates.as_ref();
        let (stored, quality) = task.quality.pointers();
        let arguments = RefineArgs {
            target_points: task.target.points.pointer(),
            query_points: task.query.points.pointer(),
            target_descriptors: descriptors[0].pointer(),
            query_descriptors: descriptors[1].pointer(),
            target_rounded: self.buffers.rounded[0].pointer(),
            query_rounded: self.buffers.rounded[1].pointer(),
            target_quality: task.target.descriptor_confidence.pointer(),
            query_quality: task.query.descriptor_confidence.pointer(),
            target_confidence: gates.map_or(null, |_| task.target.confidence.pointer()),
            key_confidence: gates.map_or(null, |g| g.key_confidence.pointer()),
            key_count: gates.map_or(DevicePointer::NULL, |g| g.key_count.pointer()),
            index: task.index.pointer(),
            valid: task.valid.pointer(),
            quality,
            stored,
            gated: gates.map_or(null, |g| g.gated.pointer()),
            seen: gates.map_or(DevicePointer::NULL, |_| self.buffers.seen.pointer()),
            counts: task.counts.pointer(),
            width: self.width,
            height: self.height,
            quads: (padded / 4) as u32,
            radius: radius as u32,
            levels: levels as u32,
            all: u32::from(self.refinement == Refinement::SingleAll),
            q_conf: task.q_conf,
            c_conf: gates.map_or(0.0, |g| g.c_conf),
            distance: params.dist_thresh,
            reserved: 0,
        };
        let fast = padded == CHANNELS && radius <= RADIUS;
        let kernel = if fast {
            &self.refine_kernel
        } else {
            &self.refine_any_kernel
        };
        let grid = self.tiles(REFINE_TILE, REFINE_TILE.0 * REFINE_TILE.1);
        // SAFETY: every buffer has elements for all pixels, checked in `search`; `index` was written by the search and
        // lies inside the image, and the refinement stays inside.
        unsafe { kernel.launch(stream, grid, (arguments,)) }
    }
}

/// A matching whose search is enqueued.
#[must_use]
pub struct Searched<'a> {
    matcher: &'a Matcher,
    stream: &'a Stream,
    params: &'a MatchingConfig,
    task: &'a MatchTask<'a>,
}

impl<'a> Searched<'a> {
    /// Enqueues the preparation of descriptors, which does not depend on points either.
    pub fn round(self) -> Result<Rounded<'a>, CudaError> {
        let descriptors = [self.task.target.descriptors, self.task.query.descriptors];
        let (_, levels) = self.matcher.extent(self.params);
        let descriptors = match levels {
            0 => descriptors,
            _ => self.matcher.launch_round(self.stream, descriptors)?,
        };
        Ok(Rounded {
            searched: self,
            descriptors,
        })
    }
}

/// A matching whose search and preparation of descriptors are enqueued.
#[must_use]
pub struct Rounded<'a> {
    searched: Searched<'a>,
    /// Padded if there is a refinement.
    descriptors: [DeviceSlice<'a, f32>; 2],
}

impl Rounded<'_> {
    /// Enqueues the rest: occlusion check, refinement, qualities, gates and counts.
    pub fn refine(self) -> Result<(), CudaError> {
        let Searched {
            matcher,
            stream,
            params,
            task,
        } = self.searched;
        if matcher.pixels() == 0 {
            return stream.fill(task.counts, 0);
        }
        // SAFETY: `Matcher::search` checked the task and enqueued its search on this stream, and `Searched::round` the
        // rounding.
        unsafe { matcher.launch_refine(stream, params, task, self.descriptors) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finite_qualities_stay_finite_and_are_rounded_to_the_nearest() {
        // A step of binary16 is 2⁻¹⁰ at 1.5 and 32 below 65504; what is below half of its least number is zero.
        let tie = 1.5 + 2_f32.powi(-11);
        for (quality, expected) in [
            (0.0, 0.0),
            (1.5, 1.5),
            (tie, 1.5),
            (tie.next_up(), 1.5 + 2_f32.powi(-10)),
            (65487.0, 65472.0),
            (65504.0, 65504.0),
            (65520.0, 65504.0),
            (f32::MAX, 65504.0),
            (-f32::MAX, -65504.0),
            (2_f32.powi(-24), 2_f32.powi(-24)),
            (2_f32.powi(-26), 0.0),
            (f32::INFINITY, f32::INFINITY),
        ] {
            assert_eq!(stored_quality(quality).to_f32(), expected, "{quality}");
        }
        assert!(stored_quality(f32::NAN).is_nan());
    }
}

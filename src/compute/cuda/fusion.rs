//! Fusion of keyframe pointmaps on the device, bit-identical to [`crate::compute::fusion`].

use super::small;
use super::tracking::{CameraRays, MeasuredDepths, MeasuredDepthsArgument, Outcome, RaysArgument};
use crate::config::{FilteringMode, FilteringScore};
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, Stream,
};
use half::f16;

/// Threads per block.
const THREADS: u32 = 256;
/// Threads of the single block that computes a score.
const SCORE_THREADS: u32 = 1024;
/// Words of `State` in `fusion.cu`: count, updates, score, and five for the update in progress.
const STATE_WORDS: usize = 8;

/// State of a fused pointmap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FusionState {
    /// Number of accumulated estimates; at least 1 after the first update.
    pub count: u32,
    /// Number of updates since the restart.
    pub updates: u32,
    /// Score of the estimate kept in mode `best_score`; negative infinity before the first.
    pub score: f32,
}

/// A pointmap that accumulates estimates; `N` pixels.
pub struct FusedPointmap {
    /// `N × 3` points in the camera frame.
    pub points: DeviceBuffer<f32>,
    /// `N` accumulated confidences.
    pub confidence: DeviceBuffer<f32>,
    state: DeviceBuffer<u32>,
    /// First word of `state`.
    count: DeviceBuffer<u32>,
}

impl FusedPointmap {
    /// Room for `pixels` pixels. [`FusedPointmap::clear`] comes next.
    pub fn carve(c: &mut Carver<'_, '_>, pixels: usize) -> Result<Self, CudaError> {
        let points = c.device("points", &[pixels, 3])?;
        let confidence = c.device("confidence", &[pixels])?;
        let state: DeviceBuffer<u32> = c.device("state", &[STATE_WORDS])?;
        Ok(Self {
            points,
            confidence,
            count: state.part(0..1)?,
            state,
        })
    }

    /// Makes it a pointmap without estimates: the first update must be a restart. Waits.
    pub fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.fill(self.state.all(), 0)?;
        stream.synchronize()
    }

    /// Pixels.
    pub fn pixels(&self) -> usize {
        self.confidence.len()
    }

    /// A single value: the number of accumulated estimates.
    pub fn count(&self) -> DeviceSlice<'_, u32> {
        self.count.all()
    }

    /// Reads the state; synchronises the stream.
    pub fn state(&self, stream: &Stream) -> Result<FusionState, CudaError> {
        let mut words = [0; STATE_WORDS];
        stream.read(self.state.all(), &mut words)?;
        let [count, updates, score, ..] = words;
        Ok(FusionState {
            count,
            updates,
            score: f32::from_bits(score),
        })
    }
}

/// A new estimate of a pointmap.
#[derive(Clone, Copy)]
pub struct UpdateTask<'a> {
    /// `N × 3` points: in the frame's camera frame if there is an outcome, otherwise in the
    /// pointmap's own.
    pub points: DeviceSlice<'a, f32>,
    /// `N` confidences.
    pub confidence: DeviceSlice<'a, f32>,
    /// A single outcome: its pose transforms the points, and nothing changes unless it is solved.
    pub outcome: Option<DeviceSlice<'a, Outcome>>,
    /// Whether this is the first estimate, which replaces the contents of the pointmap.
    pub restart: bool,
    /// Brings the new points nearer to measured depth before they are fused.
    pub depth: Option<FusionDepth<'a>>,
}

/// Depths of both ends of the matches.
#[derive(Clone, Copy)]
pub struct FusionDepth<'a> {
    /// Those of the frame and of the pointmap's pixels.
    pub measured: MeasuredDepths<'a>,
    /// `N` pixels of the frame that the pointmap's match.
    pub index: DeviceSlice<'a, u32>,
    /// `N` flags: 0 if there is no match.
    pub valid: DeviceSlice<'a, u8>,
    /// Columns of both images, at least 1.
    pub width: usize,
}

/// Destination of an exported pointmap.
#[derive(Clone, Copy)]
pub struct ExportTask<'a> {
    /// If set, moves the points onto their pixels' rays.
    pub rays: Option<&'a CameraRays>,
    /// `N × 3`.
    pub points: DeviceSlice<'a, f32>,
    /// `N` average confidences.
    pub confidence: Option<DeviceSlice<'a, f32>>,
    /// Average confidences in f16, clamped to the largest finite value.
    pub half_confidence: Option<DeviceSlice<'a, f16>>,
}

/// `Update` in `fusion.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct UpdateArguments {
    outcome: DevicePointer<Outcome>,
    points: DevicePointer<f32>,
    confidence: DevicePointer<f32>,
    held_points: DevicePointer<f32>,
    held_confidence: DevicePointer<f32>,
    state: DevicePointer<u32>,
    keys: DevicePointer<u32>,
    measured: MeasuredDepthsArgument,
    index: DevicePointer<u32>,
    valid: DevicePointer<u8>,
    pixels: u64,
    mode: u32,
    mean: u32,
    restart: u32,
    width: u32,
}

// SAFETY: the layout of the struct in `fusion.cu`.
unsafe impl KernelArgument for UpdateArguments {}

/// `Export` in `fusion.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ExportArguments {
    held_points: DevicePointer<f32>,
    held_confidence: DevicePointer<f32>,
    state: DevicePointer<u32>,
    rays: RaysArgument,
    points: DevicePointer<f32>,
    confidence: DevicePointer<f32>,
    half_confidence: DevicePointer<f16>,
    pixels: u64,
}

// SAFETY: the layout of the struct in `fusion.cu`.
unsafe impl KernelArgument for ExportArguments {}

/// Memory of a [`Fusion`].
pub struct FusionBuffers {
    /// Used in mode `best_score` only, otherwise empty.
    keys: DeviceBuffer<u32>,
}

impl FusionBuffers {
    /// Buffers for pointmaps of `pixels` pixels.
    pub fn carve(
        c: &mut Carver<'_, '_>,
        pixels: usize,
        mode: FilteringMode,
    ) -> Result<Self, CudaError> {
        let keys = match mode {
            FilteringMode::BestScore => pixels,
            _ => 0,
        };
        Ok(Self {
            keys: c.device("keys", &[keys])?,
        })
    }
}

/// Fuses pointmaps of one size in one mode.
pub struct Fusion {
    update: Kernel,
    keys: Kernel,
    score: Kernel,
    export: Kernel,
    constrain: Kernel,
    buffers: FusionBuffers,
    mode: FilteringMode,
    of: FilteringScore,
    pixels: usize,
}

impl Fusion {
    /// For pointmaps of `pixels` pixels; `buffers` were carved for this size and mode. The buffers serve
    /// one stream at a time.
    pub fn new(
        context: &Context,
        buffers: FusionBuffers,
        pixels: usize,
        mode: FilteringMode,
        score: FilteringScore,
    ) -> Result<Self, CudaError> {
        small("pixels of an image", pixels)?;
        if mode == FilteringMode::BestScore {
            buffers.keys.all().at_least("keys of a score", pixels)?;
        }
        Ok(Self {
            update: context.kernel("ms_fusion_update")?,
            keys: context.kernel("ms_fusion_keys")?,
            score: context.kernel("ms_fusion_score")?,
            export: context.kernel("ms_fusion_export")?,
            constrain: context.kernel("ms_fusion_constrain")?,
            buffers,
            mode,
            of: score,
            pixels,
        })
    }

    /// Enqueues an update of `map`: one launch, or three in mode `best_score`.
    pub fn update(
        &self,
        stream: &Stream,
        map: &FusedPointmap,
        task: &UpdateTask<'_>,
    ) -> Result<(), CudaError> {
        let n = self.pixels;
        let outcome = task.outcome.map(|o| o.at_least("outcome", 1)).transpose()?;
        let (measured, index, valid, width) = match &task.depth {
            Some(depth) => (
                depth.measured.argument(n)?,
                depth.index.at_least("matches", n)?.pointer(),
                depth.valid.at_least("valid matches", n)?.pointer(),
                small("columns of an image", depth.width.max(1))?,
            ),
            None => (
                MeasuredDepthsArgument::NONE,
                DevicePointer::NULL,
                DevicePointer::NULL,
                0,
            ),
        };
        let arguments = UpdateArguments {
            outcome: outcome.map_or(DevicePointer::NULL, |o| o.pointer()),
            points: task.points.at_least("new points", 3 * n)?.pointer(),
            confidence: task.confidence.at_least("new confidences", n)?.pointer(),
            held_points: map.points.all().at_least("held points", 3 * n)?.pointer(),
            held_confidence: map
                .confidence
                .all()
                .at_least("held confidences", n)?
                .pointer(),
            state: map.state.pointer(),
            keys: self.buffers.keys.pointer(),
            measured,
            index,
            valid,
            pixels: n as u64,
            mode: match self.mode {
                FilteringMode::WeightedPointmap => 0,
                FilteringMode::WeightedSpherical => 1,
                FilteringMode::Recent => 2,
                FilteringMode::First => 3,
                FilteringMode::BestScore => 4,
                FilteringMode::IndepConf => 5,
            },
            mean: u32::from(self.of == FilteringScore::Mean),
            restart: u32::from(task.restart),
            width,
        };
        let grid = Grid::over(n, THREADS);
        // SAFETY: all buffers have the lengths that the kernels access: checked above, the state's
        // on creation, the keys' in `new` for the mode that reads them.
        unsafe {
            if self.mode == FilteringMode::BestScore {
                self.keys.launch(stream, grid, (arguments,))?;
                let one = Grid::blocks(1, SCORE_THREADS);
                self.score.launch(stream, one, (arguments,))?;
            }
            self.update.launch(stream, grid, (arguments,))
        }
    }

    /// Enqueues a copy of `map` with average confidences.
    pub fn export(
        &self,
        stream: &Stream,
        map: &FusedPointmap,
        task: &ExportTask<'_>,
    ) -> Result<(), CudaError> {
        let n = self.pixels;
        let confidence = task
            .confidence
            .map(|c| c.at_least("average confidences", n))
            .transpose()?;
        let half = task
            .half_confidence
            .map(|c| c.at_least("average confidences", n))
            .transpose()?;
        let arguments = ExportArguments {
            held_points: map.points.all().at_least("held points", 3 * n)?.pointer(),
            held_confidence: map
                .confidence
                .all()
                .at_least("held confidences", n)?
                .pointer(),
            state: map.state.pointer(),
            rays: match task.rays {
                Some(rays) => self.rays(rays)?,
                None => RaysArgument::NONE,
            },
            points: task.points.at_least("points", 3 * n)?.pointer(),
            confidence: confidence.map_or(DevicePointer::NULL, |c| c.pointer()),
            half_confidence: half.map_or(DevicePointer::NULL, |c| c.pointer()),
            pixels: n as u64,
        };
        // SAFETY: the lengths were checked above, the state's on creation.
        unsafe {
            self.export
                .launch(stream, Grid::over(n, THREADS), (arguments,))
        }
    }

    /// Enqueues moving `N × 3` points onto their pixels' rays
    /// ([`crate::compute::pose_solver::constrain_to_rays`]); `out` may be `points`.
    pub fn constrain(
        &self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        rays: &CameraRays,
        out: DeviceSlice<'_, f32>,
    ) -> Result<(), CudaError> {
        let n = self.pixels;
        let arguments = (
            points.at_least("points", 3 * n)?.pointer(),
            self.rays(rays)?,
            out.at_least("constrained points", 3 * n)?.pointer(),
            n as u64,
        );
        // SAFETY: the lengths were checked above.
        unsafe {
            self.constrain
                .launch(stream, Grid::over(n, THREADS), arguments)
        }
    }

    fn rays(&self, rays: &CameraRays) -> Result<RaysArgument, CudaError> {
        if rays.pixels() != self.pixels {
            return Err(CudaError::Length {
                what: "rays of the camera",
                expected: self.pixels,
                found: rays.pixels(),
            });
        }
        Ok(rays.argument())
    }
}

//! A keyframe's pointmap on the device, and its fusion: [`crate::compute::fusion`] with the same bits.

use super::tracking::{CameraRays, Outcome, RaysArgument};
use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, Stream, small,
};
use crate::compute::plan::Spec;
use crate::config::{FilteringMode, FilteringScore};
use half::f16;

/// Threads of a block.
const THREADS: u32 = 256;
/// Threads of the one block that finds a score.
const SCORE_THREADS: u32 = 1024;
/// Words of `State` in `fusion.cu`: count, updates, score, and five of the update under way.
const STATE_WORDS: usize = 8;

/// What a fused pointmap knows of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FusionState {
    /// Estimates that the confidences accumulate; at least 1 after the first update.
    pub count: u32,
    /// Updates since the restart.
    pub updates: u32,
    /// Of the kept estimate in mode `best_score`; negative infinity before the first.
    pub score: f32,
}

/// A pointmap that absorbs new estimates of itself; `N` pixels.
pub struct FusedPointmap {
    /// `N × 3` points in the camera's own frame.
    pub points: DeviceBuffer<f32>,
    /// `N` accumulated confidences.
    pub confidence: DeviceBuffer<f32>,
    state: DeviceBuffer<u32>,
    /// The first word of `state`.
    count: DeviceBuffer<u32>,
}

impl FusedPointmap {
    /// What [`FusedPointmap::new`] carves.
    pub fn buffers(pixels: usize) -> Vec<Spec> {
        vec![
            Spec::of::<f32>("points", &[pixels, 3]),
            Spec::of::<f32>("confidence", &[pixels]),
            Spec::of::<u32>("state", &[STATE_WORDS]),
        ]
    }

    /// Room for `pixels` pixels. The first update must be a restart. Waits until the state is cleared.
    pub fn new(stream: &Stream, arena: &mut DeviceArena, pixels: usize) -> Result<Self, CudaError> {
        let points = arena.carve("points", 3 * pixels)?;
        let confidence = arena.carve("confidence", pixels)?;
        let state: DeviceBuffer<u32> = arena.carve("state", STATE_WORDS)?;
        stream.fill(state.all(), 0)?;
        stream.synchronize()?;
        Ok(Self {
            points,
            confidence,
            count: state.part(0..1)?,
            state,
        })
    }

    /// Pixels.
    pub fn pixels(&self) -> usize {
        self.confidence.len()
    }

    /// One number: the estimates that the confidences accumulate.
    pub fn count(&self) -> DeviceSlice<'_, u32> {
        self.count.all()
    }

    /// What it knows of itself; waits for the stream.
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
    /// `N × 3` points: with an outcome in the frame's camera, else in the pointmap's own.
    pub points: DeviceSlice<'a, f32>,
    /// `N` confidences.
    pub confidence: DeviceSlice<'a, f32>,
    /// One: its pose moves the points, and unless it is solved, nothing is changed.
    pub outcome: Option<DeviceSlice<'a, Outcome>>,
    /// Whether this is the first estimate: what the pointmap held is forgotten.
    pub restart: bool,
}

/// Where a pointmap goes.
#[derive(Clone, Copy)]
pub struct ExportTask<'a> {
    /// Puts the points on their pixels' rays.
    pub rays: Option<&'a CameraRays>,
    /// `N × 3`.
    pub points: DeviceSlice<'a, f32>,
    /// `N` average confidences.
    pub confidence: Option<DeviceSlice<'a, f32>>,
    /// The same, at most the greatest finite f16.
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
    pixels: u64,
    mode: u32,
    mean: u32,
    restart: u32,
    padding: u32,
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

/// Fuses pointmaps of one size in one mode.
pub struct Fusion {
    update: Kernel,
    keys: Kernel,
    score: Kernel,
    export: Kernel,
    constrain: Kernel,
    /// Mode `best_score` only, else empty.
    sorted: DeviceBuffer<u32>,
    mode: FilteringMode,
    of: FilteringScore,
    pixels: usize,
}

impl Fusion {
    fn keys_len(pixels: usize, mode: FilteringMode) -> usize {
        match mode {
            FilteringMode::BestScore => pixels,
            _ => 0,
        }
    }

    /// What [`Fusion::new`] carves.
    pub fn buffers(pixels: usize, mode: FilteringMode) -> Vec<Spec> {
        vec![Spec::of::<u32>("keys", &[Self::keys_len(pixels, mode)])]
    }

    /// For pointmaps of `pixels` pixels. The scratch serves one stream at a time.
    pub fn new(
        context: &Context,
        arena: &mut DeviceArena,
        pixels: usize,
        mode: FilteringMode,
        score: FilteringScore,
    ) -> Result<Self, CudaError> {
        small("pixels of an image", pixels)?;
        let keys = Self::keys_len(pixels, mode);
        Ok(Self {
            update: context.kernel("ms_fusion_update")?,
            keys: context.kernel("ms_fusion_keys")?,
            score: context.kernel("ms_fusion_score")?,
            export: context.kernel("ms_fusion_export")?,
            constrain: context.kernel("ms_fusion_constrain")?,
            sorted: arena.carve("keys", keys)?,
            mode,
            of: score,
            pixels,
        })
    }

    /// Enqueues an update of `map`: one launch, three in mode `best_score`.
    pub fn update(
        &self,
        stream: &Stream,
        map: &FusedPointmap,
        task: &UpdateTask<'_>,
    ) -> Result<(), CudaError> {
        let n = self.pixels;
        let outcome = task.outcome.map(|o| o.at_least("outcome", 1)).transpose()?;
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
            keys: self.sorted.pointer(),
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
            padding: 0,
        };
        let grid = Grid::over(n, THREADS);
        // SAFETY: all buffers have the lengths that the kernels touch: checked above, the state when it
        // was made, the keys in `new` for the mode that reads them.
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
        // SAFETY: the lengths were checked above, the state's when it was made.
        unsafe {
            self.export
                .launch(stream, Grid::over(n, THREADS), (arguments,))
        }
    }

    /// Enqueues putting `N × 3` points on their pixels' rays
    /// ([`crate::compute::tracking::constrain_to_rays`]); `out` may be `points`.
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

//! The field of a pass by measured depth on the device, as [`crate::compute::depth::field::DepthField`] makes it.

use super::{APPLY_THREADS, Found, THREADS};
use crate::compute::cuda::small;
use crate::compute::depth::field::{self, Layout};
use crate::compute::depth::{self, around, pixels, smooth};
use crate::geometry::Intrinsics;
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, Stream,
};

/// The margin around the pixels that a block averages, and `kSameDepth` of `depth_average.cuh`.
const _: () = assert!(smooth::MAX_RADIUS <= 8 && smooth::SAME_DEPTH == 205);
/// `kSameSurface`, `kSurface`, `kAgrees`, `kEdge`, `kTrusted` and `kDoubted` of `depth.cuh`.
const _: () = assert!(around::SAME_SURFACE == 0.05 && around::SURFACE == 2);
const _: () = assert!(
    pixels::AGREES == 0.02 && around::EDGE == 2 && depth::TRUSTED == 10 && pixels::DOUBTED == 0.6
);
/// A thread smooths at most two cells.
const _: () = assert!(field::CELLS * field::CELLS * field::LAYERS <= 2 * THREADS as usize);

/// `Layout` of `depth.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct LayoutArgument {
    width: u32,
    height: u32,
    columns: u32,
    rows: u32,
    side: u32,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for LayoutArgument {}

/// `Camera` of `depth.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct CameraArgument {
    focal: [f32; 2],
    principal: [f32; 2],
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for CameraArgument {}

/// `Fit` of `depth.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct FitArguments {
    cells: DevicePointer<f32>,
    field: DevicePointer<f32>,
    layout: LayoutArgument,
    sigmas: f32,
    full_cell: f32,
    stiffness: f32,
    way_back: f32,
    sweeps: u32,
    min_pairs: u32,
    max_distance: u32,
    max_radius: u32,
    confidence: f32,
    matched_sigma: f64,
    averaged: f64,
    deviations: f64,
    min_spread: f64,
    wanted_noise: f64,
    per_gap: f64,
}

impl FitArguments {
    /// No field is wanted.
    pub(super) const NONE: Self = Self {
        cells: DevicePointer::NULL,
        field: DevicePointer::NULL,
        layout: LayoutArgument {
            width: 0,
            height: 0,
            columns: 0,
            rows: 0,
            side: 0,
        },
        sigmas: 0.0,
        full_cell: 0.0,
        stiffness: 0.0,
        way_back: 0.0,
        sweeps: 0,
        min_pairs: 0,
        max_distance: 0,
        max_radius: 0,
        confidence: 0.0,
        matched_sigma: 0.0,
        averaged: 0.0,
        deviations: 0.0,
        min_spread: 0.0,
        wanted_noise: 0.0,
        per_gap: 0.0,
    };
}

/// Memory of a [`DepthField`].
pub struct DepthFieldBuffers {
    cells: DeviceBuffer<f32>,
    field: DeviceBuffer<f32>,
}

impl DepthFieldBuffers {
    /// Buffers for images of this size.
    pub fn carve(c: &mut Carver<'_, '_>, width: usize, height: usize) -> Result<Self, CudaError> {
        let layout = Layout::of(width, height);
        let shape = [field::LAYERS, layout.rows, layout.columns];
        Ok(Self {
            // Pairs of floats.
            cells: c.device("means of cells", &[2 * layout.cells()])?,
            field: c.device("field", &shape)?,
        })
    }
}

/// The field of the newest pass that has one; 0 everywhere before.
pub struct DepthField {
    apply: Kernel,
    approach: Kernel,
    buffers: DepthFieldBuffers,
    layout: LayoutArgument,
    camera: CameraArgument,
    pixels: usize,
    confidence: f32,
}

impl DepthField {
    /// For images of this size and camera, for which `buffers` were carved; clears them on `stream`. Points that agree with
    /// their depth get at least this confidence.
    pub fn new(
        context: &Context,
        stream: &Stream,
        buffers: DepthFieldBuffers,
        (width, height): (usize, usize),
        (camera, confidence): (&Intrinsics, f32),
    ) -> Result<Self, CudaError> {
        let layout = Layout::of(width, height);
        let b = &buffers;
        stream.fill(b.cells.all().at_least("means", 2 * layout.cells())?, 0)?;
        stream.fill(b.field.all().at_least("field", layout.cells())?, 0)?;
        Ok(Self {
            apply: context.kernel("ms_depth_apply")?,
            approach: context.kernel("ms_depth_approach")?,
            buffers,
            layout: LayoutArgument {
                width: small("columns of an image", width)?,
                height: small("rows of an image", height)?,
                columns: small("columns of cells", layout.columns)?,
                rows: small("rows of cells", layout.rows)?,
                side: small("side of a cell", layout.side)?,
            },
            camera: CameraArgument {
                focal: [camera.fx as f32, camera.fy as f32],
                principal: [camera.cx as f32, camera.cy as f32],
            },
            pixels: width * height,
            confidence,
        })
    }

    /// Logarithms of the factor at the cells' centres.
    pub fn values(&self) -> DeviceSlice<'_, f32> {
        self.buffers.field.all()
    }

    /// What a measurement of pointmaps of `pixels` pixels needs to fit it.
    pub(super) fn fit_arguments(&self, pixels: usize) -> Result<FitArguments, CudaError> {
        if pixels != self.pixels {
            return Err(CudaError::Length {
                what: "pixels of a field of depth",
                expected: pixels,
                found: self.pixels,
            });
        }
        Ok(FitArguments {
            cells: self.buffers.cells.pointer(),
            field: self.buffers.field.pointer(),
            layout: self.layout,
            sigmas: field::REACH,
            full_cell: field::FULL_CELL,
            stiffness: field::STIFFNESS,
            way_back: field::RETURN,
            sweeps: field::SWEEPS as u32,
            min_pairs: pixels::MIN_PAIRS as u32,
            max_distance: pixels::NEIGHBOURS as u32,
            max_radius: smooth::MAX_RADIUS as u32,
            confidence: self.confidence,
            matched_sigma: pixels::MATCHED_SIGMA,
            averaged: pixels::AVERAGED,
            deviations: smooth::DEVIATIONS,
            min_spread: smooth::MIN_SPREAD,
            wanted_noise: smooth::WANTED_NOISE,
            per_gap: smooth::PER_GAP,
        })
    }

    /// Enqueues multiplying the points (`N × 3`) of the frame's view, and of another in the frame's camera, by the
    /// factor of `found` and the field.
    pub fn apply(
        &self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        other: Option<DeviceSlice<'_, f32>>,
        found: DeviceSlice<'_, Found>,
    ) -> Result<(), CudaError> {
        if self.pixels == 0 {
            return Ok(());
        }
        let numbers = 3 * self.pixels;
        let first = points.at_least("points", numbers)?.pointer();
        let second = other.map(|o| o.at_least("points", numbers)).transpose()?;
        let mut grid = Grid::over(self.pixels, APPLY_THREADS);
        grid.blocks.1 = 1 + u32::from(second.is_some());
        let arguments = (
            first,
            second.map_or(first, |s| s.pointer()),
            found.at_least("scale by depth", 1)?.pointer(),
            self.buffers.field.pointer(),
            self.layout,
            self.camera,
            small("pixels of an image", self.pixels)?,
        );
        // SAFETY: the lengths were checked above; with one view the grid has one row of blocks.
        unsafe { self.apply.launch(stream, grid, arguments) }
    }

    /// Enqueues bringing the points (`N × 3`) of the frame's view, which are in metres, nearer to its depths, and changing
    /// their confidences, if `found` is accepted.
    pub fn approach(
        &self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        confidence: Option<DeviceSlice<'_, f32>>,
        metres: DeviceSlice<'_, f32>,
        found: DeviceSlice<'_, Found>,
    ) -> Result<(), CudaError> {
        if self.pixels == 0 {
            return Ok(());
        }
        let confidence = confidence
            .map(|c| c.at_least("confidences", self.pixels))
            .transpose()?;
        let arguments = (
            points.at_least("points", 3 * self.pixels)?.pointer(),
            confidence.map_or(DevicePointer::NULL, |c| c.pointer()),
            metres.at_least("depths", self.pixels)?.pointer(),
            found.at_least("scale by depth", 1)?.pointer(),
            self.layout.width,
            small("pixels of an image", self.pixels)?,
        );
        let grid = Grid::over(self.pixels, APPLY_THREADS);
        // SAFETY: the lengths were checked above.
        unsafe { self.approach.launch(stream, grid, arguments) }
    }
}

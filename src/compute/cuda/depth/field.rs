//! The field of a pass by measured depth on the device, as [`crate::compute::depth::field::DepthField`] makes it.

use super::{DepthMeter, Found, THREADS};
use crate::compute::cuda::small;
use crate::compute::depth::field::{self, Layout};
use crate::compute::depth::{MIN_SIGMA, SIGMA_OVER_MAD};
use crate::geometry::Intrinsics;
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, Stream,
};

/// The last block of the kernel has a thread for each cell of a layer.
const _: () = assert!(field::CELLS * field::CELLS <= THREADS as usize);

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

/// `FieldArguments` of `depth.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct FieldArguments {
    points: DevicePointer<f32>,
    keys: DevicePointer<u32>,
    used: DevicePointer<u32>,
    found: DevicePointer<Found>,
    cells: DevicePointer<f32>,
    field: DevicePointer<f32>,
    tickets: DevicePointer<u32>,
    layout: LayoutArgument,
    sigmas: f32,
    sigma_over_mad: f32,
    min_sigma: f32,
    full_cell: f32,
    stiffness: f32,
    way_back: f32,
    sweeps: u32,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for FieldArguments {}

/// Memory of a [`DepthField`].
pub struct DepthFieldBuffers {
    cells: DeviceBuffer<f32>,
    field: DeviceBuffer<f32>,
    tickets: DeviceBuffer<u32>,
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
            tickets: c.device("tickets", &[1])?,
        })
    }
}

/// The field of the newest pass that has one; 0 everywhere before.
pub struct DepthField {
    fit: Kernel,
    apply: Kernel,
    buffers: DepthFieldBuffers,
    /// Number of cells in a layer.
    cells: u32,
    layout: LayoutArgument,
    camera: CameraArgument,
    pixels: usize,
}

impl DepthField {
    /// For images of this size and camera, for which `buffers` were carved; clears them on `stream`.
    pub fn new(
        context: &Context,
        stream: &Stream,
        buffers: DepthFieldBuffers,
        (width, height): (usize, usize),
        camera: &Intrinsics,
    ) -> Result<Self, CudaError> {
        let layout = Layout::of(width, height);
        let b = &buffers;
        stream.fill(b.cells.all().at_least("means", 2 * layout.cells())?, 0)?;
        stream.fill(b.field.all().at_least("field", layout.cells())?, 0)?;
        stream.fill(b.tickets.all().at_least("tickets", 1)?, 0)?;
        Ok(Self {
            fit: context.kernel("ms_depth_field")?,
            apply: context.kernel("ms_depth_apply")?,
            buffers,
            cells: small("cells of a layer", layout.columns * layout.rows)?,
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
        })
    }

    /// Logarithms of the factor at the cells' centres.
    pub fn values(&self) -> DeviceSlice<'_, f32> {
        self.buffers.field.all()
    }

    /// Enqueues fitting the field to what `meter` has just measured, if that was accepted. `points`, `used` and `found`
    /// are those of the measurement.
    pub fn fit(
        &self,
        stream: &Stream,
        meter: &DepthMeter,
        points: DeviceSlice<'_, f32>,
        used: Option<DeviceSlice<'_, u32>>,
        found: DeviceSlice<'_, Found>,
    ) -> Result<(), CudaError> {
        if self.pixels == 0 {
            return Ok(());
        }
        let used = used.map(|u| u.at_least("use of depth", 1)).transpose()?;
        let keys = meter.buffers.keys.all();
        let b = &self.buffers;
        let arguments = FieldArguments {
            points: points.at_least("points", 3 * self.pixels)?.pointer(),
            keys: keys.at_least("log ratios", self.pixels)?.pointer(),
            used: used.map_or(DevicePointer::NULL, |u| u.pointer()),
            found: found.at_least("scale by depth", 1)?.pointer(),
            cells: b.cells.pointer(),
            field: b.field.pointer(),
            tickets: b.tickets.pointer(),
            layout: self.layout,
            sigmas: field::REACH,
            sigma_over_mad: SIGMA_OVER_MAD as f32,
            min_sigma: MIN_SIGMA as f32,
            full_cell: field::FULL_CELL,
            stiffness: field::STIFFNESS,
            way_back: field::RETURN,
            sweeps: field::SWEEPS as u32,
        };
        let grid = Grid::blocks(self.cells, THREADS);
        // SAFETY: the lengths were checked above and on creation.
        unsafe { self.fit.launch(stream, grid, (arguments,)) }
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
        let mut grid = Grid::over(self.pixels, THREADS);
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
}

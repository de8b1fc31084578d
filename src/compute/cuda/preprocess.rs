//! From a raw camera image to the network's input on the device: as [`crate::image`], bit for bit.

use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, Stream,
};
use crate::compute::plan::Spec;
use crate::image::encoding::Encoding;
use crate::image::{ImageError, Preprocessor};
use half::f16;

const LENS: &str = "undistortion";
const LENS_STEPS: &str = "undistortion, parts of pixels";
const COLUMN_SPANS: &str = "inputs of columns";
const COLUMN_WEIGHTS: &str = "weights of columns";
const ROW_SPANS: &str = "inputs of rows";
const ROW_WEIGHTS: &str = "weights of rows";
const MIDDLE: &str = "resampled rows";

/// Threads of a block, and rows that a block of the first pass takes, as in `preprocess.cu`.
const THREADS: u32 = 128;
const ROWS: u32 = 4;

/// Why a device preprocessor could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PreprocessError {
    /// The encoding does not fit the images.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The device refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Where the result goes; every form is optional.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkImage<'a> {
    /// `H × W × 3` bytes, R, G, B.
    pub image: Option<DeviceSlice<'a, u8>>,
    /// `3 × H × W`, `byte / 127.5 − 1`.
    pub planes: Option<DeviceSlice<'a, f32>>,
    /// The same rounded to f16.
    pub half_planes: Option<DeviceSlice<'a, f16>>,
}

/// `RawArgs` of `preprocess.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawArgs {
    data: DevicePointer<u8>,
    taps: DevicePointer<[i16; 2]>,
    steps: DevicePointer<[u8; 2]>,
    spans: DevicePointer<[u32; 2]>,
    weights: DevicePointer<i32>,
    middle: DevicePointer<u32>,
    stride: u64,
    width: u32,
    height: u32,
    encoding: u32,
    columns: u32,
    first_row: u32,
    rows: u32,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for RawArgs {}

/// `ResultArgs` of `preprocess.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ResultArgs {
    middle: DevicePointer<u32>,
    spans: DevicePointer<[u32; 2]>,
    weights: DevicePointer<i32>,
    image: DevicePointer<u8>,
    planes: DevicePointer<f32>,
    half_planes: DevicePointer<f16>,
    taps: u32,
    columns: u32,
    rows: u32,
    reserved: u32,
}

// SAFETY: the same fields in the same order as in the `.cu` file.
unsafe impl KernelArgument for ResultArgs {}

/// Where each undistorted pixel comes from.
struct Lens {
    taps: DeviceBuffer<[i16; 2]>,
    steps: DeviceBuffer<[u8; 2]>,
}

/// Turns raw images of one size and encoding into network images.
pub struct DevicePreprocessor {
    horizontal: Kernel,
    vertical: Kernel,
    encoding: Encoding,
    raw: (u32, u32),
    raw_bytes: usize,
    stride: u64,
    output: (u32, u32),
    /// Rows of the undistorted image that are read, as first and count.
    rows: (u32, u32),
    lens: Option<Lens>,
    column_spans: DeviceBuffer<[u32; 2]>,
    column_weights: DeviceBuffer<i32>,
    row_spans: DeviceBuffer<[u32; 2]>,
    row_weights: DeviceBuffer<i32>,
    /// Weights of a row.
    row_taps: u32,
    middle: DeviceBuffer<u32>,
}

impl DevicePreprocessor {
    /// What [`DevicePreprocessor::new`] carves, in order.
    pub fn buffers(cpu: &Preprocessor) -> Vec<Spec> {
        let (resampler, undistorter) = cpu.parts();
        let (columns, rows, (first, end)) = resampler.tables();
        let mut buffers = Vec::new();
        if undistorter.is_some() {
            let (width, height) = cpu.input_size();
            buffers.extend([
                Spec::of::<[i16; 2]>(LENS, &[height, width]),
                Spec::of::<[u8; 2]>(LENS_STEPS, &[height, width]),
            ]);
        }
        buffers.extend([
            Spec::of::<[u32; 2]>(COLUMN_SPANS, &[columns.spans.len()]),
            Spec::of::<i32>(COLUMN_WEIGHTS, &[columns.taps, columns.spans.len()]),
            Spec::of::<[u32; 2]>(ROW_SPANS, &[rows.spans.len()]),
            Spec::of::<i32>(ROW_WEIGHTS, &[rows.spans.len(), rows.taps]),
            Spec::of::<u32>(MIDDLE, &[end - first, columns.spans.len()]),
        ]);
        buffers
    }

    /// Takes over the tables of `cpu`, for raw images in `encoding` whose rows lie `stride` bytes apart.
    /// The tables are copied on `stream`, which is waited for.
    ///
    /// # Errors
    /// [`Encoding::bytes`]'s; the arena's; the driver's.
    pub fn new(
        context: &Context,
        arena: &mut DeviceArena,
        stream: &Stream,
        cpu: &Preprocessor,
        encoding: Encoding,
        stride: usize,
    ) -> Result<Self, PreprocessError> {
        let (width, height) = cpu.input_size();
        let raw_bytes = encoding.bytes(width, height, stride)?;
        let (resampler, undistorter) = cpu.parts();
        let (columns, rows, (first, end)) = resampler.tables();
        // The columns' weights tap by tap, so that neighbouring threads read neighbouring ones.
        let count = columns.spans.len();
        let mut across = vec![0; columns.weights.len()];
        for (i, weights) in columns
            .weights
            .chunks_exact(columns.taps.max(1))
            .enumerate()
        {
            for (k, &weight) in weights.iter().enumerate() {
                across[k * count + i] = weight;
            }
        }
        let mut table = Tables { arena, stream };
        let lens = match undistorter {
            Some(undistorter) => {
                let (taps, steps) = undistorter.table();
                Some(Lens {
                    taps: table.send(LENS, &taps)?,
                    steps: table.send(LENS_STEPS, &steps)?,
                })
            }
            None => None,
        };
        Ok(Self {
            horizontal: context.kernel("ms_preprocess_horizontal")?,
            vertical: context.kernel("ms_preprocess_vertical")?,
            encoding,
            raw: (
                super::small("raw columns", width)?,
                super::small("raw rows", height)?,
            ),
            raw_bytes,
            stride: stride as u64,
            output: (
                super::small("columns", count)?,
                super::small("rows", rows.spans.len())?,
            ),
            rows: (
                super::small("first raw row", first)?,
                super::small("raw rows", end - first)?,
            ),
            lens,
            column_spans: table.send(COLUMN_SPANS, &columns.spans)?,
            column_weights: table.send(COLUMN_WEIGHTS, &across)?,
            row_spans: table.send(ROW_SPANS, &rows.spans)?,
            row_weights: table.send(ROW_WEIGHTS, &rows.weights)?,
            row_taps: super::small("weights of a row", rows.taps)?,
            middle: arena.carve(MIDDLE, (end - first) * count)?,
        })
    }

    /// Bytes of a raw image.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// Width and height of the network images.
    pub fn output_size(&self) -> (usize, usize) {
        (self.output.0 as usize, self.output.1 as usize)
    }

    /// Enqueues the two launches that make `out` of `raw`.
    pub fn enqueue(
        &self,
        stream: &Stream,
        raw: DeviceSlice<'_, u8>,
        out: &NetworkImage<'_>,
    ) -> Result<(), CudaError> {
        raw.at_least("bytes of the raw image", self.raw_bytes)?;
        let (columns, rows) = self.output;
        let values = 3 * columns as usize * rows as usize;
        if let Some(image) = out.image {
            image.at_least("bytes of the network image", values)?;
        }
        if let Some(planes) = out.planes {
            planes.at_least("values of the network input", values)?;
        }
        if let Some(planes) = out.half_planes {
            planes.at_least("f16 values of the network input", values)?;
        }
        let first = RawArgs {
            data: raw.pointer(),
            taps: self
                .lens
                .as_ref()
                .map_or(DevicePointer::NULL, |lens| lens.taps.pointer()),
            steps: self
                .lens
                .as_ref()
                .map_or(DevicePointer::NULL, |lens| lens.steps.pointer()),
            spans: self.column_spans.pointer(),
            weights: self.column_weights.pointer(),
            middle: self.middle.pointer(),
            stride: self.stride,
            width: self.raw.0,
            height: self.raw.1,
            encoding: self.encoding as u32,
            columns,
            first_row: self.rows.0,
            rows: self.rows.1,
        };
        let second = ResultArgs {
            middle: self.middle.pointer(),
            spans: self.row_spans.pointer(),
            weights: self.row_weights.pointer(),
            image: out.image.map_or(DevicePointer::NULL, |s| s.pointer()),
            planes: out.planes.map_or(DevicePointer::NULL, |s| s.pointer()),
            half_planes: out.half_planes.map_or(DevicePointer::NULL, |s| s.pointer()),
            taps: self.row_taps,
            columns,
            rows,
            reserved: 0,
        };
        let grid = |rows| Grid {
            blocks: (columns.div_ceil(THREADS), rows, 1),
            threads: (THREADS, 1, 1),
            shared_bytes: 0,
        };
        // SAFETY: the raw image has the bytes that its encoding, size and stride say; the tables are
        // those of this size, so every input that they name is inside it; `middle` has a row for each
        // that is read; every result that is there is long enough.
        unsafe {
            self.horizontal
                .launch(stream, grid(self.rows.1.div_ceil(ROWS)), (first,))?;
            self.vertical.launch(stream, grid(rows), (second,))
        }
    }
}

/// Sends tables to the device.
struct Tables<'a> {
    arena: &'a mut DeviceArena,
    stream: &'a Stream,
}

impl Tables<'_> {
    fn send<T: super::Element>(
        &mut self,
        name: &'static str,
        values: &[T],
    ) -> Result<DeviceBuffer<T>, CudaError> {
        let buffer = self.arena.carve(name, values.len())?;
        self.stream.write(values, buffer.all())?;
        Ok(buffer)
    }
}

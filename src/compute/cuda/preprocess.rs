//! Preprocessing from raw camera image to network input on the device, bit-identical to
//! [`crate::image`].

use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, Stream,
};
use crate::image::encoding::Encoding;
use crate::image::{ImageError, Preprocessor};
use half::f16;

/// Threads per block, and rows per block of the first pass; must match `preprocess.cu`.
const THREADS: u32 = 128;
const ROWS: u32 = 4;

/// Error from creating a device preprocessor.
#[derive(Debug, thiserror::Error)]
pub enum PreprocessError {
    /// The encoding does not match the images.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Destinations of the result; each is optional.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkImage<'a> {
    /// `H × W × 3` bytes, R, G, B.
    pub image: Option<DeviceSlice<'a, u8>>,
    /// `3 × H × W`, `byte / 127.5 − 1`.
    pub planes: Option<DeviceSlice<'a, f32>>,
    /// The planes rounded to f16.
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

/// Source position of each undistorted pixel.
struct Lens {
    taps: DeviceBuffer<[i16; 2]>,
    steps: DeviceBuffer<[u8; 2]>,
}

/// Memory of a [`DevicePreprocessor`].
pub struct PreprocessorBuffers {
    lens: Option<Lens>,
    column_spans: DeviceBuffer<[u32; 2]>,
    column_weights: DeviceBuffer<i32>,
    row_spans: DeviceBuffer<[u32; 2]>,
    row_weights: DeviceBuffer<i32>,
    middle: DeviceBuffer<u32>,
}

impl PreprocessorBuffers {
    /// Buffers for the tables of `cpu`.
    pub fn carve(c: &mut Carver<'_, '_>, cpu: &Preprocessor) -> Result<Self, CudaError> {
        let (resampler, undistorter) = cpu.parts();
        let (columns, rows, (first, end)) = resampler.tables();
        let (width, height) = cpu.input_size();
        Ok(Self {
            lens: match undistorter {
                Some(_) => Some(Lens {
                    taps: c.device("undistortion", &[height, width])?,
                    steps: c.device("undistortion, parts of pixels", &[height, width])?,
                }),
                None => None,
            },
            column_spans: c.device("inputs of columns", &[columns.spans.len()])?,
            column_weights: c.device("weights of columns", &[columns.taps, columns.spans.len()])?,
            row_spans: c.device("inputs of rows", &[rows.spans.len()])?,
            row_weights: c.device("weights of rows", &[rows.spans.len(), rows.taps])?,
            middle: c.device("resampled rows", &[end - first, columns.spans.len()])?,
        })
    }
}

/// Converts raw images of one size and encoding into network images.
pub struct DevicePreprocessor {
    horizontal: Kernel,
    vertical: Kernel,
    encoding: Encoding,
    raw: (u32, u32),
    raw_bytes: usize,
    stride: u64,
    output: (u32, u32),
    /// Rows of the undistorted image that are read: first and count.
    rows: (u32, u32),
    buffers: PreprocessorBuffers,
    /// Number of weights per row.
    row_taps: u32,
}

impl DevicePreprocessor {
    /// Copies the tables of `cpu` on `stream` and waits, for raw images in `encoding` with rows
    /// `stride` bytes apart.
    ///
    /// # Errors
    /// [`Encoding::bytes`]'s; [`CudaError::Length`] for buffers of other tables; the driver's.
    pub fn new(
        context: &Context,
        stream: &Stream,
        buffers: PreprocessorBuffers,
        cpu: &Preprocessor,
        encoding: Encoding,
        stride: usize,
    ) -> Result<Self, PreprocessError> {
        let (width, height) = cpu.input_size();
        let raw_bytes = encoding.bytes(width, height, stride)?;
        let (resampler, undistorter) = cpu.parts();
        let (columns, rows, (first, end)) = resampler.tables();
        // Column weights are stored tap by tap, so that neighbouring threads read neighbouring
        // values.
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
        match (undistorter, &buffers.lens) {
            (Some(undistorter), Some(lens)) => {
                let (taps, steps) = undistorter.table();
                stream.write(&taps, lens.taps.all())?;
                stream.write(&steps, lens.steps.all())?;
            }
            (None, None) => {}
            (wanted, carved) => {
                let error = CudaError::Length {
                    what: "tables of the undistortion",
                    expected: usize::from(wanted.is_some()),
                    found: usize::from(carved.is_some()),
                };
                return Err(error.into());
            }
        }
        stream.write(&columns.spans, buffers.column_spans.all())?;
        stream.write(&across, buffers.column_weights.all())?;
        stream.write(&rows.spans, buffers.row_spans.all())?;
        stream.write(&rows.weights, buffers.row_weights.all())?;
        let middle = buffers.middle.all();
        middle.at_least("resampled rows", (end - first) * count)?;
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
            row_taps: super::small("weights of a row", rows.taps)?,
            buffers,
        })
    }

    /// Size of a raw image in bytes.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// Width and height of the network images.
    pub fn output_size(&self) -> (usize, usize) {
        (self.output.0 as usize, self.output.1 as usize)
    }

    /// Enqueues the two launches that compute `out` from `raw`.
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
        let lens = self.buffers.lens.as_ref();
        let first = RawArgs {
            data: raw.pointer(),
            taps: lens.map_or(DevicePointer::NULL, |lens| lens.taps.pointer()),
            steps: lens.map_or(DevicePointer::NULL, |lens| lens.steps.pointer()),
            spans: self.buffers.column_spans.pointer(),
            weights: self.buffers.column_weights.pointer(),
            middle: self.buffers.middle.pointer(),
            stride: self.stride,
            width: self.raw.0,
            height: self.raw.1,
            encoding: self.encoding as u32,
            columns,
            first_row: self.rows.0,
            rows: self.rows.1,
        };
        let second = ResultArgs {
            middle: self.buffers.middle.pointer(),
            spans: self.buffers.row_spans.pointer(),
            weights: self.buffers.row_weights.pointer(),
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
        // SAFETY: the raw image has the bytes given by its encoding, size and stride; the tables
        // belong to this size, so every input they refer to is inside it; `middle` has a row for
        // each row read; every destination is long enough.
        unsafe {
            self.horizontal
                .launch(stream, grid(self.rows.1.div_ceil(ROWS)), (first,))?;
            self.vertical.launch(stream, grid(rows), (second,))
        }
    }
}

//! Linear layers, convolutions and attention on Hopper: kernels that the tensor memory accelerator feeds
//! (`fed.cuh`, `attend.cuh`), which code for compute capability 9.0 alone holds.

use super::arguments::{self, AttentionArgs, FeedArgs, LinearArgs};
use super::name::{Name, name};
use super::operand::{Addresses, HALF};
use super::size::{DEPTH, Kind, SIZES, kind, size};
use super::step::{Flags, Form, Linear, Map};
use crate::gpu::{Context, CudaError, Extras, Grid, Half, Kernel, Stream, TensorMap};

/// Rows of a convolution's tile.
const ROWS: usize = 128;
/// Linear layers with fewer inputs or outputs are left to the other kernels, which are as fast: measured on one H200.
const MIN_INPUTS: usize = 128;
const MIN_OUTPUTS_OF_ROWS: usize = 64;
/// Convolutions of maps with up to so many pixels are split, as their blocks are few.
const SMALL_MAP: usize = 1024;
/// A convolution's inputs are filled up to multiples of [`DEPTH`], which must not add more than this share.
const MAX_FILLED: f64 = 0.34;
/// Outputs of a convolution up to which the other kernels have narrower tiles.
const MIN_OUTPUTS: usize = 33;
/// Blocks for each multiprocessor from which on two at a time are faster.
const MANY_BLOCKS: usize = 4;

/// A kernel for linear layers or convolutions with one size of tiles.
struct Fed {
    kind: Kind,
    kernel: Kernel,
}

impl Fed {
    fn new(context: &Context, half: Half, kind: Kind) -> Result<Self, CudaError> {
        let fed = Self {
            kind,
            kernel: context.kernel(kind.name.of(half))?,
        };
        fed.kernel.allow_shared_bytes(kind.shared_bytes())?;
        Ok(fed)
    }
}

/// Kernels for convolutions, or for convolutions of `max(x, 0)`.
struct Convolutions {
    /// For small maps.
    split: Fed,
    narrow: Fed,
    wide: Fed,
    /// For many blocks, two on a multiprocessor.
    many: Option<Fed>,
}

/// A convolution's block of `rows` output pixels: the binary logarithm of its width, and how many such rectangles
/// cover an image, the fewest there can be.
fn rectangle(map: &Map, rows: usize) -> (u32, usize) {
    let tiles = |log: u32| {
        let (width, height) = (1 << log, rows >> log);
        map.out_width.div_ceil(width) * map.out_height.div_ceil(height)
    };
    // The squarest of equals.
    let of_equals = |log: u32| (tiles(log), log.abs_diff(3));
    let best = (0..=rows.ilog2()).min_by_key(|&log| of_equals(log));
    let best = best.unwrap_or_default();
    (best, tiles(best))
}

/// Whether these kernels are faster for a convolution, from its map and outputs alone.
fn suits(map: &Map, outputs: usize) -> bool {
    let filled = map.channels.next_multiple_of(DEPTH) - map.channels;
    map.step == 1 && outputs >= MIN_OUTPUTS && filled as f64 <= MAX_FILLED * map.channels as f64
}

/// Attention with heads of so many channels.
const HEAD: usize = 64;
/// Queries of a block.
const QUERIES: usize = 64;

/// Attention with so many keys at a time.
struct Attend {
    kernel: Kernel,
    keys: usize,
    threads: u32,
    shared_bytes: u32,
}

impl Attend {
    fn new(
        context: &Context,
        half: Half,
        name: Name,
        keys: usize,
        stages: usize,
        parts: usize,
    ) -> Result<Self, CudaError> {
        let kernel = context.kernel(name.of(half))?;
        // Queries, keys and values with two barriers each, and the queries' barrier.
        let stages = parts * stages;
        let rows = QUERIES + 2 * stages * keys;
        let shared_bytes = (rows * HEAD * HALF + 8 + 4 * 8 * stages) as u32;
        kernel.allow_shared_bytes(shared_bytes)?;
        Ok(Self {
            kernel,
            keys,
            threads: (parts * 128 + 32) as u32,
            shared_bytes,
        })
    }
}

/// All kernels of this file.
pub(super) struct Feeds {
    context: Context,
    half: Half,
    /// For linear layers, as [`SIZES`].
    sizes: Vec<Fed>,
    /// Which of those that suit a linear layer is taken, if not the one that is expected to be the fastest.
    only: Option<usize>,
    pixels: Convolutions,
    positive: Convolutions,
    /// For one image, and for several at once; the same where their blocks leave multiprocessors without work.
    attend: [Attend; 2],
    attend_few: [Attend; 2],
}

impl Feeds {
    /// `None` where the program holds no code for them that this GPU runs.
    pub(super) fn new(
        context: &Context,
        half: Half,
        only: Option<usize>,
    ) -> Result<Option<Self>, CudaError> {
        let several = match Attend::new(context, half, name!("ms_native_attend_64"), 64, 4, 1) {
            Err(CudaError::NoKernel { .. }) => return Ok(None),
            attend => attend?,
        };
        let one = Attend::new(context, half, name!("ms_native_attend_96"), 96, 3, 1)?;
        let quarters = Attend::new(context, half, name!("ms_native_attend_quarters"), 48, 2, 4)?;
        let halves = Attend::new(context, half, name!("ms_native_attend_halves"), 48, 2, 2)?;
        let fed = |kind| Fed::new(context, half, kind);
        Ok(Some(Self {
            sizes: SIZES.into_iter().map(fed).collect::<Result<_, _>>()?,
            only,
            pixels: Convolutions {
                split: fed(kind(name!("ms_native_fed_conv_split"), ROWS, 64, 8, 2))?,
                narrow: fed(kind(name!("ms_native_fed_conv_64"), ROWS, 64, 4, 1))?,
                wide: fed(kind(name!("ms_native_fed_conv_128"), ROWS, 128, 6, 1))?,
                many: Some(fed(kind(
                    name!("ms_native_fed_conv_128_many"),
                    ROWS,
                    128,
                    3,
                    1,
                ))?),
            },
            positive: Convolutions {
                split: fed(kind(name!("ms_native_fed_conv_relu_split"), ROWS, 64, 8, 2))?,
                narrow: fed(kind(name!("ms_native_fed_conv_relu_64"), ROWS, 64, 4, 1))?,
                wide: fed(kind(name!("ms_native_fed_conv_relu_128"), ROWS, 128, 6, 1))?,
                many: None,
            },
            attend: [one, several],
            attend_few: [quarters, halves],
            context: context.clone(),
            half,
        }))
    }

    /// The kernel for a layer, or `None` where the others are faster. Whether a layer comes here, and whether its
    /// inputs are split, does not depend on how many images there are: a batch has the same bits. Tiles of all sizes
    /// add up in the same order.
    fn best(&self, layer: &Linear) -> Option<&Fed> {
        if layer.scale.is_some() {
            return None;
        }
        let multiprocessors = self.context.info().multiprocessors.max(1) as usize;
        match layer.form {
            Form::Convolution(map) => {
                if !suits(&map, layer.outputs) {
                    return None;
                }
                let positive = layer.flags.contains(Flags::RELU_INPUT);
                let kinds = match positive {
                    true => &self.positive,
                    false => &self.pixels,
                };
                if map.out_height * map.out_width <= SMALL_MAP {
                    return Some(&kinds.split);
                }
                if layer.outputs <= kinds.narrow.kind.outputs {
                    return Some(&kinds.narrow);
                }
                let images = layer.rows / (map.out_height * map.out_width);
                let columns = layer.outputs.div_ceil(kinds.wide.kind.outputs);
                let blocks = images * rectangle(&map, ROWS).1 * columns * layer.groups;
                match &kinds.many {
                    Some(many) if blocks >= MANY_BLOCKS * multiprocessors => Some(many),
                    _ => Some(&kinds.wide),
                }
            }
            Form::Rows | Form::Patches { .. } => {
                if layer.inputs < MIN_INPUTS || layer.outputs < MIN_OUTPUTS_OF_ROWS {
                    return None;
                }
                self.sizes.get(size(layer, multiprocessors, self.only))
            }
        }
    }

    /// The name of the kernel for a layer, or `None` where the others are faster.
    pub(super) fn name_of(&self, layer: &Linear) -> Option<&'static str> {
        Some(self.best(layer)?.kernel.name())
    }

    /// The name of the kernel for attention of so many items with `heads` heads of `head` channels, or `None` without
    /// one.
    pub(super) fn attention_name(
        &self,
        (heads, head): (usize, usize),
        tokens: usize,
        items: usize,
    ) -> Option<&'static str> {
        (head == HEAD).then(|| self.attend(heads, tokens, items).kernel.name())
    }

    /// The kernel for so many items, of which the encoder has one and the decoder never has: more of them must not
    /// change the bits.
    fn attend(&self, heads: usize, tokens: usize, items: usize) -> &Attend {
        let several = items > 1;
        let blocks = heads * tokens.div_ceil(QUERIES) * (1 + usize::from(several));
        let kernels = match blocks <= self.context.info().multiprocessors as usize {
            true => &self.attend_few,
            false => &self.attend,
        };
        &kernels[usize::from(several)]
    }

    /// Enqueues a layer; `false`: none of these kernels suits it.
    ///
    /// # Safety
    /// As for [`super::plan::Plan::enqueue`].
    pub(super) unsafe fn linear(
        &self,
        stream: &Stream,
        layer: &Linear,
        addresses: &Addresses,
        early: bool,
    ) -> Result<bool, CudaError> {
        let Some(fed) = self.best(layer) else {
            return Ok(false);
        };
        let args = arguments::linear(layer, addresses);
        let Kind {
            rows,
            outputs,
            parts,
            ..
        } = fed.kind;
        let (a, feed, tiles) = match layer.form {
            Form::Convolution(map) => self.pixels_of(layer, &args, &map)?,
            Form::Rows | Form::Patches { .. } => self.rows_of(layer, &args, rows)?,
        };
        let weight = TensorMap::new(
            &self.context,
            self.half,
            args.weight,
            [layer.inputs, layer.outputs, layer.groups],
            [1, layer.inputs, layer.inputs * layer.outputs],
            [outputs as u32, 1],
        )?;
        let grid = Grid {
            blocks: (
                tiles as u32,
                layer.outputs.div_ceil(outputs) as u32,
                (layer.groups * parts) as u32,
            ),
            threads: (fed.kind.threads(), 1, 1),
            shared_bytes: fed.kind.shared_bytes(),
        };
        let extras = Extras {
            cluster: (1, 1, parts as u32),
            early,
        };
        // SAFETY: the operands have room for this step, see `Kernels::launch`, and the maps are of the same operands;
        // the kernel waits for launches before it.
        unsafe {
            fed.kernel
                .launch_with(stream, grid, extras, (args, feed, a, weight))
        }?;
        Ok(true)
    }

    /// The rows of `a` in boxes of `rows`, and how many boxes there are.
    fn rows_of(
        &self,
        layer: &Linear,
        args: &LinearArgs,
        rows: usize,
    ) -> Result<(TensorMap, FeedArgs, usize), CudaError> {
        // With one group there is no distance between groups, and the driver wants one.
        let group = layer.a_group.max(layer.a_stride);
        let map = TensorMap::new(
            &self.context,
            self.half,
            args.a,
            [layer.inputs, layer.rows, layer.groups],
            [1, layer.a_stride, group],
            [rows as u32, 1],
        )?;
        Ok((map, FeedArgs::default(), layer.rows.div_ceil(rows)))
    }

    /// The input of a convolution in rectangles of [`ROWS`] pixels.
    fn pixels_of(
        &self,
        layer: &Linear,
        args: &LinearArgs,
        map: &Map,
    ) -> Result<(TensorMap, FeedArgs, usize), CudaError> {
        let images = layer.rows / (map.out_height * map.out_width);
        let (width_log2, each) = rectangle(map, ROWS);
        let (width, height) = (1 << width_log2, ROWS >> width_log2);
        // The images of a group lie behind each other, and the groups do.
        let line = map.width * map.channels;
        let feed = FeedArgs {
            across: map.out_width.div_ceil(width) as i32,
            each: each as i32,
            images: images as i32,
            width_log2: width_log2 as i32,
        };
        let a = TensorMap::new(
            &self.context,
            self.half,
            args.a,
            [map.channels, map.width, map.height, images * layer.groups],
            [1, map.channels, line, map.height * line],
            [width as u32, height as u32],
        )?;
        Ok((a, feed, images * each))
    }

    /// Enqueues attention of `wanted` items, whose arguments are `args`; `false`: not with heads of `head` channels.
    ///
    /// # Safety
    /// As for [`super::plan::Plan::enqueue`].
    pub(super) unsafe fn attention(
        &self,
        stream: &Stream,
        args: AttentionArgs,
        (heads, head, wanted): (usize, usize, usize),
        early: bool,
    ) -> Result<bool, CudaError> {
        if head != HEAD {
            return Ok(false);
        }
        let (tokens, items) = (args.tokens as usize, args.items as usize);
        let attend = self.attend(heads, tokens, items);
        let map = |which: usize, rows: usize| {
            TensorMap::new(
                &self.context,
                self.half,
                args.at[which],
                [heads * head, tokens, items],
                [1, args.stride[which] as usize, args.item[which] as usize],
                [rows as u32, 1],
            )
        };
        let (q, k, v) = (map(0, QUERIES)?, map(1, attend.keys)?, map(2, attend.keys)?);
        let grid = Grid {
            blocks: (tokens.div_ceil(QUERIES) as u32, heads as u32, wanted as u32),
            threads: (attend.threads, 1, 1),
            shared_bytes: attend.shared_bytes,
        };
        let extras = Extras {
            early,
            ..Extras::NONE
        };
        // SAFETY: as for `linear`.
        unsafe { (attend.kernel).launch_with(stream, grid, extras, (args, q, k, v)) }?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::{Map, rectangle, suits};

    fn map(height: usize, width: usize) -> Map {
        Map {
            height,
            width,
            out_height: height,
            out_width: width,
            channels: 64,
            step: 1,
        }
    }

    #[test]
    fn strides_and_thin_maps_are_left_to_the_other_kernels() {
        let of = |channels, step| Map {
            channels,
            step,
            ..map(24, 32)
        };
        for channels in [48, 64, 96, 192, 768] {
            assert!(suits(&of(channels, 1), 64), "{channels}");
        }
        assert!(!suits(&of(24, 1), 64));
        assert!(!suits(&of(64, 2), 64));
        assert!(!suits(&of(64, 1), 32));
    }

    #[test]
    fn rectangles_cover_maps_with_few_blocks() {
        // 16 × 8 pixels fit without rest; 12 × 16 take 128 × 1 no better than 8 × 16.
        assert_eq!(rectangle(&map(24, 32), 128), (4, 6));
        assert_eq!(rectangle(&map(12, 16), 128).1, 2);
        assert_eq!(rectangle(&map(1, 200), 128), (7, 2));
        assert_eq!(rectangle(&map(1, 1), 128).1, 1);
        for (height, width) in [(3, 5), (17, 9), (384, 512)] {
            let (log, tiles) = rectangle(&map(height, width), 128);
            assert!(tiles * 128 >= height * width);
            assert!(log <= 7);
        }
    }
}

//! The kernels that do a plan's steps.

use super::arguments::{
    self, AttentionArgs, ConvertArgs, CopyArgs, DescriptorArgs, EnlargeArgs, EnlargedArgs,
    NormArgs, PatchArgs, PointArgs, Sanitising,
};
use super::enlarged;
use super::feed::Feeds;
use super::name::{Name, name};
use super::operand::{
    ATTENTION_TILE, Addresses, HEADS, Operand, SINGLE, attention_shared_bytes, points_shared_bytes,
};
use super::step::{Linear, Step};
use super::tile::{Block, NARROW, Quantised, SMALL, Tile, WIDE};
use crate::gpu::{Arguments, Context, CudaError, Extras, Grid, Half, Kernel, Stream};

/// Which kernels run the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelSet {
    /// Those that are fastest on the GPU.
    #[default]
    Fastest,
    /// Those that run from compute capability 8.0 on.
    Portable,
    /// The fastest, but on Hopper all linear layers with tiles of one size: of the sizes that suit a layer the one of
    /// this number. For measurements, and to compare the sizes' results.
    Size(usize),
}

impl KernelSet {
    /// The environment variable that chooses, for measurements: `fastest`, `portable` or `size-NUMBER`.
    pub const VARIABLE: &'static str = "MAST3R_NATIVE_KERNELS";

    /// What [`KernelSet::VARIABLE`] says, or the fastest.
    ///
    /// # Errors
    /// The variable's value, if it is another one.
    pub fn from_environment() -> Result<Self, String> {
        match std::env::var(Self::VARIABLE).as_deref() {
            Err(std::env::VarError::NotPresent) | Ok("" | "fastest") => Ok(Self::Fastest),
            Ok("portable") => Ok(Self::Portable),
            Ok(other) => {
                let size = other.strip_prefix("size-").and_then(|n| n.parse().ok());
                size.map(Self::Size).ok_or_else(|| other.to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// All kernels of the network.
pub(super) struct Kernels {
    context: Context,
    /// On Hopper.
    feeds: Option<Feeds>,
    narrow: Tile,
    /// For all other layers.
    tiles: Vec<Tile>,
    /// For layers whose weights are E4M3 numbers.
    quantised: Quantised,
    /// Heads of 16, 32 and 64 channels.
    attention: [Kernel; 3],
    patches: Kernel,
    /// Rows of up to 256 and up to 1024 values.
    norms: [Kernel; 2],
    convert: Kernel,
    copy: Kernel,
    enlarge: Kernel,
    /// As [`enlarged::KINDS`].
    enlarged: Vec<Kernel>,
    points: Kernel,
    descriptors: Kernel,
}

impl Kernels {
    pub(super) fn new(context: &Context, set: KernelSet, half: Half) -> Result<Self, CudaError> {
        let kernel = |name: Name| context.kernel(name.of(half));
        let mut tiles = vec![Tile::new(context, half, &SMALL)?];
        let (feeds, wide) = match set {
            KernelSet::Fastest => (Feeds::new(context, half, None)?, &WIDE[..]),
            KernelSet::Size(size) => (Feeds::new(context, half, Some(size))?, &WIDE[..]),
            KernelSet::Portable => (None, &[][..]),
        };
        for kind in wide {
            match Tile::new(context, half, kind) {
                Err(CudaError::NoKernel { .. }) => {}
                tile => tiles.push(tile?),
            }
        }
        Ok(Self {
            narrow: Tile::new(context, half, &NARROW)?,
            quantised: Quantised::new(context)?,
            tiles,
            attention: [
                kernel(name!("ms_native_attention_16"))?,
                kernel(name!("ms_native_attention_32"))?,
                kernel(name!("ms_native_attention_64"))?,
            ],
            patches: kernel(name!("ms_native_patches"))?,
            norms: [
                kernel(name!("ms_native_norm_256"))?,
                kernel(name!("ms_native_norm_1024"))?,
            ],
            convert: kernel(name!("ms_native_convert"))?,
            copy: context.kernel("ms_native_copy")?,
            enlarge: kernel(name!("ms_native_enlarge"))?,
            enlarged: enlarged::KINDS
                .iter()
                .map(|kind| {
                    let kernel = kernel(kind.name)?;
                    kernel.allow_shared_bytes(kind.shared_bytes())?;
                    Ok(kernel)
                })
                .collect::<Result<_, CudaError>>()?,
            points: kernel(name!("ms_native_points"))?,
            descriptors: kernel(name!("ms_native_descriptors"))?,
            context: context.clone(),
            feeds,
        })
    }

    /// Launches a kernel that waits for the launches before it if it starts `early`.
    ///
    /// # Safety
    /// As for [`Kernel::launch`].
    unsafe fn start<A: Arguments>(
        kernel: &Kernel,
        stream: &Stream,
        grid: Grid,
        early: bool,
        arguments: A,
    ) -> Result<(), CudaError> {
        if early {
            let extras = Extras {
                early,
                ..Extras::NONE
            };
            // SAFETY: the caller's promise; all kernels of this folder wait.
            unsafe { kernel.launch_with(stream, grid, extras, arguments) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { kernel.launch(stream, grid, arguments) }
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The tile for a layer: of those that there is code for the one that is expected to take the least time.
    fn tile(&self, layer: &Linear) -> &Tile {
        if layer.outputs <= self.narrow.block.outputs {
            return &self.narrow;
        }
        let multiprocessors = self.context.info().multiprocessors;
        let time = |tile: &&Tile| tile.time(layer, multiprocessors);
        let best = (self.tiles.iter()).min_by(|a, b| time(a).total_cmp(&time(b)));
        best.unwrap_or(&self.narrow)
    }

    /// The kernel for a layer that is none of Hopper's, and its blocks.
    fn linear(&self, layer: &Linear) -> (&Kernel, &Block) {
        match layer.scale {
            Some(_) => (&self.quantised.kernel, &Quantised::BLOCK),
            None => {
                let tile = self.tile(layer);
                (tile.kernel(layer), &tile.block)
            }
        }
    }

    /// The kernel for attention with heads of `head` channels, without Hopper's.
    fn attention(&self, head: usize) -> &Kernel {
        let which = HEADS.iter().position(|&known| known == head);
        &self.attention[which.unwrap_or(0)]
    }

    /// The kernel for convolutions of enlarged maps of so many channels, and its kind.
    fn enlarged(&self, channels: usize, points: bool) -> (&Kernel, &enlarged::Kind) {
        let which = enlarged::KINDS
            .iter()
            .position(|kind| (kind.channels, kind.points) == (channels, points));
        let which = which.unwrap_or(0);
        (&self.enlarged[which], &enlarged::KINDS[which])
    }

    /// The kernel for rows of `width` values.
    fn norm(&self, width: usize) -> &Kernel {
        &self.norms[usize::from(width > 256)]
    }

    /// The name of the kernel that does a step.
    pub(super) fn name_of(&self, step: &Step) -> &'static str {
        let feeds = self.feeds.as_ref();
        match *step {
            Step::Linear(ref layer) => feeds
                .and_then(|feeds| feeds.name_of(layer))
                .unwrap_or_else(|| self.linear(layer).0.name()),
            Step::Attention {
                heads,
                head,
                tokens,
                items,
                ..
            } => feeds
                .and_then(|feeds| feeds.attention_name((heads, head), tokens, items))
                .unwrap_or_else(|| self.attention(head).name()),
            Step::Patches { .. } => self.patches.name(),
            Step::Norm { width, .. } => self.norm(width).name(),
            Step::Convert { .. } => self.convert.name(),
            Step::Copy { .. } => self.copy.name(),
            Step::Enlarge { .. } => self.enlarge.name(),
            Step::Enlarged {
                channels, points, ..
            } => self.enlarged(channels, points.is_some()).0.name(),
            Step::Points { .. } => self.points.name(),
            Step::Descriptors { .. } => self.descriptors.name(),
        }
    }

    /// Enqueues one step; `follows`: the launch ahead of it in the stream is a step of the same plan.
    ///
    /// # Safety
    /// As for [`super::plan::Plan::enqueue`].
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        step: &Step,
        addresses: &Addresses,
        follows: bool,
    ) -> Result<(), CudaError> {
        // Only this code is known to wait: on other GPUs, older code that the driver compiled may run.
        let early = follows && self.feeds.is_some();
        let at = |operand| addresses.of(operand);
        // A plan's operands have room for all that its steps touch, because the plan derives both from the same
        // shapes; that the addresses are those of the operands is the caller's promise.
        match *step {
            Step::Linear(ref layer) => {
                if let Some(feeds) = &self.feeds {
                    // SAFETY: the caller's promise.
                    if unsafe { feeds.linear(stream, layer, addresses, early) }? {
                        return Ok(());
                    }
                }
                let (kernel, block) = self.linear(layer);
                let grid = block.grid(layer);
                // SAFETY: the operands have room for this step, see above.
                unsafe {
                    Self::start(
                        kernel,
                        stream,
                        grid,
                        early,
                        (arguments::linear(layer, addresses),),
                    )
                }
            }
            Step::Attention {
                inputs,
                out,
                tokens,
                heads,
                head,
                wanted,
                items,
                shift,
            } => {
                let strides = [inputs[0].1, inputs[1].1, inputs[2].1, heads * head];
                let args = AttentionArgs {
                    at: [at(inputs[0].0), at(inputs[1].0), at(inputs[2].0), at(out)],
                    item: strides.map(|stride| (tokens * stride) as i64),
                    stride: strides.map(|stride| stride as i32),
                    tokens: tokens as i32,
                    items: items as i32,
                    shift: shift as i32,
                };
                if let Some(feeds) = &self.feeds {
                    // SAFETY: the caller's promise.
                    if unsafe { feeds.attention(stream, args, (heads, head, wanted), early) }? {
                        return Ok(());
                    }
                }
                let grid = Grid {
                    blocks: (
                        tokens.div_ceil(ATTENTION_TILE) as u32,
                        heads as u32,
                        wanted as u32,
                    ),
                    threads: (128, 1, 1),
                    shared_bytes: attention_shared_bytes(head),
                };
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(self.attention(head), stream, grid, early, (args,)) }
            }
            Step::Patches {
                height,
                width,
                patch,
                out,
                stride,
            } => {
                let tokens = height / patch * (width / patch);
                let args = PatchArgs {
                    planes: addresses.planes,
                    out: at(out),
                    height: height as i32,
                    width: width as i32,
                    patch: patch as i32,
                    stride: stride as i32,
                    tokens: tokens as i32,
                };
                let grid = Grid::over(tokens * stride / 2, 256);
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(&self.patches, stream, grid, early, (args,)) }
            }
            Step::Norm {
                x,
                gain,
                out,
                stride,
                out_f32,
                rows,
                width,
                epsilon,
            } => {
                let args = NormArgs {
                    x: at(x),
                    scale: at(gain[0]),
                    offset: at(gain[1]),
                    out: at(out),
                    out_f32: at(out_f32),
                    rows: rows as i32,
                    width: width as i32,
                    out_stride: stride as i32,
                    epsilon: f32::from_bits(epsilon),
                };
                // A warp a row.
                let grid = Grid::over(rows * 32, 128);
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(self.norm(width), stream, grid, early, (args,)) }
            }
            Step::Convert {
                views,
                wanted,
                items,
                tokens,
                width,
                partner,
                out,
                stride,
            } => {
                let args = ConvertArgs {
                    views: views.map(at),
                    out: at(out),
                    tokens: tokens as i32,
                    width: width as i32,
                    out_stride: stride as i32,
                    items: items as i32,
                    partner: i32::from(partner),
                    // The decoder's own tokens are binary32.
                    half: i32::from(
                        addresses.half_tokens && matches!(views[0], Operand::External(_)),
                    ),
                };
                let mut grid = Grid::over(items * tokens * width / 4, 256);
                grid.blocks.1 = wanted as u32;
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(&self.convert, stream, grid, early, (args,)) }
            }
            Step::Copy { from, to, bytes } => {
                // 16 bytes a thread.
                let args = CopyArgs {
                    from: at(from),
                    to: at(to),
                    chunks: (bytes / 16) as i32,
                };
                let grid = Grid::over(bytes / 16, 256);
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(&self.copy, stream, grid, early, (args,)) }
            }
            Step::Enlarge {
                x,
                out,
                images,
                channels,
                from,
                full,
                kept,
            } => {
                let args = EnlargeArgs {
                    x: at(x),
                    out: at(out),
                    images: images as i32,
                    height: from[0] as i32,
                    width: from[1] as i32,
                    channels: channels as i32,
                    full: full.map(|n| n as i32),
                    kept: kept.map(|n| n as i32),
                };
                let mut grid = Grid::over(kept[1] * channels / 8, 256);
                grid.blocks.1 = kept[0] as u32;
                grid.blocks.2 = images as u32;
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(&self.enlarge, stream, grid, early, (args,)) }
            }
            Step::Enlarged {
                x,
                weight,
                bias,
                out,
                points,
                dim,
                views,
                images,
                channels,
                from,
                to,
                ..
            } => {
                let output = |part| [0, 1].map(|view| addresses.outputs[view][part]);
                let of_points = points.unwrap_or([Operand::None; 2]).map(at);
                let args = EnlargedArgs {
                    x: at(x),
                    weight: at(Operand::Weight(weight)),
                    bias: at(Operand::Weight(bias)),
                    out: at(out),
                    point_weight: of_points[0],
                    point_bias: of_points[1],
                    points: output(0),
                    confidence: output(1),
                    sanitising: [0, 1].map(|view| sanitising(addresses, view, dim)),
                    images: images as i32,
                    height: from[0] as i32,
                    width: from[1] as i32,
                    out_height: to[0] as i32,
                    out_width: to[1] as i32,
                };
                let (kernel, kind) = self.enlarged(channels, points.is_some());
                let grid = Grid {
                    blocks: (enlarged::tiles(to) as u32, images as u32, views as u32),
                    threads: (enlarged::THREADS, 1, 1),
                    shared_bytes: kind.shared_bytes(),
                };
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(kernel, stream, grid, early, (args,)) }
            }
            Step::Points {
                x,
                weight,
                bias,
                view,
                item,
                pixels,
                channels,
                dim,
            } => {
                // Threads of a pixel: a power of two, and no more than there are 16-byte groups.
                let lanes = 1 << (channels / 8).clamp(1, 16).ilog2();
                let first = item * pixels;
                let output = |part: usize, values| {
                    addresses.outputs[view % 2][part] + (first * values * SINGLE) as u64
                };
                let of_view = sanitising(addresses, view, dim);
                let sanitising = Sanitising {
                    unusable: match of_view.unusable {
                        0 => 0,
                        counts => counts + (item * size_of::<u32>()) as u64,
                    },
                    descriptors: output(2, dim),
                    quality: output(3, 1),
                    ..of_view
                };
                let args = PointArgs {
                    x: at(x),
                    weight: at(weight),
                    bias: at(bias),
                    points: output(0, 3),
                    confidence: output(1, 1),
                    sanitising,
                    pixels: pixels as i32,
                    channels: channels as i32,
                    lanes,
                };
                // As in `heads.cu`: pixels of a thread, one after the other.
                const STEPS: usize = 8;
                let grid = Grid::over(pixels.div_ceil(STEPS) * lanes as usize, 128);
                let grid = grid.shared(points_shared_bytes(channels));
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(&self.points, stream, grid, early, (args,)) }
            }
            Step::Descriptors {
                x,
                views,
                items,
                height,
                width,
                patch,
                dim,
                stride,
            } => {
                let output = |part| [0, 1].map(|view| addresses.outputs[view][part]);
                let args = DescriptorArgs {
                    x: at(x),
                    descriptors: output(2),
                    confidence: output(3),
                    unusable: addresses.unusable,
                    items: items as i32,
                    height: height as i32,
                    width: width as i32,
                    patch: patch as i32,
                    dim: dim as i32,
                    stride: stride as i32,
                };
                let mut grid = Grid::over(items * height * width, 128);
                grid.blocks.1 = views as u32;
                // SAFETY: the operands have room for this step, see above.
                unsafe { Self::start(&self.descriptors, stream, grid, early, (args,)) }
            }
        }
    }
}

/// What the last step of view `view` reads and writes to sanitise its outputs.
fn sanitising(addresses: &Addresses, view: usize, dim: usize) -> Sanitising {
    let view = view % 2;
    let [_, _, descriptors, quality] = addresses.outputs[view];
    Sanitising {
        unusable: addresses.unusable[view],
        descriptors,
        quality,
        dim: dim as u64,
    }
}

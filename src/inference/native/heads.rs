//! The plan of the dense heads: DPT for points and their confidence, an MLP with a pixel shuffle for descriptors
//! and theirs. The wanted views' heads are groups of every launch.

use super::enlarged;
use super::layer::{Layer, padded};
use super::layout::{Layout, Rows};
use super::operand::{HALF, Operand, SINGLE};
use super::pairs::Pairs;
use super::step::{Flags, Form, Linear, Map, Step, Summand};
use super::weights::StoredLayer;
use crate::inference::InferenceError;
use crate::network::Network;

/// A map of the wanted views, `views × items × height × width × channels`.
#[derive(Debug, Clone, Copy)]
pub(super) struct DenseMap {
    at: Operand,
    height: usize,
    width: usize,
    channels: usize,
}

/// How a convolution is done beside its weights.
#[derive(Debug, Clone, Copy)]
struct How {
    flags: Flags,
    step: usize,
    /// Maps that are added to the outputs.
    add: [Option<DenseMap>; 2],
}

const PLAIN: How = How {
    flags: Flags::NONE,
    step: 1,
    add: [None; 2],
};

impl Layout<'_> {
    /// Both heads of the wanted views, from the maps of the four hooks; `joined` are the rows with the first
    /// and the last tokens side by side.
    pub(super) fn heads(
        &mut self,
        pairs: Pairs,
        reassembled: &[DenseMap; 4],
        joined: Rows,
    ) -> Result<(), InferenceError> {
        // The steps of the points' first maps are too small to fill the GPU.
        self.draft.set_aside(true);
        self.descriptors(pairs, joined)?;
        self.draft.set_aside(false);
        self.points(pairs, reassembled)
    }

    /// The DPT head: four maps to points and confidences.
    fn points(&mut self, pairs: Pairs, reassembled: &[DenseMap; 4]) -> Result<(), InferenceError> {
        let [first, second] = self.architecture.output_dims;
        let feature = self.architecture.feature_dim;
        // From the coarsest map to the finest.
        let mut fused: Option<DenseMap> = None;
        for level in (0..4).rev() {
            let fusion = format!("dpt.scratch.refinenet{}", level + 1);
            let map = reassembled[level];
            let sum = match fused {
                None => map,
                Some(coarser) => {
                    let unit = format!("{fusion}.resConfUnit1");
                    self.residual(pairs, &unit, map, Some(coarser))?
                }
            };
            let sum = self.residual(pairs, &format!("{fusion}.resConfUnit2"), sum, None)?;
            // The official order is upsample, then 1×1 convolution. Interpolation weights sum to one, so the two
            // commute, and this way round costs a quarter.
            let projected = self.project(pairs, &format!("{fusion}.out_conv"), sum)?;
            let full = doubled(projected);
            // An odd number of token rows or columns was rounded up when the coarsest map halved.
            let kept = match level {
                3 => [reassembled[2].height, reassembled[2].width],
                _ => full,
            };
            fused = Some(match level {
                0 => projected,
                _ => self.enlarge(pairs.views() * pairs.items(), projected, full, kept),
            });
        }
        let Some(finest) = fused else {
            unreachable!("four levels were fused");
        };
        let map = self.convolve_enlarged(pairs, "dpt.head.0", (finest, feature))?;
        let size = [self.size.height, self.size.width];
        let [weight, bias] = self.last_layer(second)?;
        let layer = self.both("dpt.head.2", |network, name| {
            Layer::convolution(network, name, first)
        })?;
        if enlarged::suits(map.channels, layer.outputs, true) {
            // This step sanitises the descriptors, too.
            self.draft.join();
            let points = Some([weight, bias]);
            self.push_enlarged(pairs, (map, layer), (Operand::None, points), size);
            return Ok(());
        }
        // One image after the other: these maps are the largest of all, and one of them fills the GPU.
        let each = map.height * map.width * map.channels * HALF;
        for (view, item) in (0..pairs.views()).flat_map(|v| (0..pairs.items()).map(move |i| (v, i)))
        {
            let of_image = DenseMap {
                at: map.at.offset((view * pairs.items() + item) * each),
                ..map
            };
            let layer = StoredLayer {
                weight: layer.weight + view * layer.outputs * layer.inputs * HALF,
                bias: layer.bias + view * layer.outputs * SINGLE,
                ..layer
            };
            let enlarged = self.enlarge(1, of_image, size, size);
            let how = How {
                flags: Flags::RELU,
                ..PLAIN
            };
            let last = self.push_convolution((1, 1), layer, enlarged, how);
            if (view, item) == (0, 0) {
                // This step sanitises the descriptors, too.
                self.draft.join();
            }
            self.draft.push(Step::Points {
                x: last.at,
                weight: weight.offset(view * 4 * last.channels * SINGLE),
                bias: bias.offset(view * 4 * SINGLE),
                view,
                item,
                pixels: last.height * last.width,
                channels: last.channels,
                dim: self.architecture.descriptor_dim,
            });
        }
        Ok(())
    }

    /// Weight and bias of the layer of points, whose inputs are `second` channels.
    fn last_layer(&mut self, second: usize) -> Result<[Operand; 2], InferenceError> {
        let values = |part: &'static str| {
            move |network: &Network| {
                let width = padded(second);
                let head = |view: usize| {
                    let stored =
                        network.weight(&format!("downstream_head{}.dpt.head.4.{part}", view + 1));
                    match part {
                        "bias" => stored,
                        _ => {
                            let mut rows = vec![0.0; 4 * width];
                            let both = rows
                                .chunks_exact_mut(width)
                                .zip(stored.chunks_exact(second));
                            both.for_each(|(to, from)| to[..second].copy_from_slice(from));
                            rows
                        }
                    }
                };
                [head(0), head(1)].concat()
            }
        };
        let weight = self.source.values("dpt.head.4.weight", values("weight"))?;
        let bias = self.source.values("dpt.head.4.bias", values("bias"))?;
        Ok([weight, bias].map(Operand::Weight))
    }

    /// The 3×3 convolution called `name` of a map of twice the size, of `channels` channels that mean something.
    fn convolve_enlarged(
        &mut self,
        pairs: Pairs,
        name: &str,
        (x, channels): (DenseMap, usize),
    ) -> Result<DenseMap, InferenceError> {
        let [height, width] = doubled(x);
        let layer = self.both(name, |network, name| {
            Layer::convolution(network, name, channels)
        })?;
        if !enlarged::suits(x.channels, layer.outputs, false) {
            let images = pairs.views() * pairs.items();
            let map = self.enlarge(images, x, [height, width], [height, width]);
            return self.convolve(pairs, name, (map, channels), PLAIN);
        }
        let images = pairs.views() * pairs.items();
        let out = self.halves(images * height * width * layer.outputs);
        self.push_enlarged(pairs, (x, layer), (out, None), [height, width]);
        Ok(DenseMap {
            at: out,
            height,
            width,
            channels: layer.outputs,
        })
    }

    /// The convolution `layer` of `x` enlarged to `to` rows and columns, into a map or with the layer of points.
    fn push_enlarged(
        &mut self,
        pairs: Pairs,
        (x, layer): (DenseMap, StoredLayer),
        (out, points): (Operand, Option<[Operand; 2]>),
        to: [usize; 2],
    ) {
        self.draft.push(Step::Enlarged {
            x: x.at,
            weight: layer.weight,
            bias: layer.bias,
            out,
            points,
            dim: self.architecture.descriptor_dim,
            views: pairs.views(),
            images: pairs.items(),
            channels: x.channels,
            outputs: layer.outputs,
            from: [x.height, x.width],
            to,
        });
    }

    /// Tokens of one hook as a map at 4, 2, 1 or 1/2 times the token grid, `feature_dim` channels.
    pub(super) fn reassemble(
        &mut self,
        pairs: Pairs,
        level: usize,
        tokens: Rows,
    ) -> Result<DenseMap, InferenceError> {
        let dim = self.architecture.layer_dims[level];
        let (height, width) = (self.size.rows(), self.size.columns());
        let rows = pairs.items() * self.size.tokens();
        let name = format!("dpt.act_postprocess.{level}");
        let layer = self.both(&format!("{name}.0"), Layer::linear)?;
        let projected = self.halves(pairs.views() * rows * layer.outputs);
        let step = Self::linear(tokens, layer, rows, pairs.views(), projected);
        self.draft.push(Step::Linear(step));
        let map = DenseMap {
            at: projected,
            height,
            width,
            channels: layer.outputs,
        };
        let rescale = format!("{name}.1");
        let map = match level {
            0 => self.patches(pairs, &rescale, map, 4)?,
            1 => self.patches(pairs, &rescale, map, 2)?,
            2 => map,
            _ => self.convolve(pairs, &rescale, (map, dim), How { step: 2, ..PLAIN })?,
        };
        let layer = format!("dpt.scratch.layer{}_rn", level + 1);
        self.convolve(pairs, &layer, (map, dim), PLAIN)
    }

    /// `x + conv2(relu(conv1(relu(x))))`, and `other` added to it.
    fn residual(
        &mut self,
        pairs: Pairs,
        name: &str,
        x: DenseMap,
        other: Option<DenseMap>,
    ) -> Result<DenseMap, InferenceError> {
        let feature = self.architecture.feature_dim;
        let how = How {
            flags: Flags::RELU_INPUT.and(Flags::RELU),
            ..PLAIN
        };
        let y = self.convolve(pairs, &format!("{name}.conv1"), (x, feature), how)?;
        let how = How {
            add: [Some(x), other],
            ..PLAIN
        };
        self.convolve(pairs, &format!("{name}.conv2"), (y, feature), how)
    }

    /// The 3×3 convolution called `name` of a map of `channels` channels that mean something.
    fn convolve(
        &mut self,
        pairs: Pairs,
        name: &str,
        (x, channels): (DenseMap, usize),
        how: How,
    ) -> Result<DenseMap, InferenceError> {
        let layer = self.both(name, |network, name| {
            Layer::convolution(network, name, channels)
        })?;
        Ok(self.push_convolution((pairs.items(), pairs.views()), layer, x, how))
    }

    /// The 3×3 convolution `layer` of maps of so many items of each of so many views.
    fn push_convolution(
        &mut self,
        (items, views): (usize, usize),
        layer: StoredLayer,
        x: DenseMap,
        how: How,
    ) -> DenseMap {
        let [height, width] = [x.height, x.width].map(|n| (n - 1) / how.step + 1);
        let rows = items * height * width;
        let out = self.halves(views * rows * layer.outputs);
        let a = Rows {
            at: x.at,
            stride: x.channels,
            group: items * x.height * x.width * x.channels,
        };
        let summand = |map: Option<DenseMap>| {
            map.map_or(Summand::NONE, |map| Summand {
                at: map.at,
                group: rows * layer.outputs,
            })
        };
        self.draft.push(Step::Linear(Linear {
            form: Form::Convolution(Map {
                height: x.height,
                width: x.width,
                out_height: height,
                out_width: width,
                channels: x.channels,
                step: how.step,
            }),
            flags: how.flags,
            first: summand(how.add[0]),
            second: summand(how.add[1]),
            ..Self::linear(a, layer, rows, views, out)
        }));
        DenseMap {
            at: out,
            height,
            width,
            channels: layer.outputs,
        }
    }

    /// The 1×1 convolution called `name`.
    fn project(
        &mut self,
        pairs: Pairs,
        name: &str,
        x: DenseMap,
    ) -> Result<DenseMap, InferenceError> {
        let layer = self.both(name, Layer::linear)?;
        let rows = pairs.items() * x.height * x.width;
        let out = self.halves(pairs.views() * rows * layer.outputs);
        let step = Self::linear(rows_of(x, rows), layer, rows, pairs.views(), out);
        self.draft.push(Step::Linear(step));
        Ok(DenseMap {
            at: out,
            channels: layer.outputs,
            ..x
        })
    }

    /// The transposed convolution called `name`, each of whose inputs becomes a patch of `side × side`.
    fn patches(
        &mut self,
        pairs: Pairs,
        name: &str,
        x: DenseMap,
        side: usize,
    ) -> Result<DenseMap, InferenceError> {
        let layer = self.both(name, |network, name| Layer::patches(network, name, side))?;
        let rows = pairs.items() * x.height * x.width;
        let out = self.halves(pairs.views() * rows * layer.outputs);
        self.draft.push(Step::Linear(Linear {
            form: Form::Patches {
                side,
                width: x.width,
            },
            out_stride: x.channels,
            ..Self::linear(rows_of(x, rows), layer, rows, pairs.views(), out)
        }));
        Ok(DenseMap {
            at: out,
            height: x.height * side,
            width: x.width * side,
            channels: x.channels,
        })
    }

    /// Bilinear enlargement of so many images to `full` rows and columns, of which the first `kept` are kept.
    fn enlarge(
        &mut self,
        images: usize,
        x: DenseMap,
        full: [usize; 2],
        kept: [usize; 2],
    ) -> DenseMap {
        let out = self.halves(images * kept[0] * kept[1] * x.channels);
        self.draft.push(Step::Enlarge {
            x: x.at,
            out,
            images,
            channels: x.channels,
            from: [x.height, x.width],
            full,
            kept,
        });
        DenseMap {
            at: out,
            height: kept[0],
            width: kept[1],
            channels: x.channels,
        }
    }

    /// The MLP on the joined first and last tokens: descriptors and their confidences.
    fn descriptors(&mut self, pairs: Pairs, joined: Rows) -> Result<(), InferenceError> {
        let (patch, dim) = (self.architecture.patch(), self.architecture.descriptor_dim);
        let rows = pairs.items() * self.size.tokens();
        let fc1 = self.both("head_local_features.fc1", Layer::linear)?;
        let hidden = self.halves(pairs.views() * rows * fc1.outputs);
        self.draft.push(Step::Linear(Linear {
            flags: Flags::GELU,
            ..Self::linear(joined, fc1, rows, pairs.views(), hidden)
        }));
        let fc2 = self.both("head_local_features.fc2", |network, name| {
            Layer::linear(network, name).by_pixel(patch * patch, dim)
        })?;
        let raw = self.halves(pairs.views() * rows * fc2.outputs);
        let a = Rows {
            at: hidden,
            stride: fc1.outputs,
            group: rows * fc1.outputs,
        };
        let step = Self::linear(a, fc2, rows, pairs.views(), raw);
        self.draft.push(Step::Linear(step));
        self.draft.push(Step::Descriptors {
            x: raw,
            views: pairs.views(),
            items: pairs.items(),
            height: self.size.height,
            width: self.size.width,
            patch,
            dim,
            stride: fc2.outputs,
        });
        Ok(())
    }

    /// The layer called `name` of both views' heads.
    fn both(
        &mut self,
        name: &str,
        make: impl Fn(&Network, &str) -> Layer + Sync,
    ) -> Result<StoredLayer, InferenceError> {
        self.source.layer(name, |network| {
            let head = |view: usize| make(network, &format!("downstream_head{view}.{name}"));
            let (first, second) = rayon::join(|| head(1), || head(2));
            vec![first, second]
        })
    }
}

/// Rows and columns of a map of twice the size.
fn doubled(x: DenseMap) -> [usize; 2] {
    [2 * x.height, 2 * x.width]
}

/// A map's pixels as rows.
fn rows_of(x: DenseMap, rows: usize) -> Rows {
    Rows {
        at: x.at,
        stride: x.channels,
        group: rows * x.channels,
    }
}

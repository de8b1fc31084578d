//! What each kind of step takes by itself, for `bench --layers`.

use super::device::Part;
use super::format::quantised_row;
use super::operand::{Addresses, External, HALF, Operand, SINGLE};
use super::pairs::Pairs;
use super::plan::Plan;
use super::step::{Flags, Form, Linear, Step};
use super::weights::Index;
use super::{Loaded, NativeBackend};
use crate::gpu::plan::Group;
use crate::gpu::{Carving, Context, DeviceBuffer, Half, Priority, Stream};
use crate::inference::{InferenceError, LayerTime};
use half::{bf16, f16};

/// Launches of a graph, at least: the graph's own start is divided among them.
const LAUNCHES: usize = 24;
/// Graph launches of which the median counts.
const SAMPLES: usize = 9;

impl NativeBackend {
    /// Times the steps of the encoder and of a pair by themselves.
    pub(super) fn layers(&self) -> Result<Vec<LayerTime>, InferenceError> {
        let loaded = &*self.loaded;
        let parts = [
            ("encoder", Part::Encoder),
            ("pair", Part::Pairs(Pairs::Both)),
        ];
        let bench = Bench::new(loaded, &parts.map(|(_, part)| part))?;
        let mut rows = Vec::new();
        for (name, part) in parts {
            let plan = loaded.plan(part)?;
            for steps in alike(&plan) {
                rows.push(bench.time(name, loaded, &steps)?);
            }
        }
        Ok(rows)
    }
}

/// A plan's steps in lists of equal ones, in the order of the first of each.
fn alike(plan: &Plan) -> Vec<Vec<Step>> {
    let mut lists: Vec<(Step, Vec<Step>)> = Vec::new();
    for step in plan.steps() {
        let shape = shape(step);
        match lists.iter_mut().find(|(known, _)| *known == shape) {
            Some((_, list)) => list.push(*step),
            None => lists.push((shape, vec![*step])),
        }
    }
    lists.into_iter().map(|(_, steps)| steps).collect()
}

/// A step without what says where its operands lie.
fn shape(step: &Step) -> Step {
    let mut shape = *step;
    let exists = |operand: &mut Operand| {
        if *operand != Operand::None {
            *operand = Operand::Weight(0);
        }
    };
    shape.for_operands(exists);
    match &mut shape {
        Step::Linear(linear) => {
            (linear.weight, linear.bias) = (0, 0);
            linear.scale = linear.scale.map(|_| 0);
            if let Some(rotation) = &mut linear.rotation {
                rotation.table = Operand::None;
            }
        }
        Step::Norm { gain, .. } => gain.iter_mut().for_each(exists),
        Step::Points {
            weight,
            bias,
            view,
            item,
            ..
        } => {
            [weight, bias].into_iter().for_each(exists);
            (*view, *item) = (0, 0);
        }
        Step::Enlarged {
            weight,
            bias,
            points,
            ..
        } => {
            (*weight, *bias) = (0, 0);
            points.iter_mut().flatten().for_each(exists);
        }
        _ => {}
    }
    shape
}

/// Memory and a stream for the steps.
struct Bench {
    stream: Stream,
    workspace: DeviceBuffer<u8>,
    noise: Vec<u8>,
    buffers: [DeviceBuffer<f32>; 4],
    views: [[DeviceBuffer<f32>; 4]; 2],
    unusable: DeviceBuffer<u32>,
}

impl Bench {
    fn new(loaded: &Loaded, parts: &[Part]) -> Result<Self, InferenceError> {
        let context: &Context = loaded.kernels.context();
        let shape = &loaded.shape;
        let (n, tokens) = (shape.pixels(), shape.tokens * shape.feature_dim);
        let bytes = loaded.workspace_for(parts)?;
        let mut carving = Carving::separate(context);
        let mut part = carving.part(Group::Network, "bench");
        let workspace = part.device("workspace", &[bytes.max(1)])?;
        let buffers = [
            part.device("image", &[3, n])?,
            part.device("tokens", &[tokens])?,
            part.device("tokens of view 1", &[tokens])?,
            part.device("tokens of view 2", &[tokens])?,
        ];
        let mut view = |name| {
            let mut part = part.part(name);
            Ok::<_, InferenceError>([
                part.device("points", &[n, 3])?,
                part.device("confidence", &[n])?,
                part.device("descriptors", &[n, shape.descriptor_dim])?,
                part.device("descriptor confidence", &[n])?,
            ])
        };
        let views = [view("view 1")?, view("view 2")?];
        let unusable = part.device("unusable pixels", &[2])?;
        let stream = context.stream(Priority::High)?;
        let bench = Self {
            noise: noise(bytes, loaded.format.half),
            stream,
            workspace,
            buffers,
            views,
            unusable,
        };
        for buffer in bench.buffers.iter().chain(bench.views.iter().flatten()) {
            let bytes = noise(buffer.len() * SINGLE, loaded.format.half);
            let (words, _) = bytes.as_chunks();
            let values: Vec<f32> = words.iter().copied().map(f32::from_le_bytes).collect();
            bench.stream.write(&values, buffer.all())?;
        }
        Ok(bench)
    }

    fn addresses(&self, loaded: &Loaded) -> Addresses {
        let [planes, tokens, first, second] = self.buffers.each_ref().map(|b| b.all().address());
        // As in a run.
        let half_tokens = loaded.format.half_tokens();
        let [features, half_features] = match half_tokens {
            true => [0, tokens],
            false => [tokens, 0],
        };
        let counts = self.unusable.all().address();
        Addresses {
            workspace: self.workspace.all().address(),
            planes,
            features,
            half_features,
            views: [first, second],
            half_tokens,
            unusable: [counts, counts + 4],
            outputs: self
                .views
                .each_ref()
                .map(|view| view.each_ref().map(|b| b.all().address())),
            ..Addresses::new(loaded.weights.address())
        }
    }

    /// Times equal steps, one after the other as in a run: each finds its weights where the previous runs of the
    /// others left them.
    fn time(
        &self,
        part: &'static str,
        loaded: &Loaded,
        steps: &[Step],
    ) -> Result<LayerTime, InferenceError> {
        let (kernels, addresses) = (&loaded.kernels, self.addresses(loaded));
        let noise = &self.noise[..];
        self.stream
            .write(noise, self.workspace.slice(0..noise.len())?)?;
        let rounds = LAUNCHES.div_ceil(steps.len());
        let graph = self.stream.capture(|| -> Result<(), InferenceError> {
            for round in 0..rounds {
                for (at, step) in steps.iter().enumerate() {
                    // SAFETY: the buffers have the sizes that the plan was made for, and outlive the graph.
                    unsafe { kernels.launch(&self.stream, step, &addresses, round + at > 0) }?;
                }
            }
            Ok(())
        })?;
        let context = kernels.context();
        let (start, end) = (context.event(true)?, context.event(true)?);
        let mut times = Vec::with_capacity(SAMPLES);
        for _ in 0..=SAMPLES {
            self.stream.record(&start)?;
            // SAFETY: as above, and nothing else uses the buffers.
            unsafe { graph.launch(&self.stream) }?;
            self.stream.record(&end)?;
            times.push(f64::from(start.milliseconds_until(&end)?));
        }
        // The first one brings code and weights to where they are needed.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        let first = &steps[0];
        let work = work(first);
        Ok(LayerTime {
            part,
            layer: describe(first, &loaded.index),
            kernel: kernels.name_of(first),
            count: steps.len(),
            milliseconds: times[SAMPLES / 2] / (rounds * steps.len()) as f64,
            operations: work.operations,
            bytes: work.bytes,
        })
    }
}

/// Bytes that are harmless numbers, whether they are read as `half`s or as binary32.
fn noise(bytes: usize, half: Half) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let magnitude = 0.25 + (state >> 16 & 0x3ff) as f32 / 2048.0;
        let value = match state >> 31 {
            0 => magnitude,
            _ => -magnitude,
        };
        match half {
            Half::F16 => f16::from_f32(value).to_le_bytes(),
            Half::Bf16 => bf16::from_f32(value).to_le_bytes(),
        }
    };
    (0..bytes / HALF).flat_map(|_| next()).collect()
}

/// What a step does at least.
struct Work {
    /// Multiplications and additions of products.
    operations: u64,
    /// Each operand read or written once.
    bytes: u64,
}

fn work(step: &Step) -> Work {
    let (operations, bytes) = match *step {
        Step::Linear(ref linear) => of_linear(linear),
        Step::Attention {
            tokens,
            heads,
            head,
            wanted,
            ..
        } => {
            let width = heads * head;
            (
                4 * wanted * tokens * tokens * width,
                4 * wanted * tokens * width * HALF,
            )
        }
        Step::Patches {
            height,
            width,
            patch,
            stride,
            ..
        } => (
            0,
            3 * height * width * SINGLE + height / patch * (width / patch) * stride * HALF,
        ),
        Step::Norm {
            out,
            out_f32,
            rows,
            width,
            ..
        } => {
            let written = [(out, HALF), (out_f32, SINGLE)];
            let exists = |to| to != Operand::None && to != Operand::External(External::Features);
            let written = written.iter().filter(|(to, _)| exists(*to));
            let each = SINGLE + written.map(|(_, bytes)| bytes).sum::<usize>();
            (0, rows * width * each)
        }
        Step::Convert {
            wanted,
            items,
            tokens,
            width,
            ..
        } => (0, wanted * items * tokens * width * (SINGLE + HALF)),
        Step::Copy { bytes, .. } => (0, 2 * bytes),
        Step::Enlarge {
            images,
            channels,
            from,
            kept,
            ..
        } => {
            let pixels = from[0] * from[1] + kept[0] * kept[1];
            (0, images * pixels * channels * HALF)
        }
        Step::Enlarged {
            points,
            views,
            images,
            channels,
            outputs,
            from,
            to,
            ..
        } => {
            let (images, pixels) = (views * images, to[0] * to[1]);
            let read = images * from[0] * from[1] * channels * HALF;
            // Beside the convolution's taps, the four values of a point, and the confidence of its descriptor.
            let (taps, written) = match points {
                Some(_) => (9 * channels + 4, 5 * SINGLE),
                None => (9 * channels, outputs * HALF),
            };
            (
                2 * images * pixels * taps * outputs,
                read + images * pixels * written,
            )
        }
        Step::Points {
            pixels, channels, ..
        } => (
            8 * pixels * channels,
            pixels * (channels * HALF + 5 * SINGLE),
        ),
        Step::Descriptors {
            views,
            items,
            height,
            width,
            dim,
            ..
        } => {
            let pixels = views * items * height * width;
            (0, pixels * (dim + 1) * (HALF + SINGLE))
        }
    };
    Work {
        operations: operations as u64,
        bytes: bytes as u64,
    }
}

fn of_linear(linear: &Linear) -> (usize, usize) {
    let &Linear {
        rows,
        outputs,
        inputs,
        groups,
        ..
    } = linear;
    let read = match linear.form {
        Form::Convolution(map) => {
            let images = rows / (map.out_height * map.out_width);
            images * map.height * map.width * map.channels
        }
        Form::Rows | Form::Patches { .. } => rows * inputs,
    };
    let size = |wide: bool| if wide { SINGLE } else { HALF };
    let mut each = size(linear.flags.contains(Flags::OUT_F32));
    if linear.first.at != Operand::None {
        each += size(linear.flags.contains(Flags::ADD_F32));
    }
    if linear.second.at != Operand::None {
        each += HALF;
    }
    let weights = match linear.scale {
        Some(_) => outputs * (quantised_row(inputs) + SINGLE),
        None => outputs * inputs * HALF,
    };
    let bytes = read * HALF + weights + outputs * SINGLE + rows * outputs * each;
    (2 * groups * rows * outputs * inputs, groups * bytes)
}

/// The step in words: the layer's name, if it has one, and its sizes.
fn describe(step: &Step, index: &Index) -> String {
    match *step {
        Step::Linear(ref linear) => {
            let &Linear {
                rows,
                outputs,
                inputs,
                groups,
                flags,
                ..
            } = linear;
            let name = index
                .name_of(linear.weight)
                .map(any_block)
                .unwrap_or_default();
            let mut text = match linear.form {
                Form::Convolution(map) => format!(
                    "{name} {}x{}, {} to {outputs}",
                    map.height, map.width, map.channels
                ),
                Form::Rows | Form::Patches { .. } => format!("{name} {rows}x{outputs}x{inputs}"),
            };
            let told = [
                (groups > 1, format!(" x{groups}")),
                (linear.rotation.is_some(), ", turned".into()),
                (flags.contains(Flags::RELU_INPUT), ", of positive".into()),
                (flags.contains(Flags::GELU), ", GELU".into()),
                (flags.contains(Flags::RELU), ", ReLU".into()),
                (linear.first.at != Operand::None, ", +".into()),
                (linear.second.at != Operand::None, " +".into()),
            ];
            told.into_iter()
                .filter(|(applies, _)| *applies)
                .for_each(|(_, more)| text += &more);
            text
        }
        Step::Attention {
            tokens,
            heads,
            head,
            wanted,
            shift,
            ..
        } => {
            let kind = if shift > 0 {
                "cross-attention"
            } else {
                "self-attention"
            };
            format!("{kind} {tokens} tokens, {heads}x{head} x{wanted}")
        }
        Step::Patches { height, width, .. } => format!("patches of {height}x{width}"),
        Step::Norm { rows, width, .. } => format!("norm {rows}x{width}"),
        Step::Convert {
            wanted,
            items,
            tokens,
            width,
            ..
        } => format!("to 16 bits {}x{width}", wanted * items * tokens),
        Step::Copy { bytes, .. } => format!("copy of {bytes} bytes"),
        Step::Enlarge {
            images,
            channels,
            from,
            kept,
            ..
        } => format!(
            "enlarge {}x{} to {}x{}, {channels} x{images}",
            from[0], from[1], kept[0], kept[1]
        ),
        Step::Enlarged {
            weight,
            points,
            views,
            images,
            channels,
            outputs,
            from,
            to,
            ..
        } => {
            let name = index.name_of(weight).unwrap_or_default();
            let points = points.map_or("", |_| ", points");
            format!(
                "{name} {}x{} as {}x{}, {channels} to {outputs}{points} x{}",
                from[0],
                from[1],
                to[0],
                to[1],
                views * images
            )
        }
        Step::Points {
            pixels, channels, ..
        } => format!("points of {pixels} pixels, {channels}"),
        Step::Descriptors {
            views, items, dim, ..
        } => format!("descriptors {dim} x{}", views * items),
    }
}

/// A layer's name with `*` for the number of its block.
fn any_block(name: &str) -> String {
    let mut parts: Vec<&str> = name.split('.').collect();
    if let [first, number, ..] = &mut parts[..]
        && (first.ends_with("_blocks") || *first == "dec_both")
    {
        *number = "*";
    }
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::{any_block, noise};
    use crate::gpu::Half;
    use half::{bf16, f16};

    #[test]
    fn names_of_blocks_lose_their_number_alone() {
        assert_eq!(any_block("enc_blocks.12.mlp.fc1"), "enc_blocks.*.mlp.fc1");
        assert_eq!(any_block("dec_both.3.joint"), "dec_both.*.joint");
        assert_eq!(any_block("dpt.head.2"), "dpt.head.2");
    }

    #[test]
    fn noise_is_harmless_in_all_precisions() {
        for half in [Half::F16, Half::Bf16] {
            let bytes = noise(4096, half);
            assert_eq!(bytes.len(), 4096);
            for two in bytes.chunks_exact(2) {
                let bytes = [two[0], two[1]];
                let value = match half {
                    Half::F16 => f16::from_le_bytes(bytes).to_f32().abs(),
                    Half::Bf16 => bf16::from_le_bytes(bytes).to_f32().abs(),
                };
                assert!((0.2..1.0).contains(&value), "{half:?} {value}");
            }
            for four in bytes.chunks_exact(4) {
                let value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                assert!(value.abs() < 1.0, "{half:?} {value}");
            }
        }
    }
}

//! The network's stages, in place on the GPU.

use super::measure::percentile;
use crate::cli::CliError;
use crate::compute::cuda::sanitise::{ViewBuffers, counted};
use crate::config::BackendChoice;
use crate::gpu::plan::{Group, human};
use crate::gpu::{
    Carving, Context, DeviceBuffer, DeviceInfo, FloatBuffer, Floats, Priority, Stream,
};
use crate::inference::{
    Backend, DeviceBackend, DeviceView, InferenceError, LayerTime, NetworkShape,
};
use crate::network::load_network;
use crate::network::onnx::Views;
use crate::slam::Note;
use crate::slam_builder::{Wanted, load_named_backend};
use half::f16;
use serde::Serialize;

/// Result row of a stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NetworkRow {
    /// Name of the stage.
    pub stage: &'static str,
    /// Median duration in milliseconds.
    pub median: f64,
    /// 99th percentile of the same.
    pub p99: f64,
    /// Multiplications and additions of its matrix products and convolutions.
    pub operations: u64,
    /// Milliseconds that these take at least in half precision with sums in single; `None` for a GPU whose rate is not
    /// known here.
    pub limit: Option<f64>,
}

/// Runs before the first sample: a backend prepares itself in the first ones.
const WARM_UP: usize = 10;

/// Names of the stages.
pub const STAGES: [&str; 6] = [
    "network encoder",
    "network decoder pair",
    "network decoder mono",
    "network decoder both ways",
    "network decoder two edges",
    "network decoder four edges",
];

/// Maximum number of edges of a stage.
const EDGES: usize = 4;

/// Measurements of the network.
#[derive(Default)]
pub struct Timed {
    /// The choice that selects the backend that ran it.
    pub choice: BackendChoice,
    /// The backend that ran it, and the memory that it takes.
    pub backend: String,
    /// Why this one.
    pub notes: Vec<Note>,
    pub stages: Vec<NetworkRow>,
    /// Its steps, if they were asked for.
    pub layers: Vec<LayerRow>,
}

/// Times encoder, decoder and mono inference, those that `only` takes; with the memory's `bandwidth`, bytes a second, also
/// each step by itself. Nothing where the network does not run on the GPU.
pub fn time(
    context: &Context,
    wanted: &Wanted<'_>,
    samples: usize,
    only: &dyn Fn(&str) -> bool,
    bandwidth: Option<f64>,
) -> Result<Timed, CliError> {
    let (before, _) = context.memory()?;
    let mut notes = Vec::new();
    let (choice, mut loaded) = load_named_backend(wanted, &mut notes)?;
    let (name, shape) = (loaded.name(), loaded.shape().clone());
    if loaded.device().is_none() {
        notes.push(Note::choice(format!(
            "the network's stages are left out: {name} does not compute on the GPU"
        )));
        return match bandwidth {
            Some(_) => Err(no_layers(&name)),
            None => Ok(Timed {
                notes,
                ..Timed::default()
            }),
        };
    }
    let network = load_network(wanted.weights).map_err(InferenceError::from)?;
    let (width, height) = wanted.size;
    let size = (network.architecture.input_size(1, width, height))
        .ok_or_else(|| crate::cli::no_such_size(&network, wanted.size))?;
    let half_tokens = (loaded.device()).is_some_and(|device| device.takes_half_tokens());
    let mut buffers = Buffers::new(context, &shape, half_tokens)?;
    give_workspace(context, loaded.as_mut())?;
    let rate = half_rate(context.info());
    let mut rows = Vec::new();
    let pair = || network.decoder(size, Views::Both).operations();
    let stages: [(_, &dyn Fn() -> u64, Run); 6] = [
        (STAGES[0], &|| network.encoder(size).operations(), ENCODE),
        (STAGES[1], &pair, DECODE),
        (
            STAGES[2],
            &|| network.decoder(size, Views::First).operations(),
            MONO,
        ),
        (STAGES[3], &|| 2 * pair(), |b, buffers| edges(1, b, buffers)),
        (STAGES[4], &|| 4 * pair(), |b, buffers| edges(2, b, buffers)),
        (STAGES[5], &|| 8 * pair(), |b, buffers| edges(4, b, buffers)),
    ];
    for (stage, operations, run) in stages {
        if !only(stage) {
            continue;
        }
        // Writing a large network down takes seconds.
        let operations = operations();
        let mut times = buffers.time(loaded.as_mut(), run, samples)?;
        rows.push(NetworkRow {
            stage,
            median: percentile(&mut times, 0.5),
            p99: percentile(&mut times, 0.99),
            operations,
            limit: rate.map(|rate| operations as f64 / rate * 1e3),
        });
    }
    let (after, _) = context.memory()?;
    let taken = before.saturating_sub(after + buffers.bytes);
    drop(buffers);
    let layers = match bandwidth {
        Some(bandwidth) => layers(context, loaded.as_mut(), bandwidth)?,
        None => Vec::new(),
    };
    Ok(Timed {
        choice,
        backend: format!("{name}, {} on the GPU", human(taken)),
        notes,
        stages: rows,
        layers,
    })
}

/// Equal steps of a part of the network, with their lower bound.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerRow {
    #[serde(flatten)]
    time: LayerTime,
    /// Milliseconds that one takes at least: the longer of its products at the tensor cores' rate and of its bytes
    /// at the memory's; without the products for a GPU whose rate is not known here.
    limit: f64,
    /// What that is: `products` or `memory`.
    bound: &'static str,
    /// Share of the limit that is reached.
    fraction: f64,
}

fn no_layers(name: &str) -> CliError {
    CliError::Usage(format!(
        "--layers is for --backend native, and {name} runs the network"
    ))
}

/// The network's steps, each timed by itself; `bandwidth`: the memory's bytes a second.
fn layers(
    context: &Context,
    loaded: &mut dyn Backend,
    bandwidth: f64,
) -> Result<Vec<LayerRow>, CliError> {
    let times = match loaded.device() {
        Some(device) => device.time_layers()?,
        None => None,
    };
    let times = times.ok_or_else(|| no_layers(&loaded.name()))?;
    let rate = half_rate(context.info());
    let row = |time: LayerTime| {
        let products = rate.map_or(0.0, |rate| time.operations as f64 / rate * 1e3);
        let memory = time.bytes as f64 / bandwidth * 1e3;
        let limit = products.max(memory);
        LayerRow {
            limit,
            bound: if products > memory {
                "products"
            } else {
                "memory"
            },
            fraction: limit / time.milliseconds,
            time,
        }
    };
    Ok(times.into_iter().map(row).collect())
}

/// The table of steps for people.
pub fn layers_table(rows: &[LayerRow]) -> String {
    let mut text = format!(
        "steps, each by itself; limit: products at the tensor cores' rate or bytes at the rate of copies\n\n\
         {:<7} {:<58} {:>5} {:>9} {:>9} {:>9} {:>9} {:>12} {:>5}  {}\n",
        "part", "step", "count", "µs", "all µs", "Mop", "kB", "limit µs", "%", "kernel"
    );
    let mut parts: Vec<(&str, f64, f64)> = Vec::new();
    for row in rows {
        let (time, all) = (&row.time, row.time.count as f64);
        text += &format!(
            "{:<7} {:<58} {:>5} {:>9.2} {:>9.1} {:>9.1} {:>9.0} {:>12} {:>5.1}  {}\n",
            time.part,
            time.layer,
            time.count,
            time.milliseconds * 1e3,
            time.milliseconds * 1e3 * all,
            time.operations as f64 * 1e-6,
            time.bytes as f64 * 1e-3,
            format!("{:.2} {}", row.limit * 1e3, &row.bound[..3]),
            row.fraction * 100.0,
            time.kernel,
        );
        match parts.iter_mut().find(|(part, ..)| *part == time.part) {
            Some((_, sum, limit)) => {
                *sum += time.milliseconds * all;
                *limit += row.limit * all;
            }
            None => parts.push((time.part, time.milliseconds * all, row.limit * all)),
        }
    }
    for (part, sum, limit) in parts {
        text += &format!(
            "{part}: {sum:.3} ms, limit {limit:.3} ms, {:.1} %\n",
            limit / sum * 100.0
        );
    }
    text.truncate(text.trim_end().len());
    text
}

/// Gives the backend the memory that it needs for the stages.
fn give_workspace(context: &Context, backend: &mut dyn Backend) -> Result<(), CliError> {
    let Some(device) = backend.device() else {
        return Ok(());
    };
    let bytes = device
        .workspace_bytes(0)?
        .max(device.workspace_bytes(EDGES)?);
    if bytes > 0 {
        let mut carving = Carving::separate(context);
        let mut part = carving.part(Group::Network, "bench");
        device.use_workspace(part.device("network workspace", &[bytes])?)?;
    }
    Ok(())
}

/// The table for people.
pub fn table(name: &str, rows: &[NetworkRow]) -> String {
    let mut text = format!(
        "network on {name}\nlimit: its products and convolutions at the tensor cores' rate for half precision\n\n\
         {:<34} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5}\n",
        "stage", "ms", "p99 ms", "Gop", "Top/s", "limit ms", "%"
    );
    for row in rows {
        let limit = |of: &dyn Fn(f64) -> String| row.limit.map_or("?".into(), of);
        text += &format!(
            "{:<34} {:>9.3} {:>9.3} {:>9.1} {:>9.1} {:>9} {:>5}\n",
            row.stage,
            row.median,
            row.p99,
            row.operations as f64 * 1e-9,
            row.operations as f64 / row.median * 1e-9,
            limit(&|ms| format!("{ms:.3}")),
            limit(&|ms| format!("{:.1}", ms / row.median * 100.0)),
        );
    }
    text
}

/// Operations a second of the tensor cores on f16 with sums in f32, dense: of each multiprocessor and cycle
/// as NVIDIA's descriptions of the architectures have it, times both.
fn half_rate(info: &DeviceInfo) -> Option<f64> {
    let each = match info.capability {
        (7, 5) => 512.0,
        (8, 0 | 7) => 2048.0,
        (8, 6 | 9) => 512.0,
        (9, 0) => 4096.0,
        (10, 0 | 3) | (11, 0) => 8192.0,
        (12, 0 | 1) => 512.0,
        _ => return None,
    };
    Some(each * f64::from(info.multiprocessors) * f64::from(info.clock_khz) * 1e3)
}

struct Buffers {
    bytes: u64,
    stream: Stream,
    planes: DeviceBuffer<f32>,
    /// Tokens of all images, and of the first two.
    all: FloatBuffer,
    features: [FloatBuffer; 2],
    /// Outputs of all images' pairs, and of the first.
    views: [ViewBuffers; 2],
    first: [ViewBuffers; 2],
    /// Number of unusable pixels of each output.
    unusable: DeviceBuffer<u32>,
}

type Run = fn(&mut dyn DeviceBackend, &Buffers) -> Result<(), InferenceError>;

const ENCODE: Run = |backend, buffers| {
    let (planes, features) = (buffers.planes.all(), buffers.features[0].all());
    backend.enqueue_encode(&buffers.stream, planes, features)
};

const DECODE: Run = |backend, buffers| {
    let (features, views) = buffers.pair([0, 1])?;
    backend.enqueue_decode(&buffers.stream, features, views)
};

const MONO: Run = |backend, buffers| {
    let (features, views) = buffers.pair([0, 0])?;
    backend.enqueue_decode_view1(&buffers.stream, features, views)
};

/// Decodes `edges` edges, both ways each.
fn edges(
    edges: usize,
    backend: &mut dyn DeviceBackend,
    buffers: &Buffers,
) -> Result<(), InferenceError> {
    let images = 0..2 * edges;
    let pixels = buffers.first[0].confidence.len();
    let of_edges = |view: &ViewBuffers| view.of_pairs(images.clone(), pixels);
    let [first, second] = buffers.views.each_ref().map(of_edges);
    let features = (buffers.all.all()).slice(0..buffers.all.len() / EDGES * edges)?;
    let views = [first?, second?];
    let views = counted(views.each_ref(), &buffers.unusable, images.len())?;
    backend.enqueue_decode_edges(&buffers.stream, edges, features, views)
}

impl Buffers {
    /// Buffers for a network of `shape`, with tokens in half precision if `half_tokens`.
    fn new(context: &Context, shape: &NetworkShape, half_tokens: bool) -> Result<Self, CliError> {
        let (n, d) = (shape.pixels(), shape.descriptor_dim);
        let (tokens, images) = (shape.tokens * shape.feature_dim, 2 * EDGES);
        let mut carving = Carving::separate(context);
        let mut part = carving.part(Group::Network, "bench");
        let stream = context.stream(Priority::High)?;
        let planes: DeviceBuffer<f32> = part.device("network input", &[3, n])?;
        // An image that is not all the same.
        let values: Vec<f32> = (0..3 * n)
            .map(|k| (k as f32 * 0.37).sin() * (k as f32 * 0.0011).cos())
            .collect();
        stream.write(&values, planes.all())?;
        let all = FloatBuffer::carve(&mut part, "tokens", &[images, tokens], half_tokens)?;
        let values: Vec<f32> = (0..images * tokens)
            .map(|k| (k as f32 * 0.71).sin())
            .collect();
        match all.all() {
            Floats::F32(tokens) => stream.write(&values, tokens)?,
            Floats::F16(tokens) => {
                let values: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
                stream.write(&values, tokens)?;
            }
        }
        let features = [all.part(0..tokens)?, all.part(tokens..2 * tokens)?];
        let views = [
            ViewBuffers::carve(&mut part, images * n, d)?,
            ViewBuffers::carve(&mut part, images * n, d)?,
        ];
        let first = [views[0].of_pair(0, n)?, views[1].of_pair(0, n)?];
        let unusable = part.device("unusable pixels", &[2, images])?;
        Ok(Self {
            bytes: carving.into_plan().device_bytes(),
            stream,
            planes,
            all,
            features,
            views,
            first,
            unusable,
        })
    }

    fn pair(
        &self,
        which: [usize; 2],
    ) -> Result<([Floats<'_>; 2], [DeviceView<'_>; 2]), InferenceError> {
        let features = which.map(|k| self.features[k % 2].all());
        Ok((features, counted(self.first.each_ref(), &self.unusable, 1)?))
    }

    /// Milliseconds of each run, on the device's clock.
    fn time(
        &mut self,
        backend: &mut dyn Backend,
        run: Run,
        samples: usize,
    ) -> Result<Vec<f64>, CliError> {
        let gone = || CliError::Usage("the network has left the GPU".into());
        let events = [0, 1].map(|_| self.stream.context().event(true));
        let [start, end] = events;
        let (start, end) = (start?, end?);
        let mut times = Vec::with_capacity(samples);
        for sample in 0..samples + WARM_UP {
            self.stream.record(&start)?;
            run(backend.device().ok_or_else(gone)?, self)?;
            self.stream.record(&end)?;
            let time = start.milliseconds_until(&end)?;
            if sample >= WARM_UP {
                times.push(f64::from(time));
            }
        }
        Ok(times)
    }
}

//! `mast3r-slam bench`: the time of each stage on the GPU, beside the GPU's limits.

mod frame;
mod graph;
mod kept;
mod map;
mod measure;
mod network;
mod scene;
mod track;

use super::settings::{ConfigArgs, RunOptions};
use super::{CliError, Finished};
use crate::compute::cuda::KERNELS;
use crate::config::BackendChoice;
use crate::gpu::plan::Group;
use crate::gpu::{Carving, Context, CudaError, DeviceBuffer, Element};
use crate::slam_builder::Wanted;
use clap::Args;
use measure::{Bench, Limits, Row, Stage};
use network::{LayerRow, NetworkRow};
use scene::Scene;
use serde::Serialize;

/// Options of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The network's input, pixels.
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value = "512x384", value_parser = super::sizes::size)]
    size: (usize, usize),
    /// Runs of each stage.
    #[arg(long, value_name = "N", default_value_t = 200)]
    samples: usize,
    /// Only stages whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The network's steps as well, each by itself (`--backend native`).
    #[arg(long)]
    layers: bool,
    /// Number of the GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
    /// Backend of the network.
    #[arg(long, value_enum)]
    backend: Option<BackendChoice>,
}

/// Inputs of the stages.
struct Setup<'a> {
    context: &'a Context,
    bench: &'a Bench,
    scene: Scene,
}

/// Makes one stage with all of its buffers and inputs.
type Make = fn(&Setup<'_>) -> Result<Box<dyn Stage>, CliError>;

/// Every stage by name, in the order of a frame.
const STAGES: &[(&str, Make)] = &[
    ("convert", frame::convert),
    ("preprocess", frame::preprocess),
    ("sanitise", frame::sanitise),
    ("matching", frame::matching),
    ("tracking rays", track::solve_rays),
    ("tracking calibrated", track::solve_calibrated),
    ("fusion", track::fusion),
    ("tracked frame", track::tracked_frame),
    ("global small", graph::small),
    ("global medium", graph::medium),
    ("global large", graph::large),
    ("global large half", graph::large_half),
    ("retrieval", map::places),
];

/// Output of `--json`.
#[derive(Serialize)]
struct Report {
    device: String,
    size: (usize, usize),
    samples: usize,
    limits: Limits,
    stages: Vec<Row>,
    /// Backend that ran the network.
    backend: String,
    network: Vec<NetworkRow>,
    /// Its steps, with `--layers`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    layers: Vec<LayerRow>,
}

/// Times the stages and prints the table.
pub fn run(args: &BenchArgs) -> Result<Finished, CliError> {
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only));
    let names = STAGES.iter().map(|(name, _)| *name);
    let names = names.chain(network::STAGES.iter().copied());
    if !names.clone().any(wanted) {
        let names: Vec<&str> = names.collect();
        return Err(CliError::Usage(format!(
            "--only {}: no stage's name contains this; stages: {}",
            args.only.as_deref().unwrap_or_default(),
            names.join(", ")
        )));
    }
    let options = RunOptions {
        backend: args.backend,
        ..Default::default()
    };
    let settings = options.apply(args.config.builder()).settings()?;
    let context = Context::open(args.gpu, &KERNELS)?;
    let bench = Bench::new(&context, args.samples)?;
    let setup = Setup {
        context: &context,
        bench: &bench,
        scene: Scene::new(args.size.0, args.size.1, 24),
    };
    if args.layers && args.gpu != 0 {
        return Err(CliError::Usage(
            "--layers: the network runs on GPU 0 only; leave --gpu out".into(),
        ));
    }
    let mut rows = Vec::new();
    for (_, make) in STAGES.iter().filter(|(name, _)| wanted(name)) {
        // Made, timed and dropped one after the other: all of them together need not fit.
        rows.push(bench.time(make(&setup)?.as_mut())?);
    }
    let mut network = network::Timed::default();
    let any = args.layers || network::STAGES.iter().any(|name| wanted(name));
    if any && args.gpu == 0 {
        let of = Wanted {
            config: &settings.config,
            weights: &settings.weights,
            size: args.size,
            jobs: 1,
            #[cfg(feature = "tensorrt")]
            observer: Some(std::sync::Arc::new(super::engines::BuildProgress::new(
                true,
            ))),
        };
        let bandwidth = args.layers.then_some(bench.limits.bandwidth);
        network = network::time(&context, &of, args.samples, &wanted, bandwidth)?;
        let kept = kept::keep(context.info(), &of, network.choice, &network.stages);
        network.notes.extend(kept);
    }
    let report = Report {
        device: context.info().name.clone(),
        size: args.size,
        samples: args.samples,
        limits: bench.limits,
        stages: rows,
        backend: network.backend,
        network: network.stages,
        layers: network.layers,
    };
    if args.json {
        let text = serde_json::to_string_pretty(&report);
        super::say(&text.map_err(|e| CliError::Usage(e.to_string()))?);
    } else {
        super::tell(&network.notes);
        if !report.stages.is_empty() {
            super::say(&table(&report));
        }
        if !report.network.is_empty() {
            super::say(&network::table(&report.backend, &report.network));
        }
        if !report.layers.is_empty() {
            super::say(&network::layers_table(&report.layers));
        }
    }
    Ok(Finished::Done)
}

/// The report for people.
fn table(report: &Report) -> String {
    let mut text = format!(
        "{}, {}x{}, {} runs a stage\n\
         copies {:.0} GB/s (measured), {:.1} T separate f32 operations a second (lanes × clock)\n\
         cold: nothing of the stage in the caches; warm: right after itself; limit: lower bound by memory or arithmetic\n\n\
         {:<34} {:>9} {:>9} {:>9} {:>10} {:>9} {:>14} {:>5} {:>8}  {}\n",
        report.device,
        report.size.0,
        report.size.1,
        report.samples,
        report.limits.bandwidth * 1e-9,
        report.limits.operations * 1e-12,
        "stage",
        "cold ms",
        "p99 ms",
        "warm ms",
        "MB",
        "Mop",
        "limit ms",
        "%",
        "target",
        "outcome",
    );
    for row in &report.stages {
        let target = row.target.map_or(String::new(), |t| {
            let mark = if row.median <= t { "" } else { " !" };
            format!("{t:.3}{mark}")
        });
        let limit = format!("{:.4} {}", row.limit, &row.bound[..3]);
        text += &format!(
            "{:<34} {:>9.4} {:>9.4} {:>9.4} {:>10.2} {:>9.1} {:>14} {:>5.1} {:>8}  {}\n",
            row.stage,
            row.median,
            row.p99,
            row.warm,
            row.work.bytes as f64 * 1e-6,
            row.work.operations as f64 * 1e-6,
            limit,
            row.fraction * 100.0,
            target,
            row.outcome,
        );
    }
    text.truncate(text.trim_end().len());
    text
}

impl Setup<'_> {
    /// Memory for a stage.
    fn carving(&self) -> Carving<'static> {
        Carving::separate(self.context)
    }

    /// A buffer of a stage's own.
    fn buffer<T: Element>(
        &self,
        name: &'static str,
        len: usize,
    ) -> Result<DeviceBuffer<T>, CudaError> {
        let mut carving = self.carving();
        carving.part(Group::Tracking, "bench").device(name, &[len])
    }

    /// A stage's own buffer of `values`.
    fn send<T: Element>(
        &self,
        name: &'static str,
        values: &[T],
    ) -> Result<DeviceBuffer<T>, CudaError> {
        let buffer = self.buffer(name, values.len())?;
        self.bench.stream.write(values, buffer.all())?;
        Ok(buffer)
    }
}

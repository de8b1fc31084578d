//! `mast3r-slam splat bench`: times of refinement, rendering and training on the GPU, beside the limit of its memory;
//! and proof that they do not allocate.

use crate::cli::{CliError, Finished, say};
use crate::compute::cuda::KERNELS;
use crate::compute::cuda::splat::{CudaSplat, SplatSizes};
use crate::compute::splat::camera::View;
use crate::compute::splat::device::{AdamStep, LossWeights, RefineRules, SplatDevice};
use crate::compute::splat::layout::{FIELDS, Field, floats};
use crate::compute::splat::synthetic;
use crate::gpu::plan::human;
use crate::gpu::{Context, Event};
use clap::Args;
use serde::Serialize;

/// Options of `splat bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Numbers of rows, in millions.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 10, 20, 40])]
    rows: Vec<u64>,
    /// Degree of the spherical harmonics.
    #[arg(long, value_name = "0-3", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=3))]
    degree: u8,
    /// The camera's image, pixels.
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value = "1920x1080", value_parser = crate::cli::sizes::pixels)]
    size: (usize, usize),
    /// Runs of each stage.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// Number of the GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Rows of a block on the host.
const BLOCK: usize = 1 << 16;
/// Seed of the rows, which are all to be split.
const SEED: u64 = 1 << 32;
/// Rows of a million.
const MILLION: u64 = 1_000_000;

/// A stage's time and the bytes that it moves.
#[derive(Debug, Serialize)]
struct Row {
    stage: &'static str,
    /// Median, milliseconds.
    ms: f64,
    /// Bytes that have to come from or go to memory.
    bytes: u64,
    /// Milliseconds of these at the speed of a copy.
    limit: f64,
}

/// The stages at one number of rows.
#[derive(Debug, Serialize)]
struct Part {
    rows: u64,
    visible: u64,
    entries: u64,
    /// Bytes of the pool, and of all memory of the map.
    pool_bytes: u64,
    all_bytes: u64,
    /// Free memory of the GPU before the first stage, between stages, and after the last.
    free: Vec<u64>,
    stages: Vec<Row>,
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    device: String,
    degree: u8,
    size: (usize, usize),
    /// Bytes per second of a copy on the device.
    bandwidth: f64,
    parts: Vec<Part>,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<Finished, CliError> {
    let context = Context::open(args.gpu, &KERNELS)?;
    let mut report = Report {
        device: context.info().name.clone(),
        degree: args.degree,
        size: args.size,
        bandwidth: bandwidth(&context)?,
        parts: Vec::new(),
    };
    for millions in &args.rows {
        let rows = millions.saturating_mul(MILLION);
        let part = time(&context, args, rows, report.bandwidth)?;
        if !args.json {
            say(&table(&report, &part));
        }
        report.parts.push(part);
    }
    if args.json {
        let text = serde_json::to_string_pretty(&report);
        say(&text.map_err(|e| CliError::Usage(e.to_string()))?);
    }
    Ok(Finished::Done)
}

/// Bytes per second of a copy, read and written together.
fn bandwidth(context: &Context) -> Result<f64, CliError> {
    use crate::gpu::plan::Group;
    use crate::gpu::{Carving, Priority};
    const BYTES: usize = 1 << 28;
    let stream = context.stream(Priority::Low)?;
    let mut carving = Carving::separate(context);
    let mut part = carving.part(Group::Splat, "bench");
    let (a, b) = (
        part.device::<u8>("from", &[BYTES])?,
        part.device::<u8>("to", &[BYTES])?,
    );
    let (start, end) = (context.event(true)?, context.event(true)?);
    let mut best = f32::INFINITY;
    for _ in 0..10 {
        stream.record(&start)?;
        stream.copy(a.all(), b.all())?;
        stream.record(&end)?;
        best = best.min(start.milliseconds_until(&end)?);
    }
    Ok(2.0 * BYTES as f64 / (f64::from(best) * 1e-3))
}

/// Fills a map with `rows` rows: a block in changing order of axes, so that rows lie in different places.
fn fill(map: &mut CudaSplat, rows: u64) -> Result<(), CliError> {
    let degree = map.layout().degree();
    let mut block = synthetic::block(BLOCK, degree, SEED);
    map.clear()?;
    while map.counts().rows < rows {
        let left = (rows - map.counts().rows).min(BLOCK as u64);
        block.resize(left as usize);
        map.append(&block)?;
        let shift = 0.01 * (map.counts().rows / BLOCK as u64 % 97) as f32;
        for mean in block.parameters.get_mut(Field::Mean).as_chunks_mut::<3>().0 {
            *mean = [mean[1], mean[2] * (1.0 + shift * 0.01), mean[0]];
        }
    }
    Ok(())
}

/// Times `work` on the map's stream, in milliseconds.
fn timed<T>(
    map: &mut CudaSplat,
    [start, end]: &[Event; 2],
    work: impl FnOnce(&mut CudaSplat) -> Result<T, CliError>,
) -> Result<(f64, T), CliError> {
    map.stream().synchronize()?;
    map.stream().record(start)?;
    let result = work(map)?;
    map.stream().record(end)?;
    Ok((f64::from(start.milliseconds_until(end)?), result))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The rules by which all rows are split.
fn rules() -> RefineRules {
    RefineRules {
        seed: 1,
        step: 1,
        hot: 2e-4,
        ln_small: -20.0,
        ln_prune: f32::INFINITY,
        logit_prune: -5.0,
        ln_shrink: 1.6_f32.ln(),
        revised_opacity: 0,
        reserved: 0,
    }
}

fn time(context: &Context, args: &BenchArgs, rows: u64, bandwidth: f64) -> Result<Part, CliError> {
    let sizes = SplatSizes::new(rows, args.degree, args.size);
    let mut map = CudaSplat::allocate(context, sizes)?;
    let events = [context.event(true)?, context.event(true)?];
    let (width, height) = args.size;
    let camera = synthetic::camera(args.size);
    let image = vec![100; 3 * width * height];
    let view = View {
        camera,
        image: &image,
        depth: None,
    };
    let weights = LossWeights::COLOR_ONLY;
    let step = AdamStep {
        rates: [1e-5; FIELDS],
        bias1: 0.1,
        bias2: 0.001,
        opacity_weight: 0.0,
        scale_weight: 0.0,
        noise: 0.0,
        seed: 1,
        step: 1,
    };
    // Everything once, so that nothing is loaded later.
    fill(&mut map, rows.min(BLOCK as u64))?;
    map.gradients(&view, &weights)?;
    map.step(&step)?;
    map.refine(&rules())?;
    let free = |of: &mut Vec<u64>| -> Result<(), CliError> {
        of.push(context.memory()?.0);
        Ok(())
    };
    let mut memory = Vec::new();
    free(&mut memory)?;

    let mut refine = Vec::new();
    for _ in 0..args.samples.min(3) {
        fill(&mut map, rows / 2)?;
        let (ms, counters) = timed(&mut map, &events, |map| Ok(map.refine(&rules())?))?;
        if counters.after != 2 * (rows / 2) {
            return Err(CliError::Usage(format!(
                "the refinement of {} rows left {}",
                counters.rows, counters.after
            )));
        }
        refine.push(ms);
        free(&mut memory)?;
    }
    let (mut forward, mut backward, mut adam) = (Vec::new(), Vec::new(), Vec::new());
    let mut drawn = map.forward(&camera)?;
    for _ in 0..=args.samples {
        let (ms, now) = timed(&mut map, &events, |map| Ok(map.forward(&camera)?))?;
        drawn = now;
        forward.push(ms);
        let (ms, _) = timed(&mut map, &events, |map| Ok(map.backward(&weights, false)?))?;
        backward.push(ms);
        let (ms, ()) = timed(&mut map, &events, |map| Ok(map.step(&step)?))?;
        adam.push(ms);
        free(&mut memory)?;
    }
    map.verify()?;
    free(&mut memory)?;

    let row_bytes = 4 * floats(args.degree) as u64;
    let (pixels, half) = ((width * height) as u64, rows / 2);
    let (visible, entries) = (drawn.visible, drawn.entries);
    let stage = |stage, times: &mut Vec<f64>, bytes: u64| Row {
        stage,
        ms: median(times),
        bytes,
        limit: bytes as f64 / bandwidth * 1e3,
    };
    Ok(Part {
        rows,
        visible,
        entries,
        pool_bytes: map.memory().pool,
        all_bytes: CudaSplat::plan(&sizes)?.device_bytes(),
        free: memory,
        stages: vec![
            // Two decisions, the parents, both children with their moments, the statistics.
            stage(
                "refine",
                &mut refine,
                half * (52 + 56 + 4 + 6 * row_bytes + 24 + 8 + 16),
            ),
            // All means, the visible rows and their packed form, the list and its sort, the image.
            stage(
                "forward",
                &mut forward,
                rows * 12
                    + visible * (row_bytes + 2 * 64 + 5 * 16)
                    + entries * (8 + 4 * 16)
                    + pixels * 24,
            ),
            // The list, the packed rows and their gradients, the images of the loss.
            stage(
                "backward",
                &mut backward,
                entries * (4 + 48 + 40) + visible * (row_bytes + 3 * 64) + pixels * 92,
            ),
            stage("Adam", &mut adam, visible * (6 * row_bytes + 64)),
        ],
    })
}

/// A part of the report for people.
fn table(report: &Report, part: &Part) -> String {
    let mut text = format!(
        "{}: {} M rows of degree {}, {}x{}; {} M visible, {:.1} M entries of tiles; copies {:.0} GB/s\n\
         pool {}, all memory {}\n{:<10} {:>9} {:>10} {:>9} {:>6}\n",
        report.device,
        part.rows / MILLION,
        report.degree,
        report.size.0,
        report.size.1,
        part.visible as f64 / MILLION as f64,
        part.entries as f64 / MILLION as f64,
        report.bandwidth * 1e-9,
        human(part.pool_bytes),
        human(part.all_bytes),
        "stage",
        "ms",
        "GB",
        "limit ms",
        "%",
    );
    for row in &part.stages {
        text += &format!(
            "{:<10} {:>9.3} {:>10.3} {:>9.3} {:>6.1}\n",
            row.stage,
            row.ms,
            row.bytes as f64 * 1e-9,
            row.limit,
            100.0 * row.limit / row.ms
        );
    }
    let (first, last) = (part.free.first(), part.free.last());
    let same = part.free.iter().all(|free| Some(free) == first);
    let (least, most) = (part.free.iter().min(), part.free.iter().max());
    let bytes = |value: Option<&u64>| value.copied().unwrap_or(0);
    text += &format!(
        "free memory before {}, during {} to {}, after {} bytes: {}\n",
        bytes(first),
        bytes(least),
        bytes(most),
        bytes(last),
        if same { "the same" } else { "CHANGED" },
    );
    text
}

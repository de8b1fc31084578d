//! Runs a sequence there and back, again and again, and writes what each lap took: how the map grows with time.
//!
//! ```sh
//! cargo run --release -p tools --features cuda --bin soak -- FOLDER --frames 20000 --config config/mini.yaml \
//!     --set economy.reuse=true --set economy.remove=true --out docs/records/soak.md
//! ```
//!
//! `FOLDER` is any sequence that `mast3r-slam run` reads; without ground truth there is no ATE. Its images are decoded
//! once and kept in memory. Options: `--calibrated`, `--stride N`, `--size PIXELS`, `--single` (mapping inline), `--live`
//! (tracking never waits for mapping), `--remember FOLDER` (on the CPU: keeps the outputs of the bundled network there,
//! 11 MB for each pair of images at 256×192, so that the next run with other settings takes a fraction of the time),
//! `--false-loops SHARE` (with `--calibrated`: replaces that share of the loops by false ones), `--seed N` (other ones),
//! `--lose-loops` (the same loops are lost instead: what a perfect judge would leave), `--depth` (uses the sequence's
//! depth images).

mod remembered;
mod summary;

use mast3r_slam::compute::cpu;
use mast3r_slam::compute::device::Setup;
use mast3r_slam::compute::retrieval::RetrievalModel;
use mast3r_slam::config::Threads;
use mast3r_slam::eval::{self, Alignment, Options as Comparison};
use mast3r_slam::files::memory;
use mast3r_slam::image::Preprocessor;
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::map::TrackingState;
use mast3r_slam::slam_builder::{DepthFeed, DeviceMaker};
use mast3r_slam::source::{self, DepthOptions, SourceFrame, SourceOptions};
use mast3r_slam::time::Stamp;
use mast3r_slam::trajectory::{self, BadRows, StampedPose};
use mast3r_slam::{Frame, MapSnapshot, Pace, Slam};
use remembered::Remembered;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use summary::{Pace as Speed, Summary};
use testkit::deceiver::{Lies, Told, deceiving};
use tracing_subscriber::EnvFilter;

/// Nanoseconds within which a true pose is that of an image.
const NEAR: u64 = 20_000_000;

type Failure = Box<dyn Error>;

const USAGE: &str = "usage: soak FOLDER [--frames N] [--config FILE] [--set KEY=VALUE]... [--calibrated] [--depth] \
    [--stride N] [--size PIXELS] [--single] [--live] [--remember FOLDER] [--false-loops SHARE [--seed N] [--lose-loops]] [--out FILE.md]";

#[derive(Default)]
struct Options {
    folder: PathBuf,
    frames: usize,
    stride: usize,
    config: Option<PathBuf>,
    set: Vec<String>,
    size: Option<usize>,
    calibrated: bool,
    depth: bool,
    single: bool,
    live: bool,
    remember: Option<PathBuf>,
    lies: Lies,
    out: Option<PathBuf>,
}

impl Options {
    fn read() -> Result<Self, Failure> {
        let mut options = Self {
            frames: 20_000,
            stride: 1,
            ..Self::default()
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(USAGE);
            match word.as_str() {
                "--frames" => options.frames = value()?.parse()?,
                "--stride" => options.stride = value()?.parse()?,
                "--config" => options.config = Some(value()?.into()),
                "--set" => options.set.push(value()?),
                "--size" => options.size = Some(value()?.parse()?),
                "--calibrated" => options.calibrated = true,
                "--depth" => options.depth = true,
                "--single" => options.single = true,
                "--live" => options.live = true,
                "--false-loops" => options.lies.share = value()?.parse()?,
                "--seed" => options.lies.seed = value()?.parse()?,
                "--lose-loops" => options.lies.lose = true,
                "--remember" => options.remember = Some(value()?.into()),
                "--out" => options.out = Some(value()?.into()),
                folder if !folder.starts_with("--") && options.folder.as_os_str().is_empty() => {
                    options.folder = folder.into();
                }
                other => return Err(format!("{USAGE}; found {other}").into()),
            }
        }
        match options.folder.as_os_str().is_empty() {
            true => Err(USAGE.into()),
            false => Ok(options),
        }
    }
}

/// What a lap left behind.
struct Lap {
    frames: usize,
    seconds: f64,
    lost: usize,
    made: usize,
    keyframes: usize,
    edges: usize,
    /// Resident memory of this process, MB.
    resident: Option<f64>,
    /// Memory in use on the GPU, MB.
    device: Option<f64>,
}

/// The sequence, and the frame that each step of a walk there and back shows.
struct Walk {
    frames: Vec<SourceFrame>,
    truth: Option<PathBuf>,
    /// Nanoseconds between frames.
    interval: i64,
    depth: Option<DepthFeed>,
}

impl Walk {
    /// Steps there and back, without showing the first and the last frame twice.
    fn lap(&self) -> usize {
        (2 * self.frames.len()).saturating_sub(2).max(1)
    }

    fn shown(&self, step: usize) -> Option<&SourceFrame> {
        let at = step % self.lap();
        self.frames.get(at.min(self.lap() - at))
    }

    fn stamp(&self, step: usize) -> Stamp {
        let first = self.frames.first().map_or(0, |f| f.stamp.nanos);
        Stamp {
            nanos: first + self.interval * step as i64,
        }
    }
}

fn main() -> Result<(), Failure> {
    let options = Options::read()?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    log.without_time().with_writer(std::io::stderr).init();
    let told = Arc::new(OnceLock::new());
    let (mut slam, mut walk) = open(&options, &told)?;
    let mut laps: Vec<Lap> = Vec::new();
    let mut speed = Speed::new();
    let mut step = 0;
    while step < options.frames {
        let end = (step + walk.lap()).min(options.frames);
        let lap = run(&mut slam, &mut walk, step..end, &mut speed)?;
        eprintln!(
            "lap {}: {}; so far: {}",
            laps.len() + 1,
            row(&lap, None),
            counts(&slam)
        );
        laps.push(lap);
        step = end;
    }
    slam.complete()?;
    let at_the_end = slam.poses().load().ids.len();
    let map = slam.snapshot();
    let errors = errors(&map, &walk, laps.len());
    let mut text = report(&options, &slam, &laps, &errors);
    let summary = Summary {
        laps: &laps,
        last: speed.frames_per_second(),
        of_all: error_of_all(&map, &walk).map(|of_all| (errors.first().copied().flatten(), of_all)),
    };
    text += &summary.table();
    writeln!(text, "\nKeyframes when the run had ended: {at_the_end}.")?;
    if let Some(depth) = &walk.depth {
        writeln!(text, "\nWith {}.", depth.summary())?;
    }
    if let Some(told) = told.get() {
        let (replaced, alive) = (told.replaced(), told.alive());
        writeln!(
            text,
            "\nFalse loops: {replaced} made, {alive} in the map at the end."
        )?;
    }
    match &options.out {
        Some(path) => std::fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

fn open(options: &Options, told: &Arc<OnceLock<Arc<Told>>>) -> Result<(Slam, Walk), Failure> {
    let selection = SourceOptions {
        stride: options.stride,
        depth: options.depth.then(DepthOptions::default),
        ..SourceOptions::default()
    };
    let mut source = source::open(&options.folder, selection)?;
    let mut builder = Slam::builder()
        .source(source.as_mut())
        .calibrated(options.calibrated)
        .set(options.set.clone())
        .threads(match options.single {
            true => Threads::Single,
            false => Threads::Pipelined,
        })
        .pace(match options.live {
            true => Pace::Live,
            false => Pace::EveryFrame,
        });
    if let Some(config) = &options.config {
        builder = builder.config_file(config);
    }
    if let Some(size) = options.size {
        builder = builder.size(size);
    }
    if let Some(folder) = &options.remember {
        std::fs::create_dir_all(folder)?;
        builder = builder.on_device(remembering(folder.clone()));
    }
    if options.lies.share > 0.0 && !options.calibrated {
        return Err("--false-loops needs --calibrated: false matches are where the camera would see the points".into());
    }
    if options.lies.share > 0.0 {
        let (lies, told) = (options.lies, Arc::clone(told));
        builder = builder.around_device(Arc::new(move |camera, device| match camera {
            Some(camera) => {
                let (device, new) = deceiving(device, camera, lies);
                let _ = told.set(new);
                device
            }
            None => device,
        }));
    }
    if options.depth {
        builder = builder.depth();
    }
    let slam = builder.build()?;
    let camera = source.depth_camera();
    let depth = camera.and_then(|camera| DepthFeed::new(&slam, camera));
    let truth = source.ground_truth().map(Path::to_owned);
    let frames: Vec<SourceFrame> = source.by_ref().collect::<Result<_, _>>()?;
    if frames.len() < 2 {
        return Err(format!("{}: a walk needs two frames", options.folder.display()).into());
    }
    let mut steps: Vec<i64> = frames
        .windows(2)
        .map(|w| w[1].stamp.nanos - w[0].stamp.nanos)
        .collect();
    steps.sort_unstable();
    let interval = steps[steps.len() / 2].max(1);
    Ok((
        slam,
        Walk {
            frames,
            truth,
            interval,
            depth,
        },
    ))
}

/// The CPU's device with the bundled network, whose outputs are kept in `folder`.
fn remembering(folder: PathBuf) -> DeviceMaker {
    Arc::new(move |setup, _| {
        let shape = setup.preprocessor.as_ref().map(Preprocessor::output_size);
        let (width, height) = shape.unwrap_or_default();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let weights = Path::new("engines/mast3r-mini/model.safetensors");
        let network = CpuBackend::load(weights, width, height, threads)?;
        let codebook = RetrievalModel::load(&weights.with_file_name("codebook.safetensors"));
        let setup = Setup {
            places: codebook.ok().map(Arc::new),
            ..setup.clone()
        };
        let network = Remembered {
            network: Box::new(network),
            folder: folder.clone(),
        };
        Ok(cpu::device(Box::new(network), setup))
    })
}

fn run(
    slam: &mut Slam,
    walk: &mut Walk,
    steps: std::ops::Range<usize>,
    speed: &mut Speed,
) -> Result<Lap, Failure> {
    let start = Instant::now();
    let (mut lost, mut made) = (0, 0);
    let count = steps.len();
    let mut depth = walk.depth.take();
    for step in steps {
        let Some(shown) = walk.shown(step) else {
            continue;
        };
        if let Some(depth) = &mut depth {
            depth.give(slam, shown, None)?;
        }
        let tracked = slam.process(&Frame {
            index: step,
            stamp: walk.stamp(step),
            image: (&shown.image).into(),
        })?;
        lost += usize::from(tracked.state == TrackingState::Lost);
        made += usize::from(tracked.keyframe.is_some());
        speed.note();
    }
    walk.depth = depth;
    let poses = slam.poses();
    let table = poses.load();
    Ok(Lap {
        frames: count,
        seconds: start.elapsed().as_secs_f64(),
        lost,
        made,
        keyframes: table.ids.len(),
        edges: table.edges.len(),
        resident: resident(),
        device: device_memory(),
    })
}

/// What is wrong with a lap's tracked frames in the final map.
#[derive(Clone, Copy)]
struct Wrong {
    /// ATE after a similarity of the lap's own, metres.
    ate: f64,
    /// The same after a rotation and translation.
    metric: f64,
    /// The similarity's scale: metres per unit of the map.
    scale: f64,
}

/// Errors of each lap.
fn errors(map: &MapSnapshot, walk: &Walk, laps: usize) -> Vec<Option<Wrong>> {
    let truth = walk.truth.as_deref();
    let truth = truth.and_then(|path| trajectory::read(path, BadRows::Skip).ok());
    let Some(truth) = truth else {
        return vec![None; laps];
    };
    let of_lap = |lap: usize| {
        let steps = lap * walk.lap()..(lap + 1) * walk.lap();
        let frames = map.frames.iter().filter(|f| steps.contains(&f.index));
        let tracked = frames.filter(|f| f.state != TrackingState::Lost);
        // Compared at the stamp of the frame that was shown; a stamp twice would be ambiguous, so there and back are
        // compared apart and the larger error counts.
        let mut ways = [Vec::new(), Vec::new()];
        for frame in tracked {
            let at = frame.index % walk.lap();
            let way = usize::from(at >= walk.frames.len());
            let stamp = walk.shown(frame.index)?.stamp;
            ways[way].push(StampedPose {
                stamp,
                world_from_camera: frame.world_from_camera,
            });
        }
        ways[1].reverse();
        let compare = |way: &Vec<StampedPose>, alignment| {
            let options = Comparison {
                alignment,
                ..Comparison::default()
            };
            eval::evaluate(way, &truth.poses, &options).ok()
        };
        let wrong = |way: &Vec<StampedPose>| {
            let free = compare(way, Alignment::Sim3)?;
            Some(Wrong {
                ate: free.ate.rmse,
                metric: compare(way, Alignment::Se3)?.ate.rmse,
                scale: free.alignment.scale,
            })
        };
        let both = ways.iter().filter_map(wrong);
        both.max_by(|a, b| a.ate.total_cmp(&b.ate))
    };
    (0..laps).map(of_lap).collect()
}

/// ATE of all tracked frames after one similarity, metres: each frame is compared with the true pose of the image that
/// it shows, at its own time.
fn error_of_all(map: &MapSnapshot, walk: &Walk) -> Option<f64> {
    let truth = trajectory::read(walk.truth.as_deref()?, BadRows::Skip).ok()?;
    let (mut found, mut true_poses) = (Vec::new(), Vec::new());
    for frame in &map.frames {
        let shown = walk.shown(frame.index)?.stamp.nanos;
        let near = truth.poses.partition_point(|p| p.stamp.nanos < shown);
        let near = truth
            .poses
            .get(near.saturating_sub(1)..)
            .unwrap_or_default();
        let near = near.iter().take(2);
        let near = near.min_by_key(|p| p.stamp.nanos.abs_diff(shown))?;
        if frame.state == TrackingState::Lost || near.stamp.nanos.abs_diff(shown) > NEAR {
            continue;
        }
        let stamp = walk.stamp(frame.index);
        found.push(StampedPose {
            stamp,
            world_from_camera: frame.world_from_camera,
        });
        true_poses.push(StampedPose { stamp, ..*near });
    }
    let compared = eval::evaluate(&found, &true_poses, &Comparison::default());
    Some(compared.ok()?.ate.rmse)
}

fn resident() -> Option<f64> {
    Some(memory::resident()? as f64 / f64::from(1 << 20))
}

fn device_memory() -> Option<f64> {
    let query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"];
    let said = Command::new("nvidia-smi").args(query).output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    text.lines().next()?.trim().parse().ok()
}

fn row(lap: &Lap, error: Option<Wrong>) -> String {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |v| format!("{v:.digits$}"))
    };
    format!(
        "{} | {:.1} | {} | {} | {} | {} | {} | {} | {} | {} | {}",
        lap.frames,
        lap.frames as f64 / lap.seconds.max(1e-9),
        lap.lost,
        lap.made,
        lap.keyframes,
        lap.edges,
        number(error.map(|e| e.ate), 4),
        number(error.map(|e| e.metric), 4),
        number(error.map(|e| e.scale), 3),
        number(lap.resident, 0),
        number(lap.device, 0)
    )
}

fn report(options: &Options, slam: &Slam, laps: &[Lap], errors: &[Option<Wrong>]) -> String {
    let mut text = format!(
        "# Soak: {}\n\n{} frames there and back, {} laps; {}. Settings: {}.\n\n",
        options.folder.display(),
        options.frames,
        laps.len(),
        slam.about().description,
        match options.set.is_empty() {
            true => "as configured".to_owned(),
            false => options.set.join(", "),
        }
    );
    text += "| lap | frames | frames/s | lost | keyframes made | keyframes | edges | ATE m | after SE(3) | scale | memory MB | GPU MB |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    for (number, (lap, error)) in (1..).zip(laps.iter().zip(errors)) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {number} | {} |", row(lap, *error));
    }
    let _ = writeln!(text, "\nMapping: {}.", counts(slam));
    text
}

/// Mapping's counters that are not zero.
fn counts(slam: &Slam) -> String {
    let counts = slam.mapping_counts();
    let shown = counts.rows().into_iter().filter(|(_, n)| *n > 0);
    let shown: Vec<String> = shown.map(|(name, n)| format!("{n} {name}")).collect();
    shown.join(", ")
}

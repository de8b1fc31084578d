//! `mast3r-slam splat train`: a map of Gaussian splats from the keyframes of a map's file.

use super::progress::{Lines, bar};
use crate::cli::frames::FrameRange;
use crate::cli::interrupt;
use crate::cli::settings::{positive, threads};
use crate::cli::{CliError, Finished, jobs::start_threads, say, tell};
use crate::compute::splat::loss::psnr;
use crate::compute::splat::schedule::{Mode, Schedule};
use crate::compute::splat::trainer::{Trainer, ViewSource};
use crate::config::{Config, DeviceChoice};
use crate::map::splat;
use crate::slam::Slam;
use crate::slam_builder::splat::frames::{self, Frame, FrameRules};
use crate::slam_builder::splat::{
    DeviceRows, FileKeyframe, MapFile, Measuring, OFFLINE_VIEWS, Views, make_device, pointmap,
    quality, seed, state, train,
};
use crate::time::Stamp;
use clap::Args;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval at which the state is written meanwhile.
const STATE_PERIOD: Duration = Duration::from_secs(60);

/// Iterations after which those of a run of some seconds are planned anew.
const PLAN_EVERY: u64 = 250;
/// Part of the time after which they are, if it comes first.
const PLANS: u32 = 10;
/// Iterations a second that lines of such a run expect.
const EXPECTED_RATE: u64 = 500;
/// Views of each kind that are compared at the end.
const FINAL_VIEWS: usize = 128;

/// Options of `splat train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// A map of `run --map`, `run --save-map` or the node; its largest submap is used.
    pub map: PathBuf,
    /// The file to write: .ply, .compressed.ply or .spz. The state of the training is written beside it, with .state at
    /// the end of the name.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The sequence that the map was made of. Its frames between the keyframes are trained on too, and every n-th view
    /// of all is held out (splat.holdout).
    #[arg(long, value_name = "PATH", requires = "trajectory")]
    pub frames: Option<PathBuf>,
    /// Poses of the frames: trajectory.txt of the run that made the map.
    #[arg(long, value_name = "FILE", requires = "frames")]
    pub trajectory: Option<PathBuf>,
    /// Calibration of the frames, if the run that made the map had one that is not the sequence's own.
    #[arg(long, value_name = "FILE", requires = "frames")]
    pub calib: Option<PathBuf>,
    /// Number of iterations [default: splat.iterations].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub iterations: Option<usize>,
    /// Train for this time. Without --iterations their number follows from it; with it, the training ends by what comes
    /// first.
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub seconds: Option<usize>,
    /// Maximum number of Gaussians [default: splat.capacity].
    #[arg(long, value_name = "ROWS", value_parser = positive)]
    pub capacity: Option<usize>,
    /// Go on with an earlier training of the same map, whose state is beside OUT.
    #[arg(long)]
    pub resume: bool,
    /// Replace OUT if it exists.
    #[arg(long)]
    pub force: bool,
    /// YAML file or name of a built-in configuration, whose section `splat` says how the map is made.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one key, such as splat.stride=4; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Device for the training.
    #[arg(long, value_enum)]
    pub device: Option<DeviceChoice>,
    /// No progress: neither a bar nor, in a pipe, ten lines.
    #[arg(long)]
    pub no_progress: bool,
    /// Threads [default: all cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub jobs: Option<usize>,
}

impl TrainArgs {
    fn config(&self) -> Result<Config, CliError> {
        let mut builder = Slam::builder().set(self.set.iter().cloned());
        if let Some(path) = &self.config {
            builder = builder.config_file(path);
        }
        let mut config = builder.effective_config()?;
        config.splat.iterations = self.iterations.unwrap_or(config.splat.iterations);
        config.splat.capacity = self.capacity.unwrap_or(config.splat.capacity);
        Ok(config)
    }

    /// The frames between the keyframes, if they are to be trained on.
    fn read_frames(
        &self,
        map: &MapFile,
        config: &Config,
    ) -> Result<BTreeMap<Stamp, Frame>, CliError> {
        let (Some(path), Some(trajectory)) = (&self.frames, &self.trajectory) else {
            return Ok(BTreeMap::new());
        };
        let range = FrameRange {
            start: 0,
            end: None,
            stride: 1,
            depth: None,
        };
        let mut source = crate::cli::frames::open(path, &range, self.calib.as_deref())?;
        let keyframes = map.keyframes().iter().map(|k| k.stamp).collect();
        let rules = FrameRules {
            size: map.size(),
            intrinsics: map.is_calibrated().then(|| map.intrinsics()),
            center: config.dataset.center_principle_point,
            trajectory,
        };
        Ok(frames::read(source.as_mut(), &keyframes, &rules)?)
    }
}

/// The file of a training's state.
fn state_of(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".state");
    name.into()
}

/// Runs the sub-command.
pub fn run(args: &TrainArgs) -> Result<Finished, CliError> {
    let format = super::format_of(&args.out)?;
    if args.out.exists() && !args.force && !args.resume {
        return Err(super::exists(&args.out));
    }
    let config = args.config()?;
    start_threads(args.jobs)?;
    let mut map = MapFile::open(&args.map, config.splat.c_conf)?;
    let mut notes = Vec::new();
    let choice = args.device.unwrap_or(config.device);
    let device = make_device(choice, &config.splat, map.size(), &mut notes)?;
    tell(&notes);
    let iterations = config.splat.iterations as u64;
    let schedule = Schedule::new(config.splat.clone(), Mode::Offline { iterations });
    let mut trainer = Trainer::new(device, schedule);
    let state = state_of(&args.out);
    let mut corrections = Vec::new();
    if args.resume {
        corrections = state::resume(&state, &mut trainer)?;
    }
    let frames = args.read_frames(&map, &config)?;
    let mut views = load(&mut map, frames, &mut trainer)?;
    for (id, correction) in corrections {
        views.correct(id, correction);
    }
    if views.is_empty() {
        return Err(CliError::NoViews {
            path: args.map.clone(),
        });
    }
    let (width, height) = map.size();
    let counts = trainer.device().counts();
    say(&format!(
        "map: {}, {} {} of {width}×{height} pixels",
        args.map.display(),
        views.len(),
        match args.frames {
            Some(_) => "keyframes and other frames",
            None => "keyframes",
        }
    ));
    say(&format!(
        "splats: {} of at most {}, on {}",
        counts.rows,
        counts.capacity,
        trainer.device().name()
    ));
    if counts.rows == 0 {
        return Err(CliError::NoPoints {
            path: args.map.clone(),
            confidence: config.splat.c_conf,
        });
    }
    if args.frames.is_none() {
        say(
            "only the keyframes' images are trained on; --frames SEQUENCE --trajectory FILE adds the frames between them, \
             with which the splats become much better",
        );
    }
    if args.resume {
        say(&format!("resumed at iteration {}", trainer.step()));
    }
    interrupt::install_for(
        "stopping after this iteration, then writing the splats; Ctrl-C again quits at once",
    )?;
    let before = quality(&mut trainer, &mut views, Measuring::GIVEN)?;
    say(&format!("quality before: {}", super::told(&before)));
    let seconds = args.seconds.map(|s| Duration::from_secs(s as u64));
    let first = trainer.step();
    let timed = seconds.is_some() && args.iterations.is_none();
    let took = iterate(
        &mut trainer,
        &mut views,
        iterations,
        (seconds, timed),
        &state,
        !args.no_progress,
    )?;
    let took = took.as_secs_f64();
    let done = trainer.step() - first;
    let all = Measuring {
        max: FINAL_VIEWS,
        align: config.splat.align,
        trained: true,
    };
    let after = quality(&mut trainer, &mut views, all)?;
    say(&format!("quality after: {}", super::told(&after)));
    say(&format!(
        "{done} iterations in {took:.1} s ({:.1} per second); {} splats",
        done as f64 / took.max(1e-9),
        trainer.device().counts().rows
    ));
    save_state(&state, &mut trainer, &views)?;
    let bytes = splat::write(&args.out, format, &mut DeviceRows::new(trainer.device()))?;
    say(&format!(
        "written to {}: {} in {:.1} MB; {} goes on with --resume",
        args.out.display(),
        format.name(),
        bytes as f64 / 1e6,
        state.display()
    ));
    Ok(match interrupt::requested() {
        true => Finished::Interrupted,
        false => Finished::Done,
    })
}

/// What becomes a view.
enum Shot {
    Keyframe(FileKeyframe),
    Frame(Frame),
}

/// The keyframes as views, and the frames between them, by stamp. Keyframes that are trained on become splats, unless
/// there are some.
fn load(
    map: &mut MapFile,
    frames: BTreeMap<Stamp, Frame>,
    trainer: &mut Trainer,
) -> Result<Views, CliError> {
    let mut views = Views::new(map.intrinsics(), OFFLINE_VIEWS);
    let stride = map.keyframes().len().div_ceil(OFFLINE_VIEWS).max(1);
    let keyframes = map.keyframes().iter().step_by(stride).copied();
    let mut shots: Vec<(Stamp, Shot)> = keyframes.map(|k| (k.stamp, Shot::Keyframe(k))).collect();
    if !frames.is_empty() {
        shots.extend(frames.into_iter().map(|(stamp, f)| (stamp, Shot::Frame(f))));
        shots.sort_by_key(|(stamp, _)| *stamp);
    }
    let (seeds, count) = (trainer.device().counts().rows == 0, shots.len());
    for (number, (_, shot)) in (0..).zip(shots) {
        let keyframe = match shot {
            Shot::Frame(frame) => {
                views.add_frame(number, frame.world_from_camera, frame.image);
                continue;
            }
            Shot::Keyframe(keyframe) => keyframe,
        };
        let Some(view) = map.view(keyframe.id) else {
            continue;
        };
        let Some(index) = views.add(keyframe.id, keyframe.world_from_camera, &view) else {
            continue;
        };
        if seeds && !trainer.is_held_out(index, count) {
            let pose = &keyframe.world_from_camera;
            seed(
                trainer,
                &pointmap(map.intrinsics(), keyframe.id, pose, &view),
            )?;
        }
    }
    Ok(views)
}

fn save_state(path: &Path, trainer: &mut Trainer, views: &Views) -> Result<(), CliError> {
    let saved = state::save(path, trainer, views);
    saved.map_err(|e| crate::files::export::ExportError::io("write", path, e).into())
}

/// Trains until the iterations are done, the time is over or Ctrl-C was pressed. With `timed`, the number of iterations
/// follows from the time and the speed so far: rates fall and growth ends by it. Returns the time that training took,
/// without that of the lines.
fn iterate(
    trainer: &mut Trainer,
    views: &mut Views,
    mut iterations: u64,
    (seconds, timed): (Option<Duration>, bool),
    state: &Path,
    progress: bool,
) -> Result<Duration, CliError> {
    if timed {
        // Until the speed is known.
        iterations = iterations.max(trainer.step() + 2 * PLAN_EVERY);
        trainer.plan(iterations);
    }
    let bar = (progress && std::io::stderr().is_terminal()).then(|| bar(iterations));
    let start = Instant::now();
    let (mut stated, mut measured) = (start, Duration::ZERO);
    let expected = match seconds {
        Some(limit) if timed => limit.as_secs() * EXPECTED_RATE,
        _ => iterations,
    };
    let mut lines = (progress && bar.is_none()).then(|| Lines::new(expected));
    let mut planned = (trainer.step(), Duration::ZERO);
    while trainer.step() < iterations
        && seconds.is_none_or(|limit| start.elapsed() < limit + measured)
        && !interrupt::requested()
    {
        let Some(report) = train(trainer, views)? else {
            break;
        };
        if let Some(limit) = seconds.filter(|_| timed)
            && let spent = start.elapsed().saturating_sub(measured)
            && (report.step >= planned.0 + PLAN_EVERY || spent >= planned.1 + limit / PLANS)
        {
            let took = spent.saturating_sub(planned.1).as_secs_f64().max(1e-6);
            let rate = (report.step - planned.0) as f64 / took;
            let left = limit.saturating_sub(spent).as_secs_f64();
            iterations = report.step + (rate * left) as u64;
            trainer.plan(iterations);
            planned = (report.step, spent);
            if let Some(bar) = &bar {
                bar.set_length(iterations);
            }
        }
        if let Some(bar) = &bar {
            bar.set_position(report.step);
            bar.set_message(format!(
                "PSNR {:.1} dB, {} splats",
                psnr(report.loss.mse.max(1e-12)),
                trainer.device().counts().rows
            ));
        }
        if let Some(lines) = &mut lines {
            measured += lines.step(&report, trainer, views)?;
        }
        if stated.elapsed() >= STATE_PERIOD {
            save_state(state, trainer, views)?;
            stated = Instant::now();
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(start.elapsed().saturating_sub(measured))
}

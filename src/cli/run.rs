//! `mast3r-slam run`: frames in, trajectory and map out.

use super::assets;
use super::engine::SlamEngine;
use super::frames::{self, FrameRange};
use super::output::OutputFolder;
use super::progress::Progress;
#[cfg(feature = "bags")]
use super::record::BagArgs;
use super::results::{self, Results, RunInfo};
use super::session::{self, Ended, Engine};
use super::settings::{ConfigArgs, RunOptions, threads};
use super::{CliError, Finished, interrupt, say};
use crate::map::{MapSnapshot, TrackingState, atomic, saved};
use crate::slam::{Pace, SavedMap, SavedMapError};
use clap::Args;
use std::path::{Path, PathBuf};

/// Track a sequence; write its trajectory, map and report.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// A dataset's folder (TUM RGB-D, EuRoC, 7-Scenes, ETH3D-SLAM), a folder of images, a video, or a ROS 2 bag.
    pub path: PathBuf,
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub options: RunOptions,
    /// First frame, counted from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub start: usize,
    /// The frame to stop before [default: the end].
    #[arg(long, value_name = "N")]
    pub end: Option<usize>,
    /// Output folder [default: logs/ and the sequence's name].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with a map that --save-map or the node's ~/save_map wrote.
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// Write the map into one file that --map and the node's ~/load_map can go on with.
    #[arg(long, value_name = "FILE")]
    pub save_map: Option<PathBuf>,
    /// Replace the results of an earlier run in the output folder.
    #[arg(long)]
    pub force: bool,
    /// Trajectory to compare with, in TUM format [default: the dataset's own, where there is one].
    #[arg(long, value_name = "FILE")]
    pub ground_truth: Option<PathBuf>,
    /// No progress bar (there is none in a pipe either).
    #[arg(long)]
    pub no_progress: bool,
    /// Threads for the network and everything else [default: all cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub jobs: Option<usize>,
    #[cfg(feature = "bags")]
    #[command(flatten)]
    pub bag: BagArgs,
}

/// Runs the sub-command.
pub fn run(args: &RunArgs) -> Result<Finished, CliError> {
    if args.end.is_some_and(|end| end <= args.start) {
        return Err(CliError::Usage(format!(
            "--end must be larger than --start, {}",
            args.start
        )));
    }
    let settings = args.config.settings(&args.options)?;
    let range = FrameRange {
        start: args.start,
        end: args.end,
        stride: settings.config.dataset.subsample,
    };
    super::readable("the frames", &args.path)?;
    #[cfg(feature = "bags")]
    args.bag.check(args.force)?;
    if let Some(map) = &args.map {
        // What is wrong with the file itself is said before the network is loaded.
        saved::Reader::open(&saved::file_of(map)).map_err(SavedMapError::from)?;
    }
    let folder = args.out.clone().unwrap_or_else(|| default_out(&args.path));
    let folder = OutputFolder::create(&folder, args.force)?;
    // Before the source, whose decoding uses them.
    let jobs = start_threads(args.jobs)?;
    let calib = args.options.calib.as_deref();
    #[cfg(feature = "bags")]
    let mut source = args.bag.open(&args.path, &range, calib)?;
    #[cfg(not(feature = "bags"))]
    let mut source = frames::open(&args.path, &range, calib)?;
    let what = source.describe();
    let ground_truth = match &args.ground_truth {
        Some(path) => {
            super::readable("the ground truth", path)?;
            Some(path.clone())
        }
        None => source.ground_truth().map(Path::to_owned),
    };
    let calibration = frames::calibration(source.as_ref(), settings.config.use_calib)?;

    let total = source.remaining();
    let Some(first) = source.next_frame()? else {
        return Err(CliError::NoFrames { what });
    };
    say(&format!("frames: {what}"));
    let mut engine = SlamEngine::new(
        &settings,
        calibration.as_ref(),
        &first.image,
        jobs,
        Pace::EveryFrame,
    )?;
    say(&format!("network: {}", engine.describe()));
    if let Some(map) = &args.map {
        let loaded = engine.load_map(&saved::file_of(map))?;
        say(&format!("map: {loaded}"));
    }
    #[cfg(feature = "bags")]
    let mut engine = {
        let confident = settings.config.output.c_conf;
        let frame = source.camera_frame();
        args.bag.recorded(engine, frame, &first, confident)?
    };

    interrupt::install()?;
    folder.clear()?;
    say(&format!("output: {}", folder.path().display()));
    let mut progress = Progress::new(total, !args.no_progress);
    let ended = session::drive(
        first,
        source.as_mut(),
        &mut engine,
        &mut progress,
        &interrupt::requested,
    );
    progress.stage("writing the results");
    let snapshot = engine.snapshot();
    let info = RunInfo {
        title: what,
        backend: engine.describe(),
        ground_truth: ground_truth.as_deref(),
        seconds: ended.seconds,
    };
    let saved = results::write(folder.path(), &snapshot, &settings, &info);
    #[cfg(feature = "bags")]
    let (mut engine, recorded) = engine.close(&snapshot);
    #[cfg(feature = "bags")]
    let saved = match recorded {
        Ok(None) => saved,
        Ok(Some(bag)) => {
            say(&format!("recorded: {}", bag.display()));
            saved
        }
        Err(error) => saved.and(Err(error)),
    };
    let mut saved = saved;
    if let Some(path) = &args.save_map {
        match save_map(&mut engine, path) {
            Ok(map) => say(&format!("map: {map}")),
            Err(error) => saved = saved.and(Err(error)),
        }
    }
    progress.finish();
    say(&summary(&snapshot, &ended));
    conclude(saved, ended, &folder, args.ground_truth.is_some())
}

fn save_map(engine: &mut SlamEngine, path: &Path) -> Result<SavedMap, CliError> {
    if let Some(folder) = path.parent() {
        atomic::create_folder(folder)?;
    }
    engine.save_map(path)
}

/// Tells where the results are, and turns what went wrong into one error.
fn conclude(
    saved: Result<Results, CliError>,
    ended: Ended,
    folder: &OutputFolder,
    asked_to_evaluate: bool,
) -> Result<Finished, CliError> {
    let results = match (saved, ended.error) {
        (Ok(results), None) => results,
        (Ok(_), Some(error)) => {
            say(&format!(
                "what was computed is in {}",
                folder.path().display()
            ));
            return Err(error);
        }
        (Err(saving), None) => return Err(saving),
        (Err(saving), Some(run)) => {
            return Err(CliError::RunAndSaving {
                run: Box::new(run),
                saving: Box::new(saving),
            });
        }
    };
    let names: Vec<String> = results
        .files
        .iter()
        .filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let unevaluated = match results.accuracy {
        Some(Ok(text)) => {
            say(&text);
            results.flawed_truth.filter(|_| asked_to_evaluate)
        }
        Some(Err(error)) if asked_to_evaluate => Some(error),
        Some(Err(error)) => {
            say(&format!("not compared with the ground truth: {error}"));
            None
        }
        None => None,
    };
    say(&format!(
        "written to {}: {}",
        folder.path().display(),
        names.join(", ")
    ));
    match unevaluated {
        Some(error) => Err(error),
        None if ended.interrupted => Ok(Finished::Interrupted),
        None => Ok(Finished::Done),
    }
}

/// `logs/` and the name of the folder or file.
fn default_out(path: &Path) -> PathBuf {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = match full.is_dir() {
        true => full.file_name(),
        false => full.file_stem(),
    };
    Path::new("logs").join(name.unwrap_or("run".as_ref()))
}

/// Sizes the thread pool; gives its size.
pub fn start_threads(jobs: Option<usize>) -> Result<usize, CliError> {
    let jobs = match jobs {
        Some(jobs) => jobs,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    rayon::ThreadPoolBuilder::new()
        .num_threads(jobs)
        .build_global()
        .map_err(|cause| CliError::Threads { jobs, cause })?;
    Ok(jobs)
}

/// What became of the frames.
fn summary(snapshot: &MapSnapshot, ended: &Ended) -> String {
    let of = |state| snapshot.frames.iter().filter(|f| f.state == state).count();
    let maps = snapshot.frames.iter().map(|f| f.submap).max();
    let mut text = format!(
        "{} frames in {:.1} s ({:.2} a second): {} tracked, {} lost, {} relocalised; {} keyframes, {} edges, {} of them loops",
        ended.frames,
        ended.seconds,
        ended.frames as f64 / ended.seconds.max(1e-9),
        of(TrackingState::Tracking) + of(TrackingState::Initialising),
        of(TrackingState::Lost),
        of(TrackingState::Relocalised),
        snapshot.keyframes.len(),
        snapshot.edges.len(),
        snapshot.loop_edges().count(),
    );
    if let Some(last @ 1..) = maps {
        text.push_str(&format!("; {} unconnected maps", last + 1));
    }
    if snapshot.keyframes.is_empty() && !snapshot.frames.is_empty() {
        text.push_str("; nothing was mapped, as no frame showed the network anything usable");
    }
    if ended.interrupted {
        text.push_str("; ended by Ctrl-C");
    }
    text
}

/// Options of the demo.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Output folder.
    #[arg(long, value_name = "DIR", default_value = "logs/demo")]
    pub out: PathBuf,
    /// Threads for the network and everything else [default: all cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub jobs: Option<usize>,
    /// No progress bar (there is none in a pipe either).
    #[arg(long)]
    pub no_progress: bool,
}

/// Runs the bundled model on the bundled sequence, calibrated, and points at the report.
pub fn demo(args: &DemoArgs) -> Result<Finished, CliError> {
    say("A walk around a room, tracked by the bundled mini model: watch it close the loop.");
    let finished = run(&RunArgs {
        path: assets::find(assets::DEMO_SEQUENCE)?,
        config: ConfigArgs::default(),
        options: RunOptions {
            calibrated: true,
            ..Default::default()
        },
        start: 0,
        end: None,
        out: Some(args.out.clone()),
        map: None,
        save_map: None,
        force: true,
        ground_truth: None,
        no_progress: args.no_progress,
        jobs: args.jobs,
        #[cfg(feature = "bags")]
        bag: BagArgs::default(),
    })?;
    let report = args.out.join("report.html");
    say(&format!("open {} in a browser", report.display()));
    Ok(finished)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;
    use crate::map::EdgeKind::{Consecutive, Loop, Neighbour};
    use crate::map::{FrameRecord, MapEdge};

    fn ended(frames: usize, error: Option<CliError>, interrupted: bool) -> Ended {
        Ended {
            frames,
            seconds: 2.0,
            interrupted,
            error,
        }
    }

    fn folder() -> (tempfile::TempDir, OutputFolder) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let folder = OutputFolder::create(root.path(), false).expect("a new folder");
        (root, folder)
    }

    fn results(accuracy: Option<Result<String, CliError>>) -> Results {
        Results {
            files: Vec::new(),
            accuracy,
            flawed_truth: None,
        }
    }

    fn failure(text: &str) -> CliError {
        CliError::NoFrames { what: text.into() }
    }

    #[test]
    fn the_summary_counts_every_state_and_loop() {
        let frame = |index: usize, state, submap| FrameRecord {
            state,
            submap,
            ..FrameRecord::lost(index, Default::default(), Sim3::identity())
        };
        use TrackingState::{Initialising, Lost, Relocalised, Tracking};
        let snapshot = MapSnapshot {
            // Keyframes 2 and 0 are neighbours, which is no loop.
            edges: [
                (0, 1, Consecutive),
                (1, 2, Consecutive),
                (2, 0, Neighbour),
                (2, 1, Loop),
            ]
            .map(|(i, j, kind)| MapEdge { i, j, kind })
            .to_vec(),
            frames: vec![
                frame(0, Initialising, 0),
                frame(1, Tracking, 0),
                frame(2, Lost, 0),
                frame(3, Lost, 0),
                frame(4, Relocalised, 0),
                frame(5, Initialising, 1),
            ],
            ..Default::default()
        };
        let text = summary(&snapshot, &ended(6, None, true));
        for part in [
            "6 frames in 2.0 s (3.00 a second)",
            "3 tracked, 2 lost, 1 relocalised",
            "4 edges, 1 of them loops",
            "2 unconnected maps",
            "Ctrl-C",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn every_failure_reaches_the_exit_code() {
        let (_root, folder) = folder();
        let done = conclude(Ok(results(None)), ended(1, None, false), &folder, false);
        assert!(matches!(done, Ok(Finished::Done)));
        let done = conclude(Ok(results(None)), ended(1, None, true), &folder, false);
        assert!(matches!(done, Ok(Finished::Interrupted)));

        let error = Some(failure("run"));
        let done = conclude(Ok(results(None)), ended(1, error, true), &folder, false);
        assert!(done.is_err_and(|e| e.to_string().contains("run")));

        let error = Some(failure("run"));
        let done = conclude(Err(failure("disk")), ended(1, error, false), &folder, false);
        let message = done.expect_err("both failed").to_string();
        assert!(
            message.contains("run") && message.contains("disk"),
            "{message}"
        );

        // A dataset's own ground truth may be of no use; one that was asked for may not.
        for (asked, fails) in [(false, false), (true, true)] {
            let accuracy = Some(Err(failure("truth")));
            let done = conclude(Ok(results(accuracy)), ended(1, None, false), &folder, asked);
            assert_eq!(done.is_err(), fails);
        }
    }

    #[test]
    fn the_default_folder_bears_the_sequence_s_name() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let sequence = root.path().join("fr1.xyz");
        std::fs::create_dir(&sequence).expect("a folder");
        std::fs::write(root.path().join("walk.mp4"), "").expect("a file");
        assert_eq!(default_out(&sequence), Path::new("logs/fr1.xyz"));
        assert_eq!(default_out(&sequence.join(".")), Path::new("logs/fr1.xyz"));
        assert_eq!(
            default_out(&root.path().join("walk.mp4")),
            Path::new("logs/walk")
        );
        assert_eq!(default_out(Path::new("/")), Path::new("logs/run"));
    }
}

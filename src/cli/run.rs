//! `mast3r-slam run`: frames in, trajectory and map out.

#[cfg(feature = "bags")]
use super::bag_args::BagArgs;
#[cfg(not(feature = "bags"))]
use super::frames;
use super::frames::FrameRange;
use super::grid;
use super::jobs::start_threads;
use super::motion_args::MotionArgs;
use super::output::{OutputFolder, default_out};
use super::progress::{Progress, with_build_progress};
#[cfg(all(feature = "bags", feature = "ros"))]
use super::record::Recording;
use super::session::{self, Ended};
use super::settings::{ConfigArgs, RunOptions, threads};
use super::splat::{self, live::RunSplat};
#[cfg(feature = "view")]
use super::view_args::ViewArgs;
use super::{CliError, Finished, interrupt, say};
use crate::config::DepthConfig;
use crate::eval::Evaluation;
use crate::files::export::{self, ExportError};
use crate::files::folder_of;
use crate::map::store::{self, Kind};
use crate::map::{MapSnapshot, TrackingState, saved};
use crate::slam::{MapMode, MappingCounts, SavedMapError, Slam};
use crate::slam_builder::{DEMO_SEQUENCE, DepthFeed, Map, MotionFeed, Written, find_asset};
use crate::source::{DepthOptions, Source, SourceFrame};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Track a sequence; write its trajectory, map and report.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// A dataset folder (TUM RGB-D, EuRoC, 7-Scenes, ETH3D-SLAM), a folder of images, a video, or a
    /// ROS 2 bag.
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
    /// The map's file. It is created if there is none, or continued, and changes of the map are in it within two
    /// seconds. A file of --save-map or the node's ~/save_map is continued and stays as it is.
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// Leave the map as it is: only locate the camera in it.
    #[arg(long, requires = "map")]
    pub read_only: bool,
    /// Write the map into one file that --map and the node's ~/load_map can go on with. Only a map is replaced, unless
    /// --force is given.
    #[arg(long, value_name = "FILE")]
    pub save_map: Option<PathBuf>,
    /// Write the occupancy grid that Nav2's map_server reads: map.pgm and map.yaml in a folder, or a file that ends in
    /// .yaml or .pgm with the other one beside it. `grid.*` in the configuration says how it is made.
    #[arg(long, value_name = "DIR_OR_FILE")]
    pub grid: Option<PathBuf>,
    /// Make a map of 3D Gaussians beside the run and write it to FILE: .ply, .compressed.ply or .spz [default: splat.ply
    /// in the output folder]. `splat.*` in the configuration says how it is made.
    #[arg(long, value_name = "FILE")]
    pub splat: Option<Option<PathBuf>>,
    /// An image of the camera's size that is black where the camera sees the robot itself, or anything else that is not
    /// the scene: those pixels match nothing and enter no pointmap, no cloud and no grid.
    #[arg(long, value_name = "IMAGE")]
    pub mask: Option<PathBuf>,
    /// Replace the results of an earlier run in the output folder.
    #[arg(long)]
    pub force: bool,
    /// Ground-truth trajectory in TUM format [default: the dataset's own, if available].
    #[arg(long, value_name = "FILE")]
    pub ground_truth: Option<PathBuf>,
    /// No progress bar (a pipe never shows one).
    #[arg(long)]
    pub no_progress: bool,
    /// Threads for the network and everything else [default: all cores].
    #[arg(long, value_name = "N", value_parser = threads)]
    pub jobs: Option<usize>,
    #[command(flatten)]
    pub motion: MotionArgs,
    #[cfg(feature = "bags")]
    #[command(flatten)]
    pub bag: BagArgs,
    #[cfg(feature = "view")]
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Runs the sub-command.
pub fn run(args: &RunArgs) -> Result<Finished, CliError> {
    if args.end.is_some_and(|end| end <= args.start) {
        return Err(CliError::Usage(format!(
            "--end must be larger than --start, {}",
            args.start
        )));
    }
    let builder = args.options.apply(args.config.builder());
    let settings = builder.settings()?;
    super::readable("the frames", &args.path)?;
    #[cfg(all(feature = "bags", feature = "ros"))]
    args.bag.check(args.force)?;
    if let Some(mask) = &args.mask {
        super::readable("the mask", mask)?;
    }
    splat::live::check(args.splat.as_ref().and_then(Option::as_deref))?;
    if let Some(map) = &args.map {
        // Reject another file before the network is loaded.
        check_map(&saved::file_of(map), args.read_only)?;
    }
    if let Some(path) = &args.save_map
        && !args.force
    {
        saved::check_target(path).map_err(SavedMapError::from)?;
    }
    // Before the network is loaded: the port may be in use.
    #[cfg(feature = "view")]
    let view = args.view.open()?;
    let folder = args.out.clone().unwrap_or_else(|| default_out(&args.path));
    let folder = OutputFolder::create(&folder, args.force)?;
    // Before the source, which decodes on these threads.
    let jobs = start_threads(args.jobs)?;
    let config = &settings.config;
    let mut source = open(args, config.dataset.subsample, &config.depth)?;
    let motion = args.motion.open(&args.path, source.camera_frame())?;
    let title = source.describe();
    let ground_truth = match &args.ground_truth {
        Some(path) => {
            super::readable("the ground truth", path)?;
            Some(path.clone())
        }
        None => source.ground_truth().map(Path::to_owned),
    };
    let total = source.remaining();
    let mut builder = with_build_progress(builder)
        .source(source.as_mut())
        .jobs(jobs);
    if let Some(mask) = &args.mask {
        builder = builder.mask(mask);
    }
    if builder.knows_format() {
        say(&format!("frames: {title}"));
    }
    let mut slam = builder.build()?;
    super::tell(&slam.about().notes);
    say(&format!("network: {}", slam.about().description));
    if let Some(map) = &args.map {
        open_map(&mut slam, &saved::file_of(map), args.read_only)?;
    }
    #[cfg(all(feature = "bags", feature = "ros"))]
    let mut recording = Recording::begin(args.bag.record.as_deref(), source.as_mut(), &slam)?;

    let splats = (args.splat.is_some() || settings.config.splat.enable)
        .then(|| {
            let named = args.splat.clone().flatten();
            let path = named.unwrap_or_else(|| folder.path().join(crate::map::splat::FILE_NAME));
            RunSplat::start(&settings.config, &slam, path)
        })
        .flatten();
    #[cfg(feature = "view")]
    let feed = view.start(&slam);
    #[cfg(feature = "view")]
    if let (Some(feed), Some(splats)) = (&feed, &splats) {
        let asker = splats.asker();
        feed.show_splats(crate::view::SplatReader::new(move || asker.shown()));
    }
    let camera = source.depth_camera();
    let mut depth = camera.and_then(|camera| DepthFeed::new(&slam, camera));
    let mut motion = MotionFeed::new(&mut slam, motion);
    interrupt::install()?;
    folder.clear()?;
    say(&format!("output: {}", folder.path().display()));
    let mut progress = Progress::new(total, !args.no_progress);
    let start = Instant::now();
    let mut process = |frame: &SourceFrame, next: Option<&SourceFrame>| {
        if let Some(depth) = &mut depth {
            depth.give(&mut slam, frame, next)?;
        }
        if let Some(motion) = &mut motion {
            motion.give(&mut slam, frame.stamp);
        }
        let next = next.map(|next| (&next.image).into());
        let tracked = slam.process_before(&frame.into(), next.as_ref())?;
        #[cfg(all(feature = "bags", feature = "ros"))]
        if let Some(recording) = &mut recording {
            recording.frame(&tracked, &mut slam);
        }
        #[cfg(feature = "view")]
        if let Some(feed) = &feed {
            feed.frame(&tracked, &mut slam);
        }
        if let Some(splats) = &splats {
            splats.frame(&mut slam);
        }
        Ok(tracked)
    };
    let stop = &interrupt::requested;
    let mut ended = session::drive(source.as_mut(), &mut process, &mut progress, stop);
    progress.stage("finishing the map");
    let moved = motion.as_ref().map(|motion| motion.summary(&slam));
    let up = slam.up();
    let map = finish(slam, &mut ended);
    let incomplete = map.file_failure();
    let seconds = start.elapsed().as_secs_f64();
    progress.stage("writing the results");
    let mut map = map
        .titled(title)
        .lasting(seconds)
        .compared_with(ground_truth);
    if args.grid.is_some() {
        let cells = grid::make(
            map.snapshot(),
            up.as_ref().map(|up| &*up.direction),
            &settings.config,
        );
        map = map.with_grid(cells);
    }
    let splatted = splats.map_or(Ok(Vec::new()), |splats| splats.finish(map.snapshot()));
    let splatted = splatted.map(|rows| map.show_splats(rows));
    let mut saved = map.write(folder.path()).map_err(CliError::from);
    saved = saved.and_then(|results| splatted.map(|()| results));
    #[cfg(all(feature = "bags", feature = "ros"))]
    if let Some(recording) = recording {
        match recording.close(&map) {
            Ok(bag) => say(&format!("recorded: {}", bag.display())),
            Err(error) => saved = saved.and(Err(error)),
        }
    }
    if let (Some(path), Some(cause)) = (&args.map, incomplete) {
        let path = path.clone();
        let error = SavedMapError::Incomplete { path, cause };
        saved = saved.and(Err(error.into()));
    }
    if let Some(path) = &args.save_map {
        match save_map(&mut map, path, args.force) {
            Ok(text) => say(&format!("map: {text}")),
            Err(error) => saved = saved.and(Err(error)),
        }
    }
    if let (Some(path), Some(cells)) = (&args.grid, map.grid()) {
        let written = grid::write(path, cells);
        saved = saved.and_then(|results| written.map(|()| results));
    }
    progress.finish();
    #[cfg(feature = "view")]
    view.end(map.snapshot(), ended.error.is_some());
    say(&summary(map.snapshot(), &ended, seconds, &map.counts()));
    if let Some(depth) = &depth {
        say(&depth.summary());
    }
    if let Some(moved) = &moved {
        say(moved);
    }
    conclude(saved, ended, &folder, args.ground_truth.as_deref())
}

/// Rejects a map that cannot be opened.
fn check_map(map: &Path, read_only: bool) -> Result<(), CliError> {
    match Kind::of(map).map_err(SavedMapError::from)? {
        Kind::Missing if !read_only && folder_of(map).is_dir() => Ok(()),
        Kind::Store | Kind::Packed | Kind::Missing => {
            store::Reader::open(map).map_err(SavedMapError::from)?;
            Ok(())
        }
        Kind::Saved | Kind::Foreign => {
            saved::Reader::open(map).map_err(SavedMapError::from)?;
            Ok(())
        }
    }
}

/// Opens the map and says what was found.
fn open_map(slam: &mut Slam, path: &Path, read_only: bool) -> Result<(), CliError> {
    let mode = match read_only {
        true => MapMode::ReadOnly,
        false => MapMode::Continue,
    };
    let before = slam.about().notes.len();
    let found = slam.open_map(path, mode)?;
    super::tell(&slam.about().notes[before..]);
    let found = match found {
        Some(map) => map.to_string(),
        None => format!("new, in {}", path.display()),
    };
    let use_of_it = match (slam.map_file(), read_only) {
        (Some(_), _) => "",
        (None, true) => "; read only",
        (None, false) => "; the file stays as it is",
    };
    say(&format!("map: {found}{use_of_it}"));
    Ok(())
}

/// Opens the frames given on the command line.
fn open(args: &RunArgs, stride: usize, depth: &DepthConfig) -> Result<Box<dyn Source>, CliError> {
    let units = Some(depth.units).filter(|units| *units > 0.0);
    let range = FrameRange {
        start: args.start,
        end: args.end,
        stride,
        depth: depth.enabled.then_some(DepthOptions { units }),
    };
    let calib = args.options.calib.as_deref();
    #[cfg(feature = "bags")]
    return args.bag.open(&args.path, &range, calib);
    #[cfg(not(feature = "bags"))]
    frames::open(&args.path, &range, calib)
}

/// The map in its current state; keeps only the first error, which is the cause.
fn finish(slam: Slam, ended: &mut Ended) -> Map {
    match slam.finish() {
        Ok(map) => map,
        Err(error) => {
            ended.error.get_or_insert(error.cause.into());
            *error.map
        }
    }
}

/// Writes the map. Replaces a file that is not a map only with `force`.
fn save_map(map: &mut Map, path: &Path, force: bool) -> Result<String, CliError> {
    if let Some(folder) = path.parent() {
        export::create_folder(folder)?;
    }
    if force && path.is_file() && saved::check_target(path).is_err() {
        std::fs::remove_file(path).map_err(|e| ExportError::io("replace", path, e))?;
    }
    Ok(map.save(path)?.to_string())
}

/// Prints the location of the results, and combines all failures into one error.
fn conclude(
    saved: Result<Written, CliError>,
    ended: Ended,
    folder: &OutputFolder,
    asked_truth: Option<&Path>,
) -> Result<Finished, CliError> {
    let results = match (saved, ended.error) {
        (Ok(results), None) => results,
        (Ok(_), Some(error)) => {
            say(&format!(
                "the results so far are in {}",
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
    let flawed = |evaluation: &Evaluation| CliError::flawed_truth(asked_truth?, evaluation);
    let unevaluated = match results.accuracy {
        Some(Ok(evaluation)) => {
            say(&evaluation.to_string());
            flawed(&evaluation)
        }
        Some(Err(error)) if asked_truth.is_some() => Some(error.into()),
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

/// Summarises frames, keyframes and edges.
fn summary(snapshot: &MapSnapshot, ended: &Ended, seconds: f64, counts: &MappingCounts) -> String {
    let of = |state| snapshot.frames.iter().filter(|f| f.state == state).count();
    let maps = snapshot.submaps().len();
    let mut text = format!(
        "{} frames in {:.1} s ({:.2} per second): {} tracked, {} lost, {} relocalised; {} keyframes, {} edges, {} of them loops",
        ended.frames,
        seconds,
        ended.frames as f64 / seconds.max(1e-9),
        of(TrackingState::Tracking) + of(TrackingState::Initialising),
        of(TrackingState::Lost),
        of(TrackingState::Relocalised),
        snapshot.keyframes.len(),
        snapshot.edges.len(),
        snapshot.loop_edges().count(),
    );
    if maps > 1 {
        text.push_str(&format!("; {maps} unconnected maps"));
    }
    if snapshot.keyframes.is_empty() && !snapshot.frames.is_empty() {
        text.push_str("; nothing was mapped, because no frame had usable pixels");
    }
    if ended.interrupted {
        text.push_str("; ended by Ctrl-C");
    }
    let shown = counts.rows();
    let shown = shown.iter().filter(|(_, count)| *count > 0);
    let shown: Vec<String> = shown.map(|(name, n)| format!("{n} {name}")).collect();
    if !shown.is_empty() {
        text.push_str(&format!("\nmapping: {}", shown.join(", ")));
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
    /// No progress bar (a pipe never shows one).
    #[arg(long)]
    pub no_progress: bool,
    #[cfg(feature = "view")]
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Runs the bundled model on the bundled sequence, calibrated, and prints the location of the
/// report.
pub fn demo(args: &DemoArgs) -> Result<Finished, CliError> {
    say("A walk around a room, tracked by the bundled mini model: watch it close the loop.");
    let finished = run(&RunArgs {
        path: find_asset(DEMO_SEQUENCE)?,
        config: ConfigArgs::default(),
        options: RunOptions {
            calibrated: true,
            ..Default::default()
        },
        start: 0,
        end: None,
        out: Some(args.out.clone()),
        map: None,
        read_only: false,
        save_map: None,
        grid: None,
        splat: None,
        mask: None,
        force: true,
        ground_truth: None,
        no_progress: args.no_progress,
        jobs: args.jobs,
        motion: MotionArgs::default(),
        #[cfg(feature = "bags")]
        bag: BagArgs::default(),
        #[cfg(feature = "view")]
        view: args.view.clone(),
    })?;
    let report = args.out.join("report.html");
    say(&format!("open {} in a browser", report.display()));
    Ok(finished)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::EvalError;
    use crate::geometry::Sim3;
    use crate::map::EdgeKind::{Consecutive, Loop, Neighbour};
    use crate::map::{FrameRecord, MapEdge};

    fn ended(frames: usize, error: Option<CliError>, interrupted: bool) -> Ended {
        Ended {
            frames,
            interrupted,
            error,
        }
    }

    fn folder() -> (tempfile::TempDir, OutputFolder) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let folder = OutputFolder::create(root.path(), false).expect("a new folder");
        (root, folder)
    }

    fn results(accuracy: Option<Result<Evaluation, EvalError>>) -> Written {
        Written {
            files: Vec::new(),
            accuracy,
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
            // Keyframes 2 and 0 are neighbours, so their edge is not a loop.
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
        let counts = MappingCounts {
            refused_edges: 3,
            ..Default::default()
        };
        let text = summary(&snapshot, &ended(6, None, true), 2.0, &counts);
        for part in [
            "6 frames in 2.0 s (3.00 per second)",
            "3 tracked, 2 lost, 1 relocalised",
            "4 edges, 1 of them loops",
            "2 unconnected maps",
            "Ctrl-C",
            "mapping: 3 ",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn every_failure_reaches_the_exit_code() {
        let (_root, folder) = folder();
        let done = conclude(Ok(results(None)), ended(1, None, false), &folder, None);
        assert!(matches!(done, Ok(Finished::Done)));
        let done = conclude(Ok(results(None)), ended(1, None, true), &folder, None);
        assert!(matches!(done, Ok(Finished::Interrupted)));

        let error = Some(failure("run"));
        let done = conclude(Ok(results(None)), ended(1, error, true), &folder, None);
        assert!(done.is_err_and(|e| e.to_string().contains("run")));

        let error = Some(failure("run"));
        let done = conclude(Err(failure("disk")), ended(1, error, false), &folder, None);
        let message = done.expect_err("both failed").to_string();
        assert!(
            message.contains("run") && message.contains("disk"),
            "{message}"
        );

        // A dataset's own ground truth may be unusable; one given explicitly must not be.
        for (asked, fails) in [(None, false), (Some(Path::new("truth.txt")), true)] {
            let accuracy = Some(Err(EvalError::Empty("ground truth")));
            let done = conclude(Ok(results(accuracy)), ended(1, None, false), &folder, asked);
            assert_eq!(done.is_err(), fails);
        }
    }
}

//! `mast3r-slam node`: SLAM as a node of the ROS graph.

use super::device::CameraImages;
use super::engine::{SlamEngine, WeightsHash};
use super::results::{self, RunInfo};
use super::run::start_threads;
use super::settings::{self, ConfigArgs, DeviceArg, RunOptions, Settings, ThreadsArg};
use super::{CliError, Finished, interrupt};
use crate::compute::device::{DeviceError, FramePoints};
use crate::config::{DeviceChoice, Threads};
use crate::geometry::{Calibration, Intrinsics};
use crate::map::{FrameRecord, MapSnapshot, saved};
use crate::ros::args::RosArgs;
use crate::ros::middleware::Middleware;
use crate::ros::names::{NameError, NodeNames};
use crate::ros::node::{
    Engine, EngineError, EngineFactory, ImageFormat, Node, NodeError, OnMap, OnSaved,
    Settings as NodeSettings,
};
use crate::slam::{
    Covariance6, FrameInput, MapLabel, Pace, PoseTable, SavedMap, SavedMapError, SlamError, System,
};
use arc_swap::ArcSwap;
use clap::{Args, ValueEnum};
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Run as a ROS 2 node: images from topics in; transforms, odometry, path and clouds out.
///
/// Everything is set by parameters, as of any node: `mast3r-slam node --ros-args -r image:=/camera/image_raw -r
/// camera_info:=/camera/camera_info -p device:=cuda`.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// How to talk to the ROS graph [default: r2r if the program was built with it].
    #[arg(long, value_enum)]
    pub client: Option<Client>,
    /// Threads for the network and everything else [default: all cores].
    #[arg(long, value_name = "N", value_parser = settings::threads)]
    pub jobs: Option<usize>,
    /// Record transforms, odometry, poses, path and clouds as a ROS 2 bag while the node runs.
    #[cfg(feature = "bags")]
    #[arg(long, value_name = "FILE.mcap")]
    pub record: Option<std::path::PathBuf>,
    /// --ros-args and what follows it.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ROS ARGUMENTS"
    )]
    pub ros: Vec<String>,
}

/// `--client`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Client {
    /// DDS spoken by the program itself; no ROS installation is needed.
    #[cfg(feature = "dds")]
    Dds,
    /// rcl of the sourced ROS, with its RMW.
    #[cfg(feature = "r2r")]
    R2r,
}

/// The node's name unless it is remapped.
const NAME: &str = "mast3r_slam";

/// Runs the sub-command.
pub fn run(args: &NodeArgs) -> Result<Finished, CliError> {
    let (ros, own) = RosArgs::split(&args.ros);
    if let Some(stray) = own.first() {
        return Err(CliError::Usage(format!(
            "{stray:?} makes no sense here; a node is set up by what follows --ros-args, such as -p device:=cuda"
        )));
    }
    let ros = RosArgs::parse(&ros).map_err(NodeError::from)?;
    let jobs = start_threads(args.jobs)?;
    interrupt::install_for("ending the node; Ctrl-C again quits at once")?;
    #[cfg(feature = "bags")]
    if let Some(path) = &args.record {
        super::record::check_new(path, false)?;
    }
    let client = join(args.client, &ros)?;
    #[cfg(feature = "bags")]
    let (client, tee) = super::record::while_running(client, args.record.as_deref())?;
    let node = Node::start(client, Arc::new(Factory { jobs }), &ros)?;
    node.run(&interrupt::requested);
    #[cfg(feature = "bags")]
    if let Some(path) = tee.map_or(Ok(None), |tee| tee.finish())? {
        tracing::info!("recorded: {}", path.display());
    }
    Ok(Finished::Done)
}

fn join(client: Option<Client>, ros: &RosArgs) -> Result<Arc<dyn Middleware>, CliError> {
    let name = |e: NameError| NodeError::from(e);
    let names = NodeNames::new(NAME, "/", &ros.remaps).map_err(name)?;
    #[cfg(feature = "r2r")]
    let default = Client::R2r;
    #[cfg(not(feature = "r2r"))]
    let default = Client::Dds;
    match client.unwrap_or(default) {
        #[cfg(feature = "dds")]
        Client::Dds => {
            let environment = crate::ros::dds::Environment::read();
            let environment = environment.map_err(|e| CliError::Usage(e.to_string()))?;
            let dds = crate::ros::dds::Dds::new(names, environment).map_err(NodeError::from)?;
            Ok(Arc::new(dds))
        }
        #[cfg(feature = "r2r")]
        Client::R2r => {
            let r2r = crate::ros::r2r::R2r::new(&names).map_err(NodeError::from)?;
            Ok(Arc::new(r2r))
        }
    }
}

/// Makes the product's SLAM.
struct Factory {
    jobs: usize,
}

fn failed(error: impl std::fmt::Display) -> EngineError {
    EngineError::Failed(error.to_string())
}

/// The settings of a run that say the same as those of the node.
fn run_settings(node: &NodeSettings) -> Result<Settings, CliError> {
    let path = |text: &String| (!text.is_empty()).then(|| text.into());
    let mut set = Vec::new();
    if !node.engine.is_empty() {
        set.push(format!("network.backend={}", node.engine));
    }
    if node.keyframe_capacity > 0 {
        set.push(format!(
            "local_opt.max_keyframes={}",
            node.keyframe_capacity
        ));
    }
    let config = ConfigArgs {
        config: path(&node.config),
        set,
        weights: path(&node.weights),
    };
    config.settings(&RunOptions {
        calibrated: node.use_calibration,
        no_calib: !node.use_calibration,
        device: node.device.map(|device| match device {
            DeviceChoice::Auto => DeviceArg::Auto,
            DeviceChoice::Cpu => DeviceArg::Cpu,
            DeviceChoice::Cuda => DeviceArg::Cuda,
        }),
        threads: node.threads.map(|threads| match threads {
            Threads::Single => ThreadsArg::Single,
            Threads::Pipelined => ThreadsArg::Pipelined,
        }),
        ..Default::default()
    })
}

impl EngineFactory for Factory {
    fn check(&self, settings: &NodeSettings) -> Result<(), EngineError> {
        if settings.load_map_on_start {
            if settings.map_path.is_empty() {
                return Err(failed(
                    "load_map_on_start is true and map_path is empty; set it to the map's file or folder",
                ));
            }
            let file = saved::file_of(Path::new(&settings.map_path));
            saved::Reader::open(&file).map_err(failed)?;
        }
        run_settings(settings).map(|_| ()).map_err(failed)
    }

    fn make(
        &self,
        settings: &NodeSettings,
        format: &ImageFormat,
        calibration: Option<&Calibration>,
    ) -> Result<Box<dyn Engine>, EngineError> {
        let settings = run_settings(settings).map_err(failed)?;
        let images = CameraImages {
            width: format.width,
            height: format.height,
            encoding: format.encoding,
            stride: format.stride,
        };
        let made = SlamEngine::for_images(&settings, calibration, images, self.jobs, Pace::Live);
        let (system, description, weights) = made.map_err(failed)?.into_parts();
        Ok(Box::new(LiveEngine {
            system,
            description,
            weights,
        }))
    }

    fn save(
        &self,
        settings: &NodeSettings,
        map: &MapSnapshot,
        folder: &Path,
    ) -> Result<String, EngineError> {
        let settings = run_settings(settings).map_err(failed)?;
        std::fs::create_dir_all(folder).map_err(|cause| {
            failed(CliError::OutputFolder {
                path: folder.to_owned(),
                cause,
            })
        })?;
        let info = RunInfo {
            title: format!("live map of {} frames", map.frames.len()),
            backend: settings.weights_name(),
            ground_truth: None,
            seconds: 0.0,
        };
        let written = results::write(folder, map, &settings, &info).map_err(failed)?;
        Ok(format!(
            "{} keyframes and {} frames written to {} ({} files and folders)",
            map.keyframes.len(),
            map.frames.len(),
            folder.display(),
            written.files.len()
        ))
    }
}

/// The system as the node drives it.
struct LiveEngine {
    system: System,
    description: String,
    weights: WeightsHash,
}

impl Engine for LiveEngine {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn process(&mut self, frame: FrameInput<'_>) -> Result<FrameRecord, EngineError> {
        self.system.process(frame).map_err(|error| match error {
            SlamError::Image { source, .. } | SlamError::Device(DeviceError::Image(source)) => {
                EngineError::Image(source.to_string())
            }
            other => failed(other),
        })
    }

    fn step(&self) -> Option<Isometry3<f64>> {
        self.system.step()
    }

    fn covariance(&self) -> Option<Covariance6> {
        self.system.covariance()
    }

    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), EngineError> {
        self.system.read_frame(dst).map_err(failed)
    }

    fn network_image(&self) -> ((usize, usize), Option<Intrinsics>) {
        self.system.network_image()
    }

    fn poses(&self) -> Arc<ArcSwap<PoseTable>> {
        self.system.poses()
    }

    fn read_keyframes(&mut self, ids: Vec<u32>, reply: OnMap) -> bool {
        self.system.read_keyframes(ids, reply)
    }

    fn read_map(&mut self, reply: OnMap) -> bool {
        self.system.read_map(reply)
    }

    fn save_map(
        &mut self,
        file: PathBuf,
        map_from_world: Option<Isometry3<f64>>,
        reply: OnSaved,
    ) -> bool {
        let weights = self.weights.clone();
        let label = move || {
            Ok(MapLabel {
                weights: weights.get().map_err(|e| e.to_string())?,
                map_from_world,
            })
        };
        let reply = move |saved: Result<SavedMap, SavedMapError>| {
            reply(saved.map_err(|e| EngineError::Refused(e.to_string())));
        };
        self.system.save_map(file, Box::new(label), Box::new(reply))
    }

    fn load_map(&mut self, file: &Path) -> Result<SavedMap, EngineError> {
        let refused = |error: &dyn std::fmt::Display| EngineError::Refused(error.to_string());
        let weights = self.weights.get().map_err(|e| refused(&e))?;
        self.system
            .load_map(file, &weights)
            .map_err(|error| match error {
                SavedMapError::File(error) => refused(&error),
                other => failed(other),
            })
    }

    fn set_growing(&mut self, grows: bool) {
        self.system.set_growing(grows);
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        self.system.reset().map_err(failed)
    }
}

//! `mast3r-slam node`: SLAM as a ROS 2 node.

use super::jobs::start_threads;
use super::progress::with_build_progress;
use super::settings;
use super::{CliError, Finished, interrupt};
use crate::ros::args::RosArgs;
use crate::ros::middleware::Middleware;
use crate::ros::node::{Node, NodeError};
use crate::slam::Slam;
use crate::wire::names::{NameError, NodeNames};
use clap::{Args, ValueEnum};
use std::sync::Arc;

/// Run as a ROS 2 node: images from topics in; transforms, odometry, path and clouds out.
///
/// All settings are ROS parameters: `mast3r-slam node --ros-args -r image:=/camera/image_raw -r
/// camera_info:=/camera/camera_info -p device:=cuda`.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// ROS client [default: r2r if the program was built with it].
    #[arg(long, value_enum)]
    pub client: Option<Client>,
    /// Threads for the network and everything else [default: all cores].
    #[arg(long, value_name = "N", value_parser = settings::threads)]
    pub jobs: Option<usize>,
    /// Load the network with these parameters, run the self-test and exit. Missing engines are built; no topic is joined.
    #[arg(long)]
    pub self_test: bool,
    /// Record transforms, odometry, poses, path and clouds to a ROS 2 bag while the node runs.
    #[cfg(feature = "bags")]
    #[arg(long, value_name = "FILE.mcap")]
    pub record: Option<std::path::PathBuf>,
    /// --ros-args and following arguments.
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
    /// Built-in DDS client; needs no ROS installation.
    #[cfg(feature = "dds")]
    Dds,
    /// rcl of the sourced ROS, with its RMW.
    #[cfg(feature = "r2r")]
    R2r,
}

/// Default node name.
const NAME: &str = "mast3r_slam";

/// Runs the sub-command.
pub fn run(args: &NodeArgs) -> Result<Finished, CliError> {
    let (ros, own) = RosArgs::split(&args.ros);
    if let Some(stray) = own.first() {
        return Err(CliError::Usage(format!(
            "unexpected argument {stray:?}; configure the node with --ros-args, such as -p device:=cuda"
        )));
    }
    let ros = RosArgs::parse(&ros).map_err(NodeError::from)?;
    let jobs = start_threads(args.jobs)?;
    interrupt::install_for("shutting down the node; press Ctrl-C again to quit immediately")?;
    if args.self_test {
        let builder = with_build_progress(Slam::builder().jobs(jobs));
        Node::self_test(builder, &names(&ros)?.full(), &ros)?;
        return Ok(Finished::Done);
    }
    #[cfg(feature = "bags")]
    if let Some(path) = &args.record {
        super::bag_args::check_new(path, false)?;
    }
    let client = join(args.client, &ros)?;
    #[cfg(feature = "bags")]
    let (client, recording) = super::record::while_running(client, args.record.as_deref())?;
    let builder = with_build_progress(Slam::builder().jobs(jobs));
    let node = Node::start(client, builder, &ros)?;
    let ended = node.run(&interrupt::requested);
    #[cfg(feature = "bags")]
    if let Some(path) = recording.map_or(Ok(None), |recording| recording.finish())? {
        tracing::info!("recorded: {}", path.display());
    }
    ended?;
    Ok(Finished::Done)
}

fn names(ros: &RosArgs) -> Result<NodeNames, CliError> {
    let name = |e: NameError| NodeError::from(e);
    Ok(NodeNames::new(NAME, "/", &ros.remaps).map_err(name)?)
}

fn join(client: Option<Client>, ros: &RosArgs) -> Result<Arc<dyn Middleware>, CliError> {
    let names = names(ros)?;
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

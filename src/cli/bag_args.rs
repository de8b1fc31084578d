//! Options of `run` for ROS 2 bags.

use super::frames::FrameRange;
use super::output::check_folder_of;
use super::{CliError, frames};
use crate::source::{self, BagTopics, Layout, Source};
use clap::Args;
use std::path::{Path, PathBuf};

/// Camera frame if the source does not provide one.
pub const CAMERA_FRAME: &str = "camera_optical";

/// Options of `run` for bags.
#[derive(Debug, Clone, Default, Args)]
pub struct BagArgs {
    /// Image topic of the bag [default: the only suitable one].
    #[arg(long, value_name = "TOPIC")]
    pub image_topic: Option<String>,
    /// Calibration topic of the bag's camera [default: camera_info in the namespace of the images].
    #[arg(long, value_name = "TOPIC")]
    pub camera_info_topic: Option<String>,
    /// Depth topic of the bag, with --depth [default: the only one, or the one that is registered].
    #[arg(long, value_name = "TOPIC", requires = "depth")]
    pub depth_topic: Option<String>,
    /// Calibration topic of the depth images [default: camera_info in their namespace].
    #[arg(long, value_name = "TOPIC", requires = "depth")]
    pub depth_info_topic: Option<String>,
    /// Record what a node would publish (transforms, odometry, path, clouds) to a ROS 2 bag.
    #[cfg(feature = "ros")]
    #[arg(long, value_name = "FILE.mcap")]
    pub record: Option<PathBuf>,
}

impl BagArgs {
    /// Opens the frame source with the selected topics.
    pub fn open(
        &self,
        path: &Path,
        range: &FrameRange,
        calib: Option<&Path>,
    ) -> Result<Box<dyn Source>, CliError> {
        let topics = BagTopics {
            image: self.image_topic.clone(),
            camera_info: self.camera_info_topic.clone(),
            depth: self.depth_topic.clone(),
            depth_info: self.depth_info_topic.clone(),
        };
        if topics.is_empty() {
            return frames::open(path, range, calib);
        }
        let layout = source::detect(path)?;
        if layout != Layout::Bag {
            return Err(CliError::Usage(format!(
                "options ending in -topic apply to ROS 2 bags only, but {} is {}",
                path.display(),
                layout.name()
            )));
        }
        Ok(source::open_bag(path, range.options(calib)?, &topics)?)
    }

    /// Rejects an output file that cannot be written, before any work.
    #[cfg(feature = "ros")]
    pub fn check(&self, force: bool) -> Result<(), CliError> {
        match &self.record {
            Some(path) => check_new(path, force),
            None => Ok(()),
        }
    }
}

/// Rejects a bag that exists already (unless `force`), or whose folder is not writable.
pub fn check_new(path: &Path, force: bool) -> Result<(), CliError> {
    if path.extension().is_none_or(|e| e != "mcap") {
        let path = path.display();
        return Err(CliError::Usage(format!(
            "{path}: bags are written as MCAP; use a file name ending in .mcap"
        )));
    }
    if path.exists() && !force {
        let path = path.display();
        return Err(CliError::Usage(format!(
            "{path} exists; choose another name or replace it with --force"
        )));
    }
    check_folder_of(path)
}

//! `mast3r-slam bag`: converts other sequences to ROS 2 bags.

use super::bag_args::{CAMERA_FRAME, check_new};
use super::frames::{self, FrameRange};
use super::progress::Progress;
use super::settings::positive;
use super::{CliError, Finished, interrupt, say};
use crate::bag::{BagWriter, Channel};
use crate::files::export::ExportError;
use crate::map::keyframes;
use crate::source::SourceFrame;
use crate::source::camera_info;
use crate::trajectory::StampedPose;
use crate::trajectory::{self, BadRows};
use crate::wire::Qos;
use crate::wire::messages::Header;
use crate::wire::messages::geometry::{Pose, PoseStamped};
use crate::wire::messages::sensor::{CameraInfo, CompressedImage, Image};
use crate::wire::names;
use clap::{Args, Subcommand};
use serde_bytes::Bytes;
use std::collections::VecDeque;
use std::path::PathBuf;

/// ROS 2 bags.
#[derive(Debug, Clone, Subcommand)]
pub enum BagCommand {
    Convert(ConvertArgs),
}

/// Write a dataset, a folder of images, a video or another bag as a ROS 2 bag: images, camera_info
/// if the calibration is known, and ground truth, if available, as geometry_msgs/PoseStamped on
/// /ground_truth.
#[derive(Debug, Clone, Args)]
pub struct ConvertArgs {
    /// A dataset folder, a folder of images, a video, or a bag.
    pub path: PathBuf,
    /// The bag to write.
    #[arg(value_name = "OUT.mcap")]
    pub out: PathBuf,
    /// Write sensor_msgs/CompressedImage: JPEG and PNG files unchanged, everything else as PNG.
    #[arg(long)]
    pub compressed: bool,
    /// Calibration of the camera, overriding the sequence's own.
    #[arg(long, value_name = "FILE")]
    pub calib: Option<PathBuf>,
    /// Topic of the images; camera_info is published in the same namespace, compressed images below
    /// it.
    #[arg(long, value_name = "TOPIC", default_value = "/camera/image_raw")]
    pub image_topic: String,
    /// The camera's optical frame [default: that of the input bag, else camera_optical].
    #[arg(long, value_name = "FRAME")]
    pub frame_id: Option<String>,
    /// First frame, counted from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub start: usize,
    /// The frame to stop before [default: the end].
    #[arg(long, value_name = "N")]
    pub end: Option<usize>,
    /// Write every N-th frame.
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    pub stride: usize,
    /// Overwrite an existing file.
    #[arg(long)]
    pub force: bool,
}

/// Frame of the ground-truth poses.
const TRUTH_FRAME: &str = "world";

/// Runs the sub-command.
pub fn run(command: &BagCommand) -> Result<Finished, CliError> {
    let BagCommand::Convert(args) = command;
    names::check_absolute(&args.image_topic, "topic")
        .map_err(|e| CliError::Usage(format!("--image-topic: {e}")))?;
    super::readable("the frames", &args.path)?;
    check_new(&args.out, args.force)?;
    let range = FrameRange {
        start: args.start,
        end: args.end,
        stride: args.stride,
        depth: None,
    };
    let mut source = frames::open(&args.path, &range, args.calib.as_deref())?;
    let truth = match source.ground_truth() {
        Some(path) => {
            let read =
                trajectory::read(path, BadRows::Skip).map_err(crate::eval::EvalError::from)?;
            let mut poses = read.poses;
            poses.sort_by_key(|p| p.stamp);
            poses
        }
        None => Vec::new(),
    };
    let frame_id = args.frame_id.as_deref().or(source.camera_frame());
    let frame_id = frame_id.unwrap_or(CAMERA_FRAME).to_owned();
    let mut out = Output::new(args, frame_id, truth)?;
    let info = source.calibration().copied();
    let progress = Progress::new(source.remaining(), true);
    interrupt::install_for("stopping after this frame; Ctrl-C again quits at once")?;
    let mut images = 0;
    let ended = loop {
        if interrupt::requested() {
            break Finished::Interrupted;
        }
        match source.next_frame()? {
            Some(frame) => out.frame(
                &frame,
                info.map(|c| camera_info::info(&c, out.header(&frame))),
            )?,
            None => break Finished::Done,
        }
        images += 1;
        progress.image();
    };
    progress.finish();
    if images == 0 && ended == Finished::Done {
        return Err(CliError::NoFrames {
            what: source.describe(),
        });
    }
    let path = out.bag.finish()?;
    say(&format!("{}: {images} images", path.display()));
    Ok(ended)
}

struct Output<'a> {
    args: &'a ConvertArgs,
    frame_id: String,
    bag: BagWriter,
    image: Channel,
    camera_info: Channel,
    truth: Option<(Channel, VecDeque<StampedPose>)>,
}

impl<'a> Output<'a> {
    fn new(
        args: &'a ConvertArgs,
        frame_id: String,
        truth: Vec<StampedPose>,
    ) -> Result<Self, CliError> {
        let mut bag = BagWriter::create(&args.out)?;
        let topic = args.image_topic.as_str();
        let namespace = topic
            .rsplit_once('/')
            .map_or("", |(namespace, _)| namespace);
        let qos = Qos::reliable(10);
        let image = match args.compressed {
            true => bag.topic::<CompressedImage<'_>>(&format!("{topic}/compressed"), qos)?,
            false => bag.topic::<Image<'_>>(topic, qos)?,
        };
        let camera_info = bag.topic::<CameraInfo>(&format!("{namespace}/camera_info"), qos)?;
        let truth = match truth.is_empty() {
            true => None,
            false => Some((
                bag.topic::<PoseStamped>("/ground_truth", qos)?,
                truth.into(),
            )),
        };
        Ok(Self {
            args,
            frame_id,
            bag,
            image,
            camera_info,
            truth,
        })
    }

    fn header(&self, frame: &SourceFrame) -> Header {
        Header::new(frame.stamp, &self.frame_id)
    }

    fn frame(&mut self, frame: &SourceFrame, info: Option<CameraInfo>) -> Result<(), CliError> {
        while let Some((channel, poses)) = &mut self.truth
            && let Some(pose) = poses.pop_front_if(|p| p.stamp <= frame.stamp)
        {
            let at = &pose.world_from_camera;
            let message = PoseStamped {
                header: Header::new(pose.stamp, TRUTH_FRAME),
                pose: Pose::from(&at.rigid()),
            };
            self.bag.write(*channel, pose.stamp, &message)?;
        }
        let header = self.header(frame);
        match self.args.compressed {
            true => {
                let (format, data) = self.file(frame)?;
                let message = CompressedImage {
                    header,
                    format: format.to_owned(),
                    data: Bytes::new(&data),
                };
                self.bag.write(self.image, frame.stamp, &message)?;
            }
            false => {
                let message = Image {
                    header,
                    height: frame.image.height as u32,
                    width: frame.image.width as u32,
                    encoding: "rgb8".to_owned(),
                    is_bigendian: 0,
                    step: 3 * frame.image.width as u32,
                    data: Bytes::new(&frame.image.data),
                };
                self.bag.write(self.image, frame.stamp, &message)?;
            }
        }
        if let Some(info) = info {
            self.bag.write(self.camera_info, frame.stamp, &info)?;
        }
        Ok(())
    }

    /// The frame's own file if its format is allowed in a message, otherwise a PNG.
    fn file(&self, frame: &SourceFrame) -> Result<(&'static str, Vec<u8>), ExportError> {
        let extension = frame.origin.extension().and_then(|e| e.to_str());
        let format = match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("jpg" | "jpeg") => Some("jpeg"),
            Some("png") => Some("png"),
            _ => None,
        };
        // The origin of a frame from a video or bag is not an image file.
        let own = format.filter(|_| frame.origin.is_file());
        match own.map(|format| (format, std::fs::read(&frame.origin))) {
            Some((format, Ok(bytes))) => Ok((format, bytes)),
            _ => Ok(("png", keyframes::png(&frame.image, &self.args.out)?)),
        }
    }
}

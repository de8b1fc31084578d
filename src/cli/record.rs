//! `run` on ROS 2 bags: which topics to read, and what is recorded.

use super::engine::SlamEngine;
use super::frames::FrameRange;
use super::output::check_folder_of;
use super::session::Engine;
use super::{CliError, frames};
use crate::map::{ExportError, FrameRecord, MapSnapshot};
#[cfg(any(feature = "dds", feature = "r2r"))]
use crate::ros::middleware::Middleware;
use crate::ros::node::{Recorder, Seen};
#[cfg(any(feature = "dds", feature = "r2r"))]
use crate::ros::tee::Tee;
use crate::slam::PoseTable;
use crate::source::{self, BagTopics, Layout, Source, SourceFrame};
use arc_swap::ArcSwap;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The camera's frame where the source names none.
pub const CAMERA_FRAME: &str = "camera_optical";

/// Options of `run` that have to do with bags.
#[derive(Debug, Clone, Default, Args)]
pub struct BagArgs {
    /// The bag's topic of images [default: the one that is obviously the camera].
    #[arg(long, value_name = "TOPIC")]
    pub image_topic: Option<String>,
    /// The bag's topic of the camera's calibration [default: camera_info beside the images].
    #[arg(long, value_name = "TOPIC")]
    pub camera_info_topic: Option<String>,
    /// Record what a node would publish (transforms, odometry, path, clouds) as a ROS 2 bag.
    #[arg(long, value_name = "FILE.mcap")]
    pub record: Option<PathBuf>,
}

impl BagArgs {
    /// Opens what the frames come from, with the topics that are named.
    pub fn open(
        &self,
        path: &Path,
        range: &FrameRange,
        calib: Option<&Path>,
    ) -> Result<Box<dyn Source>, CliError> {
        let topics = BagTopics {
            image: self.image_topic.clone(),
            camera_info: self.camera_info_topic.clone(),
        };
        if topics.is_empty() {
            return frames::open(path, range, calib);
        }
        let layout = source::detect(path)?;
        if layout != Layout::Bag {
            return Err(CliError::Usage(format!(
                "--image-topic and --camera-info-topic are for ROS 2 bags; {} is {}",
                path.display(),
                layout.name()
            )));
        }
        Ok(source::open_bag(path, range.options(calib)?, &topics)?)
    }

    /// Refuses a file that cannot be written, before any work.
    pub fn check(&self, force: bool) -> Result<(), CliError> {
        match &self.record {
            Some(path) => check_new(path, force),
            None => Ok(()),
        }
    }

    /// An engine whose frames are recorded, if that is asked for.
    pub fn recorded(
        &self,
        engine: SlamEngine,
        camera_frame: Option<&str>,
        first: &SourceFrame,
        min_confidence: f32,
    ) -> Result<Recorded, CliError> {
        let frame = camera_frame.filter(|name| !name.is_empty());
        let frame = frame.unwrap_or(CAMERA_FRAME);
        let begin = |path| Recorder::create(path, frame, first.stamp, min_confidence);
        let recorder = self.record.as_deref().map(begin).transpose()?;
        Ok(Recorded {
            recording: recorder.map(|recorder| Recording::new(recorder, &engine)),
            engine,
        })
    }
}

/// Refuses a bag to be written that is there already (unless `force`), or whose folder cannot be written to.
pub fn check_new(path: &Path, force: bool) -> Result<(), CliError> {
    if path.extension().is_none_or(|e| e != "mcap") {
        let path = path.display();
        return Err(CliError::Usage(format!(
            "{path}: bags are written as MCAP; give the file a name that ends in .mcap"
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

/// A node's client, and what records it if that is asked for.
#[cfg(any(feature = "dds", feature = "r2r"))]
pub type Taped = (Arc<dyn Middleware>, Option<Arc<Tee>>);

/// The client for a node that is recorded into `path`, if there is one.
#[cfg(any(feature = "dds", feature = "r2r"))]
pub fn while_running(client: Arc<dyn Middleware>, path: Option<&Path>) -> Result<Taped, CliError> {
    let Some(path) = path else {
        return Ok((client, None));
    };
    let tee = Arc::new(Tee::new(client, path)?);
    Ok((Arc::clone(&tee) as Arc<dyn Middleware>, Some(tee)))
}

/// The system, and a bag of what it does.
pub struct Recorded {
    engine: SlamEngine,
    recording: Option<Recording>,
}

struct Recording {
    recorder: Recorder,
    poses: Arc<ArcSwap<PoseTable>>,
    sender: Sender<MapSnapshot>,
    keyframes: Receiver<MapSnapshot>,
    /// Keyframes that were asked for.
    asked: u32,
    /// Nothing is written any more after a failure.
    failure: Option<ExportError>,
}

impl Recorded {
    /// Completes the bag with the finished map; gives the engine back, and the bag's path.
    pub fn close(mut self, map: &MapSnapshot) -> (SlamEngine, Result<Option<PathBuf>, CliError>) {
        let recording = self.recording.take();
        let closed = recording.map(|recording| recording.close(&mut self.engine, map));
        (self.engine, closed.transpose())
    }
}

impl Recording {
    fn new(recorder: Recorder, engine: &SlamEngine) -> Self {
        let (sender, keyframes) = channel();
        let poses = engine.poses();
        // Those of a map that was loaded come with the whole map only.
        let asked = poses.load().poses.len() as u32;
        Self {
            recorder,
            poses,
            sender,
            keyframes,
            asked,
            failure: None,
        }
    }

    fn frame(&mut self, record: &FrameRecord, engine: &mut SlamEngine) {
        let table = self.poses.load_full();
        if self.failure.is_none() {
            let (step, covariance) = (engine.step(), engine.covariance());
            let seen = Seen {
                record,
                step: step.as_ref(),
                covariance: covariance.as_ref(),
                external: None,
            };
            self.failure = self.recorder.frame(&seen, &table).err();
        }
        self.read(engine);
        self.keep();
    }

    /// Asks for keyframes that are new. What the mapping side has no time for now is asked for later.
    fn read(&mut self, engine: &mut SlamEngine) {
        let known = self.poses.load().poses.len() as u32;
        // A map that began anew counts from 0 again.
        self.asked = self.asked.min(known);
        if self.asked == known || self.failure.is_some() {
            return;
        }
        let sender = self.sender.clone();
        let reply = Box::new(move |map| {
            // Nobody listens only when the run is over.
            let _ = sender.send(map);
        });
        if engine.read_keyframes((self.asked..known).collect(), reply) {
            self.asked = known;
        }
    }

    fn close(mut self, engine: &mut SlamEngine, map: &MapSnapshot) -> Result<PathBuf, CliError> {
        self.read(engine);
        self.keep();
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        let table = self.poses.load();
        Ok(self.recorder.finish(map.clone(), &table)?)
    }

    /// Writes the keyframes that have been read.
    fn keep(&mut self) {
        while let Ok(map) = self.keyframes.try_recv() {
            if self.failure.is_none() {
                self.failure = self.recorder.keyframes(&map).err();
            }
        }
    }
}

impl Engine for Recorded {
    fn describe(&self) -> String {
        self.engine.describe()
    }

    fn process(&mut self, frame: SourceFrame) -> Result<FrameRecord, CliError> {
        let record = self.engine.process(frame)?;
        if let Some(recording) = &mut self.recording {
            recording.frame(&record, &mut self.engine);
        }
        Ok(record)
    }

    fn finish(&mut self) -> Result<(), CliError> {
        self.engine.finish()
    }

    fn snapshot(&self) -> MapSnapshot {
        self.engine.snapshot()
    }
}

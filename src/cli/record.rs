//! Recording what a run or a node publishes as a ROS 2 bag.

use super::CliError;
use super::bag_args::CAMERA_FRAME;
use crate::map::MapSnapshot;
#[cfg(any(feature = "dds", feature = "r2r"))]
use crate::ros::middleware::Middleware;
use crate::ros::node::RunRecorder;
#[cfg(any(feature = "dds", feature = "r2r"))]
use crate::ros::recording;
use crate::slam::{PoseTable, Slam, TrackedFrame};
use crate::slam_builder::Map;
use crate::source::Source;
use arc_swap::ArcSwap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A node's client, and what records it if that is asked for.
#[cfg(any(feature = "dds", feature = "r2r"))]
pub type RecordedClient = (Arc<dyn Middleware>, Option<recording::Recording>);

/// The client for a node, recorded to `path` if given.
#[cfg(any(feature = "dds", feature = "r2r"))]
pub fn while_running(
    client: Arc<dyn Middleware>,
    path: Option<&Path>,
) -> Result<RecordedClient, CliError> {
    let Some(path) = path else {
        return Ok((client, None));
    };
    let recording = recording::Recording::beside(client, path)?;
    Ok((recording.client(), Some(recording)))
}

/// Maximum number of waiting replies of the mapping thread: keyframes are requested one reply at a
/// time.
const ANSWERS: usize = 1;

/// A recording of a run.
pub struct Recording {
    recorder: RunRecorder,
    poses: Arc<ArcSwap<PoseTable>>,
    sender: SyncSender<MapSnapshot>,
    keyframes: Receiver<MapSnapshot>,
    /// Keyframes below this id were written or requested.
    asked: u32,
    /// The first requested keyframe that has not been written.
    waiting: Option<u32>,
}

impl Recording {
    /// Begins a bag of what a run does, if `path` asks for it.
    pub fn begin(
        path: Option<&Path>,
        source: &mut dyn Source,
        slam: &Slam,
    ) -> Result<Option<Self>, CliError> {
        let Some(path) = path else {
            return Ok(None);
        };
        let start = source.peek()?.map(|frame| frame.stamp).unwrap_or_default();
        let frame = source.camera_frame().filter(|name| !name.is_empty());
        let frame = frame.unwrap_or(CAMERA_FRAME);
        let min_confidence = slam.config().output.c_conf;
        let recorder = RunRecorder::create(path, frame, start, min_confidence)?;
        Ok(Some(Self::new(recorder, slam)))
    }

    fn new(recorder: RunRecorder, slam: &Slam) -> Self {
        let (sender, keyframes) = sync_channel(ANSWERS);
        let poses = slam.poses();
        // Keyframes of a loaded map are written only with the whole map.
        let asked = after_newest(&poses.load());
        Self {
            recorder,
            poses,
            sender,
            keyframes,
            asked,
            waiting: None,
        }
    }

    /// Records a frame, and keyframes completed since the last one.
    pub fn frame(&mut self, tracked: &TrackedFrame, slam: &mut Slam) {
        let table = self.poses.load_full();
        self.recorder.frame(tracked, &table);
        self.read(slam);
        self.keep();
    }

    /// Requests new keyframes. If the mapping side is busy, they are requested again later.
    fn read(&mut self, slam: &mut Slam) {
        let known = after_newest(&self.poses.load());
        // A new map counts from 0 again.
        self.asked = self.asked.min(known);
        if self.asked == known || self.waiting.is_some() {
            return;
        }
        let sender = self.sender.clone();
        let reply = Box::new(move |map| {
            // There is room: this is the only reply in transit.
            let _ = sender.try_send(map);
        });
        if slam.read_keyframes((self.asked..known).collect(), reply) {
            self.waiting = Some(self.asked);
            self.asked = known;
        }
    }

    /// Writes the keyframes received so far.
    fn keep(&mut self) {
        if let Ok(map) = self.keyframes.try_recv() {
            self.recorder.keyframes(&map);
            self.waiting = None;
        }
    }

    /// Completes the bag with the finished map; returns its path.
    pub fn close(mut self, map: &Map) -> Result<PathBuf, CliError> {
        self.keep();
        let first = self.waiting.unwrap_or(self.asked);
        let all = map.snapshot();
        let rest = all.keyframes.iter().filter(|k| k.id >= first);
        self.recorder.keyframes(&MapSnapshot {
            intrinsics: all.intrinsics,
            keyframes: rest.cloned().collect(),
            ..Default::default()
        });
        let table = self.poses.load_full();
        let path = self.recorder.finish(all.clone(), &table)?;
        Ok(path.unwrap_or_default())
    }
}

/// The lowest id above those of all keyframes.
fn after_newest(table: &PoseTable) -> u32 {
    table.newest().map_or(0, |id| id + 1)
}

//! A Gaussian map that is made beside SLAM, in a thread of its own with a limited part of the time. Tracking never waits
//! for it: it reads the published poses, asks for keyframes, and answers questions between two steps.

use super::priority::lower_priority;
use super::rows::packed;
use super::views::{LIVE_VIEWS, Views, pointmap};
use super::{Measured, Measuring};
use crate::compute::splat::SplatError;
use crate::compute::splat::budget::Budget;
use crate::compute::splat::camera::{Camera, Rendering};
use crate::compute::splat::device::{AnchorMove, SplatDevice};
use crate::compute::splat::schedule::{Mode, Schedule};
use crate::compute::splat::trainer::Trainer;
use crate::config::SplatConfig;
use crate::geometry::{Intrinsics, Sim3};
use crate::map::colmap::estimate_intrinsics;
use crate::map::{KeyframeRecord, MapSnapshot};
use crate::slam::PoseTable;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Keyframes read at once: each has several megabytes.
const BATCH: usize = 2;
/// Questions that wait: those of a topic, a page and a service.
const QUESTIONS: usize = 8;
/// Longest pause in which the thread does not look whether it should end.
const TICK: Duration = Duration::from_millis(20);

/// Where poses and keyframes come from.
pub trait LiveSource: Send {
    /// The poses now, and a number that is another for another SLAM; `None` before the first frame.
    fn table(&mut self) -> Option<(usize, Arc<PoseTable>)>;

    /// Images and points of keyframes; `None` if they cannot be read now. May wait, but not for tracking.
    fn keyframes(&mut self, ids: Vec<u32>) -> Option<MapSnapshot>;
}

/// A question to the thread, answered between two steps.
type Question = Box<dyn FnOnce(&mut Live) + Send>;

/// The map in the making.
pub struct Live {
    trainer: Trainer,
    config: SplatConfig,
    min_confidence: f32,
    views: Option<Views>,
    /// The poses that the rows of each keyframe were moved to last.
    anchors: BTreeMap<u32, Sim3>,
    /// Keyframes that were read.
    seen: BTreeSet<u32>,
    /// SLAM, map and submap to which the rest belongs.
    scene: Option<(usize, u64, u32)>,
    version: Option<u64>,
    rendering: Rendering,
    /// Time spent on seeding and training.
    busy: Duration,
}

impl Live {
    /// A map without rows. The camera of an uncalibrated map is estimated from points above `min_confidence`.
    pub fn new(device: Box<dyn SplatDevice>, config: &SplatConfig, min_confidence: f32) -> Self {
        let schedule = Schedule::new(config.clone(), Mode::Live);
        Self {
            trainer: Trainer::new(device, schedule),
            config: config.clone(),
            min_confidence,
            views: None,
            anchors: BTreeMap::new(),
            seen: BTreeSet::new(),
            scene: None,
            version: None,
            rendering: Rendering::default(),
            busy: Duration::ZERO,
        }
    }

    /// The trainer, for reading rows.
    pub fn trainer(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// The camera of the keyframes, once there is one.
    pub fn intrinsics(&self) -> Option<Intrinsics> {
        self.views.as_ref().map(Views::intrinsics)
    }

    /// Renders a camera.
    pub fn render(&mut self, camera: &Camera) -> Result<&Rendering, SplatError> {
        let Self {
            trainer, rendering, ..
        } = self;
        trainer.device().render(camera, rendering)?;
        Ok(rendering)
    }

    /// Quality on held-out keyframes at SLAM's poses; on all, if there are too few to hold any out.
    pub fn quality(&mut self) -> Result<Measured, SplatError> {
        let Some(views) = &mut self.views else {
            return Ok(Default::default());
        };
        super::quality(&mut self.trainer, views, Measuring::GIVEN)
    }

    /// Starts over if another map, or another submap, is being made.
    fn follow(&mut self, number: usize, table: &PoseTable) -> Result<(), SplatError> {
        let submap = table.submaps.last().copied().unwrap_or(0);
        let scene = (number, table.map, submap);
        if self.scene != Some(scene) {
            self.scene = Some(scene);
            self.trainer.device().clear()?;
            self.trainer.resume(0);
            self.views = None;
            self.anchors.clear();
            self.seen.clear();
            self.version = None;
        }
        if self.version != Some(table.version) {
            self.version = Some(table.version);
            self.move_to(&|id| table.pose_of(id))?;
        }
        Ok(())
    }

    /// Moves rows and views with their keyframes.
    fn move_to(&mut self, pose: &dyn Fn(u32) -> Option<Sim3>) -> Result<(), SplatError> {
        let mut moves = Vec::new();
        for (anchor, old) in &mut self.anchors {
            let new = pose(*anchor).filter(Sim3::is_finite);
            if let Some(new) = new.filter(|new| new != old) {
                moves.push(AnchorMove {
                    anchor: *anchor,
                    new_from_old: new * old.inverse(),
                });
                *old = new;
            }
        }
        if !moves.is_empty() {
            self.trainer.move_anchors(&moves)?;
        }
        if let Some(views) = &mut self.views {
            views.set_poses(pose);
        }
        Ok(())
    }

    /// Keyframes to read next, the newest first. Tracking may still change the newest of all.
    fn lacking(&self, table: &PoseTable) -> Vec<u32> {
        let (Some(newest), Some((_, _, submap))) = (table.newest(), self.scene) else {
            return Vec::new();
        };
        let all = table.ids.iter().zip(&table.submaps).rev();
        all.filter(|(id, of)| **id < newest && **of == submap && !self.seen.contains(*id))
            .map(|(id, _)| *id)
            .take(BATCH)
            .collect()
    }

    /// Makes rows and a view of a keyframe.
    fn add(
        &mut self,
        keyframe: &KeyframeRecord,
        intrinsics: Option<Intrinsics>,
        pose: Sim3,
    ) -> Result<(), SplatError> {
        self.seen.insert(keyframe.id);
        let view = keyframe.view();
        let (width, height) = (view.image.width, view.image.height);
        if width * height == 0 || !pose.is_finite() {
            return Ok(());
        }
        let views = self.views.get_or_insert_with(|| {
            let views = std::iter::once(view.clone());
            let k = intrinsics
                .unwrap_or_else(|| estimate_intrinsics(views, width, height, self.min_confidence));
            Views::new(k, LIVE_VIEWS)
        });
        let Some(index) = views.add(keyframe.id, pose, &view) else {
            return Ok(());
        };
        self.anchors.insert(keyframe.id, pose);
        // Whether it is held out once there are many.
        if !self.trainer.is_held_out(index, usize::MAX) {
            let pointmap = pointmap(views.intrinsics(), keyframe.id, &pose, &view);
            let seeded = super::seed(&mut self.trainer, &pointmap)?;
            if seeded.added < seeded.wanted {
                tracing::debug!(
                    "the Gaussian map is full: {} of {} pixels of keyframe {} were added",
                    seeded.added,
                    seeded.wanted,
                    keyframe.id
                );
            }
        }
        Ok(())
    }

    /// Reads keyframes, or trains on one view; returns the time that it took, without that of waiting for keyframes.
    /// `None` if there was nothing to do.
    fn work(&mut self, source: &mut dyn LiveSource) -> Result<Option<Duration>, SplatError> {
        let mut began = Instant::now();
        let Some((number, table)) = source.table() else {
            return Ok(None);
        };
        self.follow(number, &table)?;
        let ids = self.lacking(&table);
        if !ids.is_empty()
            && let Some(map) = source.keyframes(ids)
        {
            began = Instant::now();
            for keyframe in &map.keyframes {
                // The pose to which the other rows were moved.
                let pose = table.pose_of(keyframe.id);
                let pose = pose.unwrap_or(keyframe.world_from_camera);
                self.add(keyframe, map.intrinsics, pose)?;
            }
            return Ok(Some(began.elapsed()));
        }
        let Some(views) = &mut self.views else {
            return Ok(None);
        };
        if self.config.ms_per_second <= 0.0 {
            return Ok(None);
        }
        let trained = super::train(&mut self.trainer, views)?;
        Ok(trained.map(|_| began.elapsed()))
    }

    /// Steps of training, and the time spent on them and on seeding.
    pub fn effort(&self) -> (u64, Duration) {
        (self.trainer.step(), self.busy)
    }

    /// Brings the map up to date with the final one: poses, and keyframes that were not read.
    ///
    /// # Errors
    /// If the device fails.
    pub fn complete(&mut self, map: &MapSnapshot) -> Result<(), SplatError> {
        let poses: BTreeMap<u32, (Sim3, u32)> = map
            .keyframes
            .iter()
            .map(|k| (k.id, (k.world_from_camera, k.submap)))
            .collect();
        self.move_to(&|id| poses.get(&id).map(|(pose, _)| *pose))?;
        let submap = self
            .scene
            .map_or(map.largest_submap(), |(_, _, submap)| submap);
        for keyframe in &map.keyframes {
            if keyframe.submap == submap && !self.seen.contains(&keyframe.id) {
                self.add(keyframe, map.intrinsics, keyframe.world_from_camera)?;
            }
        }
        Ok(())
    }
}

/// The way to ask the thread of a [`Live`] map; clones ask the same one.
#[derive(Clone)]
pub struct Asker(SyncSender<Question>);

impl Asker {
    /// Has the thread answer a question between two steps; `false` if too many wait. `question` replies by a channel of
    /// its own, which is dropped if the map has failed.
    pub fn ask(&self, question: impl FnOnce(&mut Live) + Send + 'static) -> bool {
        self.0.try_send(Box::new(question)).is_ok()
    }
}

/// How long a page waits for splats.
const SHOW_PATIENCE: Duration = Duration::from_secs(20);

impl Asker {
    /// Reads at most 200,000 splats for a page, in the form of [`Splat::packed`](crate::map::splat::Splat::packed); waits
    /// for the map's thread. `None` if it has ended or is too busy.
    pub fn shown(&self) -> Option<Vec<u8>> {
        let (reply, read) = sync_channel(1);
        let asked = self.ask(move |live: &mut Live| {
            if let Ok(rows) = packed(live.trainer().device()) {
                // The page has given up if this fails.
                let _ = reply.try_send(rows);
            }
        });
        asked
            .then(|| read.recv_timeout(SHOW_PATIENCE).ok())
            .flatten()
    }
}

/// The thread of a [`Live`] map. Dropping it ends it.
pub struct LiveSplat {
    questions: SyncSender<Question>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Live, SplatError>>>,
}

impl LiveSplat {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(live: Live, source: Box<dyn LiveSource>) -> io::Result<Self> {
        // One thread of low priority: the loops of the CPU's renderer must not take the cores of tracking.
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .thread_name(|_| "splat-loops".to_owned())
            .start_handler(|_| lower_priority())
            .build()
            .map_err(io::Error::other)?;
        let (questions, asked) = sync_channel(QUESTIONS);
        let closing = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&closing);
        let thread = std::thread::Builder::new().name("splat".to_owned());
        let thread = thread.spawn(move || {
            lower_priority();
            run(live, source, &pool, &asked, &ends)
        })?;
        Ok(Self {
            questions,
            closing,
            thread: Some(thread),
        })
    }

    /// The way to ask the thread.
    pub fn asker(&self) -> Asker {
        Asker(self.questions.clone())
    }

    /// Ends the thread and returns the map.
    ///
    /// # Errors
    /// The error that ended the map.
    pub fn end(mut self) -> Result<Live, SplatError> {
        self.closing.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(live)) => live,
            _ => Err(SplatError::Device {
                device: "the thread of the Gaussian map",
                cause: "it has panicked".into(),
            }),
        }
    }
}

impl Drop for LiveSplat {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the Gaussian map panicked");
        }
    }
}

fn run(
    mut live: Live,
    mut source: Box<dyn LiveSource>,
    pool: &rayon::ThreadPool,
    questions: &Receiver<Question>,
    closing: &AtomicBool,
) -> Result<Live, SplatError> {
    // Without training, seeding still has a budget.
    let rate = match live.config.ms_per_second {
        rate if rate > 0.0 => rate,
        _ => SEEDING_RATE,
    };
    let mut budget = Budget::new(rate);
    let start = Instant::now();
    while !closing.load(Ordering::Acquire) {
        let mut pause = budget.wait().unwrap_or(TICK).min(TICK);
        if budget.may_start(start.elapsed()) {
            let worked = pool.install(|| live.work(source.as_mut()));
            let worked = worked.inspect_err(|error| {
                tracing::error!("the Gaussian map is left out from here on: {error}");
            })?;
            pause = match worked {
                Some(took) => {
                    budget.pay(took);
                    live.busy += took;
                    Duration::ZERO
                }
                None => TICK,
            };
        }
        match questions.recv_timeout(pause) {
            Ok(question) => pool.install(|| question(&mut live)),
            Err(RecvTimeoutError::Timeout) => {}
            // The owner is being dropped.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(pause),
        }
    }
    Ok(live)
}

/// Milliseconds of a second for seeding, if there is no training.
const SEEDING_RATE: f32 = 50.0;

//! A SLAM made for tests of the node: poses at once, from a walk that is known.

#![allow(dead_code)]

pub mod memory;
pub mod stage;

use arc_swap::ArcSwap;
use mast3r_slam::compute::device::FramePoints;
use mast3r_slam::geometry::{Calibration, Intrinsics, Sim3};
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::{
    EdgeKind, FrameRecord, KeyframeRecord, MapEdge, MapSnapshot, StageTimes, TrackingState,
};
use mast3r_slam::ros::node::{
    Engine, EngineError, EngineFactory, ImageFormat, OnMap, OnSaved, Settings,
};
use mast3r_slam::slam::{Covariance6, FrameInput, PoseTable, SavedMap};
use mast3r_slam::time::Stamp;
use nalgebra::{Isometry3, UnitQuaternion, Vector3};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What the first byte of an image makes the engine do.
pub const LOST: u8 = 255;
pub const FAIL: u8 = 254;
pub const PANIC: u8 = 253;
/// The map is solved anew: turned, shifted, and 10 % smaller.
pub const CLOSE_LOOP: u8 = 252;
/// The image cannot be used.
pub const BAD: u8 = 251;

/// Frames from keyframe to keyframe.
pub const KEYFRAME_EVERY: usize = 10;
/// Size of the keyframes' images.
pub const KEYFRAME: (usize, usize) = (64, 48);

/// The camera's step from frame to frame: 2 cm ahead, 1 degree to the right.
pub fn step() -> Isometry3<f64> {
    let turn = UnitQuaternion::from_axis_angle(&Vector3::y_axis(), 1f64.to_radians());
    Isometry3::from_parts(Vector3::new(0.0, 0.0, 0.02).into(), turn)
}

/// What a closed loop does to the world.
pub fn correction() -> Sim3 {
    Sim3 {
        translation: Vector3::new(0.3, -0.1, 0.2),
        rotation: UnitQuaternion::from_euler_angles(0.02, -0.1, 0.05),
        scale: 0.9,
    }
}

/// What happened to the engines of a factory.
#[derive(Debug, Default)]
pub struct Log {
    pub made: Vec<(ImageFormat, Option<Calibration>)>,
    pub frames: Vec<Stamp>,
    pub resets: usize,
    pub growing: bool,
    pub saved: Vec<usize>,
    /// Files of maps, and where their world lay in the map frame.
    pub files: Vec<(PathBuf, Option<Isometry3<f64>>)>,
    pub loaded: Vec<PathBuf>,
}

#[derive(Clone, Default)]
pub struct FastFactory {
    pub log: Arc<Mutex<Log>>,
    /// How long a frame takes.
    pub pace: Duration,
}

impl FastFactory {
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl EngineFactory for FastFactory {
    fn check(&self, settings: &Settings) -> Result<(), EngineError> {
        match settings.weights.as_str() {
            "missing" => Err(EngineError::Failed("no such weights: missing".into())),
            _ => Ok(()),
        }
    }

    fn make(
        &self,
        _: &Settings,
        format: &ImageFormat,
        calibration: Option<&Calibration>,
    ) -> Result<Box<dyn Engine>, EngineError> {
        self.log().made.push((*format, calibration.copied()));
        Ok(Box::new(FastEngine {
            factory: self.clone(),
            poses: Arc::new(ArcSwap::from_pointee(PoseTable::default())),
            camera: Sim3::identity(),
            calibrated: calibration.is_some(),
            step: None,
            tracked: 0,
            lost: false,
        }))
    }

    fn save(&self, _: &Settings, map: &MapSnapshot, folder: &Path) -> Result<String, EngineError> {
        self.log().saved.push(map.keyframes.len());
        Ok(format!("saved to {}", folder.display()))
    }
}

struct FastEngine {
    factory: FastFactory,
    poses: Arc<ArcSwap<PoseTable>>,
    camera: Sim3,
    calibrated: bool,
    step: Option<Isometry3<f64>>,
    tracked: usize,
    lost: bool,
}

impl FastEngine {
    fn publish(&self, change: impl FnOnce(&mut PoseTable)) {
        let mut table = PoseTable::clone(&self.poses.load());
        change(&mut table);
        table.version += 1;
        self.poses.store(Arc::new(table));
    }

    fn record(&self, frame: &FrameInput<'_>, state: TrackingState) -> FrameRecord {
        FrameRecord {
            index: frame.index,
            stamp: frame.stamp,
            state,
            world_from_camera: self.camera,
            keyframe: None,
            submap: 0,
            match_fraction: 0.8,
            unique_fraction: 0.8,
            iterations: 5,
            times: StageTimes::default(),
        }
    }
}

impl Engine for FastEngine {
    fn describe(&self) -> String {
        "a walk for tests".into()
    }

    fn process(&mut self, frame: FrameInput<'_>) -> Result<FrameRecord, EngineError> {
        if !self.factory.pace.is_zero() {
            std::thread::sleep(self.factory.pace);
        }
        self.factory.log().frames.push(frame.stamp);
        self.step = None;
        match frame.image.data.first() {
            Some(&LOST) => {
                self.lost = true;
                return Ok(self.record(&frame, TrackingState::Lost));
            }
            Some(&FAIL) => return Err(EngineError::Failed("the device is gone".into())),
            Some(&BAD) => return Err(EngineError::Image("too dark".into())),
            Some(&PANIC) => panic!("the engine fell over (as this test wants it to)"),
            Some(&CLOSE_LOOP) => {
                self.camera = correction() * self.camera;
                self.camera.scale = 1.0;
                self.publish(|table| {
                    for pose in &mut table.poses {
                        *pose = correction() * *pose;
                    }
                    let newest = table.poses.len() as u32 - 1;
                    table.edges.push(MapEdge {
                        i: 0,
                        j: newest,
                        kind: EdgeKind::Loop,
                    });
                });
            }
            _ => {}
        }
        if self.tracked > 0 && !self.lost {
            let metric = step();
            self.camera = self.camera
                * Sim3 {
                    translation: metric.translation.vector,
                    rotation: metric.rotation,
                    scale: 1.0,
                };
            self.step = Some(metric);
        }
        self.lost = false;
        let mut record = self.record(&frame, TrackingState::Tracking);
        if self.tracked.is_multiple_of(KEYFRAME_EVERY) {
            let id = self.poses.load().poses.len() as u32;
            record.keyframe = Some(id);
            self.publish(|table| {
                if id > 0 {
                    table.edges.push(MapEdge {
                        i: id - 1,
                        j: id,
                        kind: EdgeKind::Consecutive,
                    });
                }
                table.poses.push(self.camera);
                table.submaps.push(0);
                table.stamps.push(frame.stamp);
            });
        }
        self.tracked += 1;
        Ok(record)
    }

    fn step(&self) -> Option<Isometry3<f64>> {
        self.step
    }

    /// Known best along x, and turned least about z.
    fn covariance(&self) -> Option<Covariance6> {
        self.step.map(|_| covariance())
    }

    /// A wall 2 m ahead; nothing is seen at the last pixel.
    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), EngineError> {
        let n = KEYFRAME.0 * KEYFRAME.1;
        dst.points = [0.1, 0.2, 2.0].repeat(n);
        dst.confidence = vec![3.0; n];
        dst.points[3 * n - 3..].fill(0.0);
        Ok(())
    }

    fn network_image(&self) -> ((usize, usize), Option<Intrinsics>) {
        let camera = self.calibrated.then_some(Intrinsics {
            fx: 50.0,
            fy: 51.0,
            cx: 31.5,
            cy: 23.5,
        });
        (KEYFRAME, camera)
    }

    fn poses(&self) -> Arc<ArcSwap<PoseTable>> {
        Arc::clone(&self.poses)
    }

    fn read_keyframes(&mut self, ids: Vec<u32>, reply: OnMap) -> bool {
        let table = self.poses.load_full();
        reply(MapSnapshot {
            keyframes: ids.iter().filter_map(|id| keyframe(&table, *id)).collect(),
            ..Default::default()
        });
        true
    }

    fn read_map(&mut self, reply: OnMap) -> bool {
        let all = (0..self.poses.load().poses.len() as u32).collect();
        self.read_keyframes(all, reply)
    }

    fn save_map(
        &mut self,
        file: PathBuf,
        map_from_world: Option<Isometry3<f64>>,
        reply: OnSaved,
    ) -> bool {
        self.factory
            .log()
            .files
            .push((file.clone(), map_from_world));
        reply(Ok(saved_map(file, map_from_world)));
        true
    }

    /// The camera is then found where the walk begins, at [`loaded_camera`].
    fn load_map(&mut self, file: &Path) -> Result<SavedMap, EngineError> {
        if file.ends_with("damaged.map") {
            return Err(EngineError::Refused("the map is damaged".into()));
        }
        let placed = self.factory.log().files.last().and_then(|(_, t)| *t);
        self.factory.log().loaded.push(file.to_owned());
        self.reset()?;
        self.camera = loaded_camera();
        Ok(saved_map(file.to_owned(), placed))
    }

    fn set_growing(&mut self, grows: bool) {
        self.factory.log().growing = grows;
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        self.factory.log().resets += 1;
        self.camera = Sim3::identity();
        (self.step, self.tracked, self.lost) = (None, 0, false);
        self.poses.store(Arc::new(PoseTable::default()));
        Ok(())
    }
}

/// How far every tracked camera may be off.
pub fn covariance() -> Covariance6 {
    let sigmas = [0.01, 0.02, 0.03, 0.004, 0.005, 0.001];
    Covariance6::from_fn(|r, c| if r == c { sigmas[r] * sigmas[r] } else { 0.0 })
}

/// Where the camera is found in a loaded map.
pub fn loaded_camera() -> Sim3 {
    Sim3 {
        translation: Vector3::new(0.5, 0.0, 1.5),
        rotation: UnitQuaternion::from_axis_angle(&Vector3::y_axis(), 0.3),
        scale: 1.0,
    }
}

fn saved_map(path: PathBuf, map_from_world: Option<Isometry3<f64>>) -> SavedMap {
    SavedMap {
        path,
        keyframes: 3,
        edges: 2,
        map_from_world,
        first: Sim3::identity(),
    }
}

/// A wall 2 m ahead, a point every 5 cm, every one of them confident.
fn keyframe(table: &PoseTable, id: u32) -> Option<KeyframeRecord> {
    let (width, height) = KEYFRAME;
    let n = width * height;
    let point = |k: usize| {
        let (x, y) = ((k % width) as f32, (k / width) as f32);
        [0.05 * (x - 32.0), 0.05 * (y - 24.0), 2.0]
    };
    Some(KeyframeRecord {
        id,
        frame_index: id as usize * KEYFRAME_EVERY,
        stamp: *table.stamps.get(id as usize)?,
        submap: *table.submaps.get(id as usize)?,
        world_from_camera: *table.poses.get(id as usize)?,
        image: Arc::new(RgbImage::new(width, height)),
        points: Arc::new((0..n).flat_map(point).collect()),
        confidence: Arc::new(vec![3.0; n]),
    })
}

/// Waits until `done`; fails the test with `what` if it never comes.
pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("waited in vain for {what}");
}

//! SLAM as the node sees it.

use super::settings::Settings;
use crate::compute::device::FramePoints;
use crate::geometry::{Calibration, Intrinsics};
use crate::image::encoding::{Encoding, RawImage};
use crate::map::{FrameRecord, MapSnapshot};
use crate::slam::{Covariance6, FrameInput, PoseTable, SavedMap};
use arc_swap::ArcSwap;
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What all images of a run have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageFormat {
    /// How pixels are held.
    pub encoding: Encoding,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes from row to row.
    pub stride: usize,
}

impl From<&RawImage<'_>> for ImageFormat {
    fn from(image: &RawImage<'_>) -> Self {
        Self {
            encoding: image.encoding,
            width: image.width,
            height: image.height,
            stride: image.stride,
        }
    }
}

/// Why SLAM could not do something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// One image cannot be used; the next may.
    #[error("{0}")]
    Image(String),
    /// What was asked for was not done; all is as it was.
    #[error("{0}")]
    Refused(String),
    /// SLAM cannot go on; it has to be made anew.
    #[error("{0}")]
    Failed(String),
}

/// Gets a map, in a thread of the engine.
pub type OnMap = Box<dyn FnOnce(MapSnapshot) + Send>;

/// Gets what became of saving a map, in a thread of the engine.
pub type OnSaved = Box<dyn FnOnce(Result<SavedMap, EngineError>) + Send>;

/// SLAM for images of one format. Frames are taken as they come; mapping never holds them up.
pub trait Engine: Send {
    /// Network, input size, device, calibration: for the log.
    fn describe(&self) -> String;

    /// Takes the next frame and says what became of it.
    fn process(&mut self, frame: FrameInput<'_>) -> Result<FrameRecord, EngineError>;

    /// The last frame's camera in that of the frame before, in metres, as it was tracked.
    fn step(&self) -> Option<Isometry3<f64>>;

    /// How far the last frame's camera may be from where it is said to be, about the world's axes; `None` if it
    /// was not tracked.
    fn covariance(&self) -> Option<Covariance6>;

    /// Replaces `dst` by the last frame's pointmap, before the scale of the frame's pose.
    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), EngineError>;

    /// Width and height of pointmaps, and the intrinsics of that image where they are known.
    fn network_image(&self) -> ((usize, usize), Option<Intrinsics>);

    /// The keyframes' poses as mapping publishes them.
    fn poses(&self) -> Arc<ArcSwap<PoseTable>>;

    /// Asks for the keyframes of these ids, and nothing else of the map; `false` if too much is asked
    /// already.
    fn read_keyframes(&mut self, ids: Vec<u32>, reply: OnMap) -> bool;

    /// Asks for the whole map; `false` if too much is asked already.
    fn read_map(&mut self, reply: OnMap) -> bool;

    /// Saves the map into `file`, whose folder exists, for [`Engine::load_map`]; `map_from_world` goes with it.
    /// `false` if too much is asked already.
    fn save_map(
        &mut self,
        file: PathBuf,
        map_from_world: Option<Isometry3<f64>>,
        reply: OnSaved,
    ) -> bool;

    /// Goes on with the map in `file`; waits until it is there.
    fn load_map(&mut self, file: &Path) -> Result<SavedMap, EngineError>;

    /// Whether frames may become keyframes. If not, the map stays as it is.
    fn set_growing(&mut self, grows: bool);

    /// Forgets the map.
    fn reset(&mut self) -> Result<(), EngineError>;
}

/// Makes engines, and files of what they made.
pub trait EngineFactory: Send + Sync {
    /// Refuses settings of which no engine can be made, and a map to start with that is none, before there are
    /// images.
    fn check(&self, settings: &Settings) -> Result<(), EngineError>;

    /// An engine for images of this format; calibrated if there is a calibration.
    fn make(
        &self,
        settings: &Settings,
        format: &ImageFormat,
        calibration: Option<&Calibration>,
    ) -> Result<Box<dyn Engine>, EngineError>;

    /// Writes the map's files into a folder; says what was written.
    fn save(
        &self,
        settings: &Settings,
        map: &MapSnapshot,
        folder: &Path,
    ) -> Result<String, EngineError>;
}

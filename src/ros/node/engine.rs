//! SLAM as the node sees it.

use super::settings::Settings;
use crate::geometry::Calibration;
use crate::image::encoding::{Encoding, RawImage};
use crate::map::{FrameRecord, MapSnapshot};
use crate::slam::{FrameInput, PoseTable};
use arc_swap::ArcSwap;
use nalgebra::Isometry3;
use std::path::Path;
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
    /// SLAM cannot go on; it has to be made anew.
    #[error("{0}")]
    Failed(String),
}

/// Gets a map, in a thread of the engine.
pub type OnMap = Box<dyn FnOnce(MapSnapshot) + Send>;

/// SLAM for images of one format. Frames are taken as they come; mapping never holds them up.
pub trait Engine: Send {
    /// Network, input size, device, calibration: for the log.
    fn describe(&self) -> String;

    /// Takes the next frame and says what became of it.
    fn process(&mut self, frame: FrameInput<'_>) -> Result<FrameRecord, EngineError>;

    /// The last frame's camera in that of the frame before, in metres, as it was tracked.
    fn step(&self) -> Option<Isometry3<f64>>;

    /// The keyframes' poses as mapping publishes them.
    fn poses(&self) -> Arc<ArcSwap<PoseTable>>;

    /// Asks for the keyframes of these ids, and nothing else of the map; `false` if too much is asked
    /// already.
    fn read_keyframes(&mut self, ids: Vec<u32>, reply: OnMap) -> bool;

    /// Asks for the whole map; `false` if too much is asked already.
    fn read_map(&mut self, reply: OnMap) -> bool;

    /// Whether frames may become keyframes.
    fn set_growing(&mut self, grows: bool);

    /// Forgets the map.
    fn reset(&mut self) -> Result<(), EngineError>;
}

/// Makes engines, and files of what they made.
pub trait EngineFactory: Send + Sync {
    /// Refuses settings of which no engine can be made, before there are images.
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

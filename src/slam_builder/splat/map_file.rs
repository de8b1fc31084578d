//! Keyframes of a map's file, whatever its kind.

use crate::geometry::{Intrinsics, Sim3};
use crate::image::RgbImage;
use crate::map::KeyframeView;
use crate::map::colmap::estimate_intrinsics;
use crate::map::saved::{self, SavedKeyframe};
use crate::map::store::{self, Kind};
use crate::slam::SavedMapError;
use crate::time::Stamp;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Keyframes from which the camera of an uncalibrated map is estimated.
const CAMERA_KEYFRAMES: usize = 16;

/// A keyframe of the file.
#[derive(Debug, Clone, Copy)]
pub struct FileKeyframe {
    pub id: u32,
    pub stamp: Stamp,
    pub world_from_camera: Sim3,
}

#[derive(Debug)]
enum Source {
    Saved(Box<saved::Reader>),
    Store(Box<store::Reader>),
}

/// An open map, of which the largest submap is read.
#[derive(Debug)]
pub struct MapFile {
    source: Source,
    keyframes: Vec<FileKeyframe>,
    /// Numbers in a file that was saved at once, by id.
    numbers: BTreeMap<u32, u32>,
    intrinsics: Intrinsics,
    calibrated: bool,
    size: (usize, usize),
}

impl MapFile {
    /// Opens a map. Without calibration, the camera is estimated from the points whose confidence is above
    /// `min_confidence`.
    ///
    /// # Errors
    /// If the file is not a map or cannot be read.
    pub fn open(path: &Path, min_confidence: f32) -> Result<Self, SavedMapError> {
        let path = saved::file_of(path);
        let mut numbers = BTreeMap::new();
        let mut all: Vec<(u32, FileKeyframe)> = Vec::new();
        let mut add = |id, submap, stamp, world_from_camera: Sim3| {
            if world_from_camera.is_finite() {
                let keyframe = FileKeyframe {
                    id,
                    stamp,
                    world_from_camera,
                };
                all.push((submap, keyframe));
            }
        };
        let source = match Kind::of(&path)? {
            Kind::Store | Kind::Packed => {
                let reader = store::Reader::open(&path)?;
                for row in reader.keyframes() {
                    add(row.id, row.submap, row.stamp, row.world_from_camera);
                }
                Source::Store(Box::new(reader))
            }
            _ => {
                let mut reader = saved::Reader::open(&path)?;
                reader.verify()?;
                let mut keyframe = SavedKeyframe::default();
                for number in 0..reader.header().keyframes {
                    reader.view(number, &mut keyframe)?;
                    numbers.insert(keyframe.id, number);
                    let SavedKeyframe {
                        id, submap, stamp, ..
                    } = keyframe;
                    add(id, submap, stamp, keyframe.world_from_camera);
                }
                Source::Saved(Box::new(reader))
            }
        };
        let largest = largest(all.iter().map(|(submap, _)| *submap));
        all.retain(|(submap, _)| *submap == largest);
        let header = match &source {
            Source::Saved(reader) => reader.header(),
            Source::Store(reader) => reader.header(),
        };
        let size = (header.shape.width as usize, header.shape.height as usize);
        let known = header.intrinsics;
        let mut file = Self {
            source,
            keyframes: all.into_iter().map(|(_, keyframe)| keyframe).collect(),
            numbers,
            intrinsics: known.unwrap_or(Intrinsics {
                fx: 0.0,
                fy: 0.0,
                cx: 0.0,
                cy: 0.0,
            }),
            calibrated: known.is_some(),
            size,
        };
        if known.is_none() {
            let stride = file.keyframes.len().div_ceil(CAMERA_KEYFRAMES).max(1);
            let ids = Vec::from_iter(file.keyframes.iter().step_by(stride).map(|k| k.id));
            let views: Vec<KeyframeView> = ids.iter().filter_map(|id| file.view(*id)).collect();
            let views = views.into_iter();
            file.intrinsics = estimate_intrinsics(views, size.0, size.1, min_confidence);
        }
        Ok(file)
    }

    /// The keyframes of the largest submap.
    pub fn keyframes(&self) -> &[FileKeyframe] {
        &self.keyframes
    }

    /// The camera of the keyframes' images.
    pub fn intrinsics(&self) -> Intrinsics {
        self.intrinsics
    }

    /// Whether that camera is the calibration of the map, not an estimate.
    pub fn is_calibrated(&self) -> bool {
        self.calibrated
    }

    /// Width and height of the images.
    pub fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Image and points of a keyframe; `None`, with a message in the log, if they cannot be read.
    pub fn view(&mut self, id: u32) -> Option<KeyframeView> {
        let content = match &mut self.source {
            Source::Saved(reader) => {
                let mut keyframe = SavedKeyframe::default();
                if let Err(error) = reader.view(*self.numbers.get(&id)?, &mut keyframe) {
                    tracing::warn!("keyframe {id} is left out: {error}");
                    return None;
                }
                keyframe.content
            }
            Source::Store(reader) => {
                let mut content = Default::default();
                if !reader.read_keyframe(id, &mut content) {
                    return None;
                }
                content
            }
        };
        let (width, height) = self.size;
        let pixels = width * height;
        let confidence = content.confidence.to_f32();
        let complete = content.image.len() == 3 * pixels
            && content.points.len() == 3 * pixels
            && confidence.len() == pixels;
        complete.then(|| KeyframeView {
            image: Arc::new(RgbImage {
                width,
                height,
                data: content.image,
            }),
            points: Arc::new(content.points),
            confidence: Arc::new(confidence),
        })
    }
}

/// The value that occurs most often; the smallest of several. A map's file has no frames, of which
/// [`MapSnapshot::largest_submap`](crate::map::MapSnapshot::largest_submap) compares the numbers first.
fn largest(submaps: impl Iterator<Item = u32>) -> u32 {
    let mut counts = BTreeMap::new();
    for submap in submaps {
        *counts.entry(submap).or_insert(0usize) += 1;
    }
    let most = counts
        .iter()
        .max_by_key(|(submap, n)| (**n, u32::MAX - **submap));
    most.map_or(0, |(submap, _)| *submap)
}

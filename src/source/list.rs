//! Sources made of a list of image files.

use super::calibration::fit_calibration;
use super::depth::{DepthFiles, FileReader};
use super::entry::Entry;
use super::stream::{About, GroundTruth, Stream};
use super::{SourceError, SourceFrame, SourceOptions};
use crate::geometry::Calibration;
use crate::image::{decode, dimensions};
use std::path::PathBuf;

/// Number of headers tried when determining the image size.
const TRIES: usize = 10;

/// Known properties of the camera.
#[derive(Debug, Clone, Copy)]
pub(super) enum Camera {
    Unknown,
    Known(Calibration),
    /// Applies to images of any size; the size fields are to be filled in.
    OfImages(Calibration),
}

impl Camera {
    pub fn or_unknown(calibration: Option<Calibration>) -> Self {
        calibration.map_or(Self::Unknown, Self::Known)
    }
}

/// A sorted list of image files.
#[derive(Debug)]
pub(super) struct Listing {
    pub kind: &'static str,
    /// Not empty; stamps are strictly increasing.
    pub entries: Vec<Entry>,
    pub camera: Camera,
    /// Depth images, if they were asked for.
    pub depth: Option<DepthFiles>,
    pub always_undistort: bool,
    pub ground_truth: Option<GroundTruth>,
}

impl Listing {
    pub fn open(self, options: &SourceOptions) -> Result<Stream, SourceError> {
        let total = self.entries.len();
        if options.start >= total {
            return Err(SourceError::Selection {
                option: "start",
                expected: format!("less than the number of frames, {total}"),
                found: options.start,
            });
        }
        let end = options.end.unwrap_or(total).min(total);
        let selected: Vec<(usize, Entry)> = self
            .entries
            .into_iter()
            .enumerate()
            .take(end)
            .skip(options.start)
            .step_by(options.stride)
            .collect();
        let (size, first) = first_size(&selected)?;
        let given = options.calibration.map_or(self.camera, Camera::Known);
        let calibration = match given {
            Camera::Unknown => None,
            Camera::OfImages(calibration) => Some(Calibration {
                width: size.0,
                height: size.1,
                ..calibration
            }),
            Camera::Known(calibration) => {
                Some(fit_calibration(&calibration, size).map_err(|e| {
                    SourceError::content(
                        &first,
                        format!(
                            "images of {}×{} pixels, which the calibration is for",
                            calibration.width, calibration.height
                        ),
                        format!("{}×{} ({e})", size.0, size.1),
                    )
                })?)
            }
        };
        let count = selected.len();
        let mut description = if count == total {
            format!("{}, {}", self.kind, super::frames(total))
        } else {
            format!("{}, {count} of {total} frames", self.kind)
        };
        let mut depth_files = Vec::new();
        if let Some(depth) = &self.depth {
            let folder = first.parent().unwrap_or(&first);
            depth_files = depth.of(folder, selected.iter().map(|(_, entry)| entry))?;
            let with_depth = depth_files.iter().flatten().count();
            description += &format!(", {with_depth} with depth");
        }
        let units = self.depth.as_ref().map_or(1.0, |depth| depth.units);
        let about = About {
            description,
            count: Some(count),
            calibration,
            depth_camera: self.depth.map(|depth| depth.camera),
            always_undistort: self.always_undistort,
            ground_truth: self.ground_truth,
            camera_frame: None,
        };
        depth_files.resize(count, None);
        let mut depth = FileReader::default();
        let selected = selected.into_iter().zip(depth_files);
        let frames = selected.map(move |((index, entry), depth_file)| {
            let image = decode(&entry.path).map_err(|e| SourceError::image(&entry.path, e))?;
            if (image.width, image.height) != size {
                return Err(SourceError::content(
                    &entry.path,
                    format!(
                        "an image of {}×{} pixels, the size of {}",
                        size.0,
                        size.1,
                        first.display()
                    ),
                    format!("{}×{}", image.width, image.height),
                ));
            }
            Ok(SourceFrame {
                index,
                stamp: entry.stamp,
                origin: entry.path,
                image,
                depth: depth_file.and_then(|file| depth.read(&file, units)),
            })
        });
        Stream::new(about, frames, None)
    }
}

/// The size of the first image with a readable header. A broken first image is reported when it is
/// read; opening fails only if the first few are all broken.
fn first_size(selected: &[(usize, Entry)]) -> Result<((usize, usize), PathBuf), SourceError> {
    let mut first_error = None;
    for (_, entry) in selected.iter().take(TRIES) {
        match dimensions(&entry.path) {
            Ok(size) => return Ok((size, entry.path.clone())),
            Err(e) => {
                first_error.get_or_insert_with(|| SourceError::image(&entry.path, e));
            }
        }
    }
    Err(first_error.unwrap_or(SourceError::Selection {
        option: "start",
        expected: "a selection of at least one frame".to_owned(),
        found: 0,
    }))
}

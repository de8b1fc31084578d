//! Sources made of a list of image files.

use super::calibration::fit_calibration;
use super::depth::{DepthFiles, FileReader};
use super::entry::Entry;
use super::stream::{About, GroundTruth, Stream};
use super::{SourceError, SourceFrame, SourceOptions};
use crate::geometry::Calibration;
use crate::image::{decode, dimensions};
use rayon::prelude::*;
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
        let decoded = in_parallel(selected, |((_, entry), _)| decode(&entry.path));
        let frames = decoded.map(move |(((index, entry), depth_file), image)| {
            let image = image.map_err(|e| SourceError::image(&entry.path, e))?;
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

/// Images that are decoded at the same time: a thread decodes one of 640×480 pixels in about the time in which a GPU
/// tracks one with a small network.
const AT_ONCE: usize = 4;

/// Each of `items`, in order, with the result of `make`, which runs on several of them at the same time.
fn in_parallel<T: Send, R: Send>(
    items: impl Iterator<Item = T>,
    make: impl Fn(&T) -> R + Sync,
) -> impl Iterator<Item = (T, R)> {
    let mut items = items.fuse();
    let mut made = Vec::new().into_iter();
    std::iter::from_fn(move || {
        if let Some(next) = made.next() {
            return Some(next);
        }
        let some: Vec<T> = items.by_ref().take(AT_ONCE).collect();
        let some = some.into_par_iter().map(|item| {
            let result = make(&item);
            (item, result)
        });
        made = some.collect::<Vec<_>>().into_iter();
        made.next()
    })
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

#[cfg(test)]
mod tests {
    use super::{AT_ONCE, in_parallel};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn items_come_in_order_and_few_are_made_ahead() {
        for count in [0, 1, AT_ONCE, 3 * AT_ONCE + 1] {
            let begun = AtomicUsize::new(0);
            let made = in_parallel(0..count, |k| {
                begun.fetch_add(1, Ordering::Relaxed);
                2 * k
            });
            let mut expected = 0;
            for (k, double) in made {
                assert_eq!((k, double), (expected, 2 * expected));
                expected += 1;
                assert!(begun.load(Ordering::Relaxed) < expected + AT_ONCE);
            }
            assert_eq!(expected, count);
            assert_eq!(begun.into_inner(), count);
        }
    }
}

//! Depth images beside a source's frames.

use super::entry::Entry;
use super::{SourceDepth, SourceError};
use crate::image::depth::{DepthCamera, DepthDecoder, DepthImage};
use crate::time::Stamp;
use std::path::Path;

/// A depth image belongs to a frame if their stamps differ by at most this.
pub(super) const TOLERANCE_NANOS: i64 = 20_000_000;
/// Maximum size of a depth file in bytes: 16-bit values that do not compress, of the largest depth image.
const MAX_BYTES: u64 = 1 << 26;

/// How depth is read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DepthOptions {
    /// Steps per metre of 16-bit depth files; `None`: as the dataset says.
    pub units: Option<f64>,
}

/// The depth files of a dataset.
#[derive(Debug)]
pub(super) struct DepthFiles {
    /// Stamps increase.
    pub entries: Vec<Entry>,
    /// Steps per metre.
    pub units: f64,
    pub camera: DepthCamera,
}

impl DepthFiles {
    /// The file nearest in time to each of `frames`, whose stamps increase, if it belongs to it.
    ///
    /// # Errors
    /// If no frame has a file.
    pub fn of<'a>(
        &self,
        origin: &Path,
        frames: impl Iterator<Item = &'a Entry>,
    ) -> Result<Vec<Option<Entry>>, SourceError> {
        let file = |frame: &Entry| nearest(&self.entries, frame.stamp, |e| e.stamp).cloned();
        let files: Vec<Option<Entry>> = frames.map(file).collect();
        match files.iter().any(Option::is_some) {
            true => Ok(files),
            false => Err(SourceError::content(
                origin,
                "depth images within 20 ms of the frames",
                match self.entries.len() {
                    0 => "none".to_owned(),
                    count => format!("{count} at other times"),
                },
            )),
        }
    }
}

/// The item nearest in time, if it is within the tolerance. The stamps of `items` increase.
pub(super) fn nearest<T>(items: &[T], at: Stamp, stamp: impl Fn(&T) -> Stamp) -> Option<&T> {
    let after = items.partition_point(|item| stamp(item) < at);
    let around = items.get(after.saturating_sub(1)..).unwrap_or_default();
    let distance = |item: &&T| stamp(item).nanos.abs_diff(at.nanos);
    let found = around.iter().take(2).min_by_key(distance)?;
    (distance(&found) <= TOLERANCE_NANOS.unsigned_abs()).then_some(found)
}

/// Reads depth files one by one. One that cannot be read leaves its frame without depth.
#[derive(Debug, Default)]
pub(super) struct FileReader {
    decoder: DepthDecoder,
    unreadable: usize,
}

impl FileReader {
    pub fn read(&mut self, file: &Entry, units: f64) -> Option<SourceDepth> {
        match self.try_read(&file.path, units) {
            Ok(image) => Some(SourceDepth {
                stamp: file.stamp,
                image,
            }),
            Err(error) => {
                if self.unreadable == 0 {
                    tracing::warn!("{error}; frames without depth are tracked without it");
                }
                self.unreadable += 1;
                None
            }
        }
    }

    fn try_read(&mut self, path: &Path, units: f64) -> Result<DepthImage, SourceError> {
        let io = |cause| SourceError::Io {
            path: path.to_owned(),
            cause,
        };
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        if bytes > MAX_BYTES {
            let found = format!("{bytes} bytes");
            return Err(SourceError::content(
                path,
                "a depth image of at most 64 MiB",
                found,
            ));
        }
        let file = std::fs::read(path).map_err(io)?;
        let mut image = DepthImage::default();
        let decoded = self.decoder.png(&file, units, &mut image);
        decoded.map_err(|e| SourceError::content(path, "a depth image", e.to_string()))?;
        Ok(image)
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        if self.unreadable > 1 {
            tracing::warn!("{} depth images could not be read", self.unreadable);
        }
    }
}

/// `units`, or the dataset's own.
pub(super) fn units(options: &DepthOptions, own: f64) -> f64 {
    options.units.unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_in_time_is_taken_within_20_ms() {
        let millis = |m: i64| Stamp {
            nanos: m * 1_000_000,
        };
        let stamps: Vec<Stamp> = [0, 30, 60, 200].map(millis).to_vec();
        let found = |at: i64| nearest(&stamps, millis(at), |s| *s).map(|s| s.nanos / 1_000_000);
        for (at, expected) in [
            (-21, None),
            (-20, Some(0)),
            (14, Some(0)),
            (16, Some(30)),
            (30, Some(30)),
            (80, Some(60)),
            (81, None),
            (179, None),
            (180, Some(200)),
            (220, Some(200)),
            (221, None),
        ] {
            assert_eq!(found(at), expected, "at {at} ms");
        }
        assert_eq!(nearest(&[], millis(0), |s: &Stamp| *s), None);
    }
}

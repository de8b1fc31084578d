//! Images and points of keyframes, from a map file.

use super::{MapFileError, Reader, SavedKeyframe};
use crate::image::RgbImage;
use crate::map::content::{KeyframeView, ReadFailures, ReadKeyframe};
use rustc_hash::FxHashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Reads the keyframes of a map file one at a time.
pub struct SavedViews {
    reader: Mutex<Reader>,
    /// Numbers in the file by id: removed keyframes left gaps.
    numbers: FxHashMap<u32, u32>,
    failures: ReadFailures,
}

impl SavedViews {
    /// Opens the file of a map whose keyframes have these ids, in order.
    ///
    /// # Errors
    /// If the file is no map or has another number of keyframes.
    pub fn open(path: &Path, ids: impl Iterator<Item = u32>) -> Result<Self, MapFileError> {
        let reader = Reader::open(path)?;
        let numbers: FxHashMap<u32, u32> = ids.zip(0..).collect();
        if numbers.len() as u64 != u64::from(reader.header().keyframes) {
            let (found, expected) = (reader.header().keyframes, numbers.len());
            return Err(reader.nonsense(format!("{found} keyframes, expected {expected}")));
        }
        Ok(Self {
            reader: Mutex::new(reader),
            numbers,
            failures: ReadFailures::default(),
        })
    }

    fn view(&self, number: u32) -> Result<KeyframeView, MapFileError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keyframe = SavedKeyframe::default();
        reader.view(number, &mut keyframe)?;
        let shape = &reader.header().shape;
        let content = keyframe.content;
        Ok(KeyframeView {
            image: Arc::new(RgbImage {
                width: shape.width as usize,
                height: shape.height as usize,
                data: content.image,
            }),
            points: Arc::new(content.points),
            confidence: Arc::new(content.confidence.to_f32()),
        })
    }
}

impl ReadKeyframe for SavedViews {
    fn read(&self, id: u32) -> KeyframeView {
        match self.numbers.get(&id) {
            Some(&number) => self.failures.or_empty(self.view(number)),
            None => KeyframeView::default(),
        }
    }
}

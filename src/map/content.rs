//! A keyframe's image and points, held or read when they are needed, so that a map larger than memory can be exported.

use super::KeyframeRecord;
use crate::image::RgbImage;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Image and points of a keyframe, `N = width · height`; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct KeyframeView {
    /// The network's input image; 0×0 and without points if the device that held it was lost.
    pub image: Arc<RgbImage>,
    /// `N × 3` points in the keyframe's camera frame, before scale.
    pub points: Arc<Vec<f32>>,
    /// Average confidence of the `N` points.
    pub confidence: Arc<Vec<f32>>,
}

/// Reads keyframes of a finished map, from several threads.
pub trait ReadKeyframe: Send + Sync {
    /// Image and points of keyframe `id`; empty if they cannot be read.
    fn read(&self, id: u32) -> KeyframeView;
}

/// Logs the first keyframe that cannot be read.
#[derive(Debug, Default)]
pub struct ReadFailures(AtomicBool);

impl ReadFailures {
    /// What was read; nothing after a failure.
    pub fn or_empty<E: fmt::Display>(&self, read: Result<KeyframeView, E>) -> KeyframeView {
        read.unwrap_or_else(|error| {
            if !self.0.swap(true, Ordering::Relaxed) {
                tracing::error!("cannot read the points of some keyframes: {error}");
            }
            KeyframeView::default()
        })
    }
}

/// Where a keyframe's image and points are.
#[derive(Clone)]
pub enum Content {
    /// Here.
    Held(KeyframeView),
    /// Elsewhere, and read each time that they are asked for.
    Elsewhere(Arc<dyn ReadKeyframe>),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held(_) => "Held",
            Self::Elsewhere(_) => "Elsewhere",
        })
    }
}

impl From<KeyframeView> for Content {
    fn from(view: KeyframeView) -> Self {
        Self::Held(view)
    }
}

/// Number of points of all keyframes: those of one map are alike.
pub fn count_points(keyframes: &[&KeyframeRecord]) -> usize {
    let mut counts = keyframes.iter().map(|k| k.view().confidence.len());
    counts.find(|n| *n > 0).unwrap_or(0) * keyframes.len()
}

impl KeyframeRecord {
    /// The image and the points. What is elsewhere is read: drop it before the next keyframe's.
    pub fn view(&self) -> KeyframeView {
        match &self.content {
            Content::Held(view) => view.clone(),
            Content::Elsewhere(reader) => reader.read(self.id),
        }
    }

    /// The image and the points, held from now on.
    pub fn view_mut(&mut self) -> &mut KeyframeView {
        if let Content::Elsewhere(reader) = &self.content {
            self.content = Content::Held(reader.read(self.id));
        }
        match &mut self.content {
            Content::Held(view) => view,
            Content::Elsewhere(_) => unreachable!("it was read above"),
        }
    }
}

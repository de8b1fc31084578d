//! Composition of a SLAM system: weights, device, backend, and the notes about their selection.

use super::{LabelMaker, MapLabel, OnOutline, OnSaved, SavedMap, SavedMapError, Slam};
use crate::config::Config;
use crate::network::WeightsHash;
use nalgebra::Isometry3;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// A note about a choice made while building SLAM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    text: String,
    warning: bool,
}

impl Note {
    /// A note about what was selected, and why nothing better.
    pub(crate) fn choice(text: String) -> Self {
        Self {
            text,
            warning: false,
        }
    }

    /// A warning about something missing that the user should know.
    pub(crate) fn warning(text: String) -> Self {
        Self {
            text,
            warning: true,
        }
    }

    /// Whether the note is a warning that results may be worse.
    pub fn is_warning(&self) -> bool {
        self.warning
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Composition of a SLAM system, for users and for the files that it writes.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Weights, input size, device, network runtime, and whether the camera is calibrated.
    pub description: String,
    /// Name of the weights in messages: `bundled mini model`, or their path.
    pub weights_name: String,
    /// Hash of the weights; saved maps can be used only with the same weights.
    pub weights: WeightsHash,
    /// What was selected, and why faster options were unavailable.
    pub notes: Vec<Note>,
}

impl Slam {
    /// Composition of this system.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Sets the composition; saved maps can be used only with its weights.
    #[must_use]
    pub fn with_about(mut self, about: About) -> Self {
        self.about = about;
        self
    }

    /// Configuration of this system.
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Saves the map to the file `path`, whose folder must exist, and waits until it is written.
    ///
    /// # Errors
    /// If the map has no keyframes, the file cannot be written, or the device has lost the map.
    pub fn save_map(&mut self, path: &Path) -> Result<SavedMap, SavedMapError> {
        let (sender, receiver) = sync_channel(1);
        // There is room for the one answer.
        let reply = Box::new(move |saved| drop(sender.send(saved)));
        let asked = self.save_map_later(path.to_owned(), None, reply);
        let answer = asked.then(|| receiver.recv().ok()).flatten();
        let gone = || SavedMapError::Label("the mapping side has no map any more".to_owned());
        answer.ok_or_else(gone)?
    }

    /// Saves the map to the file `path`, whose folder must exist, in the mapping thread, which does nothing else
    /// meanwhile. Tracking continues. `map_from_world` is the pose of the map's world in the map frame of a ROS node.
    /// Never waits: returns `false` if too many readers are waiting.
    pub fn save_map_later(
        &mut self,
        path: PathBuf,
        map_from_world: Option<Isometry3<f64>>,
        reply: OnSaved,
    ) -> bool {
        let label = self.label(map_from_world);
        self.save_map_with(path, label, reply)
    }

    /// Like [`Slam::save_map_later`], and hands the saved map out: see [`Slam::save_and_outline`].
    pub fn save_map_and_read(
        &mut self,
        path: PathBuf,
        map_from_world: Option<Isometry3<f64>>,
        reply: OnOutline,
    ) -> bool {
        let label = self.label(map_from_world);
        self.save_and_outline(path, label, reply)
    }

    fn label(&self, map_from_world: Option<Isometry3<f64>>) -> LabelMaker {
        let weights = self.about.weights.clone();
        Box::new(move || {
            Ok(MapLabel {
                weights: weights.get().map_err(|e| e.to_string())?,
                map_from_world,
            })
        })
    }
}

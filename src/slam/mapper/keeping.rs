//! Loads a saved map, keeps the map's file up to date, and removes redundant keyframes.

use super::Mapper;
use crate::compute::device::DeviceError;
use crate::geometry::Intrinsics;
use crate::map::saved::{ImageShape, MapFileError};
use crate::map::store::Writer;
use crate::slam::events::Finished;
use crate::slam::fit::SavedMapError;
use crate::slam::map_io::{self, MapLabel, SavedMap};
use crate::slam::map_keeper::{self, MapKeeper};
use crate::slam::map_source::MapSource;
use crate::slam::pose_table::{self, PoseTable};
use crate::slam::redundancy::When;
use crate::slam::removal;
use std::path::Path;
use std::time::Duration;

/// Maximum number of keyframes that are removed when one was added.
const REMOVED_AT_ONCE: usize = 2;

impl Mapper {
    /// Stores the final pointmap of a keyframe.
    pub fn finish_keyframe(&mut self, finished: Finished) -> Result<(), DeviceError> {
        let id = finished.keyframe;
        if self.graph.submap_of(id).is_some() {
            self.device.accept_pointmap(id, &finished.handle)?;
            self.note_points(id);
            if let Some(scale) = finished.scale {
                self.graph.scales_mut().set(id, scale);
            }
        }
        Ok(())
    }

    /// The points of a keyframe have changed.
    pub(super) fn note_points(&mut self, id: u32) {
        self.graph.note_points(id);
        self.unpublished = true;
        if let Some(keeper) = &mut self.keeper {
            keeper.note_points(id);
        }
    }

    /// Publishes the poses, and has the map's file brought up to date.
    pub(super) fn publish(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.note_change();
        }
        self.unpublished = false;
        pose_table::publish(&self.table, self.graph.table(self.map));
    }

    /// Publishes the revisions of points alone: after a failure the graph may be ahead of what was published.
    pub(super) fn publish_revisions(&mut self) {
        self.unpublished = false;
        let mut table = PoseTable::clone(&self.table.load());
        let revision = |id: &u32| self.graph.revision_of(*id);
        table.revisions = table.ids.iter().map(revision).collect();
        pose_table::publish(&self.table, table);
    }

    /// Continues with the map of `source`, and with `keep` in that file. Returns what could not be read, in words. If
    /// it fails, there is no map.
    pub(super) fn load(
        &mut self,
        source: &mut MapSource,
        keep: Option<Writer>,
    ) -> Result<String, SavedMapError> {
        self.keeper = None;
        match map_io::read(source, self.device.as_mut(), &self.cancel) {
            Ok(loaded) => {
                self.loop_closure.reset();
                self.redundancy.clear();
                self.graph = loaded.graph;
                self.unmatched = loaded.unmatched;
                let next = (loaded.next_edge, loaded.rest);
                self.keeper =
                    keep.map(|writer| MapKeeper::resume(writer, &self.graph, loaded.edges, next));
                self.publish();
                Ok(loaded.left_out)
            }
            Err(error) => {
                self.reset(self.map);
                Err(error)
            }
        }
    }

    /// Makes the matches of a packed map, which it has not needed so far. On cancellation some are left.
    pub(super) fn match_edges(&mut self) -> Result<(), DeviceError> {
        self.unmatched
            .match_all(self.device.as_mut(), &mut self.graph)
    }

    /// Saves the map to the file `path`, for images of this size and camera.
    ///
    /// # Errors
    /// If the file cannot be written, the device has lost the map, or the map is discarded before that.
    pub fn save(
        &mut self,
        path: &Path,
        image: (ImageShape, Option<Intrinsics>),
        label: MapLabel,
    ) -> Result<SavedMap, SavedMapError> {
        let failed = |cause| MapFileError::Device {
            path: path.to_owned(),
            cause,
        };
        self.match_edges().map_err(failed)?;
        if !self.unmatched.is_empty() {
            return Err(SavedMapError::GivenUp);
        }
        map_io::write(path, &self.graph, self.device.as_ref(), image, label)
    }

    /// Sends what has changed to the map's file. Never waits for it.
    pub fn keep(&mut self) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        match keeper.is_detached() {
            true => self.keeper = None,
            false => keeper.keep(&self.graph, self.device.as_ref()),
        }
    }

    /// How soon [`Mapper::keep`] is to be called without an event.
    pub fn tick(&self) -> Option<Duration> {
        let behind = self.keeper.as_ref().is_some_and(MapKeeper::is_behind);
        behind.then_some(map_keeper::TICK)
    }

    /// Brings the map's file up to date and waits for it; a failure is in its [`Monitor`].
    ///
    /// [`Monitor`]: crate::map::store::Monitor
    pub fn finish_keeping(&mut self) {
        let keeper = self.keeper.as_mut().filter(|keeper| !keeper.is_detached());
        if let Some(keeper) = keeper
            && let Err(error) = keeper.finish(&self.graph, self.device.as_ref())
        {
            tracing::error!("the map's file is not complete: {error}");
        }
    }

    /// The map is discarded: its file keeps it until the next one begins, or for good if it was detached.
    pub(super) fn reset_keeper(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            match keeper.is_detached() {
                true => self.keeper = None,
                false => keeper.reset(),
            }
        }
    }

    /// Removes the redundant keyframes that waited for their turn, since no later keyframe will have them examined.
    ///
    /// # Errors
    /// If the device fails; the map then keeps the rest.
    pub fn remove_waiting(&mut self) -> Result<(), DeviceError> {
        let before = self.counts.removed_keyframes;
        for _ in 0..self.graph.keyframes().len() {
            let Some(newest) = self.graph.keyframes().last().map(|k| k.info.id) else {
                break;
            };
            let removed = self.counts.removed_keyframes;
            self.remove_one(newest, When::AtEnd)?;
            if self.counts.removed_keyframes == removed {
                break;
            }
        }
        if self.counts.removed_keyframes > before {
            self.publish();
            self.shared_counts.publish(self.counts);
        }
        Ok(())
    }

    /// Removes keyframes that became redundant when keyframe `id` was added: at most two, so that those which had to
    /// wait get their turn although the youngest goes first.
    pub(super) fn remove_redundant(&mut self, id: u32) -> Result<(), DeviceError> {
        for _ in 0..REMOVED_AT_ONCE {
            let removed = self.counts.removed_keyframes;
            self.remove_one(id, When::Amid)?;
            if self.counts.removed_keyframes == removed {
                break;
            }
        }
        Ok(())
    }

    fn remove_one(&mut self, id: u32, when: When) -> Result<(), DeviceError> {
        let (device, loans) = (self.device.as_mut(), &self.loans);
        let lent = |id| loans.contains(id);
        let redundant = self
            .redundancy
            .choose(device, &self.graph, id, lent, when)?;
        let Some(id) = redundant else {
            return Ok(());
        };
        let params = &self.params;
        let beside = removal::remove(self.device.as_mut(), &mut self.graph, params, id)?;
        let Some(beside) = beside else {
            return Ok(());
        };
        self.redundancy.removed(id, beside);
        self.counts.removed_keyframes += 1;
        tracing::debug!(id, left = self.graph.keyframes().len(), "keyframe removed");
        Ok(())
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.finish_keeping();
    }
}

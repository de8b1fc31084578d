//! The map resulting from a run.

use super::results::{self, Facts, Written};
use crate::eval::{EvalError, Evaluation};
use crate::files::export::{self, ExportError};
use crate::map::content::ReadFailures;
use crate::map::grid::OccupancyMap;
use crate::map::{Content, KeyframeView, MapSnapshot, ReadKeyframe};
use crate::slam::SlamError;
use crate::slam::{MappingCounts, SavedMap, SavedMapError, Slam};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The finished map: keyframes, edges and the poses of all frames.
pub struct Map {
    slam: Arc<Finished>,
    snapshot: MapSnapshot,
    title: String,
    seconds: f64,
    ground_truth: Option<PathBuf>,
    grid: Option<OccupancyMap>,
    splats: Vec<u8>,
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("keyframes", &self.snapshot.keyframes.len())
            .field("frames", &self.snapshot.frames.len())
            .finish_non_exhaustive()
    }
}

/// A system that has ended, whose keyframes are read one at a time.
struct Finished {
    slam: Mutex<Slam>,
    failures: ReadFailures,
}

impl Finished {
    fn lock(&self) -> MutexGuard<'_, Slam> {
        self.slam.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadKeyframe for Finished {
    fn read(&self, id: u32) -> KeyframeView {
        let view = self.lock().keyframe(id);
        self.failures.or_empty(view)
    }
}

impl Slam {
    /// Waits for mapping to complete and returns the map.
    ///
    /// # Errors
    /// If mapping failed. The error contains the map in its current state.
    pub fn finish(mut self) -> Result<Map, FinishError> {
        let completed = self.complete();
        let slam = Arc::new(Finished {
            slam: Mutex::new(self),
            failures: ReadFailures::default(),
        });
        let reader: Arc<dyn ReadKeyframe> = slam.clone();
        let snapshot = slam
            .lock()
            .outline(|| Content::Elsewhere(Arc::clone(&reader)));
        let map = Map {
            slam,
            snapshot,
            title: "map".to_owned(),
            seconds: 0.0,
            ground_truth: None,
            grid: None,
            splats: Vec::new(),
        };
        match completed {
            Ok(()) => Ok(map),
            Err(cause) => Err(FinishError::new(map, cause)),
        }
    }
}

impl Map {
    /// Sets the title of the report.
    #[must_use]
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the duration of the run in seconds, shown in the report.
    #[must_use]
    pub fn lasting(mut self, seconds: f64) -> Self {
        self.seconds = seconds;
        self
    }

    /// Sets a trajectory in TUM format that [`Map::write`] compares with.
    #[must_use]
    pub fn compared_with(mut self, ground_truth: Option<PathBuf>) -> Self {
        self.ground_truth = ground_truth;
        self
    }

    /// Sets the occupancy grid that the report of [`Map::write`] shows.
    #[must_use]
    pub(crate) fn with_grid(mut self, grid: Option<OccupancyMap>) -> Self {
        self.grid = grid;
        self
    }

    /// Sets the splats that the report of [`Map::write`] shows, as [`ReportInput::splats`](crate::report::ReportInput).
    pub(crate) fn show_splats(&mut self, rows: Vec<u8>) {
        self.splats = rows;
    }

    /// The grid of [`Map::with_grid`].
    pub(crate) fn grid(&self) -> Option<&OccupancyMap> {
        self.grid.as_ref()
    }

    /// Keyframes, edges and the poses of all frames. Images and points are read when they are asked for, so that a map
    /// larger than memory can be exported.
    pub fn snapshot(&self) -> &MapSnapshot {
        &self.snapshot
    }

    /// Counters of mapping.
    pub fn counts(&self) -> MappingCounts {
        self.slam.lock().mapping_counts()
    }

    /// Why the map's file is not complete: see [`Slam::map_file_failure`].
    pub fn file_failure(&self) -> Option<String> {
        self.slam.lock().map_file_failure()
    }

    /// Writes trajectories, keyframes, the cloud as PLY, a COLMAP model and a report to a folder, which is created.
    ///
    /// # Errors
    /// If the folder cannot be created; or the first file that could not be written, after writing the others.
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<Written, ExportError> {
        let folder = folder.as_ref();
        export::create_folder(folder)?;
        // Not locked while the files are written: their keyframes are read through it.
        let (about, config, counts, scale) = {
            let slam = self.slam.lock();
            let (config, scale) = (Arc::clone(slam.config()), slam.scale());
            (slam.about().clone(), config, slam.mapping_counts(), scale)
        };
        let facts = Facts {
            config: &config,
            weights_name: &about.weights_name,
            title: &self.title,
            backend: &about.description,
            ground_truth: self.ground_truth.as_deref(),
            seconds: self.seconds,
            counts,
            scale,
            grid: self.grid.as_ref(),
            splats: &self.splats,
        };
        results::write(folder, &self.snapshot, &facts)
    }

    /// Saves the map to a single file, from which [`SlamBuilder::map`] and [`Slam::load_map`] can continue.
    ///
    /// [`SlamBuilder::map`]: super::SlamBuilder::map
    ///
    /// # Errors
    /// If the map has no keyframes, the file cannot be written, or the device has lost the map.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<SavedMap, SavedMapError> {
        self.slam.lock().save_map(path.as_ref())
    }

    /// Compares the poses of all frames with a ground truth in TUM format, after alignment by a similarity transform.
    ///
    /// # Errors
    /// If the file cannot be read, or has too few stamps in common with the trajectory.
    pub fn evaluate(&self, ground_truth: &Path) -> Result<Evaluation, EvalError> {
        results::compare(&self.snapshot, ground_truth).map(|(evaluation, _)| evaluation)
    }
}

/// Mapping failed at the end; the map holds what was computed.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct FinishError {
    /// The map as it is.
    pub map: Box<Map>,
    /// The reason.
    #[source]
    pub cause: SlamError,
}

impl FinishError {
    fn new(map: Map, cause: SlamError) -> Self {
        Self {
            map: Box::new(map),
            cause,
        }
    }
}

//! Saves the map for the service `~/save_map`.

use super::inbox::OnText;
use crate::files::export::{self, ExportError};
use crate::map::MapSnapshot;
use crate::map::grid::{self, GridOptions, Upright};
use crate::slam::{SavedMap, SavedMapError, Slam};
use crate::slam_builder::{Facts, write_results};
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// How the occupancy grid of the saved map is made.
pub struct SavedGrid {
    pub options: GridOptions,
    pub upright: Upright,
    pub submap: u32,
}

impl SavedGrid {
    /// Writes `map.pgm` and `map.yaml` to the folder.
    fn write(&self, folder: &Path, map: &MapSnapshot) -> Result<[PathBuf; 2], ExportError> {
        let (cells, _) = grid::of_snapshot(map, self.submap, &self.upright, &self.options);
        let files = grid::write(folder, &cells)?;
        Ok([files.image, files.yaml])
    }
}

/// Saves the map to `file` on the mapping thread, and the results of a run to the folder `results` if
/// it is given. Returns `false` if too many requests are waiting.
pub fn save(
    slam: &mut Slam,
    file: PathBuf,
    results: Option<PathBuf>,
    placed: Option<Isometry3<f64>>,
    grid: Option<SavedGrid>,
    reply: OnText,
) -> bool {
    match results {
        None => {
            let reply = Box::new(move |saved: Result<SavedMap, SavedMapError>| {
                reply(saved.map(|map| map.to_string()).map_err(|e| e.to_string()));
            });
            slam.save_map_later(file, placed, reply)
        }
        Some(folder) => save_with_results(slam, file, folder, placed, grid, reply),
    }
}

/// Saves the map to a file, and the results of a run to its folder, with SLAM's current
/// configuration. Returns `false` if too many requests are waiting.
fn save_with_results(
    slam: &mut Slam,
    file: PathBuf,
    folder: PathBuf,
    placed: Option<Isometry3<f64>>,
    grid: Option<SavedGrid>,
    reply: OnText,
) -> bool {
    // Two replies of the mapping thread, one after the other.
    let outcome: Arc<Mutex<Option<Result<SavedMap, SavedMapError>>>> = Arc::default();
    let kept = Arc::clone(&outcome);
    let keep = Box::new(move |saved| {
        *kept.lock().unwrap_or_else(|e| e.into_inner()) = Some(saved);
    });
    let (config, about, counts) = (
        Arc::clone(slam.config()),
        slam.about().clone(),
        slam.mapping_counts(),
    );
    let write = move |map: MapSnapshot| {
        let title = format!("live map of {} frames", map.frames.len());
        let facts = Facts {
            config: &config,
            weights_name: &about.weights_name,
            title: &title,
            backend: &about.description,
            ground_truth: None,
            seconds: 0.0,
            counts,
        };
        let results =
            export::create_folder(&folder).and_then(|()| write_results(&folder, &map, &facts));
        let results = results.and_then(|mut written| {
            if let Some(grid) = &grid {
                written.files.extend(grid.write(&folder, &map)?);
            }
            Ok(written)
        });
        let saved = outcome.lock().unwrap_or_else(|e| e.into_inner()).take();
        reply(match (saved, results) {
            (Some(Ok(saved)), Ok(written)) => Ok(format!(
                "{saved}; {} keyframes and {} frames written to {} ({} files and folders)",
                map.keyframes.len(),
                map.frames.len(),
                folder.display(),
                written.files.len()
            )),
            (Some(Err(error)), _) => Err(error.to_string()),
            (_, Err(error)) => Err(error.to_string()),
            (None, Ok(_)) => Err("no map file was written".to_owned()),
        });
    };
    let on_map = Box::new(move |map: MapSnapshot| {
        // Writing takes seconds and must not block the mapping thread.
        let thread = std::thread::Builder::new().name("save-map".into());
        if let Err(error) = thread.spawn(move || write(map)) {
            tracing::error!("cannot write the map's results: {error}");
        }
    });
    slam.save_map_later(file, placed, keep) && slam.read_map(on_map)
}

//! Saves the map for the service `~/save_map`.

use super::inbox::OnText;
use crate::files::export::{self, ExportError};
use crate::map::MapSnapshot;
use crate::map::grid::{self, GridOptions, OccupancyMap, Upright};
use crate::slam::{SavedMap, SavedMapError, Slam};
use crate::slam_builder::splat::Asker;
use crate::slam_builder::{Facts, write_results};
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the results show beside the map.
#[derive(Default)]
pub struct Beside {
    pub grid: Option<SavedGrid>,
    /// The Gaussian map's thread.
    pub splats: Option<Arc<Asker>>,
}

/// How the occupancy grid of the saved map is made.
pub struct SavedGrid {
    pub options: GridOptions,
    pub upright: Upright,
    pub submap: u32,
}

impl SavedGrid {
    fn cells(&self, map: &MapSnapshot) -> OccupancyMap {
        grid::of_snapshot(map, self.submap, &self.upright, &self.options).0
    }
}

/// Writes `map.pgm` and `map.yaml` to the folder.
fn write_grid(folder: &Path, cells: &OccupancyMap) -> Result<[PathBuf; 2], ExportError> {
    let files = grid::write(folder, cells)?;
    Ok([files.image, files.yaml])
}

/// Saves the map to `file` on the mapping thread, and the results of a run to the folder `results` if
/// it is given. Returns `false` if too many requests are waiting.
pub fn save(
    slam: &mut Slam,
    file: PathBuf,
    results: Option<PathBuf>,
    placed: Option<Isometry3<f64>>,
    beside: Beside,
    reply: OnText,
) -> bool {
    match results {
        None => {
            let reply = Box::new(move |saved: Result<SavedMap, SavedMapError>| {
                reply(saved.map(|map| map.to_string()).map_err(|e| e.to_string()));
            });
            slam.save_map_later(file, placed, reply)
        }
        Some(folder) => save_with_results(slam, file, folder, placed, beside, reply),
    }
}

/// Saves the map to a file, and the results of a run to its folder, with SLAM's current
/// configuration. Returns `false` if too many requests are waiting.
fn save_with_results(
    slam: &mut Slam,
    file: PathBuf,
    folder: PathBuf,
    placed: Option<Isometry3<f64>>,
    beside: Beside,
    reply: OnText,
) -> bool {
    let (config, about, counts, scale) = (
        Arc::clone(slam.config()),
        slam.about().clone(),
        slam.mapping_counts(),
        slam.scale(),
    );
    let write = move |saved: &SavedMap, map: &MapSnapshot| {
        let title = format!("live map of {} frames", map.frames.len());
        let cells = beside.grid.as_ref().map(|grid| grid.cells(map));
        let shown = beside.splats.as_ref().and_then(|asker| asker.shown());
        let facts = Facts {
            config: &config,
            weights_name: &about.weights_name,
            title: &title,
            backend: &about.description,
            ground_truth: None,
            seconds: 0.0,
            counts,
            scale,
            grid: cells.as_ref(),
            splats: shown.as_deref().unwrap_or_default(),
        };
        let results =
            export::create_folder(&folder).and_then(|()| write_results(&folder, map, &facts));
        let results = results.and_then(|mut written| {
            if let Some(cells) = &cells {
                written.files.extend(write_grid(&folder, cells)?);
            }
            Ok(written)
        });
        results.map(|written| {
            format!(
                "{saved}; {} keyframes and {} frames written to {} ({} files and folders)",
                map.keyframes.len(),
                map.frames.len(),
                folder.display(),
                written.files.len()
            )
        })
    };
    let on_saved = Box::new(
        move |saved: Result<(SavedMap, MapSnapshot), SavedMapError>| {
            let (saved, map) = match saved {
                Ok(saved) => saved,
                Err(error) => return reply(Err(error.to_string())),
            };
            // Writing takes seconds and must not block the mapping thread. Keyframes are read from the file.
            let thread = std::thread::Builder::new().name("save-map".into());
            let spawned =
                thread.spawn(move || reply(write(&saved, &map).map_err(|error| error.to_string())));
            if let Err(error) = spawned {
                tracing::error!("cannot write the map's results: {error}");
            }
        },
    );
    slam.save_map_and_read(file, placed, on_saved)
}

//! `run --grid`: the map's occupancy grid as files.

use super::{CliError, say};
use crate::config::Config;
use crate::map::MapSnapshot;
use crate::map::grid::{self, GridOptions, OccupancyMap, Upright};
use nalgebra::Vector3;
use std::path::Path;

/// The grid of the largest submap; `None`, and why, for a map without points. `up` is up in the world, if it was measured.
pub fn make(
    snapshot: &MapSnapshot,
    up: Option<&Vector3<f64>>,
    config: &Config,
) -> Option<OccupancyMap> {
    let options = GridOptions::new(&config.grid, config.output.c_conf);
    let submap = snapshot.largest_submap();
    let Some((upright, found)) = Upright::find_below(snapshot, submap, up, &options) else {
        say("grid: not written, because the map has no points");
        return None;
    };
    if !found {
        say(match up {
            Some(_) => "grid: no floor was found; the lowest points are taken for it",
            None => {
                "grid: no floor was found; up is the first camera's, and the lowest points are taken for the floor"
            }
        });
    }
    let (map, cut) = grid::of_snapshot(snapshot, submap, &upright, &options);
    if cut {
        say(&format!(
            "grid: it has reached grid.max_cells ({}), and parts of the map are outside of it: raise it, or \
             grid.resolution",
            options.max_cells
        ));
    }
    Some(map)
}

/// Writes a grid to `path`, a folder or a file that ends in `.yaml` or `.pgm`.
pub fn write(path: &Path, map: &OccupancyMap) -> Result<(), CliError> {
    let files = grid::write(path, map)?;
    say(&format!(
        "grid: {}×{} cells in {} and {}",
        map.columns,
        map.rows,
        files.image.display(),
        files.yaml.display()
    ));
    Ok(())
}

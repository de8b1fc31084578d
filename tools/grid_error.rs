//! Measures the occupancy grid against the depth of a sequence with ground truth (TUM layout, `depth.txt`):
//! `grid_error FOLDER [UNITS_PER_METRE]`. The grid is made of every second depth image, the truth of all of
//! them, at the ground truth's poses.

use mast3r_slam::config::GridConfig;
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::grid::{
    FloorPose, GlobalGrid, GridOptions, LocalGrid, OccupancyMap, Upright, of_snapshot,
};
use mast3r_slam::map::{KeyframeRecord, KeyframeView, MapSnapshot};
use mast3r_slam::time::Stamp;
use nalgebra::{Isometry3, Point3, Quaternion, UnitQuaternion, Vector3};
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: grid_error FOLDER [UNITS_PER_METRE]")?;
    let units: f64 = arguments.next().map_or(Ok(5000.0), |text| text.parse())?;
    measure(Path::new(&folder), units)
}

/// Prints what was found.
pub fn measure(folder: &Path, units: f64) -> Result<(), Box<dyn Error>> {
    let intrinsics = camera(&std::fs::read_to_string(folder.join("camera.yaml"))?)?;
    let records = records(folder, units, &intrinsics)?;
    let options = GridOptions::new(&GridConfig::default(), 0.0);
    let snapshot = |keyframes: Vec<KeyframeRecord>| MapSnapshot {
        intrinsics: Some(intrinsics),
        keyframes,
        ..MapSnapshot::default()
    };
    let half = snapshot(records.iter().step_by(2).cloned().collect());
    let (upright, found) = Upright::find(&half, 0, &options).ok_or("no points")?;
    let Upright::Level { level_from_world } = upright else {
        return Err("no level frame".into());
    };
    let up = level_from_world.rotation * Vector3::z();
    let floor = level_from_world.inverse() * Point3::origin();
    println!(
        "floor found: {found}, {:.2} degrees from the world's z, at {:.3} m",
        up.z.clamp(-1.0, 1.0).acos().to_degrees(),
        floor.z
    );
    time(&half, &upright, &options);
    let (grid, cut) = of_snapshot(&half, 0, &upright, &options);
    println!(
        "{} keyframes, {}×{} cells, cut: {cut}",
        half.keyframes.len(),
        grid.columns,
        grid.rows
    );
    judge(
        &grid,
        &truth(&snapshot(records), &level_from_world, &options),
    );
    Ok(())
}

fn time(map: &MapSnapshot, upright: &Upright, options: &GridOptions) {
    let Some(record) = map.keyframes.first() else {
        return;
    };
    let (place, camera) = upright.of(&record.world_from_camera);
    let start = Instant::now();
    let seen = (record.view(), record.world_from_camera.scale);
    let local = LocalGrid::trace(seen, map.intrinsics.as_ref(), &camera, options);
    let traced = start.elapsed();
    let mut grid = GlobalGrid::new(options.resolution, options.max_cells);
    grid.insert(0, local, place);
    grid.update();
    let start = Instant::now();
    grid.set_place(
        0,
        FloorPose {
            heading: place.heading + 0.1,
            ..place
        },
    );
    grid.update();
    println!(
        "a keyframe is traced in {traced:?} and moved in {:?}",
        start.elapsed()
    );
}

/// What all depth images show of each cell: an obstacle, or the floor.
fn truth(
    map: &MapSnapshot,
    level_from_world: &Isometry3<f64>,
    options: &GridOptions,
) -> HashMap<[i64; 2], bool> {
    let (mut obstacles, mut floor) = (HashSet::new(), HashSet::new());
    for record in &map.keyframes {
        for p in record.view().points.chunks_exact(3).filter(|p| p[2] > 0.0) {
            let p = Vector3::new(p[0], p[1], p[2]).map(f64::from);
            let at = level_from_world * Point3::from(record.world_from_camera.transform(&p));
            let cell = [at.x, at.y].map(|v| (v / options.resolution).floor() as i64);
            if (options.min_height..=options.max_height).contains(&at.z) {
                obstacles.insert(cell);
            } else if at.z.abs() < options.min_height {
                floor.insert(cell);
            }
        }
    }
    let free = floor.into_iter().map(|cell| (cell, false));
    free.chain(obstacles.into_iter().map(|cell| (cell, true)))
        .collect()
}

fn judge(grid: &OccupancyMap, truth: &HashMap<[i64; 2], bool>) {
    let (mut known, mut wrong, mut unjudged, mut counts) = (0, [0; 2], 0, [0; 2]);
    let corner = grid.origin.map(|v| (v / grid.resolution).round() as i64);
    for (index, value) in grid.cells.iter().enumerate() {
        let occupied = match value {
            0 => false,
            100 => true,
            _ => continue,
        };
        let column = corner[0] + (index % grid.columns) as i64;
        let row = corner[1] + (index / grid.columns) as i64;
        let near = (-1..=1).flat_map(|dx| (-1..=1).map(move |dy| [column + dx, row + dy]));
        let near: Vec<bool> = near.filter_map(|cell| truth.get(&cell).copied()).collect();
        counts[usize::from(occupied)] += 1;
        if near.is_empty() {
            unjudged += 1;
            continue;
        }
        known += 1;
        wrong[usize::from(occupied)] += usize::from(!near.contains(&occupied));
    }
    let total = wrong[0] + wrong[1];
    println!(
        "{} free, {} occupied; {unjudged} without truth; wrong by more than a cell: {total} of {known} ({:.2} %): \
         {} free, {} occupied",
        counts[0],
        counts[1],
        100.0 * total as f64 / f64::from(known.max(1)),
        wrong[0],
        wrong[1]
    );
}

fn camera(text: &str) -> Result<Intrinsics, Box<dyn Error>> {
    let value = |key: &str| -> Result<f64, Box<dyn Error>> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        Ok(line
            .ok_or(format!("no {key} in camera.yaml"))?
            .trim()
            .parse()?)
    };
    Ok(Intrinsics {
        fx: value("fx")?,
        fy: value("fy")?,
        cx: value("cx")?,
        cy: value("cy")?,
    })
}

fn rows(path: &Path) -> Result<Vec<Vec<String>>, Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let rows = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    Ok(rows
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect())
}

fn records(
    folder: &Path,
    units: f64,
    k: &Intrinsics,
) -> Result<Vec<KeyframeRecord>, Box<dyn Error>> {
    let mut poses = Vec::new();
    for row in rows(&folder.join("groundtruth.txt"))? {
        let numbers: Result<Vec<f64>, _> = row.iter().map(|v| v.parse()).collect();
        poses.push(numbers?);
    }
    let mut records = Vec::new();
    for row in rows(&folder.join("depth.txt"))? {
        let (stamp, file): (f64, &str) = (row[0].parse()?, &row[1]);
        let nearest = poses
            .iter()
            .min_by(|a, b| (a[0] - stamp).abs().total_cmp(&(b[0] - stamp).abs()));
        let Some(p) = nearest.filter(|p| (p[0] - stamp).abs() < 0.02) else {
            continue;
        };
        let depth = image::open(folder.join(file))?.into_luma16();
        let (width, height) = (depth.width() as usize, depth.height() as usize);
        let mut points = Vec::with_capacity(3 * width * height);
        for (u, v, pixel) in depth.enumerate_pixels() {
            let p = k.ray(f64::from(u), f64::from(v)) * (f64::from(pixel.0[0]) / units);
            points.extend(p.iter().map(|v| *v as f32));
        }
        // No depth is no point.
        let confidence = points
            .chunks_exact(3)
            .map(|p| if p[2] > 0.0 { 5.0 } else { 0.0 })
            .collect();
        records.push(KeyframeRecord {
            id: records.len() as u32,
            frame_index: records.len(),
            stamp: Stamp::from_seconds(stamp),
            submap: 0,
            world_from_camera: Sim3 {
                translation: Vector3::new(p[1], p[2], p[3]),
                rotation: UnitQuaternion::from_quaternion(Quaternion::new(p[7], p[4], p[5], p[6])),
                scale: 1.0,
            },
            content: KeyframeView {
                image: Arc::new(RgbImage::new(width, height)),
                points: Arc::new(points),
                confidence: Arc::new(confidence),
            }
            .into(),
        });
    }
    Ok(records)
}

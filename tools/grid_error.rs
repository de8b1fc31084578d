//! Measures the occupancy grid against the depth of a sequence with ground truth (TUM layout, `depth.txt`):
//! `grid_error FOLDER [UNITS_PER_METRE] [--map FILE [--scaled]]`. The truth is of all depth images, at the ground
//! truth's poses. The grid is that of the map in FILE (`run --save-map FILE`), aligned with the ground truth by
//! rotation and translation, or with `--scaled` by scale as well; without `--map` it is made of every second depth
//! image, which shows the error of the grid alone.

use mast3r_slam::config::GridConfig;
use mast3r_slam::eval::align;
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::grid::{
    FloorPose, GlobalGrid, GridOptions, LocalGrid, OccupancyMap, Upright, of_snapshot,
};
use mast3r_slam::map::saved::{Reader, SavedKeyframe};
use mast3r_slam::map::{KeyframeRecord, KeyframeView, MapSnapshot};
use mast3r_slam::time::Stamp;
use nalgebra::{Isometry3, Point3, Quaternion, UnitQuaternion, Vector3};
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let usage = "usage: grid_error FOLDER [UNITS_PER_METRE] [--map FILE [--scaled]]";
    let folder = arguments.next().ok_or(usage)?;
    let units = arguments.next_if(|text| !text.starts_with("--"));
    let units: f64 = units.map_or(Ok(5000.0), |text| text.parse())?;
    let (mut map, mut scaled) = (None, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--map" => map = Some(arguments.next().ok_or(usage)?),
            "--scaled" => scaled = true,
            _ => return Err(usage.into()),
        }
    }
    measure(
        Path::new(&folder),
        units,
        map.as_deref().map(Path::new),
        scaled,
    )
}

/// Prints what was found.
pub fn measure(
    folder: &Path,
    units: f64,
    map: Option<&Path>,
    scaled: bool,
) -> Result<(), Box<dyn Error>> {
    let intrinsics = camera(&std::fs::read_to_string(folder.join("camera.yaml"))?)?;
    let records = records(folder, units, &intrinsics)?;
    let snapshot = |keyframes: Vec<KeyframeRecord>| MapSnapshot {
        intrinsics: Some(intrinsics),
        keyframes,
        ..MapSnapshot::default()
    };
    // Depth images have no confidence; a map's is judged as `run --grid` does with the bundled network.
    let (half, min_confidence) = match map {
        Some(map) => (aligned(map, folder, scaled)?, 1.5),
        None => (snapshot(records.iter().step_by(2).cloned().collect()), 0.0),
    };
    let options = GridOptions::new(&GridConfig::default(), min_confidence);
    let submap = half.largest_submap();
    let (upright, found) = Upright::find(&half, submap, &options).ok_or("no points")?;
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
    let (grid, cut) = of_snapshot(&half, submap, &upright, &options);
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
    let mut grid = GlobalGrid::new(options);
    grid.insert(0, local, 0, place);
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

/// The map of a run, moved into the frame of the ground truth.
fn aligned(map: &Path, folder: &Path, scaled: bool) -> Result<MapSnapshot, Box<dyn Error>> {
    let mut reader = Reader::open(map)?;
    let header = reader.header().clone();
    let mut keyframes = Vec::new();
    for _ in 0..header.keyframes {
        let mut read = SavedKeyframe::default();
        reader.keyframe(&mut read)?;
        let content = std::mem::take(&mut read.content);
        let size = (header.shape.width as usize, header.shape.height as usize);
        keyframes.push(KeyframeRecord {
            id: read.id,
            frame_index: read.frame_index as usize,
            stamp: read.stamp,
            submap: read.submap,
            world_from_camera: read.world_from_camera,
            content: KeyframeView {
                image: Arc::new(RgbImage::new(size.0, size.1)),
                points: Arc::new(content.points),
                confidence: Arc::new(content.confidence.to_f32()),
            }
            .into(),
        });
    }
    let poses = poses(folder)?;
    let (mut own, mut truth) = (Vec::new(), Vec::new());
    for keyframe in &keyframes {
        if let Some(pose) = nearest(&poses, keyframe.stamp.seconds()) {
            own.push(keyframe.world_from_camera.translation);
            truth.push(pose.translation);
        }
    }
    let truth_from_world = align(&own, &truth, scaled).ok_or("the poses cannot be aligned")?;
    println!(
        "{} keyframes aligned with scale {:.4}",
        own.len(),
        truth_from_world.scale
    );
    for keyframe in &mut keyframes {
        keyframe.world_from_camera = truth_from_world * keyframe.world_from_camera;
    }
    Ok(MapSnapshot {
        intrinsics: header.intrinsics,
        keyframes,
        ..MapSnapshot::default()
    })
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

/// The ground truth: times in seconds and camera poses.
fn poses(folder: &Path) -> Result<Vec<(f64, Sim3)>, Box<dyn Error>> {
    let read = |row: Vec<String>| -> Result<(f64, Sim3), Box<dyn Error>> {
        let p: Vec<f64> = row.iter().map(|v| v.parse()).collect::<Result<_, _>>()?;
        let pose = Sim3 {
            translation: Vector3::new(p[1], p[2], p[3]),
            rotation: UnitQuaternion::from_quaternion(Quaternion::new(p[7], p[4], p[5], p[6])),
            scale: 1.0,
        };
        Ok((p[0], pose))
    };
    let rows = rows(&folder.join("groundtruth.txt"))?;
    rows.into_iter().map(read).collect()
}

/// The pose at this time, to 20 ms.
fn nearest(poses: &[(f64, Sim3)], seconds: f64) -> Option<Sim3> {
    let off = |(t, _): &&(f64, Sim3)| (t - seconds).abs();
    let found = poses.iter().min_by(|a, b| off(a).total_cmp(&off(b)))?;
    (off(&found) < 0.02).then_some(found.1)
}

fn records(
    folder: &Path,
    units: f64,
    k: &Intrinsics,
) -> Result<Vec<KeyframeRecord>, Box<dyn Error>> {
    let poses = poses(folder)?;
    let mut records = Vec::new();
    for row in rows(&folder.join("depth.txt"))? {
        let (stamp, file): (f64, &str) = (row[0].parse()?, &row[1]);
        let Some(world_from_camera) = nearest(&poses, stamp) else {
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
            world_from_camera,
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

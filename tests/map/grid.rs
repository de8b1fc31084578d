//! The occupancy grid of a room whose walls and furniture are known.

use mast3r_slam::config::GridConfig;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::grid::{
    self, Cleared, FloorPose, GlobalGrid, GridOptions, LocalGrid, OccupancyMap, Upright, Window,
};
use mast3r_slam::map::{KeyframeView, MapSnapshot};
use nalgebra::{Isometry3, Point3, Rotation3, UnitQuaternion, Vector2, Vector3};
use std::path::Path;
use std::sync::Arc;
use testkit::flat::{Block, Flat, base_from_camera};
use testkit::map_room::{camera, intrinsics, keyframe};

/// The room of `testkit::map_room` from above: x and z, for walls and for furniture between 0.1 m and
/// 1.5 m above the floor at y = 1.2.
const WALLS: [[f64; 2]; 2] = [[-3.0, -2.5], [3.0, 2.5]];
const FURNITURE: [[[f64; 2]; 2]; 3] = [
    [[-0.8, -0.6], [0.9, 0.6]],
    [[2.2, -1.2], [3.0, 0.4]],
    [[-2.9, 1.3], [-1.0, 2.4]],
];
const FLOOR: f64 = 1.2;
const SIZE: (usize, usize) = (256, 192);

fn options() -> GridOptions {
    GridOptions::new(&GridConfig::default(), 0.0)
}

/// A walk around the table, each keyframe with another scale.
fn walk(keyframes: u32) -> MapSnapshot {
    let record = |id: u32| {
        let pose = camera(f64::from(id) / f64::from(keyframes));
        keyframe(id, pose, 0.6 + 0.1 * f64::from(id % 9), SIZE.0, SIZE.1)
    };
    MapSnapshot {
        intrinsics: Some(intrinsics(SIZE.0, SIZE.1)),
        keyframes: (0..keyframes).map(record).collect(),
        ..MapSnapshot::default()
    }
}

/// Metres that a place in the room is away from free floor; negative: from the next obstacle.
fn depth_in_obstacle(x: f64, z: f64) -> f64 {
    let inside = |[low, high]: &[[f64; 2]; 2]| {
        let [a, b] = [x - low[0], high[0] - x];
        let [c, d] = [z - low[1], high[1] - z];
        a.min(b).min(c).min(d)
    };
    let of_furniture = FURNITURE.iter().map(inside).fold(f64::MIN, f64::max);
    of_furniture.max(-inside(&WALLS))
}

/// Cells that are known, and those of them that are wrong by more than one cell.
fn errors(grid: &OccupancyMap, level_from_world: &Isometry3<f64>) -> (usize, usize, usize) {
    let world_from_level = level_from_world.inverse();
    let (mut free, mut occupied, mut wrong) = (0, 0, 0);
    for (index, value) in grid.cells.iter().enumerate() {
        let (column, row) = (index % grid.columns, index / grid.columns);
        let x = grid.origin[0] + (column as f64 + 0.5) * grid.resolution;
        let y = grid.origin[1] + (row as f64 + 0.5) * grid.resolution;
        let at = world_from_level * Point3::new(x, y, 0.0);
        let depth = depth_in_obstacle(at.x, at.z);
        // The centre of the next cell but one is this far away.
        let reach = 1.5 * grid.resolution;
        match value {
            0 => {
                free += 1;
                wrong += usize::from(depth > reach);
            }
            100 => {
                occupied += 1;
                wrong += usize::from(depth < -reach);
            }
            _ => {}
        }
    }
    (free, occupied, wrong)
}

fn level(upright: &Upright) -> Isometry3<f64> {
    match upright {
        Upright::Level { level_from_world } => *level_from_world,
        Upright::Robot { .. } => panic!("a level frame was asked for"),
    }
}

#[test]
fn the_floor_is_level_as_it_was_measured() {
    let map = walk(12);
    // Up is -y of this world. A measurement that is 3 degrees off finds the same floor.
    let measured = Vector3::new(0.05, -1.0, 0.0).normalize();
    let (upright, found) =
        Upright::find_below(&map, 0, Some(&measured), &options()).expect("points");
    assert!(found, "no floor");
    let up = level(&upright).rotation * -Vector3::y();
    assert!(up.z > 0.9999, "{up}");
    // A wall is no floor: where nothing is level, up is as measured.
    let sideways = Vector3::new(0.6, -0.8, 0.0);
    let (upright, found) =
        Upright::find_below(&map, 0, Some(&sideways), &options()).expect("points");
    let up = level(&upright).rotation * sideways;
    assert!(!found && up.z > 0.9999, "{found} {up}");
}

#[test]
fn the_grid_shows_the_walls_and_the_furniture_of_a_room() {
    let map = walk(12);
    let (upright, found) = Upright::find(&map, 0, &options()).expect("points");
    assert!(found, "no floor");
    let level = level(&upright);
    let on_floor = level * Point3::new(0.7, FLOOR, -0.4);
    assert!(on_floor.z.abs() < 0.01, "the floor is at {}", on_floor.z);
    let up = level.rotation * -Vector3::y();
    assert!(up.z > 0.9999, "{up}");
    let (grid, cut) = grid::of_snapshot(&map, 0, &upright, &options());
    assert!(!cut);
    let (free, occupied, wrong) = errors(&grid, &level);
    let cells_of_room = (6.0 * 5.0 / grid.resolution.powi(2)) as usize;
    assert!(
        free * 2 > cells_of_room,
        "{free} of {cells_of_room} are free"
    );
    // The walls alone are 22 m long.
    assert!(occupied > 440, "{occupied} are occupied");
    assert!(
        wrong * 20 <= free + occupied,
        "{wrong} of {}",
        free + occupied
    );
}

#[test]
fn a_robot_s_mount_gives_heights_and_the_map_frame_its_axes() {
    let map = walk(12);
    // The map frame has z up and its origin on the floor, turned and away from SLAM's world.
    let turn = UnitQuaternion::from_axis_angle(&Vector3::z_axis(), 0.4);
    let axes = Rotation3::from_matrix_unchecked(nalgebra::Matrix3::new(
        1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0,
    ));
    let up = Isometry3::from_parts(
        Vector3::new(0.0, 0.0, FLOOR).into(),
        UnitQuaternion::from_rotation_matrix(&axes),
    );
    let map_from_world = Isometry3::from_parts(Vector3::new(4.0, 1.0, 0.0).into(), turn) * up;
    let level = Upright::Level {
        level_from_world: map_from_world,
    };
    for record in &map.keyframes {
        // The same camera on a robot that stands below it.
        let (place, upright_from_camera) = level.of(&record.world_from_camera);
        let robot = Upright::Robot {
            base_from_camera: upright_from_camera,
            map_from_world,
        };
        let (same, mount) = robot.of(&record.world_from_camera);
        assert_eq!(mount, upright_from_camera);
        assert!((same.at - place.at).norm() < 1e-9);
        assert!((same.heading - place.heading).abs() < 1e-9);
    }
    let (grid, _) = grid::of_snapshot(&map, 0, &level, &options());
    let (free, occupied, wrong) = errors(&grid, &map_from_world);
    assert!(
        wrong * 20 <= free + occupied,
        "{wrong} of {}",
        free + occupied
    );
}

/// The same cells; `found` may have more that are unknown.
fn assert_same(found: &OccupancyMap, expected: &OccupancyMap) {
    let at = |map: &OccupancyMap, x: f64, y: f64| {
        let column = ((x - map.origin[0]) / map.resolution).floor();
        let row = ((y - map.origin[1]) / map.resolution).floor();
        let inside = column >= 0.0 && row >= 0.0 && column < map.columns as f64;
        let index = row.max(0.0) as usize * map.columns + column.max(0.0) as usize;
        let value = map.cells.get(index).copied();
        value.filter(|_| inside).unwrap_or(-1)
    };
    let known = |map: &OccupancyMap| map.cells.iter().filter(|value| **value != -1).count();
    assert_eq!(known(found), known(expected));
    for (index, value) in found.cells.iter().enumerate() {
        let x = found.origin[0] + ((index % found.columns) as f64 + 0.5) * found.resolution;
        let y = found.origin[1] + ((index / found.columns) as f64 + 0.5) * found.resolution;
        assert_eq!(*value, at(expected, x, y), "{x} {y}");
    }
}

#[test]
fn moved_keyframes_leave_nothing_behind() {
    let map = walk(8);
    let (upright, _) = Upright::find(&map, 0, &options()).expect("points");
    let (expected, _) = grid::of_snapshot(&map, 0, &upright, &options());
    let mut grid = GlobalGrid::new(&options());
    for record in &map.keyframes {
        let (place, camera) = upright.of(&record.world_from_camera);
        let local = LocalGrid::trace(
            (record.view(), record.world_from_camera.scale),
            map.intrinsics.as_ref(),
            &camera,
            &options(),
        );
        let mut elsewhere = place;
        elsewhere.at += Vector2::new(0.4, -0.7) * f64::from(record.id);
        elsewhere.heading += 0.2;
        elsewhere.scale *= 1.04;
        grid.insert(record.id, local, 0, elsewhere);
    }
    assert!(grid.update());
    assert_ne!(grid.map().cells, expected.cells);
    for record in &map.keyframes {
        grid.set_place(record.id, upright.of(&record.world_from_camera).0);
    }
    assert!(grid.update());
    assert_same(&grid.map(), &expected);
    grid.retain(|_| false);
    assert!(grid.map().cells.iter().all(|value| *value == -1));
}

/// Solves that change poses and scales by little, and points that are replaced, as in a node that runs.
#[test]
fn a_grid_that_followed_a_map_is_the_one_that_is_saved() {
    let map = walk(8);
    let (upright, _) = Upright::find(&map, 0, &options()).expect("points");
    let (expected, _) = grid::of_snapshot(&map, 0, &upright, &options());
    let mut grid = GlobalGrid::new(&options());
    let mut traced = 0;
    // The last solve changes nothing any more.
    for solve in (0..=20u32).rev() {
        let share = f64::from(solve) / 20.0;
        for record in &map.keyframes {
            let mut pose = record.world_from_camera;
            let way = 0.05 * f64::from(record.id % 3);
            pose.translation += Vector3::new(share * way, 0.0, -share * way);
            pose.scale *= 1.0 + 0.03 * share;
            let (place, camera) = upright.of(&pose);
            grid.set_place(record.id, place);
            // Half of the keyframes had other points at first.
            let old = solve > 10 && record.id.is_multiple_of(2);
            let revision = u32::from(!old);
            if grid.lack(record.id, pose.scale, revision).is_none() {
                continue;
            }
            let mut view = record.view();
            if old {
                let points = view.points.iter().map(|v| v * 1.02);
                view.points = points.collect::<Vec<f32>>().into();
            }
            let intrinsics = map.intrinsics.as_ref();
            let local = LocalGrid::trace((view, pose.scale), intrinsics, &camera, &options());
            grid.insert(record.id, local, revision, place);
            traced += 1;
        }
        while !grid.update() {}
    }
    assert_same(&grid.map(), &expected);
    // Steps of 1 %: 3 % of scale are three or four, and one is for the new points.
    let keyframes = map.keyframes.len();
    assert!(
        traced > 2 * keyframes && traced <= 6 * keyframes,
        "{traced} of {keyframes}"
    );
}

#[test]
fn a_grid_that_is_too_large_is_cut_and_says_so() {
    let map = walk(8);
    let (upright, _) = Upright::find(&map, 0, &options()).expect("points");
    let small = GridOptions {
        max_cells: 256 * 256,
        ..options()
    };
    let (whole, cut) = grid::of_snapshot(&map, 0, &upright, &small);
    assert!(cut && whole.cells.len() <= 256 * 256);
    let none = GridOptions {
        max_cells: 10,
        ..options()
    };
    let (nothing, cut) = grid::of_snapshot(&map, 0, &upright, &none);
    assert!(cut && nothing.cells.is_empty());
}

#[test]
fn changes_are_told_as_a_window_that_holds_them() {
    let map = walk(6);
    let (upright, _) = Upright::find(&map, 0, &options()).expect("points");
    let mut grid = GlobalGrid::new(&options());
    let insert = |grid: &mut GlobalGrid, k: usize| {
        let record = &map.keyframes[k];
        let (place, camera) = upright.of(&record.world_from_camera);
        let local = LocalGrid::trace(
            (record.view(), record.world_from_camera.scale),
            map.intrinsics.as_ref(),
            &camera,
            &options(),
        );
        grid.insert(record.id, local, 0, place);
        grid.update();
    };
    for k in 0..5 {
        insert(&mut grid, k);
    }
    let (_, resized) = grid.take_changes();
    assert!(resized);
    let before = grid.map();
    insert(&mut grid, 5);
    let after = grid.map();
    let (window, resized) = grid.take_changes();
    assert!(!resized && (before.columns, before.rows) == (after.columns, after.rows));
    let window: Window = window.expect("changes");
    let inside = |k: usize| {
        let at = [k % after.columns, k / after.columns];
        (0..2).all(|k| (window.from[k]..window.from[k] + window.size[k]).contains(&at[k]))
    };
    let differs = |k: &usize| before.cells[*k] != after.cells[*k];
    let changed: Vec<usize> = (0..after.cells.len()).filter(differs).collect();
    assert!(!changed.is_empty() && changed.iter().all(|k| inside(*k)));
    let values = grid.values(&window);
    for (k, value) in values.iter().enumerate() {
        let (column, row) = (k % window.size[0], k / window.size[0]);
        let index = (window.from[1] + row) * after.columns + window.from[0] + column;
        assert_eq!(*value, after.cells[index]);
    }
    assert_eq!(grid.take_changes(), (None, false));
}

#[test]
fn keyframes_without_points_or_poses_make_no_grid() {
    let mut map = walk(2);
    map.keyframes[0].world_from_camera.translation.x = f64::NAN;
    *map.keyframes[1].view_mut() = Default::default();
    assert!(Upright::find(&map, 0, &options()).is_none());
    let upright = Upright::Level {
        level_from_world: Isometry3::identity(),
    };
    let (grid, cut) = grid::of_snapshot(&map, 0, &upright, &options());
    assert!(grid.cells.is_empty() && !cut);
    // Points that are all invalid, and a camera that looks straight up.
    let mut map = walk(1);
    map.keyframes[0].view_mut().points = vec![f32::NAN; 3 * SIZE.0 * SIZE.1].into();
    map.keyframes[0].world_from_camera =
        Sim3::look_at(Vector3::zeros(), -Vector3::y(), Vector3::z());
    let (grid, _) = grid::of_snapshot(&map, 0, &upright, &options());
    assert!(grid.cells.iter().all(|value| *value == -1));
}

/// Reads the files as nav2's map_server does (nav2_map_server/src/map_io.cpp, mode trinary).
fn served(yaml: &Path) -> OccupancyMap {
    let text = std::fs::read_to_string(yaml).expect("a YAML file");
    let facts: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
    let number = |key: &str| facts[key].as_f64().unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(facts["mode"], "trinary");
    assert_eq!(number("negate"), 0.0);
    let image = yaml.with_file_name(facts["image"].as_str().expect("a name"));
    let bytes = std::fs::read(image).expect("an image");
    let header: Vec<&[u8]> = bytes.splitn(4, |b| b.is_ascii_whitespace()).collect();
    let text = |k: usize| std::str::from_utf8(header[k]).expect("text");
    assert_eq!(text(0), "P5");
    let (columns, rows): (usize, usize) = (text(1).parse().unwrap(), text(2).parse().unwrap());
    let grey = header[3].strip_prefix(b"255\n").expect("the largest grey");
    assert_eq!(grey.len(), columns * rows);
    let mut cells = vec![0i8; columns * rows];
    for (index, grey) in grey.iter().enumerate() {
        let occupied = 1.0 - f64::from(*grey) / 255.0;
        let (column, row) = (index % columns, index / columns);
        let value = match occupied {
            p if p > number("occupied_thresh") => 100,
            p if p < number("free_thresh") => 0,
            _ => -1,
        };
        cells[(rows - 1 - row) * columns + column] = value;
    }
    let origin = [0, 1].map(|k| facts["origin"][k].as_f64().expect("an origin"));
    OccupancyMap {
        resolution: number("resolution"),
        origin,
        columns,
        rows,
        cells,
    }
}

#[test]
fn map_server_reads_the_files_that_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let map = walk(4);
    let (upright, _) = Upright::find(&map, 0, &options()).expect("points");
    let (expected, _) = grid::of_snapshot(&map, 0, &upright, &options());
    for value in [-1, 0, 100] {
        assert!(expected.cells.contains(&value), "no cell is {value}");
    }
    for (path, yaml) in [
        ("out", "out/map.yaml"),
        ("house: 1.yaml", "house: 1.yaml"),
        ("floor.2.pgm", "floor.2.yaml"),
    ] {
        let files = grid::write(&folder.path().join(path), &expected).expect("written");
        assert_eq!(files.yaml, folder.path().join(yaml));
        assert_eq!(served(&files.yaml), expected);
    }
}

fn origin() -> FloorPose {
    FloorPose {
        at: Vector2::zeros(),
        heading: 0.0,
        scale: 1.0,
    }
}

/// A keyframe at the origin, 0.5 m above the floor, that sees points at these places (ahead, left, up).
fn seeing(places: &[[f64; 3]]) -> LocalGrid {
    let upright_from_camera = Isometry3::from_parts(
        Vector3::new(0.0, 0.0, 0.5).into(),
        base_from_camera().rotation,
    );
    let camera_from_upright = upright_from_camera.inverse();
    let points = places.iter().flat_map(|place| {
        let p = camera_from_upright * Point3::from(*place);
        [p.x as f32, p.y as f32, p.z as f32]
    });
    let view = KeyframeView {
        image: Arc::new(RgbImage::new(places.len(), 1)),
        points: Arc::new(points.collect()),
        confidence: Arc::new(vec![9.0; places.len()]),
    };
    LocalGrid::trace((view, 1.0), None, &upright_from_camera, &options())
}

#[test]
fn rays_below_an_obstacle_that_hangs_do_not_outvote_it() {
    // The centre of a cell.
    let place = [1.025, 0.025];
    let [x, y] = place;
    let behind = |distance: f64, height: f64| [distance * x, distance * y, height];
    let hanging = seeing(&[[x, y, 0.42], [x, y, 0.40]]);
    let standing = seeing(&[[x, y, 0.42], [x, y, 0.25]]);
    // The floor behind it, and a wall behind it past a height of 0.35 m.
    let below = seeing(&[behind(1.5, 0.0), behind(1.5, 0.0)]);
    let through = seeing(&[behind(2.0, 0.2), behind(2.0, 0.2)]);
    let here = origin();
    let at = Vector2::new(x, y);
    assert_eq!(below.cleared_at(&here)(&at), Cleared::Below);
    assert_eq!(through.cleared_at(&here)(&at), Cleared::Through);
    let value = |obstacle: &LocalGrid, rays: &LocalGrid, count: u32| {
        let mut grid = GlobalGrid::new(&options());
        grid.insert(0, obstacle.clone(), 0, here);
        for id in 1..=count {
            grid.insert(id, rays.clone(), 0, here);
        }
        assert!(grid.update());
        let map = grid.map();
        let cell = [0, 1].map(|k| ((place[k] - map.origin[k]) / map.resolution) as usize);
        map.cells[cell[1] * map.columns + cell[0]]
    };
    assert_eq!([1, 9].map(|n| value(&hanging, &below, n)), [100, 100]);
    assert_eq!([1, 9].map(|n| value(&hanging, &through, n)), [100, 0]);
    assert_eq!([1, 9].map(|n| value(&standing, &below, n)), [100, 0]);
}

#[test]
fn no_ray_passes_below_neighbouring_obstacles() {
    // The points in each of two cells of a table's edge are at the side that is away from the other cell.
    let edge = [[1.2, -0.048, 0.4], [1.2, 0.048, 0.4]];
    let below = [[2.4, 0.03, 0.0]; 2];
    let here = origin();
    let cleared = |seen: &LocalGrid| {
        let cells = [1.925, 1.975, 2.025];
        cells.map(|x| seen.cleared_at(&here)(&Vector2::new(x, 0.025)))
    };
    assert_eq!(cleared(&seeing(&below)), [Cleared::Below; 3]);
    let seen = seeing(&[edge, edge, below].concat());
    assert_eq!(cleared(&seen), [Cleared::Not; 3]);
}

#[test]
fn the_floor_below_a_table_is_not_free_and_that_behind_a_low_box_is() {
    // x is ahead and z up: a table's top on the left, a box on the right, a wall behind.
    let scene = [
        [[-1.0, -9.0, -0.5], [9.0, 9.0, 0.0]],
        [[1.2, 0.2, 0.34], [1.8, 1.0, 0.42]],
        [[1.2, -1.0, 0.0], [1.5, -0.2, 0.2]],
        [[4.0, -3.0, 0.0], [4.1, 3.0, 2.0]],
    ];
    let block = |[low, high]: [[f64; 3]; 2]| Block {
        low,
        high,
        texture: 1,
    };
    let scene = Flat::of(scene.map(block).to_vec());
    let camera = intrinsics(SIZE.0, SIZE.1);
    let upright_from_camera = Isometry3::from_parts(
        Vector3::new(0.0, 0.0, 0.5).into(),
        base_from_camera().rotation,
    );
    let seen = scene.view(&upright_from_camera, &camera, SIZE);
    let mut points = Vec::new();
    for (i, &depth) in seen.depth.iter().enumerate() {
        let ray = camera.ray((i % SIZE.0) as f64, (i / SIZE.0) as f64);
        let p = ray * f64::from(depth);
        points.extend([p.x as f32, p.y as f32, p.z as f32]);
    }
    let view = KeyframeView {
        image: Arc::new(seen.image),
        points: Arc::new(points),
        confidence: Arc::new(vec![9.0; SIZE.0 * SIZE.1]),
    };
    let local = LocalGrid::trace((view, 1.0), Some(&camera), &upright_from_camera, &options());
    let here = origin();
    let cleared = local.cleared_at(&here);
    let free = |point: &Vector2<f64>| cleared(point) != Cleared::Not;
    let obstacle = |x: f64, y: f64| {
        let mut points = local.obstacles_at(&here);
        points.any(|(p, _)| (p - Vector2::new(x, y)).norm() < 0.06)
    };
    for y in [0.4, 0.5, 0.6] {
        assert!(obstacle(1.2, y), "the edge of the table at {y}");
        assert!(free(&Vector2::new(1.0, y)), "in front of the table at {y}");
        // Below the table, and behind it, where the camera looks below it.
        for x in [1.35, 1.5, 1.65, 1.9] {
            assert!(!free(&Vector2::new(x, y * x / 1.2)), "{x} {y}");
        }
        assert!(obstacle(1.2, -y), "the box at {}", -y);
        for x in [1.0, 2.4, 3.0, 3.6] {
            assert!(free(&Vector2::new(x, -y * x / 1.2)), "{x} {}", -y);
        }
    }
}

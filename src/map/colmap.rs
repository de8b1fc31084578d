//! The map as a COLMAP text model, for splatting and multi-view stereo tools.
//!
//! One metric scale holds throughout: a keyframe's Sim(3) scale goes into its points, its camera
//! stays rigid. COLMAP puts a pixel's centre at half integers, this crate at integers, hence the
//! half added to the principal point.

use super::cloud::{self, CloudOptions};
use super::{ExportError, KeyframeRecord, MapSnapshot, atomic, keyframes};
use crate::geometry::Intrinsics;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Rays more than this to the side (x/z) have no weight in the focal length: no pinhole image is
/// that wide, so they are wrong points.
const WIDEST_SLOPE: f64 = 4.0;

/// COLMAP's own guess when nothing is known: 1.2 times the long side.
const GUESSED_FOCAL: f64 = 1.2;

/// Writes `folder/sparse/<submap>/{cameras,images,points3D}.txt`. Image names are those of
/// [`keyframes::file_names`], so `folder/../keyframes` is the image folder when the map's other
/// results lie beside `folder`. Keyframes whose pose is not finite or whose image was lost are left
/// out. Returns the models' folders; for a map without keyframes one empty model.
pub fn write(
    folder: &Path,
    snapshot: &MapSnapshot,
    options: &CloudOptions,
) -> Result<Vec<PathBuf>, ExportError> {
    cloud::check(snapshot)?;
    let mut submaps: Vec<u32> = snapshot.keyframes.iter().map(|k| k.submap).collect();
    submaps.sort_unstable();
    submaps.dedup();
    if submaps.is_empty() {
        submaps.push(0);
    }
    let names = keyframes::file_names(snapshot);
    let mut models = Vec::new();
    for submap in submaps {
        let model = folder.join("sparse").join(submap.to_string());
        let members: Vec<(&KeyframeRecord, &str)> = snapshot
            .keyframes
            .iter()
            .zip(&names)
            .filter(|(k, _)| k.submap == submap && k.world_from_camera.is_finite())
            .filter(|(k, _)| !k.image.data.is_empty())
            .map(|(k, name)| (k, name.as_str()))
            .collect();
        write_cameras_and_images(&model, snapshot.intrinsics, &members, options)?;
        write_points(&model.join("points3D.txt"), snapshot, submap, options)?;
        models.push(model);
    }
    Ok(models)
}

/// Keyframes of one size share a camera.
fn write_cameras_and_images(
    model: &Path,
    intrinsics: Option<Intrinsics>,
    members: &[(&KeyframeRecord, &str)],
    options: &CloudOptions,
) -> Result<(), ExportError> {
    let size = |k: &KeyframeRecord| (k.image.width, k.image.height);
    let mut sizes: Vec<_> = members.iter().map(|(k, _)| size(k)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    atomic::write(&model.join("cameras.txt"), |out| {
        writeln!(out, "# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]")?;
        for (i, &(width, height)) in sizes.iter().enumerate() {
            let same = members.iter().map(|(k, _)| *k);
            let same = same.filter(|k| size(k) == (width, height));
            let k = intrinsics.unwrap_or_else(|| {
                estimate_intrinsics(same, width, height, options.min_confidence)
            });
            writeln!(
                out,
                "{} PINHOLE {width} {height} {:.6} {:.6} {:.6} {:.6}",
                i + 1,
                k.fx,
                k.fy,
                k.cx + 0.5,
                k.cy + 0.5
            )?;
        }
        Ok(())
    })?;
    atomic::write(&model.join("images.txt"), |out| {
        writeln!(
            out,
            "# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME"
        )?;
        writeln!(out, "# POINTS2D[] as (X, Y, POINT3D_ID): none")?;
        for (i, (k, name)) in members.iter().enumerate() {
            let mut pose = k.world_from_camera;
            pose.scale = 1.0;
            let [tx, ty, tz, qx, qy, qz, qw, _] = pose.inverse().to_array();
            let camera = sizes.partition_point(|s| *s < size(k)) + 1;
            writeln!(
                out,
                "{} {qw:.9} {qx:.9} {qy:.9} {qz:.9} {tx:.9} {ty:.9} {tz:.9} {camera} {name}\n",
                i + 1
            )?;
        }
        Ok(())
    })
}

fn write_points(
    path: &Path,
    snapshot: &MapSnapshot,
    submap: u32,
    options: &CloudOptions,
) -> Result<(), ExportError> {
    let all = cloud::points(snapshot, submap, options.min_confidence);
    let mut filtered = Vec::new();
    let points: Box<dyn Iterator<Item = cloud::CloudPoint> + '_> = if options.voxel_size > 0.0 {
        filtered.extend(cloud::voxel_filter(all, options.voxel_size));
        Box::new(filtered.iter().copied())
    } else {
        Box::new(all)
    };
    atomic::write(path, |out| {
        writeln!(out, "# POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[]: none")?;
        for (i, p) in points.enumerate() {
            let ([x, y, z], [r, g, b]) = (p.position, p.color);
            writeln!(out, "{} {x} {y} {z} {r} {g} {b} 0", i + 1)?;
        }
        Ok(())
    })
}

/// A pinhole for uncalibrated keyframes of one size: for each axis the least-squares line of
/// `u = fx·x/z + cx` through the confident points in front of the cameras. Where they do not
/// determine a camera (no points, a focal length that is not positive, a principal point outside
/// the image) the guess is COLMAP's: 1.2 times the long side, centred.
pub fn estimate_intrinsics<'a>(
    keyframes: impl Iterator<Item = &'a KeyframeRecord>,
    width: usize,
    height: usize,
    min_confidence: f32,
) -> Intrinsics {
    let mut lines = [Line::default(); 2];
    for k in keyframes {
        for (i, p, _) in cloud::camera_points(k, None, min_confidence) {
            let (a, b) = (p.x / p.z, p.y / p.z);
            if p.z > 0.0 && a.abs() < WIDEST_SLOPE && b.abs() < WIDEST_SLOPE {
                lines[0].add(a, (i % width) as f64);
                lines[1].add(b, (i / width) as f64);
            }
        }
    }
    let guess = GUESSED_FOCAL * width.max(height) as f64;
    let centre = |n: usize| (n as f64 - 1.0) / 2.0;
    match (lines[0].fit(width), lines[1].fit(height)) {
        (Some((fx, cx)), Some((fy, cy))) => Intrinsics { fx, fy, cx, cy },
        _ => Intrinsics {
            fx: guess,
            fy: guess,
            cx: centre(width),
            cy: centre(height),
        },
    }
}

/// Sums of a straight-line fit, with the running means that keep it exact for long sums.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    n: f64,
    mean_x: f64,
    mean_y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        self.n += 1.0;
        let dx = x - self.mean_x;
        self.mean_x += dx / self.n;
        self.mean_y += (y - self.mean_y) / self.n;
        self.xx += dx * (x - self.mean_x);
        self.xy += dx * (y - self.mean_y);
    }

    /// Slope and intercept if they are a focal length and a principal point for `pixels`.
    fn fit(&self, pixels: usize) -> Option<(f64, f64)> {
        let f = self.xy / self.xx;
        let c = self.mean_y - f * self.mean_x;
        let plausible = f.is_finite() && f > 0.0 && (0.0..pixels as f64).contains(&c);
        plausible.then_some((f, c))
    }
}

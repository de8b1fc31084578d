//! Export to a COLMAP text model, for Gaussian splatting and multi-view stereo tools.
//!
//! The model has a single metric scale: a keyframe's Sim(3) scale is applied to its points, and its
//! camera pose is rigid. In COLMAP, pixel centres are at half integers, here at integers, hence the
//! half-pixel shift of the principal point.

use super::cloud::{self, CloudOptions};
use super::{KeyframeRecord, KeyframeView, MapSnapshot, keyframes};
use crate::files::export::{self, ExportError};
use crate::geometry::{Intrinsics, LineFit};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Rays with a larger slope (x/z) do not contribute to the focal length: no pinhole image is that
/// wide, so these points are outliers.
const WIDEST_SLOPE: f64 = 4.0;

/// COLMAP's default when nothing is known: 1.2 times the long side.
const GUESSED_FOCAL: f64 = 1.2;

/// Writes `folder/sparse/<submap>/{cameras,images,points3D}.txt`. Image names come from
/// [`keyframes::file_names`], so `folder/../keyframes` is the image folder if the other results are
/// next to `folder`. Keyframes with a non-finite pose or without an image are skipped. Returns the
/// model folders; a map without keyframes yields one empty model.
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
        let members: Vec<Member<'_>> = snapshot
            .keyframes
            .iter()
            .zip(&names)
            .filter(|(k, _)| k.submap == submap && k.world_from_camera.is_finite())
            .filter_map(|(k, name)| Member::new(k, name))
            .collect();
        write_cameras_and_images(&model, snapshot.intrinsics, &members, options)?;
        write_points(&model.join("points3D.txt"), snapshot, submap, options)?;
        models.push(model);
    }
    Ok(models)
}

/// A keyframe with an image.
struct Member<'a> {
    keyframe: &'a KeyframeRecord,
    name: &'a str,
    /// Width and height of its image.
    size: (usize, usize),
}

impl<'a> Member<'a> {
    fn new(keyframe: &'a KeyframeRecord, name: &'a str) -> Option<Self> {
        let image = keyframe.view().image;
        let size = (image.width, image.height);
        let member = Self {
            keyframe,
            name,
            size,
        };
        (!image.data.is_empty()).then_some(member)
    }
}

/// All keyframes of the same size share a camera.
fn write_cameras_and_images(
    model: &Path,
    intrinsics: Option<Intrinsics>,
    members: &[Member<'_>],
    options: &CloudOptions,
) -> Result<(), ExportError> {
    let mut sizes: Vec<_> = members.iter().map(|m| m.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    export::write(&model.join("cameras.txt"), |out| {
        writeln!(out, "# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]")?;
        for (i, &(width, height)) in sizes.iter().enumerate() {
            let same = members.iter().filter(|m| m.size == (width, height));
            let same = same.map(|m| m.keyframe.view());
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
    export::write(&model.join("images.txt"), |out| {
        writeln!(
            out,
            "# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME"
        )?;
        writeln!(out, "# POINTS2D[] as (X, Y, POINT3D_ID): none")?;
        for (i, member) in members.iter().enumerate() {
            let name = member.name;
            let mut pose = member.keyframe.world_from_camera;
            pose.scale = 1.0;
            let [tx, ty, tz, qx, qy, qz, qw, _] = pose.inverse().to_array();
            let camera = sizes.partition_point(|s| *s < member.size) + 1;
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
    export::write(path, |out| {
        writeln!(out, "# POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[]: none")?;
        for (i, p) in points.enumerate() {
            let ([x, y, z], [r, g, b]) = (p.position, p.color);
            writeln!(out, "{} {x} {y} {z} {r} {g} {b} 0", i + 1)?;
        }
        Ok(())
    })
}

/// Estimates a pinhole for uncalibrated keyframes of one size: per axis, the least-squares line `u
/// = fx·x/z + cx` through the confident points in front of the cameras. If the points do not
/// determine a camera (no points, a non-positive focal length, a principal point outside the
/// image), COLMAP's default is used: 1.2 times the long side, centred.
pub fn estimate_intrinsics(
    keyframes: impl Iterator<Item = KeyframeView>,
    width: usize,
    height: usize,
    min_confidence: f32,
) -> Intrinsics {
    let mut lines = [LineFit::default(); 2];
    for view in keyframes {
        for (i, p, _) in cloud::camera_points(view, None, min_confidence) {
            let (a, b) = (p.x / p.z, p.y / p.z);
            if p.z > 0.0 && a.abs() < WIDEST_SLOPE && b.abs() < WIDEST_SLOPE {
                lines[0].add(a, (i % width) as f64);
                lines[1].add(b, (i / width) as f64);
            }
        }
    }
    let guess = GUESSED_FOCAL * width.max(height) as f64;
    let centre = |n: usize| (n as f64 - 1.0) / 2.0;
    // A focal length, and a principal point within so many pixels.
    let plausible = |line: &LineFit, pixels: usize| {
        let line = line.rising();
        line.filter(|(_, c)| (0.0..pixels as f64).contains(c))
    };
    match (plausible(&lines[0], width), plausible(&lines[1], height)) {
        (Some((fx, cx)), Some((fy, cy))) => Intrinsics { fx, fy, cx, cy },
        _ => Intrinsics {
            fx: guess,
            fy: guess,
            cx: centre(width),
            cy: centre(height),
        },
    }
}

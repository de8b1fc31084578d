//! Depth of a camera of its own: each of its pixels becomes a small rectangle of the network's image, and the nearest
//! one hides the others.

use super::DepthError;
use super::camera::OwnCamera;
use crate::geometry::Calibration;
use crate::image::undistort::undistort;
use crate::image::{NetworkView, Projection};
use nalgebra::{Vector2, Vector3};
use rayon::prelude::*;
use std::ops::Range;

/// Factor on the side of a pixel's rectangle, so that rounding and slanted surfaces leave no gaps between neighbours.
const GROWTH: f64 = 1.05;
/// Maximum side of a pixel's rectangle, in pixels of the network's image.
const MAX_SIDE: f64 = 32.0;

/// A pixel of the depth camera.
#[derive(Debug, Clone, Copy)]
struct Ray {
    /// Point at depth 1 in the depth camera, rotated to the colour camera; not finite for a pixel that is not used.
    direction: Vector3<f32>,
    /// Half the sides of its rectangle in the network's image, if both cameras were in one place.
    half: Vector2<f32>,
}

/// A measurement in the network's image.
#[derive(Debug, Clone, Default)]
struct Patch {
    /// Its pixels; none if nothing was measured, or outside the image.
    columns: Range<u32>,
    rows: Range<u32>,
    /// Metres along the network's camera's z axis.
    depth: f32,
}

/// A thread's share of the pixels: about 100 µs of work.
const PIXELS_PER_TASK: usize = 4096;

/// What moves the depth of one camera into the network's image.
#[derive(Debug, Clone)]
pub struct Splat {
    camera: OwnCamera,
    projection: Projection,
    translation: Vector3<f64>,
    rays: Vec<Ray>,
    /// The measurements of the newest image.
    patches: Vec<Patch>,
}

impl Splat {
    /// For depth images of `size`.
    ///
    /// # Errors
    /// If the calibration is for another size, the colour camera is unknown, or a value of `camera` is impossible.
    pub fn new(
        view: &NetworkView,
        camera: &OwnCamera,
        size: (usize, usize),
    ) -> Result<Self, DepthError> {
        let calibration = &camera.calibration;
        // Before anything of the calibration's size is allocated: it comes from outside.
        check_size(calibration, size)?;
        let bad = |expected, found| DepthError::Camera { expected, found };
        calibration
            .validate()
            .map_err(|error| bad("a calibration", error.to_string()))?;
        let place = &camera.colour_from_depth;
        let finite = place
            .translation
            .vector
            .iter()
            .chain(place.rotation.coords.iter());
        if !finite.clone().all(|v| v.is_finite()) {
            let found = format!("{place}");
            return Err(bad("a finite position in the colour camera", found));
        }
        let projection = view
            .projection(camera.colour.as_ref())
            .ok_or(DepthError::NoCamera)?;
        let mut rays = Vec::with_capacity(calibration.width * calibration.height);
        for v in 0..calibration.height {
            for u in 0..calibration.width {
                rays.push(ray(camera, &projection, u as f64, v as f64));
            }
        }
        Ok(Self {
            camera: *camera,
            projection,
            translation: place.translation.vector,
            patches: vec![Patch::default(); rays.len()],
            rays,
        })
    }

    /// Whether it was made for this camera.
    pub fn is_for(&self, camera: &OwnCamera) -> bool {
        self.camera == *camera
    }

    /// Moves `metres`, the depths of an image of `found` pixels, to `out`, an image of `size`; 0 in both where nothing was
    /// measured.
    ///
    /// # Errors
    /// If the image has another size than the calibration says.
    pub fn run(
        &mut self,
        metres: &[f32],
        found: (usize, usize),
        size: (usize, usize),
        out: &mut [f32],
    ) -> Result<(), DepthError> {
        check_size(&self.camera.calibration, found)?;
        let mut patches = std::mem::take(&mut self.patches);
        let measured = metres.par_iter().zip(&self.rays);
        let places = patches.par_iter_mut().zip(measured);
        places
            .with_min_len(PIXELS_PER_TASK)
            .for_each(|(patch, (depth, ray))| {
                let seen = (*depth > 0.0).then(|| self.patch(f64::from(*depth), ray, size));
                *patch = seen.flatten().unwrap_or_default();
            });
        self.patches = patches;
        out.fill(0.0);
        for patch in &self.patches {
            let columns = patch.columns.start as usize..patch.columns.end as usize;
            for row in patch.rows.start as usize..patch.rows.end as usize {
                let line = out.get_mut(row * size.0..(row + 1) * size.0);
                let line = line.and_then(|line| line.get_mut(columns.clone()));
                for out in line.into_iter().flatten() {
                    if *out == 0.0 || patch.depth < *out {
                        *out = patch.depth;
                    }
                }
            }
        }
        Ok(())
    }

    fn patch(&self, depth: f64, ray: &Ray, (width, height): (usize, usize)) -> Option<Patch> {
        let direction: Vector3<f64> = ray.direction.cast();
        let point = direction * depth + self.translation;
        let pixel = self.projection.pixel(&point)?;
        let half = ray.half.cast::<f64>() * (direction.z * depth / point.z);
        // Pixels whose centres lie in the rectangle.
        let along = |centre: f64, half: f64, end: usize| {
            let half = half.min(MAX_SIDE / 2.0);
            ceil(centre - half)..ceil(centre + half).min(end as u32)
        };
        Some(Patch {
            columns: along(pixel.x, half.x, width),
            rows: along(pixel.y, half.y, height),
            depth: point.z as f32,
        })
    }
}

/// The next whole number; 0 for what is negative. (Without SSE 4.1, `f64::ceil` is a function call.)
fn ceil(value: f64) -> u32 {
    let whole = value as u32;
    whole + u32::from(f64::from(whole) < value)
}

fn check_size(calibration: &Calibration, found: (usize, usize)) -> Result<(), DepthError> {
    let expected = (calibration.width, calibration.height);
    match found == expected {
        true => Ok(()),
        false => Err(DepthError::Size { expected, found }),
    }
}

fn ray(camera: &OwnCamera, projection: &Projection, u: f64, v: f64) -> Ray {
    let direction = |u: f64, v: f64| {
        let ray = camera.calibration.intrinsics.ray(u, v);
        let (x, y) = undistort(&camera.calibration.distortion, ray.x, ray.y)?;
        Some(camera.colour_from_depth.rotation * Vector3::new(x, y, 1.0))
    };
    let unused = Ray {
        direction: Vector3::repeat(f32::NAN),
        half: Vector2::zeros(),
    };
    let Some(centre) = direction(u, v) else {
        return unused;
    };
    let corners = [(-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)];
    let corner = |(du, dv): (f64, f64)| projection.pixel(&direction(u + du, v + dv)?);
    let mut low = Vector2::repeat(f64::INFINITY);
    let mut high = Vector2::repeat(f64::NEG_INFINITY);
    for pixel in corners.into_iter().filter_map(corner) {
        low = low.inf(&pixel);
        high = high.sup(&pixel);
    }
    match low.x <= high.x && low.y <= high.y {
        true => Ray {
            direction: centre.cast(),
            half: ((high - low) * (GROWTH / 2.0)).cast(),
        },
        false => unused,
    }
}

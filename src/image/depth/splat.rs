//! Depth of a camera of its own: each of its pixels becomes a small rectangle of the network's image, and the nearest
//! one hides the others.

use super::camera::OwnCamera;
use super::{DepthError, DepthImage};
use crate::geometry::Calibration;
use crate::image::undistort::undistort;
use crate::image::{NetworkView, Projection};
use nalgebra::{Vector2, Vector3};

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

/// What moves the depth of one camera into the network's image.
#[derive(Debug, Clone)]
pub struct Splat {
    camera: OwnCamera,
    projection: Projection,
    translation: Vector3<f64>,
    rays: Vec<Ray>,
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
            rays,
        })
    }

    /// Whether it was made for this camera.
    pub fn is_for(&self, camera: &OwnCamera) -> bool {
        self.camera == *camera
    }

    /// Writes the depth of the pixels for which `usable` holds to `out`, an image of `size`; 0 where there is none.
    ///
    /// # Errors
    /// If the image has another size than the calibration says.
    pub fn run(
        &self,
        image: &DepthImage,
        usable: impl Fn(usize, usize) -> bool,
        size: (usize, usize),
        out: &mut [f32],
    ) -> Result<(), DepthError> {
        check_size(&self.camera.calibration, (image.width, image.height))?;
        out.fill(0.0);
        let width = image.width;
        let rows = image.metres.chunks(width).zip(self.rays.chunks(width));
        for (v, (depths, rays)) in rows.enumerate() {
            for (u, (depth, ray)) in depths.iter().zip(rays).enumerate() {
                if usable(u, v) {
                    self.paint(f64::from(*depth), ray, size, out);
                }
            }
        }
        Ok(())
    }

    fn paint(&self, depth: f64, ray: &Ray, (width, height): (usize, usize), out: &mut [f32]) {
        let direction: Vector3<f64> = ray.direction.cast();
        let point = direction * depth + self.translation;
        let Some(pixel) = self.projection.pixel(&point) else {
            return;
        };
        let half = ray.half.cast::<f64>() * (direction.z * depth / point.z);
        // Pixels whose centres lie in the rectangle; a negative number becomes 0.
        let along = |centre: f64, half: f64, end: usize| {
            let half = half.min(MAX_SIDE / 2.0);
            let first = (centre - half).ceil() as usize;
            first..((centre + half).ceil() as usize).min(end)
        };
        let columns = along(pixel.x, half.x, width);
        let depth = point.z as f32;
        for row in along(pixel.y, half.y, height) {
            let line = out.get_mut(row * width..(row + 1) * width);
            let line = line.and_then(|line| line.get_mut(columns.clone()));
            for out in line.into_iter().flatten() {
                if *out == 0.0 || depth < *out {
                    *out = depth;
                }
            }
        }
    }
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

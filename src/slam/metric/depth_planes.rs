//! Distances of one depth image's points from the surfaces of another.

use super::depth_moment::grid;
use crate::compute::depth::SIGMA_OVER_MAD;
use crate::geometry::{Intrinsics, Sim3};
use nalgebra::{Matrix6, Vector3, Vector6};

/// Minimum number of distances between two images.
const MIN_POINTS: usize = 50;
/// Distances err together within an image: so many count as one.
pub const CORRELATED: f64 = 16.0;
/// Neighbours that differ by more of their depth do not belong to one surface.
const MAX_JUMP: f64 = 0.05;
/// Distances above this part of the depth belong to other surfaces.
const MAX_DISTANCE: f64 = 0.1;

/// A distance from a point of one image to the surface of another, over its depth, and its derivative by a motion
/// `[τ, φ]` of the point.
#[derive(Debug, Clone, Copy)]
struct Distance {
    value: f64,
    jacobian: Vector6<f64>,
}

/// Compares depth images of one camera. All memory is allocated in the beginning.
#[derive(Debug)]
pub struct Planes {
    camera: Intrinsics,
    size: (usize, usize),
    points: usize,
    least: f64,
    distances: Vec<Distance>,
    sorted: Vec<f64>,
}

impl Planes {
    /// For depth images of `width × height` of this camera, of which at most `points` pixels along the longer side are
    /// looked at. `least` is the minimum standard deviation of a distance, as a part of the depth.
    pub fn new(size: (usize, usize), camera: Intrinsics, points: usize, least: f64) -> Self {
        let count = grid(size, points).count();
        Self {
            camera,
            size,
            points,
            least,
            distances: Vec::with_capacity(count),
            sorted: Vec::with_capacity(count),
        }
    }

    /// `Σ w J Jᵀ` and `Σ w J e` of the distances of one depth image's `points`, moved by `surface_from_points`, from the
    /// planes of another's pixels, `surface`; `J` is the derivative by a left perturbation of the motion, and weights are
    /// those of a Cauchy distribution. `None` if there are too few distances.
    pub fn normal_equations(
        &mut self,
        points: &[f32],
        surface: &[f32],
        surface_from_points: &Sim3,
    ) -> Option<(Matrix6<f64>, Vector6<f64>)> {
        self.measure(points, surface, surface_from_points);
        if self.distances.len() < MIN_POINTS {
            return None;
        }
        self.sorted.clear();
        self.sorted
            .extend(self.distances.iter().map(|d| d.value.abs()));
        let middle = self.sorted.len() / 2;
        let (_, median, _) = self.sorted.select_nth_unstable_by(middle, f64::total_cmp);
        let sigma = SIGMA_OVER_MAD * *median + self.least;
        let (mut information, mut gradient) = (Matrix6::zeros(), Vector6::zeros());
        for Distance { value, jacobian } in &self.distances {
            let weight = 1.0 / (1.0 + (value / (2.0 * sigma)).powi(2)) / sigma.powi(2);
            information += jacobian * jacobian.transpose() * weight;
            gradient += jacobian * (value * weight);
        }
        Some((information, gradient))
    }

    fn measure(&mut self, points: &[f32], surface: &[f32], surface_from_points: &Sim3) {
        let (width, height) = self.size;
        self.distances.clear();
        for (u, v) in grid(self.size, self.points) {
            let Some(point) = surface_point(points, &self.camera, width, u, v) else {
                continue;
            };
            let point = surface_from_points.transform(&point);
            let at = self.camera.project(&point).map(f64::round);
            let inside = at.x >= 1.0
                && at.y >= 1.0
                && at.x < width as f64 - 1.0
                && at.y < height as f64 - 1.0;
            if !(inside && point.z > 0.0) {
                continue;
            }
            let (u, v) = (at.x as usize, at.y as usize);
            let measured = |u, v| surface_point(surface, &self.camera, width, u, v);
            let around = [(u, v), (u - 1, v), (u + 1, v), (u, v - 1), (u, v + 1)];
            let [
                Some(centre),
                Some(left),
                Some(right),
                Some(above),
                Some(below),
            ] = around.map(|(u, v)| measured(u, v))
            else {
                continue;
            };
            let depth = centre.z;
            let is_smooth = [left, right, above, below]
                .iter()
                .all(|p| (p.z - depth).abs() < MAX_JUMP * depth);
            let Some(normal) = (right - left).cross(&(below - above)).try_normalize(0.0) else {
                continue;
            };
            let value = normal.dot(&(point - centre)) / depth;
            if is_smooth
                && value.abs() < MAX_DISTANCE
                && self.distances.len() < self.distances.capacity()
            {
                let (shift, turn) = (normal / depth, point.cross(&normal) / depth);
                let jacobian = Vector6::new(shift.x, shift.y, shift.z, turn.x, turn.y, turn.z);
                self.distances.push(Distance { value, jacobian });
            }
        }
    }
}

/// The point at a pixel of a depth image; `None` if it was not measured.
fn surface_point(
    metres: &[f32],
    camera: &Intrinsics,
    width: usize,
    u: usize,
    v: usize,
) -> Option<Vector3<f64>> {
    let depth = metres
        .get(v * width + u)
        .filter(|z| **z > 0.0 && z.is_finite())?;
    Some(camera.ray(u as f64, v as f64) * f64::from(*depth))
}

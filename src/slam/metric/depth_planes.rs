//! Distances of one depth image's points from the planes of another.

use super::depth_surface::Surface;
use crate::compute::depth::SIGMA_OVER_MAD;
use crate::geometry::Sim3;
use nalgebra::{Matrix6, Vector6};

/// Minimum number of distances between two images.
const MIN_POINTS: usize = 50;
/// Distances err together within an image, as windows overlap: so many count as one.
pub const CORRELATED: f64 = 16.0;
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
pub struct Distances {
    least: f64,
    distances: Vec<Distance>,
    sorted: Vec<f64>,
}

impl Distances {
    /// For at most `count` points. `least` is the minimum standard deviation of a distance, as a part of the depth.
    pub fn new(count: usize, least: f64) -> Self {
        Self {
            least,
            distances: Vec::with_capacity(count),
            sorted: Vec::with_capacity(count),
        }
    }

    /// `Σ w J Jᵀ` and `Σ w J e` of the distances of the points of `points`, moved by `surface_from_points`, from the
    /// planes of `surface`; `J` is the derivative by a left perturbation of the motion, and weights are those of a Cauchy
    /// distribution. `None` if there are too few distances.
    pub fn normal_equations(
        &mut self,
        points: &Surface,
        surface: &Surface,
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

    fn measure(&mut self, points: &Surface, surface: &Surface, surface_from_points: &Sim3) {
        self.distances.clear();
        for point in points.planes() {
            let point = surface_from_points.transform(&point.point);
            let Some(plane) = surface.plane_at(&point) else {
                continue;
            };
            let (length, depth) = (plane.normal.norm(), point.z);
            let normal = plane.normal / length;
            let value = (normal.dot(&point) - 1.0 / length) / depth;
            if value.abs() < MAX_DISTANCE && self.distances.len() < self.distances.capacity() {
                let (shift, turn) = (normal / depth, point.cross(&normal) / depth);
                let jacobian = Vector6::new(shift.x, shift.y, shift.z, turn.x, turn.y, turn.z);
                self.distances.push(Distance { value, jacobian });
            }
        }
    }
}

//! Distances of one depth image's points from the planes of another.

use super::depth_surface::Surface;
use crate::compute::depth::SIGMA_OVER_MAD;
use crate::geometry::Sim3;
use nalgebra::{Cholesky, Matrix3, Matrix6, Matrix6x3, Vector3, Vector6};

/// Minimum number of distances between two images.
const MIN_POINTS: usize = 50;
/// Distances err together within an image, as windows overlap: so many count as one.
pub const CORRELATED: f64 = 8.0;
/// Maximum standard deviation of a distance, as a part of the depth: beyond it the images show different places.
const MAX_SIGMA: f64 = 0.04;
/// Information in 1/m² and 1/rad² that counts as none: it is added to matrices, so that they have an inverse.
const NOTHING: f64 = 1e4;
/// Distances above this part of the depth belong to other surfaces.
const MAX_DISTANCE: f64 = 0.1;

/// A distance from a point of one image to the surface of another, over its depth, and its derivative by a motion
/// `[τ, φ]` of the point.
#[derive(Debug, Clone, Copy)]
struct Distance {
    value: f64,
    jacobian: Vector6<f64>,
    /// The point, and its place from the middle of the plane's window.
    point: Vector3<f64>,
    from_middle: Vector3<f64>,
    /// Covariance of the normal, over the depth.
    tilt: Matrix3<f64>,
}

impl Distance {
    /// `E[δJ δJᵀ]` and `E[δJ δe]` by the noise `δn` of the normal, with `δJ = [δn, P × δn] / z` and, at a place `m` from
    /// the middle of the window, `δe = δn · m / z`.
    fn of_noise(&self) -> (Matrix6<f64>, Vector6<f64>) {
        let mut by_normal = Matrix6x3::identity();
        by_normal
            .fixed_view_mut::<3, 3>(3, 0)
            .copy_from(&self.point.cross_matrix());
        let with_normal = by_normal * self.tilt;
        (
            with_normal * by_normal.transpose(),
            with_normal * self.from_middle,
        )
    }
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
    /// distribution. The expected part `N` of noise is taken off both: planes that are tilted at random seem to show
    /// motions along a wall, and fit best where they are, which makes motions too short. As the rest of the gradient
    /// scatters with `A = Σ w J Jᵀ`, both are then weighted by `(A − N) A⁻¹`. `None` if there are too few distances, or if the images do not fit.
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
        if sigma > MAX_SIGMA {
            return None;
        }
        let (mut all, mut of_noise) = (Matrix6::zeros(), Matrix6::zeros());
        let mut gradient = Vector6::zeros();
        for distance in &self.distances {
            let Distance {
                value, jacobian, ..
            } = distance;
            let weight = 1.0 / (1.0 + (value / (2.0 * sigma)).powi(2)) / sigma.powi(2);
            let (noise, pull) = distance.of_noise();
            all += jacobian * jacobian.transpose() * weight;
            of_noise += noise * weight;
            gradient += (jacobian * *value - pull) * weight;
        }
        let mut shown = (all - of_noise).symmetric_eigen();
        shown.eigenvalues.apply(|shown| *shown = shown.max(0.0));
        let shown = shown.recompose();
        let regular = all + Matrix6::identity() * NOTHING;
        let weight = shown * Cholesky::new(regular)?.inverse();
        let information = weight * shown;
        Some((
            (information + information.transpose()) * 0.5,
            weight * gradient,
        ))
    }

    /// Number of distances that the last equations are made of.
    pub fn count(&self) -> usize {
        self.distances.len()
    }

    fn measure(&mut self, points: &Surface, surface: &Surface, surface_from_points: &Sim3) {
        self.distances.clear();
        for point in points.planes() {
            let point = surface_from_points.transform(&point.point);
            let Some(plane) = surface.plane_at(&point) else {
                continue;
            };
            let (normal, depth) = (plane.normal, point.z);
            let value = (normal.dot(&point) - plane.distance) / depth;
            if value.abs() < MAX_DISTANCE && self.distances.len() < self.distances.capacity() {
                let (shift, turn) = (normal / depth, point.cross(&normal) / depth);
                let jacobian = Vector6::new(shift.x, shift.y, shift.z, turn.x, turn.y, turn.z);
                self.distances.push(Distance {
                    value,
                    jacobian,
                    point,
                    from_middle: point - plane.point,
                    tilt: plane.tilt / (depth * depth),
                });
            }
        }
    }
}

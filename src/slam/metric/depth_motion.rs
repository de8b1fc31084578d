//! Motions between keyframes by their depth images.
//!
//! Matches of a network err along the parallax, all in the same direction, so that motions come out too small. The depth
//! images of two keyframes fit each other without the network: points of one lie on the surfaces of the other (iterative
//! closest points, projected, with the distance from a plane). What that leaves open, as the way along a wall, is for the
//! matches.

use super::depth_moment::{Moment, exp};
use super::depth_planes::{CORRELATED, Distances};
use super::depth_surface::Surface;
use super::motion::CameraMotion;
use super::motions::MeasuredMotion;
use super::wheels::seconds_between;
use crate::geometry::{Intrinsics, Sim3};
use crate::time::Stamp;
use nalgebra::{Cholesky, Isometry3, Matrix3, Matrix6, Vector6};

/// Blocks of pixels along the longer side of the image.
const BLOCKS: usize = 64;
/// Minimum standard deviation of a distance, as a part of the depth.
const LEAST: f64 = 5e-4;
/// Maximum number of rounds of Gauss-Newton, and the step, in metres and radians, after which there is no other.
const ROUNDS: usize = 8;
const SMALL_STEP: f64 = 1e-4;
/// Standard deviations of the tracked motion at which the fit starts: of its position in metres and in parts of the way,
/// and of its rotation in radians.
const POSITION: f64 = 0.01;
const OF_WAY: f64 = 0.05;
const TURN: f64 = 0.01;
/// A fit that is farther from the tracked motion is not believed: 99 % of χ² with six degrees of freedom.
const FAR: f64 = 16.8;
/// Standard deviation of the tracked motion between a keyframe and the frame whose depth stands for it, as a part of the
/// way and of the turn.
const LEVER: f64 = 0.02;
/// Information of what depth does not show at all, in 1/m² and 1/rad².
const FLOOR: f64 = 1e-4;

/// The camera at the moment of a keyframe's depth image.
#[derive(Debug, Clone, Copy)]
pub struct DepthMoment {
    /// Its pose along the path of tracked steps, in metres.
    pub path_from_depth: Isometry3<f64>,
    /// Its velocity in its own frame, per second; zero if not known.
    pub velocity: Vector6<f64>,
    /// Standard deviation of the offset of depth's stamps, in seconds.
    pub offset_sigma: f64,
}

/// A keyframe at its place along the path.
#[derive(Debug, Clone, Copy)]
struct Keyframe {
    id: u32,
    stamp: Stamp,
    path_from_camera: Isometry3<f64>,
}

impl Keyframe {
    /// The keyframe's camera in the frame of the depth that stands for it.
    fn in_depth(&self, depth: &DepthMoment) -> Isometry3<f64> {
        depth.path_from_depth.inverse() * self.path_from_camera
    }
}

/// Measures the motion from each keyframe with depth to the next one. For a keyframe without depth of its own, that of
/// the first frame after it stands. All memory is allocated in the beginning.
#[derive(Debug)]
pub struct DepthMotions {
    distances: Distances,
    /// The newest keyframe, while it has no depth.
    newest: Option<Keyframe>,
    /// The newest keyframe with depth.
    before: Option<(Keyframe, DepthMoment)>,
    /// Of the keyframe before, and of the newest one.
    surfaces: [Surface; 2],
}

impl DepthMotions {
    /// For depth images of `width × height` of this camera.
    pub fn new(size: (usize, usize), camera: Intrinsics) -> Self {
        let surfaces = [0, 1].map(|_| Surface::new(size, camera, BLOCKS));
        let [surface, _] = &surfaces;
        Self {
            distances: Distances::new(surface.capacity(), LEAST),
            newest: None,
            before: None,
            surfaces,
        }
    }

    /// The path of tracked steps ended: earlier keyframes and their depth are of no use.
    pub fn forget(&mut self) {
        (self.newest, self.before) = (None, None);
    }

    /// The frame `here` became keyframe `id`.
    pub fn start_keyframe(&mut self, id: u32, here: &Moment) {
        self.newest = Some(Keyframe {
            id,
            stamp: here.stamp,
            path_from_camera: here.path_from_camera.rigid(),
        });
    }

    /// Takes the depth of a frame, with a value in metres for each pixel. Returns the motion to the newest keyframe from
    /// the one with depth before it, if the newest one had no depth until now.
    pub fn note(&mut self, metres: &[f32], depth: DepthMoment) -> Option<MeasuredMotion> {
        let newest = self.newest.take()?;
        self.surfaces[1].fit(metres);
        let before = self.before.replace((newest, depth));
        let fit = before.and_then(|(_, of_before)| self.fit(&of_before, &depth));
        self.surfaces.swap(0, 1);
        let ((before, of_before), fit) = before.zip(fit)?;
        let levers = [before.in_depth(&of_before), newest.in_depth(&depth)];
        let covariance = fit.covariance + of_levers(&fit.i_from_j, &levers);
        Some(MeasuredMotion {
            i: before.id,
            j: newest.id,
            motion: CameraMotion {
                i_from_j: levers[0].inverse() * fit.i_from_j * levers[1],
                covariance,
                seconds: seconds_between(before.stamp, newest.stamp),
                ..fit
            },
        })
    }

    /// The motion between the depth images of both keyframes. `None` if they do not fit near the tracked motion.
    fn fit(&mut self, before: &DepthMoment, newest: &DepthMoment) -> Option<CameraMotion> {
        let tracked = before.path_from_depth.inverse() * newest.path_from_depth;
        let way = (POSITION + OF_WAY * tracked.translation.vector.norm()).powi(-2);
        let turn = TURN.powi(-2);
        let prior = Matrix6::from_diagonal(&Vector6::new(way, way, way, turn, turn, turn));
        let (mut motion, mut off) = (Sim3::from(&tracked), Vector6::zeros());
        let mut information = Matrix6::zeros();
        for _ in 0..ROUNDS {
            let [surface, points] = &self.surfaces;
            let found = self.distances.normal_equations(points, surface, &motion);
            let (hessian, gradient) = found?;
            information = hessian / CORRELATED;
            let both = Cholesky::new(information + prior)?;
            let step = both.solve(&-(gradient / CORRELATED + prior * off));
            motion = exp(&step) * motion;
            off += step;
            if step.norm() < SMALL_STEP {
                break;
            }
        }
        // Also false for NaN.
        let is_near = off.dot(&(prior * off)) < FAR;
        let found = is_near.then(|| motion.rigid())?;
        let mut covariance = Cholesky::new(information + Matrix6::identity() * FLOOR)?.inverse();
        // Depth that is late by `o` at both ends moves by Exp(o η) (depth_offset).
        let adjoint = motion.adjoint();
        let change = adjoint.fixed_view::<6, 6>(0, 0) * newest.velocity - before.velocity;
        covariance += change * change.transpose() * newest.offset_sigma.powi(2);
        // From a left perturbation [τ, φ] to [e_p, e_R]: e_p = τ + φ × p, e_R = Rᵀ φ.
        let mut to_residual = Matrix6::identity();
        to_residual
            .fixed_view_mut::<3, 3>(0, 3)
            .copy_from(&-found.translation.vector.cross_matrix());
        let back: Matrix3<f64> = found.rotation.inverse().to_rotation_matrix().into_inner();
        to_residual.fixed_view_mut::<3, 3>(3, 3).copy_from(&back);
        let covariance = to_residual * covariance * to_residual.transpose();
        Some(CameraMotion {
            i_from_j: found,
            covariance: (covariance + covariance.transpose()) * 0.5,
            driven: 0.0,
            seconds: 0.0,
        })
    }
}

/// Covariance of the motion `i_from_j` between depth images by the motions from them to their keyframes.
fn of_levers(i_from_j: &Isometry3<f64>, levers: &[Isometry3<f64>; 2]) -> Matrix6<f64> {
    let variances = levers.map(|lever| {
        let way = LEVER * lever.translation.vector.norm();
        let turn = LEVER * lever.rotation.angle();
        (way * way, turn * turn)
    });
    let [(way, turn), (way_of_j, turn_of_j)] = variances;
    // A turn at `i` moves `j`, which is this far away.
    let far = i_from_j.translation.vector.norm_squared();
    let (way, turn) = (way + way_of_j + far * turn, turn + turn_of_j);
    Matrix6::from_diagonal(&Vector6::new(way, way, way, turn, turn, turn))
}

#[cfg(test)]
mod tests;

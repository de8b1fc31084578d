//! Motions between keyframes by their depth images.
//!
//! Matches of a network err along the parallax, all in the same direction, so that motions come out too small. The depth
//! images of two keyframes fit each other without the network: points of one lie on the surfaces of the other (iterative
//! closest points, projected, with the distance from a plane). What that leaves open, as the way along a wall, is for the
//! matches. Motions start at one keyframe, the anchor, for as long as the images overlap, because the error of a motion
//! does not grow with its length.

use super::depth_ends::DepthEnds;
use super::depth_moment::{DepthMoment, MeasuredKeyframe, Moment, exp};
use super::depth_offset::DepthOffset;
use super::depth_planes::{CORRELATED, Distances};
use super::depth_surface::Surface;
use super::motion::CameraMotion;
use super::motions::MeasuredMotion;
use super::path::Path;
use crate::geometry::{Intrinsics, Sim3};
use crate::image::depth::DepthLimits;
use nalgebra::{Cholesky, Matrix3, Matrix6, Vector6};

/// Blocks of pixels along the longer side of the image.
const BLOCKS: usize = 64;
/// Minimum standard deviation of a distance, as a part of the depth.
const LEAST: f64 = 2e-4;
/// Maximum number of rounds of Gauss-Newton, and the step, in metres and radians, after which there is no other.
const ROUNDS: usize = 8;
const SMALL_STEP: f64 = 1e-4;
/// Standard deviations of the tracked motion at which the fit starts: of its position in metres and in parts of the way,
/// and of its rotation in radians and in parts of the turns.
const POSITION: f64 = 0.01;
const OF_WAY: f64 = 0.05;
const TURN: f64 = 0.01;
const OF_TURNS: f64 = 0.02;
/// A fit that is farther from the tracked motion is not believed: 99 % of χ² with six degrees of freedom.
const FAR: f64 = 16.8;
/// Part of the newest image's points that the anchor's must show.
const MIN_OVERLAP: f64 = 0.7;
/// Information of what depth does not show at all, in 1/m² and 1/rad².
const FLOOR: f64 = 1e-4;

/// Measures the motion from an earlier keyframe with depth to each new one. For a keyframe without depth of its own,
/// that of the first frame after it stands. All memory is allocated in the beginning.
#[derive(Debug)]
pub struct DepthMotions {
    distances: Distances,
    /// The newest keyframe, while it has no depth.
    newest: Option<(u32, Moment)>,
    /// Where motions start, and the keyframe with depth before the newest one.
    anchor: Option<MeasuredKeyframe>,
    before: Option<MeasuredKeyframe>,
    /// Way and turns from the anchor to the newest keyframe, in metres and radians.
    travelled: [f64; 2],
    /// Surfaces of the anchor, the keyframe before and the newest one.
    surfaces: [Surface; 3],
}

/// A fit of two depth images.
struct Fit {
    ends: DepthEnds,
    /// Part of the points of one image that the other sees.
    overlap: f64,
}

impl DepthMotions {
    /// For depth images of `width × height` of this camera, with depth between these limits.
    pub fn new(size: (usize, usize), camera: Intrinsics, limits: DepthLimits) -> Self {
        let surfaces = [(); 3].map(|()| Surface::new(size, camera, limits, BLOCKS));
        let [surface, ..] = &surfaces;
        Self {
            distances: Distances::new(surface.capacity(), LEAST),
            newest: None,
            anchor: None,
            before: None,
            travelled: [0.0; 2],
            surfaces,
        }
    }

    /// The path of tracked steps ended: earlier keyframes and their depth are of no use.
    pub fn forget(&mut self) {
        (self.newest, self.anchor, self.before) = (None, None, None);
    }

    /// The frame `here` became keyframe `id`.
    pub fn start_keyframe(&mut self, id: u32, here: &Moment) {
        self.newest = Some((id, *here));
    }

    /// A frame became a keyframe whose motion depth does not measure.
    pub fn pass_over(&mut self) {
        self.newest = None;
    }

    /// Takes the depth of a frame, with a value in metres for each pixel, and the offset of depth as far as it is known.
    /// Returns the motion to the newest keyframe from an earlier one, if the newest one had no depth until now.
    pub fn note(
        &mut self,
        metres: &[f32],
        depth: DepthMoment,
        offset: &DepthOffset,
    ) -> Option<MeasuredMotion> {
        let (id, here) = self.newest.take()?;
        let newest = MeasuredKeyframe::new(id, &here, depth);
        self.surfaces[2].fit(metres);
        let found = self.measure(&newest, offset);
        if found.is_some() {
            self.surfaces.swap(1, 2);
        } else {
            self.anchor = Some(newest);
            self.travelled = [0.0; 2];
            self.surfaces.swap(0, 2);
        }
        self.before = Some(newest);
        found.map(|ends| MeasuredMotion::by_depth(ends, offset))
    }

    /// Completes the moments of depth that was noted, as far as the path shows them.
    pub fn complete(&mut self, path: &Path) {
        for keyframe in [&mut self.anchor, &mut self.before].into_iter().flatten() {
            path.complete(&mut keyframe.depth);
        }
    }

    /// The motion from the anchor to the newest keyframe. Where the anchor is out of sight, the keyframe before becomes
    /// the anchor.
    fn measure(&mut self, newest: &MeasuredKeyframe, offset: &DepthOffset) -> Option<DepthEnds> {
        let (anchor, before) = self.anchor.zip(self.before)?;
        let since = before.path_from_camera.inverse() * newest.path_from_camera;
        let since = [since.translation.vector.norm(), since.rotation.angle()];
        for (all, part) in self.travelled.iter_mut().zip(since) {
            *all += part;
        }
        let fit = self.fit(&anchor, newest, offset);
        let is_before = anchor.id == before.id;
        let fit = fit.filter(|fit| is_before || fit.overlap > MIN_OVERLAP);
        if fit.is_some() || is_before {
            return fit.map(|fit| fit.ends);
        }
        self.anchor = Some(before);
        self.travelled = since;
        self.surfaces.swap(0, 1);
        let fit = self.fit(&before, newest, offset);
        fit.map(|fit| fit.ends)
    }

    /// Fits the depth images of the anchor and the newest keyframe. `None` if they do not fit near the tracked motion.
    fn fit(
        &mut self,
        anchor: &MeasuredKeyframe,
        newest: &MeasuredKeyframe,
        offset: &DepthOffset,
    ) -> Option<Fit> {
        let path_from = |of: &MeasuredKeyframe| of.depth.path_from_depth(offset.seconds);
        let start = path_from(anchor).inverse() * path_from(newest);
        let [way, turns] = self.travelled;
        let way = (POSITION + OF_WAY * way).powi(-2);
        let turn = (TURN + OF_TURNS * turns).powi(-2);
        let prior = Matrix6::from_diagonal(&Vector6::new(way, way, way, turn, turn, turn));
        let (mut motion, mut off) = (Sim3::from(&start), Vector6::zeros());
        let mut information = Matrix6::zeros();
        for _ in 0..ROUNDS {
            let [surface, _, points] = &self.surfaces;
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
        let covariance = Cholesky::new(information + Matrix6::identity() * FLOOR)?.inverse();
        // From a left perturbation [τ, φ] to [e_p, e_R]: e_p = τ + φ × p, e_R = Rᵀ φ.
        let mut to_residual = Matrix6::identity();
        to_residual
            .fixed_view_mut::<3, 3>(0, 3)
            .copy_from(&-found.translation.vector.cross_matrix());
        let back: Matrix3<f64> = found.rotation.inverse().to_rotation_matrix().into_inner();
        to_residual.fixed_view_mut::<3, 3>(3, 3).copy_from(&back);
        let covariance = to_residual * covariance * to_residual.transpose();
        let between = CameraMotion {
            i_from_j: found,
            covariance: (covariance + covariance.transpose()) * 0.5,
            driven: 0.0,
            seconds: anchor.stamp.seconds_to(newest.stamp),
        };
        Some(Fit {
            ends: DepthEnds {
                i: *anchor,
                j: *newest,
                between,
            },
            overlap: self.distances.count() as f64 / self.surfaces[2].planes().count() as f64,
        })
    }
}

#[cfg(test)]
mod tests;

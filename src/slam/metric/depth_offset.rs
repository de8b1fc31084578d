//! The offset of a depth camera's stamps, found from its images.
//!
//! Depth whose stamp is wrong by `o` seconds shows what the camera saw at another moment. Let `ξ` be the camera's
//! velocity (in its own frame, per second) at a frame. Two depth images, of frames `a` and `b`, then fit each other not
//! by the tracked motion `M = b_from_a`, but by `Exp(−o ξ_b) M Exp(o ξ_a)`, which is `Exp(o η) M` to first order, with
//!
//! ```text
//! η = Ad(M) ξ_a − ξ_b
//! ```
//!
//! the change of velocity between the two. While the velocity is constant, the offset does not show; hand-held cameras
//! and robots that turn show it within seconds. The network has no part in this, because only depth is compared to
//! depth.

use super::depth_moment::{Moment, exp, grid};
use super::robust::huber_weight;
use super::wheels::seconds_between;
use crate::compute::depth::SIGMA_OVER_MAD;
use crate::geometry::{Intrinsics, Sim3};
use nalgebra::{Cholesky, Matrix6, Vector3, Vector6};

/// Number of the newest pairs of depth images that the offset is found from.
const PAIRS: usize = 40;
/// Minimum number of pairs for an estimate.
const MIN_PAIRS: usize = 4;
/// Seconds between the images of a pair: nearer ones hardly differ in velocity, and farther ones see other things.
const APART: [f64; 2] = [0.25, 1.0];
/// The offset is corrected if it is this many times as large as its standard deviation, and that at most `MAX_SIGMA`.
const SIGNIFICANT: f64 = 3.0;
pub(super) const MAX_SIGMA: f64 = 0.011;
/// Minimum difference from the offset that is set, in seconds: smaller ones do no harm.
pub(super) const MIN_CHANGE: f64 = 0.005;
/// Maximum offset, in seconds: larger ones are too far for one velocity.
const MAX_OFFSET: f64 = 0.1;
/// Minimum number of distances for a pair.
const MIN_POINTS: usize = 50;
/// Distances err together within an image: so many count as one.
const CORRELATED: f64 = 16.0;
/// Standard deviations of a tracked motion: of its position in metres and in parts of the way, and of its rotation in
/// radians (0.3 degrees).
const POSITION: f64 = 0.01;
const OF_WAY: f64 = 0.03;
const TURN: f64 = 5.2e-3;
/// Neighbours that differ by more of their depth do not belong to one surface.
const MAX_JUMP: f64 = 0.05;
/// Distances above this part of the depth belong to other surfaces.
const MAX_DISTANCE: f64 = 0.1;
/// Minimum standard deviation of a distance, as a part of the depth.
const LEAST: f64 = 0.002;
/// Rounds of reweighting.
const ROUNDS: usize = 5;

/// An offset with its standard deviation, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthOffset {
    /// To be added to a frame's stamp for the time at which its depth was measured: negative if depth is late.
    pub seconds: f64,
    /// Standard deviation.
    pub sigma: f64,
}

/// What a pair of depth images says about the offset.
#[derive(Debug, Clone, Copy)]
struct Pair {
    seconds: f64,
    information: f64,
}

/// A distance from a point of one image to the surface of another, over its depth, and its derivative by a motion
/// `[τ, φ]` of the point.
#[derive(Debug, Clone, Copy)]
struct Distance {
    value: f64,
    jacobian: Vector6<f64>,
}

/// Finds the offset of depth. All memory is allocated in the beginning.
#[derive(Debug)]
pub struct OffsetFinder {
    camera: Intrinsics,
    size: (usize, usize),
    /// Depth of an earlier frame, and the camera there.
    earlier: Vec<f32>,
    moment: Option<Moment>,
    pairs: heapless::Deque<Pair, PAIRS>,
    distances: Vec<Distance>,
    sorted: Vec<f64>,
    /// The offset that is set, in seconds: what is found must differ from it.
    set: f64,
    found: Option<DepthOffset>,
    was_reported: bool,
}

impl OffsetFinder {
    /// For depth images of `width × height`, of this camera, with the offset `set`, in seconds.
    pub fn new(size: (usize, usize), camera: Intrinsics, set: f64) -> Self {
        let points = grid(size).count();
        Self {
            camera,
            size,
            earlier: vec![0.0; size.0 * size.1],
            moment: None,
            pairs: heapless::Deque::new(),
            distances: Vec::with_capacity(points),
            sorted: Vec::with_capacity(points),
            set,
            found: None,
            was_reported: false,
        }
    }

    /// The offset that is to be corrected, in seconds: negative if depth is older than its frame.
    pub fn offset(&self) -> Option<f64> {
        let seconds = self.found.map_or(self.set, |found| found.seconds);
        (seconds != 0.0).then_some(seconds)
    }

    /// The offset that was found, if it differs from the one that is set.
    #[cfg(test)]
    pub(super) fn found(&self) -> Option<DepthOffset> {
        self.found
    }

    /// Number of pairs that were compared, of the newest 40.
    #[cfg(test)]
    pub(super) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The camera was lost: the earlier depth image is of no use.
    pub fn forget(&mut self) {
        self.moment = None;
    }

    /// Compares the depth of a frame with an earlier one, if that is long enough ago.
    pub fn note(&mut self, metres: &[f32], newest: &Moment) {
        let apart = |of: &Moment| seconds_between(of.stamp, newest.stamp);
        let is_near = |of: &Moment| (0.0..APART[0]).contains(&apart(of));
        if newest.velocity.is_none() || self.moment.as_ref().is_some_and(is_near) {
            return;
        }
        let earlier = self.moment.filter(|of| apart(of) <= APART[1]);
        if let Some(pair) = earlier.and_then(|earlier| self.compare(&earlier, metres, newest)) {
            if self.pairs.is_full() {
                self.pairs.pop_front();
            }
            // There is room now.
            let _ = self.pairs.push_back(pair);
            self.found = self.solve().filter(|found| {
                let change = (found.seconds - self.set).abs();
                change > SIGNIFICANT * found.sigma
                    && found.sigma <= MAX_SIGMA
                    && change >= MIN_CHANGE
                    && found.seconds.abs() <= MAX_OFFSET
            });
            self.report();
        }
        self.earlier.copy_from_slice(metres);
        self.moment = Some(*newest);
    }

    /// Says once that depth has another offset than the one that is set.
    fn report(&mut self) {
        if let Some(DepthOffset { seconds, sigma }) = self.found
            && !std::mem::replace(&mut self.was_reported, true)
        {
            tracing::warn!(
                "depth is {:.0} ± {:.0} ms {} than its frames: it is moved by the camera's motion; correct the stamps of \
                 the depth camera, or set depth.offset to {seconds:.3}",
                1e3 * seconds.abs(),
                1e3 * sigma,
                if seconds < 0.0 { "older" } else { "newer" }
            );
        }
    }

    /// The offset by two depth images: that of `earlier`, and the newest, `metres`.
    fn compare(&mut self, earlier: &Moment, metres: &[f32], newest: &Moment) -> Option<Pair> {
        let motion = newest.path_from_camera.inverse() * earlier.path_from_camera;
        let (of_earlier, of_newest) = earlier.velocity.zip(newest.velocity)?;
        // Distances are measured at the offset that is corrected for.
        let known = self.offset().unwrap_or(0.0);
        let moved = exp(&(of_newest * -known)) * motion * exp(&(of_earlier * known));
        self.measure(metres, &moved);
        let (mut information, mut gradient) = self.normal_equations()?;
        information /= CORRELATED;
        gradient /= CORRELATED;
        // The tracked motion errs as well, with covariance P⁻¹: (A⁻¹ + P⁻¹)⁻¹ = A − A (A + P)⁻¹ A.
        let way = (POSITION + OF_WAY * motion.translation.norm()).powi(-2);
        let turn = TURN.powi(-2);
        let of_pose = Vector6::new(way, way, way, turn, turn, turn);
        let both = Cholesky::new(information + Matrix6::from_diagonal(&of_pose))?;
        let left = information - information * both.solve(&information);
        let pull = gradient - information * both.solve(&gradient);
        let ad = motion.adjoint();
        let change = ad.fixed_view::<6, 6>(0, 0) * of_earlier - of_newest;
        let information = change.dot(&(left * change));
        let seconds = known - change.dot(&pull) / information;
        (information > 0.0 && seconds.is_finite()).then_some(Pair {
            seconds,
            information,
        })
    }

    /// Measures distances of the earlier depth image, moved by `newest_from_earlier`, to the newest, `metres`.
    fn measure(&mut self, metres: &[f32], newest_from_earlier: &Sim3) {
        let (width, height) = self.size;
        self.distances.clear();
        for (u, v) in grid(self.size) {
            let Some(point) = surface_point(&self.earlier, &self.camera, width, u, v) else {
                continue;
            };
            let point = newest_from_earlier.transform(&point);
            let at = self.camera.project(&point).map(f64::round);
            let inside = at.x >= 1.0
                && at.y >= 1.0
                && at.x < width as f64 - 1.0
                && at.y < height as f64 - 1.0;
            if !(inside && point.z > 0.0) {
                continue;
            }
            let (u, v) = (at.x as usize, at.y as usize);
            let surface = |u, v| surface_point(metres, &self.camera, width, u, v);
            let around = [(u, v), (u - 1, v), (u + 1, v), (u, v - 1), (u, v + 1)];
            let [
                Some(centre),
                Some(left),
                Some(right),
                Some(above),
                Some(below),
            ] = around.map(|(u, v)| surface(u, v))
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

    /// `Σ w J Jᵀ` and `Σ w J e` of the distances, with weights of a Cauchy distribution. `None` if there are too few.
    fn normal_equations(&mut self) -> Option<(Matrix6<f64>, Vector6<f64>)> {
        if self.distances.len() < MIN_POINTS {
            return None;
        }
        self.sorted.clear();
        self.sorted
            .extend(self.distances.iter().map(|d| d.value.abs()));
        let middle = self.sorted.len() / 2;
        let (_, median, _) = self.sorted.select_nth_unstable_by(middle, f64::total_cmp);
        let sigma = SIGMA_OVER_MAD * *median + LEAST;
        let (mut information, mut gradient) = (Matrix6::zeros(), Vector6::zeros());
        for Distance { value, jacobian } in &self.distances {
            let weight = 1.0 / (1.0 + (value / (2.0 * sigma)).powi(2)) / sigma.powi(2);
            information += jacobian * jacobian.transpose() * weight;
            gradient += jacobian * (value * weight);
        }
        Some((information, gradient))
    }

    /// The mean of the pairs, weighted by information and Huber's function; its standard deviation grows with the
    /// scatter if that is more than the pairs say (Birge's ratio). `None` if there are too few pairs.
    pub(super) fn solve(&self) -> Option<DepthOffset> {
        if self.pairs.len() < MIN_PAIRS {
            return None;
        }
        let off = |pair: &Pair, mean: f64| (pair.seconds - mean) * pair.information.sqrt();
        let weight = |pair: &Pair, mean: f64| huber_weight(off(pair, mean));
        let (mut mean, mut information) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            let weighted = |pair: &Pair| pair.information * weight(pair, mean);
            information = self.pairs.iter().map(weighted).sum();
            let sum: f64 = self.pairs.iter().map(|p| weighted(p) * p.seconds).sum();
            mean = sum / information;
        }
        let chi2: f64 = self
            .pairs
            .iter()
            .map(|p| weight(p, mean) * off(p, mean).powi(2))
            .sum();
        let birge = (chi2 / (self.pairs.len() - 1) as f64).max(1.0);
        let sigma = (birge / information).sqrt();
        (mean.is_finite() && sigma.is_finite()).then_some(DepthOffset {
            seconds: mean,
            sigma,
        })
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

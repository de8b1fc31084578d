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
//! depth. The velocity is that before a frame where depth is late, and after it where it is early.

use super::depth_moment::{Moment, Passage, exp};
use super::depth_planes::{CORRELATED, Distances};
use super::depth_surface::Surface;
use super::path::Path;
use super::robust::{Mean, mean};
use crate::geometry::Intrinsics;
use crate::image::depth::DepthLimits;
use crate::time::Stamp;
use nalgebra::{Cholesky, Matrix6, Vector6};

/// Number of earlier images with which each is compared. Differences of velocity over three intervals say more than those
/// over one.
const EARLIER: usize = 3;
/// Number of pairs of depth images whose mean becomes part of the mean of all earlier ones, and the minimum standard
/// deviation of that, in seconds, so that an offset that changes is found again.
const PAIRS: usize = 120;
const MIN_EARLIER_SIGMA: f64 = 0.002;
/// Part of their information that pairs with other images than the last have: the errors of their motions are those of the
/// motions in between.
const COUNTED: f64 = 0.5;
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
/// Blocks of pixels along the longer side of the image.
const BLOCKS: usize = 32;
/// Minimum standard deviation of a distance, as a part of the depth.
const LEAST: f64 = 0.002;
/// Standard deviation of an offset of which nothing is known, in seconds: a frame of a camera with 30 a second.
const UNKNOWN: f64 = 0.033;
/// Standard deviations of a tracked motion: of its position in metres and in parts of the way, and of its rotation in
/// radians (0.15 degrees).
const POSITION: f64 = 0.005;
const OF_WAY: f64 = 0.015;
const TURN: f64 = 2.6e-3;

/// An offset with its standard deviation, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthOffset {
    /// To be added to a frame's stamp for the time at which its depth was measured: negative if depth is late.
    pub seconds: f64,
    /// Standard deviation.
    pub sigma: f64,
}

/// What a pair of depth images says about the offset, by the velocities on one side of their frames.
#[derive(Debug, Clone, Copy)]
struct Pair {
    seconds: f64,
    information: f64,
}

/// A frame with depth.
#[derive(Debug, Clone, Copy)]
struct Open {
    moment: Moment,
    /// Seconds from the frame's stamp to the depth image's.
    after: f64,
}

/// A frame with depth, and the camera's velocities before and after it.
#[derive(Debug, Clone, Copy)]
struct Noted {
    frame: Open,
    velocities: [Vector6<f64>; 2],
}

impl Noted {
    fn stamp(&self) -> Stamp {
        self.frame.moment.stamp
    }

    /// The camera's twist from the frame to its depth, which was measured `offset` seconds after its stamp.
    fn twist(&self, offset: f64) -> Vector6<f64> {
        let seconds = self.frame.after + offset;
        self.velocities[side_of(seconds)] * seconds
    }
}

/// The side of a frame on which its depth was measured.
fn side_of(offset: f64) -> usize {
    usize::from(offset > 0.0)
}

/// Finds the offset of depth. All memory is allocated in the beginning.
#[derive(Debug)]
pub struct OffsetFinder {
    /// Depth of the newest frame and of earlier ones, the oldest last.
    surfaces: [Surface; 1 + EARLIER],
    /// The earlier ones, the oldest last.
    earlier: heapless::Vec<Noted, EARLIER>,
    /// The newest one, until the velocities there are known.
    open: Option<Open>,
    /// As if depth were late, and as if it were early.
    pairs: heapless::Vec<[Pair; 2], PAIRS>,
    /// Likewise, the mean of the pairs before these. In a long run, the newest pairs alone are far off now and then.
    before: [Option<Mean>; 2],
    distances: Distances,
    /// The offset that is set, in seconds: what is found must differ from it.
    set: f64,
    found: Option<DepthOffset>,
    /// Standard deviation of the offset that is corrected for.
    uncertainty: f64,
    was_reported: bool,
}

impl OffsetFinder {
    /// For depth images of `width × height`, of this camera, with depth between these limits and the offset `set`, in
    /// seconds.
    pub fn new(size: (usize, usize), camera: Intrinsics, limits: DepthLimits, set: f64) -> Self {
        let surfaces = [(); 1 + EARLIER].map(|()| Surface::new(size, camera, limits, BLOCKS));
        let [surface, ..] = &surfaces;
        Self {
            distances: Distances::new(surface.capacity(), LEAST),
            surfaces,
            earlier: heapless::Vec::new(),
            open: None,
            pairs: heapless::Vec::new(),
            before: [None; 2],
            set,
            found: None,
            uncertainty: UNKNOWN,
            was_reported: false,
        }
    }

    /// The offset that is to be corrected, in seconds: negative if depth is older than its stamp.
    pub fn offset(&self) -> f64 {
        self.found.map_or(self.set, |found| found.seconds)
    }

    /// Standard deviation of [`OffsetFinder::offset`], in seconds: what is left of an offset that was found but is not
    /// significant counts as well.
    pub fn uncertainty(&self) -> f64 {
        self.uncertainty
    }

    /// The offset that was found, if it differs from the one that is set.
    #[cfg(test)]
    pub(super) fn found(&self) -> Option<DepthOffset> {
        self.found
    }

    /// Number of pairs that were compared, at most [`PAIRS`].
    #[cfg(test)]
    pub(super) fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The camera was lost: the earlier depth images are of no use.
    pub fn forget(&mut self) {
        self.earlier.clear();
        self.open = None;
    }

    /// Takes the depth of the newest frame, whose stamp is `after` seconds after the frame's, if the depth before is long
    /// enough ago.
    pub fn note(&mut self, metres: &[f32], moment: &Moment, after: f64) {
        let apart = |of: &Noted| of.stamp().seconds_to(moment.stamp);
        let is_near = |of: &Noted| (0.0..APART[0]).contains(&apart(of));
        if self.open.is_none() && !self.earlier.first().is_some_and(is_near) {
            self.surfaces[0].fit(metres);
            let moment = *moment;
            self.open = Some(Open { moment, after });
        }
    }

    /// Compares the depth that was taken with earlier ones, once the path shows the velocities there.
    pub fn follow(&mut self, path: &Path) {
        let Some(frame) = self.open else {
            return;
        };
        let stamp = frame.moment.stamp;
        if path.is_open(stamp) {
            return;
        }
        self.open = None;
        let Some(Passage {
            before: Some(before),
            after: Some(after),
        }) = path.passage(stamp)
        else {
            return;
        };
        let newest = Noted {
            frame,
            velocities: [before.twist, after.twist],
        };
        if self.compare_all(&newest) {
            let solved = self.solve();
            self.found = solved.filter(|found| {
                let change = (found.seconds - self.set).abs();
                change > SIGNIFICANT * found.sigma
                    && found.sigma <= MAX_SIGMA
                    && change >= MIN_CHANGE
                    && found.seconds.abs() <= MAX_OFFSET
            });
            let corrected = self.offset();
            self.uncertainty = solved.map_or(UNKNOWN, |solved| {
                (solved.seconds - corrected)
                    .hypot(solved.sigma)
                    .min(UNKNOWN)
            });
            tracing::debug!(
                ?solved,
                corrected,
                pairs = self.pairs.len(),
                "offset of depth"
            );
            self.report();
        }
        self.surfaces.rotate_right(1);
        self.earlier.truncate(EARLIER - 1);
        // There is room now.
        let _ = self.earlier.insert(0, newest);
    }

    /// Adds the pairs of the newest depth and earlier ones. Returns whether there are any.
    fn compare_all(&mut self, newest: &Noted) -> bool {
        let mut is_any = false;
        for (back, earlier) in self.earlier.clone().iter().enumerate() {
            if earlier.stamp().seconds_to(newest.stamp()) > APART[1] {
                break;
            }
            if let Some(pair) = self.compare(back, earlier, newest) {
                is_any = true;
                if self.pairs.is_full() {
                    self.before = [0, 1].map(|side| self.mean(side));
                    self.pairs.clear();
                }
                // There is room now.
                let _ = self.pairs.push(pair);
            }
        }
        is_any
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

    /// The offset by the newest depth and the earlier one `back` images before the last, as if they were late and as if they
    /// were early.
    fn compare(&mut self, back: usize, earlier: &Noted, newest: &Noted) -> Option<[Pair; 2]> {
        let [from, to] = [earlier, newest].map(|of| of.frame.moment.path_from_camera);
        let motion = to.inverse() * from;
        // Distances are measured at the offset that is corrected for.
        let known = self.offset();
        let [of_earlier, of_newest] = [earlier, newest].map(|of| of.twist(known));
        let moved = exp(&-of_newest) * motion * exp(&of_earlier);
        let (surface, points) = self.surfaces.split_first()?;
        let points = points.get(back)?;
        let (mut information, mut gradient) =
            self.distances.normal_equations(points, surface, &moved)?;
        information /= CORRELATED;
        gradient /= CORRELATED;
        // The tracked motion errs as well, with covariance P⁻¹: (A⁻¹ + P⁻¹)⁻¹ = A − A (A + P)⁻¹ A.
        let way = (POSITION + OF_WAY * motion.translation.norm()).powi(-2);
        let turn = TURN.powi(-2);
        let of_pose = Vector6::new(way, way, way, turn, turn, turn);
        let both = Cholesky::new(information + Matrix6::from_diagonal(&of_pose))?;
        let left = information - information * both.solve(&information);
        let pull = gradient - information * both.solve(&gradient);
        let adjoint = motion.adjoint();
        let turned = adjoint.fixed_view::<6, 6>(0, 0);
        let pair = |side: usize| {
            let change = turned * earlier.velocities[side] - newest.velocities[side];
            let information = change.dot(&(left * change));
            let seconds = known - change.dot(&pull) / information;
            (information > 0.0 && seconds.is_finite()).then_some(Pair {
                seconds,
                information: information * if back > 0 { COUNTED } else { 1.0 },
            })
        };
        Some([pair(0)?, pair(1)?])
    }

    /// The offset by all pairs: that of the side on which both sides say that depth was measured, and of two that differ
    /// the smaller one. `None` if there are too few pairs.
    pub(super) fn solve(&self) -> Option<DepthOffset> {
        let [late, early] = [self.mean(0)?, self.mean(1)?];
        let is_early = match (late.value < 0.0, early.value > 0.0) {
            (true, false) => false,
            (false, true) => true,
            _ => early.value.abs() < late.value.abs(),
        };
        let Mean { value, sigma } = if is_early { early } else { late };
        Some(DepthOffset {
            seconds: value,
            sigma,
        })
    }

    /// The mean of all pairs as if depth were measured on one side of its frames. `None` if there are too few.
    fn mean(&self, side: usize) -> Option<Mean> {
        let before = self.before[side];
        if before.is_none() && self.pairs.len() < MIN_PAIRS {
            return None;
        }
        let pairs = || self.pairs.iter().map(|pair| &pair[side]);
        let newest = mean(|| pairs().map(|p| (p.seconds, p.information)));
        let both = [newest, before].map(|of| of.map(|of| (of.value, of.sigma.powi(-2))));
        let [weight, sum] = both.iter().flatten().fold([0.0; 2], |[weight, sum], of| {
            [weight + of.1, sum + of.0 * of.1]
        });
        let sigma = match before {
            Some(_) => weight.powf(-0.5).max(MIN_EARLIER_SIGMA),
            None => weight.powf(-0.5),
        };
        (weight > 0.0).then_some(Mean {
            value: sum / weight,
            sigma,
        })
    }
}

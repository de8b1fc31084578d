//! Closed-form residual rows and their sums, eight correspondences at a time.

use super::lanes::{LANES, Lanes, Mask};
use super::{Columns, Noise, Normal, View};
use crate::geometry::Sim3;
use multiversion::multiversion;

/// Accepted range of the squared norm of a transformed point, in metres².
const MOVED_NORM2: (f64, f64) = (1e-24, 1e24);

/// `P = A·x + t`.
pub(super) struct Pose {
    a: [[f64; 3]; 3],
    t: [f64; 3],
}

impl Pose {
    pub(super) fn new(pose: &Sim3) -> Self {
        let m = pose.scaled_rotation();
        Self {
            a: std::array::from_fn(|r| std::array::from_fn(|c| m[(r, c)])),
            t: pose.translation.into(),
        }
    }

    #[inline(always)]
    fn transform(&self, x: [Lanes; 3]) -> [Lanes; 3] {
        let row =
            |r: usize| x[0] * self.a[r][0] + x[1] * self.a[r][1] + x[2] * self.a[r][2] + self.t[r];
        [row(0), row(1), row(2)]
    }
}

/// Consumer of residual rows. `columns` are the indices of a row's non-zero entries.
pub(super) trait Sink {
    /// One scalar residual `e` per lane with its Jacobian row and `sqrt(q)/σ`.
    fn row<const K: usize>(
        &mut self,
        columns: [usize; K],
        row: [Lanes; K],
        e: Lanes,
        sqrt_info: Lanes,
    );
    /// Lanes that passed every gate (`sqrt_info` is zero in the others), and the squared direction error of each lane.
    fn gate(&mut self, passed: Mask, squared: Lanes);
}

/// Running sums per lane.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    h: [Lanes; 28],
    g: [Lanes; 7],
    cost: Lanes,
    robust: Lanes,
    used: [u64; LANES],
    fitting: [u64; LANES],
    huber: f64,
    fits: f64,
}

/// Index of `(r, c)`, `r ≤ c`, in a packed upper triangle.
#[inline(always)]
const fn packed(r: usize, c: usize) -> usize {
    r * (13 - r) / 2 + c
}

impl Sums {
    pub(crate) fn new(noise: &Noise) -> Self {
        Self {
            h: [Lanes::ZERO; 28],
            g: [Lanes::ZERO; 7],
            cost: Lanes::ZERO,
            robust: Lanes::ZERO,
            used: [0; LANES],
            fitting: [0; LANES],
            huber: noise.huber,
            fits: noise.fits,
        }
    }

    /// Sum over all lanes.
    pub(crate) fn total(&self) -> Normal {
        Normal {
            hessian: std::array::from_fn(|k| self.h[k].sum()),
            gradient: std::array::from_fn(|k| self.g[k].sum()),
            cost: self.cost.sum(),
            robust: self.robust.sum(),
            used: self.used.iter().sum(),
            fitting: self.fitting.iter().sum(),
            outside: 0,
        }
    }
}

impl Sink for Sums {
    #[inline(always)]
    fn row<const K: usize>(
        &mut self,
        columns: [usize; K],
        row: [Lanes; K],
        e: Lanes,
        sqrt_info: Lanes,
    ) {
        // Huber: rho = 1 below k, k/|w| above.
        let whitened = (e * sqrt_info).abs();
        let rho = Lanes::splat(self.huber) / whitened.at_least(self.huber);
        let clipped = whitened.at_most(self.huber);
        let weight = rho * sqrt_info * sqrt_info;
        self.cost += rho * whitened * whitened * 0.5;
        self.robust += clipped * (whitened - clipped * 0.5);
        for a in 0..K {
            let scaled = weight * row[a];
            self.g[columns[a]] += scaled * e;
            for b in a..K {
                self.h[packed(columns[a], columns[b])] += scaled * row[b];
            }
        }
    }

    #[inline(always)]
    fn gate(&mut self, passed: Mask, squared: Lanes) {
        let fits = passed.and(squared.between((-1.0, self.fits)));
        for l in 0..LANES {
            self.used[l] += passed.0[l] & 1;
            self.fitting[l] += fits.0[l] & 1;
        }
    }
}

pub(super) struct Block {
    pub(super) moving: [Lanes; 3],
    pub(super) target: [Lanes; 3],
    pub(super) quality: Lanes,
}

impl Block {
    #[inline(always)]
    pub(super) fn load(c: &Columns, at: usize) -> Self {
        let column = |k: usize| Lanes::load(&c.0[k][at..at + LANES]);
        Self {
            moving: [column(0), column(1), column(2)],
            target: [column(3), column(4), column(5)],
            quality: column(6),
        }
    }

    /// `P = T·x`, and a mask of the lanes where it is usable.
    #[inline(always)]
    fn moved(&self, pose: &Pose) -> ([Lanes; 3], Mask) {
        let p = pose.transform(self.moving);
        let weighted = self.quality.between((0.0, f64::MAX));
        let ok = weighted.and(dot(&p, &p).between(MOVED_NORM2));
        (p, ok)
    }
}

/// `[0, 0, 1]` where `ok` is false, so that every term is finite in every lane.
#[inline(always)]
fn sanitised(ok: Mask, p: [Lanes; 3]) -> [Lanes; 3] {
    [
        ok.select(p[0], Lanes::ZERO),
        ok.select(p[1], Lanes::ZERO),
        ok.select(p[2], Lanes::ONE),
    ]
}

#[inline(always)]
fn dot(a: &[Lanes; 3], b: &[Lanes; 3]) -> Lanes {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// `e = (P/‖P‖ − X/‖X‖, ‖P‖ − ‖X‖)`; rows `[(I − rrᵀ)/d, −r^, 0]` and `[rᵀ, 0, d]`.
#[inline(always)]
pub(super) fn rays(pose: &Pose, noise: &Noise, block: &Block, sink: &mut impl Sink) {
    let (p, ok) = block.moved(pose);
    let p = sanitised(ok, p);
    let q = ok.select(block.quality, Lanes::ZERO).sqrt();
    let d = dot(&p, &p).sqrt();
    let inv = Lanes::ONE / d;
    let r = [p[0] * inv, p[1] * inv, p[2] * inv];
    let x = &block.target;
    let measured = dot(x, x).sqrt();
    let measured_inv = Lanes::ONE / measured;
    let e = [0, 1, 2].map(|k: usize| r[k] - x[k] * measured_inv);
    let off = |a: usize, b: usize| -(r[a] * r[b]) * inv;
    let on = |a: usize| (Lanes::ONE - r[a] * r[a]) * inv;

    let s = q * (1.0 / noise.sigma.0);
    let (xy, xz, yz) = (off(0, 1), off(0, 2), off(1, 2));
    sink.row([0, 1, 2, 4, 5], [on(0), xy, xz, r[2], -r[1]], e[0], s);
    sink.row([0, 1, 2, 3, 5], [xy, on(1), yz, -r[2], r[0]], e[1], s);
    sink.row([0, 1, 2, 3, 4], [xz, yz, on(2), r[1], -r[0]], e[2], s);
    let s = q * (1.0 / noise.sigma.1);
    sink.row([0, 1, 2, 6], [r[0], r[1], r[2], d], d - measured, s);
    sink.gate(ok, dot(&e, &e));
}

/// `e = (u(P) − u, v(P) − v, log P_z − log z)` with the target `(u, v, ±z)`; a projection is
/// accepted if it is inside the border and in front of the camera. `−z`: a sensor measured both ends.
#[inline(always)]
pub(super) fn calibrated(
    pose: &Pose,
    view: &View,
    noise: &Noise,
    block: &Block,
    sink: &mut impl Sink,
) {
    let (p, ok) = block.moved(pose);
    let ok = ok.and(p[2].between((view.depth_eps.max(0.0), f64::MAX)));
    let p = sanitised(ok, p);
    let inv = Lanes::ONE / p[2];
    let (x, y) = (p[0] * inv, p[1] * inv);
    let k = &view.intrinsics;
    let (u, v) = (x * k.fx + k.cx, y * k.fy + k.cy);
    // border < u < w − 1 − border, as a margin; the smaller margin decides.
    let margin = |at: Lanes, size: usize| {
        let half = 0.5 * (size as f64 - 1.0);
        -(at - half).abs() + (half - view.border)
    };
    let margin = margin(u, view.width).min(margin(v, view.height));
    let ok = ok.and(margin.between((0.0, f64::MAX)));
    let q = ok.select(block.quality, Lanes::ZERO).sqrt();

    let s = q * (1.0 / noise.sigma.0);
    let [mu, mv, mz] = block.target;
    let (eu, ev) = (u - mu, v - mv);
    let xy = x * y;
    sink.row(
        [0, 2, 3, 4, 5],
        [
            inv * k.fx,
            -(x * inv) * k.fx,
            -xy * k.fx,
            (Lanes::ONE + x * x) * k.fx,
            -y * k.fx,
        ],
        eu,
        s,
    );
    sink.row(
        [1, 2, 3, 4, 5],
        [
            inv * k.fy,
            -(y * inv) * k.fy,
            -(Lanes::ONE + y * y) * k.fy,
            xy * k.fy,
            x * k.fy,
        ],
        ev,
        s,
    );
    let by_network = mz.between((0.0, f64::MAX));
    let s = q * by_network.select(
        Lanes::splat(1.0 / noise.sigma.1),
        Lanes::splat(1.0 / noise.measured),
    );
    let e = (p[2] / mz.abs()).ln();
    sink.row([2, 3, 4, 6], [inv, y, -x, Lanes::ONE], e, s);
    sink.gate(ok, eu * eu + ev * ev);
}

/// `e = P − X`; rows `[I, −P^, P]`.
#[inline(always)]
pub(super) fn points(pose: &Pose, noise: &Noise, block: &Block, sink: &mut impl Sink) {
    let (p, ok) = block.moved(pose);
    let p = sanitised(ok, p);
    let q = ok.select(block.quality, Lanes::ZERO).sqrt();
    let s = q * (1.0 / noise.sigma.0);
    let x = &block.target;
    let one = Lanes::ONE;
    let e = [0, 1, 2].map(|k: usize| p[k] - x[k]);
    sink.row([0, 4, 5, 6], [one, p[2], -p[1], p[0]], e[0], s);
    sink.row([1, 3, 5, 6], [one, -p[2], p[0], p[1]], e[1], s);
    sink.row([2, 3, 4, 6], [one, p[1], -p[0], p[2]], e[2], s);
    sink.gate(ok, dot(&e, &e));
}

// Wider vectors compute the same eight lanes, so the choice affects only the speed.

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn accumulate_rays(pose: &Pose, noise: &Noise, c: &Columns, sums: &mut Sums) {
    let mut local = *sums;
    for at in (0..c.len()).step_by(LANES) {
        rays(pose, noise, &Block::load(c, at), &mut local);
    }
    *sums = local;
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn accumulate_calibrated(
    pose: &Pose,
    view: &View,
    noise: &Noise,
    c: &Columns,
    sums: &mut Sums,
) {
    let mut local = *sums;
    for at in (0..c.len()).step_by(LANES) {
        calibrated(pose, view, noise, &Block::load(c, at), &mut local);
    }
    *sums = local;
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn accumulate_points(pose: &Pose, noise: &Noise, c: &Columns, sums: &mut Sums) {
    let mut local = *sums;
    for at in (0..c.len()).step_by(LANES) {
        points(pose, noise, &Block::load(c, at), &mut local);
    }
    *sums = local;
}

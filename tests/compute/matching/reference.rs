//! Straightforward matching, one pixel at a time: the reference for `Matcher` and for
//! other devices. Same arithmetic in the same order, without reuse or shortcuts.

use mast3r_slam::compute::matching::{MatchStats, NOISE, Refinement, View};
use mast3r_slam::config::MatchingConfig;

/// Image size and descriptor dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub width: usize,
    pub height: usize,
    pub descriptor_dim: usize,
}

/// See `Matcher::run`.
///
/// # Panics
/// If the length of a slice does not match `shape`.
#[allow(clippy::too_many_arguments)]
pub fn run(
    shape: Shape,
    refinement: Refinement,
    target: View<'_>,
    query: View<'_>,
    initial: Option<&[u32]>,
    params: &MatchingConfig,
    index: &mut [u32],
    valid: &mut [u8],
) -> MatchStats {
    let (width, height) = (shape.width, shape.height);
    let pixels = width * height;
    if width < 3 || height < 3 {
        return no_matches(initial, index, valid);
    }
    let rays = ray_image(target.points, width, height);
    let mut stats = MatchStats::default();
    for n in 0..pixels {
        let x = point(query.points, n);
        let (u, v, converged) = search(&rays, width, height, start(initial, n, pixels), x, params);
        let found = v as usize * width + u as usize;
        let y = point(target.points, found);
        let distance = ((y[0] - x[0]) * (y[0] - x[0])
            + (y[1] - x[1]) * (y[1] - x[1])
            + (y[2] - x[2]) * (y[2] - x[2]))
            .sqrt();
        let ok = converged && distance < params.dist_thresh && usable(x) && usable(y);
        let end = if ok || refinement != Refinement::Single {
            refine(shape, target, query, n, found, params)
        } else {
            found
        };
        index[n] = end as u32;
        valid[n] = u8::from(ok);
        stats.valid += usize::from(ok);
        stats.refined += usize::from(ok && end != found);
    }
    stats
}

/// `[R, Gu, Gv]` of every pixel.
fn ray_image(points: &[f32], width: usize, height: usize) -> Vec<[[f32; 3]; 3]> {
    let ray = |u: isize, v: isize| {
        unit(point(
            points,
            reflect(v, height) * width + reflect(u, width),
        ))
    };
    (0..(width * height) as isize)
        .map(|n| {
            let (u, v) = (n % width as isize, n / width as isize);
            let [a, b, c] = [ray(u - 1, v - 1), ray(u, v - 1), ray(u + 1, v - 1)];
            let [d, e, f] = [ray(u - 1, v), ray(u, v), ray(u + 1, v)];
            let [g, h, i] = [ray(u - 1, v + 1), ray(u, v + 1), ray(u + 1, v + 1)];
            let gu = [0, 1, 2].map(|k| scharr([c[k], f[k], i[k]], [a[k], d[k], g[k]]));
            let gv = [0, 1, 2].map(|k| scharr([g[k], h[k], i[k]], [a[k], b[k], c[k]]));
            [e, gu, gv]
        })
        .collect()
}

fn sample(rays: &[[[f32; 3]; 3]], width: usize, u: f32, v: f32) -> [[f32; 3]; 3] {
    let (u0, v0) = (u.floor(), v.floor());
    let (du, dv) = (u - u0, v - v0);
    let n = v0 as usize * width + u0 as usize;
    let taps = [rays[n], rays[n + 1], rays[n + width], rays[n + width + 1]];
    let weights = [
        (1.0 - du) * (1.0 - dv),
        du * (1.0 - dv),
        (1.0 - du) * dv,
        du * dv,
    ];
    let mut out = [[0.0; 3]; 3];
    for (group, out) in out.iter_mut().enumerate() {
        for (k, out) in out.iter_mut().enumerate() {
            let value = |tap: usize| weights[tap] * taps[tap][group][k];
            *out = (value(0) + value(1)) + (value(2) + value(3));
        }
    }
    out
}

fn search(
    rays: &[[[f32; 3]; 3]],
    width: usize,
    height: usize,
    start: usize,
    x: [f32; 3],
    params: &MatchingConfig,
) -> (f32, f32, bool) {
    let dot = |a: [f32; 3], b: [f32; 3]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
    // NaN becomes the lower bound.
    let clamp = |x: f32, n: usize| x.max(1.0).min((n - 2) as f32);
    let p = unit(x);
    let look = |u: f32, v: f32| {
        let [r, gu, gv] = sample(rays, width, u, v);
        let inverse = 1.0 / dot(r, r).sqrt();
        let e = [0, 1, 2].map(|k| r[k] * inverse - p[k]);
        (e, gu, gv, dot(e, e))
    };
    let mut u = clamp((start % width) as f32, width);
    let mut v = clamp((start / width) as f32, height);
    if !usable(x) {
        return (u, v, false);
    }
    let mut lambda = params.lambda_init;
    let mut converged = false;
    for _ in 0..params.max_iter {
        let (e, gu, gv, cost) = look(u, v);
        if cost < NOISE.min(params.convergence_thresh) {
            return (u, v, true);
        }
        let (a, b, d) = (dot(gu, gu) + lambda, dot(gu, gv), dot(gv, gv) + lambda);
        let (bu, bv) = (-dot(gu, e), -dot(gv, e));
        let inverse = 1.0 / (a * d - b * b);
        let new_u = clamp(u + (d * bu - b * bv) * inverse, width);
        let new_v = clamp(v + (a * bv - b * bu) * inverse, height);
        let (_, _, _, new_cost) = look(new_u, new_v);
        if new_cost < cost {
            (u, v) = (new_u, new_v);
            lambda *= 0.1;
            converged = new_cost < params.convergence_thresh;
        } else {
            lambda *= 10.0;
            converged = cost < params.convergence_thresh;
        }
    }
    (u, v, converged)
}

fn refine(
    shape: Shape,
    target: View<'_>,
    query: View<'_>,
    n: usize,
    start: usize,
    params: &MatchingConfig,
) -> usize {
    let dim = shape.descriptor_dim;
    let pair = |pixel: usize| {
        let a = &query.descriptors[n * dim..(n + 1) * dim];
        let b = &target.descriptors[pixel * dim..(pixel + 1) * dim];
        (a, b)
    };
    let may_match = |pixel: usize| usable(point(target.points, pixel));
    let radius = params.radius as i64;
    if radius == 0 || params.dilation_max == 0 {
        return start;
    }
    let (mut best, mut centre) = (0, start);
    for step in (1..=params.dilation_max as i64).rev() {
        for pixel in around(shape, centre, radius, step) {
            let (a, b) = pair(pixel);
            let s: i64 = a
                .iter()
                .zip(b)
                .map(|(a, b)| rounded(*a) * rounded(*b))
                .sum();
            if s > best && may_match(pixel) {
                (best, centre) = (s, pixel);
            }
        }
    }
    // Neighbours compete by exact scores with the pixel that was found, and then with the winner.
    let mut best = 0.0;
    for _ in 0..radius {
        let middle = centre;
        for pixel in std::iter::once(middle).chain(around(shape, middle, 1, 1)) {
            let (a, b) = pair(pixel);
            let s = dot_single(a, b);
            if s > best && s.is_finite() && may_match(pixel) {
                (best, centre) = (s, pixel);
            }
        }
        if centre == middle {
            break;
        }
    }
    centre
}

/// Pixels inside the image around `centre`, column by column.
fn around(shape: Shape, centre: usize, radius: i64, step: i64) -> impl Iterator<Item = usize> {
    let (u, v) = ((centre % shape.width) as i64, (centre / shape.width) as i64);
    let columns = (-radius..=radius).map(move |x| u + x * step);
    let inside = move |(u, v): &(i64, i64)| {
        (0..shape.width as i64).contains(u) && (0..shape.height as i64).contains(v)
    };
    columns
        .flat_map(move |u| (-radius..=radius).map(move |y| (u, v + y * step)))
        .filter(inside)
        .map(move |(u, v)| v as usize * shape.width + u as usize)
}

/// 127ths, ties to even; 0 beyond ±1 and for NaN.
fn rounded(x: f32) -> i64 {
    match (x * 127.0).round_ties_even() as i64 {
        inside @ -127..=127 => inside,
        _ => 0,
    }
}

fn dot_single(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for (k, (a, b)) in a.iter().zip(b).enumerate() {
        lanes[k % 8] += a * b;
    }
    ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))
        + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
}

/// `X / max(‖X‖, 1e-12)`.
fn unit(p: [f32; 3]) -> [f32; 3] {
    let norm = (p[0] * p[0] + p[1] * p[1] + p[2] * p[2]).sqrt().max(1e-12);
    p.map(|x| x / norm)
}

/// Index of a neighbour with reflection at the border: -1 becomes 1, `n` becomes `n - 2`.
fn reflect(i: isize, n: usize) -> usize {
    let last = n as isize - 1;
    let i = if i > last { 2 * last - i } else { i };
    i.unsigned_abs()
}

/// Scharr derivative with unit response per pixel, of the samples across the centre.
fn scharr(plus: [f32; 3], minus: [f32; 3]) -> f32 {
    (3.0 * (plus[0] - minus[0]) + 10.0 * (plus[1] - minus[1]) + 3.0 * (plus[2] - minus[2]))
        * (1.0 / 32.0)
}

/// Whether a point has a direction.
fn usable(p: [f32; 3]) -> bool {
    let squared = p[0] * p[0] + p[1] * p[1] + p[2] * p[2];
    squared.is_finite() && squared > 1e-24
}

fn point(points: &[f32], n: usize) -> [f32; 3] {
    [points[3 * n], points[3 * n + 1], points[3 * n + 2]]
}

/// The earlier match if it lies in the image, else the pixel itself.
fn start(initial: Option<&[u32]>, n: usize, pixels: usize) -> usize {
    match initial {
        Some(map) if (map[n] as usize) < pixels => map[n] as usize,
        _ => n,
    }
}

fn no_matches(initial: Option<&[u32]>, index: &mut [u32], valid: &mut [u8]) -> MatchStats {
    let pixels = index.len();
    for (n, i) in index.iter_mut().enumerate() {
        *i = start(initial, n, pixels) as u32;
    }
    valid.fill(0);
    MatchStats::default()
}

//! Undistortion from a lens model to a pinhole: OpenCV's distortion models, its optimal new camera
//! matrix with alpha = 0, and its 8-bit bilinear remapping.
//!
//! Map coordinates are f32 as in OpenCV and rounded to 1/32 pixel, which makes the interpolation
//! weights exact integers: for every camera in tests/image/reference.rs the result is bit-identical
//! to OpenCV 4.11. (OpenCV accumulates coordinates along a row where this code multiplies; if an
//! f32 differs by one ulp at the edge of a step, that pixel is interpolated 1/32 pixel away. OpenCV
//! 5 does not round coordinates; its camera matrices are the same, its pixels differ by a few grey
//! levels at hard edges.)

use super::{ImageError, RgbImage};
use crate::geometry::{Calibration, Distortion, Intrinsics};
use rayon::prelude::*;

/// Sub-pixel steps of the remapping.
const STEPS: i32 = 32;
/// Maximum angle from the optical axis (85°) that a pinhole image can usefully represent.
const WIDEST: f64 = 85.0 / 180.0 * std::f64::consts::PI;

/// Distorts the normalised pinhole point `(x, y)`; the result is normalised too.
pub fn distort(distortion: &Distortion, x: f64, y: f64) -> (f64, f64) {
    match distortion {
        Distortion::None => (x, y),
        Distortion::PlumbBob([k1, k2, p1, p2, k3]) => {
            radial_tangential(&[*k1, *k2, *p1, *p2, *k3, 0.0, 0.0, 0.0], x, y)
        }
        Distortion::Rational(d) => radial_tangential(d, x, y),
        Distortion::Equidistant(k) => {
            let r = x.hypot(y);
            if r == 0.0 {
                return (x, y);
            }
            let scale = fisheye_angle(k, r.atan()).0 / r;
            (x * scale, y * scale)
        }
    }
}

/// `d` = `k1 k2 p1 p2 k3 k4 k5 k6`.
fn radial_tangential(d: &[f64; 8], x: f64, y: f64) -> (f64, f64) {
    let [k1, k2, p1, p2, k3, k4, k5, k6] = *d;
    let (x2, y2, xy2) = (x * x, y * y, 2.0 * x * y);
    let r2 = x2 + y2;
    let radial = (1.0 + ((k3 * r2 + k2) * r2 + k1) * r2) / (1.0 + ((k6 * r2 + k5) * r2 + k4) * r2);
    (
        x * radial + p1 * xy2 + p2 * (r2 + 2.0 * x2),
        y * radial + p1 * (r2 + 2.0 * y2) + p2 * xy2,
    )
}

/// `θ(1 + k1θ² + k2θ⁴ + k3θ⁶ + k4θ⁸)` and its derivative.
fn fisheye_angle(k: &[f64; 4], theta: f64) -> (f64, f64) {
    let t2 = theta * theta;
    let [k1, k2, k3, k4] = *k;
    (
        theta * (1.0 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4)))),
        1.0 + t2 * (3.0 * k1 + t2 * (5.0 * k2 + t2 * (7.0 * k3 + t2 * 9.0 * k4))),
    )
}

/// Inverse of [`distort`]; `None` if no solution exists within 85° of the optical axis.
///
/// Plumb-bob and rational models use OpenCV's five fixed-point iterations, converged or not,
/// because the optimal camera matrix is defined by them; the matrix then differs from the true
/// optimum by a fraction of a pixel, which costs field of view but no accuracy.
pub fn undistort(distortion: &Distortion, x: f64, y: f64) -> Option<(f64, f64)> {
    let d = match distortion {
        Distortion::None => return Some((x, y)),
        Distortion::PlumbBob([k1, k2, p1, p2, k3]) => [*k1, *k2, *p1, *p2, *k3, 0.0, 0.0, 0.0],
        Distortion::Rational(d) => *d,
        Distortion::Equidistant(k) => return undistort_fisheye(k, x, y),
    };
    let [k1, k2, p1, p2, k3, k4, k5, k6] = d;
    let (mut u, mut v) = (x, y);
    for _ in 0..5 {
        let r2 = u * u + v * v;
        let inverse =
            (1.0 + ((k6 * r2 + k5) * r2 + k4) * r2) / (1.0 + ((k3 * r2 + k2) * r2 + k1) * r2);
        if inverse < 0.0 {
            return Some((x, y));
        }
        let du = 2.0 * p1 * u * v + p2 * (r2 + 2.0 * u * u);
        let dv = p1 * (r2 + 2.0 * v * v) + 2.0 * p2 * u * v;
        u = (x - du) * inverse;
        v = (y - dv) * inverse;
    }
    (u.is_finite() && v.is_finite()).then_some((u, v))
}

fn undistort_fisheye(k: &[f64; 4], x: f64, y: f64) -> Option<(f64, f64)> {
    let target = x.hypot(y);
    if target < 1e-8 {
        return Some((x, y));
    }
    let mut theta = target.min(WIDEST);
    for _ in 0..20 {
        let (value, slope) = fisheye_angle(k, theta);
        let step = (value - target) / slope;
        theta -= step;
        if step.abs() < 1e-12 {
            break;
        }
    }
    let missed = (fisheye_angle(k, theta).0 - target).abs();
    // NaN also fails the comparison.
    if !(missed < 1e-9 && (0.0..WIDEST).contains(&theta)) {
        return None;
    }
    let scale = theta.tan() / target;
    Some((x * scale, y * scale))
}

/// The largest pinhole of the same image size whose pixels all lie inside the raw image: OpenCV's
/// `getOptimalNewCameraMatrix` with alpha = 0, optionally with `centerPrincipalPoint`.
///
/// The points of a 9×9 grid over the image are undistorted; the innermost points along each border
/// bound the inner rectangle. Without centring, it is stretched over the image; with centring, both
/// focal lengths are scaled equally, just enough for an image centred on the principal point to
/// fit.
///
/// # Errors
/// [`ImageError::Lens`] if the rectangle is empty or extends beyond 85° from the axis.
pub fn optimal_camera(calibration: &Calibration, centre: bool) -> Result<Intrinsics, ImageError> {
    let k = calibration.intrinsics;
    let (right, bottom) = (
        (calibration.width - 1) as f64,
        (calibration.height - 1) as f64,
    );
    let (mut x0, mut x1) = (f64::NEG_INFINITY, f64::INFINITY);
    let (mut y0, mut y1) = (f64::NEG_INFINITY, f64::INFINITY);
    for row in 0..9 {
        for column in 0..9 {
            let u = f64::from(column) * right / 8.0;
            let v = f64::from(row) * bottom / 8.0;
            let ray = k.ray(u, v);
            let Some((x, y)) = undistort(&calibration.distortion, ray.x, ray.y) else {
                continue;
            };
            match column {
                0 => x0 = x0.max(x),
                8 => x1 = x1.min(x),
                _ => {}
            }
            match row {
                0 => y0 = y0.max(y),
                8 => y1 = y1.min(y),
                _ => {}
            }
        }
    }
    if !(x0.is_finite() && x1.is_finite() && y0.is_finite() && y1.is_finite()) {
        return Err(ImageError::Lens(
            "a border of the image lies more than 85° from the optical axis, or cannot be undistorted",
        ));
    }
    if !(x0 < x1 && y0 < y1) {
        return Err(ImageError::Lens(
            "no rectangle of the undistorted image lies inside the raw image",
        ));
    }
    if !centre {
        let (fx, fy) = (right / (x1 - x0), bottom / (y1 - y0));
        let made = Intrinsics {
            fx,
            fy,
            cx: -fx * x0,
            cy: -fy * y0,
        };
        return usable(made);
    }
    if !(x0 < 0.0 && x1 > 0.0 && y0 < 0.0 && y1 > 0.0) {
        return Err(ImageError::Lens(
            "the principal point lies outside the undistorted image, so it cannot be centred",
        ));
    }
    let (cx, cy) = (right * 0.5, bottom * 0.5);
    let scale = (cx / (-x0 * k.fx))
        .max(cx / (x1 * k.fx))
        .max(cy / (-y0 * k.fy))
        .max(cy / (y1 * k.fy));
    usable(Intrinsics {
        fx: k.fx * scale,
        fy: k.fy * scale,
        cx,
        cy,
    })
}

fn usable(k: Intrinsics) -> Result<Intrinsics, ImageError> {
    let finite = k.cx.is_finite() && k.cy.is_finite() && k.fx.is_finite() && k.fy.is_finite();
    if finite && k.fx > 0.0 && k.fy > 0.0 {
        Ok(k)
    } else {
        Err(ImageError::Lens("the new focal length is not positive"))
    }
}

/// Bilinear source of one pixel: the upper left of four neighbours, and offsets in 1/32 pixel.
#[derive(Debug, Clone, Copy)]
struct Tap {
    x: i16,
    y: i16,
    right: u8,
    down: u8,
}

/// Undistorts images of one camera; the map is computed once.
#[derive(Debug, Clone)]
pub struct Undistorter {
    size: (usize, usize),
    camera: Intrinsics,
    /// Empty if undistortion is the identity.
    taps: Vec<Tap>,
}

impl Undistorter {
    /// An undistorter for images of `calibration`; `centre` as in [`optimal_camera`].
    ///
    /// # Errors
    /// Errors of [`Calibration::validate`] and [`optimal_camera`].
    pub fn new(calibration: &Calibration, centre: bool) -> Result<Self, ImageError> {
        calibration.validate()?;
        let size = (calibration.width, calibration.height);
        let old = calibration.intrinsics;
        if calibration.distortion.is_zero() {
            let target = if centre {
                ((size.0 - 1) as f64 * 0.5, (size.1 - 1) as f64 * 0.5)
            } else {
                (old.cx, old.cy)
            };
            if (old.cx - target.0).abs() < 1e-9 && (old.cy - target.1).abs() < 1e-9 {
                return Ok(Self {
                    size,
                    camera: old,
                    taps: Vec::new(),
                });
            }
        }
        Self::to_camera(calibration, optimal_camera(calibration, centre)?)
    }

    /// An undistorter from `calibration` to the pinhole `camera`.
    ///
    /// # Errors
    /// Errors of [`Calibration::validate`]; invalid intrinsics in `camera`.
    pub fn to_camera(calibration: &Calibration, camera: Intrinsics) -> Result<Self, ImageError> {
        calibration.validate()?;
        let size = (calibration.width, calibration.height);
        if size.0 > super::MAX_SIDE || size.1 > super::MAX_SIDE {
            return Err(ImageError::Lens("a side is longer than 16384 pixels"));
        }
        let camera = usable(camera)?;
        let mut taps = Vec::with_capacity(size.0 * size.1);
        for v in 0..size.1 {
            for u in 0..size.0 {
                taps.push(tap(map_at(calibration, &camera, u as f64, v as f64)));
            }
        }
        Ok(Self { size, camera, taps })
    }

    /// Intrinsics of the undistorted images.
    pub fn camera(&self) -> Intrinsics {
        self.camera
    }

    /// Whether images are left unchanged.
    pub fn is_identity(&self) -> bool {
        self.taps.is_empty()
    }

    /// For each pixel, its upper left neighbour in the raw image and the offset to the right and
    /// down in 1/32 pixel. Empty if images are left unchanged.
    #[cfg(feature = "cuda")]
    pub(crate) fn table(&self) -> (Vec<[i16; 2]>, Vec<[u8; 2]>) {
        let taps = self.taps.iter();
        taps.map(|t| ([t.x, t.y], [t.right, t.down])).unzip()
    }

    /// Undistorts `src` into `dst`, which is resized. Areas outside `src` are black.
    ///
    /// # Errors
    /// If `src` does not have the size in the calibration.
    pub fn run(&self, src: &RgbImage, dst: &mut RgbImage) -> Result<(), ImageError> {
        src.expect_size(self.size)?;
        dst.reshape(src.width, src.height);
        if self.is_identity() {
            dst.data.copy_from_slice(&src.data);
            return Ok(());
        }
        dst.data
            .par_chunks_exact_mut(src.width * 3)
            .zip(self.taps.par_chunks_exact(src.width))
            .for_each(|(out, taps)| {
                for (out, tap) in out.as_chunks_mut::<3>().0.iter_mut().zip(taps) {
                    sample(src, *tap, out);
                }
            });
        Ok(())
    }
}

/// Position in the raw image, in pixels, at which pixel `(u, v)` of `camera` is seen.
pub fn map_at(calibration: &Calibration, camera: &Intrinsics, u: f64, v: f64) -> (f32, f32) {
    let ray = camera.ray(u, v);
    let (x, y) = distort(&calibration.distortion, ray.x, ray.y);
    let k = &calibration.intrinsics;
    ((k.fx * x + k.cx) as f32, (k.fy * y + k.cy) as f32)
}

fn tap((x, y): (f32, f32)) -> Tap {
    let steps = |c: f32| {
        let scaled = (c * STEPS as f32).round_ties_even();
        // Positions far outside are black, and NaN too.
        if scaled.abs() < 1e6 {
            scaled as i32
        } else {
            -2 * STEPS
        }
    };
    let (x, y) = (steps(x), steps(y));
    Tap {
        x: x.div_euclid(STEPS) as i16,
        y: y.div_euclid(STEPS) as i16,
        right: x.rem_euclid(STEPS) as u8,
        down: y.rem_euclid(STEPS) as u8,
    }
}

fn sample(src: &RgbImage, tap: Tap, out: &mut [u8; 3]) {
    let (right, down) = (u32::from(tap.right), u32::from(tap.down));
    let (left, up) = (STEPS as u32 - right, STEPS as u32 - down);
    let weights = [left * up, right * up, left * down, right * down];
    let (x, y) = (tap.x as usize, tap.y as usize);
    // A negative i16 becomes a huge usize.
    if x < src.width - 1 && y < src.height - 1 {
        let at = (y * src.width + x) * 3;
        let below = at + src.width * 3;
        if let (Some([a, b, c, d, e, f]), Some([g, h, i, j, k, l])) =
            (src.data.get(at..at + 6), src.data.get(below..below + 6))
        {
            let blend = |p: [&u8; 4]| {
                let sum: u32 = weights.iter().zip(p).map(|(w, &v)| w * u32::from(v)).sum();
                ((sum + 512) >> 10) as u8
            };
            *out = [
                blend([a, d, g, j]),
                blend([b, e, h, k]),
                blend([c, f, i, l]),
            ];
        }
        return;
    }
    let mut sum = [512u32; 3];
    for (k, &weight) in weights.iter().enumerate() {
        let x = isize::from(tap.x) + (k % 2) as isize;
        let y = isize::from(tap.y) + (k / 2) as isize;
        if (0..src.width as isize).contains(&x) && (0..src.height as isize).contains(&y) {
            let at = (y as usize * src.width + x as usize) * 3;
            for (sum, &value) in sum.iter_mut().zip(&src.data[at..at + 3]) {
                *sum += weight * u32::from(value);
            }
        }
    }
    *out = sum.map(|sum| (sum >> 10) as u8);
}

//! Pinhole intrinsics and distortion models.

use nalgebra::{Vector2, Vector3};

/// Intrinsics of an undistorted pinhole camera, in pixels; integer coordinates are pixel centres.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Intrinsics {
    /// Focal length along x (columns).
    pub fx: f64,
    /// Focal length along y (rows).
    pub fy: f64,
    /// Principal point, x.
    pub cx: f64,
    /// Principal point, y.
    pub cy: f64,
}

impl Intrinsics {
    /// `(fx x/z + cx, fy y/z + cy)`; not finite for z = 0.
    pub fn project(&self, p: &Vector3<f64>) -> Vector2<f64> {
        Vector2::new(self.fx * p.x / p.z + self.cx, self.fy * p.y / p.z + self.cy)
    }

    /// `K⁻¹[u, v, 1]ᵀ`.
    pub fn ray(&self, u: f64, v: f64) -> Vector3<f64> {
        Vector3::new((u - self.cx) / self.fx, (v - self.cy) / self.fy, 1.0)
    }
}

/// Lens distortion model. Coefficient names and order follow OpenCV and ROS.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distortion {
    /// The images have no distortion.
    None,
    /// `k1 k2 p1 p2 k3` (ROS `plumb_bob`).
    PlumbBob([f64; 5]),
    /// `k1 k2 p1 p2 k3 k4 k5 k6` (ROS `rational_polynomial`).
    Rational([f64; 8]),
    /// `k1 k2 k3 k4` (ROS `equidistant`, OpenCV fisheye).
    Equidistant([f64; 4]),
}

impl Distortion {
    /// Whether it moves no pixel. An equidistant model with zero coefficients is still a fisheye.
    pub fn is_zero(&self) -> bool {
        match self {
            Self::None => true,
            Self::PlumbBob(d) => d.iter().all(|d| *d == 0.0),
            Self::Rational(d) => d.iter().all(|d| *d == 0.0),
            Self::Equidistant(_) => false,
        }
    }
}

/// Calibration of a raw camera: image size, pinhole and distortion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Image width in pixels.
    pub width: usize,
    /// Image height in pixels.
    pub height: usize,
    /// Focal lengths and principal point, pixels.
    pub intrinsics: Intrinsics,
    /// Model and coefficients of the lens distortion.
    pub distortion: Distortion,
}

/// Maximum length of an image side in units of the focal length.
const LONGEST_SIDE_IN_FOCAL_LENGTHS: f64 = 50.0;

/// Error from checking a calibration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum CalibrationError {
    /// The calibration was made for images of another shape.
    #[error(
        "the calibration is for {}×{} images, these are {}×{}: use the calibration of this camera and resolution",
        expected.0, expected.1, found.0, found.1
    )]
    Size {
        expected: (usize, usize),
        found: (usize, usize),
    },
    /// A value is not physically possible.
    #[error("calibration: {name} is {value}, expected {expected}")]
    Value {
        name: &'static str,
        value: f64,
        expected: &'static str,
    },
}

impl Calibration {
    /// Rejects zero sizes, focal lengths that are not positive or are implausibly short, and
    /// non-finite values.
    pub fn validate(&self) -> Result<(), CalibrationError> {
        let bad = |name, value, expected| {
            Err(CalibrationError::Value {
                name,
                value,
                expected,
            })
        };
        if self.width == 0 || self.height == 0 {
            return bad("size", 0.0, "at least one pixel");
        }
        let k = &self.intrinsics;
        for (name, f) in [("fx", k.fx), ("fy", k.fy)] {
            if !(f.is_finite() && f > 0.0) {
                return bad(name, f, "a positive number of pixels");
            }
            // At this limit a pinhole sees 175 degrees, and a fisheye more than a full turn.
            // Drivers that did not load their calibration report 1; others report the focal length
            // as a fraction of the image width.
            if f * LONGEST_SIDE_IN_FOCAL_LENGTHS < self.width.max(self.height) as f64 {
                return bad(
                    name,
                    f,
                    "a focal length in pixels of at least 1/50 of the image's longer side (did the driver load its calibration?)",
                );
            }
        }
        for (name, c) in [("cx", k.cx), ("cy", k.cy)] {
            if !c.is_finite() {
                return bad(name, c, "a finite number of pixels");
            }
        }
        let coefficients: &[f64] = match &self.distortion {
            Distortion::None => &[],
            Distortion::PlumbBob(d) => d,
            Distortion::Rational(d) => d,
            Distortion::Equidistant(d) => d,
        };
        match coefficients.iter().find(|d| !d.is_finite()) {
            Some(&d) => bad("a distortion coefficient", d, "a finite number"),
            None => Ok(()),
        }
    }
}

//! Pinhole cameras and their distortion models.

use nalgebra::{Vector2, Vector3};

/// A pinhole without distortion, in pixels; an integer coordinate is a pixel's centre.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Intrinsics {
    /// Focal length along columns.
    pub fx: f64,
    /// Focal length along rows.
    pub fy: f64,
    /// Principal point, column.
    pub cx: f64,
    /// Principal point, row.
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

/// How a lens departs from a pinhole. Coefficient names and order are OpenCV's and ROS'.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distortion {
    /// Nothing to undo.
    None,
    /// `k1 k2 p1 p2 k3` (ROS `plumb_bob`).
    PlumbBob([f64; 5]),
    /// `k1 k2 p1 p2 k3 k4 k5 k6` (ROS `rational_polynomial`).
    Rational([f64; 8]),
    /// `k1 k2 k3 k4` (ROS `equidistant`, OpenCV fisheye).
    Equidistant([f64; 4]),
}

/// A raw camera: its image size, pinhole and distortion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Columns of the images that it is for.
    pub width: usize,
    /// Rows of the images that it is for.
    pub height: usize,
    /// Pinhole part.
    pub intrinsics: Intrinsics,
    /// Lens part.
    pub distortion: Distortion,
}

/// Images are shorter than this many focal lengths.
const LONGEST_SIDE_IN_FOCAL_LENGTHS: f64 = 50.0;

/// A calibration that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CalibrationError {
    /// Made for images of another shape.
    #[error(
        "the calibration is for {}×{} images, these are {}×{}: give the calibration of this camera and mode",
        expected.0, expected.1, found.0, found.1
    )]
    Size {
        /// The calibration's size.
        expected: (usize, usize),
        /// The images' size.
        found: (usize, usize),
    },
    /// A number that no camera has.
    #[error("calibration: {name} is {value}, expected {expected}")]
    Value {
        /// Which number.
        name: &'static str,
        /// As given.
        value: f64,
        /// What it could be.
        expected: &'static str,
    },
}

impl Calibration {
    /// Refuses sizes of zero, focal lengths that are not positive or that no lens has, and anything not finite.
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
            // A pinhole of this would see 175 degrees, a fisheye all around many times over. Drivers that did not
            // load their calibration say 1; others give it in parts of the image's width.
            if f * LONGEST_SIDE_IN_FOCAL_LENGTHS < self.width.max(self.height) as f64 {
                return bad(
                    name,
                    f,
                    "the focal length in pixels, at least 1/50 of the image's longer side (did the driver load its calibration?)",
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

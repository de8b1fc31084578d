//! Reads calibration files.

use super::{SourceError, read_yaml};
use crate::geometry::{Calibration, CalibrationError, Distortion, Intrinsics};
use serde::Deserialize;
use std::path::Path;

/// The union of all supported layouts, distinguished by which keys exist. Unknown keys are ignored.
#[derive(Debug, Deserialize)]
struct Raw {
    width: Option<usize>,
    height: Option<usize>,
    image_width: Option<usize>,
    image_height: Option<usize>,
    resolution: Option<Vec<usize>>,
    calibration: Option<Vec<f64>>,
    intrinsics: Option<Vec<f64>>,
    fx: Option<f64>,
    fy: Option<f64>,
    cx: Option<f64>,
    cy: Option<f64>,
    k1: Option<f64>,
    k2: Option<f64>,
    k3: Option<f64>,
    k4: Option<f64>,
    k5: Option<f64>,
    k6: Option<f64>,
    p1: Option<f64>,
    p2: Option<f64>,
    camera_matrix: Option<Numbers>,
    distortion_model: Option<String>,
    distortion_coefficients: Option<Numbers>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Numbers {
    List(Vec<f64>),
    Matrix { data: Vec<f64> },
}

impl Numbers {
    fn into_vec(self) -> Vec<f64> {
        match self {
            Self::List(data) | Self::Matrix { data } => data,
        }
    }
}

/// Reads a calibration file (YAML) in any of these layouts:
/// * `width`, `height`, `calibration: [fx, fy, cx, cy]`, optionally with `k1, k2, p1, p2` and `k3` in
///   the list after them;
/// * `width`, `height`, `fx`, `fy`, `cx`, `cy`, optionally `k1` … `k6`, `p1`, `p2`;
/// * ROS `camera_info`: `image_width`, `image_height`, `camera_matrix`, `distortion_model`,
///   `distortion_coefficients`;
/// * EuRoC `sensor.yaml`: `resolution`, `intrinsics`, `distortion_model`, `distortion_coefficients`.
///
/// `distortion_model` may be `plumb_bob` (also `radtan`, `radial-tangential`), `rational_polynomial`,
/// `equidistant` (also `fisheye`, `kannala_brandt`) or `none`.
///
/// # Errors
/// Errors name the file and the missing, mistyped or invalid key.
pub fn read_calibration(path: &Path) -> Result<Calibration, SourceError> {
    let raw: Raw = read_yaml(path, "a calibration in YAML")?;
    let calibration = raw
        .calibration()
        .map_err(|(expected, found)| SourceError::content(path, expected, found))?;
    validated(path, calibration)
}

#[derive(Debug, Deserialize)]
struct DepthFactor {
    depth_factor: Option<f64>,
}

/// `depth_factor` of a calibration file: steps per metre of the 16-bit depth images beside it.
///
/// # Errors
/// A file that is not YAML, or a factor that is not positive.
pub(super) fn depth_factor(path: &Path) -> Result<Option<f64>, SourceError> {
    let raw: DepthFactor = read_yaml(path, "a calibration in YAML")?;
    match raw.depth_factor {
        Some(factor) if !(factor.is_finite() && factor > 0.0) => Err(SourceError::content(
            path,
            "a positive number of steps per metre",
            format!("depth_factor: {factor}"),
        )),
        factor => Ok(factor),
    }
}

/// Rejects invalid values; errors name `path`.
pub(super) fn validated(path: &Path, made: Calibration) -> Result<Calibration, SourceError> {
    made.validate().map_err(|e| match e {
        CalibrationError::Value {
            name,
            value,
            expected,
        } => SourceError::content(path, expected, format!("{name} = {value}")),
        other => SourceError::content(path, "a calibration", other.to_string()),
    })?;
    Ok(made)
}

/// Expected and found.
type Mismatch = (String, String);

fn mismatch(expected: &str, found: impl Into<String>) -> Mismatch {
    (expected.to_owned(), found.into())
}

impl Raw {
    fn size(&self) -> Result<(usize, usize), Mismatch> {
        if let (Some(width), Some(height)) = (
            self.width.or(self.image_width),
            self.height.or(self.image_height),
        ) {
            return Ok((width, height));
        }
        match self.resolution.as_deref() {
            Some(&[width, height]) => Ok((width, height)),
            _ => Err(mismatch(
                "the image size as width and height (or image_width and image_height)",
                "no such keys",
            )),
        }
    }

    fn calibration(self) -> Result<Calibration, Mismatch> {
        let (width, height) = self.size()?;
        let flat = [
            self.k1, self.k2, self.p1, self.p2, self.k3, self.k4, self.k5, self.k6,
        ];
        let model = self.distortion_model.as_deref();
        let (pinhole, coefficients) = if let Some(list) = self.calibration {
            if list.len() < 4 {
                return Err(mismatch(
                    "calibration: [fx, fy, cx, cy], optionally followed by distortion coefficients",
                    format!("{} values", list.len()),
                ));
            }
            (list[..4].to_vec(), list[4..].to_vec())
        } else if let Some(matrix) = self.camera_matrix {
            let m = matrix.into_vec();
            let &[fx, _, cx, _, fy, cy, _, _, _] = m.as_slice() else {
                return Err(mismatch(
                    "camera_matrix.data with 9 values",
                    format!("{} values", m.len()),
                ));
            };
            let d = self.distortion_coefficients.map(Numbers::into_vec);
            (vec![fx, fy, cx, cy], d.unwrap_or_default())
        } else if let Some(list) = self.intrinsics {
            let d = self.distortion_coefficients.map(Numbers::into_vec);
            (list, d.unwrap_or_default())
        } else {
            let mut pinhole = Vec::new();
            for (name, value) in [
                ("fx", self.fx),
                ("fy", self.fy),
                ("cx", self.cx),
                ("cy", self.cy),
            ] {
                pinhole.push(value.ok_or_else(|| mismatch(name, "no such key"))?);
            }
            let values = if is_fisheye(model) {
                flat_values(&[self.k1, self.k2, self.k3, self.k4])
            } else {
                flat_values(&flat)
            };
            (pinhole, values)
        };
        let &[fx, fy, cx, cy] = pinhole.as_slice() else {
            return Err(mismatch(
                "intrinsics: [fx, fy, cx, cy]",
                format!("{} values", pinhole.len()),
            ));
        };
        Ok(Calibration {
            width,
            height,
            intrinsics: Intrinsics { fx, fy, cx, cy },
            distortion: lens(model, &coefficients)?,
        })
    }
}

/// Values up to the last given one; missing ones before it are 0.
fn flat_values(values: &[Option<f64>]) -> Vec<f64> {
    let count = values
        .iter()
        .rposition(Option::is_some)
        .map_or(0, |i| i + 1);
    values[..count].iter().map(|v| v.unwrap_or(0.0)).collect()
}

fn is_fisheye(model: Option<&str>) -> bool {
    matches!(model, Some("equidistant" | "fisheye" | "kannala_brandt"))
}

fn lens(model: Option<&str>, d: &[f64]) -> Result<Distortion, Mismatch> {
    let padded = |expected: &str, max: usize| -> Result<[f64; 8], Mismatch> {
        if d.len() > max {
            return Err(mismatch(expected, format!("{} values", d.len())));
        }
        let mut all = [0.0; 8];
        all[..d.len()].copy_from_slice(d);
        Ok(all)
    };
    if is_fisheye(model) {
        let [k1, k2, k3, k4, ..] = padded("4 coefficients of equidistant: k1, k2, k3, k4", 4)?;
        return Ok(Distortion::Equidistant([k1, k2, k3, k4]));
    }
    match model {
        Some("none" | "None" | "") if d.iter().all(|&k| k == 0.0) => Ok(Distortion::None),
        Some("rational_polynomial") => Ok(Distortion::Rational(padded(
            "at most 8 coefficients: k1, k2, p1, p2, k3, k4, k5, k6",
            8,
        )?)),
        None if d.len() > 5 => Ok(Distortion::Rational(padded(
            "at most 8 distortion coefficients: k1, k2, p1, p2, k3, k4, k5, k6",
            8,
        )?)),
        None | Some("plumb_bob" | "radtan" | "radial-tangential" | "pinhole") => {
            let expected = "at most 5 coefficients of plumb_bob: k1, k2, p1, p2, k3";
            let [k1, k2, p1, p2, k3, ..] = padded(expected, 5)?;
            let d = [k1, k2, p1, p2, k3];
            Ok(if d == [0.0; 5] {
                Distortion::None
            } else {
                Distortion::PlumbBob(d)
            })
        }
        Some(other) => Err(mismatch(
            "distortion_model plumb_bob, rational_polynomial or equidistant",
            other,
        )),
    }
}

/// The calibration for images of `size`: unchanged, or scaled with a warning if the size differs
/// but the aspect ratio matches to within rounding.
///
/// # Errors
/// [`CalibrationError::Size`] if the aspect ratio differs.
pub fn fit_calibration(
    calibration: &Calibration,
    size: (usize, usize),
) -> Result<Calibration, CalibrationError> {
    let made_for = (calibration.width, calibration.height);
    if made_for == size {
        return Ok(*calibration);
    }
    let error = CalibrationError::Size {
        expected: made_for,
        found: size,
    };
    if made_for.0 == 0 || made_for.1 == 0 || size.0 == 0 || size.1 == 0 {
        return Err(error);
    }
    let (sx, sy) = (
        size.0 as f64 / made_for.0 as f64,
        size.1 as f64 / made_for.1 as f64,
    );
    // One side determines the other, rounded to a pixel.
    let rounding = |a: f64, b: usize| (a - b as f64).abs() <= 0.5;
    if !rounding(made_for.1 as f64 * sx, size.1) && !rounding(made_for.0 as f64 * sy, size.0) {
        return Err(error);
    }
    tracing::warn!(
        "the calibration is for {}×{} images, these are {}×{}: the calibration is scaled",
        made_for.0,
        made_for.1,
        size.0,
        size.1
    );
    let k = calibration.intrinsics;
    Ok(Calibration {
        width: size.0,
        height: size.1,
        intrinsics: Intrinsics {
            fx: k.fx * sx,
            fy: k.fy * sy,
            cx: (k.cx + 0.5) * sx - 0.5,
            cy: (k.cy + 0.5) * sy - 0.5,
        },
        distortion: calibration.distortion,
    })
}

//! Conversion between `camera_info` and calibrations.

use crate::geometry::{Calibration, Distortion, Intrinsics};
use crate::wire::messages::Header;
use crate::wire::messages::sensor::CameraInfo;

/// Reasons why a `camera_info` cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum CameraInfoError {
    /// `K` is all zero, which in ROS means "not calibrated".
    #[error("camera_info says that the camera is not calibrated (K is zero)")]
    Uncalibrated,
    /// The distortion model is unknown.
    #[error(
        "camera_info has the distortion model {0:?}, expected plumb_bob, rational_polynomial or equidistant"
    )]
    Model(String),
    /// The number of coefficients does not fit the distortion model.
    #[error("camera_info has {found} coefficients of {model}, expected {expected}")]
    Coefficients {
        model: String,
        expected: &'static str,
        found: usize,
    },
    /// The parameters are invalid for any camera.
    #[error("camera_info: {0}")]
    Values(#[from] crate::geometry::CalibrationError),
    /// The image is a region of interest or binned.
    #[error(
        "camera_info has {0}, which is not supported; publish whole images and their calibration"
    )]
    Part(&'static str),
}

/// Calibration of the images published with `info`.
///
/// # Errors
/// See [`CameraInfoError`].
pub fn calibration(info: &CameraInfo) -> Result<Calibration, CameraInfoError> {
    let [fx, _, cx, _, fy, cy, _, _, _] = info.k;
    if fx == 0.0 && fy == 0.0 {
        return Err(CameraInfoError::Uncalibrated);
    }
    if info.binning_x > 1 || info.binning_y > 1 {
        return Err(CameraInfoError::Part("binning"));
    }
    let roi = &info.roi;
    let whole = (roi.width == 0 || roi.width == info.width)
        && (roi.height == 0 || roi.height == info.height)
        && roi.x_offset == 0
        && roi.y_offset == 0;
    if !whole {
        return Err(CameraInfoError::Part("a region of interest"));
    }
    let calibration = Calibration {
        width: info.width as usize,
        height: info.height as usize,
        intrinsics: Intrinsics { fx, fy, cx, cy },
        distortion: distortion(info)?,
    };
    calibration.validate()?;
    Ok(calibration)
}

/// The calibration of images that were rectified as `info` says (`image_rect`): its projection, without a lens.
///
/// # Errors
/// See [`calibration`].
pub fn rectified(info: &CameraInfo) -> Result<Calibration, CameraInfoError> {
    let [fx, _, cx, _, _, fy, cy, ..] = info.p;
    calibration(&CameraInfo {
        k: [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0],
        d: Vec::new(),
        ..info.clone()
    })
}

fn distortion(info: &CameraInfo) -> Result<Distortion, CameraInfoError> {
    let d = &info.d[..];
    // For rectified images, many drivers keep the model and send zeros; others send no coefficients.
    if d.iter().all(|v| *v == 0.0) {
        return Ok(Distortion::None);
    }
    let wrong = |expected| CameraInfoError::Coefficients {
        model: info.distortion_model.clone(),
        expected,
        found: d.len(),
    };
    match info.distortion_model.as_str() {
        "plumb_bob" => match *d {
            [k1, k2, p1, p2] => Ok(Distortion::PlumbBob([k1, k2, p1, p2, 0.0])),
            [k1, k2, p1, p2, k3] => Ok(Distortion::PlumbBob([k1, k2, p1, p2, k3])),
            _ => Err(wrong("4 or 5")),
        },
        // Some drivers append thin prism and tilt terms, which have no effect if they are zero.
        "rational_polynomial" => match (d.get(..8), d.get(8..)) {
            (Some(&[k1, k2, p1, p2, k3, k4, k5, k6]), Some(rest))
                if rest.iter().all(|v| *v == 0.0) =>
            {
                Ok(Distortion::Rational([k1, k2, p1, p2, k3, k4, k5, k6]))
            }
            _ => Err(wrong("8")),
        },
        "equidistant" => match *d {
            [k1, k2, k3, k4] => Ok(Distortion::Equidistant([k1, k2, k3, k4])),
            _ => Err(wrong("4")),
        },
        other => Err(CameraInfoError::Model(other.into())),
    }
}

/// `camera_info` of unrectified images with `calibration`.
pub fn info(calibration: &Calibration, header: Header) -> CameraInfo {
    let Intrinsics { fx, fy, cx, cy } = calibration.intrinsics;
    let (distortion_model, d) = match &calibration.distortion {
        Distortion::None => ("plumb_bob", vec![0.0; 5]),
        Distortion::PlumbBob(d) => ("plumb_bob", d.to_vec()),
        Distortion::Rational(d) => ("rational_polynomial", d.to_vec()),
        Distortion::Equidistant(d) => ("equidistant", d.to_vec()),
    };
    CameraInfo {
        header,
        height: calibration.height as u32,
        width: calibration.width as u32,
        distortion_model: distortion_model.to_owned(),
        d,
        k: [fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0],
        r: [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p: [fx, 0.0, cx, 0.0, 0.0, fy, cy, 0.0, 0.0, 0.0, 1.0, 0.0],
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(model: &str, d: &[f64]) -> CameraInfo {
        CameraInfo {
            width: 640,
            height: 480,
            distortion_model: model.into(),
            d: d.to_vec(),
            k: [500.0, 0.0, 320.0, 0.0, 501.0, 240.0, 0.0, 0.0, 1.0],
            ..Default::default()
        }
    }

    #[test]
    fn the_three_models_are_read() {
        let bob = calibration(&info("plumb_bob", &[0.1, 0.2, 0.3, 0.4, 0.5])).unwrap();
        assert_eq!((bob.width, bob.intrinsics.fy), (640, 501.0));
        assert_eq!(
            bob.distortion,
            Distortion::PlumbBob([0.1, 0.2, 0.3, 0.4, 0.5])
        );
        let rational = calibration(&info(
            "rational_polynomial",
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        ));
        assert!(matches!(
            rational.unwrap().distortion,
            Distortion::Rational(_)
        ));
        let fisheye = calibration(&info("equidistant", &[0.1, 0.0, 0.0, 0.0])).unwrap();
        assert_eq!(
            fisheye.distortion,
            Distortion::Equidistant([0.1, 0.0, 0.0, 0.0])
        );
        assert_eq!(
            calibration(&info("", &[])).unwrap().distortion,
            Distortion::None
        );
        assert_eq!(
            calibration(&info("plumb_bob", &[0.0; 5]))
                .unwrap()
                .distortion,
            Distortion::None
        );
    }

    #[test]
    fn rectified_images_have_the_projection_and_no_lens() {
        let mut info = info("plumb_bob", &[0.1; 5]);
        info.p = [
            400.0, 0.0, 310.0, 0.0, 0.0, 402.0, 230.0, 0.0, 0.0, 0.0, 1.0, 0.0,
        ];
        let found = rectified(&info).unwrap();
        let k = found.intrinsics;
        assert_eq!((k.fx, k.fy, k.cx, k.cy), (400.0, 402.0, 310.0, 230.0));
        assert_eq!(found.distortion, Distortion::None);
        info.p = [0.0; 12];
        assert_eq!(rectified(&info), Err(CameraInfoError::Uncalibrated));
    }

    #[test]
    fn what_is_said_is_read_back() {
        let distortions = [
            Distortion::None,
            Distortion::PlumbBob([0.1, 0.2, 0.3, 0.4, 0.5]),
            Distortion::Rational([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
            Distortion::Equidistant([0.1, 0.2, 0.3, 0.4]),
        ];
        for distortion in distortions {
            let known = Calibration {
                distortion,
                ..calibration(&info("plumb_bob", &[])).unwrap()
            };
            let said = super::info(&known, Header::default());
            assert_eq!(calibration(&said), Ok(known));
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let mut zero = info("plumb_bob", &[0.0; 5]);
        zero.k = [0.0; 9];
        let mut binned = info("plumb_bob", &[]);
        binned.binning_x = 2;
        let mut nan = info("plumb_bob", &[]);
        nan.k[0] = f64::NAN;
        // Sent by image_pipeline's image_publisher if it has no calibration.
        let mut default = info("plumb_bob", &[0.0; 5]);
        default.k = [1.0, 0.0, 320.0, 0.0, 1.0, 240.0, 0.0, 0.0, 1.0];
        for (bad, part) in [
            (default, "did the driver load its calibration?"),
            (zero, "not calibrated"),
            (binned, "binning"),
            (nan, "fx"),
            (info("plumb_bob", &[0.1; 3]), "4 or 5"),
            (info("thin_prism", &[0.1; 4]), "thin_prism"),
            (info("equidistant", &[0.1; 5]), "equidistant"),
        ] {
            let error = calibration(&bad).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

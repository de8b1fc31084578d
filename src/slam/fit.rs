//! Which maps fit the camera, the network and the configuration; errors from map files.

use super::error::SlamError;
use crate::compute::device::DeviceError;
use crate::geometry::Intrinsics;
use crate::map::saved::{Header, ImageShape, MapFileError};
use crate::map::store::StoreError;
use std::path::PathBuf;

/// Error from saving or loading a map.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum SavedMapError {
    /// The file cannot be read or written. On loading, the map in memory is unchanged.
    #[error(transparent)]
    File(#[from] MapFileError),
    /// The file of a running map cannot be opened, read or created.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The map was not written to its file completely.
    #[error("the map in {path} is not complete: {cause}", path = path.display())]
    Incomplete { path: PathBuf, cause: String },
    /// The map does not match this camera, network or configuration. The map in memory is
    /// unchanged.
    #[error("the map {path} cannot be used here: {cause}", path = path.display())]
    Unfit { path: PathBuf, cause: Unfit },
    /// The device rejected the map; there is no map any more.
    #[error("the map was read but the device rejected it: {0}")]
    Device(#[from] DeviceError),
    /// The map was discarded before it was loaded or saved.
    #[error("it was cancelled: the map was discarded meanwhile")]
    GivenUp,
    /// The label is not known.
    #[error("{0}")]
    Label(String),
    /// There is nothing to save.
    #[error("there is no map yet: it has no keyframe")]
    Empty,
    /// The mapping side failed.
    #[error(transparent)]
    Slam(#[from] SlamError),
}

/// Reasons why a map does not match this camera, network and configuration.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unfit {
    /// The network's image size differs.
    #[error(
        "it was made with network images of {}×{} pixels, this run uses {}×{}; use the same camera format and \
         network.size",
        map.width, map.height, own.width, own.height
    )]
    ImageSize { map: ImageShape, own: ImageShape },
    /// The weights differ.
    #[error(
        "it was made with weights of SHA-256 {map}, this run uses {own}; use those weights, or create the map \
         again"
    )]
    Weights { map: String, own: String },
    /// The feature sizes differ.
    #[error(
        "its features are {}×{}, this network has {}×{}",
        map.tokens, map.channels, own.tokens, own.channels
    )]
    Features { map: ImageShape, own: ImageShape },
    /// The camera calibrations differ.
    #[error(
        "it was made with another calibration: f = {:.2} × {:.2}, c = ({:.2}, {:.2}) pixels, this camera has \
         f = {:.2} × {:.2}, c = ({:.2}, {:.2}), which moves pixels by up to {pixels:.1}; use the same camera and \
         calibration",
        map.fx, map.fy, map.cx, map.cy, own.fx, own.fy, own.cx, own.cy
    )]
    Calibration {
        map: Intrinsics,
        own: Intrinsics,
        /// Maximum displacement of a pixel between the two cameras.
        pixels: f64,
    },
    /// Only one of the two is calibrated.
    #[error("it was made {}, this run is {}; use the same value of use_calib", mode(*map), mode(*own))]
    Mode { map: bool, own: bool },
    /// The map has too many keyframes.
    #[error(
        "it has {map} keyframes, the limit of this run is {max}; raise local_opt.max_keyframes"
    )]
    Keyframes { map: usize, max: usize },
    /// The map has no keyframe.
    #[error("it has no keyframes")]
    Empty,
}

fn mode(calibrated: bool) -> &'static str {
    match calibrated {
        true => "calibrated",
        false => "uncalibrated",
    }
}

/// The camera, network and configuration that a map must fit.
pub struct Fit<'a> {
    pub shape: ImageShape,
    /// SHA-256 of the network's weights.
    pub weights: &'a str,
    /// Intrinsics of the network's image, when calibrated.
    pub intrinsics: Option<Intrinsics>,
    /// Maximum number of keyframes; 0 for no limit.
    pub max_keyframes: usize,
}

/// Maximum displacement of a pixel, in pixels, between the camera of a map and the camera that
/// resumes it.
const SAME_CAMERA_PIXELS: f64 = 0.5;

impl Fit<'_> {
    /// Rejects a map that does not meet the requirements.
    pub fn check(&self, header: &Header) -> Result<(), Unfit> {
        let (own, map) = (self.shape, header.shape);
        if (own.width, own.height) != (map.width, map.height) {
            return Err(Unfit::ImageSize { map, own });
        }
        if header.weights != self.weights {
            return Err(Unfit::Weights {
                map: header.weights.clone(),
                own: self.weights.to_owned(),
            });
        }
        if own != map {
            return Err(Unfit::Features { map, own });
        }
        match (header.intrinsics, self.intrinsics) {
            (None, None) => {}
            (Some(map), Some(own)) => {
                let pixels = farthest(&map, &own, header.shape);
                if pixels > SAME_CAMERA_PIXELS {
                    return Err(Unfit::Calibration { map, own, pixels });
                }
            }
            (map, own) => {
                let (map, own) = (map.is_some(), own.is_some());
                return Err(Unfit::Mode { map, own });
            }
        }
        let (map, max) = (header.keyframes as usize, self.max_keyframes);
        match map {
            0 => Err(Unfit::Empty),
            _ if max > 0 && map > max => Err(Unfit::Keyframes { map, max }),
            _ => Ok(()),
        }
    }
}

/// The maximum distance, in pixels, between an image corner of one camera and the projection of its
/// ray in the other camera.
fn farthest(a: &Intrinsics, b: &Intrinsics, shape: ImageShape) -> f64 {
    let (w, h) = (f64::from(shape.width), f64::from(shape.height));
    let corners = [
        (0.0, 0.0),
        (w - 1.0, 0.0),
        (0.0, h - 1.0),
        (w - 1.0, h - 1.0),
    ];
    let moved = corners.map(|(u, v)| {
        let to = b.project(&a.ray(u, v));
        let (x, y) = ((to.x - u).abs(), (to.y - v).abs());
        // `f64::max` would drop a NaN.
        if x.is_nan() || y.is_nan() {
            f64::NAN
        } else {
            x.max(y)
        }
    });
    // A comparison with NaN is false, so an undefined distance must become the largest.
    let distance = |m: f64| if m.is_nan() { f64::INFINITY } else { m };
    moved.into_iter().map(distance).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::device::ContentFormats;
    use crate::compute::store::FloatFormat;

    const SHAPE: ImageShape = ImageShape {
        width: 128,
        height: 96,
        tokens: 48,
        channels: 32,
    };

    const CAMERA: Intrinsics = Intrinsics {
        fx: 90.0,
        fy: 90.0,
        cx: 63.5,
        cy: 47.5,
    };

    fn header() -> Header {
        Header {
            program: String::new(),
            weights: "a".into(),
            shape: SHAPE,
            formats: ContentFormats {
                confidence: FloatFormat::F32,
                features: FloatFormat::F32,
            },
            intrinsics: Some(CAMERA),
            map_from_world: None,
            keyframes: 5,
            edges: 4,
            solved_edges: 4,
            factors: 0,
        }
    }

    fn check(change: impl FnOnce(&mut Header, &mut Fit<'static>)) -> Result<(), Unfit> {
        let mut header = header();
        let mut fit = Fit {
            shape: SHAPE,
            weights: "a",
            intrinsics: Some(CAMERA),
            max_keyframes: 5,
        };
        change(&mut header, &mut fit);
        fit.check(&header)
    }

    #[test]
    fn a_map_of_the_same_camera_and_network_fits() {
        assert_eq!(check(|_, _| {}), Ok(()));
        assert_eq!(
            check(|h, f| (h.keyframes, f.max_keyframes) = (9, 0)),
            Ok(())
        );
        let nearly = |h: &mut Header| h.intrinsics = Some(Intrinsics { cx: 63.9, ..CAMERA });
        assert_eq!(check(|h, _| nearly(h)), Ok(()));
    }

    #[test]
    fn another_map_is_refused_with_the_cause() {
        let refused =
            |change: fn(&mut Header, &mut Fit<'static>)| check(change).expect_err("refused");
        assert!(matches!(
            refused(|h, _| h.shape.width = 112),
            Unfit::ImageSize { .. }
        ));
        assert!(matches!(
            refused(|h, _| h.weights = "b".into()),
            Unfit::Weights { .. }
        ));
        assert!(matches!(
            refused(|h, _| h.shape.channels = 24),
            Unfit::Features { .. }
        ));
        let moved = |h: &mut Header| h.intrinsics = Some(Intrinsics { cx: 65.0, ..CAMERA });
        let moved = check(|h, _| moved(h)).expect_err("refused");
        assert!(matches!(moved, Unfit::Calibration { pixels, .. } if (pixels - 1.5).abs() < 1e-9));
        let unknown = |h: &mut Header| {
            h.intrinsics = Some(Intrinsics {
                cx: f64::NAN,
                ..CAMERA
            })
        };
        assert!(check(|h, _| unknown(h)).is_err());
        let (map, own) = (false, true);
        assert_eq!(
            refused(|h, _| h.intrinsics = None),
            Unfit::Mode { map, own }
        );
        let (map, max) = (6, 5);
        assert_eq!(
            refused(|h, _| h.keyframes = 6),
            Unfit::Keyframes { map, max }
        );
        assert_eq!(refused(|h, _| h.keyframes = 0), Unfit::Empty);
    }
}

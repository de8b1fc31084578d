//! Which pixel of the camera's raw images each pixel of the network's images shows, and back.

use super::resample::Crop;
use super::undistort::{distort, map_at, undistort};
use crate::geometry::{Calibration, Intrinsics};
use nalgebra::{Vector2, Vector3};

/// Part by which a ray may lie farther from the optical axis than the image's corners: beyond it, the polynomial of a
/// lens folds back into the image.
const REACH: f64 = 1.05;

/// The geometry of a `Preprocessor`, without its tables: undistort, resize, crop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NetworkView {
    raw: (usize, usize),
    resized: (usize, usize),
    crop: Crop,
    lens: Option<Calibration>,
    /// The pinhole of the undistorted raw image; `None` if images are not undistorted.
    pinhole: Option<Intrinsics>,
}

impl NetworkView {
    /// For raw images of `raw` pixels that are remapped from `lens` to `pinhole`, where there is one, resized to
    /// `resized` pixels and cropped. A pinhole without a lens is ignored.
    pub fn new(
        raw: (usize, usize),
        resized: (usize, usize),
        crop: Crop,
        lens: Option<Calibration>,
        pinhole: Option<Intrinsics>,
    ) -> Self {
        Self {
            raw,
            resized,
            crop,
            lens,
            pinhole: pinhole.filter(|_| lens.is_some()),
        }
    }

    /// The view of raw images of `size` that are the network's.
    pub fn same(size: (usize, usize)) -> Self {
        Self::new(size, size, Crop::all(size.0, size.1), None, None)
    }

    /// The same view, of a camera with this calibration if none is known: images are not undistorted by it.
    #[must_use]
    pub fn or_lens(mut self, lens: Option<Calibration>) -> Self {
        self.lens = self.lens.or(lens);
        self
    }

    /// Width and height of the raw images.
    pub fn raw_size(&self) -> (usize, usize) {
        self.raw
    }

    /// Width and height of the network's images.
    pub fn size(&self) -> (usize, usize) {
        (self.crop.width, self.crop.height)
    }

    /// The raw camera's calibration, if it is known.
    pub fn lens(&self) -> Option<&Calibration> {
        self.lens.as_ref()
    }

    /// The position in the raw image, in pixels, that pixel `(u, v)` of the network's image shows.
    pub fn raw_position(&self, u: f64, v: f64) -> Vector2<f64> {
        // Integer coordinates are pixel centres, so pixel 0 begins at -0.5.
        let along = |at: f64, cut: usize, raw: usize, resized: usize| {
            (at + cut as f64 + 0.5) * raw as f64 / resized as f64 - 0.5
        };
        let x = along(u, self.crop.left, self.raw.0, self.resized.0);
        let y = along(v, self.crop.top, self.raw.1, self.resized.1);
        match (&self.lens, &self.pinhole) {
            (Some(lens), Some(pinhole)) => {
                let (x, y) = map_at(lens, pinhole, x, y);
                Vector2::new(x.into(), y.into())
            }
            _ => Vector2::new(x, y),
        }
    }

    /// The inverse of [`NetworkView::raw_position`]; `None` where the lens cannot be inverted.
    pub fn network_position(&self, raw: &Vector2<f64>) -> Option<Vector2<f64>> {
        let flat = match (&self.lens, &self.pinhole) {
            (Some(lens), Some(pinhole)) => {
                let ray = lens.intrinsics.ray(raw.x, raw.y);
                let (x, y) = undistort(&lens.distortion, ray.x, ray.y)?;
                pinhole.project(&Vector3::new(x, y, 1.0))
            }
            _ => *raw,
        };
        Some(self.cropped(&flat))
    }

    /// The network's pixel of a position in the undistorted raw image.
    fn cropped(&self, flat: &Vector2<f64>) -> Vector2<f64> {
        let along = |at: f64, cut: usize, raw: usize, resized: usize| {
            (at + 0.5) * resized as f64 / raw as f64 - 0.5 - cut as f64
        };
        Vector2::new(
            along(flat.x, self.crop.left, self.raw.0, self.resized.0),
            along(flat.y, self.crop.top, self.raw.1, self.resized.1),
        )
    }

    /// What projects points into the network's images. `camera` is the calibration of the raw images; without it, the
    /// view's own. `None` if neither is known.
    pub fn projection(&self, camera: Option<&Calibration>) -> Option<Projection> {
        let camera = *camera.or(self.lens.as_ref())?;
        let undistorted = self.pinhole.filter(|_| self.lens == Some(camera));
        let ideal =
            (self.pinhole.is_none() && camera.distortion.is_zero()).then_some(camera.intrinsics);
        let pinhole = undistorted.or(ideal);
        Some(Projection {
            view: *self,
            reach: (REACH * reach(&camera)).powi(2),
            direct: pinhole.map(|k| self.intrinsics(&k)),
            camera,
        })
    }

    /// The intrinsics of the network's images, of those of the undistorted raw images.
    fn intrinsics(&self, flat: &Intrinsics) -> Intrinsics {
        let centre = self.cropped(&Vector2::new(flat.cx, flat.cy));
        let along = |resized: usize, raw: usize| resized as f64 / raw as f64;
        Intrinsics {
            fx: flat.fx * along(self.resized.0, self.raw.0),
            fy: flat.fy * along(self.resized.1, self.raw.1),
            cx: centre.x,
            cy: centre.y,
        }
    }
}

/// The largest distance of an image's border from the optical axis, in focal lengths.
fn reach(camera: &Calibration) -> f64 {
    let (right, bottom) = ((camera.width - 1) as f64, (camera.height - 1) as f64);
    let border = (0..=8).flat_map(|k| {
        let part = f64::from(k) / 8.0;
        let (u, v) = (part * right, part * bottom);
        [(u, 0.0), (u, bottom), (0.0, v), (right, v)]
    });
    let radius = |(u, v): (f64, f64)| {
        let ray = camera.intrinsics.ray(u, v);
        let (x, y) = undistort(&camera.distortion, ray.x, ray.y)?;
        Some(x.hypot(y))
    };
    border.filter_map(radius).fold(0.0, f64::max)
}

/// Projects points of the camera's frame into the network's images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Projection {
    view: NetworkView,
    camera: Calibration,
    /// Rays farther from the axis than the root of this, in focal lengths, are not in the image.
    reach: f64,
    /// The network's intrinsics, if images are undistorted by the same calibration or the lens has no distortion.
    direct: Option<Intrinsics>,
}

impl Projection {
    /// The pixel of the network's image that shows `point`, in the camera's frame; `None` behind the camera and outside
    /// its view.
    pub fn pixel(&self, point: &Vector3<f64>) -> Option<Vector2<f64>> {
        let (x, y) = (point.x / point.z, point.y / point.z);
        // NaN fails the comparison.
        if !(point.z > 0.0 && x * x + y * y <= self.reach) {
            return None;
        }
        if let Some(direct) = &self.direct {
            return Some(direct.project(&Vector3::new(x, y, 1.0)));
        }
        let (x, y) = distort(&self.camera.distortion, x, y);
        let raw = self.camera.intrinsics.project(&Vector3::new(x, y, 1.0));
        self.view.network_position(&raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Distortion;
    use crate::image::{PreprocessOptions, Preprocessor};

    fn calibration(distortion: Distortion) -> Calibration {
        Calibration {
            width: 640,
            height: 480,
            intrinsics: Intrinsics {
                fx: 517.3,
                fy: 516.5,
                cx: 318.6,
                cy: 255.3,
            },
            distortion,
        }
    }

    fn view(calibration: Option<&Calibration>) -> (NetworkView, Option<Intrinsics>) {
        let options = PreprocessOptions::default();
        let made = Preprocessor::new(640, 480, 256, calibration, options).expect("a preprocessor");
        (made.view(), made.intrinsics())
    }

    const LENS: Distortion = Distortion::PlumbBob([0.2624, -0.9531, -0.0054, 0.0026, 1.1633]);

    /// The preprocessor's own intrinsics say where a point is seen.
    #[test]
    fn points_are_projected_as_the_network_s_intrinsics_say() {
        for distortion in [Distortion::None, LENS] {
            let camera = calibration(distortion);
            let (view, intrinsics) = view(Some(&camera));
            let intrinsics = intrinsics.expect("calibrated");
            let projection = view.projection(None).expect("a camera");
            for point in [[0.1, -0.2, 1.5], [-0.6, 0.4, 2.0], [0.0, 0.0, 0.3]] {
                let point = Vector3::from(point);
                let pixel = projection.pixel(&point).expect("in view");
                let expected = intrinsics.project(&point);
                assert!((pixel - expected).norm() < 1e-9, "{pixel} {expected}");
            }
            let behind = projection.pixel(&Vector3::new(0.1, 0.1, -1.0));
            assert_eq!(behind, None);
            assert_eq!(projection.pixel(&Vector3::new(9.0, 0.0, 1.0)), None);
            assert_eq!(projection.pixel(&Vector3::new(f64::NAN, 0.0, 1.0)), None);
        }
    }

    #[test]
    fn both_directions_agree() {
        let distorted = calibration(LENS);
        for camera in [None, Some(&calibration(Distortion::None)), Some(&distorted)] {
            let (view, _) = view(camera);
            for (u, v) in [(0.0, 0.0), (100.0, 90.0), (255.0, 191.0), (17.0, 150.5)] {
                let raw = view.raw_position(u, v);
                let back = view.network_position(&raw).expect("inside");
                assert!(
                    (back - Vector2::new(u, v)).norm() < 0.05,
                    "({u}, {v}): {back}"
                );
            }
        }
    }

    /// A camera whose images are not undistorted: the raw pixel, scaled.
    #[test]
    fn a_lens_that_stays_in_the_image_bends_the_projection() {
        let camera = calibration(LENS);
        let (view, _) = view(None);
        assert!(view.projection(None).is_none());
        let projection = view
            .or_lens(Some(camera))
            .projection(None)
            .expect("a camera");
        let point = Vector3::new(-0.3, 0.25, 1.0);
        let (x, y) = distort(&LENS, -0.3, 0.25);
        let raw = (517.3 * x + 318.6, 516.5 * y + 255.3);
        let pixel = projection.pixel(&point).expect("in view");
        let expected = Vector2::new((raw.0 + 0.5) * 0.4 - 0.5, (raw.1 + 0.5) * 0.4 - 0.5);
        assert!((pixel - expected).norm() < 1e-9, "{pixel} {expected}");
    }
}

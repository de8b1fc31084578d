//! Preprocessing from raw to network images: undistort, resize, crop; and the resulting intrinsics.

use super::resample::{Crop, Filter, Resampler};
use super::undistort::Undistorter;
use super::view::NetworkView;
use super::{ImageError, MAX_SIDE, RgbImage};
use crate::geometry::{Calibration, CalibrationError, Intrinsics};

/// Patch side of MASt3R's own encoder, in pixels.
const PATCH: usize = 16;

/// Options for the pinhole model and the crop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreprocessOptions {
    /// Move the principal point to the image centre; reduces the field of view.
    pub center_principal_point: bool,
    /// Use the reference implementation's formulas for the intrinsics, which lack the half-pixel
    /// term and are off by half a pixel when an odd number of rows or columns is cropped.
    pub parity_intrinsics: bool,
    /// Patch side of the network, in pixels.
    pub patch: usize,
}

impl Default for PreprocessOptions {
    fn default() -> Self {
        Self {
            center_principal_point: true,
            parity_intrinsics: false,
            patch: PATCH,
        }
    }
}

/// Sizes of each preprocessing step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    raw: (usize, usize),
    resized: (usize, usize),
    crop: Crop,
    filter: Filter,
}

impl Shape {
    fn new(raw: (usize, usize), long_side: usize, patch: usize) -> Result<Self, ImageError> {
        let fail = |reason| {
            Err(ImageError::Shape {
                raw,
                long_side,
                reason,
            })
        };
        if raw.0 == 0 || raw.1 == 0 {
            return fail("an image must have at least one pixel");
        }
        if raw.0 > MAX_SIDE || raw.1 > MAX_SIDE || long_side > MAX_SIDE {
            return fail("no side may be longer than 16384 pixels");
        }
        let longest = raw.0.max(raw.1);
        let resized = (
            round_half_even(raw.0 * long_side, longest),
            round_half_even(raw.1 * long_side, longest),
        );
        let patches = |side: usize| side / 2 * 2 / patch * patch;
        let width = patches(resized.0);
        let height = if resized.0 == resized.1 && patch == PATCH {
            // A square image becomes 4:3 in whole patches: MASt3R was not trained on square images.
            patches(width * 3 / 4)
        } else {
            patches(resized.1)
        };
        if width == 0 || height == 0 {
            return fail(
                "less than one network patch (16×16 pixels, 14×14 for DUNE) would remain; \
                 use a larger network size or images with a less extreme aspect ratio",
            );
        }
        Ok(Self {
            raw,
            resized,
            crop: Crop {
                left: resized.0 / 2 - width / 2,
                top: resized.1 / 2 - height / 2,
                width,
                height,
            },
            filter: if longest > long_side {
                Filter::Lanczos3
            } else {
                Filter::Bicubic
            },
        })
    }

    fn intrinsics(&self, k: Intrinsics, parity: bool) -> Intrinsics {
        let (raw, resized, crop) = (self.raw, self.resized, self.crop);
        let along =
            |focal: f64, centre: f64, raw: usize, resized: usize, kept: usize, cut: usize| {
                if parity {
                    let scale = raw as f64 / resized as f64;
                    let offset = (resized - kept) as f64 / 2.0;
                    (focal / scale, centre / scale - offset)
                } else {
                    // Integer coordinates are pixel centres, so pixel 0 begins at −0.5.
                    let scale = resized as f64 / raw as f64;
                    (focal * scale, (centre + 0.5) * scale - 0.5 - cut as f64)
                }
            };
        let (fx, cx) = along(k.fx, k.cx, raw.0, resized.0, crop.width, crop.left);
        let (fy, cy) = along(k.fy, k.cy, raw.1, resized.1, crop.height, crop.top);
        Intrinsics { fx, fy, cx, cy }
    }
}

/// `numerator / denominator` rounded to the nearest integer, ties to even.
fn round_half_even(numerator: usize, denominator: usize) -> usize {
    let (quotient, rest) = (numerator / denominator, numerator % denominator);
    match (2 * rest).cmp(&denominator) {
        std::cmp::Ordering::Less => quotient,
        std::cmp::Ordering::Equal => quotient + quotient % 2,
        std::cmp::Ordering::Greater => quotient + 1,
    }
}

/// Converts raw images of one size into network images; all tables and buffers are allocated once.
///
/// The long side is scaled to the network's size and the other side by the same ratio (ties round
/// to even); the result is centre-cropped to whole patches. With 16-pixel patches, a square image
/// becomes 4:3. Portrait orientation is kept. The filter is Lanczos when shrinking, otherwise
/// bicubic.
#[derive(Debug, Clone)]
pub struct Preprocessor {
    shape: Shape,
    undistorter: Option<Undistorter>,
    undistorted: RgbImage,
    resampler: Resampler,
    intrinsics: Option<Intrinsics>,
    calibration: Option<Calibration>,
}

impl Preprocessor {
    /// For raw images of `raw_width` × `raw_height` and a network long side `size` (512, 256, …),
    /// in pixels.
    ///
    /// With a calibration, images are undistorted, and `options.center_principal_point` also moves
    /// the principal point to the centre, using the optimal new camera matrix with alpha = 0 (every
    /// pixel of the result lies inside the raw image). If that changes nothing (no distortion,
    /// principal point within 1e-9 of its target), remapping is skipped.
    ///
    /// # Errors
    /// An image too small to leave one patch, a calibration for another size or with invalid
    /// values, or a lens that cannot be converted to a pinhole.
    pub fn new(
        raw_width: usize,
        raw_height: usize,
        size: usize,
        calibration: Option<&Calibration>,
        options: PreprocessOptions,
    ) -> Result<Self, ImageError> {
        let raw = (raw_width, raw_height);
        let shape = Shape::new(raw, size, options.patch.max(2))?;
        let mut undistorter = None;
        let mut intrinsics = None;
        if let Some(calibration) = calibration {
            calibration.validate()?;
            let expected = (calibration.width, calibration.height);
            if expected != raw {
                return Err(CalibrationError::Size {
                    expected,
                    found: raw,
                }
                .into());
            }
            let made = Undistorter::new(calibration, options.center_principal_point)?;
            intrinsics = Some(shape.intrinsics(made.camera(), options.parity_intrinsics));
            undistorter = (!made.is_identity()).then_some(made);
        }
        Ok(Self {
            shape,
            undistorted: match &undistorter {
                Some(_) => RgbImage::new(raw_width, raw_height),
                None => RgbImage::default(),
            },
            undistorter,
            resampler: Resampler::new(raw, shape.resized, shape.filter, shape.crop),
            intrinsics,
            calibration: calibration.copied(),
        })
    }

    /// Width and height of the raw images.
    pub fn input_size(&self) -> (usize, usize) {
        self.shape.raw
    }

    /// Width and height of the network images, multiples of the patch side.
    pub fn output_size(&self) -> (usize, usize) {
        self.resampler.output_size()
    }

    /// Intrinsics of the network images; `None` without a calibration.
    pub fn intrinsics(&self) -> Option<Intrinsics> {
        self.intrinsics
    }

    /// Which raw pixel each pixel of the network images shows.
    pub fn view(&self) -> NetworkView {
        let Shape {
            raw, resized, crop, ..
        } = self.shape;
        let pinhole = self.undistorter.as_ref().map(Undistorter::camera);
        NetworkView::new(raw, resized, crop, self.calibration, pinhole)
    }

    /// Whether images are remapped before resizing.
    pub fn undistorts(&self) -> bool {
        self.undistorter.is_some()
    }

    /// The resampler and, if needed, the undistorter, so that a device can copy their tables.
    #[cfg(feature = "cuda")]
    pub(crate) fn parts(&self) -> (&Resampler, Option<&Undistorter>) {
        (&self.resampler, self.undistorter.as_ref())
    }

    /// Writes the network image of `src` to `dst`, which is resized; allocates only if `dst` has to
    /// grow.
    ///
    /// # Errors
    /// [`ImageError::Size`] if `src` does not have the size given at construction.
    pub fn run(&mut self, src: &RgbImage, dst: &mut RgbImage) -> Result<(), ImageError> {
        match &self.undistorter {
            Some(undistorter) => {
                undistorter.run(src, &mut self.undistorted)?;
                self.resampler.run(&self.undistorted, dst)
            }
            None => self.resampler.run(src, dst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Distortion;
    use proptest::prelude::*;

    /// Raw size; resized; crop width, height, left, top (docs/algorithm.md, Preprocessing).
    const TABLE: [[usize; 8]; 11] = [
        [640, 480, 512, 384, 512, 384, 0, 0],
        [752, 480, 512, 327, 512, 320, 0, 3],
        [739, 458, 512, 317, 512, 304, 0, 6],
        [1280, 720, 512, 288, 512, 288, 0, 0],
        [1920, 1080, 512, 288, 512, 288, 0, 0],
        [640, 360, 512, 288, 512, 288, 0, 0],
        [848, 480, 512, 290, 512, 288, 0, 1],
        [480, 640, 384, 512, 384, 512, 0, 0],
        [512, 512, 512, 512, 512, 384, 0, 64],
        [100, 100, 512, 512, 512, 384, 0, 64],
        [512, 384, 512, 384, 512, 384, 0, 0],
    ];

    #[test]
    fn shapes_follow_the_table() {
        for [w1, h1, w, h, cw, ch, left, top] in TABLE {
            let shape = Shape::new((w1, h1), 512, PATCH).unwrap();
            assert_eq!(shape.resized, (w, h), "{w1}×{h1}");
            let crop = Crop {
                left,
                top,
                width: cw,
                height: ch,
            };
            assert_eq!(shape.crop, crop, "{w1}×{h1}");
            let lanczos = w1.max(h1) > 512;
            assert_eq!(shape.filter == Filter::Lanczos3, lanczos, "{w1}×{h1}");
        }
        // The same rule applies at 256; a square with an odd number of patches stays in whole
        // patches.
        let half = Shape::new((512, 384), 256, PATCH).unwrap();
        assert_eq!((half.resized, half.filter), ((256, 192), Filter::Lanczos3));
        assert_eq!(Shape::new((300, 300), 224, PATCH).unwrap().crop.height, 160);
    }

    #[test]
    fn patches_of_14_pixels_leave_squares_alone() {
        // 640×480 at 518: 388.5 rows round to the even 388, of which 27 patches from row 194 − 189
        // on are kept.
        let shape = Shape::new((640, 480), 518, 14).unwrap();
        assert_eq!((shape.crop.width, shape.crop.height), (518, 378));
        assert_eq!((shape.crop.left, shape.crop.top), (0, 5));
        let square = Shape::new((600, 600), 518, 14).unwrap();
        assert_eq!((square.crop.width, square.crop.height), (518, 518));
    }

    #[test]
    fn halves_round_to_the_even_neighbour() {
        // 1024 × 1: 512/1024 = 0.5 → 0; × 3: 1.5 → 2; × 5: 2.5 → 2.
        for (numerator, expected) in [(512, 0), (1536, 2), (2560, 2), (513, 1), (511, 0)] {
            assert_eq!(round_half_even(numerator, 1024), expected);
        }
    }

    #[test]
    fn sizes_that_leave_nothing_are_refused() {
        for (raw, size) in [
            ((0, 10), 512),
            ((10, 0), 512),
            ((640, 10), 512),
            ((10, 640), 512),
            ((640, 480), 0),
            ((640, 480), 15),
            ((20, 20), 16),
            ((20000, 20), 512),
        ] {
            let options = PreprocessOptions::default();
            let error = Preprocessor::new(raw.0, raw.1, size, None, options).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains(&format!("{}×{}", raw.0, raw.1)),
                "{raw:?}: {text}"
            );
        }
    }

    #[test]
    fn a_calibration_for_another_size_is_refused_with_both() {
        let calibration = Calibration {
            width: 640,
            height: 480,
            intrinsics: Intrinsics {
                fx: 500.0,
                fy: 500.0,
                cx: 320.0,
                cy: 240.0,
            },
            distortion: Distortion::None,
        };
        let options = PreprocessOptions::default();
        let text = Preprocessor::new(752, 480, 512, Some(&calibration), options)
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("640×480") && text.contains("752×480"),
            "{text}"
        );
    }

    #[test]
    fn the_reference_formulas_differ_by_the_half_pixels_they_lack() {
        // EuRoC's size: scale 752/512 across, 480/327 down; 7 rows cropped, 3 of them above (the
        // reference assumes 3.5).
        let k = Intrinsics {
            fx: 458.0,
            fy: 457.0,
            cx: 375.5,
            cy: 239.5,
        };
        let shape = Shape::new((752, 480), 512, PATCH).unwrap();
        let right = shape.intrinsics(k, false);
        let parity = shape.intrinsics(k, true);
        let (sx, sy) = (512.0 / 752.0, 327.0 / 480.0);
        // f64 rounding of values below 1000: a few 1e-13.
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-11, "{a} {b}");
        near(parity.fx, 458.0 * sx);
        near(parity.cx, 375.5 * sx);
        near(parity.cy, 239.5 * sy - 3.5);
        near(right.fy, 457.0 * sy);
        // The centre of the raw image maps to the centre of the resized one: (512 − 1)/2, (327 −
        // 1)/2.
        near(right.cx, 255.5);
        near(right.cy, 163.0 - 3.0);
    }

    #[test]
    fn an_undistorted_centred_camera_is_left_alone() {
        let calibration = Calibration {
            width: 512,
            height: 384,
            intrinsics: Intrinsics {
                fx: 379.5,
                fy: 379.5,
                cx: 255.5,
                cy: 191.5,
            },
            distortion: Distortion::PlumbBob([0.0; 5]),
        };
        for center_principal_point in [false, true] {
            let options = PreprocessOptions {
                center_principal_point,
                ..PreprocessOptions::default()
            };
            let mut p = Preprocessor::new(512, 384, 512, Some(&calibration), options).unwrap();
            assert!(!p.undistorts());
            assert_eq!(p.intrinsics(), Some(calibration.intrinsics));
            let mut src = RgbImage::new(512, 384);
            for (i, v) in src.data.iter_mut().enumerate() {
                *v = (i * 7 % 253) as u8;
            }
            let mut dst = RgbImage::default();
            p.run(&src, &mut dst).unwrap();
            assert_eq!(src, dst);
        }
    }

    #[test]
    fn re_centring_an_undistorted_camera_moves_the_principal_point_only_when_asked() {
        let calibration = Calibration {
            width: 540,
            height: 360,
            intrinsics: Intrinsics {
                fx: 495.57,
                fy: 495.48,
                cx: 269.5,
                cy: 169.19,
            },
            distortion: Distortion::None,
        };
        let make = |center_principal_point| {
            let options = PreprocessOptions {
                center_principal_point,
                ..PreprocessOptions::default()
            };
            Preprocessor::new(540, 360, 512, Some(&calibration), options).unwrap()
        };
        assert!(!make(false).undistorts());
        let centred = make(true);
        assert!(centred.undistorts());
        // 540×360 → 512×341 → 336 rows from row 2; the centre (359/2) maps to (341 − 1)/2 − 2.
        let k = centred.intrinsics().unwrap();
        assert!((k.cy - 168.0).abs() < 1e-9, "{k:?}");
        // The field of view shrinks by 179.5/169.19 because the upper edge is the nearer one.
        let expected = 495.57 * (179.5 / 169.19) * 512.0 / 540.0;
        assert!((k.fx - expected).abs() < 1e-9, "{k:?} {expected}");
    }

    proptest! {
        #[test]
        fn every_shape_is_whole_patches_inside_the_resized_image(
            w in 1usize..3000, h in 1usize..3000, size in 1usize..700, dune in any::<bool>()
        ) {
            let patch = if dune { 14 } else { PATCH };
            if let Ok(s) = Shape::new((w, h), size, patch) {
                prop_assert!(s.crop.width % patch == 0 && s.crop.height % patch == 0);
                prop_assert!(s.crop.width > 0 && s.crop.height > 0);
                prop_assert!(s.crop.left + s.crop.width <= s.resized.0);
                prop_assert!(s.crop.top + s.crop.height <= s.resized.1);
                prop_assert_eq!(s.resized.0.max(s.resized.1), size);
            }
        }

        #[test]
        fn a_ray_keeps_its_place(
            w in 100usize..2000, h in 100usize..2000,
            x in 0.0f64..1.0, y in 0.0f64..1.0
        ) {
            // The position of a point in the raw image, scaled and shifted by the crop, is where
            // the new pinhole projects its ray.
            let Ok(s) = Shape::new((w, h), 512, PATCH) else { return Ok(()) };
            let k = Intrinsics { fx: 400.0, fy: 410.0, cx: w as f64 * 0.45, cy: h as f64 * 0.55 };
            let (u, v) = (x * w as f64 - 0.5, y * h as f64 - 0.5);
            let seen = s.intrinsics(k, false).project(&k.ray(u, v));
            let across = x * s.resized.0 as f64 - 0.5 - s.crop.left as f64;
            let down = y * s.resized.1 as f64 - 0.5 - s.crop.top as f64;
            // Magnitudes below 1e4, a dozen operations: 1e-9 is 1e3 rounding errors.
            prop_assert!((seen.x - across).abs() < 1e-9 && (seen.y - down).abs() < 1e-9);
        }
    }
}

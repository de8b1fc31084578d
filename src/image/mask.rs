//! Masks: which pixels of a camera's images show the scene, and not the robot or people.

use super::encoding::RawImage;
use super::{ImageError, Preprocessor, RgbImage};

/// A pixel of the network is used if the camera's pixels that it is made of are, up to this part of 255: resampling
/// weighs a few of them by less than a tenth, and overshoots.
const USED: u8 = 230;

/// Converts masks of the camera's images to masks of the network's.
pub struct MaskReader {
    preprocessor: Option<Preprocessor>,
    /// Width and height of the network's images.
    size: (usize, usize),
    camera: RgbImage,
    network: RgbImage,
    /// The mask that stays.
    own: Vec<u8>,
    used: Vec<u8>,
}

impl MaskReader {
    /// A converter to network images of `size`; without a preprocessor, masks have that size.
    pub fn new(preprocessor: Option<Preprocessor>, size: (usize, usize)) -> Self {
        Self {
            preprocessor,
            size,
            camera: RgbImage::default(),
            network: RgbImage::default(),
            own: vec![1; size.0 * size.1],
            used: vec![1; size.0 * size.1],
        }
    }

    /// Sets the preprocessor of the camera's images.
    pub fn preprocess(&mut self, preprocessor: Option<Preprocessor>) {
        self.preprocessor = preprocessor;
    }

    /// Like [`MaskReader::read`], and hides these pixels under every later mask too.
    ///
    /// # Errors
    /// Like [`MaskReader::read`].
    pub fn keep(&mut self, mask: &RawImage<'_>) -> Result<&[u8], ImageError> {
        self.read(Some(mask))?;
        self.own.copy_from_slice(&self.used);
        Ok(&self.used)
    }

    /// A 1 for every pixel of the network's image that is used, else 0. In `mask`, which has the size of the camera's
    /// images, 0 (black) hides a pixel; what an undistorted image shows beside the camera's is hidden too. Without a
    /// mask, every pixel is used that the kept one does not hide.
    ///
    /// # Errors
    /// If the mask has another size than the camera's images, or its bytes do not match its encoding.
    pub fn read(&mut self, mask: Option<&RawImage<'_>>) -> Result<&[u8], ImageError> {
        let Some(mask) = mask else {
            self.used.copy_from_slice(&self.own);
            return Ok(&self.used);
        };
        mask.to_rgb(&mut self.camera)?;
        let (pixels, _) = self.camera.data.as_chunks_mut::<3>();
        for pixel in pixels {
            *pixel = match *pixel {
                [0, 0, 0] => [0; 3],
                _ => [255; 3],
            };
        }
        let resampled = match &mut self.preprocessor {
            Some(preprocessor) => {
                preprocessor.run(&self.camera, &mut self.network)?;
                &self.network
            }
            None => &self.camera,
        };
        resampled.expect_size(self.size)?;
        let (pixels, _) = resampled.data.as_chunks::<3>();
        for ((used, own), pixel) in self.used.iter_mut().zip(&self.own).zip(pixels) {
            *used = *own & u8::from(pixel[0] >= USED);
        }
        Ok(&self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Calibration, Distortion, Intrinsics};
    use crate::image::PreprocessOptions;

    const SIZE: (usize, usize) = (96, 72);

    fn preprocessor(calibration: Option<&Calibration>) -> Preprocessor {
        let options = PreprocessOptions::default();
        Preprocessor::new(SIZE.0, SIZE.1, 64, calibration, options).expect("a preprocessor")
    }

    /// A mask that hides the camera's lower third and a single pixel.
    fn mask() -> RgbImage {
        let mut mask = RgbImage::new(SIZE.0, SIZE.1);
        for (n, pixel) in mask.data.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let (u, v) = (n % SIZE.0, n / SIZE.0);
            // Any value but 0 is used, in whatever channel.
            let hidden = v >= 48 || (u, v) == (30, 20);
            *pixel = if hidden { [0; 3] } else { [0, 1, 0] };
        }
        mask
    }

    fn read(preprocessor: Option<Preprocessor>, mask: &RgbImage) -> Result<Vec<u8>, ImageError> {
        let size = preprocessor
            .as_ref()
            .map_or(SIZE, Preprocessor::output_size);
        let mut reader = MaskReader::new(preprocessor, size);
        Ok(reader.read(Some(&mask.into()))?.to_vec())
    }

    #[test]
    fn hidden_pixels_stay_hidden_in_the_network_s_image() {
        let preprocessor = preprocessor(None);
        assert_eq!(preprocessor.output_size(), (64, 48));
        let used = read(Some(preprocessor), &mask()).expect("a mask");
        assert_eq!(used.len(), 64 * 48);
        let at = |u: usize, v: usize| used[v * 64 + u];
        // Two thirds of the size: the lower third begins at row 32, and resampling reaches two rows beyond.
        for u in 0..64 {
            assert!((32..48).all(|v| at(u, v) == 0), "column {u}");
            assert!((0..30).all(|v| at(u, v) == 1 || (u.abs_diff(20) < 3 && v.abs_diff(13) < 3)));
        }
        // The single pixel takes those with it that it weighs in.
        assert_eq!(at(20, 13), 0);
        let all = RgbImage {
            data: vec![255; SIZE.0 * SIZE.1 * 3],
            ..mask()
        };
        assert!(
            read(Some(self::preprocessor(None)), &all)
                .expect("a mask")
                .iter()
                .all(|u| *u == 1)
        );
        let none = RgbImage::new(SIZE.0, SIZE.1);
        assert!(
            read(Some(self::preprocessor(None)), &none)
                .expect("a mask")
                .iter()
                .all(|u| *u == 0)
        );
        // Without a preprocessor, pixel by pixel.
        let same = read(None, &mask()).expect("a mask");
        assert_eq!(same.iter().filter(|u| **u == 0).count(), 24 * 96 + 1);
    }

    #[test]
    fn a_mask_that_is_kept_hides_under_every_other() {
        let mut reader = MaskReader::new(None, SIZE);
        let white = RgbImage {
            data: vec![255; SIZE.0 * SIZE.1 * 3],
            ..mask()
        };
        let own = reader.keep(&(&mask()).into()).expect("a mask").to_vec();
        assert!(own.contains(&0) && own.contains(&1));
        assert_eq!(reader.read(Some(&(&white).into())).expect("a mask"), own);
        assert_eq!(reader.read(None).expect("no mask"), own);
        // Another one hides more.
        let mut left = white;
        for row in left.data.chunks_exact_mut(3 * SIZE.0) {
            row[..3 * 10].fill(0);
        }
        let both = reader.read(Some(&(&left).into())).expect("a mask");
        let expected = |n: usize| own[n] & u8::from(n % SIZE.0 >= 10);
        assert!(
            both.iter()
                .enumerate()
                .all(|(n, used)| *used == expected(n))
        );
    }

    #[test]
    fn what_lies_beside_the_camera_s_image_is_hidden() {
        let calibration = Calibration {
            width: SIZE.0,
            height: SIZE.1,
            intrinsics: Intrinsics {
                fx: 80.0,
                fy: 80.0,
                cx: 40.0,
                cy: 35.0,
            },
            distortion: Distortion::None,
        };
        let all = RgbImage {
            data: vec![255; SIZE.0 * SIZE.1 * 3],
            ..mask()
        };
        let used = read(Some(preprocessor(Some(&calibration))), &all).expect("a mask");
        assert!(used.iter().filter(|u| **u == 1).count() > 32 * 48);
    }

    #[test]
    fn a_mask_of_another_size_is_refused() {
        let other = RgbImage::new(SIZE.0 / 2, SIZE.1);
        let refused = read(Some(preprocessor(None)), &other);
        assert!(
            matches!(refused, Err(ImageError::Size { .. })),
            "{refused:?}"
        );
        let refused = read(None, &other);
        assert!(
            matches!(refused, Err(ImageError::Size { .. })),
            "{refused:?}"
        );
    }
}

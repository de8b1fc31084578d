//! Converts camera images to network images.

use crate::image::encoding::RawImage;
use crate::image::{ImageError, Preprocessor, RgbImage};
use crate::inference::NetworkShape;

/// Holds the current image; does not allocate after the first image.
pub struct Camera {
    preprocessor: Option<Preprocessor>,
    size: (usize, usize),
    raw: RgbImage,
    /// The network's input.
    pub image: RgbImage,
}

impl Camera {
    /// A converter for a network of `shape`; without a preprocessor, camera images are passed to
    /// the network unchanged.
    pub fn new(preprocessor: Option<Preprocessor>, shape: &NetworkShape) -> Self {
        Self {
            preprocessor,
            size: (shape.width, shape.height),
            raw: RgbImage::default(),
            image: RgbImage::default(),
        }
    }

    /// Converts `raw` to the network image.
    pub fn take(&mut self, raw: &RawImage<'_>) -> Result<(), ImageError> {
        match &mut self.preprocessor {
            Some(preprocessor) => {
                raw.to_rgb(&mut self.raw)?;
                preprocessor.run(&self.raw, &mut self.image)?;
            }
            None => raw.to_rgb(&mut self.image)?,
        }
        self.image.expect_size(self.size)
    }
}

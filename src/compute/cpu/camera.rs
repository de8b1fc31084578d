//! From a camera's images to the network's.

use crate::image::encoding::RawImage;
use crate::image::{ImageError, Preprocessor, RgbImage};
use crate::inference::NetworkShape;

/// Holds the current image; nothing is allocated once images have come.
pub struct Camera {
    preprocessor: Option<Preprocessor>,
    /// Width and height of the network's images.
    size: (usize, usize),
    raw: RgbImage,
    /// The network's input.
    pub image: RgbImage,
}

impl Camera {
    /// For a network of `shape`; without a preprocessor the camera's images are the network's.
    pub fn new(preprocessor: Option<Preprocessor>, shape: &NetworkShape) -> Self {
        Self {
            preprocessor,
            size: (shape.width, shape.height),
            raw: RgbImage::default(),
            image: RgbImage::default(),
        }
    }

    /// Makes the network's image of the camera's.
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

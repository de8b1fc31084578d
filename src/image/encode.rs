//! Encodes RGB images in memory.

use super::{ImageError, RgbImage};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder};
use std::path::Path;

/// The image as WebP without loss, which takes less than PNG.
///
/// # Errors
/// [`ImageError::Bytes`] if the data does not match the size, [`ImageError::Content`] for an image too large for the
/// format.
pub fn lossless(image: &RgbImage) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    encode(image, WebPEncoder::new_lossless(&mut bytes))?;
    Ok(bytes)
}

/// The image as JPEG of a quality from 1 to 100, with colours of full resolution.
///
/// # Errors
/// As [`lossless`].
pub fn jpeg(image: &RgbImage, quality: u8) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    encode(image, JpegEncoder::new_with_quality(&mut bytes, quality))?;
    Ok(bytes)
}

fn encode(image: &RgbImage, encoder: impl ImageEncoder) -> Result<(), ImageError> {
    image.expect_size((image.width, image.height))?;
    let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
    let (width, height) = (side(image.width), side(image.height));
    let written = encoder.write_image(&image.data, width, height, ExtendedColorType::Rgb8);
    written.map_err(|error| ImageError::Content {
        origin: Path::new("image").to_owned(),
        expected: "an image that can be encoded".to_owned(),
        found: error.to_string(),
    })
}

//! Decodes image files to RGB.

use super::{ImageError, RgbImage};
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;
use std::path::Path;

/// Maximum width and height of an image.
pub const MAX_SIDE: usize = 16384;
/// Maximum memory that a decoder may allocate.
const MAX_BYTES: u64 = 1 << 30;

const FORMATS: &str = "a PNG, JPEG, BMP, TIFF, WebP or PNM image";

/// Reads an image file of any supported format, recognised by content rather than by name.
///
/// Grey is expanded to RGB, alpha is dropped, 16-bit channels are rounded to 8 bits, and an EXIF
/// orientation is applied.
///
/// # Errors
/// Every error names the file: missing, empty, not an image, truncated, damaged, or larger than
/// [`MAX_SIDE`].
pub fn decode(path: &Path) -> Result<RgbImage, ImageError> {
    decode_bytes(&read(path)?, path)
}

/// Like [`decode`], for bytes in memory; `origin` is used in messages.
///
/// # Errors
/// See [`decode`].
pub fn decode_bytes(bytes: &[u8], origin: &Path) -> Result<RgbImage, ImageError> {
    let (mut decoder, format) = open(bytes, origin)?;
    if format == ImageFormat::Jpeg && !jpeg_is_whole(bytes) {
        return Err(content(
            origin,
            "a complete JPEG image",
            format!(
                "one truncated after {} bytes, without an end marker",
                bytes.len()
            ),
        ));
    }
    let fail = |e: image::ImageError| content(origin, "a complete, undamaged image", e.to_string());
    let orientation = decoder.orientation().map_err(fail)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(fail)?;
    image.apply_orientation(orientation);
    let rgb = without_alpha(image);
    if rgb.width() == 0 || rgb.height() == 0 {
        let found = format!("one of {}×{}", rgb.width(), rgb.height());
        return Err(content(origin, "an image of at least one pixel", found));
    }
    Ok(RgbImage {
        width: rgb.width() as usize,
        height: rgb.height() as usize,
        data: rgb.into_raw(),
    })
}

/// Width and height of an image file as returned by [`decode`], read from the header alone.
///
/// # Errors
/// See [`decode`], limited to errors in the header.
pub fn dimensions(path: &Path) -> Result<(usize, usize), ImageError> {
    dimensions_of_bytes(&read(path)?, path)
}

/// Like [`dimensions`], for bytes in memory; `origin` is used in messages.
///
/// # Errors
/// See [`dimensions`].
pub fn dimensions_of_bytes(bytes: &[u8], origin: &Path) -> Result<(usize, usize), ImageError> {
    let (mut decoder, _) = open(bytes, origin)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    use image::metadata::Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    Ok(match decoder.orientation() {
        Ok(Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH) => (height, width),
        _ => (width, height),
    })
}

/// The image as RGB. Alpha is dropped in place; other formats are copied.
fn without_alpha(image: DynamicImage) -> image::RgbImage {
    let DynamicImage::ImageRgba8(rgba) = image else {
        return image.into_rgb8();
    };
    let (width, height) = rgba.dimensions();
    let mut data = rgba.into_raw();
    let pixels = data.len() / 4;
    for k in 1..pixels {
        data.copy_within(4 * k..4 * k + 3, 3 * k);
    }
    data.truncate(3 * pixels);
    // The buffer has three bytes for each pixel, so it always fits.
    image::RgbImage::from_raw(width, height, data).unwrap_or_default()
}

fn content(origin: &Path, expected: &str, found: String) -> ImageError {
    ImageError::Content {
        origin: origin.to_owned(),
        expected: expected.to_owned(),
        found,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    let io = |cause| ImageError::Io {
        path: path.to_owned(),
        cause,
    };
    let size = std::fs::metadata(path).map_err(io)?.len();
    if size > MAX_BYTES {
        let found = format!("a file of {size} bytes");
        return Err(content(path, "an image of at most 1 GiB", found));
    }
    std::fs::read(path).map_err(io)
}

fn open<'a>(
    bytes: &'a [u8],
    origin: &Path,
) -> Result<(impl ImageDecoder + 'a, ImageFormat), ImageError> {
    if bytes.is_empty() {
        return Err(content(origin, FORMATS, "an empty file".to_owned()));
    }
    let Ok(format) = image::guess_format(bytes) else {
        let head: String = String::from_utf8_lossy(&bytes[..bytes.len().min(16)])
            .chars()
            .map(|c| if c.is_control() { '·' } else { c })
            .collect();
        let found = format!("{} bytes that begin with {head:?}", bytes.len());
        return Err(content(origin, FORMATS, found));
    };
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE as u32);
    limits.max_image_height = Some(MAX_SIDE as u32);
    limits.max_alloc = Some(MAX_BYTES);
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|e| match e {
        image::ImageError::Limits(_) => content(
            origin,
            "an image of at most 16384×16384 pixels and 1 GiB",
            e.to_string(),
        ),
        image::ImageError::Unsupported(_) => content(origin, FORMATS, e.to_string()),
        _ => content(origin, "a complete, undamaged image", e.to_string()),
    })?;
    Ok((decoder, format))
}

/// Whether the end marker follows the scans. The decoder would fill missing data with grey instead
/// of failing, and tracking would treat the grey as scene content.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(&byte) = bytes.get(at) {
        if byte != 0xFF {
            // Entropy-coded data, or padding between segments.
            at += 1;
            continue;
        }
        match bytes.get(at + 1) {
            None => return false,
            // A fill byte precedes the marker.
            Some(0xFF) => at += 1,
            // A stuffed zero, a restart marker, or a marker without a length field.
            Some(0x00 | 0x01 | 0xD0..=0xD7) => at += 2,
            Some(0xD9) => return true,
            Some(_) => {
                let (Some(&high), Some(&low)) = (bytes.get(at + 2), bytes.get(at + 3)) else {
                    return false;
                };
                at += 2 + usize::from(u16::from_be_bytes([high, low]));
            }
        }
    }
    false
}

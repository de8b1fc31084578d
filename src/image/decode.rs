//! Image files to RGB.

use super::{ImageError, RgbImage};
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;
use std::path::Path;

/// No image may be wider or higher than this.
pub const MAX_SIDE: usize = 16384;
/// A decoder may take no more memory than this.
const MAX_BYTES: u64 = 1 << 30;

const FORMATS: &str = "a PNG, JPEG, BMP, TIFF, WebP or PNM image";

/// Reads an image file of any supported format, recognised by its content and not by its name.
///
/// Grey becomes RGB, alpha is dropped, 16 bits a channel become 8 (rounded), and an EXIF orientation
/// is applied.
///
/// # Errors
/// Each names the file: missing, empty, no image, truncated, damaged, or larger than [`MAX_SIDE`].
pub fn decode(path: &Path) -> Result<RgbImage, ImageError> {
    decode_bytes(&read(path)?, path)
}

/// [`decode`] for bytes in memory; `origin` is for messages.
///
/// # Errors
/// As [`decode`].
pub fn decode_bytes(bytes: &[u8], origin: &Path) -> Result<RgbImage, ImageError> {
    let (mut decoder, format) = open(bytes, origin)?;
    if format == ImageFormat::Jpeg && !jpeg_is_whole(bytes) {
        return Err(content(
            origin,
            "a whole JPEG image",
            format!(
                "one that breaks off after {} bytes, without an end marker",
                bytes.len()
            ),
        ));
    }
    let fail = |e: image::ImageError| content(origin, "a whole, undamaged image", e.to_string());
    let orientation = decoder.orientation().map_err(fail)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(fail)?;
    image.apply_orientation(orientation);
    let rgb = image.into_rgb8();
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

/// Width and height of an image file as [`decode`] would return it, from its header alone.
///
/// # Errors
/// As [`decode`], as far as the header tells.
pub fn dimensions(path: &Path) -> Result<(usize, usize), ImageError> {
    let bytes = read(path)?;
    let (mut decoder, _) = open(&bytes, path)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    use image::metadata::Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    Ok(match decoder.orientation() {
        Ok(Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH) => (height, width),
        _ => (width, height),
    })
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
        _ => content(origin, "a whole, undamaged image", e.to_string()),
    })?;
    Ok((decoder, format))
}

/// Whether the end marker follows the scans. The decoder fills what is missing with grey instead of
/// failing, which would be tracked as if it had been seen.
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
            // A fill byte; the marker is still to come.
            Some(0xFF) => at += 1,
            // A stuffed zero, a restart, a marker without a length.
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

//! Image messages to images: the claims of a message are checked before they are used.

use crate::image::encoding::{Encoding, RawImage};
use crate::image::{self, MAX_SIDE, RgbImage};
use crate::wire::Payload;
use crate::wire::cdr::CdrError;
use crate::wire::messages::sensor::{CompressedImage, Image};
use crate::wire::messages::{Header, Message};
use std::path::Path;

/// Why a message holds no image.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum ImageMessageError {
    /// The message itself is broken.
    #[error(transparent)]
    Cdr(#[from] CdrError),
    /// An encoding that is not supported.
    #[error(
        "the encoding {0:?} is not supported; expected rgb8, bgr8, rgba8, bgra8, mono8, mono16, yuv422, \
         yuv422_yuy2, nv12 or bayer_{{rggb,grbg,gbrg,bggr}}8"
    )]
    Encoding(String),
    /// No pixels, or more than any camera has.
    #[error("an image of {width}×{height} pixels, expected 1×1 to {MAX_SIDE}×{MAX_SIDE}")]
    Size { width: u32, height: u32 },
    /// A compressed image of too many pixels.
    #[error("a compressed image of {width}×{height} pixels, expected at most {MAX_PIXELS} pixels")]
    Pixels { width: usize, height: usize },
    /// Data that does not fit the message's description of it.
    #[error(transparent)]
    Data(#[from] image::ImageError),
}

/// The origin of a compressed image, for messages.
const ORIGIN: &str = "a compressed image";

/// The image in a `sensor_msgs/Image`; its pixels stay where they are.
pub fn raw(payload: &Payload) -> Result<(Header, RawImage<'_>), ImageMessageError> {
    let message = Image::decode(payload)?;
    let unknown = || ImageMessageError::Encoding(message.encoding.clone());
    let encoding = Encoding::from_name(&message.encoding, message.is_bigendian != 0);
    let encoding = encoding.ok_or_else(unknown)?;
    let (width, height) = (message.width as usize, message.height as usize);
    let sizes = 1..=MAX_SIDE;
    if !sizes.contains(&width) || !sizes.contains(&height) {
        return Err(ImageMessageError::Size {
            width: message.width,
            height: message.height,
        });
    }
    let stride = message.step as usize;
    let expected = encoding.bytes(width, height, stride)?;
    let found = message.data.len();
    if found < expected {
        return Err(image::ImageError::Raw {
            encoding,
            size: (width, height),
            what: "bytes in all, at least",
            expected,
            found,
        }
        .into());
    }
    let data: &[u8] = message.data;
    let raw = RawImage {
        encoding,
        width,
        height,
        stride,
        data,
    };
    Ok((message.header, raw))
}

/// Header and file of a `sensor_msgs/CompressedImage`, not yet decoded.
pub fn compressed(payload: &Payload) -> Result<(Header, &[u8]), ImageMessageError> {
    let message = CompressedImage::decode(payload)?;
    let data: &[u8] = message.data;
    Ok((message.header, data))
}

/// Largest compressed image in pixels, 8K video with a margin: decoding takes up to 11 bytes a pixel for a moment, and
/// any peer may send one.
pub const MAX_PIXELS: usize = 7680 * 4320 + (1 << 20);

/// Columns and rows of a compressed image, from its header alone.
///
/// # Errors
/// A file that is not an image, or one of more than [`MAX_PIXELS`].
pub fn size(file: &[u8]) -> Result<(usize, usize), ImageMessageError> {
    let (width, height) = image::dimensions_of_bytes(file, Path::new(ORIGIN))?;
    match width.saturating_mul(height) <= MAX_PIXELS {
        true => Ok((width, height)),
        false => Err(ImageMessageError::Pixels { width, height }),
    }
}

/// Decodes the file of a compressed image whose [`size`] is allowed.
///
/// # Errors
/// See [`size`]; a damaged file.
pub fn unpack(file: &[u8]) -> Result<RgbImage, ImageMessageError> {
    size(file)?;
    Ok(image::decode_bytes(file, Path::new(ORIGIN))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Stamp;
    use serde_bytes::Bytes;

    fn message(encoding: &str, width: u32, height: u32, step: u32, data: &[u8]) -> Payload {
        let image = Image {
            header: Header::new(Stamp { nanos: 5 }, "camera"),
            height,
            width,
            encoding: encoding.to_owned(),
            is_bigendian: 0,
            step,
            data: Bytes::new(data),
        };
        image.encode().unwrap().into()
    }

    #[test]
    fn a_good_image_is_taken_in_place() {
        let data: Vec<u8> = (0..24).collect();
        let payload = message("bgr8", 2, 3, 8, &data);
        let (header, image) = raw(&payload).unwrap();
        assert_eq!(
            (header.frame_id.as_str(), header.stamp.nanosec),
            ("camera", 5)
        );
        assert_eq!((image.width, image.height, image.stride), (2, 3, 8));
        assert_eq!(image.data, &data[..]);
        let whole = payload.data.as_ptr_range();
        assert!(
            whole.contains(&image.data.as_ptr()),
            "the pixels were copied"
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_sides() {
        for (payload, part) in [
            (message("rgb8", 4, 4, 12, &[0; 47]), "48, found 47"),
            (message("rgb8", 4, 4, 11, &[0; 48]), "12, found 11"),
            (message("32FC1", 4, 4, 16, &[0; 64]), "32FC1"),
            (message("rgb8", 0, 4, 0, &[]), "0×4"),
            (
                message("mono8", u32::MAX, u32::MAX, u32::MAX, &[0; 64]),
                "expected 1×1",
            ),
            (message("nv12", 3, 2, 3, &[0; 64]), "even"),
        ] {
            let error = raw(&payload).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn cut_off_and_random_messages_are_errors() {
        let whole = message("rgb8", 4, 4, 12, &[7; 48]).data;
        for end in 0..whole.len() {
            let cut = Payload::from(whole.slice(..end));
            assert!(raw(&cut).is_err(), "{end} bytes");
        }
        for seed in 0..200u8 {
            let noise: Vec<u8> = (0..97u8)
                .map(|k| k.wrapping_mul(seed).wrapping_add(seed >> 3) ^ 0xA5)
                .collect();
            let payload = Payload {
                data: noise.into(),
                big_endian: seed % 2 == 0,
            };
            assert!(raw(&payload).is_err());
            let _ = compressed(&payload);
        }
    }

    /// A PNG header that promises `width` × `height` pixels, and nothing else.
    fn png_header(width: u32, height: u32) -> Vec<u8> {
        let mut header = b"IHDR".to_vec();
        header.extend(width.to_be_bytes());
        header.extend(height.to_be_bytes());
        header.extend([8, 2, 0, 0, 0]);
        let mut crc = flate_crc(&header).to_be_bytes().to_vec();
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
        file.append(&mut header);
        file.append(&mut crc);
        // The reader looks for the first chunk of pixels.
        file.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
        file
    }

    /// CRC-32 as in PNG.
    fn flate_crc(bytes: &[u8]) -> u32 {
        let step = |crc: u32, byte: &u8| {
            (0..8).fold(crc ^ u32::from(*byte), |c, _| {
                (c >> 1) ^ (0xEDB8_8320 & (c & 1).wrapping_neg())
            })
        };
        !bytes.iter().fold(u32::MAX, step)
    }

    #[test]
    fn the_size_is_read_and_limited_before_any_pixel_is() {
        assert_eq!(size(&png_header(640, 480)).unwrap(), (640, 480));
        for (width, height) in [(16384, 16384), (16384, 2100)] {
            let error = unpack(&png_header(width, height)).unwrap_err().to_string();
            let words = format!("{width}×{height} pixels, expected at most");
            assert!(error.contains(&words), "{error}");
        }
        assert!(size(&png_header(20000, 10)).is_err());
    }

    #[test]
    fn a_file_that_is_no_image_is_an_error() {
        assert!(unpack(b"not an image").is_err());
        assert!(unpack(&[]).is_err());
    }
}

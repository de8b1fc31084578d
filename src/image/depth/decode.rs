//! Decodes depth images: `16UC1` and `32FC1`, 16-bit PNG files, and the messages of `compressed_depth_image_transport`.
//! The size that an image promises is checked before anything is decoded.

use super::rvl;
use super::{DepthError, DepthImage};
use image::codecs::png::PngDecoder;
use image::{ColorType, ImageDecoder, Limits};
use std::io::Cursor;

/// Maximum number of pixels of a depth image: several times that of any sensor; any peer may send one.
pub const MAX_PIXELS: usize = 1 << 24;
/// Steps per metre of `16UC1`, by REP 118: millimetres.
const MILLIMETRES: f64 = 1000.0;
/// The largest 16-bit value means "not measured", as in 7-Scenes.
const INVALID: u16 = u16::MAX;
/// Bytes before the PNG or RVL data of a compressedDepth message: format, and two parameters of the quantisation.
const HEADER: usize = 12;
/// Bytes before the RVL data: columns and rows.
const RVL_HEADER: usize = 8;

/// Number format of a raw depth image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DepthEncoding {
    /// 16-bit integers, millimetres.
    Millimetres {
        /// Whether the high byte comes first.
        big_endian: bool,
    },
    /// 32-bit floats, metres.
    Metres {
        /// Whether the high byte comes first.
        big_endian: bool,
    },
}

impl DepthEncoding {
    /// The encoding with this name in ROS 2's `sensor_msgs/image_encodings.hpp`: `16UC1` (or `mono16`) or `32FC1`.
    pub fn from_name(name: &str, big_endian: bool) -> Option<Self> {
        match name {
            "16UC1" | "mono16" => Some(Self::Millimetres { big_endian }),
            "32FC1" => Some(Self::Metres { big_endian }),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Millimetres { .. } => 2,
            Self::Metres { .. } => 4,
        }
    }
}

/// A depth image as a driver sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawDepth<'a> {
    /// How a pixel is stored.
    pub encoding: DepthEncoding,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes from the beginning of a row to that of the next.
    pub stride: usize,
    /// Top row first.
    pub data: &'a [u8],
}

/// Decodes depth images; keeps its buffers.
#[derive(Debug, Clone, Default)]
pub struct DepthDecoder {
    bytes: Vec<u8>,
    values: Vec<u16>,
}

impl DepthDecoder {
    /// Decodes a raw image. Allocates only if `image` has to grow.
    ///
    /// # Errors
    /// A size outside 1 to `MAX_PIXELS`, or data that does not fit it.
    pub fn raw(&self, raw: &RawDepth<'_>, image: &mut DepthImage) -> Result<(), DepthError> {
        let size = checked(raw.width, raw.height)?;
        let row = raw.width * raw.encoding.bytes();
        let fail = |what, expected, found| DepthError::Bytes {
            size,
            what,
            expected,
            found,
        };
        if raw.stride < row {
            return Err(fail("a row stride in bytes of at least", row, raw.stride));
        }
        let whole = (raw.height - 1).checked_mul(raw.stride);
        let expected = whole.and_then(|w| w.checked_add(row)).unwrap_or(usize::MAX);
        if raw.data.len() < expected {
            return Err(fail("bytes in all, at least", expected, raw.data.len()));
        }
        image.reshape(raw.width, raw.height);
        let rows = raw.data.chunks(raw.stride);
        for (out, line) in image.metres.chunks_exact_mut(raw.width).zip(rows) {
            match raw.encoding {
                DepthEncoding::Millimetres { big_endian } => {
                    for (out, bytes) in out.iter_mut().zip(line.as_chunks::<2>().0) {
                        let value = match big_endian {
                            true => u16::from_be_bytes(*bytes),
                            false => u16::from_le_bytes(*bytes),
                        };
                        *out = metres(value, MILLIMETRES);
                    }
                }
                DepthEncoding::Metres { big_endian } => {
                    for (out, bytes) in out.iter_mut().zip(line.as_chunks::<4>().0) {
                        let value = match big_endian {
                            true => f32::from_be_bytes(*bytes),
                            false => f32::from_le_bytes(*bytes),
                        };
                        *out = measured(value);
                    }
                }
            }
        }
        Ok(())
    }

    /// Decodes a grey 16-bit PNG file of `units` steps per metre; 0 and 65535 mean "not measured".
    ///
    /// # Errors
    /// Another file, a damaged one, or a size outside 1 to `MAX_PIXELS`.
    pub fn png(
        &mut self,
        file: &[u8],
        units: f64,
        image: &mut DepthImage,
    ) -> Result<(), DepthError> {
        let (width, height) = self.unpack_png(file)?;
        image.reshape(width, height);
        for (out, value) in image.metres.iter_mut().zip(&self.values) {
            *out = metres(*value, units);
        }
        Ok(())
    }

    /// Decodes `data` of a `sensor_msgs/CompressedImage` of `compressed_depth_image_transport`, whose `format` is for
    /// example `16UC1; compressedDepth` or `32FC1; compressedDepth png`: a header and a PNG or RVL image of millimetres
    /// (`16UC1`) or of quantised inverse depths `q` (`32FC1`), where the depth is `a / (q - b)` with `a` and `b` of the
    /// header.
    ///
    /// # Errors
    /// Another format, damaged data, or a size outside 1 to `MAX_PIXELS`.
    pub fn compressed(
        &mut self,
        format: &str,
        data: &[u8],
        image: &mut DepthImage,
    ) -> Result<(), DepthError> {
        let content = |expected, found| DepthError::Content { expected, found };
        let (encoding, transport) = format.split_once(';').unwrap_or((format, ""));
        let transport = transport.trim();
        let quantised = match (encoding.trim(), transport.starts_with("compressedDepth")) {
            ("16UC1", true) => false,
            ("32FC1", true) => true,
            _ => {
                let expected = "the format 16UC1; compressedDepth or 32FC1; compressedDepth";
                return Err(content(expected, format!("{format:?}")));
            }
        };
        let short = || content("a header of 12 bytes", format!("{} bytes", data.len()));
        let (header, packed) = data.split_at_checked(HEADER).ok_or_else(short)?;
        let parameter = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|b| b.try_into().ok());
            f32::from_le_bytes(bytes.unwrap_or_default())
        };
        let (width, height) = match transport.ends_with("rvl") {
            true => self.unpack_rvl(packed)?,
            false => self.unpack_png(packed)?,
        };
        image.reshape(width, height);
        let (a, b) = (parameter(4), parameter(8));
        if quantised && !(a.is_finite() && a > 0.0 && b.is_finite()) {
            let expected = "a positive and a finite parameter of the quantisation";
            return Err(content(expected, format!("{a} and {b}")));
        }
        for (out, value) in image.metres.iter_mut().zip(&self.values) {
            *out = match (quantised, *value) {
                (true, 0) => 0.0,
                (true, value) => measured(a / (f32::from(value) - b)),
                (false, value) => metres(value, MILLIMETRES),
            };
        }
        Ok(())
    }

    /// Decodes a grey 16-bit PNG to `self.values`; returns its columns and rows.
    fn unpack_png(&mut self, file: &[u8]) -> Result<(usize, usize), DepthError> {
        let fail = |error: image::ImageError| DepthError::Content {
            expected: "a complete, undamaged PNG",
            found: error.to_string(),
        };
        let mut limits = Limits::default();
        limits.max_alloc = Some(4 * MAX_PIXELS as u64);
        let decoder = PngDecoder::with_limits(Cursor::new(file), limits).map_err(fail)?;
        let (width, height) = decoder.dimensions();
        let size = checked(width as usize, height as usize)?;
        if decoder.color_type() != ColorType::L16 {
            return Err(DepthError::Content {
                expected: "a grey PNG of 16 bits",
                found: format!("{:?}", decoder.color_type()),
            });
        }
        self.bytes.resize(2 * size.0 * size.1, 0);
        decoder.read_image(&mut self.bytes).map_err(fail)?;
        self.values.clear();
        let pixels = self.bytes.as_chunks::<2>().0.iter();
        self.values.extend(pixels.map(|b| u16::from_ne_bytes(*b)));
        Ok(size)
    }

    /// Decodes RVL data to `self.values`; returns its columns and rows.
    fn unpack_rvl(&mut self, data: &[u8]) -> Result<(usize, usize), DepthError> {
        let fail = |found: String| DepthError::Content {
            expected: "complete, undamaged RVL data",
            found,
        };
        let short = || fail(format!("{} bytes", data.len()));
        let (header, packed) = data.split_at_checked(RVL_HEADER).ok_or_else(short)?;
        let side = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|b| b.try_into().ok());
            u32::from_le_bytes(bytes.unwrap_or_default()) as usize
        };
        let size = checked(side(0), side(4))?;
        self.values.resize(size.0 * size.1, 0);
        match rvl::decompress(packed, &mut self.values) {
            true => Ok(size),
            false => Err(fail(format!(
                "{} bytes for {}×{} pixels",
                packed.len(),
                size.0,
                size.1
            ))),
        }
    }
}

fn checked(width: usize, height: usize) -> Result<(usize, usize), DepthError> {
    let size = (width, height);
    match width.saturating_mul(height) {
        1..=MAX_PIXELS => Ok(size),
        _ => Err(DepthError::Pixels { size }),
    }
}

/// The depth of a 16-bit value of `units` steps per metre.
fn metres(value: u16, units: f64) -> f32 {
    match value {
        INVALID => 0.0,
        value => (f64::from(value) / units) as f32,
    }
}

/// Drivers send NaN, infinities or zero where nothing was measured.
fn measured(depth: f32) -> f32 {
    match depth.is_finite() && depth > 0.0 {
        true => depth,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ImageBuffer, Luma};

    fn png(width: u32, values: &[u16]) -> Vec<u8> {
        let height = values.len() as u32 / width;
        let made = ImageBuffer::<Luma<u16>, _>::from_raw(width, height, values.to_vec());
        let mut file = Cursor::new(Vec::new());
        let written = made
            .expect("a size")
            .write_to(&mut file, image::ImageFormat::Png);
        written.expect("in memory");
        file.into_inner()
    }

    fn message(a: f32, b: f32, packed: &[u8]) -> Vec<u8> {
        let mut data = vec![0; 4];
        data.extend(a.to_le_bytes());
        data.extend(b.to_le_bytes());
        data.extend(packed);
        data
    }

    #[test]
    fn raw_images_are_read_in_either_byte_order_and_stride() {
        let mut image = DepthImage::default();
        let mut read = |encoding, stride, data: &[u8]| {
            let raw = RawDepth {
                encoding,
                width: 2,
                height: 2,
                stride,
                data,
            };
            DepthDecoder::default()
                .raw(&raw, &mut image)
                .expect("a depth image");
            assert_eq!((image.width, image.height), (2, 2));
            image.metres.clone()
        };
        let little = DepthEncoding::Millimetres { big_endian: false };
        let data = [0xE8, 3, 0, 0, 7, 7, 0xFF, 0xFF, 1, 0];
        assert_eq!(read(little, 6, &data), [1.0, 0.0, 0.0, 0.001]);
        let big = DepthEncoding::Millimetres { big_endian: true };
        let data = [3, 0xE8, 0, 0, 0xFF, 0xFF, 0, 1];
        assert_eq!(read(big, 4, &data), [1.0, 0.0, 0.0, 0.001]);
        let values = [1.5, f32::NAN, f32::INFINITY, -2.0];
        let data: Vec<u8> = values.iter().flat_map(|v: &f32| v.to_le_bytes()).collect();
        let little = DepthEncoding::Metres { big_endian: false };
        assert_eq!(read(little, 8, &data), [1.5, 0.0, 0.0, 0.0]);
        let data: Vec<u8> = values.iter().flat_map(|v: &f32| v.to_be_bytes()).collect();
        let big = DepthEncoding::Metres { big_endian: true };
        assert_eq!(read(big, 8, &data), [1.5, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn raw_images_that_do_not_fit_are_refused() {
        let refused = |width, height, stride, bytes: usize| {
            let raw = RawDepth {
                encoding: DepthEncoding::Millimetres { big_endian: false },
                width,
                height,
                stride,
                data: &vec![0; bytes],
            };
            let made = DepthDecoder::default().raw(&raw, &mut DepthImage::default());
            made.expect_err("it does not fit").to_string()
        };
        assert!(refused(4, 2, 7, 99).contains("at least 8, found 7"));
        assert!(refused(4, 2, 8, 15).contains("at least 16, found 15"));
        for (width, height) in [(0, 4), (4, 0), (1 << 20, 1 << 20), (usize::MAX, 2)] {
            let text = refused(width, height, 1 << 30, 4);
            assert!(text.contains(&format!("{width}×{height}")), "{text}");
        }
        assert!(refused(1, 2, usize::MAX, 4).contains("bytes in all"));
    }

    #[test]
    fn png_files_are_read_in_their_units() {
        let mut image = DepthImage::default();
        let file = png(3, &[0, 5000, 65535, 1, 2500, 40000]);
        let mut decoder = DepthDecoder::default();
        decoder
            .png(&file, 5000.0, &mut image)
            .expect("a depth image");
        assert_eq!((image.width, image.height), (3, 2));
        assert_eq!(image.metres, [0.0, 1.0, 0.0, 0.0002, 0.5, 8.0]);
        for end in [0, 10, 40, file.len() - 20] {
            let cut = decoder.png(&file[..end], 5000.0, &mut image);
            assert!(
                matches!(cut, Err(DepthError::Content { .. })),
                "{end}: {cut:?}"
            );
        }
        let mut colour = Cursor::new(Vec::new());
        let rgb = image::RgbImage::new(3, 2);
        rgb.write_to(&mut colour, image::ImageFormat::Png)
            .expect("in memory");
        let refused = decoder.png(&colour.into_inner(), 1000.0, &mut image);
        let text = refused.expect_err("no depth").to_string();
        assert!(text.contains("16 bits") && text.contains("Rgb8"), "{text}");
    }

    #[test]
    fn a_png_that_promises_too_many_pixels_is_refused_before_it_is_decoded() {
        let mut file = png(4, &[7; 16]);
        // Columns and rows in the header chunk, whose checksum is then wrong; either is a refusal.
        file[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
        let mut decoder = DepthDecoder::default();
        let refused = decoder.png(&file, 1000.0, &mut DepthImage::default());
        assert!(refused.is_err());
        assert_eq!(decoder.bytes.capacity(), 0);
    }

    #[test]
    fn compressed_depth_is_millimetres_or_quantised_inverse_depth() {
        let mut image = DepthImage::default();
        let mut decoder = DepthDecoder::default();
        let plain = message(0.0, 0.0, &png(2, &[1500, 0, 65535, 250]));
        for format in ["16UC1; compressedDepth", "16UC1; compressedDepth png"] {
            decoder
                .compressed(format, &plain, &mut image)
                .expect("a depth image");
            assert_eq!(image.metres, [1.5, 0.0, 0.0, 0.25]);
        }
        // The transport's own: depth quantisation 100, maximum depth 10 m.
        let a = 100.0 * (100.0 + 1.0);
        let b = 1.0 - a / 10.0;
        let depths = [0.7f32, 2.0, 9.9];
        let mut codes: Vec<u16> = depths.iter().map(|d| (a / d + b) as u16).collect();
        codes.push(0);
        let inverse = message(a, b, &png(2, &codes));
        let format = "32FC1; compressedDepth";
        decoder
            .compressed(format, &inverse, &mut image)
            .expect("a depth image");
        for (found, expected) in image.metres.iter().zip(depths) {
            // One step of the code, in depth: z² / a.
            assert!((found - expected).abs() <= expected * expected / a * 1.01);
        }
        assert_eq!(image.metres[3], 0.0);
        let mut rvl = message(0.0, 0.0, &[2, 0, 0, 0, 2, 0, 0, 0]);
        rvl.extend(0x22A1_4000u32.to_le_bytes());
        let format = "16UC1; compressedDepth rvl";
        decoder
            .compressed(format, &rvl, &mut image)
            .expect("a depth image");
        assert_eq!(image.metres, [0.0, 0.0, 0.005, 0.007]);
    }

    #[test]
    fn compressed_depth_that_is_damaged_is_refused() {
        let good = message(10.0, 1.0, &png(2, &[1500, 0, 65535, 250]));
        let mut image = DepthImage::default();
        let mut refused = |format: &str, data: &[u8]| {
            let made = DepthDecoder::default().compressed(format, data, &mut image);
            made.expect_err("damaged").to_string()
        };
        assert!(refused("jpeg", &good).contains("\"jpeg\""));
        assert!(refused("16UC1; jpeg compressed bgr8", &good).contains("compressedDepth"));
        assert!(refused("8UC1; compressedDepth", &good).contains("8UC1"));
        assert!(refused("16UC1; compressedDepth", &good[..11]).contains("11 bytes"));
        assert!(refused("16UC1; compressedDepth", &good[..40]).contains("PNG"));
        let zero = message(0.0, 1.0, &png(2, &[1, 2]));
        assert!(refused("32FC1; compressedDepth", &zero).contains("quantisation"));
        let huge = message(0.0, 0.0, &[255; 8]);
        assert!(refused("16UC1; compressedDepth rvl", &huge).contains("4294967295"));
        let short = message(0.0, 0.0, &[9, 0, 0, 0, 9, 0, 0, 0, 1]);
        assert!(refused("16UC1; compressedDepth rvl", &short).contains("9×9"));
    }
}

//! Pixel encodings of raw camera images and their conversion to RGB. Exact integer arithmetic, one
//! pixel at a time; the reference for implementations on other devices.

use super::{ImageError, RgbImage};
use rayon::prelude::*;

/// Pixel encoding of a raw image. The discriminants must match `kernels/preprocess.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Encoding {
    /// R, G, B bytes.
    Rgb8 = 0,
    /// B, G, R bytes.
    Bgr8 = 1,
    /// R, G, B and alpha, which is dropped.
    Rgba8 = 2,
    /// B, G, R and alpha, which is dropped.
    Bgra8 = 3,
    /// One byte of grey.
    Mono8 = 4,
    /// 16-bit grey, little-endian; rounded to 8 bits.
    Mono16 = 5,
    /// 16-bit grey, big-endian.
    Mono16BigEndian = 6,
    /// YUV 4:2:2: U, Y, V, Y for two pixels.
    Uyvy = 7,
    /// YUV 4:2:2: Y, U, Y, V for two pixels.
    Yuyv = 8,
    /// YUV 4:2:0: a full plane of Y, then half as many rows of interleaved U and V for blocks of
    /// 2×2 pixels, with the same stride.
    Nv12 = 9,
    /// Bayer mosaic of rows R G and G B.
    BayerRggb8 = 10,
    /// Bayer mosaic of rows G R and B G.
    BayerGrbg8 = 11,
    /// Bayer mosaic of rows G B and R G.
    BayerGbrg8 = 12,
    /// Bayer mosaic of rows B G and G R.
    BayerBggr8 = 13,
}

impl Encoding {
    /// Every encoding.
    pub const ALL: [Self; 14] = [
        Self::Rgb8,
        Self::Bgr8,
        Self::Rgba8,
        Self::Bgra8,
        Self::Mono8,
        Self::Mono16,
        Self::Mono16BigEndian,
        Self::Uyvy,
        Self::Yuyv,
        Self::Nv12,
        Self::BayerRggb8,
        Self::BayerGrbg8,
        Self::BayerGbrg8,
        Self::BayerBggr8,
    ];

    /// The encoding with this name in ROS 2's `sensor_msgs/image_encodings.hpp`.
    pub fn from_name(name: &str, big_endian: bool) -> Option<Self> {
        Some(match name {
            "rgb8" => Self::Rgb8,
            "bgr8" | "8UC3" => Self::Bgr8,
            "rgba8" => Self::Rgba8,
            "bgra8" | "8UC4" => Self::Bgra8,
            "mono8" | "8UC1" => Self::Mono8,
            "mono16" | "16UC1" if big_endian => Self::Mono16BigEndian,
            "mono16" | "16UC1" => Self::Mono16,
            "yuv422" | "uyvy" => Self::Uyvy,
            "yuv422_yuy2" | "yuyv" => Self::Yuyv,
            "nv12" => Self::Nv12,
            "bayer_rggb8" => Self::BayerRggb8,
            "bayer_grbg8" => Self::BayerGrbg8,
            "bayer_gbrg8" => Self::BayerGbrg8,
            "bayer_bggr8" => Self::BayerBggr8,
            _ => return None,
        })
    }

    /// Bytes in a row of `width` pixels, without padding.
    pub fn row_bytes(self, width: usize) -> usize {
        width
            * match self {
                Self::Rgb8 | Self::Bgr8 => 3,
                Self::Rgba8 | Self::Bgra8 => 4,
                Self::Mono16 | Self::Mono16BigEndian | Self::Uyvy | Self::Yuyv => 2,
                _ => 1,
            }
    }

    /// Bytes of an image with rows `stride` bytes apart, up to the end of the last row.
    ///
    /// # Errors
    /// [`ImageError::Raw`] if the stride is shorter than a row, or if the size is odd where pixels
    /// share chroma.
    pub fn bytes(self, width: usize, height: usize, stride: usize) -> Result<usize, ImageError> {
        let fail = |what, expected, found| {
            Err(ImageError::Raw {
                encoding: self,
                size: (width, height),
                what,
                expected,
                found,
            })
        };
        let row = self.row_bytes(width);
        if stride < row {
            return fail("a row stride in bytes of at least", row, stride);
        }
        if matches!(self, Self::Uyvy | Self::Yuyv | Self::Nv12) && !width.is_multiple_of(2) {
            return fail("an even number of columns, for example", width + 1, width);
        }
        if self == Self::Nv12 && !height.is_multiple_of(2) {
            return fail("an even number of rows, for example", height + 1, height);
        }
        let rows = if self == Self::Nv12 {
            height + height / 2
        } else {
            height
        };
        Ok(rows.checked_sub(1).map_or(0, |full| full * stride + row))
    }
}

/// Layout that all images of a camera share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageFormat {
    /// How a pixel is stored.
    pub encoding: Encoding,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes from the beginning of a row to that of the next.
    pub stride: usize,
}

impl ImageFormat {
    /// That of an [`RgbImage`] of this size.
    pub fn of_rgb(width: usize, height: usize) -> Self {
        Self {
            encoding: Encoding::Rgb8,
            width,
            height,
            stride: 3 * width,
        }
    }
}

impl From<&RawImage<'_>> for ImageFormat {
    fn from(image: &RawImage<'_>) -> Self {
        Self {
            encoding: image.encoding,
            width: image.width,
            height: image.height,
            stride: image.stride,
        }
    }
}

impl From<&RgbImage> for ImageFormat {
    fn from(image: &RgbImage) -> Self {
        Self::from(&RawImage::from(image))
    }
}

/// A borrowed raw image.
#[derive(Debug, Clone, Copy)]
pub struct RawImage<'a> {
    /// How a pixel is stored.
    pub encoding: Encoding,
    /// Columns, pixels.
    pub width: usize,
    /// Rows, pixels.
    pub height: usize,
    /// Bytes between the starts of consecutive rows.
    pub stride: usize,
    /// At least [`Encoding::bytes`] bytes.
    pub data: &'a [u8],
}

impl<'a> From<&'a RgbImage> for RawImage<'a> {
    fn from(image: &'a RgbImage) -> Self {
        Self {
            encoding: Encoding::Rgb8,
            width: image.width,
            height: image.height,
            stride: 3 * image.width,
            data: &image.data,
        }
    }
}

impl RawImage<'_> {
    /// Converts the image to RGB in `dst`; allocates only if `dst` has to grow.
    ///
    /// YUV is limited-range BT.601 with OpenCV's integer coefficients; each pixel uses the chroma
    /// of its block. At a Bayer site, the missing colours are the rounded mean of the two or four
    /// nearest sites of that colour, with mirroring at the border.
    ///
    /// # Errors
    /// Errors of [`Encoding::bytes`], and insufficient data.
    pub fn to_rgb(&self, dst: &mut RgbImage) -> Result<(), ImageError> {
        let bytes = self.encoding.bytes(self.width, self.height, self.stride)?;
        if self.data.len() < bytes {
            return Err(ImageError::Raw {
                encoding: self.encoding,
                size: (self.width, self.height),
                what: "a total number of bytes of at least",
                expected: bytes,
                found: self.data.len(),
            });
        }
        dst.reshape(self.width, self.height);
        if bytes == 0 {
            return Ok(());
        }
        dst.data
            .par_chunks_exact_mut(self.width * 3)
            .enumerate()
            .for_each(|(y, row)| {
                if self.encoding == Encoding::Rgb8 {
                    let start = y * self.stride;
                    row.copy_from_slice(&self.data[start..start + 3 * self.width]);
                    return;
                }
                for (x, out) in row.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                    *out = self.pixel(x, y);
                }
            });
        Ok(())
    }

    /// Pixel `(x, y)`; the image size has been checked and the pixel is inside.
    fn pixel(&self, x: usize, y: usize) -> [u8; 3] {
        let row = &self.data[y * self.stride..];
        match self.encoding {
            Encoding::Rgb8 => [row[3 * x], row[3 * x + 1], row[3 * x + 2]],
            Encoding::Bgr8 => [row[3 * x + 2], row[3 * x + 1], row[3 * x]],
            Encoding::Rgba8 => [row[4 * x], row[4 * x + 1], row[4 * x + 2]],
            Encoding::Bgra8 => [row[4 * x + 2], row[4 * x + 1], row[4 * x]],
            Encoding::Mono8 => [row[x]; 3],
            Encoding::Mono16 => [narrow([row[2 * x + 1], row[2 * x]]); 3],
            Encoding::Mono16BigEndian => [narrow([row[2 * x], row[2 * x + 1]]); 3],
            Encoding::Uyvy => {
                let pair = x / 2 * 4;
                from_yuv(row[2 * x + 1], row[pair], row[pair + 2])
            }
            Encoding::Yuyv => {
                let pair = x / 2 * 4;
                from_yuv(row[2 * x], row[pair + 1], row[pair + 3])
            }
            Encoding::Nv12 => {
                let chroma = &self.data[(self.height + y / 2) * self.stride + x / 2 * 2..];
                from_yuv(row[x], chroma[0], chroma[1])
            }
            Encoding::BayerRggb8 => self.demosaic(x, y, (0, 0)),
            Encoding::BayerGrbg8 => self.demosaic(x, y, (1, 0)),
            Encoding::BayerGbrg8 => self.demosaic(x, y, (0, 1)),
            Encoding::BayerBggr8 => self.demosaic(x, y, (1, 1)),
        }
    }

    /// `red` holds the column and row parity of red sites.
    fn demosaic(&self, x: usize, y: usize, red: (usize, usize)) -> [u8; 3] {
        let at = |dx: isize, dy: isize| {
            let (x, y) = (mirror(x, dx, self.width), mirror(y, dy, self.height));
            u32::from(self.data[y * self.stride + x])
        };
        let own = at(0, 0) as u8;
        let beside = at(-1, 0) + at(1, 0);
        let upright = at(0, -1) + at(0, 1);
        let red_row = y % 2 == red.1;
        if (x % 2 == red.0) != red_row {
            // A green site: red neighbours on one axis, blue ones on the other.
            let (across, along) = (beside.div_ceil(2) as u8, upright.div_ceil(2) as u8);
            return if red_row {
                [across, own, along]
            } else {
                [along, own, across]
            };
        }
        let green = ((beside + upright + 2) / 4) as u8;
        let corners = at(-1, -1) + at(1, -1) + at(-1, 1) + at(1, 1);
        let other = ((corners + 2) / 4) as u8;
        if red_row {
            [own, green, other]
        } else {
            [other, green, own]
        }
    }
}

/// `at + step`, with −1 mirrored to 1 and `n` to `n − 2`, which is a site of the same colour.
fn mirror(at: usize, step: isize, n: usize) -> usize {
    let (at, last) = (at as isize + step, n as isize - 1);
    let inside = if at < 0 {
        -at
    } else if at > last {
        2 * last - at
    } else {
        at
    };
    inside.clamp(0, last) as usize
}

/// Rounds 16 bits, big-endian, to 8 bits.
fn narrow(bytes: [u8; 2]) -> u8 {
    ((u32::from(u16::from_be_bytes(bytes)) + 128) / 257) as u8
}

/// Limited-range BT.601: 1.164 (Y − 16), and 1.596 V, −0.813 V − 0.391 U, 2.018 U, in units of 2⁻²⁰
/// with OpenCV's rounding.
fn from_yuv(y: u8, u: u8, v: u8) -> [u8; 3] {
    let (u, v) = (i32::from(u) - 128, i32::from(v) - 128);
    let luma = (i32::from(y) - 16).max(0) * 1_220_542;
    let level = |chroma: i32| ((luma + chroma + (1 << 19)) >> 20).clamp(0, 255) as u8;
    [
        level(1_673_527 * v),
        level(-852_492 * v - 409_993 * u),
        level(2_116_026 * u),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rgb(encoding: Encoding, size: (usize, usize), stride: usize, data: &[u8]) -> Vec<u8> {
        let mut out = RgbImage::default();
        let raw = RawImage {
            encoding,
            width: size.0,
            height: size.1,
            stride,
            data,
        };
        raw.to_rgb(&mut out).unwrap();
        assert_eq!((out.width, out.height), size);
        out.data
    }

    #[test]
    fn bytes_are_put_in_order() {
        let data: Vec<u8> = (1..=24).collect();
        // Two pixels and padding per row.
        let check = |encoding, stride, expected: [u8; 12]| {
            assert_eq!(
                rgb(encoding, (2, 2), stride, &data),
                expected,
                "{encoding:?}"
            );
        };
        check(Encoding::Rgb8, 7, [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13]);
        check(Encoding::Bgr8, 7, [3, 2, 1, 6, 5, 4, 10, 9, 8, 13, 12, 11]);
        check(
            Encoding::Rgba8,
            9,
            [1, 2, 3, 5, 6, 7, 10, 11, 12, 14, 15, 16],
        );
        check(
            Encoding::Bgra8,
            9,
            [3, 2, 1, 7, 6, 5, 12, 11, 10, 16, 15, 14],
        );
        check(Encoding::Mono8, 3, [1, 1, 1, 2, 2, 2, 4, 4, 4, 5, 5, 5]);
    }

    #[test]
    fn sixteen_bits_round_to_the_nearest_of_eight() {
        for value in 0..=u16::MAX {
            let exact = f64::from(value) * 255.0 / 65535.0;
            let [low, high] = value.to_le_bytes();
            let little = rgb(Encoding::Mono16, (1, 1), 2, &[low, high]);
            assert_eq!(
                little,
                rgb(Encoding::Mono16BigEndian, (1, 1), 2, &[high, low])
            );
            assert_eq!(little, [exact.round() as u8; 3], "{value}");
        }
    }

    #[test]
    fn yuv_is_bt601_of_limited_range() {
        // Within one level of the real-valued standard: 1.164 for 255/219 is 0.1 levels off at
        // white, and rounding adds half a level.
        for y in (16..=235).step_by(3) {
            for u in (16..=240).step_by(7) {
                for v in (16..=240).step_by(7) {
                    let luma = (f64::from(y) - 16.0) * 255.0 / 219.0;
                    let (cb, cr) = (f64::from(u) - 128.0, f64::from(v) - 128.0);
                    let scale = 255.0 / 224.0;
                    let exact = [
                        luma + 1.402 * scale * cr,
                        luma - 0.714_136 * scale * cr - 0.344_136 * scale * cb,
                        luma + 1.772 * scale * cb,
                    ];
                    let found = from_yuv(y, u, v);
                    for (found, exact) in found.iter().zip(exact) {
                        let off = (f64::from(*found) - exact.clamp(0.0, 255.0)).abs();
                        assert!(off < 1.0, "{y} {u} {v}: {found} for {exact}");
                    }
                }
            }
        }
        // Values outside the range are clipped.
        assert_eq!(from_yuv(0, 128, 128), [0; 3]);
        assert_eq!(from_yuv(255, 128, 128), [255; 3]);
    }

    #[test]
    fn every_pixel_gets_its_block_s_chroma() {
        let colours = |y: [u8; 2], u, v| [from_yuv(y[0], u, v), from_yuv(y[1], u, v)].concat();
        let row = [colours([50, 60], 90, 200), colours([70, 80], 140, 30)].concat();
        let uyvy = [90, 50, 200, 60, 140, 70, 30, 80];
        assert_eq!(rgb(Encoding::Uyvy, (4, 1), 8, &uyvy), row);
        let yuyv = [50, 90, 60, 200, 70, 140, 80, 30];
        assert_eq!(rgb(Encoding::Yuyv, (4, 1), 8, &yuyv), row);
        // Rows of five bytes: four pixels and padding.
        let nv12 = [50, 60, 70, 80, 1, 51, 61, 71, 81, 2, 90, 200, 140, 30, 3];
        let below = [colours([51, 61], 90, 200), colours([71, 81], 140, 30)].concat();
        assert_eq!(rgb(Encoding::Nv12, (4, 2), 5, &nv12), [row, below].concat());
    }

    #[test]
    fn a_mosaic_of_one_colour_gives_that_colour() {
        let colour = [200u8, 100, 30];
        for (encoding, sites) in [
            (Encoding::BayerRggb8, [0, 1, 1, 2]),
            (Encoding::BayerGrbg8, [1, 0, 2, 1]),
            (Encoding::BayerGbrg8, [1, 2, 0, 1]),
            (Encoding::BayerBggr8, [2, 1, 1, 0]),
        ] {
            for (width, height) in [(2, 2), (5, 3), (8, 7)] {
                let data: Vec<u8> = (0..width * height)
                    .map(|n| colour[sites[n / width % 2 * 2 + n % width % 2]])
                    .collect();
                let found = rgb(encoding, (width, height), width, &data);
                assert_eq!(found, colour.repeat(width * height), "{encoding:?}");
            }
            // Every pixel gets a value, even in a single row or column.
            for (width, height) in [(1, 1), (1, 4), (4, 1)] {
                let found = rgb(encoding, (width, height), width, &[77; 4]);
                assert_eq!(found, [77; 3].repeat(width * height));
            }
        }
    }

    #[test]
    fn a_bayer_site_averages_its_nearest_of_each_colour() {
        // R G R / G B G / R G R about a blue site.
        let data = [10, 1, 21, 2, 90, 4, 30, 8, 43];
        let found = rgb(Encoding::BayerRggb8, (3, 3), 3, &data);
        assert_eq!(
            found[12..15],
            [26, 4, 90],
            "(10 + 21 + 30 + 43 + 2) / 4, (15 + 2) / 4"
        );
        // The green site above it: red beside, blue below and, mirrored, above.
        assert_eq!(found[3..6], [16, 1, 90]);
        // The red corner: green and blue come from the mirror twice.
        assert_eq!(found[..3], [10, 2, 90]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let mut out = RgbImage::default();
        let mut refused = |encoding, width, height, stride, len| {
            let data = vec![0; len];
            let raw = RawImage {
                encoding,
                width,
                height,
                stride,
                data: &data,
            };
            raw.to_rgb(&mut out).unwrap_err().to_string()
        };
        for (text, parts) in [
            (refused(Encoding::Rgb8, 4, 2, 11, 100), ["12", "11"]),
            (refused(Encoding::Rgb8, 4, 2, 20, 31), ["32", "31"]),
            (refused(Encoding::Uyvy, 3, 2, 20, 100), ["columns", "3"]),
            (refused(Encoding::Nv12, 4, 3, 4, 100), ["rows", "3"]),
            (refused(Encoding::Nv12, 4, 4, 4, 23), ["24", "23"]),
        ] {
            assert!(parts.iter().all(|p| text.contains(p)), "{text}");
        }
        assert_eq!(Encoding::Mono8.bytes(0, 0, 0).unwrap(), 0);
    }

    #[test]
    fn ros_names_are_known() {
        for name in [
            "rgb8",
            "bgr8",
            "rgba8",
            "bgra8",
            "mono8",
            "mono16",
            "yuv422",
            "yuv422_yuy2",
            "nv12",
            "bayer_rggb8",
            "bayer_bggr8",
            "bayer_gbrg8",
            "bayer_grbg8",
        ] {
            assert!(Encoding::from_name(name, false).is_some(), "{name}");
        }
        assert_eq!(
            Encoding::from_name("mono16", true),
            Some(Encoding::Mono16BigEndian)
        );
        assert_eq!(Encoding::from_name("32FC1", false), None);
        // The kernel takes an encoding by its number.
        for (number, encoding) in Encoding::ALL.into_iter().enumerate() {
            assert_eq!(encoding as usize, number);
        }
    }
}

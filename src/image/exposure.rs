//! Images that show nothing, because no light reaches the sensor or too much of it.

use super::encoding::{Encoding, RawImage};

/// Columns and rows of the pixels that are looked at.
const COLUMNS: usize = 64;
const ROWS: usize = 48;
/// Brightness, of 255, up to which a pixel is black, and from which on it is white.
const BLACK: u8 = 10;
const WHITE: u8 = 252;
/// Part of the pixels that are black, or white, in an image that shows nothing.
const PART: f64 = 0.995;
/// Brightness of black in YUV (limited-range BT.601).
const YUV_BLACK: u8 = 16;

/// Whether an image shows anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// It shows something.
    Usable,
    /// Its pixels are black: a covered lens, or no light.
    Black,
    /// Its pixels are white: too much light.
    White,
}

impl RawImage<'_> {
    /// Judges the image by a few thousand of its pixels. Pixels beyond its data are not looked at.
    pub fn exposure(&self) -> Exposure {
        let (mut count, mut black, mut white) = (0_usize, 0_usize, 0_usize);
        for row in 0..ROWS.min(self.height) {
            let v = row * self.height / ROWS.min(self.height);
            for column in 0..COLUMNS.min(self.width) {
                let u = column * self.width / COLUMNS.min(self.width);
                if let Some(value) = self.brightness(u, v) {
                    count += 1;
                    black += usize::from(value <= BLACK);
                    white += usize::from(value >= WHITE);
                }
            }
        }
        let enough = PART * count.max(1) as f64;
        if black as f64 >= enough {
            Exposure::Black
        } else if white as f64 >= enough {
            Exposure::White
        } else {
            Exposure::Usable
        }
    }

    /// The brightest channel of a pixel; of Bayer's mosaics the one that the pixel has.
    fn brightness(&self, u: usize, v: usize) -> Option<u8> {
        let row = self.data.get(v * self.stride..)?;
        let byte = |k: usize| row.get(k).copied();
        match self.encoding {
            Encoding::Rgb8 | Encoding::Bgr8 => row.get(3 * u..3 * u + 3)?.iter().copied().max(),
            Encoding::Rgba8 | Encoding::Bgra8 => row.get(4 * u..4 * u + 3)?.iter().copied().max(),
            Encoding::Mono8
            | Encoding::BayerRggb8
            | Encoding::BayerGrbg8
            | Encoding::BayerGbrg8
            | Encoding::BayerBggr8 => byte(u),
            Encoding::Mono16 => byte(2 * u + 1),
            Encoding::Mono16BigEndian => byte(2 * u),
            Encoding::Uyvy => byte(2 * u + 1).map(|y| y.saturating_sub(YUV_BLACK)),
            Encoding::Yuyv => byte(2 * u).map(|y| y.saturating_sub(YUV_BLACK)),
            Encoding::Nv12 => byte(u).map(|y| y.saturating_sub(YUV_BLACK)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (usize, usize) = (100, 60);

    /// An image of bytes that `byte` gives for their places in a row.
    fn judged(encoding: Encoding, byte: impl Fn(usize, usize) -> u8) -> Exposure {
        let stride = encoding.row_bytes(SIZE.0) + 3;
        let len = encoding.bytes(SIZE.0, SIZE.1, stride).expect("a size");
        let data: Vec<u8> = (0..len).map(|k| byte(k % stride, k / stride)).collect();
        RawImage {
            encoding,
            width: SIZE.0,
            height: SIZE.1,
            stride,
            data: &data,
        }
        .exposure()
    }

    #[test]
    fn black_is_black_in_every_encoding_and_grey_is_not() {
        for encoding in Encoding::ALL {
            // Chroma is 128 without colour, and the low byte of 16 bits is noise.
            let (is_yuv, level) = match encoding {
                Encoding::Uyvy | Encoding::Yuyv | Encoding::Nv12 => (true, 16),
                _ => (false, 0),
            };
            let of = |value: u8| {
                judged(encoding, |k, _| match encoding {
                    Encoding::Uyvy if k % 2 == 0 => 128,
                    Encoding::Yuyv if k % 2 == 1 => 128,
                    Encoding::Mono16 if k % 2 == 0 => 255,
                    Encoding::Mono16BigEndian if k % 2 == 1 => 255,
                    _ => value,
                })
            };
            assert_eq!(of(level), Exposure::Black, "{encoding:?}");
            assert_eq!(of(level + 5), Exposure::Black, "{encoding:?}");
            assert_eq!(of(level + 40), Exposure::Usable, "{encoding:?}");
            if !is_yuv {
                assert_eq!(of(255), Exposure::White, "{encoding:?}");
                assert_eq!(of(200), Exposure::Usable, "{encoding:?}");
            }
        }
    }

    #[test]
    fn a_light_in_the_dark_is_something() {
        let lamp = |k: usize, v: usize| match (k, v) {
            (30..60, 10..20) => 200,
            _ => 3,
        };
        assert_eq!(judged(Encoding::Mono8, lamp), Exposure::Usable);
        // A single hot pixel is not.
        let hot = |k: usize, v: usize| if (k, v) == (0, 0) { 255 } else { 3 };
        assert_eq!(judged(Encoding::Mono8, hot), Exposure::Black);
    }

    #[test]
    fn too_little_data_is_no_panic() {
        let image = RawImage {
            encoding: Encoding::Rgb8,
            width: 100,
            height: 100,
            stride: 300,
            data: &[90; 100],
        };
        assert_eq!(image.exposure(), Exposure::Usable);
        assert_eq!(RawImage { data: &[], ..image }.exposure(), Exposure::Usable);
        let empty = RawImage {
            width: 0,
            height: 0,
            ..image
        };
        assert_eq!(empty.exposure(), Exposure::Usable);
    }
}

//! Reading image files, whole and broken.

use image::{DynamicImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, Rgba};
use mast3r_slam::image::{ImageError, RgbImage, decode, decode_bytes, dimensions};
use std::io::Cursor;
use std::path::Path;

fn encode(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Vec::new();
    image
        .write_to(&mut Cursor::new(&mut bytes), format)
        .unwrap();
    bytes
}

fn colour(x: u32, y: u32) -> [u8; 3] {
    [(x * 9) as u8, (y * 11) as u8, ((x + y) * 5) as u8]
}

fn picture() -> DynamicImage {
    DynamicImage::ImageRgb8(ImageBuffer::from_fn(23, 17, |x, y| Rgb(colour(x, y))))
}

fn read(bytes: &[u8]) -> Result<RgbImage, ImageError> {
    decode_bytes(bytes, Path::new("somewhere/frame.png"))
}

fn message(bytes: &[u8]) -> String {
    let text = read(bytes).unwrap_err().to_string();
    assert!(text.contains("somewhere/frame.png"), "{text}");
    text
}

#[test]
fn lossless_formats_give_the_pixels() {
    use ImageFormat::{Bmp, Png, Pnm, Tiff, WebP};
    for format in [Png, Bmp, Tiff, WebP, Pnm] {
        let image = read(&encode(&picture(), format)).unwrap();
        assert_eq!((image.width, image.height), (23, 17), "{format:?}");
        for (i, px) in image.data.chunks_exact(3).enumerate() {
            let i = i as u32;
            assert_eq!(px, colour(i % 23, i / 23), "{format:?} at {i}");
        }
    }
}

#[test]
fn jpeg_comes_close() {
    let flat = DynamicImage::ImageRgb8(ImageBuffer::from_pixel(23, 17, Rgb([200, 100, 50])));
    let image = read(&encode(&flat, ImageFormat::Jpeg)).unwrap();
    // A flat block has one coefficient a channel, quantised by at most 16 / 8 at quality 75, and
    // YCbCr mixes three of them.
    for px in image.data.chunks_exact(3) {
        for (found, expected) in px.iter().zip([200u8, 100, 50]) {
            assert!(found.abs_diff(expected) <= 6, "{px:?}");
        }
    }
}

#[test]
fn every_kind_of_png_becomes_rgb() {
    let grey = DynamicImage::ImageLuma8(ImageBuffer::from_fn(5, 4, |x, y| {
        Luma([(x * 40 + y) as u8])
    }));
    let image = read(&encode(&grey, ImageFormat::Png)).unwrap();
    assert_eq!(&image.data[3..6], [40, 40, 40]);

    let alpha = DynamicImage::ImageLumaA8(ImageBuffer::from_pixel(5, 4, LumaA([77, 3])));
    let image = read(&encode(&alpha, ImageFormat::Png)).unwrap();
    assert_eq!(&image.data[..3], [77, 77, 77]);

    let rgba = DynamicImage::ImageRgba8(ImageBuffer::from_pixel(5, 4, Rgba([1, 2, 3, 0])));
    let image = read(&encode(&rgba, ImageFormat::Png)).unwrap();
    assert_eq!(&image.data[..3], [1, 2, 3]);

    // 16 bits: 65535 → 255, and 257 · k → k.
    let deep = DynamicImage::ImageRgb16(ImageBuffer::from_pixel(5, 4, Rgb([65535, 257 * 99, 0])));
    let image = read(&encode(&deep, ImageFormat::Png)).unwrap();
    assert_eq!(&image.data[..3], [255, 99, 0]);
    let deep = DynamicImage::ImageLuma16(ImageBuffer::from_pixel(5, 4, Luma([257 * 120])));
    let image = read(&encode(&deep, ImageFormat::Png)).unwrap();
    assert_eq!(&image.data[..3], [120, 120, 120]);
}

#[test]
fn an_exif_orientation_is_applied_to_pixels_and_dimensions() {
    // An APP1 segment with one tag, orientation 6 (turn right), between the start and the rest.
    let jpeg = encode(&picture(), ImageFormat::Jpeg);
    let mut tiff = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01".to_vec();
    tiff.extend([0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0]);
    let mut turned = jpeg[..2].to_vec();
    turned.extend([0xFF, 0xE1]);
    turned.extend((tiff.len() as u16 + 2).to_be_bytes());
    turned.extend(&tiff);
    turned.extend(&jpeg[2..]);
    let (plain, image) = (read(&jpeg).unwrap(), read(&turned).unwrap());
    assert_eq!((image.width, image.height), (17, 23));
    // The lower left corner comes to the upper left.
    let corner = 16 * 23 * 3;
    assert_eq!(image.data[..3], plain.data[corner..corner + 3]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jpg");
    std::fs::write(&path, &turned).unwrap();
    assert_eq!(dimensions(&path).unwrap(), (17, 23));
}

#[test]
fn what_is_no_image_is_named() {
    assert!(message(b"").contains("an empty file"));
    let text = message(b"hello, this is a text file\n");
    assert!(
        text.contains("27 bytes that begin with \"hello, this is a\""),
        "{text}"
    );
    assert!(message(&[0; 4]).contains("expected a PNG, JPEG"));

    let missing = Path::new("no/such/file.png");
    let text = decode(missing).unwrap_err().to_string();
    assert!(text.starts_with("cannot read no/such/file.png: "), "{text}");
    assert!(dimensions(missing).is_err());
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(decode(folder.path()), Err(ImageError::Io { .. })));
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    use ImageFormat::{Bmp, Jpeg, Png, Pnm, Tiff, WebP};
    for format in [Png, Jpeg, Bmp, Tiff, WebP, Pnm] {
        let bytes = encode(&picture(), format);
        for part in [0.2, 0.5, 0.9] {
            let cut = (bytes.len() as f64 * part) as usize;
            let text = message(&bytes[..cut]);
            assert!(text.contains("expected a"), "{format:?} {part}: {text}");
        }
    }
    // A JPEG without its last two bytes would otherwise decode without a word.
    let jpeg = encode(&picture(), Jpeg);
    assert!(read(&jpeg[..jpeg.len() - 2]).is_err());
    let mut padded = jpeg.clone();
    padded.extend([0; 16]);
    assert!(read(&padded).is_ok(), "bytes after the end are harmless");
}

#[test]
fn absurd_sizes_are_refused_before_they_are_allocated() {
    // Headers that announce more than they hold.
    let text = message(b"P6\n20000 20000\n255\n");
    assert!(text.contains("16384×16384"), "{text}");
    let mut png = encode(&picture(), ImageFormat::Png);
    png[16..20].copy_from_slice(&0x7fff_ffffu32.to_be_bytes());
    // The header's checksum is wrong too; either reason will do, as long as it is one.
    message(&png);
    message(b"P6\n0 0\n255\n");
}

#[test]
fn random_damage_never_panics() {
    use ImageFormat::{Bmp, Jpeg, Png, Pnm, Tiff, WebP};
    let mut state = 12345u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize
    };
    for format in [Png, Jpeg, Bmp, Tiff, WebP, Pnm] {
        let whole = encode(&picture(), format);
        for _ in 0..60 {
            let mut bytes = whole.clone();
            for _ in 0..4 {
                let at = next() % bytes.len();
                bytes[at] = next() as u8;
            }
            if let Ok(image) = read(&bytes) {
                assert_eq!(image.data.len(), image.width * image.height * 3);
            }
        }
    }
}

use super::*;
use crate::compute::device::ContentFormats;

const CAMERA: Intrinsics = Intrinsics {
    fx: 30.0,
    fy: 31.0,
    cx: 18.5,
    cy: 11.0,
};

fn header(intrinsics: Option<Intrinsics>, format: FloatFormat) -> Header {
    Header {
        program: String::new(),
        weights: String::new(),
        shape: ImageShape {
            width: 40,
            height: 24,
            tokens: 2,
            channels: 3,
        },
        formats: ContentFormats {
            confidence: format,
            features: format,
        },
        intrinsics,
        map_from_world: None,
        keyframes: 0,
        edges: 0,
        solved_edges: 0,
        factors: 0,
    }
}

/// A wavy wall with an edge, seen by the camera; without one, a point's direction is off its pixel's ray.
fn content(header: &Header) -> KeyframeContent {
    let (width, pixels) = (header.shape.width as usize, header.shape.pixels());
    let point = |n: usize| {
        let (u, v) = ((n % width) as f64, (n / width) as f64);
        let near = if u > 25.0 { 0.4 } else { 1.0 };
        let z = near * (3.0 + (0.3 * u).sin() + 0.1 * v) as f32;
        let ray = CAMERA.ray(u, v);
        let off = match header.intrinsics {
            Some(_) => 0.0,
            None => 0.02 * (0.7 * u + v).sin() as f32,
        };
        [
            ray.x as f32 * z + off * z,
            ray.y as f32 * z - 2.0 * off * z,
            z,
        ]
    };
    KeyframeContent {
        image: (0..3 * pixels).map(|k| (k / 3 % width) as u8).collect(),
        points: (0..pixels).flat_map(point).collect(),
        confidence: Floats::F32((0..pixels).map(|k| 1.0 + 0.01 * k as f32).collect()),
        features: Floats::F32(vec![0.5; 6]),
    }
}

fn packed(content: &KeyframeContent, header: &Header) -> Vec<u8> {
    let mut row = Vec::new();
    Coder::default().pack_pointmap(content, header, &mut row);
    row
}

fn unpacked(row: &[u8], header: &Header) -> Result<KeyframeContent, StoreError> {
    let mut content = KeyframeContent::default();
    Coder::default().unpack_pointmap(row, header, &mut content)?;
    Ok(content)
}

#[test]
fn points_and_confidences_come_back_within_their_precision() {
    for (camera, format) in [
        (None, FloatFormat::F32),
        (Some(CAMERA), FloatFormat::F32),
        (Some(CAMERA), FloatFormat::F16),
    ] {
        let header = header(camera, format);
        let content = content(&header);
        let row = packed(&content, &header);
        let back = unpacked(&row, &header).unwrap();
        for (found, expected) in back
            .points
            .chunks_exact(3)
            .zip(content.points.chunks_exact(3))
        {
            assert!((found[2] / expected[2] - 1.0).abs() < 3.5e-4);
            for axis in [0, 1] {
                let slopes = [found, expected].map(|p| p[axis] / p[2] * 40.0);
                // A sixteenth of a pixel where the focal length is the width.
                assert!((slopes[0] - slopes[1]).abs() < 0.0626, "{slopes:?}");
            }
        }
        assert_eq!(back.confidence.format(), format);
        let pairs = back.confidence.to_f32().into_iter();
        let mut pairs = pairs.zip(content.confidence.to_f32());
        assert!(pairs.all(|(found, expected)| (found / expected - 1.0).abs() < 0.012));
        // Packing again changes nothing.
        assert_eq!(packed(&back, &header), row);
    }
}

#[test]
fn points_that_cannot_be_kept_come_back_as_no_points() {
    let header = header(None, FloatFormat::F32);
    let mut content = content(&header);
    let bad = [
        [0.0, 0.0, 0.0],
        [1.0, 1.0, -2.0],
        [f32::NAN, 0.0, 1.0],
        [0.0, 0.0, f32::INFINITY],
        [1e9, 0.0, 1e-3],
        [0.0, 0.0, f32::NAN],
    ];
    let at = |k: usize| 7 + 40 * k..7 + 40 * k + 1;
    for (k, p) in bad.iter().enumerate() {
        for n in at(k) {
            content.points[3 * n..3 * n + 3].copy_from_slice(p);
        }
    }
    let back = unpacked(&packed(&content, &header), &header).unwrap();
    let confidence = back.confidence.to_f32();
    let mut missing = 0;
    for (n, p) in back.points.chunks_exact(3).enumerate() {
        let gone = (0..bad.len()).any(|k| at(k).contains(&n));
        assert_eq!(p == [0.0; 3], gone, "pixel {n}: {p:?}");
        assert_eq!(confidence[n] == 0.0, gone, "pixel {n}");
        missing += usize::from(gone);
    }
    assert_eq!(missing, bad.len());
}

#[test]
fn an_image_comes_back_and_a_noisy_one_within_its_bytes() {
    let header = header(None, FloatFormat::F32);
    let mut content = content(&header);
    let mut row = Vec::new();
    let mut back = KeyframeContent::default();
    Coder::pack_picture(&content, header.shape, &mut row).unwrap();
    Coder::unpack_picture(&row, &header, &mut back).unwrap();
    assert_eq!(back.image, content.image);
    assert!(back.features.is_empty());
    let mut random = 1_u32;
    for value in &mut content.image {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = 100 + (random >> 27) as u8;
    }
    row.clear();
    Coder::pack_picture(&content, header.shape, &mut row).unwrap();
    Coder::unpack_picture(&row, &header, &mut back).unwrap();
    let off = back.image.iter().zip(&content.image);
    let off = off
        .map(|(a, b)| f64::from(a.abs_diff(*b)).powi(2))
        .sum::<f64>();
    let rms = (off / content.image.len() as f64).sqrt();
    // It loses less than the noise: 32 levels, each as likely.
    let noise = ((32.0_f64.powi(2) - 1.0) / 12.0).sqrt();
    assert!(rms > 0.0 && rms < noise, "{rms} levels");
}

#[test]
fn what_is_not_whole_or_of_another_size_is_refused() {
    let header = header(None, FloatFormat::F32);
    let content = content(&header);
    let row = packed(&content, &header);
    for cut in [0, 3, row.len() / 3, row.len() - 1] {
        assert!(unpacked(&row[..cut], &header).is_err(), "cut at {cut}");
    }
    assert!(unpacked(&[&row[..], b"x"].concat(), &header).is_err());
    let mut other = header.clone();
    other.shape.height = 23;
    assert!(unpacked(&row, &other).is_err());
    // Slopes that a calibrated map does not have.
    other = header.clone();
    other.intrinsics = Some(CAMERA);
    assert!(unpacked(&row, &other).is_err());
    let mut image = Vec::new();
    Coder::pack_picture(&content, header.shape, &mut image).unwrap();
    let mut back = KeyframeContent::default();
    other = header.clone();
    other.shape.width = 39;
    for (bytes, header) in [
        (&image[..], &other),
        (&image[..image.len() / 2], &header),
        (b"tx ty tz", &header),
    ] {
        assert!(Coder::unpack_picture(bytes, header, &mut back).is_err());
    }
}

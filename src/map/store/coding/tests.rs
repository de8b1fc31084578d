use super::*;
use crate::compute::device::ContentFormats;
use crate::map::saved::ImageShape;

fn header(features: FloatFormat) -> Header {
    Header {
        program: String::new(),
        weights: String::new(),
        shape: ImageShape {
            width: 13,
            height: 7,
            tokens: 5,
            channels: 3,
        },
        formats: ContentFormats {
            confidence: features,
            features,
        },
        intrinsics: None,
        map_from_world: None,
        keyframes: 0,
        edges: 0,
        solved_edges: 0,
        factors: 0,
    }
}

fn near(found: f32, expected: f32, relative: f32) -> bool {
    (found - expected).abs() <= relative * expected.abs()
}

#[test]
fn values_come_back_within_their_precision_and_stay_in_order() {
    let values = [
        -f32::MAX,
        -3.7,
        -1e-30,
        -0.0,
        0.0,
        1e-40,
        0.1,
        2.999_999,
        f32::MAX,
    ];
    for drop in [POINT_DROP, CONFIDENCE_DROP, QUALITY_DROP] {
        let numbers = values.map(|v| ordered(v, drop));
        assert!(numbers.is_sorted(), "{numbers:?}");
        for (value, number) in values.iter().zip(numbers) {
            let back = in_order(number, drop);
            let relative = 2_f32.powi(drop as i32 - 23);
            assert!(
                near(back, *value, relative) || value.abs() < 1e-37,
                "{value}: {back}"
            );
            assert_eq!(ordered(back, drop), number, "packing again changes nothing");
        }
    }
    assert!(in_order(ordered(f32::NAN, POINT_DROP), POINT_DROP).is_nan());
    assert_eq!(
        in_order(ordered(f32::INFINITY, QUALITY_DROP), QUALITY_DROP),
        f32::INFINITY
    );
}

#[test]
fn a_keyframe_comes_back_and_a_second_packing_is_the_same() {
    for format in [FloatFormat::F32, FloatFormat::F16] {
        let header = header(format);
        let n = header.shape.pixels();
        let floats = |values: Vec<f32>| match format {
            FloatFormat::F32 => Floats::F32(values),
            FloatFormat::F16 => Floats::F16(Floats::F32(values).to_f16()),
        };
        let wave = |k: usize| (k as f32 * 0.37).sin() * 3.0 - 0.5;
        let content = KeyframeContent {
            image: (0..3 * n).map(|k| (k * 31 % 251) as u8).collect(),
            points: (0..3 * n).map(wave).collect(),
            confidence: floats((0..n).map(|k| 1.0 + k as f32 * 0.1).collect()),
            features: floats((0..15).map(wave).collect()),
        };
        let (mut coder, mut packed) = (Coder::default(), [Vec::new(), Vec::new()]);
        coder.pack_image(&content, &mut packed[0]);
        coder.pack_points(&content, &mut packed[1]);
        let mut back = KeyframeContent::default();
        coder.unpack_image(&packed[0], &header, &mut back).unwrap();
        coder.unpack_points(&packed[1], &header, &mut back).unwrap();
        assert_eq!(back.image, content.image);
        assert!(
            back.points
                .iter()
                .zip(&content.points)
                .all(|(a, b)| near(*a, *b, 1.3e-4))
        );
        let (a, b) = (back.confidence.to_f32(), content.confidence.to_f32());
        assert!(a.iter().zip(&b).all(|(a, b)| near(*a, *b, 3e-3)));
        let (a, b) = (back.features.to_f32(), content.features.to_f32());
        assert!(a.iter().zip(&b).all(|(a, b)| near(*a, *b, 5e-3)));
        let mut again = [Vec::new(), Vec::new()];
        coder.pack_image(&back, &mut again[0]);
        coder.pack_points(&back, &mut again[1]);
        assert_eq!(again, packed);
        for cut in [0, 3, packed[1].len() / 2, packed[1].len() - 1] {
            assert!(
                coder
                    .unpack_points(&packed[1][..cut], &header, &mut back)
                    .is_err()
            );
        }
    }
}

#[test]
fn matches_come_back_and_those_outside_of_the_image_are_refused() {
    let header = header(FloatFormat::F32);
    let n = header.shape.pixels();
    let way = |step: usize| {
        let valid: Vec<u8> = (0..n).map(|k| u8::from(k % 3 != 1)).collect();
        let of = |k: usize| (k * step + 11) % n;
        MatchContent {
            index: (0..n).map(|k| u32::from(valid[k]) * of(k) as u32).collect(),
            quality: (0..n)
                .map(|k| f32::from(valid[k]) * (0.1 + k as f32))
                .collect(),
        }
    };
    let mut content = EdgeContent {
        i_from_j: way(1),
        j_from_i: way(5),
    };
    let (mut coder, mut packed) = (Coder::default(), Vec::new());
    coder.pack_matches(&content, &header, &mut packed);
    let mut back = EdgeContent::default();
    coder.unpack_matches(&packed, &header, &mut back).unwrap();
    for (found, expected) in [
        (&back.i_from_j, &content.i_from_j),
        (&back.j_from_i, &content.j_from_i),
    ] {
        assert_eq!(found.index, expected.index);
        let matched = |m: &MatchContent| Vec::from_iter(m.quality.iter().map(|q| *q > 0.0));
        assert_eq!(matched(found), matched(expected));
        let qualities = found.quality.iter().zip(&expected.quality);
        assert!(qualities.into_iter().all(|(a, b)| near(*a, *b, 0.01)));
    }
    content.j_from_i.index[5] = n as u32 + 40;
    packed.clear();
    coder.pack_matches(&content, &header, &mut packed);
    assert!(coder.unpack_matches(&packed, &header, &mut back).is_err());
    // An edge without any match; where there is none, no index is kept.
    for nothing in [0.0, -0.0, f32::NAN, -1.0] {
        content.i_from_j.quality.fill(nothing);
        content.j_from_i.quality.fill(nothing);
        packed.clear();
        coder.pack_matches(&content, &header, &mut packed);
        coder.unpack_matches(&packed, &header, &mut back).unwrap();
        for way in [&back.i_from_j, &back.j_from_i] {
            assert!(way.quality.iter().all(|q| *q == 0.0), "{nothing}");
            assert!(way.index.iter().all(|k| *k == 0), "{nothing}");
        }
    }
}

/// A flag of each pixel, then columns, rows and qualities of the flagged ones alone, among which an earlier program could
/// write a quality of 0.
#[test]
fn flags_say_where_the_numbers_of_a_match_go() {
    let header = header(FloatFormat::F32);
    let n = header.shape.pixels();
    let mut coder = Coder::default();
    let mut packed = Vec::new();
    // Pixels 2 and 9 match pixels 3 and 9, the second with quality 0.
    for _ in 0..2 {
        coder.planes = vec![0; n.div_ceil(8)];
        (coder.planes[0], coder.planes[1]) = (1 << 2, 1 << 1);
        coder.compress(LEVEL, &mut packed);
        coder.planes.clear();
        for numbers in [
            [1, 0],
            [0, 0],
            [ordered(2.5, QUALITY_DROP), ordered(0.0, QUALITY_DROP)],
        ] {
            coder.numbers = numbers.to_vec();
            coder.difference();
        }
        coder.compress(LEVEL, &mut packed);
    }
    let mut back = EdgeContent::default();
    coder.unpack_matches(&packed, &header, &mut back).unwrap();
    for way in [&back.i_from_j, &back.j_from_i] {
        let mut expected = (vec![0; n], vec![0.0; n]);
        (expected.0[2], expected.0[9]) = (3, 9);
        expected.1[2] = 2.5;
        assert_eq!((&way.index, &way.quality), (&expected.0, &expected.1));
    }
}

/// What is coded of a match is a match again: no quality that a network gives becomes 0.
#[test]
fn a_quality_above_zero_stays_above_zero() {
    let least = f32::MIN_POSITIVE;
    for quality in [least, 6e-8, 1e-3, 1.5, 65504.0, f32::MAX, f32::INFINITY] {
        let back = in_order(ordered(quality, QUALITY_DROP), QUALITY_DROP);
        assert!(back > 0.0, "{quality}: {back}");
    }
}

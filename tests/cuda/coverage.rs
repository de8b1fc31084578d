//! Coverage on the GPU: the counts of the CPU.

use crate::cuda;
use half::f16;
use mast3r_slam::compute::coverage::{Coverage, Limits, View, coverage};
use mast3r_slam::compute::cuda::coverage::{CoverageBuffers, CoverageCounter, DeviceViewOf};
use mast3r_slam::compute::cuda::global::DeviceMatches;
use mast3r_slam::gpu::{Context, DeviceBuffer, Floats, Priority, Stream};
use testkit::random::Random;

const LIMITS: Limits = Limits {
    c_conf: 1.25,
    q_conf: 1.5,
    min_ratio: 0.8,
};

/// A keyframe's points, and confidences that f16 holds exactly.
struct Keyframe {
    points: Vec<f32>,
    confidence: Vec<f16>,
}

struct Other {
    index: Vec<u32>,
    quality: Vec<f16>,
    points: Vec<f32>,
    scale: f32,
}

/// Points of a few metres, some of them at or beyond every limit.
fn points(random: &mut Random, pixels: usize) -> Vec<f32> {
    let odd = [
        0.0,
        -0.0,
        1e-12,
        1e-13,
        f32::NAN,
        f32::INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
    ];
    let value = |random: &mut Random| match random.bits() % 40 {
        0 => odd[random.bits() as usize % odd.len()],
        _ => random.normal() as f32 * 3.0,
    };
    (0..3 * pixels).map(|_| value(random)).collect()
}

fn keyframe(random: &mut Random, pixels: usize) -> Keyframe {
    let odd = [1.25, 1.2509766, f32::NAN, f32::INFINITY, 0.0];
    let confidence = |random: &mut Random| match random.bits() % 8 {
        0 => odd[random.bits() as usize % odd.len()],
        _ => random.uniform() as f32 * 4.0,
    };
    Keyframe {
        points: points(random, pixels),
        confidence: (0..pixels)
            .map(|_| f16::from_f32(confidence(random)))
            .collect(),
    }
}

fn other(random: &mut Random, pixels: usize) -> Other {
    // The limit and its neighbours, and what a third of the pixels have: no match.
    let odd = [
        1.499,
        1.5,
        1.501,
        0.0,
        -0.0,
        -2.0,
        6e-8,
        f32::NAN,
        f32::INFINITY,
    ]
    .map(f16::from_f32);
    let quality = |random: &mut Random| match random.bits() % 15 {
        0..5 => f16::ZERO,
        5..7 => odd[random.bits() as usize % odd.len()],
        _ => f16::from_f64(random.uniform() * 4.0),
    };
    Other {
        // Some of them outside the image.
        index: (0..pixels)
            .map(|_| match random.bits() % 50 {
                0 => random.bits(),
                _ => random.bits() % (pixels as u32 + 1),
            })
            .collect(),
        quality: (0..pixels).map(|_| quality(random)).collect(),
        points: points(random, pixels),
        scale: 0.5 + random.uniform() as f32,
    }
}

fn widened(values: &[f16]) -> Vec<f32> {
    values.iter().map(|v| v.to_f32()).collect()
}

fn expected(keyframe: &Keyframe, others: &[Other]) -> Coverage {
    let qualities: Vec<_> = others.iter().map(|o| widened(&o.quality)).collect();
    let views: Vec<View<'_>> = others
        .iter()
        .zip(&qualities)
        .map(|(o, quality)| View {
            index: &o.index,
            quality,
            points: &o.points,
            scale: o.scale,
        })
        .collect();
    let confidence = widened(&keyframe.confidence);
    let counts = &mut Vec::new();
    coverage(&keyframe.points, &confidence, &views, &LIMITS, counts)
}

struct Rig {
    stream: Stream,
    counter: CoverageCounter,
    points: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f32>,
    half_confidence: DeviceBuffer<f16>,
    other: DeviceBuffer<f32>,
    index: DeviceBuffer<u32>,
    quality: DeviceBuffer<f16>,
}

impl Rig {
    fn new(context: &Context, pixels: usize) -> Self {
        let stream = context.stream(Priority::Low).unwrap();
        crate::carve(context, |c| {
            let buffers = CoverageBuffers::carve(c, pixels)?;
            Ok(Self {
                counter: CoverageCounter::new(context, buffers, pixels)?,
                points: c.device("points", &[pixels, 3])?,
                confidence: c.device("confidence", &[pixels])?,
                half_confidence: c.device("half confidence", &[pixels])?,
                other: c.device("other points", &[pixels, 3])?,
                index: c.device("index", &[pixels])?,
                quality: c.device("quality", &[pixels])?,
                stream,
            })
        })
    }

    fn count(&self, keyframe: &Keyframe, others: &[Other], half: bool) -> Coverage {
        let s = &self.stream;
        s.write(&keyframe.points, self.points.all()).unwrap();
        let wide = widened(&keyframe.confidence);
        s.write(&wide, self.confidence.all()).unwrap();
        s.write(&keyframe.confidence, self.half_confidence.all())
            .unwrap();
        self.counter.clear(s).unwrap();
        for other in others {
            s.write(&other.points, self.other.all()).unwrap();
            s.write(&other.index, self.index.all()).unwrap();
            s.write(&other.quality, self.quality.all()).unwrap();
            let view = DeviceViewOf {
                matches: DeviceMatches {
                    index: self.index.all(),
                    quality: self.quality.all(),
                },
                points: self.other.all(),
                scale: other.scale,
            };
            self.counter
                .add(s, self.points.all(), &view, &LIMITS)
                .unwrap();
        }
        let confidence = match half {
            true => Floats::F16(self.half_confidence.all()),
            false => Floats::F32(self.confidence.all()),
        };
        self.counter
            .count(s, self.points.all(), confidence, &LIMITS)
            .unwrap()
    }
}

#[test]
fn coverage_counts_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let mut random = Random(7);
    // A pixel, less than a warp, beyond a block, and an image.
    for pixels in [1, 31, 257, 128 * 96] {
        let rig = Rig::new(context, pixels);
        for views in [0, 1, 2, 5] {
            let keyframe = keyframe(&mut random, pixels);
            let others: Vec<Other> = (0..views).map(|_| other(&mut random, pixels)).collect();
            let expected = expected(&keyframe, &others);
            for half in [true, false] {
                let found = rig.count(&keyframe, &others, half);
                assert_eq!(found, expected, "{pixels} pixels, {views} views");
            }
            if pixels > 1000 && views == 5 {
                let Coverage {
                    usable,
                    seen,
                    covered,
                } = expected;
                assert!(0 < covered && covered < seen && seen < usable && usable < pixels as u32);
            }
        }
    }
}

#[test]
fn counts_do_not_overflow_and_empty_keyframes_have_none() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let pixels = 300;
    let rig = Rig::new(context, pixels);
    let one = f16::from_f32(2.0);
    let mut keyframe = Keyframe {
        points: vec![1.0; 3 * pixels],
        confidence: vec![one; pixels],
    };
    let other = || Other {
        index: (0..pixels as u32).collect(),
        quality: vec![one; pixels],
        points: vec![1.0; 3 * pixels],
        scale: 1.0,
    };
    let others: Vec<Other> = (0..258).map(|_| other()).collect();
    let all = Coverage {
        usable: 300,
        seen: 300,
        covered: 300,
    };
    assert_eq!(expected(&keyframe, &others), all);
    assert_eq!(rig.count(&keyframe, &others, true), all);
    keyframe.points.fill(0.0);
    assert_eq!(
        rig.count(&keyframe, &others[..2], true),
        Coverage::default()
    );
}

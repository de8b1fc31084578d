//! Input for matching, the CPU's results, and device buffers.

use crate::{assert_same, assert_same_bits};
use half::f16;
use mast3r_slam::compute::cuda::matching::{
    Gates, MatchCounts, MatchTask, Matcher, MatcherBuffers, Start,
};
use mast3r_slam::compute::cuda::sanitise::ViewBuffers;
use mast3r_slam::compute::matching::{
    self as cpu, Refinement, View, match_quality, unique_matches,
};
use mast3r_slam::config::MatchingConfig;
use mast3r_slam::gpu::{Context, DeviceBuffer, Floats, Stream};
use mast3r_slam::inference::{Backend, PairOutput, ViewOutput};
use testkit::matching_scene::{Random, Scene};

/// The network's outputs for two views, and a keyframe's confidences.
pub struct Input {
    pub size: (usize, usize),
    pub dim: usize,
    pub views: [ViewOutput; 2],
    pub key_confidence: Vec<f32>,
    pub key_count: u32,
}

impl Input {
    pub fn of_scene(scene: &Scene, random: &mut Random) -> Self {
        let n = scene.pixels();
        let mut confidences = || -> Vec<f32> {
            let value = |random: &mut Random| match random.next() % 16 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -1.0,
                3 => 0.0,
                _ => (random.next() % 64) as f32 / 8.0,
            };
            (0..n).map(|_| value(random)).collect()
        };
        let mut view = |points: &[f32], descriptors: &[f32]| ViewOutput {
            points: points.to_vec(),
            descriptors: descriptors.to_vec(),
            confidence: confidences(),
            descriptor_confidence: confidences(),
        };
        Self {
            size: (scene.width, scene.height),
            dim: scene.dim,
            views: [
                view(&scene.points1, &scene.descriptors1),
                view(&scene.points2, &scene.descriptors2),
            ],
            key_confidence: confidences(),
            key_count: (random.next() % 4) as u32,
        }
    }

    /// Frame `frame` and keyframe `key` of a walk through the ray-cast room.
    pub fn of_room(size: (usize, usize), frame: usize, key: usize) -> Self {
        let spoil = testkit::room::Spoil {
            noise: 0.003,
            outliers: 0.01,
            bias: 0.0,
        };
        let poses = testkit::room::square_walk(120, 1.0);
        let keep = poses[..=frame.max(key)].to_vec();
        let mut room = testkit::room::RoomBackend::new(size, keep, spoil);
        let shape = room.shape().clone();
        let features = [frame, key].map(|k| {
            let mut features = vec![0.0; shape.tokens * shape.feature_dim];
            room.encode(&room.image(k), &mut features)
                .expect("room encodes");
            features
        });
        let mut out = PairOutput::zeros(&shape);
        room.decode(&features[0], &features[1], &mut out)
            .expect("room decodes");
        Self {
            size,
            dim: shape.descriptor_dim,
            key_confidence: out.view2.confidence.iter().map(|c| 3.0 * c).collect(),
            key_count: 3,
            views: [out.view1, out.view2],
        }
    }

    pub fn pixels(&self) -> usize {
        self.size.0 * self.size.1
    }

    pub fn view(&self, k: usize) -> View<'_> {
        View {
            points: &self.views[k].points,
            descriptors: &self.views[k].descriptors,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Found {
    pub index: Vec<u32>,
    pub valid: Vec<u8>,
    pub quality: Vec<f32>,
    pub gated: Vec<f32>,
    pub counts: MatchCounts,
}

/// As the tracker does it: matching, quality and gates.
pub fn on_cpu(
    input: &Input,
    refinement: Refinement,
    initial: Option<&[u32]>,
    params: &MatchingConfig,
    (q_conf, c_conf): (f32, f32),
) -> Found {
    let n = input.pixels();
    let (mut index, mut valid) = (vec![0; n], vec![0; n]);
    let stats = cpu::Matcher::new(input.size.0, input.size.1, input.dim)
        .with_refinement(refinement)
        .run(
            input.view(0),
            input.view(1),
            initial,
            params,
            &mut index,
            &mut valid,
        );
    let mut quality = vec![0.0; n];
    let [view1, view2] = &input.views;
    match_quality(
        &view1.descriptor_confidence,
        &view2.descriptor_confidence,
        &index,
        &valid,
        &mut quality,
    );
    let mut counts = MatchCounts {
        valid: stats.valid as u32,
        refined: stats.refined as u32,
        unique: unique_matches(&index, &valid, &mut Vec::new()) as u32,
        ..MatchCounts::default()
    };
    let mut gated = vec![0.0; n];
    for i in 0..n {
        let average = input.key_confidence[i] / input.key_count.max(1) as f32;
        let passes = quality[i] > q_conf;
        let confident = average > c_conf && view1.confidence[index[i] as usize] > c_conf;
        counts.good += u32::from(passes);
        counts.used += u32::from(passes && confident);
        if passes && confident {
            gated[i] = quality[i];
        }
    }
    Found {
        index,
        valid,
        quality,
        gated,
        counts,
    }
}

/// Device buffers for one input.
pub struct Device {
    pub matcher: Matcher,
    pub views: [ViewBuffers; 2],
    pub key_confidence: DeviceBuffer<f32>,
    pub key_count: DeviceBuffer<u32>,
    /// The index map, and an earlier one.
    pub index: DeviceBuffer<u32>,
    pub earlier: DeviceBuffer<u32>,
    pub use_earlier: DeviceBuffer<u32>,
    pub valid: DeviceBuffer<u8>,
    pub quality: DeviceBuffer<f32>,
    /// Qualities as an edge stores them.
    pub stored: DeviceBuffer<f16>,
    pub gated: DeviceBuffer<f32>,
    pub counts: DeviceBuffer<MatchCounts>,
}

impl Device {
    pub fn new(context: &Context, stream: &Stream, input: &Input, refinement: Refinement) -> Self {
        let (n, (w, h), dim) = (input.pixels(), input.size, input.dim);
        let device = crate::carve(context, |c| {
            let scratch = MatcherBuffers::carve(c, w, h, dim)?;
            Ok(Self {
                matcher: Matcher::new(context, scratch, w, h, dim, refinement)?,
                views: [
                    ViewBuffers::carve(c, n, dim)?,
                    ViewBuffers::carve(c, n, dim)?,
                ],
                key_confidence: c.device("key confidence", &[n])?,
                key_count: c.device("key count", &[1])?,
                index: c.device("index", &[n])?,
                earlier: c.device("earlier", &[n])?,
                use_earlier: c.device("use earlier", &[1])?,
                valid: c.device("valid", &[n])?,
                quality: c.device("quality", &[n])?,
                stored: c.device("stored quality", &[n])?,
                gated: c.device("gated", &[n])?,
                counts: c.device("counts", &[1])?,
            })
        });
        for (to, from) in device.views.iter().zip(&input.views) {
            stream.write(&from.points, to.points.all()).unwrap();
            stream.write(&from.confidence, to.confidence.all()).unwrap();
            stream
                .write(&from.descriptors, to.descriptors.all())
                .unwrap();
            let q = to.descriptor_confidence.all();
            stream.write(&from.descriptor_confidence, q).unwrap();
        }
        let confidence = device.key_confidence.all();
        stream.write(&input.key_confidence, confidence).unwrap();
        stream
            .write(&[input.key_count], device.key_count.all())
            .unwrap();
        device.poison(stream);
        device
    }

    /// Values that the kernels do not write remain recognisable.
    pub fn poison(&self, stream: &Stream) {
        stream.fill(self.index.all(), 0xee).unwrap();
        stream.fill(self.valid.all(), 0xee).unwrap();
        stream.fill(self.quality.all(), 0xee).unwrap();
        stream.fill(self.stored.all(), 0xee).unwrap();
        stream.fill(self.gated.all(), 0xee).unwrap();
        stream.fill(self.counts.all(), 0xee).unwrap();
    }

    pub fn task<'a>(&'a self, start: Start<'a>, (q_conf, c_conf): (f32, f32)) -> MatchTask<'a> {
        MatchTask {
            target: self.views[0].view(),
            query: self.views[1].view(),
            start,
            q_conf,
            gates: Some(Gates {
                key_confidence: self.key_confidence.all(),
                key_count: self.key_count.all(),
                c_conf,
                gated: self.gated.all(),
            }),
            index: self.index.all(),
            valid: self.valid.all(),
            quality: Floats::F32(self.quality.all()),
            counts: self.counts.all(),
        }
    }

    pub fn found(&self, stream: &Stream) -> Found {
        Found {
            index: stream.read_vec(self.index.all()).unwrap(),
            valid: stream.read_vec(self.valid.all()).unwrap(),
            quality: stream.read_vec(self.quality.all()).unwrap(),
            gated: stream.read_vec(self.gated.all()).unwrap(),
            counts: stream.read_vec(self.counts.all()).unwrap()[0],
        }
    }
}

/// As [`compare`], of a task that stored its qualities.
pub fn compare_stored(what: &str, device: &Device, stream: &Stream, expected: &Found) {
    let found = device.found(stream);
    let stored = stream.read_vec(device.stored.all()).unwrap();
    let bits: Vec<u16> = stored.iter().map(|q| q.to_bits()).collect();
    let rounded = |q: &f32| f16::from_f32(*q).to_bits();
    let expected_bits: Vec<u16> = expected.quality.iter().map(rounded).collect();
    assert_same(&format!("{what}: stored"), &bits, &expected_bits);
    let unwritten = found.quality.iter().all(|q| q.to_bits() == 0xeeee_eeee);
    assert!(unwritten, "{what}: qualities in one format only");
    // All else is as with qualities in f32.
    let found = Found {
        quality: expected.quality.clone(),
        ..found
    };
    compare(what, &found, expected);
}

pub fn compare(what: &str, found: &Found, expected: &Found) {
    assert_same(&format!("{what}: valid"), &found.valid, &expected.valid);
    assert_same(&format!("{what}: index"), &found.index, &expected.index);
    let named = |name| format!("{what}: {name}");
    assert_same_bits(&named("quality"), &found.quality, &expected.quality);
    assert_same_bits(&named("gated"), &found.gated, &expected.gated);
    assert_eq!(found.counts, expected.counts, "{what}");
}

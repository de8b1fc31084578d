//! The stages of a frame: from the camera's bytes to matches.

use super::measure::{Stage, Work};
use super::scene::Random;
use super::{Scene, Setup};
use crate::cli::CliError;
use crate::compute::cuda::convert::Convert;
use crate::compute::cuda::matching::{MatchCounts, MatchTask, Matcher, MatcherBuffers, Start};
use crate::compute::cuda::preprocess::{
    DevicePreprocessor, NetworkImage, PreprocessError, PreprocessorBuffers,
};
use crate::compute::cuda::sanitise::{Sanitiser, SanitiserBuffers, ViewBuffers};
use crate::compute::matching::Refinement;
use crate::config::MatchingConfig;
use crate::geometry::Sim3;
use crate::gpu::plan::Group;
use crate::gpu::{CudaError, DeviceBuffer, Floats, Stream};
use crate::image::encoding::Encoding;
use crate::image::{PreprocessOptions, Preprocessor};
use crate::inference::ViewOutput;
use half::f16;

/// Encoder tokens of a ViT-L image to f16.
struct ConvertStage {
    convert: Convert,
    wide: DeviceBuffer<f32>,
    narrow: DeviceBuffer<f16>,
}

/// Channels of a token of the official model.
const CHANNELS: usize = 1024;

pub fn convert(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let n = setup.scene.pixels() / 256 * CHANNELS;
    let mut random = Random(1);
    let values: Vec<f32> = (0..n).map(|_| random.normal() as f32).collect();
    Ok(Box::new(ConvertStage {
        convert: Convert::new(setup.context)?,
        wide: setup.send("tokens", &values)?,
        narrow: setup.buffer("tokens in f16", n)?,
    }))
}

impl Stage for ConvertStage {
    fn name(&self) -> String {
        "convert tokens to f16".into()
    }

    fn work(&self) -> Work {
        let n = self.wide.len() as u64;
        Work {
            bytes: 6 * n,
            operations: n,
        }
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.convert
            .narrow(stream, self.wide.all(), self.narrow.all())
    }
}

/// The camera of the target.
const RAW: (usize, usize) = (1920, 1080);

/// A 1080p camera's nv12 image, and the network's input that is made of it.
pub struct Camera {
    preprocessor: DevicePreprocessor,
    raw: DeviceBuffer<u8>,
    image: DeviceBuffer<u8>,
    planes: DeviceBuffer<f32>,
}

impl Camera {
    pub fn new(setup: &Setup<'_>) -> Result<Self, CliError> {
        let size = setup.scene.width.max(setup.scene.height);
        let cpu = Preprocessor::new(RAW.0, RAW.1, size, None, PreprocessOptions::default())?;
        let mut random = Random(2);
        let raw_bytes = Encoding::Nv12.bytes(RAW.0, RAW.1, RAW.0)?;
        let raw: Vec<u8> = (0..raw_bytes).map(|_| random.bits() as u8).collect();
        let (width, height) = cpu.output_size();
        let values = 3 * width * height;
        let mut carving = setup.carving();
        let tables = PreprocessorBuffers::carve(&mut carving.part(Group::Tracking, "bench"), &cpu)?;
        let stream = &setup.bench.stream;
        let made =
            DevicePreprocessor::new(setup.context, stream, tables, &cpu, Encoding::Nv12, RAW.0);
        Ok(Self {
            preprocessor: made.map_err(|error| match error {
                PreprocessError::Image(error) => CliError::from(error),
                PreprocessError::Cuda(error) => CliError::from(error),
            })?,
            raw: setup.send("raw image", &raw)?,
            image: setup.buffer("image", values)?,
            planes: setup.buffer("planes", values)?,
        })
    }
}

pub fn preprocess(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    Ok(Box::new(Camera::new(setup)?))
}

impl Stage for Camera {
    fn name(&self) -> String {
        "preprocess 1920x1080 nv12".into()
    }

    /// Raw bytes read, both forms written. Ten operations to decode a raw pixel; the rows, then the
    /// columns are resampled: a multiplication and an addition for each tap of six times the ratio of
    /// sizes (Lanczos), in three channels.
    fn work(&self) -> Work {
        let (width, height) = self.preprocessor.output_size();
        let taps = |from: usize, to: usize| 6 * from.div_ceil(to) as u64;
        let across = (width * RAW.1) as u64 * 3 * taps(RAW.0, width);
        let down = (width * height) as u64 * 3 * taps(RAW.1, height);
        Work {
            bytes: (self.raw.len() + self.image.len() + 4 * self.planes.len()) as u64,
            operations: 2 * (across + down) + 10 * (RAW.0 * RAW.1) as u64,
        }
    }

    fn target(&self) -> Option<f64> {
        Some(0.08)
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let out = NetworkImage {
            image: Some(self.image.all()),
            planes: Some(self.planes.all()),
            half_planes: None,
        };
        self.preprocessor.enqueue(stream, self.raw.all(), &out)
    }
}

/// Two neighbouring cameras' outputs, as a tracked frame and its keyframe have them: view 1 is the
/// frame, both in its camera.
pub struct Pair {
    pub target: ViewBuffers,
    pub query: ViewBuffers,
}

/// Relative noise of ranges.
const NOISE: f64 = 0.003;

impl Pair {
    /// Poses of the frame and of its keyframe: 6° and a quarter of a metre apart.
    pub fn poses() -> [Sim3; 2] {
        let walk = Scene::walk(2, 0.1);
        [walk[1], walk[0]]
    }

    pub fn new(setup: &Setup<'_>) -> Result<Self, CudaError> {
        let scene = &setup.scene;
        let mut carving = setup.carving();
        let mut part = carving.part(Group::Tracking, "bench");
        let [frame, keyframe] = Self::poses();
        let mut view = |seed, pose: &Sim3| {
            let host: ViewOutput = scene.output(&frame, pose, NOISE, seed);
            let buffers = ViewBuffers::carve(&mut part, scene.pixels(), scene.channels)?;
            let stream = &setup.bench.stream;
            stream.write(&host.points, buffers.points.all())?;
            stream.write(&host.confidence, buffers.confidence.all())?;
            stream.write(&host.descriptors, buffers.descriptors.all())?;
            let quality = buffers.descriptor_confidence.all();
            stream.write(&host.descriptor_confidence, quality)?;
            Ok::<_, CudaError>(buffers)
        };
        Ok(Self {
            target: view(3, &frame)?,
            query: view(4, &keyframe)?,
        })
    }
}

struct SanitiseStage {
    sanitiser: Sanitiser,
    pair: Pair,
    unusable: DeviceBuffer<u32>,
    values: u64,
}

pub fn sanitise(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let scene = &setup.scene;
    let (pixels, stream) = (scene.pixels(), &setup.bench.stream);
    let mut carving = setup.carving();
    let scratch = SanitiserBuffers::carve(&mut carving.part(Group::Tracking, "bench"))?;
    Ok(Box::new(SanitiseStage {
        sanitiser: Sanitiser::new(setup.context, stream, scratch, pixels, scene.channels)?,
        pair: Pair::new(setup)?,
        unusable: setup.buffer("unusable", 2)?,
        values: 2 * (pixels * (5 + scene.channels)) as u64,
    }))
}

impl Stage for SanitiseStage {
    fn name(&self) -> String {
        "sanitise both views".into()
    }

    /// Each value is read and tested; what is sound is not written.
    fn work(&self) -> Work {
        Work {
            bytes: 4 * self.values,
            operations: self.values,
        }
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let (first, second) = (self.pair.target.view(), self.pair.query.view());
        let unusable = self.unusable.all();
        self.sanitiser
            .enqueue(stream, first, Some(second), unusable)
    }

    fn outcome(&mut self, stream: &Stream) -> Result<String, CudaError> {
        let unusable = stream.read_vec(self.unusable.all())?;
        Ok(format!("unusable {unusable:?}"))
    }
}

/// Operations of matching a pixel. Rays 60; a look of the search 70, three looks. A candidate of the refinement is an
/// instruction of half the rate for four channels, (2 · radius + 1)² of them at each of `dilation_max` levels; nine
/// candidates at the end are two operations a channel.
pub fn matching_operations(params: &MatchingConfig, channels: usize) -> u64 {
    let side = 2 * params.radius as u64 + 1;
    let candidates = side * side * params.dilation_max as u64;
    let channels = channels as u64;
    60 + 3 * 70 + candidates * channels / 2 + 9 * 2 * channels
}

struct MatchingStage {
    matcher: Matcher,
    params: MatchingConfig,
    pair: Pair,
    index: DeviceBuffer<u32>,
    valid: DeviceBuffer<u8>,
    quality: DeviceBuffer<f32>,
    counts: DeviceBuffer<MatchCounts>,
    channels: usize,
}

pub fn matching(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let scene = &setup.scene;
    let (n, channels) = (scene.pixels(), scene.channels);
    let (width, height) = (scene.width, scene.height);
    let mut carving = setup.carving();
    let mut part = carving.part(Group::Tracking, "bench");
    let scratch = MatcherBuffers::carve(&mut part, width, height, channels)?;
    let (context, refinement) = (setup.context, Refinement::SingleAll);
    Ok(Box::new(MatchingStage {
        matcher: Matcher::new(context, scratch, width, height, channels, refinement)?,
        params: MatchingConfig::default(),
        pair: Pair::new(setup)?,
        index: setup.buffer("index", n)?,
        valid: setup.buffer("valid", n)?,
        quality: setup.buffer("quality", n)?,
        counts: setup.buffer("counts", 1)?,
        channels,
    }))
}

impl Stage for MatchingStage {
    fn name(&self) -> String {
        "matching (rays, search, refine)".into()
    }

    /// Points and descriptors of both views read, rounded ones written and read, indices, flags and qualities written.
    fn work(&self) -> Work {
        let n = self.index.len() as u64;
        Work {
            bytes: n * (2 * (12 + 6 * self.channels as u64 + 4) + 9),
            operations: n * matching_operations(&self.params, self.channels),
        }
    }

    fn target(&self) -> Option<f64> {
        Some(0.40)
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let task = MatchTask {
            target: self.pair.target.view(),
            query: self.pair.query.view(),
            start: Start::Identity,
            q_conf: 1.5,
            gates: None,
            index: self.index.all(),
            valid: self.valid.all(),
            quality: Floats::F32(self.quality.all()),
            counts: self.counts.all(),
        };
        self.matcher.enqueue(stream, &self.params, &task)
    }

    fn outcome(&mut self, stream: &Stream) -> Result<String, CudaError> {
        let counts = stream.read_vec(self.counts.all())?;
        let of = |k: fn(&MatchCounts) -> u32| {
            let count = counts.first().map_or(0, k);
            100.0 * f64::from(count) / self.index.len().max(1) as f64
        };
        Ok(format!(
            "{:.0} % matched, {:.0} % moved by descriptors",
            of(|c| c.valid),
            of(|c| c.refined)
        ))
    }
}

//! Place recognition with the official model's sizes, and the map's cloud.

use super::measure::{Stage, Work};
use super::scene::Random;
use super::{Scene, Setup, WHAT, planned, room, send};
use crate::cli::CliError;
use crate::compute::cuda::cloud::{Cloud, CloudKeyframe, CloudPlan};
use crate::compute::cuda::retrieval::{PlaceError, PlaceHit, Retrieval, RetrievalPlan};
use crate::compute::cuda::slots::{Floats, SlotView};
use crate::compute::cuda::{CudaError, DeviceArena, DeviceBuffer, PinnedArena, Stream};
use crate::compute::retrieval::Codebook;
use crate::geometry::Sim3;
use half::f16;

/// Channels of a token of the official model, and words of its codebook.
const CHANNELS: usize = 1024;
const WORDS: usize = 1 << 16;
/// Features of an image that are used.
const KEPT: u64 = 300;
/// Keyframes in the database.
const KEYFRAMES: usize = 200;

struct PlacesStage {
    places: Retrieval,
    plan: RetrievalPlan,
    tokens: DeviceBuffer<f32>,
    hits: Vec<PlaceHit>,
}

pub fn places(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let stream = &setup.bench.stream;
    let plan = RetrievalPlan {
        tokens: setup.scene.pixels() / 256,
        dim: CHANNELS,
        words: WORDS,
        keyframes: KEYFRAMES,
    };
    let n = plan.tokens * CHANNELS;
    let bytes = planned(&Retrieval::device_buffers(&plan)) + room(&[4 * n as u64]);
    let mut arena = DeviceArena::new(setup.context, WHAT, bytes)?;
    let mut pinned = PinnedArena::new(setup.context, planned(&Retrieval::pinned_buffers()))?;
    let mut random = Random(7);
    let mut draw =
        |count: usize| -> Vec<f32> { (0..count).map(|_| random.uniform() as f32 - 0.5).collect() };
    let projection: Vec<f64> = draw(CHANNELS * CHANNELS)
        .into_iter()
        .map(f64::from)
        .collect();
    let mean: Vec<f64> = draw(CHANNELS).into_iter().map(f64::from).collect();
    let codebook = Codebook::new(CHANNELS, &draw(WORDS * CHANNELS))
        .ok_or_else(|| CliError::Usage("the bench's codebook was refused".into()))?;
    let mut places = Retrieval::new(setup.context, plan, &mut arena, &mut pinned)?;
    places.load(stream, &mean, &projection, &codebook)?;
    places.clear(stream)?;
    let tokens = arena.carve("tokens", n)?;
    for id in 0..KEYFRAMES as u32 {
        stream.write(&draw(n), tokens.all())?;
        places.describe(stream, Floats::F32(tokens.all()))?;
        places.insert(stream, id).map_err(cuda)?;
        stream.synchronize()?;
    }
    Ok(Box::new(PlacesStage {
        places,
        plan,
        tokens,
        hits: Vec::new(),
    }))
}

/// What a query with sound features can fail of.
fn cuda(error: PlaceError) -> CudaError {
    match error {
        PlaceError::Cuda(error) => error,
        other => CudaError::Failed {
            doing: "recognising a place",
            code: 0,
            status: other.to_string(),
        },
    }
}

impl Stage for PlacesStage {
    fn name(&self) -> String {
        format!("retrieval, {WORDS} words, {KEYFRAMES} keyframes")
    }

    /// The codebook, the projection (two halves) and the tokens, read once; a multiplication and an
    /// addition for each token with the projection and for each feature in use with the codebook.
    fn work(&self) -> Work {
        let (t, c, k) = (self.plan.tokens as u64, CHANNELS as u64, WORDS as u64);
        Work {
            bytes: 4 * (k * c + 2 * c * c + t * c),
            operations: 2 * c * (t * c + KEPT * k),
        }
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.places
            .describe(stream, Floats::F32(self.tokens.all()))?;
        self.places.query(stream, 3, 0.0)
    }

    fn outcome(&mut self, stream: &Stream) -> Result<String, CudaError> {
        self.places.hits(stream, &mut self.hits).map_err(cuda)?;
        Ok(self.hits.first().map_or("no hit".into(), |hit| {
            format!("keyframe {} with {:.3}", hit.id, hit.score)
        }))
    }
}

struct CloudStage {
    cloud: Cloud,
    image: DeviceBuffer<u8>,
    points: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f16>,
    pose: Sim3,
}

/// Edge of a cube of the cloud, metres.
const VOXEL: f32 = 0.02;

pub fn cloud(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    let scene = &setup.scene;
    let n = scene.pixels();
    let plan = CloudPlan {
        width: scene.width,
        height: scene.height,
        capacity: 4 * n,
    };
    let own = room(&[3 * n as u64, 12 * n as u64, 2 * n as u64, 64]);
    let bytes = planned(&Cloud::device_buffers(&plan)) + own;
    let mut arena = DeviceArena::new(setup.context, WHAT, bytes)?;
    let mut pinned = PinnedArena::new(setup.context, planned(&Cloud::pinned_buffers()))?;
    let [pose, ..] = Scene::walk(1, 0.1)[..] else {
        return Err(CliError::Usage("the bench's room has no camera".into()));
    };
    let view = scene.output(&pose, &pose, 0.003, 8);
    let mut random = Random(9);
    let image: Vec<u8> = (0..3 * n).map(|_| random.bits() as u8).collect();
    let narrow: Vec<f16> = view.confidence.iter().map(|&c| f16::from_f32(c)).collect();
    Ok(Box::new(CloudStage {
        cloud: Cloud::new(setup.context, plan, &mut arena, &mut pinned)?,
        image: send(setup, &mut arena, "image", &image)?,
        points: send(setup, &mut arena, "points", &view.points)?,
        confidence: send(setup, &mut arena, "confidence", &narrow)?,
        pose,
    }))
}

impl Stage for CloudStage {
    fn name(&self) -> String {
        "cloud of a keyframe, 2 cm cubes".into()
    }

    /// 17 bytes a pixel read, 24 written to the cloud, 20 to the table; a transform and a hash.
    fn work(&self) -> Work {
        let n = self.confidence.len() as u64;
        Work {
            bytes: 61 * n,
            operations: 60 * n,
        }
    }

    fn prepare(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.cloud.clear(stream, VOXEL)
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let keyframe = CloudKeyframe {
            id: 0,
            slot: SlotView {
                image: self.image.all(),
                points: self.points.all(),
                confidence: Floats::F16(self.confidence.all()),
                features: Floats::F16(self.confidence.all()),
            },
            world_from_camera: self.pose,
        };
        self.cloud.add(stream, &keyframe, None, 1.5)
    }

    fn outcome(&mut self, stream: &Stream) -> Result<String, CudaError> {
        let size = self.cloud.size(stream)?;
        Ok(format!("{} points", size.points))
    }
}

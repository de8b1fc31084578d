//! Place recognition with the official model's sizes.

use super::Setup;
use super::measure::{Stage, Work};
use super::scene::Random;
use crate::cli::CliError;
use crate::compute::cuda::retrieval::{PlaceError, Retrieval, RetrievalBuffers, RetrievalPlan};
use crate::compute::retrieval::Codebook;
use crate::compute::retrieval::Hit;
use crate::gpu::plan::Group;
use crate::gpu::{CudaError, DeviceBuffer, Floats, Stream};

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
    hits: Vec<Hit>,
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
    let mut carving = setup.carving();
    let buffers = RetrievalBuffers::carve(&mut carving.part(Group::Retrieval, "bench"), plan)?;
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
    let mut places = Retrieval::new(setup.context, buffers)?;
    places.load(stream, &mean, &projection, &codebook)?;
    places.clear(stream)?;
    let tokens = setup.buffer("tokens", n)?;
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

/// Extracts the device error. Other errors cannot occur with valid features.
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

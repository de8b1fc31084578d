//! Models, and retrieval on the device with its memory.

use half::f16;
use mast3r_slam::compute::cuda::retrieval::{
    PlaceError, Retrieval, RetrievalBuffers, RetrievalPlan,
};
use mast3r_slam::compute::retrieval::Hit;
use mast3r_slam::compute::retrieval::{BinaryWords, Codebook, CodebookInfo, RetrievalModel};
use mast3r_slam::gpu::{Context, DeviceBuffer, Floats, Priority, Stream};

/// Uniform in −0.5 to 0.5.
pub fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        })
        .collect()
}

/// Integers from −8 to 7: sums of products of them are exact in f32, so every result is the CPU's.
pub fn integers(count: usize, seed: u64) -> Vec<f32> {
    noise(count, seed)
        .into_iter()
        .map(|v| (v * 16.0).floor())
        .collect()
}

pub struct Model {
    pub mean: Vec<f64>,
    pub projection: Vec<f64>,
    pub centroids: Vec<f32>,
    pub codebook: Codebook,
}

impl Model {
    pub fn new(mean: Vec<f64>, projection: Vec<f64>, centroids: Vec<f32>) -> Self {
        Self {
            codebook: Codebook::new(mean.len(), &centroids).unwrap(),
            mean,
            projection,
            centroids,
        }
    }

    /// Real numbers, with all of f64's digits in the whitening.
    pub fn real(dim: usize, words: usize, seed: u64) -> Self {
        let wide = |count, seed: u64| -> Vec<f64> {
            let (high, low) = (noise(count, seed), noise(count, seed + 1));
            let both = high.iter().zip(&low);
            both.map(|(&h, &l)| f64::from(h) + f64::from(l) * 2f64.powi(-26))
                .collect()
        };
        Self::new(
            wide(dim, seed),
            wide(dim * dim, seed + 2),
            noise(words * dim, seed + 4),
        )
    }

    /// Integers: a mean of ones, a projection that swaps the first and the last component.
    pub fn exact(dim: usize, words: usize, seed: u64) -> Self {
        let mut projection = vec![0.0; dim * dim];
        for i in 0..dim {
            let j = match i {
                0 => dim - 1,
                i if i == dim - 1 => 0,
                i => i,
            };
            projection[i * dim + j] = 1.0;
        }
        Self::new(vec![1.0; dim], projection, integers(words * dim, seed))
    }

    pub fn for_the_cpu(&self) -> RetrievalModel {
        RetrievalModel::new(
            self.mean.clone(),
            self.projection.clone(),
            &self.centroids,
            CodebookInfo::default(),
        )
        .unwrap()
    }
}

/// Words that a feature of a query belongs to.
const NEAREST: usize = 5;

/// A description as the device holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceDescription {
    pub whitened: Vec<f32>,
    /// The tokens in use, ascending; empty if the image cannot be described.
    pub kept: Vec<u32>,
    /// Their nearest words, five each; `u32::MAX` if there are fewer.
    pub nearest: Vec<u32>,
    pub ranks: Vec<f32>,
    pub query: BinaryWords,
    pub stored: BinaryWords,
}

/// Retrieval on the device with its memory.
pub struct Bench {
    pub retrieval: Retrieval,
    pub plan: RetrievalPlan,
    pub single: DeviceBuffer<f32>,
    pub half: DeviceBuffer<f16>,
    pub stream: Stream,
}

impl Bench {
    pub fn new(context: &Context, model: &Model, tokens: usize, keyframes: usize) -> Self {
        let plan = RetrievalPlan {
            tokens,
            dim: model.mean.len(),
            words: model.codebook.words(),
            keyframes,
        };
        let values = tokens * plan.dim;
        let buffers = crate::carve(context, |c| RetrievalBuffers::carve(c, plan));
        let stream = context.stream(Priority::Low).unwrap();
        let mut retrieval = Retrieval::new(context, buffers).unwrap();
        retrieval
            .load(&stream, &model.mean, &model.projection, &model.codebook)
            .unwrap();
        retrieval.clear(&stream).unwrap();
        Self {
            retrieval,
            plan,
            single: crate::buffer(context, values),
            half: crate::buffer(context, values),
            stream,
        }
    }

    /// Describes tokens as f32, or as f16 that hold them exactly.
    pub fn describe(&self, tokens: &[f32], half: bool) {
        let floats = if half {
            let tokens: Vec<f16> = tokens.iter().map(|&v| f16::from_f32(v)).collect();
            self.stream.write(&tokens, self.half.all()).unwrap();
            Floats::F16(self.half.all())
        } else {
            self.stream.write(tokens, self.single.all()).unwrap();
            Floats::F32(self.single.all())
        };
        self.retrieval.describe(&self.stream, floats).unwrap();
    }

    pub fn description(&self) -> DeviceDescription {
        let (from, stream) = (self.retrieval.description(), &self.stream);
        let [_, _, _, kept, query, stored, _] = stream.read_vec(from.status.all()).unwrap()[0];
        let of_kept = 0..kept as usize * NEAREST;
        let integers = 2 * self.plan.dim.div_ceil(64);
        let words = |at: usize, count: u32, bits: &DeviceBuffer<u32>| {
            let count = count as usize;
            let bits = bits.slice(0..count * integers).unwrap();
            let bits = stream.read_vec(bits).unwrap();
            let words = from.groups.slice(at..at + count).unwrap();
            BinaryWords {
                words: stream.read_vec(words).unwrap(),
                bits: bits
                    .chunks_exact(2)
                    .map(|b| u64::from(b[0]) | u64::from(b[1]) << 32)
                    .collect(),
            }
        };
        let mut all = stream.read_vec(from.kept.all()).unwrap();
        all.retain(|&row| row != u32::MAX);
        let nearest = from.words.slice(of_kept.clone()).unwrap();
        DeviceDescription {
            whitened: stream.read_vec(from.whitened.all()).unwrap(),
            kept: all,
            nearest: stream.read_vec(nearest).unwrap(),
            ranks: stream.read_vec(from.ranks.slice(of_kept).unwrap()).unwrap(),
            query: words(0, query, &from.query_bits),
            stored: words(from.groups.len() / 2, stored, &from.stored_bits),
        }
    }

    /// The last query's sums by keyframe, of these keyframes.
    pub fn sums(&self, ids: impl Iterator<Item = u32>) -> Vec<(u32, i64)> {
        let sums = self.stream.read_vec(self.retrieval.sums()).unwrap();
        ids.map(|id| (id, sums[self.retrieval.place(id).unwrap()]))
            .collect()
    }

    pub fn query(&mut self, k: usize, least: f32) -> Result<Vec<Hit>, PlaceError> {
        let mut hits = Vec::new();
        self.retrieval.query(&self.stream, k, least)?;
        self.retrieval.hits(&self.stream, &mut hits)?;
        Ok(hits)
    }
}

//! Models, and retrieval on the device with its memory.

use half::f16;
use mast3r_slam::compute::cuda::retrieval::{
    DeviceDescription, PlaceError, PlaceHit, Retrieval, RetrievalPlan,
};
use mast3r_slam::compute::cuda::slots::Floats;
use mast3r_slam::compute::cuda::{Context, DeviceBuffer, Pool, Priority, Stream};
use mast3r_slam::compute::plan::{Group, MemoryPlan};
use mast3r_slam::compute::retrieval::{Codebook, CodebookInfo, RetrievalModel};

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
        let mut memory = MemoryPlan::new();
        let mut part = memory.part(Group::Retrieval, "places");
        let device = part.device_arena(&Retrieval::device_buffers(&plan));
        let host = part.pinned_arena(&Retrieval::pinned_buffers());
        let single = part.device("single", &[values]);
        let half = part.device("half", &[values]);
        let pool = Pool::new(context, &memory).unwrap();
        let mut arena = pool.device_arena(device).unwrap();
        let mut pinned = pool.pinned_arena(host).unwrap();
        let stream = context.stream(Priority::Low).unwrap();
        let mut retrieval = Retrieval::new(context, plan, &mut arena, &mut pinned).unwrap();
        retrieval
            .load(&stream, &model.mean, &model.projection, &model.codebook)
            .unwrap();
        retrieval.clear(&stream).unwrap();
        Self {
            retrieval,
            plan,
            single: pool.device(single).unwrap(),
            half: pool.device(half).unwrap(),
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
        self.retrieval.read_description(&self.stream).unwrap()
    }

    pub fn query(&mut self, k: usize, least: f32) -> Result<Vec<PlaceHit>, PlaceError> {
        let mut hits = Vec::new();
        self.retrieval.query(&self.stream, k, least)?;
        self.retrieval.hits(&self.stream, &mut hits)?;
        Ok(hits)
    }
}

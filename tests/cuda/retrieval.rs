//! Place recognition on the device against the CPU's.

use crate::{assert_same, assert_same_bits, cuda};
use half::f16;
use mast3r_slam::compute::cuda::retrieval::{
    DeviceDescription, PlaceError, PlaceHit, Retrieval, RetrievalPlan,
};
use mast3r_slam::compute::cuda::slots::Floats;
use mast3r_slam::compute::cuda::{
    Context, CudaError, DeviceArena, DeviceBuffer, PinnedArena, Pool, Priority, Stream, allocations,
};
use mast3r_slam::compute::plan::{Group, MemoryPlan};
use mast3r_slam::compute::retrieval::{
    BinaryWords, Codebook, Nearest, binary_residuals, hamming, strongest, whiten,
};
use mast3r_slam::compute::retrieval::{
    CodebookInfo, Database, Description, RetrievalModel, Scratch,
};

const KEPT: usize = 300;
const NEAREST: usize = 5;

/// Uniform in −0.5 to 0.5.
fn noise(count: usize, seed: u64) -> Vec<f32> {
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
fn integers(count: usize, seed: u64) -> Vec<f32> {
    noise(count, seed)
        .into_iter()
        .map(|v| (v * 16.0).floor())
        .collect()
}

struct Model {
    mean: Vec<f64>,
    projection: Vec<f64>,
    centroids: Vec<f32>,
    codebook: Codebook,
}

impl Model {
    fn new(mean: Vec<f64>, projection: Vec<f64>, centroids: Vec<f32>) -> Self {
        Self {
            codebook: Codebook::new(mean.len(), &centroids).unwrap(),
            mean,
            projection,
            centroids,
        }
    }

    /// Real numbers, with all of f64's digits in the whitening.
    fn real(dim: usize, words: usize, seed: u64) -> Self {
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
    fn exact(dim: usize, words: usize, seed: u64) -> Self {
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

    fn for_the_cpu(&self) -> RetrievalModel {
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
struct Bench {
    retrieval: Retrieval,
    plan: RetrievalPlan,
    single: DeviceBuffer<f32>,
    half: DeviceBuffer<f16>,
    stream: Stream,
}

impl Bench {
    fn new(context: &Context, model: &Model, tokens: usize, keyframes: usize) -> Self {
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
    fn describe(&self, tokens: &[f32], half: bool) {
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

    fn description(&self) -> DeviceDescription {
        self.retrieval.read_description(&self.stream).unwrap()
    }

    fn query(&mut self, k: usize, least: f32) -> Result<Vec<PlaceHit>, PlaceError> {
        let mut hits = Vec::new();
        self.retrieval.query(&self.stream, k, least)?;
        self.retrieval.hits(&self.stream, &mut hits)?;
        Ok(hits)
    }
}

/// Whether the CPU sums products as the device does.
fn cpu_fuses() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return cfg!(target_arch = "aarch64");
}

/// Whitened tokens: both round a sum once to f32, half a unit in the last place each, and before that the
/// CPU's f64 sum is off by at most C·2⁻⁵³·Σ|xp| and the device's by 16·C·2⁻⁴⁸·Σ|xp|: the rest, at most 16
/// lost parts of 2⁻²⁴·Σ|xp| before it is folded into the sum, is rounded to f32 C times.
fn check_whitened(model: &Model, tokens: &[f32], found: &[f32]) {
    let dim = model.mean.len();
    let mut expected = vec![0.0; tokens.len()];
    whiten(tokens, &model.mean, &model.projection, &mut expected);
    let mut differ = 0;
    let mut worst = 0.0f64;
    // For an upper bound of Σ|x_c·p_cj| over every column j at once.
    let largest = model.projection.iter().fold(0.0f64, |a, p| a.max(p.abs()));
    for (t, row) in tokens.chunks_exact(dim).enumerate() {
        let size: f64 = row
            .iter()
            .zip(&model.mean)
            .map(|(&f, m)| (f64::from(f) - m).abs() * largest)
            .sum();
        for c in 0..dim {
            let (f, e) = (found[t * dim + c], expected[t * dim + c]);
            let unit = f64::from(e.abs().next_up()) - f64::from(e.abs());
            let lost = 16.5 * dim as f64 * 2f64.powi(-48) * size;
            let off = (f64::from(f) - f64::from(e)).abs();
            assert!(
                off <= unit + lost,
                "whitened[{t}][{c}]: {f:e} instead of {e:e}, allowed {:e}",
                unit + lost
            );
            differ += usize::from(f.to_bits() != e.to_bits());
            worst = worst.max(off / unit);
        }
    }
    eprintln!(
        "whitened {}×{dim}: {differ} of {} differ, at most {worst} units in the last place",
        tokens.len() / dim,
        tokens.len()
    );
}

/// Everything after whitening, computed by the CPU from the device's whitened tokens.
fn check_words(model: &Model, found: &DeviceDescription) {
    let dim = model.mean.len();
    let mut kept = Vec::new();
    strongest(&found.whitened, dim, KEPT, &mut kept);
    assert_same("kept tokens", &found.kept, &kept);
    let rows: Vec<f32> = kept
        .iter()
        .flat_map(|&t| &found.whitened[t as usize * dim..(t as usize + 1) * dim])
        .copied()
        .collect();
    let mut nearest = vec![Nearest::NONE; kept.len() * NEAREST];
    model.codebook.nearest(&rows, NEAREST, &mut nearest);
    if cpu_fuses() {
        let words: Vec<u32> = nearest.iter().map(|n| n.word).collect();
        let ranks: Vec<f32> = nearest.iter().map(|n| n.rank).collect();
        assert_same("nearest words", &found.nearest, &words);
        // Both zeros are the same rank.
        let plain = |v: &[f32]| v.iter().map(|v| v + 0.0).collect::<Vec<_>>();
        assert_same_bits("ranks", &plain(&found.ranks), &plain(&ranks));
    } else {
        eprintln!("this CPU does not fuse multiplications and additions: words are not compared");
    }
    for (count, words, what) in [
        (NEAREST, &found.query, "query"),
        (1, &found.stored, "stored"),
    ] {
        let mut assignments: Vec<(u32, u32)> = found
            .nearest
            .chunks_exact(NEAREST)
            .enumerate()
            .flat_map(|(row, words)| words[..count].iter().map(move |&w| (w, row as u32)))
            .filter(|&(word, _)| word != u32::MAX)
            .collect();
        let mut expected = BinaryWords::default();
        let (codebook, sum) = (&model.codebook, &mut Vec::new());
        binary_residuals(codebook, &rows, &mut assignments, sum, &mut expected);
        assert_same(&format!("{what} words"), &words.words, &expected.words);
        assert_same(&format!("{what} bits"), &words.bits, &expected.bits);
    }
}

fn check_description(bench: &Bench, model: &Model, tokens: &[f32], half: bool) {
    bench.describe(tokens, half);
    let found = bench.description();
    check_whitened(model, tokens, &found.whitened);
    check_words(model, &found);
    bench.describe(tokens, half);
    assert!(bench.description() == found, "a second run differs");
}

/// Descriptions at sizes (tokens, components, words), of real numbers and of integers.
fn compare(context: &Context, sizes: &[(usize, usize, usize)], seeds: u64) {
    for &(tokens, dim, words) in sizes {
        eprintln!("{tokens} tokens of {dim}, {words} words");
        for seed in 0..seeds {
            let model = Model::real(dim, words, 100 * seed);
            let bench = Bench::new(context, &model, tokens, 1);
            let half: Vec<f32> = noise(tokens * dim, seed + 7)
                .into_iter()
                .map(|v| f16::from_f32(v).to_f32())
                .collect();
            check_description(&bench, &model, &half, true);
            check_description(&bench, &model, &noise(tokens * dim, seed + 8), false);

            let model = Model::exact(dim, words, seed);
            let bench = Bench::new(context, &model, tokens, 1);
            check_description(&bench, &model, &integers(tokens * dim, seed + 9), true);
        }
    }
}

#[test]
fn descriptions_are_those_of_the_cpu() {
    let Some(gpu) = cuda() else { return };
    compare(&gpu, &[(3, 2, 7), (65, 33, 257)], 1);
}

#[test]
fn descriptions_of_the_full_set_of_sizes_are_those_of_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let sizes = [
        (1, 1, 1),
        (300, 64, 257),
        (301, 70, 300),
        (65, 33, 256),
        (33, 130, 3),
        (192, 192, 1024),
        (1025, 16, 513),
        (2000, 48, 100),
    ];
    compare(&gpu, &sizes, 2);
}

#[test]
fn equal_tokens_and_equal_words_go_by_their_numbers() {
    let Some(gpu) = cuda() else { return };
    let (tokens, dim, words) = (400, 24, 600);
    let mut model = Model::exact(dim, words, 3);
    // Only 40 different words, all over the panels, and 50 different tokens.
    for word in 40..words {
        let (same, dim) = (word % 40, dim);
        model
            .centroids
            .copy_within(same * dim..(same + 1) * dim, word * dim);
    }
    let model = Model::new(model.mean, model.projection, model.centroids);
    let bench = Bench::new(&gpu, &model, tokens, 1);
    let few = integers(50 * dim, 4);
    let many: Vec<f32> = few.iter().cycle().take(tokens * dim).copied().collect();
    check_description(&bench, &model, &many, false);
    check_description(&bench, &model, &vec![1.0; tokens * dim], false);
}

#[test]
fn unusable_tokens_are_named_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let (tokens, dim) = (37, 20);
    let mut large = Model::exact(dim, 50, 1);
    for p in &mut large.projection {
        *p *= 1e3;
    }
    let mut bench = Bench::new(&gpu, &large, tokens, 4);
    let cpu = large.for_the_cpu();
    let good = integers(tokens * dim, 2);
    bench.describe(&good, false);
    bench.retrieval.insert(&bench.stream, 5).unwrap();
    let with = |at: usize, v: f32| {
        let mut tokens = good.clone();
        tokens[at] = v;
        tokens
    };
    let cases = [
        vec![0.0; tokens * dim],
        vec![-0.0; tokens * dim],
        vec![f32::NAN; tokens * dim],
        with(0, f32::NAN),
        with(tokens * dim - 1, f32::INFINITY),
        with(13 * dim + 4, f32::NEG_INFINITY),
        // Finite, but not after whitening.
        with(9 * dim + 3, 3e38),
        with(5 * dim, -3e38),
    ];
    for (i, tokens) in cases.iter().enumerate() {
        let expected = cpu
            .describe(tokens, &mut Scratch::default(), &mut Description::default())
            .unwrap_err()
            .to_string();
        bench.describe(tokens, false);
        // Whatever was described before is not asked for.
        let error = bench.query(3, -1.0).unwrap_err();
        assert_eq!(error.to_string(), expected, "case {i}");
        let found = bench.description();
        assert!(found.kept.is_empty() && found.query.words.is_empty());
        assert!(found.stored.words.is_empty(), "case {i}");
    }
    // And it goes on.
    bench.describe(&good, false);
    let hits = bench.query(3, 0.0).unwrap();
    assert_eq!(hits.len(), 1);
    assert_eq!(hits[0].id, 5);
}

fn similar(base: &[f32], dim: usize, seed: u64) -> Vec<f32> {
    // Some rows of the base, the others new.
    let fresh = integers(base.len(), seed);
    let mut tokens = base.to_vec();
    for (row, fresh) in tokens.chunks_exact_mut(dim).zip(fresh.chunks_exact(dim)) {
        if fresh[0] < (seed % 16) as f32 - 8.0 {
            row.copy_from_slice(fresh);
        }
    }
    tokens
}

fn sum_of(query: &BinaryWords, stored: &BinaryWords, dim: usize) -> i64 {
    let integers = dim.div_ceil(64);
    let mut sum = 0;
    let mut distances = Vec::new();
    for (word, bits) in query.words.iter().zip(query.bits.chunks_exact(integers)) {
        if let Ok(at) = stored.words.binary_search(word) {
            let other = &stored.bits[at * integers..(at + 1) * integers];
            hamming(bits, other, &mut distances);
            let similarity = dim as i64 - 2 * i64::from(distances[0]);
            sum += similarity.max(0).pow(3);
        }
    }
    sum
}

/// Keyframes come and go in databases of sizes (tokens, components, words), with queries between.
fn ask(context: &Context, sizes: &[(usize, usize, usize)], capacity: usize, steps: u64) {
    for &(tokens, dim, words) in sizes {
        let model = Model::exact(dim, words, 11);
        let mut bench = Bench::new(context, &model, tokens, capacity);
        let cpu = model.for_the_cpu();
        let mut database = Database::new(&cpu);
        let (mut scratch, mut description) = (Scratch::default(), Description::default());
        let mut stored: Vec<(u32, BinaryWords)> = Vec::new();
        let bases: Vec<Vec<f32>> = (0..4).map(|b| integers(tokens * dim, 1000 + b)).collect();
        let mut hits = Vec::new();
        let mut answers = 0;
        for step in 0..steps {
            let tokens = similar(&bases[step as usize % 4], dim, step);
            cpu.describe(&tokens, &mut scratch, &mut description)
                .unwrap();
            bench.describe(&tokens, step % 2 == 0);
            for (k, least) in [
                (3, 5e-3),
                (32, 0.0),
                (1, 0.4),
                (10, -1.0),
                (0, 0.0),
                (5, f32::NAN),
            ] {
                let what = format!(
                    "{tokens_len} tokens, step {step}, k {k}, least {least}",
                    tokens_len = bench.plan.tokens
                );
                database.query(&description, k, least, &mut hits).unwrap();
                let found = bench.query(k, least).unwrap();
                let expected: Vec<(u32, u32)> =
                    hits.iter().map(|h| (h.id, h.score.to_bits())).collect();
                let found: Vec<(u32, u32)> =
                    found.iter().map(|h| (h.id, h.score.to_bits())).collect();
                assert_same(&what, &found, &expected);
                answers += found.len();
            }
            let now = bench.description();
            let mut sums: Vec<(u32, i64)> = stored
                .iter()
                .map(|(id, words)| (*id, sum_of(&now.query, words, dim)))
                .collect();
            sums.sort_unstable();
            let found = bench.retrieval.read_sums(&bench.stream).unwrap();
            assert_same("sums", &found, &sums);

            let id = (step * 7 % 1000) as u32;
            if bench.retrieval.len() == capacity {
                let error = bench.retrieval.insert(&bench.stream, id).unwrap_err();
                assert_eq!(error, PlaceError::Full { capacity });
                // Every other one goes, the places are used again.
                for i in (0..stored.len()).rev().step_by(2) {
                    let (id, _) = stored.remove(i);
                    assert!(bench.retrieval.remove(&bench.stream, id).unwrap());
                    assert!(!bench.retrieval.remove(&bench.stream, id).unwrap());
                    assert!(database.remove(id));
                }
            }
            bench.retrieval.insert(&bench.stream, id).unwrap();
            database.insert(id, &description).unwrap();
            stored.push((id, now.stored));
            let again = bench.retrieval.insert(&bench.stream, id).unwrap_err();
            assert_eq!(again, PlaceError::Duplicate { id });
            assert_eq!(bench.retrieval.len(), database.len());
        }
        assert!(answers as u64 > 6 * steps, "{answers} hits");
        bench.retrieval.clear(&bench.stream).unwrap();
        assert!(bench.retrieval.is_empty());
        assert_eq!(bench.query(32, -1.0).unwrap(), []);
    }
}

#[test]
fn the_database_answers_as_the_cpu_does() {
    let Some(gpu) = cuda() else { return };
    ask(&gpu, &[(60, 24, 300)], 7, 16);
}

#[test]
fn the_database_answers_the_full_set_of_queries_as_the_cpu_does() {
    let Some(gpu) = cuda() else { return };
    let sizes = [(60, 24, 300), (350, 70, 1000), (7, 130, 5), (2, 9, 1)];
    ask(&gpu, &sizes, 60, 150);
}

#[test]
fn a_captured_description_and_query_are_repeated() {
    let Some(gpu) = cuda() else { return };
    let (tokens, dim) = (90, 40);
    let model = Model::exact(dim, 500, 21);
    let mut bench = Bench::new(&gpu, &model, tokens, 8);
    let images: Vec<Vec<f32>> = (0..4).map(|i| integers(tokens * dim, 50 + i)).collect();
    for (i, image) in images.iter().enumerate() {
        bench.describe(image, false);
        bench.retrieval.insert(&bench.stream, i as u32).unwrap();
    }
    bench.stream.synchronize().unwrap();
    let (stream, retrieval) = (&bench.stream, &mut bench.retrieval);
    let source = Floats::F32(bench.single.all());
    let graph = stream
        .capture(|| -> Result<(), CudaError> {
            retrieval.describe(stream, source)?;
            retrieval.query(stream, 4, 0.0)
        })
        .unwrap();
    graph.upload(stream).unwrap();
    for (i, image) in images.iter().enumerate() {
        bench.stream.write(image, bench.single.all()).unwrap();
        let before = allocations();
        // SAFETY: all buffers are alive, and the stream is waited for before anybody looks.
        unsafe { graph.launch(&bench.stream) }.unwrap();
        let mut hits = Vec::new();
        bench.retrieval.hits(&bench.stream, &mut hits).unwrap();
        assert_eq!(allocations(), before);
        let captured = bench.description();
        bench.describe(image, false);
        assert_eq!(bench.query(4, 0.0).unwrap(), hits);
        assert!(bench.description() == captured);
        assert_eq!(hits[0].id, i as u32);
    }
}

#[test]
fn models_and_sizes_that_do_not_fit_are_refused() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let model = Model::exact(6, 10, 1);
    let mut bench = Bench::new(context, &model, 5, 2);
    let other = Model::exact(6, 11, 1);
    let third = Model::exact(7, 10, 1);
    for wrong in [&other, &third] {
        let refused = bench.retrieval.load(
            &bench.stream,
            &wrong.mean,
            &wrong.projection,
            &wrong.codebook,
        );
        assert!(matches!(refused, Err(CudaError::Length { .. })));
    }
    let short = Floats::F32(bench.single.slice(0..29).unwrap());
    assert!(bench.retrieval.describe(&bench.stream, short).is_err());
    let mut arena = DeviceArena::new(context, "test", 1 << 20).unwrap();
    let mut pinned = PinnedArena::new(context, 4096).unwrap();
    for (tokens, dim, words, keyframes) in [
        (0, 1, 1, 1),
        (1, 0, 1, 1),
        (1, 1, 0, 1),
        (1, 1, 1, 0),
        (1, 1 << 15, 1, 1),
        (1, 1, 1 << 23, 1),
    ] {
        let plan = RetrievalPlan {
            tokens,
            dim,
            words,
            keyframes,
        };
        let refused = Retrieval::new(context, plan, &mut arena, &mut pinned).map(|_| ());
        assert!(refused.is_err(), "{plan:?}");
    }
}

#[test]
fn a_full_size_codebook_and_what_it_takes() {
    let Some(gpu) = cuda() else { return };
    let (tokens, dim, words, keyframes) = (768, 1024, 65_536, 5000);
    let model = Model::real(dim, words, 31);
    let mut bench = Bench::new(&gpu, &model, tokens, keyframes);
    let half: Vec<f32> = noise(tokens * dim, 32)
        .into_iter()
        .map(|v| f16::from_f32(v).to_f32())
        .collect();
    check_description(&bench, &model, &half, true);
    for id in 0..keyframes as u32 {
        bench.retrieval.insert(&bench.stream, id).unwrap();
    }
    let hits = bench.query(3, 5e-3).unwrap();
    let ids: Vec<u32> = hits.iter().map(|h| h.id).collect();
    assert_same("equal keyframes", &ids, &[0, 1, 2]);

    let (start, middle, end) = (
        gpu.event(true).unwrap(),
        gpu.event(true).unwrap(),
        gpu.event(true).unwrap(),
    );
    let mut times = Vec::new();
    for _ in 0..20 {
        bench.stream.record(&start).unwrap();
        bench
            .retrieval
            .describe(&bench.stream, Floats::F16(bench.half.all()))
            .unwrap();
        bench.stream.record(&middle).unwrap();
        bench.retrieval.query(&bench.stream, 3, 5e-3).unwrap();
        bench.stream.record(&end).unwrap();
        times.push((
            start.milliseconds_until(&middle).unwrap(),
            middle.milliseconds_until(&end).unwrap(),
        ));
    }
    let median = |mut v: Vec<f32>| {
        v.sort_by(f32::total_cmp);
        v[v.len() / 2]
    };
    let (describe, query) = times.into_iter().unzip();
    let (describe, query) = (median(describe), median(query));
    // Fused multiply-adds of the search, 12 instructions a product of whitening.
    let instructions = (300 * words * dim + 12 * tokens * dim * dim) as f64;
    eprintln!(
        "describing {tokens}×{dim} with {words} words: {describe:.3} ms, {:.1} T instructions/s; \
         asking {keyframes} equal keyframes: {query:.3} ms",
        instructions / f64::from(describe) / 1e9
    );
}

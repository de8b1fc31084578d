//! The database's answers against the CPU's.

use super::rig::{Bench, Model, integers};
use crate::{assert_same, cuda};
use mast3r_slam::compute::cuda::retrieval::PlaceError;
use mast3r_slam::compute::retrieval::{BinaryWords, Database, Description, Scratch, hamming};
use mast3r_slam::gpu::{Context, CudaError, Floats, allocations};

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
            let found = bench.sums(sums.iter().map(|(id, _)| *id));
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

/// Tests of one size each: compute-sanitizer takes minutes for one of them.
macro_rules! long_runs {
    ($($name:ident: $size:expr,)*) => {$(
        #[test]
        fn $name() {
            let Some(gpu) = cuda() else { return };
            ask(&gpu, &[$size], 20, 48);
        }
    )*};
}

long_runs! {
    a_long_run_of_queries: (60, 24, 300),
    a_long_run_of_more_tokens_than_are_kept: (350, 70, 1000),
    a_long_run_of_few_tokens_and_words: (7, 130, 5),
    a_long_run_of_one_word: (2, 9, 1),
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
        // SAFETY: all buffers are alive, and the stream is waited for before they are read.
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

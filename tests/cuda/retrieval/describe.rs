//! Descriptions against the CPU's.

use super::rig::{Bench, DeviceDescription, Model, integers, noise};
use crate::{assert_same, assert_same_bits, cuda};
use half::f16;
use mast3r_slam::compute::retrieval::{
    BinaryWords, Description, Nearest, Scratch, binary_residuals, strongest, whiten,
};
use mast3r_slam::gpu::Context;

const KEPT: usize = 300;
const NEAREST: usize = 5;

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

/// Tests of one size each: compute-sanitizer takes minutes for one of them.
macro_rules! descriptions {
    ($($name:ident: $size:expr,)*) => {$(
        #[test]
        fn $name() {
            let Some(gpu) = cuda() else { return };
            compare(&gpu, &[$size], 2);
        }
    )*};
}

descriptions! {
    descriptions_of_one_number: (1, 1, 1),
    descriptions_of_as_many_tokens_as_are_kept: (300, 64, 257),
    descriptions_of_one_token_more: (301, 70, 300),
    descriptions_of_odd_sizes: (65, 33, 256),
    descriptions_of_few_words: (33, 130, 3),
    descriptions_of_the_small_network: (192, 192, 1024),
    descriptions_of_many_short_tokens: (1025, 16, 513),
    descriptions_of_more_tokens_than_an_image_has: (2000, 48, 100),
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

#[test]
fn a_full_size_codebook() {
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
}

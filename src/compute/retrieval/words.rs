//! Binary residuals per visual word and their Hamming distance (docs/algorithm.md, Place
//! recognition, steps 4 and 5).

use multiversion::multiversion;

use super::codebook::Codebook;

/// Aggregated binary residuals of an image for each visual word that occurs in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BinaryWords {
    /// The words, ascending and unique.
    pub words: Vec<u32>,
    /// `C` bits for each word in `C.div_ceil(64)` integers; component `c` is bit `c % 64` of
    /// integer `c / 64`, unused bits are zero.
    pub bits: Vec<u64>,
}

/// For each word in `assignments` (pairs of word and row), the signs of the summed residuals `ρ = Σ
/// (y − c)` of its rows: a bit is set if `ρ > 0`.
///
/// `rows` is `N × C` with the codebook's `C`. Sorts `assignments`; `sum` is scratch memory.
///
/// # Panics
/// If an assignment refers to an unknown row or word.
pub fn binary_residuals(
    codebook: &Codebook,
    rows: &[f32],
    assignments: &mut [(u32, u32)],
    sum: &mut Vec<f32>,
    dst: &mut BinaryWords,
) {
    let dim = codebook.dim();
    dst.words.clear();
    dst.bits.clear();
    // Sorting ensures that the rows of a word are always summed in the same order.
    assignments.sort_unstable();
    for group in assignments.chunk_by(|a, b| a.0 == b.0) {
        let word = group[0].0;
        sum.clear();
        sum.resize(dim, 0.0);
        for &(_, row) in group {
            let row = &rows[row as usize * dim..(row as usize + 1) * dim];
            for ((s, &y), c) in sum.iter_mut().zip(row).zip(codebook.centroid(word)) {
                *s += y - c;
            }
        }
        dst.words.push(word);
        dst.bits.extend(sum.chunks(64).map(|part| {
            part.iter()
                .enumerate()
                .fold(0, |bits, (i, &s)| bits | u64::from(s > 0.0) << i)
        }));
    }
}

/// The Hamming distance of `query` to each entry of `stored`, whose length must be a multiple of
/// `query`'s. `dst` is replaced.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx512vpopcntdq", "x86_64+popcnt"))]
pub fn hamming(query: &[u64], stored: &[u64], dst: &mut Vec<u32>) {
    dst.clear();
    if query.is_empty() {
        return;
    }
    dst.extend(stored.chunks_exact(query.len()).map(|entry| {
        entry
            .iter()
            .zip(query)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum::<u32>()
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residuals_are_summed_per_word_and_binarised_strictly() {
        let codebook = Codebook::new(3, &[0.0, 0.0, 0.0, 10.0, 10.0, 10.0]).unwrap();
        let rows = [1.0, -1.0, 0.0, 2.0, -3.0, 0.0, 11.0, 9.0, 10.0];
        let mut assignments = [(1, 2), (0, 0), (0, 1)];
        let mut words = BinaryWords::default();
        binary_residuals(
            &codebook,
            &rows,
            &mut assignments,
            &mut vec![5.0],
            &mut words,
        );
        assert_eq!(words.words, [0, 1]);
        // Word 0: (3, -4, 0); word 1: (1, -1, 0). Zero is not positive.
        assert_eq!(words.bits, [0b001, 0b001]);
    }

    #[test]
    fn bits_beyond_64_components() {
        let dim = 70;
        let codebook = Codebook::new(dim, &vec![0.0; dim]).unwrap();
        let mut row = vec![-1.0; dim];
        for c in [0, 63, 64, 69] {
            row[c] = 1.0;
        }
        let mut words = BinaryWords::default();
        binary_residuals(&codebook, &row, &mut [(0, 0)], &mut Vec::new(), &mut words);
        assert_eq!(words.bits, [1 | 1 << 63, 1 | 1 << 5]);
    }

    #[test]
    fn hamming_counts_differing_bits() {
        let mut distances = vec![7];
        hamming(
            &[0b1011, 1 << 63],
            &[0, 0, 0b1011, 1 << 63, u64::MAX, 0],
            &mut distances,
        );
        assert_eq!(distances, [4, 0, 62]);
        hamming(&[], &[], &mut distances);
        assert!(distances.is_empty());
    }
}

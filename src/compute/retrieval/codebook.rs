//! Visual words and nearest-word search (docs/algorithm.md, Place recognition, step 3).

use multiversion::multiversion;
use multiversion::target::match_target;
use rayon::prelude::*;

/// Maximum number of neighbours that a search can return.
pub const MAX_NEAREST: usize = 8;

/// Number of interleaved centroids, so that a vector register holds the same component of several.
const LANES: usize = 16;
/// Rows processed together by the kernel: with `LANES` this uses the 12 accumulators that fit AVX2.
const ROWS: usize = 6;
/// Rows per parallel task: each task reads each panel of centroids from memory once.
const TASK_ROWS: usize = 24;

/// A word and its distance from a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nearest {
    /// The word, or the one of [`Nearest::NONE`] if the codebook has fewer words than requested.
    pub word: u32,
    /// `‖c‖²/2 − y·c`: ordered like the distance, since `‖y − c‖² = ‖y‖² + 2·rank`.
    pub rank: f32,
}

impl Nearest {
    /// No word. Also returned for a row with a non-finite component.
    pub const NONE: Self = Self {
        word: u32::MAX,
        rank: f32::INFINITY,
    };
}

/// `K × C` centroids of visual words.
#[derive(Debug, Clone, PartialEq)]
pub struct Codebook {
    words: usize,
    dim: usize,
    /// Panels of `C × LANES`; lanes beyond the last word are zero.
    panels: Vec<f32>,
    /// Half squared norms; infinite beyond the last word, so that those lanes are never chosen.
    half_norms: Vec<f32>,
}

impl Codebook {
    /// Builds a codebook from `K × dim` centroids in row-major order. `None` if `dim` is zero, the
    /// length is zero or not a multiple of `dim`, there are more words than `u32` can count, or a
    /// value is not finite.
    pub fn new(dim: usize, centroids: &[f32]) -> Option<Self> {
        if dim == 0 || centroids.is_empty() || !centroids.len().is_multiple_of(dim) {
            return None;
        }
        let words = centroids.len() / dim;
        if words >= u32::MAX as usize || centroids.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let padded = words.next_multiple_of(LANES);
        let mut panels = vec![0.0; padded * dim];
        let mut half_norms = vec![f32::INFINITY; padded];
        for (word, centroid) in centroids.chunks_exact(dim).enumerate() {
            let panel = &mut panels[word / LANES * LANES * dim..];
            for (column, &v) in panel.chunks_exact_mut(LANES).zip(centroid) {
                column[word % LANES] = v;
            }
            let norm: f64 = centroid.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            half_norms[word] = (norm / 2.0) as f32;
        }
        Some(Self {
            words,
            dim,
            panels,
            half_norms,
        })
    }

    /// Number of words, `K`.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Components of a centroid, `C`.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The components of a word's centroid.
    ///
    /// # Panics
    /// If `word` is not below [`Codebook::words`].
    pub fn centroid(&self, word: u32) -> impl Iterator<Item = f32> + '_ {
        let word = word as usize;
        assert!(word < self.words, "word {word} of {}", self.words);
        let size = LANES * self.dim;
        let start = word / LANES * size;
        self.panels[start..start + size]
            .chunks_exact(LANES)
            .map(move |column| column[word % LANES])
    }

    /// `‖c‖²/2` of each word, as used in [`Nearest::rank`].
    pub fn half_norms(&self) -> &[f32] {
        &self.half_norms[..self.words]
    }

    /// All centroids, `K × C` in row-major order.
    pub fn to_rows(&self) -> Vec<f32> {
        (0..self.words as u32)
            .flat_map(|word| self.centroid(word))
            .collect()
    }

    /// The `count` words nearest to each row, nearest first; ties go to the lower word.
    ///
    /// `rows` is `T × C`, `dst` is `T × count`. Products are summed in f32 in the order of the
    /// components, whatever the number of threads.
    ///
    /// # Panics
    /// If the lengths do not match, or `count` is 0 or more than [`MAX_NEAREST`].
    pub fn nearest(&self, rows: &[f32], count: usize, dst: &mut [Nearest]) {
        assert!((1..=MAX_NEAREST).contains(&count), "1 to {MAX_NEAREST}");
        assert_eq!(rows.len() % self.dim, 0, "rows are T × C");
        assert_eq!(dst.len(), rows.len() / self.dim * count, "dst is T × count");
        rows.par_chunks(TASK_ROWS * self.dim)
            .zip(dst.par_chunks_mut(TASK_ROWS * count))
            .for_each(|(rows, dst)| {
                search(&self.panels, &self.half_norms, self.dim, rows, count, dst)
            });
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn search(
    panels: &[f32],
    half_norms: &[f32],
    dim: usize,
    rows: &[f32],
    count: usize,
    dst: &mut [Nearest],
) {
    match_target! {
        "x86_64+avx2+fma" => search_generic::<true>(panels, half_norms, dim, rows, count, dst),
        "aarch64" => search_generic::<true>(panels, half_norms, dim, rows, count, dst),
        _ => search_generic::<false>(panels, half_norms, dim, rows, count, dst),
    }
}

#[inline(always)]
fn search_generic<const FMA: bool>(
    panels: &[f32],
    half_norms: &[f32],
    dim: usize,
    rows: &[f32],
    count: usize,
    dst: &mut [Nearest],
) {
    dst.fill(Nearest::NONE);
    let row_count = rows.len() / dim;
    for (index, panel) in panels.chunks_exact(dim * LANES).enumerate() {
        let first_word = index * LANES;
        let Some(half_norms) = half_norms[first_word..].first_chunk::<LANES>() else {
            return;
        };
        for first_row in (0..row_count).step_by(ROWS) {
            // A last block with fewer rows computes its last row several times.
            let block: [&[f32]; ROWS] = std::array::from_fn(|r| {
                let row = (first_row + r).min(row_count - 1);
                &rows[row * dim..(row + 1) * dim]
            });
            let products = dots::<FMA>(&block, panel);
            for (row, products) in (first_row..row_count).zip(&products) {
                let best = &mut dst[row * count..(row + 1) * count];
                let ranks: [f32; LANES] = std::array::from_fn(|l| half_norms[l] - products[l]);
                let min = ranks.iter().fold(f32::INFINITY, |a, &b| a.min(b));
                if min < best[count - 1].rank {
                    for (lane, &rank) in ranks.iter().enumerate() {
                        insert(best, (first_word + lane) as u32, rank);
                    }
                }
            }
        }
    }
}

/// Scalar products of `ROWS` rows with the `LANES` centroids of a panel.
#[inline(always)]
fn dots<const FMA: bool>(rows: &[&[f32]; ROWS], panel: &[f32]) -> [[f32; LANES]; ROWS] {
    let (columns, _) = panel.as_chunks::<LANES>();
    let rows = rows.map(|row| &row[..columns.len()]);
    let mut sums = [[0.0; LANES]; ROWS];
    for (c, column) in columns.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            let y = row[c];
            for (sum, &v) in sums.iter_mut().zip(column) {
                *sum = if FMA {
                    y.mul_add(v, *sum)
                } else {
                    *sum + y * v
                };
            }
        }
    }
    sums
}

/// Keeps `best` sorted. Words arrive in ascending order, so ties are inserted after existing
/// entries.
#[inline(always)]
fn insert(best: &mut [Nearest], word: u32, rank: f32) {
    let mut at = best.len();
    while at > 0 && rank < best[at - 1].rank {
        at -= 1;
    }
    if at < best.len() {
        best[at..].rotate_right(1);
        best[at] = Nearest { word, rank };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use testkit::random::integers;

    proptest! {
        #[test]
        fn nearest_equals_sorting_all_distances(
            dim in 1usize..40, words in 1usize..70, count in 1usize..=MAX_NEAREST,
            rows in 0usize..60, seed in any::<u32>(),
        ) {
            let centroids = integers(words * dim, u64::from(seed));
            let rows = integers(rows * dim, u64::from(seed) + 7);
            let codebook = Codebook::new(dim, &centroids).unwrap();
            prop_assert_eq!(&codebook.to_rows(), &centroids);
            let mut found = vec![Nearest::NONE; rows.len() / dim * count];
            codebook.nearest(&rows, count, &mut found);
            for (row, found) in rows.chunks_exact(dim).zip(found.chunks_exact(count)) {
                let mut all: Vec<(i64, u32)> = centroids
                    .chunks_exact(dim)
                    .zip(0..)
                    .map(|(c, word)| {
                        let d = row.iter().zip(c).map(|(y, c)| ((y - c) * (y - c)) as i64).sum();
                        (d, word)
                    })
                    .collect();
                all.sort_unstable();
                let want: Vec<u32> = all.iter().map(|&(_, word)| word).take(count).collect();
                let got: Vec<u32> = found
                    .iter()
                    .filter(|n| **n != Nearest::NONE)
                    .map(|n| n.word)
                    .collect();
                prop_assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn rows_that_are_not_finite_have_no_word() {
        let codebook = Codebook::new(2, &[0.0, 1.0, 2.0, 3.0]).unwrap();
        let mut found = [Nearest::NONE; 4];
        codebook.nearest(&[f32::NAN, 0.0, 0.0, 1.0], 2, &mut found);
        assert_eq!(found[..2], [Nearest::NONE; 2]);
        assert_eq!((found[2].word, found[3].word), (0, 1));
    }

    #[test]
    fn codebooks_that_make_no_sense() {
        for (dim, centroids) in [
            (0, &[1.0][..]),
            (2, &[]),
            (2, &[1.0, 2.0, 3.0]),
            (2, &[1.0, f32::NAN]),
            (1, &[f32::INFINITY]),
        ] {
            assert_eq!(Codebook::new(dim, centroids), None);
        }
    }
}

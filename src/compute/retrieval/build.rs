//! Learns a retrieval model from features: PCA whitening, then k-means. On a given machine, the
//! same input and seed give the same bits for any number of threads.

use half::f16;
use nalgebra::{DMatrix, SymmetricEigen};
use rayon::prelude::*;

use super::describe::check_features;
use super::model::MAX_DIM;
use super::{Codebook, CodebookInfo, Nearest, RetrievalError, RetrievalModel, Scratch};

/// Added to every variance before inversion, as a fraction of the mean variance: directions below
/// this are mostly rounding noise, which whitening would amplify.
const VARIANCE_FLOOR: f64 = 1e-3;

/// Options for learning a codebook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildOptions {
    /// Number of visual words, `K`; the result has fewer if the features are not diverse enough.
    pub clusters: usize,
    /// Maximum number of k-means iterations.
    pub iterations: usize,
    /// Seed for choosing the initial centroids.
    pub seed: u64,
    /// Whether to whiten; otherwise features are only centred.
    pub whiten: bool,
    /// Hash of the weights that produced the features; stored in the file.
    pub weights_hash: String,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            clusters: 1024,
            iterations: 10,
            seed: 0,
            whiten: true,
            weights_hash: String::new(),
        }
    }
}

impl RetrievalModel {
    /// Learns a model from the encoder features (`T × dim`) of many images. Only the features that
    /// a description would use are clustered, so that memory is `images × min(T, 300) × dim × 4`
    /// bytes in addition to the input.
    ///
    /// Learn from varied images, and not from the images to be recognised: residuals sum to zero
    /// over the features whose mean is the word, so that scores among training images are several
    /// times lower than among new ones, and no single threshold suits both.
    ///
    /// # Errors
    /// Errors of [`RetrievalModel::describe`] for an image's features;
    /// [`RetrievalError::TooFewFeatures`] if there are fewer features than `options.clusters`, or
    /// if that is 0.
    pub fn build(
        features: &[Vec<f32>],
        dim: usize,
        options: &BuildOptions,
    ) -> Result<Self, RetrievalError> {
        if dim == 0 || dim > MAX_DIM {
            return Err(RetrievalError::Model {
                expected: format!("features of 1 to {MAX_DIM} components"),
                found: format!("{dim}"),
            });
        }
        for image in features {
            check_features(image, dim)?;
        }
        let total = features.iter().map(Vec::len).sum::<usize>() / dim;
        let too_few = |found| RetrievalError::TooFewFeatures {
            images: features.len(),
            found,
            clusters: options.clusters,
        };
        if options.clusters == 0 || total < options.clusters {
            return Err(too_few(total));
        }
        let mean = mean_of(features, dim);
        let projection = if options.whiten {
            whitening_of(features, &mean)
        } else {
            DMatrix::identity(dim, dim)
        };
        // The file stores f32, so learn the words with exactly those values.
        let mean: Vec<f64> = mean.iter().map(|&v| f64::from(v as f32)).collect();
        let projection: Vec<f64> = (0..dim * dim)
            .map(|i| f64::from(projection[(i / dim, i % dim)] as f32))
            .collect();
        let info = CodebookInfo {
            weights_hash: options.weights_hash.clone(),
            images: features.len(),
        };

        // A model with a placeholder word, to select and whiten features exactly as a description
        // does.
        let whitening = Self::new(
            mean.clone(),
            projection.clone(),
            &vec![0.0; dim],
            CodebookInfo::default(),
        )?;
        let mut scratch = Scratch::default();
        let mut rows = Vec::new();
        for image in features {
            whitening.local_features(image, &mut scratch)?;
            rows.extend_from_slice(&scratch.rows);
        }
        if rows.len() / dim < options.clusters {
            return Err(too_few(rows.len() / dim));
        }
        let mut centroids = k_means(&rows, dim, options);
        // Halves the file size; words are much further apart than the resolution of f16.
        if centroids.iter().all(|&v| f16::from_f32(v).is_finite()) {
            for v in &mut centroids {
                *v = f16::from_f32(*v).to_f32();
            }
        }
        Self::new(mean, projection, &centroids, info)
    }
}

fn mean_of(features: &[Vec<f32>], dim: usize) -> Vec<f64> {
    let mut mean = vec![0.0; dim];
    let mut count = 0usize;
    for row in features.iter().flat_map(|image| image.chunks_exact(dim)) {
        for (m, &v) in mean.iter_mut().zip(row) {
            *m += f64::from(v);
        }
        count += 1;
    }
    for m in &mut mean {
        *m /= count as f64;
    }
    mean
}

/// `U·(Λ + ε)^(−1/2)` of the covariance `U·Λ·Uᵀ`, strongest direction first; the largest component
/// of each direction is made positive, so that signs do not depend on the eigensolver.
fn whitening_of(features: &[Vec<f32>], mean: &[f64]) -> DMatrix<f64> {
    let dim = mean.len();
    let count = features.iter().map(Vec::len).sum::<usize>() / dim;
    // Each entry is summed over all features in order, by one thread.
    const LINES: usize = 8;
    let mut covariance = vec![0.0; dim * dim];
    covariance
        .par_chunks_mut(LINES * dim)
        .enumerate()
        .for_each(|(block, lines)| {
            let mut centred = vec![0.0; dim];
            for row in features.iter().flat_map(|image| image.chunks_exact(dim)) {
                for ((c, &v), &m) in centred.iter_mut().zip(row).zip(mean) {
                    *c = f64::from(v) - m;
                }
                for (i, line) in lines.chunks_exact_mut(dim).enumerate() {
                    let left = centred[block * LINES + i];
                    for (sum, &right) in line.iter_mut().zip(&centred) {
                        *sum += left * right;
                    }
                }
            }
        });
    let covariance = DMatrix::from_row_slice(dim, dim, &covariance) / count as f64;
    let floor = VARIANCE_FLOOR * covariance.trace() / dim as f64;
    let eigen = SymmetricEigen::new(covariance);
    let mut order: Vec<usize> = (0..dim).collect();
    order.sort_by(|&a, &b| {
        eigen.eigenvalues[b]
            .total_cmp(&eigen.eigenvalues[a])
            .then(a.cmp(&b))
    });
    let mut projection = DMatrix::zeros(dim, dim);
    for (column, &source) in order.iter().enumerate() {
        let direction = eigen.eigenvectors.column(source);
        let variance = eigen.eigenvalues[source].max(0.0) + floor;
        // Identical features have no direction to whiten.
        let scale = if variance > 0.0 {
            variance.sqrt().recip()
        } else {
            1.0
        };
        let largest = direction[direction.icamax()];
        let sign = if largest < 0.0 { -1.0 } else { 1.0 };
        projection.set_column(column, &(direction * (scale * sign)));
    }
    projection
}

/// Lloyd's algorithm starting from randomly chosen rows. Words that lose all their rows move to the
/// rows furthest from their word, or are removed if every row coincides with a word.
fn k_means(rows: &[f32], dim: usize, options: &BuildOptions) -> Vec<f32> {
    let count = rows.len() / dim;
    let row = |index: usize| &rows[index * dim..(index + 1) * dim];
    let mut centroids: Vec<f32> = choose(count, options.clusters, options.seed)
        .into_iter()
        .flat_map(|index| row(index).iter().copied())
        .collect();
    let mut nearest = vec![Nearest::NONE; count];
    let mut previous = Vec::new();
    for _ in 0..options.iterations {
        let Some(codebook) = Codebook::new(dim, &centroids) else {
            break;
        };
        codebook.nearest(rows, 1, &mut nearest);
        let words: Vec<u32> = nearest.iter().map(|n| n.word).collect();
        if words == previous {
            break;
        }
        let mut members = vec![Vec::new(); codebook.words()];
        for (index, &word) in words.iter().enumerate() {
            // A row so large that its products overflow has no nearest word.
            if let Some(members) = members.get_mut(word as usize) {
                members.push(index);
            }
        }
        centroids
            .par_chunks_exact_mut(dim)
            .zip(&members)
            .for_each(|(centroid, members)| average(rows, dim, members, centroid));
        let empty: Vec<usize> = (0..members.len())
            .filter(|&w| members[w].is_empty())
            .collect();
        if !empty.is_empty() {
            refill(rows, dim, &words, &empty, &mut centroids);
        }
        previous = words;
    }
    centroids
}

fn average(rows: &[f32], dim: usize, members: &[usize], centroid: &mut [f32]) {
    if members.is_empty() {
        return;
    }
    let mut sum = vec![0.0f64; dim];
    for &index in members {
        for (s, &v) in sum.iter_mut().zip(&rows[index * dim..(index + 1) * dim]) {
            *s += f64::from(v);
        }
    }
    for (c, s) in centroid.iter_mut().zip(sum) {
        *c = (s / members.len() as f64) as f32;
    }
}

/// Moves the words in `empty` to the rows furthest from their own word, and removes those for which
/// no row remains.
fn refill(rows: &[f32], dim: usize, words: &[u32], empty: &[usize], centroids: &mut Vec<f32>) {
    let distances: Vec<f64> = rows
        .par_chunks_exact(dim)
        .zip(words)
        .map(|(row, &word)| {
            let start = word as usize * dim;
            let Some(centroid) = centroids.get(start..start + dim) else {
                return 0.0;
            };
            let squares = row.iter().zip(centroid);
            squares.map(|(&y, &c)| f64::from(y - c).powi(2)).sum()
        })
        .collect();
    let mut furthest: Vec<usize> = (0..distances.len())
        .filter(|&i| distances[i] > 0.0)
        .collect();
    furthest.sort_by(|&a, &b| distances[b].total_cmp(&distances[a]).then(a.cmp(&b)));
    for (&word, &index) in empty.iter().zip(&furthest) {
        centroids[word * dim..(word + 1) * dim]
            .copy_from_slice(&rows[index * dim..(index + 1) * dim]);
    }
    for &word in empty.iter().skip(furthest.len()).rev() {
        centroids.drain(word * dim..(word + 1) * dim);
    }
}

/// `chosen` distinct indices below `count`, by a partial shuffle.
fn choose(count: usize, chosen: usize, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut indices: Vec<usize> = (0..count).collect();
    for i in 0..chosen.min(count) {
        // The modulo bias is below 2^-40 for any number of rows that fits in memory.
        let j = i + (split_mix(&mut state) % (count - i) as u64) as usize;
        indices.swap(i, j);
    }
    indices.truncate(chosen);
    indices
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_split_mix_64() {
        // First outputs for seed 1234567 from the authors' reference implementation.
        let mut state = 1_234_567;
        assert_eq!(split_mix(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn chosen_indices_differ() {
        for (count, chosen) in [(1, 1), (10, 3), (10, 10), (1000, 400)] {
            let mut indices = choose(count, chosen, 5);
            assert_eq!(indices.len(), chosen);
            indices.sort_unstable();
            indices.dedup();
            assert_eq!(indices.len(), chosen);
            assert!(indices.iter().all(|&i| i < count));
        }
    }

    #[test]
    fn whitened_features_have_unit_covariance() {
        // Strongly correlated features; the floor shrinks variances by less than 2 %.
        let mut state = 3;
        let mut next = || (split_mix(&mut state) >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        let dim = 5;
        let images: Vec<Vec<f32>> = (0..20)
            .map(|_| {
                (0..50)
                    .flat_map(|_| {
                        let base: [f64; 5] = std::array::from_fn(|_| next());
                        let mixed: [f32; 5] = std::array::from_fn(|i| {
                            (3.0 + base[i] + 0.7 * base[(i + 1) % 5]) as f32
                        });
                        mixed
                    })
                    .collect()
            })
            .collect();
        let mean = mean_of(&images, dim);
        let projection = whitening_of(&images, &mean);
        let rows: Vec<f64> = images.iter().flatten().map(|&v| f64::from(v)).collect();
        let rows = DMatrix::from_row_slice(rows.len() / dim, dim, &rows);
        let centred = DMatrix::from_fn(rows.nrows(), dim, |i, j| rows[(i, j)] - mean[j]);
        let whitened = centred * projection;
        let covariance = whitened.transpose() * &whitened / whitened.nrows() as f64;
        for i in 0..dim {
            for j in 0..dim {
                let want = if i == j { 1.0 } else { 0.0 };
                assert!((covariance[(i, j)] - want).abs() < 0.02, "{covariance}");
            }
        }
    }

    #[test]
    fn words_without_rows_move_or_vanish() {
        // Two distinct values and four requested words: two words remain, at the values.
        let rows: Vec<f32> = (0..40)
            .map(|i| if i % 2 == 0 { 1.0 } else { 5.0 })
            .collect();
        let options = BuildOptions {
            clusters: 4,
            ..BuildOptions::default()
        };
        let mut centroids = k_means(&rows, 1, &options);
        centroids.sort_by(f32::total_cmp);
        assert_eq!(centroids, [1.0, 5.0]);
    }
}

//! Matrices of weights, row by row.

use rayon::prelude::*;

/// Transposes a `rows × columns` matrix in tiles, because column-wise access to a large matrix
/// would miss the cache at every element.
pub fn transpose(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const TILE: usize = 16;
    let mut out = vec![0.0; matrix.len()];
    // Each thread transposes TILE columns, which are as many rows of the output.
    let strips = out.par_chunks_mut((TILE * rows).max(1)).enumerate();
    strips.for_each(|(strip, out)| {
        let column = strip * TILE;
        for row in (0..rows).step_by(TILE) {
            for r in row..(row + TILE).min(rows) {
                for c in column..(column + TILE).min(columns) {
                    out[(c - column) * rows + r] = matrix[r * columns + c];
                }
            }
        }
    });
    out
}

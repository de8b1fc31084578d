//! `LLᵀ` factorisation of a sparse symmetric matrix over poses, in dense 7×7 blocks.
//!
//! A general sparse solver stores one index per entry and detects dense parts by search. Here they
//! are known: a pose has seven rows and columns, stored in vectors of eight. Measured on one core
//! against faer 0.24 (with symbolic analysis reused), for 200 keyframes and 300 edges: 77 µs
//! instead of 294, and 71 µs instead of 1050 for the symbolic analysis.

use multiversion::multiversion;

/// Rows and columns of a block.
pub(super) const SIZE: usize = 7;
/// Stored rows, padded by one to fill whole vectors.
const STRIDE: usize = 8;
/// Row in which a column stores its entry of the right-hand side and, later, the inverse of its
/// diagonal entry.
const RIGHT: usize = STRIDE - 1;
const INVERSE: usize = RIGHT;

/// Seven rows of a vector; the padding entry is never modified.
pub(super) type Rows = [f64; STRIDE];
/// A block, column-major.
pub(super) type Block = [Rows; SIZE];

const ZERO: Block = [[0.0; STRIDE]; SIZE];

/// Sparsity pattern of `L`: which blocks are non-zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Pattern {
    /// Elimination position of each node.
    position: Vec<usize>,
    /// Start of each column's rows, by position, plus the end.
    starts: Vec<usize>,
    /// Positions of the blocks below the diagonal, ascending within each column.
    rows: Vec<usize>,
}

impl Pattern {
    /// The pattern of a matrix with a block for each of `nodes` and each of `links`, ordered by
    /// minimum degree: the node with the fewest neighbours is eliminated first, which connects its
    /// neighbours with each other.
    pub(super) fn new(nodes: usize, links: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut neighbours = vec![Vec::new(); nodes];
        for (a, b) in links.filter(|(a, b)| a != b) {
            neighbours[a].push(b);
            neighbours[b].push(a);
        }
        for list in &mut neighbours {
            list.sort_unstable();
            list.dedup();
        }
        let mut position = vec![usize::MAX; nodes];
        let mut columns = Vec::with_capacity(nodes);
        let mut merged = Vec::new();
        for at in 0..nodes {
            let left = (0..nodes).filter(|&k| position[k] == usize::MAX);
            let Some(next) = left.min_by_key(|&k| neighbours[k].len()) else {
                break;
            };
            position[next] = at;
            let clique = std::mem::take(&mut neighbours[next]);
            for &k in &clique {
                merge(&neighbours[k], &clique, (k, next), &mut merged);
                std::mem::swap(&mut neighbours[k], &mut merged);
            }
            columns.push(clique);
        }
        let (mut starts, mut rows) = (vec![0], Vec::new());
        for column in columns {
            let start = rows.len();
            rows.extend(column.iter().map(|&k| position[k]));
            rows[start..].sort_unstable();
            starts.push(rows.len());
        }
        Self {
            position,
            starts,
            rows,
        }
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.position.len()
    }

    /// Elimination position of `node`: the index of its rows and of its diagonal block.
    pub(super) fn position(&self, node: usize) -> usize {
        self.position[node]
    }

    /// Index, among the blocks below the diagonal, of the block of two nodes.
    pub(super) fn below(&self, a: usize, b: usize) -> Option<usize> {
        let (a, b) = (self.position[a], self.position[b]);
        let (column, row) = (a.min(b), a.max(b));
        let range = self.starts[column]..self.starts[column + 1];
        let found = self.rows[range].binary_search(&row).ok()?;
        Some(self.starts[column] + found)
    }
}

/// The union of two ascending lists, excluding two elements.
fn merge(a: &[usize], b: &[usize], without: (usize, usize), out: &mut Vec<usize>) {
    out.clear();
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some(&&x), Some(&&y)) => x.min(y),
            (Some(&&x), None) | (None, Some(&&x)) => x,
            (None, None) => break,
        };
        a.next_if(|&&x| x == next);
        b.next_if(|&&x| x == next);
        if next != without.0 && next != without.1 {
            out.push(next);
        }
    }
}

/// The lower triangle of a matrix with a [`Pattern`], or its factor.
#[derive(Debug, Clone, Default)]
pub(super) struct Blocks {
    /// Indexed by position. Entries above the diagonal of a block are unspecified.
    pub(super) diagonal: Vec<Block>,
    /// Indexed as by [`Pattern::below`].
    pub(super) below: Vec<Block>,
}

impl Blocks {
    /// A zero matrix.
    pub(super) fn new(pattern: &Pattern) -> Self {
        Self {
            diagonal: vec![ZERO; pattern.len()],
            below: vec![ZERO; pattern.rows.len()],
        }
    }

    pub(super) fn clear(&mut self) {
        self.diagonal.fill(ZERO);
        self.below.fill(ZERO);
    }

    /// Copies `other`, which has the same pattern.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.diagonal.copy_from_slice(&other.diagonal);
        self.below.copy_from_slice(&other.below);
    }

    /// Replaces the matrix by its factor `L`, and `b`, ordered by position, by the solution
    /// `(LLᵀ)⁻¹ b`; returns `false` if the matrix is not positive definite.
    pub(super) fn solve(&mut self, pattern: &Pattern, b: &mut [Rows]) -> bool {
        solve(pattern, &mut self.diagonal, &mut self.below, b)
    }
}

/// Processes one column at a time: its diagonal block, the blocks below it, then their updates to
/// later columns. The right-hand side is stored in the last row of the diagonal blocks, so that it
/// becomes `L⁻¹ b` along the way. Back substitution follows.
// Wider vectors compute the same lanes and nothing is fused, so the choice affects only the speed.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
fn solve(pattern: &Pattern, diagonal: &mut [Block], below: &mut [Block], b: &mut [Rows]) -> bool {
    for (block, b) in diagonal.iter_mut().zip(&*b) {
        for (column, b) in block.iter_mut().zip(b) {
            column[RIGHT] = *b;
        }
    }
    for j in 0..pattern.len() {
        let (start, end) = (pattern.starts[j], pattern.starts[j + 1]);
        let Some(inverse) = factorise_block(&mut diagonal[j]) else {
            return false;
        };
        for block in &mut below[start..end] {
            divide(&diagonal[j], &inverse, block);
            for (column, own) in block.iter_mut().zip(&diagonal[j]) {
                column[RIGHT] = own[RIGHT];
            }
        }
        let (done, later) = below.split_at_mut(end);
        let (done, rows) = (&done[start..], &pattern.rows[start..end]);
        for (b, &column) in rows.iter().enumerate() {
            take(&done[b], &done[b], &mut diagonal[column]);
            // All rows of this column are among those of `column`, because eliminating it connected
            // them.
            let mut place = pattern.starts[column];
            for (a, &row) in rows.iter().enumerate().skip(b + 1) {
                while pattern.rows[place] != row {
                    place += 1;
                }
                take(&done[a], &done[b], &mut later[place - end]);
            }
        }
        for ((b, column), inverse) in b[j].iter_mut().zip(&mut diagonal[j]).zip(inverse) {
            *b = std::mem::replace(&mut column[INVERSE], inverse);
        }
    }
    for j in (0..pattern.len()).rev() {
        let places = pattern.starts[j]..pattern.starts[j + 1];
        // Row by row: sums are kept separate until all blocks have been added.
        let mut sums = [[0.0; STRIDE]; SIZE];
        for (block, &row) in below[places.clone()].iter().zip(&pattern.rows[places]) {
            for (sum, column) in sums.iter_mut().zip(block) {
                for ((v, &l), &x) in sum.iter_mut().zip(column).zip(&b[row]) {
                    *v += l * x;
                }
            }
        }
        let mut own = b[j];
        for (v, sum) in own.iter_mut().zip(&sums) {
            *v -= sum[..SIZE].iter().sum::<f64>();
        }
        let diagonal = &diagonal[j];
        for c in (0..SIZE).rev() {
            own[c] *= diagonal[c][INVERSE];
            // Contribution of this entry to the others, once it is known.
            for r in 0..c {
                own[r] -= diagonal[r][c] * own[c];
            }
        }
        b[j] = own;
    }
    true
}

/// Factor of one block and inverses of its diagonal entries. Square roots are taken together at the
/// end: between pivots they would take most of the time.
#[inline(always)]
fn factorise_block(block: &mut Block) -> Option<[f64; SIZE]> {
    let mut pivots = [0.0; SIZE];
    for c in 0..SIZE {
        let column = block[c];
        pivots[c] = column[c];
        // Written this way round so that NaN is rejected too.
        if !(pivots[c] > 0.0 && pivots[c] < f64::INFINITY) {
            return None;
        }
        let inverse = 1.0 / pivots[c];
        for (k, later) in block.iter_mut().enumerate().skip(c + 1) {
            let share = column[k] * inverse;
            for (v, &l) in later.iter_mut().zip(&column) {
                *v -= l * share;
            }
        }
    }
    let inverse = pivots.map(|pivot| 1.0 / pivot.sqrt());
    for (column, inverse) in block.iter_mut().zip(inverse) {
        for v in column {
            *v *= inverse;
        }
    }
    Some(inverse)
}

/// `block = block·L⁻ᵀ`.
#[inline(always)]
fn divide(l: &Block, inverse: &[f64; SIZE], block: &mut Block) {
    for c in 0..SIZE {
        let mut column = block[c];
        for t in 0..c {
            for (v, &done) in column.iter_mut().zip(&block[t]) {
                *v -= done * l[t][c];
            }
        }
        for v in &mut column {
            *v *= inverse[c];
        }
        block[c] = column;
    }
}

/// `target −= a·bᵀ`.
#[inline(always)]
fn take(a: &Block, b: &Block, target: &mut Block) {
    for (c, column) in target.iter_mut().enumerate() {
        let mut sum = *column;
        for (left, right) in a.iter().zip(b) {
            for (v, &l) in sum.iter_mut().zip(left) {
                *v -= l * right[c];
            }
        }
        *column = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::{DMatrix, DVector};
    use proptest::prelude::*;

    fn dense(pattern: &Pattern, blocks: &Blocks) -> DMatrix<f64> {
        let mut m = DMatrix::zeros(SIZE * pattern.len(), SIZE * pattern.len());
        let mut put = |row: usize, column: usize, block: &Block| {
            for c in 0..SIZE {
                for r in 0..SIZE {
                    if row != column || r >= c {
                        m[(SIZE * row + r, SIZE * column + c)] = block[c][r];
                        m[(SIZE * column + c, SIZE * row + r)] = block[c][r];
                    }
                }
            }
        };
        for (j, block) in blocks.diagonal.iter().enumerate() {
            put(j, j, block);
        }
        for j in 0..pattern.len() {
            for place in pattern.starts[j]..pattern.starts[j + 1] {
                put(pattern.rows[place], j, &blocks.below[place]);
            }
        }
        m
    }

    fn solve(blocks: &Blocks, pattern: &Pattern, b: &[f64]) -> Option<Vec<f64>> {
        // The padding entry must not matter.
        let mut rows = vec![[1e300; STRIDE]; pattern.len()];
        for (rows, b) in rows.iter_mut().zip(b.chunks_exact(SIZE)) {
            rows[..SIZE].copy_from_slice(b);
        }
        let solved = blocks.clone().solve(pattern, &mut rows);
        solved.then(|| {
            let rows = rows.iter().flat_map(|rows| &rows[..SIZE]);
            rows.copied().collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Compares with the dense factorisation, on graphs with no to all edges.
        #[test]
        fn solves_what_a_dense_one_solves(
            nodes in 1_usize..14,
            links in proptest::collection::vec((0_usize..14, 0_usize..14), 0..60),
            values in proptest::collection::vec(-1.0..1.0, 512),
        ) {
            let links: Vec<_> = links.into_iter().filter(|(a, b)| a.max(b) < &nodes).collect();
            let pattern = Pattern::new(nodes, links.iter().copied());
            let mut value = values.iter().cycle().copied();
            let mut next = || value.next().unwrap_or(0.0);
            let mut blocks = Blocks::new(&pattern);
            for &(a, b) in links.iter().filter(|(a, b)| a != b) {
                let place = pattern.below(a, b).unwrap();
                for column in &mut blocks.below[place] {
                    column[..SIZE].fill_with(&mut next);
                }
            }
            for block in &mut blocks.diagonal {
                for (c, column) in block.iter_mut().enumerate() {
                    column[..SIZE].fill_with(&mut next);
                    // Larger than the sum of the other entries in its row: positive definite.
                    column[c] = 7.0 * nodes as f64 + 1.0;
                }
            }
            let matrix = dense(&pattern, &blocks);
            let b = DVector::from_fn(SIZE * nodes, |_, _| next());
            let expected = matrix.clone().cholesky().unwrap().solve(&b);
            let found = DVector::from_vec(solve(&blocks, &pattern, b.as_slice()).unwrap());
            // Diagonally dominant: condition number below 100, rounding of a hundred operations.
            prop_assert!((found - expected).norm() < 1e-12 * b.norm().max(1.0));
        }
    }

    /// A system with a known solution, on a graph of the size of a long run: a chain with random
    /// loops.
    #[test]
    fn finds_a_known_solution_of_a_large_system() {
        let nodes = 300;
        let mut state = 9_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1_u64 << 30) as f64 - 1.0
        };
        let mut links: Vec<_> = (1..nodes).map(|k| (k - 1, k)).collect();
        for _ in 0..120 {
            let mut node = || ((next() + 1.0) * 0.5 * nodes as f64) as usize % nodes;
            links.push((node(), node()));
        }
        links.retain(|(a, b)| a != b);
        let pattern = Pattern::new(nodes, links.iter().copied());
        let mut blocks = Blocks::new(&pattern);
        for &(a, b) in &links {
            let place = pattern.below(a, b).unwrap();
            for column in &mut blocks.below[place] {
                column[..SIZE].fill_with(&mut next);
            }
        }
        for block in &mut blocks.diagonal {
            for (c, column) in block.iter_mut().enumerate() {
                column[..SIZE].fill_with(&mut next);
                // More than the sum of any row: less than twenty blocks.
                column[c] = 140.0;
            }
        }
        let size = SIZE * nodes;
        let solution: Vec<f64> = (0..size).map(|_| next()).collect();
        let mut b = vec![0.0; size];
        for j in 0..nodes {
            let range = pattern.starts[j]..pattern.starts[j + 1];
            let below = range.map(|p| (pattern.rows[p], &blocks.below[p]));
            for (i, block) in below.chain([(j, &blocks.diagonal[j])]) {
                for (c, column) in block.iter().enumerate() {
                    let first = if i == j { c } else { 0 };
                    for (r, &value) in column[..SIZE].iter().enumerate().skip(first) {
                        let (row, column) = (SIZE * i + r, SIZE * j + c);
                        b[row] += value * solution[column];
                        if row != column {
                            b[column] += value * solution[row];
                        }
                    }
                }
            }
        }
        let found = solve(&blocks, &pattern, &b).unwrap();
        for (k, (f, x)) in found.iter().zip(&solution).enumerate() {
            // Values up to 1, condition number below 100, rounding of a few thousand operations.
            assert!((f - x).abs() < 1e-12, "{k}: {f} {x}");
        }
    }

    #[test]
    fn what_is_not_definite_is_said() {
        let pattern = Pattern::new(2, [(0, 1)].into_iter());
        for (bad, column) in [(0.0, 0), (-1.0, 3), (f64::NAN, 6), (f64::INFINITY, 2)] {
            for node in 0..2 {
                let mut blocks = Blocks::new(&pattern);
                for block in &mut blocks.diagonal {
                    (0..SIZE).for_each(|c| block[c][c] = 2.0);
                }
                assert!(solve(&blocks, &pattern, &[1.0; 2 * SIZE]).is_some());
                blocks.diagonal[node][column][column] = bad;
                let solved = solve(&blocks, &pattern, &[1.0; 2 * SIZE]);
                assert_eq!(solved, None, "{bad} {column} {node}");
            }
        }
        // Each block is positive definite, but the matrix is not.
        let mut blocks = Blocks::new(&pattern);
        for block in &mut blocks.diagonal {
            (0..SIZE).for_each(|c| block[c][c] = 2.0);
        }
        blocks.below[0][4][4] = 2.1;
        assert_eq!(solve(&blocks, &pattern, &[1.0; 2 * SIZE]), None);
    }

    #[test]
    fn a_chain_fills_nothing_and_a_star_is_eliminated_from_its_points() {
        let chain = Pattern::new(50, (1..50).map(|k| (k - 1, k)));
        assert_eq!(chain.rows.len(), 49);
        let star = Pattern::new(50, (1..50).map(|k| (0, k)));
        assert_eq!(star.rows.len(), 49);
        assert!(star.position(0) >= 48);
    }
}

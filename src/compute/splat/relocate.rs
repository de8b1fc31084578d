//! Relocation: dead rows move onto live ones, drawn by opacity, and further rows are drawn likewise (Kheradmand et al.,
//! 3D Gaussian splatting as Markov chain Monte Carlo, 2024, equation 9).

use super::constants::{MAX_DRAWS, RELOCATED_OPACITY};
use super::device::{RelocateRules, Relocated};
use super::layout::Field;
use super::rng::{Purpose, below, words};
use super::row::{logit, sigmoid};
use super::store::Store;

/// Units of the weights: opacity 1 is 2²⁴, so that the sum of 2³² of them is exact.
const WEIGHT_ONE: f32 = 16_777_216.0;

/// Opacity of each of `copies` rows at one place that together are as opaque as one of opacity `o`, and the factor of
/// its standard deviations.
pub fn shares(o: f64, copies: u32) -> (f64, f64) {
    let n = copies.clamp(1, MAX_DRAWS);
    let share = 1.0 - (1.0 - o).powf(1.0 / f64::from(n));
    // Σᵢ Σₖ C(i−1, k)(−1)ᵏ o′ᵏ⁺¹/√(k+1) = Σₖ C(n, k)(−1)ᵏ⁻¹ o′ᵏ/√k by the hockey-stick identity.
    let (mut sum, mut term) = (0.0, -1.0);
    for k in 1..=n {
        term *= -share * f64::from(n - k + 1) / f64::from(k);
        sum += term / f64::from(k).sqrt();
    }
    let [low, high] = RELOCATED_OPACITY.map(f64::from);
    (share.clamp(low, high), o / sum)
}

/// Whether a row is to move.
fn is_dead(store: &Store, row: usize, rules: &RelocateRules) -> bool {
    // Written so that NaN is dead.
    !(store.is_valid(row) && store.value(Field::Opacity, row)[0] > rules.logit_dead)
}

/// Inclusive sums of the weights of rows; dead rows weigh nothing.
fn sums(store: &Store, rules: &RelocateRules) -> Vec<u64> {
    let mut sum = 0;
    let weights = (0..store.rows).map(|row| {
        if !is_dead(store, row, rules) {
            let o = sigmoid(f64::from(store.value(Field::Opacity, row)[0])) as f32;
            sum += (o * WEIGHT_ONE) as u64;
        }
        sum
    });
    weights.collect()
}

/// Draws a source for each slot and makes source and slots share its opacity. Returns the number of slots filled: none
/// if no row is alive.
fn fill(store: &mut Store, slots: &[usize], rules: &RelocateRules, purpose: Purpose) -> u64 {
    let sums = sums(store, rules);
    let total = sums.last().copied().unwrap_or(0);
    if total == 0 {
        return 0;
    }
    let draw = |k: usize| {
        let target = below(words(rules.seed, k as u32, rules.step, 0, purpose), total);
        sums.partition_point(|sum| *sum <= target)
    };
    let sources: Vec<usize> = (0..slots.len()).map(draw).collect();
    let mut draws = vec![0_u32; store.rows];
    sources.iter().for_each(|source| draws[*source] += 1);
    for (source, draws) in draws.into_iter().enumerate().filter(|(_, n)| *n > 0) {
        let o = sigmoid(f64::from(store.value(Field::Opacity, source)[0]));
        let (share, factor) = shares(o, draws.saturating_add(1));
        store.value_mut(Field::Opacity, source)[0] = logit(share) as f32;
        let shift = factor.ln() as f32;
        store
            .value_mut(Field::Scale, source)
            .iter_mut()
            .for_each(|s| *s += shift);
        store.clear_moments(source);
    }
    for (slot, source) in slots.iter().zip(sources) {
        store.copy_parameters(source, *slot);
        store.clear_moments(*slot);
        store.anchor[*slot] = store.anchor[source];
        store.observed[*slot] = 0;
    }
    slots.len() as u64
}

/// Moves dead rows, then adds rows.
pub fn relocate(store: &mut Store, rules: &RelocateRules) -> Relocated {
    let rows = store.rows;
    let dead: Vec<usize> = (0..rows)
        .filter(|row| is_dead(store, *row, rules))
        .collect();
    let moved = fill(store, &dead, rules, Purpose::Move);
    let grown = (rows as f64 * (1.0 + f64::from(rules.growth))).floor() as usize;
    let target = grown.clamp(rows, store.capacity());
    let slots: Vec<usize> = (rows..target).collect();
    let added = fill(store, &slots, rules, Purpose::Add);
    store.rows = rows + added as usize;
    store.clear_statistics(0..store.rows);
    Relocated {
        moved,
        added,
        rows: store.rows as u64,
    }
}

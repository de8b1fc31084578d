//! Refinement in place: rows are duplicated, split and pruned without a second copy of any plane (docs/algorithm.md,
//! Gaussian map). Beside the rows it needs only the two statistics of each row, which it sets to 0 anyway.

use super::SplatError;
use super::device::{Counters, RefineRules, growth_key};
use super::layout::Field;
use super::rng::{Purpose, normals, words};
use super::row::{logit, rotation_matrix, sigmoid};
use super::store::Store;

/// What becomes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Prune,
    Keep,
    Duplicate,
    Split,
}

/// Bits of a rank in a word of `seen`; the outcome is above it.
const RANK_BITS: u32 = 30;
const RANK: u32 = (1 << RANK_BITS) - 1;

impl Outcome {
    fn decode(word: u32) -> (Self, usize) {
        let outcome = match word >> RANK_BITS {
            0 => Self::Prune,
            1 => Self::Keep,
            2 => Self::Duplicate,
            _ => Self::Split,
        };
        (outcome, (word & RANK) as usize)
    }

    fn encode(self, rank: usize) -> u32 {
        (self as u32) << RANK_BITS | rank as u32
    }
}

/// The mean gradient of a row; 0 if it is not finite.
pub fn mean_gradient(sum: f32, seen: u32) -> f32 {
    let mean = sum / seen.max(1) as f32;
    if mean.is_finite() { mean } else { 0.0 }
}

/// Opacity logit of a split's children.
pub fn child_logit(parent: f32, rules: &RefineRules) -> f32 {
    if rules.revised_opacity == 0 {
        return parent;
    }
    logit(1.0 - (1.0 - sigmoid(f64::from(parent))).sqrt()) as f32
}

/// What is to become of a row if there is room, and its mean gradient.
pub fn classify(store: &Store, row: usize, rules: &RefineRules) -> (Outcome, f32) {
    let gradient = mean_gradient(store.gradient_sum[row], store.seen[row]);
    if !store.is_valid(row) {
        return (Outcome::Prune, gradient);
    }
    let opacity = store.value(Field::Opacity, row)[0];
    let scales = store.value(Field::Scale, row).iter();
    let largest = scales.fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    let stays = |logit: f32, scale: f32| logit >= rules.logit_prune && scale <= rules.ln_prune;
    let hot = gradient > rules.hot;
    let (outcome, stays) = if !hot {
        (Outcome::Keep, stays(opacity, largest))
    } else if largest > rules.ln_small {
        let child = child_logit(opacity, rules);
        (Outcome::Split, stays(child, largest - rules.ln_shrink))
    } else {
        (Outcome::Duplicate, stays(opacity, largest))
    };
    (if stays { outcome } else { Outcome::Prune }, gradient)
}

fn grows(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Duplicate | Outcome::Split)
}

/// The smallest of the `count` largest keys; `keys` yields them anew at every call. 0 if there are no more than `count`.
/// Radix selection by digits of 11 bits from the top.
fn cutoff<I: Iterator<Item = u64>>(count: u64, keys: impl Fn() -> I) -> u64 {
    const DIGITS: [(u32, u32); 6] = [(53, 11), (42, 11), (31, 11), (20, 11), (10, 10), (0, 10)];
    let mut wanted = count;
    let mut prefix = 0_u64;
    for (shift, bits) in DIGITS {
        let above = shift + bits;
        let mut histogram = [0_u64; 1 << 11];
        for key in keys() {
            if above == 64 || key >> above == prefix >> above {
                histogram[(key >> shift) as usize & ((1 << bits) - 1)] += 1;
            }
        }
        let mut digit = (1 << bits) - 1;
        while digit > 0 && histogram[digit] < wanted {
            wanted -= histogram[digit];
            digit -= 1;
        }
        prefix |= (digit as u64) << shift;
    }
    prefix
}

/// Counts what a refinement would do, without changing anything.
pub fn count(store: &Store, rules: &RefineRules, epoch: u64) -> Counters {
    let (rows, capacity) = (store.rows as u64, store.capacity() as u64);
    let (mut holes, mut extras) = (0, 0);
    for row in 0..store.rows {
        let outcome = classify(store, row, rules).0;
        holes += u64::from(outcome == Outcome::Prune);
        extras += u64::from(grows(outcome));
    }
    let free = capacity - rows + holes;
    let granted = extras.min(free);
    let keys = || {
        (0..store.rows).filter_map(|row| {
            let (outcome, gradient) = classify(store, row, rules);
            grows(outcome).then(|| growth_key(gradient, row as u32))
        })
    };
    let cutoff = match granted {
        granted if granted == extras => 0,
        0 => u64::MAX,
        granted => cutoff(granted, keys),
    };
    Counters {
        version: Counters::VERSION,
        canary: Counters::CANARY,
        rows,
        holes,
        extras,
        granted,
        after: rows - holes + granted,
        cutoff,
        epoch,
    }
}

/// Writes the outcome and the rank of each row into `seen` and the indices of the holes into `gradient_sum`. The k-th
/// hole is at row k or later, so nothing is overwritten that is still needed. Returns holes and granted extras.
fn scan(store: &mut Store, rules: &RefineRules, cutoff: u64) -> (usize, usize) {
    let (mut holes, mut extras) = (0, 0);
    for row in 0..store.rows {
        let (mut outcome, gradient) = classify(store, row, rules);
        if grows(outcome) && growth_key(gradient, row as u32) < cutoff {
            outcome = Outcome::Keep;
        }
        let rank = match outcome {
            Outcome::Prune => {
                store.gradient_sum[holes] = f32::from_bits(row as u32);
                holes += 1;
                holes - 1
            }
            Outcome::Keep => 0,
            Outcome::Duplicate | Outcome::Split => {
                extras += 1;
                extras - 1
            }
        };
        store.seen[row] = outcome.encode(rank);
    }
    (holes, extras)
}

fn hole(store: &Store, rank: usize) -> usize {
    store.gradient_sum[rank].to_bits() as usize
}

/// Puts the children of a split into two slots, the first of which is the parent's.
fn split(store: &mut Store, row: usize, other: usize, rules: &RefineRules) {
    let parent = store.row(row);
    let q = parent.rotation / parent.rotation.norm();
    let axes = rotation_matrix(&q) * nalgebra::Matrix3::from_diagonal(&parent.scale.map(f64::exp));
    let opacity = child_logit(store.value(Field::Opacity, row)[0], rules);
    for scale in store.value_mut(Field::Scale, row) {
        *scale -= rules.ln_shrink;
    }
    store.value_mut(Field::Opacity, row)[0] = opacity;
    store.copy_parameters(row, other);
    store.anchor[other] = store.anchor[row];
    for (child, slot) in [row, other].into_iter().enumerate() {
        let noise = words(
            rules.seed,
            row as u32,
            rules.step,
            child as u32,
            Purpose::Split,
        );
        let z = nalgebra::Vector3::from(normals(noise).map(f64::from));
        let mean = parent.mean + axes * z;
        let to = store.value_mut(Field::Mean, slot);
        for (to, from) in to.iter_mut().zip(mean.iter()) {
            *to = *from as f32;
        }
        store.clear_moments(slot);
        store.observed[slot] = 0;
    }
}

/// Refines the rows.
///
/// # Errors
/// [`SplatError::Corrupt`] if the second count differs from the first; parameters are untouched then.
pub fn refine(store: &mut Store, rules: &RefineRules, epoch: u64) -> Result<Counters, SplatError> {
    let counters = count(store, rules, epoch);
    let rows = store.rows;
    let (holes, extras) = scan(store, rules, counters.cutoff);
    for (what, expected, found) in [
        ("pruned rows of a refinement", counters.holes, holes),
        ("new rows of a refinement", counters.granted, extras),
    ] {
        if expected != found as u64 {
            store.clear_statistics(0..rows);
            return Err(SplatError::Corrupt {
                what,
                expected,
                found: found as u64,
            });
        }
    }
    // No row reads a hole, and no destination is the source of another row.
    for row in 0..rows {
        let (outcome, rank) = Outcome::decode(store.seen[row]);
        if !grows(outcome) {
            continue;
        }
        let other = if rank < holes {
            hole(store, rank)
        } else {
            rows + (rank - holes)
        };
        if outcome == Outcome::Split {
            split(store, row, other, rules);
        } else {
            store.copy_parameters(row, other);
            store.anchor[other] = store.anchor[row];
            store.clear_moments(other);
            store.observed[other] = 0;
        }
    }
    let after = rows - holes + extras;
    close(store, rows, after, holes, extras);
    store.clear_statistics(0..rows.max(after));
    store.rows = after;
    Ok(counters)
}

/// Moves the rows behind the new end into the holes that are left before it, one by one in ascending order.
fn close(store: &mut Store, rows: usize, after: usize, holes: usize, extras: usize) {
    // Holes from rank `extras` on are left; those at or behind `after` are not refilled. None of the others is there.
    let mut source = after;
    let mut behind = extras;
    while behind < holes && hole(store, behind) < after {
        behind += 1;
    }
    let mut next = behind;
    for rank in extras..behind {
        while next < holes && hole(store, next) == source {
            source += 1;
            next += 1;
        }
        debug_assert!(source < rows);
        store.copy_row(source, hole(store, rank));
        source += 1;
    }
}

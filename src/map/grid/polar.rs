//! Free space around a camera, by direction and distance: each ray is a run of bits.

use nalgebra::Vector2;
use std::f64::consts::{PI, TAU};

const WORD: usize = 64;

/// Distances that rays have cleared, for each direction.
#[derive(Clone)]
pub struct PolarSweep {
    directions: usize,
    /// Words of each direction.
    words: usize,
    /// Bits of each direction.
    steps: usize,
    /// Metres per bit.
    step: f64,
    bits: Vec<u64>,
}

impl PolarSweep {
    /// Nothing is clear. `resolution` is that of the grid; neighbouring directions are one cell apart
    /// at `range`.
    pub fn new(range: f64, resolution: f64) -> Self {
        let step = 0.5 * resolution;
        let steps = (range / step).ceil().max(1.0) as usize;
        let directions = (TAU * range / resolution).ceil().max(8.0) as usize;
        let words = steps.div_ceil(WORD);
        Self {
            directions,
            words,
            steps,
            step,
            bits: vec![0; directions * words],
        }
    }

    /// Number of directions.
    pub fn directions(&self) -> usize {
        self.directions
    }

    /// The number of a direction.
    pub fn direction(&self, along: &Vector2<f64>) -> usize {
        let share = (along.y.atan2(along.x) + PI) / TAU;
        ((share * self.directions as f64) as usize).min(self.directions - 1)
    }

    /// The numbers of the directions in which something of this width at `offset` from the camera is.
    pub fn directions_of(
        &self,
        offset: &Vector2<f64>,
        width: f64,
    ) -> impl Iterator<Item = usize> + use<> {
        let (count, middle) = (self.directions, self.direction(offset));
        let to_side = 0.5 * width / offset.norm() * count as f64 / TAU;
        let to_side = (to_side as usize).min((count - 1) / 2);
        (0..=2 * to_side).map(move |k| (middle + count + k - to_side) % count)
    }

    /// A ray in this direction is clear from one distance to another.
    pub fn clear(&mut self, direction: usize, from: f64, to: f64) {
        let start = (from / self.step).ceil().max(0.0) as usize;
        let end = ((to / self.step).floor().max(0.0) as usize).min(self.steps);
        let row = direction * self.words;
        let Some(row) = self.bits.get_mut(row..row + self.words) else {
            return;
        };
        for (k, word) in row.iter_mut().enumerate() {
            let (low, high) = (
                start.saturating_sub(k * WORD).min(WORD),
                end.saturating_sub(k * WORD).min(WORD),
            );
            if low < high {
                let ones = u64::MAX >> (WORD - (high - low));
                *word |= ones << low;
            }
        }
    }

    /// Whether the place at `offset` from the camera is clear.
    pub fn is_clear(&self, offset: &Vector2<f64>) -> bool {
        let step = (offset.norm() / self.step) as usize;
        if step >= self.steps {
            return false;
        }
        let word = self.direction(offset) * self.words + step / WORD;
        self.bits
            .get(word)
            .is_some_and(|word| word >> (step % WORD) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_wide_is_in_all_directions_that_it_covers() {
        let sweep = PolarSweep::new(5.0, 0.05);
        let far: Vec<usize> = sweep.directions_of(&Vector2::new(5.0, 0.0), 0.05).collect();
        assert_eq!(far, [sweep.direction(&Vector2::x())]);
        // 0.1 m at 1 m are ten directions of a hundredth each; the first and the last number are neighbours.
        let behind = Vector2::new(-1.0, 1e-9);
        let mut near: Vec<usize> = sweep.directions_of(&behind, 0.1).collect();
        assert_eq!(near.len(), 9 + 2);
        for y in [-0.045, 0.0, 0.045] {
            assert!(
                near.contains(&sweep.direction(&Vector2::new(-1.0, y))),
                "{y}"
            );
        }
        near.sort_unstable();
        near.dedup();
        assert_eq!(near.len(), 11, "each once");
        let all = sweep.directions_of(&Vector2::new(1e-6, 0.0), 0.05);
        assert!(all.count() >= sweep.directions() - 1);
        assert_eq!(
            sweep.directions_of(&Vector2::zeros(), 0.05).count(),
            sweep.directions() - 1 + sweep.directions() % 2
        );
    }

    #[test]
    fn what_a_ray_cleared_is_clear_there_and_nowhere_else() {
        for (from, to) in [(0.0, 0.4), (0.5, 3.2), (1.6, 1.7), (3.0, 9.0), (2.0, 1.0)] {
            let mut sweep = PolarSweep::new(5.0, 0.05);
            let along = Vector2::new(0.6, 0.8);
            sweep.clear(sweep.direction(&along), from, to);
            for k in 0..220 {
                let at = f64::from(k) * 0.025 + 0.0125;
                // Only whole steps are clear.
                let whole = at - 0.0125 >= from - 1e-9 && at + 0.0125 <= to.min(5.0) + 1e-9;
                assert_eq!(sweep.is_clear(&(along * at)), whole, "{from} {to} {at}");
                assert!(!sweep.is_clear(&(-along * at)), "{from} {to} {at}");
            }
        }
    }
}

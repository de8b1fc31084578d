//! The camera's velocity by its tracked steps.
//!
//! A step between two frames is as wrong as the poses of both, which can be a large part of it, while a mean over more
//! steps is that of a moment long ago. How far to look back is learnt from how well the means predict the next steps.

use super::depth_moment::{Passage, Velocity};
use crate::newest;
use nalgebra::Vector6;

/// Numbers of steps that are averaged. With 0 the camera accelerates as in the last two.
const WINDOWS: [usize; 5] = [0, 1, 2, 4, 8];
/// Number of the newest steps that are kept.
const KEPT: usize = 8;
/// Part of the mean squared error of predictions that a step replaces.
const FADING: f64 = 0.1;
/// A turn counts as the way of a point at this distance, in metres.
const DISTANCE: f64 = 2.0;

/// The newest steps of a path, and the errors of their means as predictions.
#[derive(Debug, Default)]
pub struct Steps {
    /// The oldest first.
    newest: heapless::Deque<Velocity, KEPT>,
    /// Mean squared errors in m², by window, once there is one.
    errors: [Option<f64>; WINDOWS.len()],
}

impl Steps {
    /// The path ended: the next step is the first of another one.
    pub fn forget(&mut self) {
        self.newest.clear();
    }

    /// Adds a step.
    pub fn add(&mut self, step: Velocity) {
        for (k, window) in WINDOWS.iter().enumerate() {
            let Some(expected) = self.mean(*window) else {
                continue;
            };
            let off = (expected - step.twist) * step.seconds;
            let turn = off.fixed_rows::<3>(3).norm_squared() * DISTANCE * DISTANCE;
            let squared = off.fixed_rows::<3>(0).norm_squared() + turn;
            if let Some(error) = self.errors.get_mut(k) {
                let before = error.unwrap_or(squared);
                *error = Some(before + FADING * (squared - before));
            }
        }
        newest::push(&mut self.newest, step);
    }

    /// The velocity that is expected in the next step; `None` without a step.
    pub fn expected(&self) -> Option<Vector6<f64>> {
        self.mean(self.window()).or(self.mean(1))
    }

    /// Whether the mean of more than one step has predicted best.
    pub fn averages(&self) -> bool {
        self.window() > 1
    }

    /// The camera's motion about the frame before the newest one. Without a step after that it has no velocity.
    pub fn passage(&self) -> Passage {
        let mut newest = self.newest.iter().rev().copied();
        let after = newest.next();
        let mean = Some(self.window()).filter(|window| *window > 1);
        match mean.and_then(|window| self.mean(window)).zip(after) {
            Some((twist, step)) => Passage {
                before: None,
                after: Some(Velocity { twist, ..step }),
            },
            None => Passage {
                before: newest.next(),
                after,
            },
        }
    }

    /// The number of steps whose mean has predicted best.
    fn window(&self) -> usize {
        let known = WINDOWS.iter().zip(&self.errors);
        let known = known.filter_map(|(window, error)| Some((*window, (*error)?)));
        let best = known.filter(|(window, _)| self.newest.len() >= (*window).max(2));
        let best = best.min_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(1, |(window, _)| window)
    }

    /// The slope of the line that fits the poses of the newest `window` steps best: a mean of their velocities with the
    /// weights `k (window + 1 − k)`. `None` if there are too few.
    fn mean(&self, window: usize) -> Option<Vector6<f64>> {
        let mut newest = self.newest.iter().rev();
        if window == 0 {
            let (last, before) = (newest.next()?, newest.next()?);
            return Some(last.twist + (last.twist - before.twist));
        }
        let (mut sum, mut weights) = (Vector6::zeros(), 0.0);
        for k in 1..=window {
            let weight = (k * (window + 1 - k)) as f64;
            sum += newest.next()?.twist * weight;
            weights += weight;
        }
        Some(sum / weights)
    }
}

#[cfg(test)]
mod tests {
    use super::super::depth_room::normal;
    use super::*;

    const SECONDS: f64 = 1.0 / 30.0;

    /// Root mean square errors in metres of what is expected for each step of a swing of this amplitude, and of the step
    /// before it, where each position is off by `noise`.
    fn errors(amplitude: f64, noise: f64) -> [f64; 2] {
        let at = |k: usize| amplitude * (4.0 * k as f64 * SECONDS).sin();
        let seen = |k: usize| at(k) + noise * normal(k);
        let step = |from: f64, to: f64| Velocity {
            twist: Vector6::new((to - from) / SECONDS, 0.0, 0.0, 0.0, 0.0, 0.0),
            seconds: SECONDS,
        };
        let (mut steps, mut sums) = (Steps::default(), [0.0; 2]);
        for k in 1..300 {
            let truth = step(at(k - 1), at(k)).twist;
            if k > 60 {
                let expected = steps.expected().expect("steps");
                let last = step(seen(k - 2), seen(k - 1)).twist;
                for (sum, found) in sums.iter_mut().zip([expected, last]) {
                    *sum += ((found - truth) * SECONDS).norm_squared() / 239.0;
                }
            }
            steps.add(step(seen(k - 1), seen(k)));
        }
        sums.map(f64::sqrt)
    }

    #[test]
    fn exact_steps_accelerate() {
        let [found, last] = errors(0.2, 0.0);
        assert!(last > 2e-3 && found < 0.2 * last, "{found} {last}");
    }

    #[test]
    fn noise_is_averaged() {
        for (amplitude, noise, part) in [(0.05, 0.01, 0.35), (0.2, 0.004, 0.9)] {
            let [found, last] = errors(amplitude, noise);
            assert!(found < part * last, "{amplitude} {noise}: {found} {last}");
        }
    }

    #[test]
    fn few_steps_give_what_they_can() {
        let step = |x: f64| Velocity {
            twist: Vector6::new(x, 0.0, 0.0, 0.0, 0.0, 0.0),
            seconds: SECONDS,
        };
        let mut steps = Steps::default();
        assert_eq!(
            (steps.expected(), steps.passage()),
            (None, Passage::default())
        );
        steps.add(step(0.3));
        assert_eq!(steps.expected(), Some(step(0.3).twist));
        let (before, after) = (None, Some(step(0.3)));
        assert_eq!(steps.passage(), Passage { before, after });
        steps.add(step(0.4));
        let (before, after) = (Some(step(0.3)), Some(step(0.4)));
        assert_eq!(steps.passage(), Passage { before, after });
        steps.forget();
        assert_eq!(
            (steps.expected(), steps.passage()),
            (None, Passage::default())
        );
    }
}

//! What happens at which training step.

use super::constants::{BETA1, BETA2, SPLIT_SHRINK};
use super::device::{AdamStep, LossWeights, RefineRules, RelocateRules, SeedRules};
use super::row::logit;
use crate::config::{SplatConfig, SplatStrategy};

/// Whether the end of training is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A run of this many iterations: rates fall and growth ends on the way.
    Offline { iterations: u64 },
    /// Beside SLAM: keyframes come until the end, so rates stay and growth goes on.
    Live,
}

/// What follows the optimiser's step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Actions {
    pub refine: bool,
    pub relocate: bool,
    pub reset: bool,
}

/// The settings of training, as a function of the step. Steps count from 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    config: SplatConfig,
    mode: Mode,
}

/// Iterations after which a further band of the colour is trained.
const DEGREE_EVERY: u64 = 1000;
/// Learning rate of the higher bands, as a part of that of the colour.
const REST_RATE: f32 = 0.05;
/// The learning rate of poses falls to this part over an offline run.
const POSE_DECAY: f64 = 0.01;
/// Weights of mean opacity and mean standard deviation in the loss of MCMC.
const REGULAR: f32 = 0.01;
/// Opacities are reset to this times `prune_opacity`.
const RESET: f32 = 2.0;
/// Fraction of an offline run after which the map no longer grows, by strategy.
const GROWTH_END: [u64; 2] = [50, 83];
/// Seeded rows: depth by which a pixel is new, opacity logit (one half), standard deviation in spacings.
const SEED: (f32, f32, f32) = (0.05, 0.0, 0.7);

impl Schedule {
    /// A schedule; the settings must have passed [`Config::validate`](crate::config::Config::validate).
    pub fn new(config: SplatConfig, mode: Mode) -> Self {
        Self { config, mode }
    }

    /// The settings.
    pub fn config(&self) -> &SplatConfig {
        &self.config
    }

    /// Whether the end of training is known.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Plans an offline run anew: it ends after this many iterations.
    pub fn set_iterations(&mut self, iterations: u64) {
        if let Mode::Offline {
            iterations: planned,
        } = &mut self.mode
        {
            *planned = iterations;
        }
    }

    /// Step from which on the map does not grow.
    fn growth_end(&self) -> u64 {
        let until = self.config.refine_until as u64;
        match (self.mode, self.config.strategy) {
            (Mode::Live, _) => u64::MAX,
            (Mode::Offline { iterations }, SplatStrategy::Adc) => {
                until.min(iterations * GROWTH_END[0] / 100)
            }
            (Mode::Offline { iterations }, SplatStrategy::Mcmc) => iterations * GROWTH_END[1] / 100,
        }
    }

    /// What follows the optimiser's step.
    pub fn actions(&self, step: u64) -> Actions {
        let c = &self.config;
        let every = |n: usize| n > 0 && step.is_multiple_of(n as u64);
        let grows =
            step > c.refine_from as u64 && step < self.growth_end() && every(c.refine_every);
        let adc = c.strategy == SplatStrategy::Adc;
        Actions {
            refine: grows && adc,
            relocate: grows && !adc,
            reset: adc && every(c.reset_every) && step < self.growth_end(),
        }
    }

    /// Degree of the colour that a step uses.
    pub fn degree(&self, step: u64) -> u8 {
        let bands = (step / DEGREE_EVERY).min(u64::from(super::layout::MAX_DEGREE));
        (bands as u8).min(self.config.degree as u8)
    }

    /// Learning rate of positions, metres.
    pub fn mean_rate(&self, step: u64) -> f32 {
        let c = &self.config;
        let part = match self.mode {
            Mode::Live => 0.0,
            Mode::Offline { iterations } => {
                let steps = iterations.clamp(1, c.lr_steps as u64);
                (step as f32 / steps as f32).min(1.0)
            }
        };
        // A rate of 0 cannot fall exponentially.
        let ratio = match c.lr_mean > 0.0 {
            true => (c.lr_mean_final / c.lr_mean).max(1e-12),
            false => 1.0,
        };
        c.lr_mean * ratio.powf(part) * c.extent
    }

    /// Learning rate of views' poses: radians, and extents. Beside SLAM, which moves the views itself, it is 0.
    pub fn pose_rate(&self, step: u64) -> f64 {
        let c = &self.config;
        if step <= c.pose_from as u64 {
            return 0.0;
        }
        let part = match self.mode {
            Mode::Live => return 0.0,
            Mode::Offline { iterations } => (step as f64 / iterations.max(1) as f64).min(1.0),
        };
        f64::from(c.lr_pose) * POSE_DECAY.powf(part)
    }

    /// The optimiser's step.
    pub fn adam(&self, step: u64) -> AdamStep {
        let c = &self.config;
        let mean = self.mean_rate(step);
        let mcmc = c.strategy == SplatStrategy::Mcmc;
        let power = |beta: f32| {
            let t = i32::try_from(step).unwrap_or(i32::MAX);
            (1.0 - f64::from(beta).powi(t)) as f32
        };
        AdamStep {
            rates: [
                mean,
                c.lr_scale,
                c.lr_rotation,
                c.lr_opacity,
                c.lr_color,
                c.lr_color * REST_RATE,
            ],
            bias1: power(BETA1),
            bias2: power(BETA2),
            opacity_weight: if mcmc { REGULAR } else { 0.0 },
            scale_weight: if mcmc { REGULAR } else { 0.0 },
            noise: if mcmc { c.noise * mean } else { 0.0 },
            seed: c.seed as u64,
            step: step as u32,
        }
    }

    /// The loss of a step.
    pub fn loss(&self, step: u64) -> LossWeights {
        LossWeights {
            ssim: self.config.ssim_weight,
            depth: self.config.depth_weight,
            statistics: self.config.strategy == SplatStrategy::Adc && step < self.growth_end(),
        }
    }

    /// The refinement after a step.
    pub fn refine(&self, step: u64) -> RefineRules {
        let c = &self.config;
        let large = step > c.reset_every as u64 && c.reset_every > 0;
        RefineRules {
            seed: c.seed as u64,
            step: step as u32,
            hot: c.grow_gradient,
            ln_small: (c.grow_scale * c.extent).ln(),
            ln_prune: if large {
                (c.prune_scale * c.extent).ln()
            } else {
                f32::INFINITY
            },
            logit_prune: logit(f64::from(c.prune_opacity)) as f32,
            ln_shrink: SPLIT_SHRINK.ln(),
            revised_opacity: u32::from(c.revised_opacity),
            reserved: 0,
        }
    }

    /// The relocation after a step.
    pub fn relocate(&self, step: u64) -> RelocateRules {
        RelocateRules {
            seed: self.config.seed as u64,
            step: step as u32,
            logit_dead: logit(f64::from(self.config.prune_opacity)) as f32,
            growth: self.config.growth,
        }
    }

    /// The logit that a reset limits opacities to.
    pub fn reset_logit(&self) -> f32 {
        logit(f64::from((RESET * self.config.prune_opacity).min(0.5))) as f32
    }

    /// How keyframes become rows.
    pub fn seed(&self) -> SeedRules {
        let (depth_margin, logit, spread) = SEED;
        SeedRules {
            stride: self.config.stride as u32,
            min_confidence: self.config.c_conf,
            max_silhouette: self.config.max_silhouette,
            depth_margin,
            logit,
            spread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offline(iterations: u64) -> Schedule {
        Schedule::new(SplatConfig::default(), Mode::Offline { iterations })
    }

    #[test]
    fn the_table_of_steps_and_actions_is_that_of_the_settings() {
        let schedule = offline(30_000);
        let refine = Actions {
            refine: true,
            ..Actions::default()
        };
        let reset = Actions {
            reset: true,
            ..refine
        };
        for (step, expected) in [
            (1, Actions::default()),
            (150, Actions::default()),
            (450, Actions::default()),
            (600, refine),
            (601, Actions::default()),
            (3000, reset),
            (14_850, refine),
            (15_000, Actions::default()),
            (18_000, Actions::default()),
        ] {
            assert_eq!(schedule.actions(step), expected, "step {step}");
        }
        let live = Schedule::new(SplatConfig::default(), Mode::Live);
        assert_eq!(live.actions(300_000), reset);
    }

    #[test]
    fn a_short_run_does_not_end_with_a_reset() {
        let schedule = offline(3000);
        assert!((1500..=3000).all(|step| schedule.actions(step) == Actions::default()));
    }

    #[test]
    fn mcmc_relocates_instead_of_refining() {
        let config = SplatConfig {
            strategy: SplatStrategy::Mcmc,
            ..SplatConfig::default()
        };
        let schedule = Schedule::new(config, Mode::Offline { iterations: 30_000 });
        let relocate = Actions {
            relocate: true,
            ..Actions::default()
        };
        assert_eq!(schedule.actions(3000), relocate);
        assert_eq!(schedule.actions(24_900), Actions::default());
        assert!(schedule.adam(1).noise > 0.0 && !schedule.loss(1).statistics);
    }

    #[test]
    fn the_rate_of_positions_falls_exponentially_to_its_final_value() {
        let schedule = offline(30_000);
        let near = |a: f32, b: f32| (a / b - 1.0).abs() < 1e-4;
        assert!(near(schedule.mean_rate(0), 1.6e-4));
        assert!(near(schedule.mean_rate(15_000), 1.6e-5));
        assert!(near(schedule.mean_rate(30_000), 1.6e-6));
        assert!(near(schedule.mean_rate(60_000), 1.6e-6));
        assert!(near(offline(100).mean_rate(100), 1.6e-6));
    }

    #[test]
    fn bands_come_one_by_one_up_to_the_degree() {
        let config = SplatConfig {
            degree: 2,
            ..SplatConfig::default()
        };
        let schedule = Schedule::new(config, Mode::Live);
        let degrees = [999, 1000, 2000, 3000, 9000].map(|step| schedule.degree(step));
        assert_eq!(degrees, [0, 1, 2, 2, 2]);
    }

    #[test]
    fn large_rows_are_pruned_after_the_first_reset_only() {
        let schedule = offline(30_000);
        assert_eq!(schedule.refine(3000).ln_prune, f32::INFINITY);
        assert!((schedule.refine(3150).ln_prune - 0.1_f32.ln()).abs() < 1e-6);
        assert!((schedule.reset_logit() + 4.595_12).abs() < 1e-4);
    }
}

//! Ranges of the settings.

use super::{Config, ConfigError};

/// What a number may be.
#[derive(Clone, Copy)]
enum Allowed {
    /// Above zero.
    Positive,
    /// Zero or above.
    NotNegative,
    /// Any finite number.
    Finite,
    /// 0 to 1.
    Fraction,
    /// A whole number in a closed interval.
    Count(usize, usize),
    /// A multiple of a patch's side, 16 or 14 pixels, in a closed interval.
    Patches(usize, usize),
}

impl Allowed {
    fn holds(self, value: f64) -> bool {
        let within = |low: usize, high: usize| (low as f64..=high as f64).contains(&value);
        match self {
            Self::Positive => value.is_finite() && value > 0.0,
            Self::NotNegative => value.is_finite() && value >= 0.0,
            Self::Finite => value.is_finite(),
            Self::Fraction => (0.0..=1.0).contains(&value),
            Self::Count(low, high) => within(low, high),
            Self::Patches(low, high) => {
                within(low, high) && (value % 16.0 == 0.0 || value % 14.0 == 0.0)
            }
        }
    }

    fn words(self) -> String {
        match self {
            Self::Positive => "a number above 0".into(),
            Self::NotNegative => "a number of 0 or more".into(),
            Self::Finite => "a finite number".into(),
            Self::Fraction => "a fraction from 0 to 1".into(),
            Self::Count(1, usize::MAX) => "a whole number of 1 or more".into(),
            Self::Count(low, high) => format!("a whole number from {low} to {high}"),
            Self::Patches(low, high) => {
                format!("a multiple of 16 (DUNE-MASt3R: 14) from {low} to {high}")
            }
        }
    }
}

impl Config {
    /// Refuses values that no run could use, naming key, value and range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        use Allowed::{Count, Finite, Fraction, NotNegative, Patches, Positive};
        // f32 settings are checked through their shortest text, so that a message shows 0.333 and
        // not 0.3330000042915344.
        let short = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::NAN);
        let whole = |n: usize| n as f64;
        let many = Count(1, usize::MAX);
        let m = &self.matching;
        let t = &self.tracking;
        let l = &self.local_opt;
        let checks = [
            ("network.size", whole(self.network.size), Patches(32, 4096)),
            ("dataset.subsample", whole(self.dataset.subsample), many),
            ("matching.max_iter", whole(m.max_iter), Count(1, 1000)),
            ("matching.lambda_init", short(m.lambda_init), Positive),
            (
                "matching.convergence_thresh",
                short(m.convergence_thresh),
                Positive,
            ),
            ("matching.dist_thresh", short(m.dist_thresh), Positive),
            ("matching.radius", whole(m.radius), Count(0, 32)),
            ("matching.dilation_max", whole(m.dilation_max), Count(1, 64)),
            ("tracking.min_match_frac", short(t.min_match_frac), Fraction),
            ("tracking.max_iters", whole(t.max_iters), Count(1, 1000)),
            ("tracking.C_conf", short(t.c_conf), NotNegative),
            ("tracking.Q_conf", short(t.q_conf), NotNegative),
            ("tracking.rel_error", t.rel_error, NotNegative),
            ("tracking.delta_norm", t.delta_norm, NotNegative),
            ("tracking.huber", t.huber, Positive),
            (
                "tracking.match_frac_thresh",
                short(t.match_frac_thresh),
                Fraction,
            ),
            ("tracking.sigma_ray", t.sigma_ray, Positive),
            ("tracking.sigma_dist", t.sigma_dist, Positive),
            ("tracking.sigma_pixel", t.sigma_pixel, Positive),
            ("tracking.sigma_depth", t.sigma_depth, Positive),
            ("tracking.pixel_border", t.pixel_border, Finite),
            ("tracking.depth_eps", t.depth_eps, Positive),
            ("local_opt.pin", whole(l.pin), many),
            (
                "local_opt.max_keyframes",
                whole(l.max_keyframes),
                Count(0, usize::MAX),
            ),
            ("local_opt.window", whole(l.window), Count(0, usize::MAX)),
            (
                "local_opt.window_keyframes",
                whole(l.window_keyframes),
                Count(0, usize::MAX),
            ),
            (
                "local_opt.window_edges",
                whole(l.window_edges),
                Count(0, usize::MAX),
            ),
            ("local_opt.neighbours", whole(l.neighbours), Count(1, 64)),
            ("local_opt.two_way_degrees", l.two_way_degrees, NotNegative),
            ("local_opt.C_conf", short(l.c_conf), NotNegative),
            ("local_opt.Q_conf", short(l.q_conf), NotNegative),
            (
                "local_opt.min_match_frac",
                short(l.min_match_frac),
                Fraction,
            ),
            ("local_opt.pixel_border", l.pixel_border, Finite),
            ("local_opt.depth_eps", l.depth_eps, Positive),
            ("local_opt.max_iters", whole(l.max_iters), Count(1, 1000)),
            ("local_opt.delta_norm", l.delta_norm, NotNegative),
            ("local_opt.rel_error", l.rel_error, NotNegative),
            ("local_opt.huber", l.huber, Positive),
            ("local_opt.sigma_ray", l.sigma_ray, Positive),
            ("local_opt.sigma_dist", l.sigma_dist, Positive),
            ("local_opt.sigma_pixel", l.sigma_pixel, Positive),
            ("local_opt.sigma_depth", l.sigma_depth, Positive),
            ("local_opt.sigma_point", l.sigma_point, Positive),
            ("retrieval.k", whole(self.retrieval.k), Count(1, 1000)),
            (
                "retrieval.min_thresh",
                short(self.retrieval.min_thresh),
                NotNegative,
            ),
            (
                "reloc.min_match_frac",
                short(self.reloc.min_match_frac),
                Fraction,
            ),
            ("reloc.max_tries", whole(self.reloc.max_tries), many),
            (
                "memory.keyframe_slots",
                whole(self.memory.keyframe_slots),
                Count(8, 65_535),
            ),
            (
                "memory.host_slots",
                whole(self.memory.host_slots),
                Count(0, 1 << 24),
            ),
            ("memory.edges", whole(self.memory.edges), Count(16, 1 << 20)),
            (
                "memory.edge_batch",
                whole(self.memory.edge_batch),
                Count(1, 8),
            ),
            (
                "memory.places",
                whole(self.memory.places),
                Count(64, 1 << 24),
            ),
            ("output.C_conf", short(self.output.c_conf), NotNegative),
            (
                "output.voxel_size",
                short(self.output.voxel_size),
                NotNegative,
            ),
        ];
        match checks.iter().find(|(_, value, range)| !range.holds(*value)) {
            None => Ok(()),
            Some((key, value, range)) => Err(ConfigError::Range {
                origin: "configuration".into(),
                key: (*key).to_owned(),
                value: value.to_string(),
                allowed: range.words(),
            }),
        }
    }
}

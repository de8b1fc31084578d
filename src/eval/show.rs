//! Output of an evaluation as text and as JSON.

use super::{Alignment, Delta, Evaluation, Statistics};
use serde_json::{Value, json};
use std::fmt;

impl Evaluation {
    /// The evaluation as JSON with the field names as keys. `errors` holds `[stamp, metres]` pairs
    /// with the stamp as text, to preserve all digits; `alignment` is `[tx ty tz qx qy qz qw s]`.
    pub fn to_json(&self) -> Value {
        let (delta, unit) = match self.options.delta {
            Delta::Frames(n) => (json!(n), "frames"),
            Delta::Metres(m) => (json!(m), "metres"),
        };
        let errors: Vec<Value> = self
            .errors
            .iter()
            .map(|e| json!([e.stamp.to_string(), e.error]))
            .collect();
        json!({
            "align": self.options.alignment.name(),
            "tolerance": self.options.tolerance,
            "offset": self.options.offset,
            "pairs": self.errors.len(),
            "estimate_poses": self.estimate_poses,
            "truth_poses": self.truth_poses,
            "skipped_truth_rows": self.skipped_truth_rows,
            "unordered": self.unordered,
            "alignment": self.alignment.to_array(),
            "scale": self.alignment.scale,
            "path_length": self.path_length,
            "ate": statistics_json(&self.ate),
            "ate_percent": self.ate_percent,
            "rpe_delta": delta,
            "rpe_delta_unit": unit,
            "rpe_translation": self.rpe_translation.as_ref().map(statistics_json),
            "rpe_rotation": self.rpe_rotation.as_ref().map(statistics_json),
            "errors": errors,
        })
    }
}

fn statistics_json(s: &Statistics) -> Value {
    json!({
        "rmse": s.rmse, "mean": s.mean, "median": s.median,
        "std": s.std, "min": s.min, "max": s.max,
    })
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.options.alignment {
            Alignment::None => "without alignment",
            Alignment::Se3 => "after SE(3) alignment",
            Alignment::Sim3 => "after Sim(3) alignment",
        };
        writeln!(
            f,
            "{} of {} poses associated with {} of the ground truth (tolerance {} s), {how}",
            self.errors.len(),
            self.estimate_poses,
            self.truth_poses,
            self.options.tolerance
        )?;
        if self.skipped_truth_rows > 0 {
            let n = self.skipped_truth_rows;
            writeln!(
                f,
                "warning: skipped {n} ground-truth rows that are not finite"
            )?;
        }
        if self.unordered {
            writeln!(
                f,
                "warning: stamps are out of order or repeated; poses were used in the given order"
            )?;
        }
        writeln!(
            f,
            "path {:.3} m, scale {:.6}\n\n{:22}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            self.path_length,
            self.alignment.scale,
            "",
            "rmse",
            "mean",
            "median",
            "std",
            "min",
            "max"
        )?;
        let delta = match self.options.delta {
            Delta::Frames(1) => "1 pose".to_owned(),
            Delta::Frames(n) => format!("{n} poses"),
            Delta::Metres(m) => format!("{m} m"),
        };
        row(f, "ATE [m]", Some(&self.ate))?;
        row(
            f,
            &format!("RPE [m] / {delta}"),
            self.rpe_translation.as_ref(),
        )?;
        row(
            f,
            &format!("RPE [deg] / {delta}"),
            self.rpe_rotation.as_ref(),
        )?;
        match self.ate_percent {
            Some(percent) => write!(f, "\nATE is {percent:.3} % of the path"),
            None => write!(f, "\nthe ground truth does not move"),
        }
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, statistics: Option<&Statistics>) -> fmt::Result {
    write!(f, "{name:22}")?;
    match statistics {
        Some(s) => {
            for v in [s.rmse, s.mean, s.median, s.std, s.min, s.max] {
                write!(f, "{v:>10.5}")?;
            }
            writeln!(f)
        }
        None => writeln!(f, "{:>10}", "(too few poses)"),
    }
}

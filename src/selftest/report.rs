//! The result of the self-test.

use serde::Serialize;
use std::fmt;

/// One comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    pub name: String,
    pub found: f64,
    /// Maximum that passes.
    pub limit: f64,
    pub passed: bool,
}

impl Check {
    /// Passes if `found` is a number and does not exceed `limit`.
    pub fn at_most(name: impl Into<String>, found: f64, limit: f64) -> Self {
        Self {
            name: name.into(),
            found,
            limit,
            passed: found <= limit,
        }
    }
}

/// The result of the self-test.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the weights.
    pub weights: String,
    pub weights_sha256: String,
    /// The network's runtime.
    pub network: String,
    pub precision: &'static str,
    /// Width and height of the network's input.
    pub size: [usize; 2],
    /// What SLAM runs on.
    pub slam: String,
    /// Why nothing faster was selected, and warnings.
    pub notes: Vec<String>,
    /// The file of recorded figures; `None` if there is none for these weights at this size.
    pub compared_with: Option<String>,
    /// Frames tracked.
    pub frames: usize,
    /// Length of the true path in metres.
    pub path_metres: f64,
    /// Loading the network and running it on two images.
    pub network_seconds: f64,
    /// Loading SLAM and tracking.
    pub tracking_seconds: f64,
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether every check passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    /// The checks that failed, in words.
    pub fn failures(&self) -> String {
        let failed = self.checks.iter().filter(|check| !check.passed);
        let words = failed.map(|c| {
            format!(
                "{}: expected {:.3e} or less, found {:.3e}",
                c.name, c.limit, c.found
            )
        });
        words.collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "weights: {}, SHA-256 {}",
            self.weights, self.weights_sha256
        )?;
        writeln!(f, "network: {}, {}", self.network, self.precision)?;
        writeln!(f, "SLAM: {}", self.slam)?;
        match &self.compared_with {
            Some(path) => writeln!(f, "compared with {path}")?,
            None => writeln!(
                f,
                "not compared with recorded figures: there are none for these weights at this size"
            )?,
        }
        let [frames, path] = [self.frames as f64, self.path_metres];
        writeln!(
            f,
            "{frames} frames, {path:.2} m, {:.1} s",
            self.network_seconds + self.tracking_seconds
        )?;
        for check in &self.checks {
            let state = if check.passed { "ok" } else { "FAILED" };
            writeln!(
                f,
                "{state:<7} {:<42} {:>10.3e}  limit {:.3e}",
                check.name, check.found, check.limit
            )?;
        }
        write!(
            f,
            "the self-test {}",
            if self.passed() { "passed" } else { "failed" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_does_not_pass() {
        assert!(Check::at_most("a", 1.0, 1.0).passed);
        assert!(!Check::at_most("a", 1.1, 1.0).passed);
        assert!(!Check::at_most("a", f64::NAN, 1.0).passed);
    }
}

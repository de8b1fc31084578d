//! `doctor`: lists what the program can use on this machine, and the command that adds each missing thing.

mod gpu;
mod machine;
mod runtimes;

use super::settings::ConfigArgs;
use super::version::Build;
use super::{CliError, Finished, say};
use clap::Args;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Look for drivers, runtimes, weights and limits; say what is missing and the command that adds it.
///
/// Exit code 0: the program can run; optional parts may be missing. 1: something that every run needs is missing, or,
/// with --strict, anything.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The folder that runs will write to.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Exit code 1 for optional parts too.
    #[arg(long)]
    pub strict: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Missing; the program runs without it.
    Optional,
    /// Missing; runs fail.
    Missing,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Optional => "optional",
            Self::Missing => "MISSING",
        })
    }
}

/// What was found of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    name: &'static str,
    state: State,
    /// What is there, or the error that a run would end with.
    found: String,
    /// Adds what is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

impl Finding {
    fn ok(name: &'static str, found: impl fmt::Display) -> Self {
        Self {
            name,
            state: State::Ok,
            found: found.to_string(),
            command: None,
        }
    }

    /// Like [`Finding::missing`], where no single command helps.
    fn unusable(name: &'static str, error: impl fmt::Display) -> Self {
        Self {
            state: State::Missing,
            ..Self::ok(name, error)
        }
    }

    fn optional(name: &'static str, error: impl fmt::Display, command: impl Into<String>) -> Self {
        Self {
            state: State::Optional,
            command: Some(command.into()),
            ..Self::ok(name, error)
        }
    }

    fn missing(name: &'static str, error: impl fmt::Display, command: impl Into<String>) -> Self {
        Self {
            state: State::Missing,
            ..Self::optional(name, error, command)
        }
    }
}

/// All findings.
#[derive(Debug, Serialize)]
struct Report {
    program: Build,
    findings: Vec<Finding>,
    /// Whether runs can work.
    usable: bool,
}

impl Report {
    fn new(program: Build, findings: Vec<Finding>) -> Self {
        Self {
            program,
            usable: findings.iter().all(|f| f.state != State::Missing),
            findings,
        }
    }

    /// Whether nothing is missing at all.
    fn complete(&self) -> bool {
        self.findings.iter().all(|f| f.state == State::Ok)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "mast3r-slam {}\n", self.program)?;
        for finding in &self.findings {
            writeln!(
                f,
                "{:<8}  {:<15}  {}",
                finding.state, finding.name, finding.found
            )?;
            if let Some(command) = &finding.command {
                writeln!(f, "{:>27}run: {command}", "")?;
            }
        }
        let count = |state| self.findings.iter().filter(|f| f.state == state).count();
        let (missing, optional) = (count(State::Missing), count(State::Optional));
        match (missing, optional) {
            (0, 0) => write!(f, "\nnothing is missing"),
            (0, n) => write!(
                f,
                "\nruns work; {n} of the parts that make them faster or add to them cannot be used"
            ),
            (n, _) => write!(
                f,
                "\nruns fail: {n} of the parts that they need cannot be used"
            ),
        }
    }
}

/// Runs the sub-command.
pub fn run(args: &DoctorArgs) -> Result<Finished, CliError> {
    let settings = args.config.builder().settings();
    let mut findings = vec![
        machine::weights(&settings, args.config.weights.is_some()),
        machine::demo(),
        machine::disk(&args.out),
    ];
    findings.extend(gpu::findings());
    let config = settings.as_ref().ok().map(|settings| &settings.config);
    findings.push(runtimes::tensorrt());
    findings.push(runtimes::onnxruntime(config));
    findings.push(runtimes::ros());
    #[cfg(feature = "ros")]
    findings.extend([machine::receive_buffers(), machine::priority()]);
    let report = Report::new(Build::here(), findings);
    say(&match args.json {
        // Strings and lists of strings always have a JSON form.
        true => serde_json::to_string_pretty(&report).unwrap_or_default(),
        false => report.to_string(),
    });
    match report.usable && (report.complete() || !args.strict) {
        true => Ok(Finished::Done),
        false => Err(CliError::Unhealthy),
    }
}

/// How this program is built with other features.
fn build_with(features: &str) -> String {
    format!("cargo install --path . --features {features}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_every_run_needs_makes_the_program_unusable() {
        let findings = vec![
            Finding::ok("weights", "the bundled model"),
            Finding::optional("driver", "no NVIDIA driver", "install it"),
        ];
        let report = Report::new(Build::here(), findings.clone());
        assert!(report.usable && !report.complete());
        let text = report.to_string();
        for part in ["optional  driver", "run: install it", "runs work; 1 of"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        let broken = Finding::missing("disk", "no space left", "df");
        let report = Report::new(Build::here(), [findings, vec![broken]].concat());
        assert!(!report.usable);
        assert!(report.to_string().contains("runs fail: 1 of"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["usable"], false);
        assert_eq!(json["findings"][1]["state"], "optional");
        assert_eq!(json["findings"][2]["command"], "df");
        assert!(json["findings"][0].get("command").is_none());
        let healthy = Report::new(Build::here(), vec![Finding::ok("disk", "1 TB free")]);
        assert!(healthy.complete() && healthy.to_string().ends_with("nothing is missing"));
    }
}

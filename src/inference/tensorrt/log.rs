//! TensorRT's log: errors are reported as ours; verbose lines of a build provide data that no
//! function returns without a GPU: the kernels of the engine and its planned memory.

use super::error::TensorRtError;
use super::target::Flavour;
use std::sync::{Mutex, MutexGuard, OnceLock};
use trtx::{LogHandler, Logger, Severity};

/// Maximum number of errors kept for a message.
const ERRORS: usize = 6;
/// Maximum line length in messages; longer lines are truncated.
const LONGEST: usize = 400;

/// Information about a build taken from the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildLog {
    /// Kernels and other steps of the engine, one per line.
    pub layers: String,
    /// Device memory for execution, in bytes.
    pub activation_bytes: u64,
    /// Device memory for weights, in bytes.
    pub weight_bytes: u64,
}

/// Called with the name of each layer as it is parsed or compiled.
type OnLayer = Box<dyn Fn(&str) + Send>;

#[derive(Default)]
struct State {
    errors: Vec<String>,
    build: Option<(BuildLog, OnLayer)>,
}

static STATE: Mutex<State> = Mutex::new(State {
    errors: Vec::new(),
    build: None,
});

fn state() -> MutexGuard<'static, State> {
    // The content is plain text and valid even if the lock is poisoned.
    STATE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct Handler;

impl LogHandler for Handler {
    fn log(&self, severity: Severity, message: &str) {
        let mut state = state();
        match severity {
            Severity::InternalError | Severity::Error => {
                tracing::debug!("{}: {message}", Flavour::HERE.name());
                if state.errors.len() < ERRORS {
                    let line = message.trim();
                    let end = line
                        .char_indices()
                        .nth(LONGEST)
                        .map_or(line.len(), |(i, _)| i);
                    state.errors.push(line[..end].to_owned());
                }
            }
            Severity::Warning => tracing::debug!("{}: {message}", Flavour::HERE.name()),
            Severity::Info | Severity::Verbose => {
                tracing::trace!("{}: {message}", Flavour::HERE.name());
                if let Some((build, on_layer)) = &mut state.build {
                    build.take(message, on_layer);
                }
            }
        }
    }
}

impl BuildLog {
    fn take(&mut self, message: &str, on_layer: &dyn Fn(&str)) {
        let bytes = |rest: &str| rest.trim().trim_end_matches("bytes").trim().parse().ok();
        if let Some(rest) = message.strip_prefix("Parsing node: ") {
            on_layer(rest);
        } else if let Some(rest) = message.split("Computing costs for ").nth(1) {
            on_layer(rest);
        } else if let Some(n) = (message.strip_prefix("Total Activation Memory:")).and_then(bytes) {
            self.activation_bytes = n;
        } else if let Some(n) = (message.strip_prefix("Total Weights Memory:")).and_then(bytes) {
            self.weight_bytes = n;
        } else if let Some((_, layers)) = message.split_once("Layers:\n") {
            // Only the engine's own list contains lines of kernels.
            if layers.starts_with("Name:") {
                layers.trim_end().clone_into(&mut self.layers);
            }
        }
    }

    /// Number of kernels and other steps.
    pub fn layer_count(&self) -> usize {
        self.layers
            .lines()
            .filter(|l| l.starts_with("Name:"))
            .count()
    }
}

/// The logger of the process: TensorRT keeps the first one it is given.
pub fn logger() -> Result<&'static Logger, TensorRtError> {
    static LOGGER: OnceLock<Logger> = OnceLock::new();
    if let Some(logger) = LOGGER.get() {
        return Ok(logger);
    }
    let made = Logger::new(Handler).map_err(|error| TensorRtError::Failed {
        doing: "making its logger".into(),
        message: error.to_string(),
    })?;
    // If another thread was faster, its logger is used and this one is dropped.
    Ok(LOGGER.get_or_init(|| made))
}

/// Runs `call`; on failure, the error contains what TensorRT logged meanwhile.
pub fn during<T>(
    doing: impl Into<String>,
    call: impl FnOnce() -> Result<T, trtx::Error>,
) -> Result<T, TensorRtError> {
    state().errors.clear();
    call().map_err(|error| {
        let logged = std::mem::take(&mut state().errors);
        TensorRtError::Failed {
            doing: doing.into(),
            message: match logged.len() {
                0 => error.to_string(),
                _ => logged.join("; "),
            },
        }
    })
}

/// Runs `build` and returns the information taken from the log.
pub fn recording<T>(on_layer: OnLayer, build: impl FnOnce() -> T) -> (T, BuildLog) {
    state().build = Some((BuildLog::default(), on_layer));
    let result = build();
    let log = state().build.take().map(|(log, _)| log).unwrap_or_default();
    (result, log)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_build_s_lines_are_understood() {
        let names = RefCell::new(Vec::new());
        let on_layer = |name: &str| names.borrow_mut().push(name.to_owned());
        let mut log = BuildLog::default();
        for line in [
            "Parsing node: enc_blocks.0/MatMul_18 [MatMul]",
            "=============== Computing costs for {ForeignNode[a...b]}",
            "Max Scratch Memory: 9666560 bytes",
            "Total Activation Memory: 9666561 bytes",
            "Total Weights Memory: 10195456 bytes",
            "Layers:\nName: one, LayerType: kgen\nName: two, LayerType: gemm\n\nBindings:\nimage\n",
            "After Layers:\nnothing",
        ] {
            log.take(line, &on_layer);
        }
        assert_eq!(
            (log.activation_bytes, log.weight_bytes),
            (9666561, 10195456)
        );
        assert_eq!(log.layer_count(), 2);
        assert!(log.layers.starts_with("Name: one"));
        assert_eq!(
            *names.borrow(),
            ["enc_blocks.0/MatMul_18 [MatMul]", "{ForeignNode[a...b]}"]
        );
    }
}

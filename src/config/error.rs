//! Errors in configurations.

use std::path::PathBuf;

/// Configuration error. `origin` is the file (or the command-line option) with the offending
/// setting, `key` its dotted path.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {cause}")]
    Io {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// The file is not valid YAML, or has a duplicate key.
    #[error("{origin}: {message}")]
    Syntax { origin: String, message: String },
    /// The file contains something other than settings.
    #[error("{origin}: expected settings such as `use_calib: true`, found {found}")]
    NotSettings { origin: String, found: String },
    /// The key does not exist.
    #[error("{origin}: unknown key {key}: {hint}")]
    UnknownKey {
        origin: String,
        key: String,
        /// The nearest valid key, or the keys that exist at that level.
        hint: String,
    },
    /// The value has the wrong type.
    #[error("{origin}: {key} is {found}, expected {expected}")]
    Type {
        origin: String,
        key: String,
        expected: String,
        found: String,
    },
    /// The value is out of range.
    #[error("{origin}: {key} is {value}, expected {allowed}")]
    Range {
        origin: String,
        key: String,
        value: String,
        allowed: String,
    },
    /// Files inherit from each other in a cycle.
    #[error("the configuration inherits from itself: {chain}; remove one `inherit`")]
    Cycle {
        /// The files in order, joined by arrows.
        chain: String,
    },
    /// The chain of inherited files is too long.
    #[error("{origin}: more than {limit} files inherit from each other; flatten some of them")]
    Depth { origin: String, limit: usize },
    /// Neither a file nor a built-in configuration has this name.
    #[error("no configuration {name}: neither a file nor one of the built-in ones ({known})")]
    NotFound { name: String, known: String },
    /// The override is not of the form `key=value`.
    #[error("--set {text}: expected key=value, such as tracking.Q_conf=0.5")]
    Override { text: String },
}

impl ConfigError {
    /// The same range error with `origin` as its source.
    pub(super) fn with_origin(self, origin: &str) -> Self {
        match self {
            Self::Range {
                key,
                value,
                allowed,
                ..
            } => Self::Range {
                origin: origin.to_owned(),
                key,
                value,
                allowed,
            },
            other => other,
        }
    }
}

//! Why a configuration is refused.

use std::path::PathBuf;

/// Why a configuration is refused. `origin` is the file (or the command-line option) that holds
/// the offending setting, `key` its dotted path.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that cannot be read.
    #[error("cannot read the configuration {path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// A file that is not YAML, or names a key twice.
    #[error("{origin}: {message}")]
    Syntax {
        /// Where.
        origin: String,
        /// The parser's words, with line and column.
        message: String,
    },
    /// A file that holds something else than settings.
    #[error("{origin}: expected settings such as `use_calib: true`, found {found}")]
    NotSettings {
        /// Where.
        origin: String,
        /// What it holds.
        found: String,
    },
    /// A key that does not exist.
    #[error("{origin}: unknown key {key}: {hint}")]
    UnknownKey {
        /// Where.
        origin: String,
        /// As written.
        key: String,
        /// The nearest valid key, or the keys that exist at that place.
        hint: String,
    },
    /// A value of the wrong type.
    #[error("{origin}: {key} is {found}, expected {expected}")]
    Type {
        /// Where.
        origin: String,
        /// Which setting.
        key: String,
        /// The type it has.
        expected: String,
        /// The value as written.
        found: String,
    },
    /// A value outside its range.
    #[error("{origin}: {key} is {value}, allowed is {allowed}")]
    Range {
        /// Where.
        origin: String,
        /// Which setting.
        key: String,
        /// The value as written.
        value: String,
        /// The range in words.
        allowed: String,
    },
    /// Files that inherit from each other in a circle.
    #[error("the configuration inherits from itself: {chain}; remove one `inherit`")]
    Cycle {
        /// The files in order, joined by arrows.
        chain: String,
    },
    /// A chain of files that is too long to be meant.
    #[error("{origin}: more than {limit} files inherit from each other; flatten some of them")]
    Depth {
        /// The first file beyond the limit.
        origin: String,
        /// Most files in a chain.
        limit: usize,
    },
    /// No file of this name, and no built-in one either.
    #[error("no configuration {name}: neither a file nor one of the built-in ones ({known})")]
    NotFound {
        /// As given.
        name: String,
        /// Names of the built-in ones.
        known: String,
    },
    /// An override that is not `key=value`.
    #[error("--set {text}: expected key=value, such as tracking.Q_conf=0.5")]
    Override {
        /// As given.
        text: String,
    },
}

//! Settings: one struct per subsystem, with the reference's values for the official model as defaults.
//! Key names are the reference's, so that its users find them. [`load()`] reads YAML files; [`Config::keys`] lists
//! every setting with its type, range and documentation.

mod access;
mod builtin;
mod choices;
mod declare;
mod device;
mod error;
mod key;
mod load;
mod schema;
mod settings;
mod validate;

pub use builtin::{builtin, builtin_names};
pub use choices::{
    BackendChoice, DeviceChoice, FilteringMode, FilteringScore, Loops, PrecisionChoice,
    ResidualChoice, SplatStrategy, Threads,
};
pub use device::DeviceConfig;
pub use error::ConfigError;
pub use key::{Choice, Key, Kind, Range, SettingValue};
pub use load::{Base, Setting, load, load_settings, load_with};
pub use settings::{
    Config, DatasetConfig, DepthConfig, GlobalOptConfig, GridConfig, MatchingConfig, MemoryConfig,
    NetworkConfig, OutputConfig, RelocConfig, RetrievalConfig, SplatConfig, TrackingConfig,
};

//! Range checks of the settings.

use super::key::{Key, SettingValue};
use super::{Config, ConfigError};

impl Config {
    /// Rejects values that no run could use.
    ///
    /// # Errors
    /// [`ConfigError::Range`] with the first key whose value is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Self::keys()
            .zip(self.values())
            .try_for_each(|(key, value)| check(key, &value))
    }
}

fn check(key: &Key, value: &SettingValue) -> Result<(), ConfigError> {
    match value.number() {
        Some(number) if !key.range.holds(number) => Err(ConfigError::Range {
            origin: "configuration".into(),
            key: key.name.to_owned(),
            value: value.to_string(),
            allowed: key.range.words(),
        }),
        _ => Ok(()),
    }
}

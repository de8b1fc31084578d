//! Access to a configuration by key names.

use super::{Base, Config, ConfigError, Key, SettingValue, load_with};

impl Config {
    /// The built-in configuration of this name, with or without `.yaml`: one of
    /// [`builtin_names`](super::builtin_names).
    ///
    /// # Errors
    /// No built-in configuration has this name.
    pub fn builtin(name: &str) -> Result<Self, ConfigError> {
        load_with(Base::Builtin(name), &[])
    }

    /// The setting of this dotted name, `tracking.Q_conf`.
    pub fn key(name: &str) -> Option<&'static Key> {
        Self::keys().find(|key| key.name == name)
    }

    /// The value of the setting of this dotted name.
    pub fn get(&self, name: &str) -> Option<SettingValue> {
        let mut all = Self::keys().zip(self.values());
        all.find(|(key, _)| key.name == name)
            .map(|(_, value)| value)
    }

    /// The configuration as YAML, which [`load`](super::load()) reads back to the same values.
    ///
    /// # Errors
    /// A value that cannot be represented in YAML.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        serde_saphyr::to_string(self).map_err(|e| ConfigError::Syntax {
            origin: "the configuration".into(),
            message: e.to_string(),
        })
    }

    /// Every key with its value as text, for reports.
    pub fn flat(&self) -> Vec<(String, String)> {
        let all = Self::keys().zip(self.values());
        all.map(|(key, value)| (key.name.to_owned(), value.to_string()))
            .collect()
    }
}

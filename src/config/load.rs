//! Reading configurations: YAML files that inherit from each other, then overrides.

use super::builtin::{builtin_entry, builtin_names};
use super::schema::Schema;
use super::{Config, ConfigError};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most files in a chain of `inherit`.
const MAX_DEPTH: usize = 8;
/// Settings that name files; relative ones are relative to the YAML file that holds them.
const PATH_KEYS: [&str; 3] = ["network.weights", "network.engines", "retrieval.codebook"];

/// Reads a YAML file and everything that it inherits from.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let mut layers = Layers::default();
    layers.add_file(path, &mut Vec::new())?;
    layers.finish()
}

/// What overrides are applied to.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// [`Config::default`].
    Defaults,
    /// The built-in configuration of this name.
    Builtin(&'a str),
    /// A file; when there is none, the built-in configuration of this name.
    Named(&'a Path),
}

/// Reads `base`, then applies `overrides` of the form `tracking.Q_conf=0.5`, the last one of a key
/// winning.
pub fn load_with(base: Base<'_>, overrides: &[String]) -> Result<Config, ConfigError> {
    let mut layers = Layers::default();
    match base {
        Base::Defaults => {}
        Base::Builtin(name) => layers.add_parent(name, None, &mut Vec::new())?,
        Base::Named(path) => layers.add_named(path)?,
    }
    for text in overrides {
        layers.add_override(text)?;
    }
    layers.finish()
}

impl Config {
    /// The configuration as YAML that [`load`] reads back to the same values.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        serde_saphyr::to_string(self).map_err(|e| ConfigError::Syntax {
            origin: "the configuration".into(),
            message: e.to_string(),
        })
    }

    /// Every key with its value as text, for reports.
    pub fn flat(&self) -> Vec<(String, String)> {
        Schema::of(self).leaves()
    }
}

/// Settings merged so far, and where each came from.
struct Layers {
    schema: Schema,
    merged: Map<String, Value>,
    origins: BTreeMap<String, String>,
}

impl Default for Layers {
    fn default() -> Self {
        Self {
            schema: Schema::of(&Config::default()),
            merged: Map::new(),
            origins: BTreeMap::new(),
        }
    }
}

impl Layers {
    fn add_named(&mut self, path: &Path) -> Result<(), ConfigError> {
        let name = path.to_string_lossy();
        match builtin_entry(&name) {
            Some((full, text)) if !path.exists() => self.add_builtin(full, text, &mut Vec::new()),
            _ if path.exists() || name.contains(['/', '\\']) => {
                self.add_file(path, &mut Vec::new())
            }
            _ => Err(not_found(&name)),
        }
    }

    fn add_file(&mut self, path: &Path, chain: &mut Vec<String>) -> Result<(), ConfigError> {
        let io = |cause| ConfigError::Io {
            path: path.to_owned(),
            cause,
        };
        let text = std::fs::read_to_string(path).map_err(io)?;
        let identity = path.canonicalize().map_err(io)?;
        enter(chain, identity.display().to_string())?;
        let origin = path.display().to_string();
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        self.add_text(&origin, &text, Some(&folder), chain)
    }

    fn add_builtin(
        &mut self,
        name: &str,
        text: &str,
        chain: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let origin = format!("built-in {name}");
        enter(chain, origin.clone())?;
        self.add_text(&origin, text, None, chain)
    }

    /// Parents first, so that the file itself wins. `folder` is where relative names start.
    fn add_text(
        &mut self,
        origin: &str,
        text: &str,
        folder: Option<&Path>,
        chain: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let mut settings = match parse(origin, text)? {
            Value::Object(map) => map,
            other => {
                return Err(ConfigError::NotSettings {
                    origin: origin.to_owned(),
                    found: describe(&other),
                });
            }
        };
        match settings.remove("inherit") {
            None => {}
            Some(Value::String(parent)) => self.add_parent(&parent, folder, chain)?,
            Some(other) => {
                return Err(ConfigError::Type {
                    origin: origin.to_owned(),
                    key: "inherit".into(),
                    expected: "the name of a YAML file".into(),
                    found: describe(&other),
                });
            }
        }
        self.add_settings(origin, settings, folder)
    }

    /// A file beside the child, else a built-in configuration.
    fn add_parent(
        &mut self,
        parent: &str,
        folder: Option<&Path>,
        chain: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let file = folder.map(|f| f.join(parent));
        match (file, builtin_entry(parent)) {
            (Some(file), _) if file.exists() => self.add_file(&file, chain),
            (_, Some((name, text))) => self.add_builtin(name, text, chain),
            (Some(file), None) => self.add_file(&file, chain),
            (None, None) => Err(not_found(parent)),
        }
    }

    fn add_override(&mut self, text: &str) -> Result<(), ConfigError> {
        let malformed = || ConfigError::Override {
            text: text.to_owned(),
        };
        let (key, value) = text.split_once('=').ok_or_else(malformed)?;
        let parts: Vec<&str> = key.trim().split('.').collect();
        if parts.iter().any(|p| p.is_empty()) {
            return Err(malformed());
        }
        let origin = format!("--set {text}");
        let mut value = match parse(&origin, value)? {
            // `network.weights=` empties it.
            Value::Null => Value::String(String::new()),
            other => other,
        };
        for part in parts.iter().skip(1).rev() {
            value = Value::Object(Map::from_iter([((*part).to_owned(), value)]));
        }
        let settings = Map::from_iter([(parts[0].to_owned(), value)]);
        self.add_settings(&origin, settings, None)
    }

    fn add_settings(
        &mut self,
        origin: &str,
        mut settings: Map<String, Value>,
        folder: Option<&Path>,
    ) -> Result<(), ConfigError> {
        // A section whose keys are all commented out.
        settings.retain(|key, value| !(value.is_null() && self.schema.is_section(key)));
        let keys = self.schema.check(origin, &settings)?;
        if let Some(folder) = folder {
            for key in PATH_KEYS {
                if let Some(Value::String(path)) = lookup(&mut settings, key) {
                    *path = anchored(path, folder);
                }
            }
        }
        for key in keys {
            self.origins.insert(key, origin.to_owned());
        }
        merge(&mut self.merged, settings);
        Ok(())
    }

    fn finish(self) -> Result<Config, ConfigError> {
        let config: Config = serde_json::from_value(Value::Object(self.merged)).map_err(|e| {
            // Each key was checked alone, so this is about nothing that a user wrote.
            ConfigError::Syntax {
                origin: "the merged configuration".into(),
                message: e.to_string(),
            }
        })?;
        config.validate().map_err(|error| match error {
            ConfigError::Range {
                key,
                value,
                allowed,
                ..
            } => ConfigError::Range {
                origin: self.origins.get(&key).cloned().unwrap_or_default(),
                key,
                value,
                allowed,
            },
            other => other,
        })?;
        Ok(config)
    }
}

/// Notes that a file is being read; refuses circles and endless chains.
fn enter(chain: &mut Vec<String>, identity: String) -> Result<(), ConfigError> {
    if chain.contains(&identity) {
        chain.push(identity);
        return Err(ConfigError::Cycle {
            chain: chain.join(" → "),
        });
    }
    if chain.len() == MAX_DEPTH {
        return Err(ConfigError::Depth {
            origin: identity,
            limit: MAX_DEPTH,
        });
    }
    chain.push(identity);
    Ok(())
}

fn not_found(name: &str) -> ConfigError {
    ConfigError::NotFound {
        name: name.to_owned(),
        known: builtin_names().collect::<Vec<_>>().join(", "),
    }
}

/// `on`, `off`, `yes` and `no` stay text (`loops: on`); infinities and NaN become text too, so
/// that they are refused with their key.
fn parse(origin: &str, text: &str) -> Result<Value, ConfigError> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str_with_options(text, options).map_err(|e| ConfigError::Syntax {
        origin: origin.to_owned(),
        message: e.to_string(),
    })
}

fn lookup<'a>(settings: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Value> {
    let (section, leaf) = key.split_once('.')?;
    settings.get_mut(section)?.as_object_mut()?.get_mut(leaf)
}

fn anchored(path: &str, folder: &Path) -> String {
    if path.is_empty() || Path::new(path).is_absolute() {
        return path.to_owned();
    }
    let joined: PathBuf = folder.join(path);
    joined.to_string_lossy().into_owned()
}

fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// A value for messages: what it is, and short ones as written.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "empty".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => format!("the text {s:?}"),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "a section".into(),
    }
}

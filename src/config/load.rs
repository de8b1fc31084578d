//! Reading configurations: YAML files that inherit from each other, then overrides.

use super::builtin::{builtin_entry, builtin_names};
use super::schema::{Schema, describe};
use super::{Config, ConfigError};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum number of files in a chain of `inherit`.
const MAX_DEPTH: usize = 8;

/// Reads a YAML file and everything that it inherits from.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let mut layers = Layers::default();
    layers.add_file(path, &mut Vec::new())?;
    layers.finish()
}

/// The configuration to which overrides are applied.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// [`Config::default`].
    Defaults,
    /// The built-in configuration of this name.
    Builtin(&'a str),
    /// A file or, if it does not exist, the built-in configuration of this name.
    Named(&'a Path),
    /// A complete configuration.
    Given(&'a Config),
}

/// One setting that is applied to a [`Base`].
#[derive(Debug, Clone, Copy)]
pub enum Setting<'a> {
    /// `tracking.Q_conf=0.5`, as on the command line.
    Text(&'a str),
    /// A value of the key's type, from the ROS parameter of that name.
    Value {
        /// Dotted name, `tracking.Q_conf`.
        key: &'a str,
        /// The value.
        value: &'a Value,
    },
}

/// Reads `base`, then applies `overrides` of the form `tracking.Q_conf=0.5`; for repeated keys the
/// last one wins.
pub fn load_with(base: Base<'_>, overrides: &[String]) -> Result<Config, ConfigError> {
    let settings: Vec<Setting<'_>> = overrides.iter().map(|text| Setting::Text(text)).collect();
    load_settings(base, &settings)
}

/// Reads `base`, then applies `settings` in order.
pub fn load_settings(base: Base<'_>, settings: &[Setting<'_>]) -> Result<Config, ConfigError> {
    let mut layers = Layers::default();
    match base {
        Base::Defaults => {}
        Base::Builtin(name) => layers.add_parent(name, None, &mut Vec::new())?,
        Base::Named(path) => layers.add_named(path)?,
        Base::Given(config) => layers.merged = Schema::of(config).into_tree(),
    }
    for setting in settings {
        match setting {
            Setting::Text(text) => layers.add_override(text)?,
            Setting::Value { key, value } => {
                layers.add_value(&format!("parameter {key}"), key, (*value).clone())?;
            }
        }
    }
    layers.finish()
}

/// The settings merged so far, and the origin of each.
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

    /// Adds parents first, so that the file itself takes precedence. Relative paths are relative to
    /// `folder`.
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

    /// A file in the same folder as the child, otherwise a built-in configuration.
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
        let key = key.trim();
        if key.split('.').any(str::is_empty) {
            return Err(malformed());
        }
        let origin = format!("--set {text}");
        let value = match parse(&origin, value)? {
            // `network.weights=` clears the value.
            Value::Null => Value::String(String::new()),
            other => other,
        };
        self.add_value(&origin, key, value)
    }

    fn add_value(&mut self, origin: &str, key: &str, value: Value) -> Result<(), ConfigError> {
        let nest = |inner, part: &str| Value::Object(Map::from_iter([(part.to_owned(), inner)]));
        match key.rsplit('.').fold(value, nest) {
            Value::Object(settings) => self.add_settings(origin, settings, None),
            // A name has at least one part, so its value is always nested.
            _ => Ok(()),
        }
    }

    fn add_settings(
        &mut self,
        origin: &str,
        mut settings: Map<String, Value>,
        folder: Option<&Path>,
    ) -> Result<(), ConfigError> {
        // A section with all keys commented out.
        settings.retain(|key, value| !(value.is_null() && self.schema.is_section(key)));
        let keys = self.schema.check(origin, &settings)?;
        if let Some(folder) = folder {
            let paths = Config::keys().filter(|key| key.is_beside_its_file());
            for key in paths.map(|key| key.name) {
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
            // Each key was checked individually, so the user cannot cause this error.
            ConfigError::Syntax {
                origin: "the merged configuration".into(),
                message: e.to_string(),
            }
        })?;
        config.validate().map_err(|error| match &error {
            ConfigError::Range { key, .. } => match self.origins.get(key) {
                Some(origin) => error.with_origin(&origin.clone()),
                None => error,
            },
            _ => error,
        })?;
        Ok(config)
    }
}

/// Records that a file is being read; rejects cycles and overlong chains.
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

/// `on`, `off`, `yes` and `no` remain strings (`loops: on`); infinities and NaN become strings too,
/// so that they are rejected with their key.
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

/// Merges `from` over `into`, section by section.
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

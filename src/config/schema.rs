//! Which keys exist, and whether a tree of settings fits them.

use super::{Config, ConfigError};
use serde_json::{Map, Value};

/// Keys of the reference that have another name or no equivalent here.
const RENAMED: [(&str, &str); 5] = [
    ("single_thread", "write `threads: single`"),
    (
        "dataset.img_downsample",
        "the network's outputs are always used in full; lower network.size instead",
    ),
    (
        "tracking.sigma_point",
        "the reference does not use it; local_opt.sigma_point exists",
    ),
    (
        "local_opt.window_size",
        "the reference does not use it; local_opt.window limits what a solve moves",
    ),
    (
        "local_opt.use_cuda",
        "the reference does not use it; remove it",
    ),
];

/// The default configuration as a tree; every file must match its structure.
pub(super) struct Schema {
    root: Map<String, Value>,
}

impl Schema {
    pub(super) fn of(config: &Config) -> Self {
        let root = match serde_json::to_value(config) {
            Ok(Value::Object(map)) => map,
            // A struct of named fields is always an object.
            _ => Map::new(),
        };
        Self { root }
    }

    pub(super) fn into_tree(self) -> Map<String, Value> {
        self.root
    }

    pub(super) fn is_section(&self, key: &str) -> bool {
        self.root.get(key).is_some_and(Value::is_object)
    }

    /// Rejects unknown keys and wrong types; returns the dotted paths of the settings.
    pub(super) fn check(
        &self,
        origin: &str,
        settings: &Map<String, Value>,
    ) -> Result<Vec<String>, ConfigError> {
        let mut keys = Vec::new();
        self.check_level(origin, "", &self.root, settings, &mut keys)?;
        Ok(keys)
    }

    fn check_level(
        &self,
        origin: &str,
        prefix: &str,
        known: &Map<String, Value>,
        settings: &Map<String, Value>,
        keys: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        for (name, value) in settings {
            let key = join(prefix, name);
            let mistyped = |expected: String| ConfigError::Type {
                origin: origin.to_owned(),
                key: key.clone(),
                expected,
                found: describe(value),
            };
            match (known.get(name), value) {
                (None, _) => {
                    return Err(ConfigError::UnknownKey {
                        origin: origin.to_owned(),
                        hint: self.hint(&key, known),
                        key,
                    });
                }
                (Some(Value::Object(known)), Value::Object(inner)) => {
                    self.check_level(origin, &key, known, inner, keys)?;
                }
                (Some(Value::Object(known)), _) => {
                    return Err(mistyped(format!("a section with {}", list(known))));
                }
                (Some(_), value) => {
                    if fit(&key, value).is_err() {
                        return Err(mistyped(expected(&key)));
                    }
                    keys.push(key);
                }
            }
        }
        Ok(())
    }

    fn hint(&self, key: &str, known: &Map<String, Value>) -> String {
        if let Some((_, advice)) = RENAMED.iter().find(|(old, _)| *old == key) {
            return (*advice).to_owned();
        }
        match self.nearest(key) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("the keys here are {}", list(known)),
        }
    }

    /// The valid key most similar to `key`; the last component has the greatest weight, so that a
    /// setting in the wrong section is found. `None` if no key is similar.
    fn nearest(&self, key: &str) -> Option<String> {
        let leaf = |k: &str| k.rsplit('.').next().unwrap_or(k).to_lowercase();
        let like = strsim::normalized_damerau_levenshtein;
        let (mut best, mut best_score) = (None, 0.0);
        for candidate in self.all_keys() {
            let last = like(&leaf(key), &leaf(&candidate));
            let whole = like(&key.to_lowercase(), &candidate.to_lowercase());
            let score = 0.6 * last + 0.4 * whole;
            // At least half of the letters of the last component match.
            if last >= 0.5 && score > best_score {
                (best, best_score) = (Some(candidate), score);
            }
        }
        best
    }

    /// Dotted paths of all settings and sections.
    fn all_keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for (name, value) in &self.root {
            keys.push(name.clone());
            for inner in value.as_object().into_iter().flat_map(Map::keys) {
                keys.push(join(name, inner));
            }
        }
        keys
    }
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}.{name}")
    }
}

fn list(known: &Map<String, Value>) -> String {
    known.keys().cloned().collect::<Vec<_>>().join(", ")
}

/// Whether `value` is valid for `key`, as determined by deserialising the struct.
fn fit(key: &str, value: &Value) -> Result<(), String> {
    let mut tree = value.clone();
    for part in key.rsplit('.') {
        tree = Value::Object(Map::from_iter([(part.to_owned(), tree)]));
    }
    match serde_json::from_value::<Config>(tree) {
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

/// The type of a setting in words.
fn expected(key: &str) -> String {
    Config::key(key).map_or_else(|| "a section".into(), |key| key.kind.words())
}

/// Describes a value in messages: its type, and the value if short.
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

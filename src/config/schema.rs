//! Which keys exist and what they take, read off the default configuration.

use super::load::describe;
use super::{Config, ConfigError};
use serde_json::{Map, Value};

/// Keys of the reference that are spelt or done differently here.
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

/// A configuration as a tree; that of the default one is what every file must fit.
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

    pub(super) fn is_section(&self, key: &str) -> bool {
        self.root.get(key).is_some_and(Value::is_object)
    }

    /// Refuses unknown keys and wrong types; gives the dotted paths of the settings.
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
                (Some(default), value) => {
                    if fit(&key, value).is_err() {
                        return Err(mistyped(expected(&key, default)));
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

    /// The valid key most like `key`: the last part counts for more, so that a setting in the
    /// wrong section is found. `None` when nothing is alike.
    fn nearest(&self, key: &str) -> Option<String> {
        let leaf = |k: &str| k.rsplit('.').next().unwrap_or(k).to_lowercase();
        let like = strsim::normalized_damerau_levenshtein;
        let (mut best, mut best_score) = (None, 0.0);
        for candidate in self.all_keys() {
            let last = like(&leaf(key), &leaf(&candidate));
            let whole = like(&key.to_lowercase(), &candidate.to_lowercase());
            let score = 0.6 * last + 0.4 * whole;
            // Half of the letters of the last part in place.
            if last >= 0.5 && score > best_score {
                (best, best_score) = (Some(candidate), score);
            }
        }
        best
    }

    /// Dotted paths of all settings with their values as text.
    pub(super) fn leaves(&self) -> Vec<(String, String)> {
        let text = |value: &Value| match value {
            Value::String(s) => s.clone(),
            // The tree holds f32 settings as f64: 0.333, not 0.3330000042915344.
            Value::Number(n) if n.is_f64() => match n.as_f64().map(|x| (x, x as f32)) {
                Some((x, short)) if f64::from(short) == x => short.to_string(),
                _ => n.to_string(),
            },
            other => other.to_string(),
        };
        let mut leaves = Vec::new();
        for (name, value) in &self.root {
            match value {
                Value::Object(section) => leaves.extend(
                    section
                        .iter()
                        .map(|(key, value)| (join(name, key), text(value))),
                ),
                value => leaves.push((name.clone(), text(value))),
            }
        }
        leaves
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

/// Whether the configuration takes `value` at `key`: the structs themselves decide.
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

/// The type of a setting in words, from its default.
fn expected(key: &str, default: &Value) -> String {
    match default {
        Value::Bool(_) => "true or false".into(),
        Value::Number(n) if n.is_u64() => "a whole number".into(),
        Value::Number(_) => "a number".into(),
        // A choice refuses this text and names what it takes; free text takes it.
        Value::String(_) => match fit(key, &Value::String("?".into())) {
            Ok(()) => "text (put it in quotes)".into(),
            Err(message) => match message.split_once("expected ") {
                Some((_, choices)) => choices.replace('`', ""),
                None => "text".into(),
            },
        },
        _ => "a section".into(),
    }
}

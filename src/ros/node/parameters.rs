//! Node parameters: names, defaults, ranges, and whether they can change at run time.

use crate::config::SettingValue;
use crate::wire::messages::parameter::{
    self as msg, FloatingPointRange, IntegerRange, ParameterDescriptor, ParameterValue,
};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::fmt;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Double(f64),
    Text(String),
}

/// Constraints on the values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Constraint {
    /// No constraint.
    None,
    /// Minimum and maximum.
    Integer(i64, i64),
    /// Minimum and maximum.
    Double(f64, f64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// A non-empty TF frame name.
    Frame,
}

/// Times at which a parameter may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// At any time.
    Always,
    /// Only while the node is unconfigured.
    Unconfigured,
    /// Only at start-up.
    Never,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    pub name: Cow<'static, str>,
    /// The default value, which determines the type.
    pub default: Value,
    pub description: Cow<'static, str>,
    pub constraint: Constraint,
    pub change: Change,
}

/// Error from setting a parameter.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParameterError {
    /// The parameter does not exist.
    #[error("unknown parameter {name:?}{hint}")]
    Unknown {
        name: String,
        /// The nearest name.
        hint: String,
    },
    /// The value has the wrong type.
    #[error("{name}: expected {expected}, found {found}")]
    Type {
        name: String,
        expected: &'static str,
        found: String,
    },
    /// The value violates the constraint.
    #[error("{name} must be {expected}, found {found}")]
    Constraint {
        name: String,
        expected: String,
        found: String,
    },
    /// The parameter cannot change now.
    #[error("{name} can be changed {when}")]
    Fixed { name: String, when: &'static str },
}

impl Value {
    fn kind(&self) -> (&'static str, u8) {
        match self {
            Self::Bool(_) => ("true or false", msg::BOOL),
            Self::Integer(_) => ("a whole number", msg::INTEGER),
            Self::Double(_) => ("a number", msg::DOUBLE),
            Self::Text(_) => ("text", msg::STRING),
        }
    }

    /// Converts to a message.
    pub fn to_message(&self) -> ParameterValue {
        let mut message = ParameterValue {
            kind: self.kind().1,
            ..Default::default()
        };
        match self {
            Self::Bool(v) => message.bool_value = *v,
            Self::Integer(v) => message.integer_value = *v,
            Self::Double(v) => message.double_value = *v,
            Self::Text(v) => message.string_value = v.clone(),
        }
        message
    }

    /// Converts from a message; on failure, returns a description of its value.
    pub fn from_message(message: &ParameterValue) -> Result<Self, &'static str> {
        match message.kind {
            msg::BOOL => Ok(Self::Bool(message.bool_value)),
            msg::INTEGER => Ok(Self::Integer(message.integer_value)),
            msg::DOUBLE => Ok(Self::Double(message.double_value)),
            msg::STRING => Ok(Self::Text(message.string_value.clone())),
            msg::NOT_SET => Err("no value (parameters of this node cannot be undeclared)"),
            _ => Err("an array"),
        }
    }

    /// Converts from YAML or JSON; on failure, returns a description of the value.
    pub fn from_json(json: &Json) -> Result<Self, &'static str> {
        match json {
            Json::Bool(v) => Ok(Self::Bool(*v)),
            Json::Number(n) => match (n.as_i64(), n.as_f64()) {
                (Some(v), _) => Ok(Self::Integer(v)),
                (None, Some(v)) => Ok(Self::Double(v)),
                _ => Err("a number that is too large"),
            },
            Json::String(v) => Ok(Self::Text(v.clone())),
            Json::Null => Err("no value"),
            Json::Array(_) => Err("an array"),
            Json::Object(_) => Err("a section"),
        }
    }
}

impl Value {
    /// The value in the form used by the configuration.
    pub fn to_json(&self) -> Json {
        match self {
            Self::Bool(v) => Json::from(*v),
            Self::Integer(v) => Json::from(*v),
            Self::Double(v) => Json::from(*v),
            Self::Text(v) => Json::from(v.as_str()),
        }
    }
}

impl From<SettingValue> for Value {
    fn from(value: SettingValue) -> Self {
        match value {
            SettingValue::Bool(v) => Self::Bool(v),
            SettingValue::Whole(v) => Self::Integer(i64::try_from(v).unwrap_or(i64::MAX)),
            SettingValue::Number(v) => Self::Double(v),
            SettingValue::Text(v) => Self::Text(v),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Double(number)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(v) => write!(f, "{v}"),
            Self::Integer(v) => write!(f, "{v}"),
            Self::Double(v) => write!(f, "{v:?}"),
            Self::Text(v) => write!(f, "{v:?}"),
        }
    }
}

impl Definition {
    /// Converts `value` to this parameter's type and checks it.
    fn accept(&self, value: Value) -> Result<Value, ParameterError> {
        let value = match (&self.default, value) {
            // Accept `max_rate: 15` as 15.0.
            (Value::Double(_), Value::Integer(v)) => Value::Double(v as f64),
            // `loops: off` is false to YAML, and meant as the word.
            (Value::Text(_), Value::Bool(on)) if self.is_switch() => match on {
                true => "on".into(),
                false => "off".into(),
            },
            (_, value) => value,
        };
        let (expected, kind) = self.default.kind();
        let (found, own) = value.kind();
        if kind != own {
            return Err(ParameterError::Type {
                name: self.name.to_string(),
                expected,
                found: format!("{found}: {value}"),
            });
        }
        let fine = match (&self.constraint, &value) {
            (Constraint::Integer(from, to), Value::Integer(v)) => (from..=to).contains(&v),
            (Constraint::Double(from, to), Value::Double(v)) => (from..=to).contains(&v),
            (Constraint::OneOf(choices), Value::Text(v)) => choices.contains(&v.as_str()),
            (Constraint::Frame, Value::Text(v)) => {
                !v.is_empty() && !v.starts_with('/') && !v.contains(char::is_whitespace)
            }
            (_, Value::Double(v)) => v.is_finite(),
            _ => true,
        };
        match fine {
            true => Ok(value),
            false => Err(ParameterError::Constraint {
                name: self.name.to_string(),
                expected: self.allowed(),
                found: value.to_string(),
            }),
        }
    }

    /// Whether it is `on` or `off`.
    fn is_switch(&self) -> bool {
        matches!(self.constraint, Constraint::OneOf(names) if names.contains(&"on") && names.contains(&"off"))
    }

    fn allowed(&self) -> String {
        match self.constraint {
            Constraint::None => "finite".into(),
            Constraint::Integer(from, to) => format!("from {from} to {to}"),
            Constraint::Double(from, to) => format!("from {from} to {to}"),
            Constraint::OneOf(choices) => {
                let shown = choices.iter().map(|c| if c.is_empty() { "''" } else { c });
                format!("one of {}", shown.collect::<Vec<_>>().join(", "))
            }
            Constraint::Frame => "a frame name without a leading / and without spaces".into(),
        }
    }

    /// Converts to a message.
    pub fn descriptor(&self) -> ParameterDescriptor {
        let mut message = ParameterDescriptor {
            name: self.name.to_string(),
            kind: self.default.kind().1,
            description: self.description.to_string(),
            read_only: self.change == Change::Never,
            ..Default::default()
        };
        match self.constraint {
            Constraint::Integer(from_value, to_value) => {
                message.integer_range = vec![IntegerRange {
                    from_value,
                    to_value,
                    step: 1,
                }];
            }
            Constraint::Double(from_value, to_value) => {
                message.floating_point_range = vec![FloatingPointRange {
                    from_value,
                    to_value,
                    step: 0.0,
                }];
            }
            Constraint::OneOf(_) | Constraint::Frame => {
                message.additional_constraints = self.allowed();
            }
            Constraint::None => {}
        }
        if self.change == Change::Unconfigured {
            let when = "can be changed only while the node is unconfigured";
            let text = &mut message.additional_constraints;
            *text = match text.is_empty() {
                true => when.into(),
                false => format!("{text}; {when}"),
            };
        }
        message
    }
}

/// All parameters with their values.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    definition: Definition,
    value: Value,
    /// Whether it was set explicitly.
    given: bool,
}

impl Table {
    /// All parameters with their defaults.
    pub fn new(definitions: Vec<Definition>) -> Self {
        let entry = |definition: Definition| Entry {
            value: definition.default.clone(),
            definition,
            given: false,
        };
        Self {
            entries: definitions.into_iter().map(entry).collect(),
        }
    }

    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|e| e.definition.name.as_ref())
    }

    /// A parameter and its value.
    pub fn get(&self, name: &str) -> Option<(&Definition, &Value)> {
        let name = renamed(name).unwrap_or(name);
        let found = self.entries.iter().find(|e| e.definition.name == name);
        found.map(|e| (&e.definition, &e.value))
    }

    /// Sets a parameter before the node starts, when all parameters can change.
    pub fn preset(&mut self, name: &str, json: &Json) -> Result<(), ParameterError> {
        let value = Value::from_json(json);
        self.set(name, value, false, true).map(|_| ())
    }

    /// Sets a parameter; returns its previous value. A `configured` node rejects changes of
    /// parameters that are fixed.
    pub fn change(
        &mut self,
        name: &str,
        value: &ParameterValue,
        configured: bool,
    ) -> Result<Value, ParameterError> {
        self.set(name, Value::from_message(value), configured, false)
    }

    fn set(
        &mut self,
        name: &str,
        value: Result<Value, &'static str>,
        configured: bool,
        starting: bool,
    ) -> Result<Value, ParameterError> {
        let name = current_name(name);
        let hint = self.hint(name);
        let found = self.entries.iter_mut().find(|e| e.definition.name == name);
        let Some(Entry {
            definition,
            value: current,
            given,
        }) = found
        else {
            let name = name.to_owned();
            return Err(ParameterError::Unknown { name, hint });
        };
        let value = value.map_err(|found| ParameterError::Type {
            name: definition.name.to_string(),
            expected: definition.default.kind().0,
            found: found.into(),
        })?;
        let value = definition.accept(value)?;
        let fixed = |when| {
            Err(ParameterError::Fixed {
                name: definition.name.to_string(),
                when,
            })
        };
        match definition.change {
            _ if value == *current => {}
            Change::Never if !starting => return fixed("only when the node is started (-p)"),
            Change::Unconfigured if configured => {
                return fixed(
                    "only while the node is unconfigured; deactivate it and clean it up first, or restart it",
                );
            }
            _ => {}
        }
        *given = true;
        Ok(std::mem::replace(current, value))
    }

    /// Shows the effective value of a parameter that was not set.
    pub fn show(&mut self, name: &str, value: Value) {
        let found = self.entries.iter_mut().find(|e| e.definition.name == name);
        if let Some(entry) = found.filter(|entry| !entry.given) {
            entry.value = value;
        }
    }

    fn hint(&self, name: &str) -> String {
        let like = |d: &Definition| strsim::normalized_damerau_levenshtein(&d.name, name);
        let scored =
            (self.entries.iter()).map(|e| (like(&e.definition), e.definition.name.as_ref()));
        match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((score, nearest)) if score >= 0.5 => format!("; did you mean {nearest}?"),
            _ => String::new(),
        }
    }

    /// The value of an existing parameter.
    pub fn value(&self, name: &str) -> &Value {
        self.get(name)
            .map_or(&Value::Bool(false), |(_, value)| value)
    }

    /// Explicitly set parameters below `prefix`, by name without the prefix.
    pub fn given_below<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.entries.iter().filter_map(move |entry| {
            let name = entry.definition.name.strip_prefix(prefix)?;
            entry.given.then_some((name, &entry.value))
        })
    }
}

/// Former names of parameters, which are still taken.
const FORMER: [(&str, &str); 3] = [
    ("engine", "backend"),
    ("keyframe_capacity", "max_keyframes"),
    ("use_calibration", "use_calib"),
];

/// The name that a parameter has now, if `name` is a former one.
fn renamed(name: &str) -> Option<&'static str> {
    let found = FORMER.iter().find(|(former, _)| *former == name);
    found.map(|(_, now)| *now)
}

/// The name that a parameter has now; a former one is taken with a warning.
fn current_name(name: &str) -> &str {
    match renamed(name) {
        Some(now) => {
            tracing::warn!("the parameter {name} has been renamed to {now}");
            now
        }
        None => name,
    }
}

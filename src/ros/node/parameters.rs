//! The node's parameters: names, defaults, ranges, and which of them may change while it runs.

use crate::ros::messages::parameter::{
    self as msg, FloatingPointRange, IntegerRange, ParameterDescriptor, ParameterValue,
};
use serde_json::Value as Json;
use std::fmt;

/// A parameter's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// true or false
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Double(f64),
    /// Text.
    Text(String),
}

/// What values a parameter may have, beyond their type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Constraint {
    /// Any.
    None,
    /// From, to.
    Integer(i64, i64),
    /// From, to.
    Double(f64, f64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// A TF frame's name, not empty.
    Frame,
}

/// When a parameter may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// At any time.
    Always,
    /// While the node is unconfigured.
    Unconfigured,
    /// Only on the command line.
    Never,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// Its value if nobody sets it; its type.
    pub default: Value,
    /// For people.
    pub description: &'static str,
    /// What it may be.
    pub constraint: Constraint,
    /// When it may change.
    pub change: Change,
}

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParameterError {
    /// No parameter of that name.
    #[error("there is no parameter {name:?}{hint}")]
    Unknown {
        /// As given.
        name: String,
        /// The nearest name.
        hint: String,
    },
    /// A value of another type.
    #[error("{name} is {expected}, found {found}")]
    Type {
        /// The parameter.
        name: &'static str,
        /// Its type.
        expected: &'static str,
        /// What came.
        found: String,
    },
    /// A value that is not allowed.
    #[error("{name} must be {expected}, found {found}")]
    Constraint {
        /// The parameter.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What came.
        found: String,
    },
    /// A value that cannot change now.
    #[error("{name} can be changed {when}")]
    Fixed {
        /// The parameter.
        name: &'static str,
        /// When it can.
        when: &'static str,
    },
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

    /// The message's form.
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

    /// From a message; `Err`: what it holds instead.
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

    /// From YAML or JSON; `Err`: what it is instead.
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
    /// `value` as this parameter takes it.
    fn accept(&self, value: Value) -> Result<Value, ParameterError> {
        let value = match (&self.default, value) {
            // `max_rate: 15` is meant as 15.0.
            (Value::Double(_), Value::Integer(v)) => Value::Double(v as f64),
            (_, value) => value,
        };
        let (expected, kind) = self.default.kind();
        let (found, own) = value.kind();
        if kind != own {
            return Err(ParameterError::Type {
                name: self.name,
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
                name: self.name,
                expected: self.allowed(),
                found: value.to_string(),
            }),
        }
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
            Constraint::Frame => "a frame's name, without / in front and without spaces".into(),
        }
    }

    /// The message's form.
    pub fn descriptor(&self) -> ParameterDescriptor {
        let mut message = ParameterDescriptor {
            name: self.name.into(),
            kind: self.default.kind().1,
            description: self.description.into(),
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

/// All parameters and their values.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    entries: Vec<(Definition, Value)>,
}

impl Table {
    /// Every parameter at its default.
    pub fn new(definitions: Vec<Definition>) -> Self {
        let entry = |d: Definition| {
            let value = d.default.clone();
            (d, value)
        };
        Self {
            entries: definitions.into_iter().map(entry).collect(),
        }
    }

    /// Names in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|(d, _)| d.name)
    }

    /// A parameter and its value.
    pub fn get(&self, name: &str) -> Option<(&Definition, &Value)> {
        let found = self.entries.iter().find(|(d, _)| d.name == name);
        found.map(|(d, v)| (d, v))
    }

    /// Sets a parameter before the node starts; nothing is fixed yet.
    pub fn preset(&mut self, name: &str, json: &Json) -> Result<(), ParameterError> {
        let value = Value::from_json(json);
        self.set(name, value, false, true).map(|_| ())
    }

    /// Sets a parameter; gives its value before. A node that is `configured` refuses what it cannot
    /// change any more.
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
        let hint = self.hint(name);
        let found = self.entries.iter_mut().find(|(d, _)| d.name == name);
        let Some((definition, current)) = found else {
            let name = name.to_owned();
            return Err(ParameterError::Unknown { name, hint });
        };
        let value = value.map_err(|found| ParameterError::Type {
            name: definition.name,
            expected: definition.default.kind().0,
            found: found.into(),
        })?;
        let value = definition.accept(value)?;
        let fixed = |when| {
            Err(ParameterError::Fixed {
                name: definition.name,
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
        Ok(std::mem::replace(current, value))
    }

    fn hint(&self, name: &str) -> String {
        let like = |d: &Definition| strsim::normalized_damerau_levenshtein(d.name, name);
        let scored = self.entries.iter().map(|(d, _)| (like(d), d.name));
        match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((score, nearest)) if score >= 0.5 => format!("; did you mean {nearest}?"),
            _ => String::new(),
        }
    }

    /// The value of a parameter that is text; empty if there is none.
    pub fn text(&self, name: &str) -> String {
        match self.get(name) {
            Some((_, Value::Text(v))) => v.clone(),
            _ => String::new(),
        }
    }

    /// The value of a parameter that is true or false.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some((_, Value::Bool(true))))
    }

    /// The value of a parameter that is a whole number of 0 or more.
    pub fn count(&self, name: &str) -> usize {
        match self.get(name) {
            Some((_, Value::Integer(v))) => usize::try_from(*v).unwrap_or(0),
            _ => 0,
        }
    }

    /// The value of a parameter that is a number.
    pub fn number(&self, name: &str) -> f64 {
        match self.get(name) {
            Some((_, Value::Double(v))) => *v,
            _ => 0.0,
        }
    }
}

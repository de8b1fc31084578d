//! Reads Python pickles as data. Nothing is ever executed: a would-be import becomes
//! [`Value::Global`], a would-be call or instantiation becomes an inert [`Object`] that records
//! only its class, arguments and state. A file that refers to anything other than the data classes
//! of PyTorch, NumPy and argparse is refused nevertheless, because such a file is either an attack
//! or not a checkpoint.
//!
//! Values live in an arena and refer to each other by [`Id`], so that shared and cyclic values cost
//! nothing and dropping them does not recurse. Strings and bytes borrow from the input.

mod machine;
mod policy;

use std::borrow::Cow;

use machine::Machine;

/// Index of a value in its [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u32);

/// One Python value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A longer integer: two's complement, little-endian.
    BigInt(&'a [u8]),
    /// A float.
    Float(f64),
    /// A string.
    Str(&'a str),
    /// `bytes` or `bytearray`.
    Bytes(&'a [u8]),
    /// A list.
    List(Vec<Id>),
    /// A tuple.
    Tuple(Vec<Id>),
    /// A dict in insertion order; later entries win over earlier ones with an equal key.
    Dict(Vec<(Id, Id)>),
    /// A set or frozenset.
    Set(Vec<Id>),
    /// A class or function, recorded by name but never resolved.
    Global { module: &'a str, name: &'a str },
    /// The inert result of calling or instantiating a global.
    Object(Box<Object<'a>>),
    /// A reference to something outside the pickle, such as a tensor's storage.
    Persistent(Id),
}

/// The inert result of calling or instantiating a global.
#[derive(Debug, Clone, PartialEq)]
pub struct Object<'a> {
    /// Module of the class or function.
    pub module: &'a str,
    /// Qualified name of the class or function.
    pub name: &'a str,
    /// Arguments, always a tuple.
    pub args: Id,
    /// The argument that `__setstate__` would have received.
    pub state: Option<Id>,
    /// Entries added as to a dict (`OrderedDict`).
    pub entries: Vec<(Id, Id)>,
    /// Elements added as to a list or set.
    pub elements: Vec<Id>,
}

impl Object<'_> {
    /// Whether this is an instance or result of `module.name`.
    pub fn is(&self, module: &str, name: &str) -> bool {
        self.module == module && self.name == name
    }
}

/// Error from reading a pickle. Offsets are in bytes from the start of the pickle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// The data ends inside the pickle.
    #[error("truncated pickle: expected {needed} more bytes at offset {offset}, found {left}")]
    Truncated {
        offset: usize,
        needed: u64,
        left: usize,
    },
    /// The pickle refers to something that no data file needs.
    #[error(
        "a pickle that refers to {module}.{name} (offset {offset}), which is not plain data; \
         do not load this file with Python either unless you trust its author"
    )]
    Refused {
        offset: usize,
        module: String,
        name: String,
    },
    /// Not a pickle, or one that contradicts itself.
    #[error("a malformed pickle (offset {offset}): expected {expected}, found {found}")]
    Malformed {
        offset: usize,
        expected: &'static str,
        found: String,
    },
    /// The pickle exceeds the needs of any plausible checkpoint.
    #[error("a pickle with more than {limit} {what} (offset {offset})")]
    TooLarge {
        offset: usize,
        what: &'static str,
        limit: usize,
    },
}

/// The values of one pickle.
#[derive(Debug, Clone)]
pub struct Pickle<'a> {
    values: Vec<Value<'a>>,
    root: Id,
}

/// Returned by `Pickle::get` for an id of another pickle.
const NOTHING: Value<'static> = Value::None;

impl<'a> Pickle<'a> {
    /// Reads the first pickle (protocols 2 to 5) of `input`; what follows it is ignored.
    pub fn parse(input: &'a [u8]) -> Result<Self, PickleError> {
        Machine::new(input).run()
    }

    /// The value that Python's `pickle.load` would have returned.
    pub fn root(&self) -> Id {
        self.root
    }

    /// A value.
    pub fn get(&self, id: Id) -> &Value<'a> {
        self.values.get(id.0 as usize).unwrap_or(&NOTHING)
    }

    /// The entries of a dict, an `OrderedDict` or another dict-like object.
    pub fn entries(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.get(id) {
            Value::Dict(entries) => Some(entries),
            Value::Object(object) if is_mapping(object) => Some(&object.entries),
            _ => None,
        }
    }

    /// The value of a string key of a dict-like value.
    pub fn lookup(&self, id: Id, key: &str) -> Option<Id> {
        let entries = self.entries(id)?;
        let (_, value) = entries
            .iter()
            .rev()
            .find(|(k, _)| self.str(*k) == Some(key))?;
        Some(*value)
    }

    /// A string.
    pub fn str(&self, id: Id) -> Option<&'a str> {
        match self.get(id) {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }

    /// A non-negative integer.
    pub fn usize(&self, id: Id) -> Option<usize> {
        match self.get(id) {
            Value::Int(i) => usize::try_from(*i).ok(),
            _ => None,
        }
    }

    /// The items of a tuple or list.
    pub fn items(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::Tuple(items) | Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// An object.
    pub fn object(&self, id: Id) -> Option<&Object<'a>> {
        match self.get(id) {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Bytes; protocol 2 stores them as a string to be encoded as Latin-1.
    pub fn bytes(&self, id: Id) -> Option<Cow<'a, [u8]>> {
        match self.get(id) {
            Value::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
            Value::Object(object) if object.is("_codecs", "encode") => {
                let [text, encoding] = *self.items(object.args)? else {
                    return None;
                };
                if self.str(encoding)? != "latin1" {
                    return None;
                }
                let text = self.str(text)?;
                let bytes: Option<Vec<u8>> =
                    text.chars().map(|c| u8::try_from(c as u32).ok()).collect();
                Some(Cow::Owned(bytes?))
            }
            _ => None,
        }
    }

    /// A few words for an error message: a short value itself, else its kind.
    pub fn describe(&self, id: Id) -> String {
        match self.get(id) {
            Value::None => "None".into(),
            Value::Bool(b) => if *b { "True" } else { "False" }.into(),
            Value::Int(i) => i.to_string(),
            Value::BigInt(bytes) => format!("an integer of {} bytes", bytes.len()),
            Value::Float(f) => f.to_string(),
            Value::Str(s) => format!("the string {:?}", s.chars().take(60).collect::<String>()),
            Value::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Value::List(items) => format!("a list of {}", items.len()),
            Value::Tuple(items) => format!("a tuple of {}", items.len()),
            Value::Dict(entries) => format!("a dict of {}", entries.len()),
            Value::Set(items) => format!("a set of {}", items.len()),
            Value::Global { module, name } => format!("{module}.{name}"),
            Value::Object(object) => format!("a {}.{}", object.module, object.name),
            Value::Persistent(_) => "a tensor storage".into(),
        }
    }
}

fn is_mapping(object: &Object<'_>) -> bool {
    object.is("collections", "OrderedDict") || object.is("collections", "defaultdict")
}

//! The virtual machine that executes the opcodes.

use std::collections::HashMap;

use super::policy::{may_be_called, may_be_named};
use super::{Id, NOTHING, Object, Pickle, PickleError, Value};

/// Maximum number of values in one pickle. The official checkpoint has about 30,000. One byte of
/// input can create a value of some 40 bytes, so without a limit a large hostile file could exhaust
/// memory.
const MAX_VALUES: usize = 1 << 22;

/// Maximum number of open marks, that is, the nesting depth of a pickle.
const MAX_NESTING: usize = 1 << 10;

/// The machine: a value stack, marks into it, and a memo.
pub(super) struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    /// Offset of the current opcode.
    op_at: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self {
            input,
            at: 0,
            op_at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<Pickle<'a>, PickleError> {
        match *self.array::<2>()? {
            [0x80, 2..=5] => {}
            [0x80, protocol] => {
                return Err(self.malformed("protocol 2 to 5", format!("protocol {protocol}")));
            }
            [first, _] => {
                return Err(self.malformed(
                    "a pickle of protocol 2 to 5 (first byte 0x80)",
                    format!("first byte {first:#04x}"),
                ));
            }
        }
        loop {
            self.op_at = self.at;
            let [opcode] = *self.array()?;
            if opcode == b'.' {
                let root = self.pop()?;
                return Ok(Pickle {
                    values: self.values,
                    root,
                });
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            // Protocol and framing; frame lengths are only checked for presence.
            0x80 => {
                self.array::<1>()?;
            }
            0x95 => {
                let length = u64::from_le_bytes(*self.array()?);
                self.check_left(length)?;
            }
            // Marks and stack.
            b'(' => {
                if self.marks.len() >= MAX_NESTING {
                    return Err(self.too_large("open marks", MAX_NESTING));
                }
                self.marks.push(self.stack.len());
            }
            b'0' => {
                // Python drops a mark here if it is on top.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => {
                self.pop_mark()?;
            }
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            // Constants and numbers.
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => {
                let value = i32::from_le_bytes(*self.array()?);
                self.push(Value::Int(value.into()))?;
            }
            b'K' => {
                let [value] = *self.array()?;
                self.push(Value::Int(value.into()))?;
            }
            b'M' => {
                let value = u16::from_le_bytes(*self.array()?);
                self.push(Value::Int(value.into()))?;
            }
            0x8a => {
                let length = self.len8()?;
                self.push_long(length)?;
            }
            0x8b => {
                let length = self.len32()?;
                self.push_long(length)?;
            }
            b'G' => {
                let value = f64::from_be_bytes(*self.array()?);
                self.push(Value::Float(value))?;
            }
            // Strings and bytes.
            b'X' => {
                let length = self.len32()?;
                self.push_str(length)?;
            }
            0x8c => {
                let length = self.len8()?;
                self.push_str(length)?;
            }
            0x8d => {
                let length = self.len64()?;
                self.push_str(length)?;
            }
            b'T' => {
                let length = self.len32()?;
                self.push_py2_str(length)?;
            }
            b'U' => {
                let length = self.len8()?;
                self.push_py2_str(length)?;
            }
            b'B' => {
                let length = self.len32()?;
                self.push_bytes(length)?;
            }
            b'C' => {
                let length = self.len8()?;
                self.push_bytes(length)?;
            }
            0x8e | 0x96 => {
                let length = self.len64()?;
                self.push_bytes(length)?;
            }
            // Containers.
            b']' => self.push(Value::List(Vec::new()))?,
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b')' => self.push(Value::Tuple(Vec::new()))?,
            0x8f => self.push(Value::Set(Vec::new()))?,
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Value::List(items))?;
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items))?;
            }
            0x85..=0x87 => {
                let items = self.pop_n(usize::from(opcode - 0x84))?;
                self.push(Value::Tuple(items))?;
            }
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Value::Set(items))?;
            }
            b'd' => {
                let entries = self.pop_pairs()?;
                self.push(Value::Dict(entries))?;
            }
            b'a' => {
                let item = self.pop_n(1)?;
                self.append(item)?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b's' => {
                let pair = self.pop_n(2)?;
                self.set_items(vec![(pair[0], pair[1])])?;
            }
            b'u' => {
                let entries = self.pop_pairs()?;
                self.set_items(entries)?;
            }
            // The memo.
            b'q' => {
                let [index] = *self.array()?;
                self.put(index.into())?;
            }
            b'r' => {
                let index = u32::from_le_bytes(*self.array()?);
                self.put(index)?;
            }
            0x94 => {
                // Bounded by the input: each entry takes an opcode.
                let index = self.memo.len() as u32;
                self.put(index)?;
            }
            b'h' => {
                let [index] = *self.array()?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = u32::from_le_bytes(*self.array()?);
                self.recall(index)?;
            }
            // Globals and calls.
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.push_global(module, name)?;
            }
            0x93 => {
                let names = self.pop_n(2)?;
                let (Value::Str(module), Value::Str(name)) =
                    (self.value(names[0]), self.value(names[1]))
                else {
                    return Err(self.malformed("two strings naming a global", "other values"));
                };
                let (module, name) = (*module, *name);
                self.push_global(module, name)?;
            }
            b'R' => {
                let call = self.pop_n(2)?;
                self.push_object(call[0], call[1], true)?;
            }
            0x81 => {
                let call = self.pop_n(2)?;
                self.push_object(call[0], call[1], false)?;
            }
            0x92 => {
                // Keyword arguments are dropped: none of the classes we inspect has any.
                let call = self.pop_n(3)?;
                self.push_object(call[0], call[1], false)?;
            }
            b'b' => {
                let state = self.pop()?;
                match self.top_value()? {
                    Value::Object(object) => object.state = Some(state),
                    _ => {
                        return Err(self.malformed("an object to give a state to", "another value"));
                    }
                }
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Value::Persistent(id))?;
            }
            _ => {
                return Err(self.malformed(
                    "an opcode of protocols 2 to 5 that carries data",
                    format!("opcode {opcode:#04x}"),
                ));
            }
        }
        Ok(())
    }

    fn malformed(&self, expected: &'static str, found: impl Into<String>) -> PickleError {
        PickleError::Malformed {
            offset: self.op_at,
            expected,
            found: found.into(),
        }
    }

    fn too_large(&self, what: &'static str, limit: usize) -> PickleError {
        PickleError::TooLarge {
            offset: self.op_at,
            what,
            limit,
        }
    }

    fn check_left(&self, needed: u64) -> Result<usize, PickleError> {
        let left = self.input.len() - self.at;
        match usize::try_from(needed) {
            Ok(length) if length <= left => Ok(length),
            _ => Err(PickleError::Truncated {
                offset: self.at,
                needed,
                left,
            }),
        }
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], PickleError> {
        let length = self.check_left(length)?;
        let bytes = &self.input[self.at..self.at + length];
        self.at += length;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], PickleError> {
        let left = self.input.len() - self.at;
        let Some(bytes) = self.input[self.at..].first_chunk::<N>() else {
            return Err(PickleError::Truncated {
                offset: self.at,
                needed: N as u64,
                left,
            });
        };
        self.at += N;
        Ok(bytes)
    }

    fn len8(&mut self) -> Result<u64, PickleError> {
        Ok(self.array::<1>()?[0].into())
    }

    fn len32(&mut self) -> Result<u64, PickleError> {
        Ok(u32::from_le_bytes(*self.array()?).into())
    }

    fn len64(&mut self) -> Result<u64, PickleError> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = &self.input[self.at..];
        let Some(length) = rest.iter().position(|&b| b == b'\n') else {
            return Err(PickleError::Truncated {
                offset: self.at,
                needed: rest.len() as u64 + 1,
                left: rest.len(),
            });
        };
        self.at += length + 1;
        std::str::from_utf8(&rest[..length])
            .map_err(|e| self.malformed("UTF-8 text", e.to_string()))
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), PickleError> {
        if self.values.len() >= MAX_VALUES {
            return Err(self.too_large("values", MAX_VALUES));
        }
        self.stack.push(Id(self.values.len() as u32));
        self.values.push(value);
        Ok(())
    }

    fn push_long(&mut self, length: u64) -> Result<(), PickleError> {
        let bytes = self.take(length)?;
        let value = if bytes.len() <= 8 {
            let fill = if bytes.last().is_some_and(|b| b & 0x80 != 0) {
                0xff
            } else {
                0
            };
            let mut wide = [fill; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(wide))
        } else {
            Value::BigInt(bytes)
        };
        self.push(value)
    }

    fn push_str(&mut self, length: u64) -> Result<(), PickleError> {
        let bytes = self.take(length)?;
        let text =
            std::str::from_utf8(bytes).map_err(|e| self.malformed("UTF-8 text", e.to_string()))?;
        self.push(Value::Str(text))
    }

    /// In Python 2, `str` holds text or bytes.
    fn push_py2_str(&mut self, length: u64) -> Result<(), PickleError> {
        let bytes = self.take(length)?;
        self.push(std::str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Str))
    }

    fn push_bytes(&mut self, length: u64) -> Result<(), PickleError> {
        let bytes = self.take(length)?;
        self.push(Value::Bytes(bytes))
    }

    fn push_global(&mut self, module: &'a str, name: &'a str) -> Result<(), PickleError> {
        if !may_be_named(module, name) {
            return Err(self.refused(module, name));
        }
        self.push(Value::Global { module, name })
    }

    fn push_object(&mut self, class: Id, args: Id, called: bool) -> Result<(), PickleError> {
        let Value::Global { module, name } = *self.value(class) else {
            return Err(self.malformed("a class or function to apply", "another value"));
        };
        if called && !may_be_called(module, name) {
            return Err(self.refused(module, name));
        }
        if !matches!(self.value(args), Value::Tuple(_)) {
            return Err(self.malformed("a tuple of arguments", "another value"));
        }
        self.push(Value::Object(Box::new(Object {
            module,
            name,
            args,
            state: None,
            entries: Vec::new(),
            elements: Vec::new(),
        })))
    }

    fn refused(&self, module: &str, name: &str) -> PickleError {
        PickleError::Refused {
            offset: self.op_at,
            module: module.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Lowest stack position that may be popped: just above the innermost mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop_n(&mut self, n: usize) -> Result<Vec<Id>, PickleError> {
        match self.stack.len().checked_sub(n) {
            Some(start) if start >= self.floor() => Ok(self.stack.split_off(start)),
            _ => Err(self.malformed("values on the stack", "too few")),
        }
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        let id = self.top()?;
        self.stack.pop();
        Ok(id)
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        match self.marks.pop() {
            Some(start) if start <= self.stack.len() => Ok(self.stack.split_off(start)),
            _ => Err(self.malformed("a mark", "none")),
        }
    }

    fn pop_pairs(&mut self) -> Result<Vec<(Id, Id)>, PickleError> {
        let items = self.pop_mark()?;
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.malformed("a value for every key", "a key without a value"));
        }
        Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
    }

    fn top(&self) -> Result<Id, PickleError> {
        match self.stack.last() {
            Some(&id) if self.stack.len() > self.floor() => Ok(id),
            _ => Err(self.malformed("a value on the stack", "none")),
        }
    }

    fn value(&self, id: Id) -> &Value<'a> {
        self.values.get(id.0 as usize).unwrap_or(&NOTHING)
    }

    fn top_value(&mut self) -> Result<&mut Value<'a>, PickleError> {
        let id = self.top()?;
        let missing = self.malformed("a value on the stack", "none");
        self.values.get_mut(id.0 as usize).ok_or(missing)
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), PickleError> {
        match self.top_value()? {
            Value::List(list) | Value::Set(list) => list.extend(items),
            Value::Object(object) => object.elements.extend(items),
            _ => return Err(self.malformed("a list or set to add to", "another value")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<(Id, Id)>) -> Result<(), PickleError> {
        match self.top_value()? {
            Value::Dict(entries) => entries.extend(items),
            Value::Object(object) => object.entries.extend(items),
            _ => return Err(self.malformed("a dict to add to", "another value")),
        }
        Ok(())
    }

    fn put(&mut self, index: u32) -> Result<(), PickleError> {
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), PickleError> {
        let Some(&id) = self.memo.get(&index) else {
            return Err(self.malformed(
                "a memo entry that has been stored",
                format!("number {index}, which has not"),
            ));
        };
        self.stack.push(id);
        Ok(())
    }
}

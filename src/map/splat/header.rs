//! Headers of PLY files.

use std::io::{self, BufRead, ErrorKind};

/// Bytes of a header: that of degree 3 has 1.6 KB.
const MAX_HEADER: usize = 1 << 16;
/// Elements of a file, and properties of one.
const MAX_ITEMS: usize = 256;

/// An element of a PLY file.
#[derive(Debug, Default)]
pub(super) struct Element {
    pub name: String,
    pub count: u64,
    /// Type and name of each property.
    pub properties: Vec<(String, String)>,
}

impl Element {
    /// Index of a property.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.properties.iter().position(|(_, n)| n == name)
    }

    /// Whether every property has this type.
    pub fn is_all(&self, kind: &str) -> bool {
        self.properties.iter().all(|(k, _)| k == kind)
    }
}

/// A header: its elements, and its bytes.
#[derive(Debug)]
pub(super) struct PlyHeader {
    pub elements: Vec<Element>,
    pub bytes: u64,
}

/// Reads a header. The inner error says what is wrong with it.
pub(super) fn read(src: &mut dyn BufRead) -> io::Result<Result<PlyHeader, String>> {
    let mut bytes = 0;
    let mut elements: Vec<Element> = Vec::new();
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        loop {
            let mut byte = [0];
            match src.read_exact(&mut byte) {
                Ok(()) => bytes += 1,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(Err("its header has no end".to_owned()));
                }
                Err(error) => return Err(error),
            }
            if bytes > MAX_HEADER {
                return Ok(Err("its header has no end".to_owned()));
            }
            if byte[0] == b'\n' {
                break;
            }
            line.push(byte[0]);
        }
        let Ok(text) = std::str::from_utf8(&line) else {
            return Ok(Err("its header is not text".to_owned()));
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        number += 1;
        match (number, words.as_slice()) {
            (1, ["ply"]) => {}
            (1, _) => return Ok(Err("it does not start with ply".to_owned())),
            (_, ["format", "binary_little_endian", "1.0"]) => {}
            (_, ["format", ..]) => return Ok(Err(format!("its format is {text:?}"))),
            (_, ["comment" | "obj_info", ..] | []) => {}
            (_, ["element", name, count]) if elements.len() < MAX_ITEMS => {
                let Ok(count) = count.parse() else {
                    return Ok(Err(format!("{text:?} has no count")));
                };
                elements.push(Element {
                    name: (*name).to_owned(),
                    count,
                    properties: Vec::new(),
                });
            }
            (_, ["property", kind, name]) => match elements.last_mut() {
                Some(element) if element.properties.len() < MAX_ITEMS => {
                    let property = ((*kind).to_owned(), (*name).to_owned());
                    element.properties.push(property);
                }
                _ => return Ok(Err(format!("{text:?} is out of place"))),
            },
            (_, ["end_header"]) => {
                let bytes = bytes as u64;
                return Ok(Ok(PlyHeader { elements, bytes }));
            }
            _ => return Ok(Err(format!("its header has the line {text:?}"))),
        }
    }
}

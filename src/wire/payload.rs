//! Serialised messages.

use bytes::Bytes;

/// A serialised message: CDR data without the four-byte encapsulation header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    pub data: Bytes,
    pub big_endian: bool,
}

impl From<Bytes> for Payload {
    /// Assumes little-endian data.
    fn from(data: Bytes) -> Self {
        Self {
            data,
            big_endian: false,
        }
    }
}

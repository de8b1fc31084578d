//! CDR encoding and decoding of messages: plain CDR (XCDR version 1), as every RMW of ROS 2 sends it.

use super::Payload;
use byteorder::{BigEndian, LittleEndian};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of the encapsulation header that precedes the CDR data in an RTPS payload.
pub const HEADER: usize = 4;

/// The bytes are not valid CDR of the message type.
#[derive(Debug, thiserror::Error)]
#[error("expected a CDR-encoded {type_name}, found {bytes} bytes that do not decode: {cause}")]
pub struct CdrError {
    /// `package/msg/Type`.
    pub type_name: &'static str,
    /// Number of bytes found.
    pub bytes: usize,
    pub cause: cdr_encoding::Error,
}

/// Encodes `message` as little-endian CDR without an encapsulation header. Reserves `size_hint` bytes.
pub fn encode<T: Serialize>(
    type_name: &'static str,
    message: &T,
    size_hint: usize,
) -> Result<Bytes, CdrError> {
    match cdr_encoding::to_vec_with_size_hint::<T, LittleEndian>(message, size_hint) {
        Ok(data) => Ok(data.into()),
        Err(cause) => Err(CdrError {
            type_name,
            bytes: 0,
            cause,
        }),
    }
}

/// Decodes `payload`; the message may borrow from it.
pub fn decode<'de, T: Deserialize<'de>>(
    type_name: &'static str,
    payload: &'de Payload,
) -> Result<T, CdrError> {
    let data = &payload.data[..];
    let decoded = match payload.big_endian {
        true => cdr_encoding::from_bytes::<T, BigEndian>(data),
        false => cdr_encoding::from_bytes::<T, LittleEndian>(data),
    };
    decoded
        .map(|(message, _)| message)
        .map_err(|cause| CdrError {
            type_name,
            bytes: data.len(),
            cause,
        })
}

//! Messages to CDR and back: plain CDR (XCDR version 1), as every RMW of ROS 2 sends it.

use super::middleware::Payload;
use byteorder::{BigEndian, LittleEndian};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of the encapsulation header that precedes the CDR data in an RTPS payload.
pub const HEADER: usize = 4;

/// A message that is no valid CDR of its type.
#[derive(Debug, thiserror::Error)]
#[error("expected a CDR-encoded {type_name}, found {bytes} bytes that are none: {cause}")]
pub struct CdrError {
    /// `package/msg/Type`.
    pub type_name: &'static str,
    /// How many bytes there were.
    pub bytes: usize,
    /// The decoder's reason.
    pub cause: cdr_encoding::Error,
}

/// The little-endian CDR of `message`, without encapsulation header. `size_hint` bytes are set aside.
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

/// The message in `payload`; it may borrow from it.
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

//! Messages as read from any bag storage format.

use super::BagError;
use crate::time::Stamp;

/// A message as stored in the file.
pub struct StoredMessage {
    /// Index of its topic among the requested ones.
    pub topic: usize,
    /// Time of recording.
    pub log_time: Stamp,
    /// Decompressed CDR bytes, including the encapsulation header.
    pub data: Vec<u8>,
}

/// Messages of a file in the order of recording.
pub type StoredMessages = Box<dyn Iterator<Item = Result<StoredMessage, BagError>> + Send>;

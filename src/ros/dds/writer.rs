//! A topic writer and its matched readers.
//!
//! The writer also keeps messages for late joiners, for when the underlying writer is replaced.

use super::raw::RawWriter;
use crate::ros::middleware::{MiddlewareError, Publish};
use crate::wire::Qos;
use bytes::Bytes;
use rustdds::dds::WriteError;
use rustdds::{DataWriterStatus, GUID, SampleIdentity, StatusEvented, WriteOptionsBuilder};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

pub struct Writer {
    topic: String,
    inner: Mutex<Inner>,
}

struct Inner {
    writer: RawWriter,
    readers: BTreeSet<GUID>,
    /// The last messages of a latched topic.
    kept: VecDeque<Bytes>,
    /// Maximum number of messages to keep.
    keep: usize,
}

impl Writer {
    /// `topic` is the ROS name.
    pub fn new(topic: String, writer: RawWriter, qos: Qos) -> Self {
        Self {
            topic,
            inner: Mutex::new(Inner {
                writer,
                readers: BTreeSet::new(),
                kept: VecDeque::new(),
                keep: if qos.transient_local { qos.depth } else { 0 },
            }),
        }
    }

    /// Switches to another writer, which receives the messages kept for late joiners.
    pub fn replace(&self, writer: RawWriter) {
        self.with(|inner| {
            inner.readers.clear();
            for data in &inner.kept {
                if let Err(error) = writer.write(data.clone(), None) {
                    tracing::warn!("lost a latched message: {error}");
                }
            }
            inner.writer = writer;
        });
    }

    /// Sends `data`, as the reply to request `related` if given.
    pub fn write(
        &self,
        data: Bytes,
        related: Option<SampleIdentity>,
    ) -> Result<(), MiddlewareError> {
        let options = WriteOptionsBuilder::new()
            .related_sample_identity_opt(related)
            .build();
        let written = self.with(|inner| {
            if inner.keep > 0 {
                if inner.kept.len() >= inner.keep {
                    inner.kept.pop_front();
                }
                inner.kept.push_back(data.clone());
            }
            inner.writer.write_with_options(data, options)
        });
        match written {
            Ok(_) => Ok(()),
            Err(error) => Err(MiddlewareError::Send {
                topic: self.topic.clone(),
                cause: match error {
                    WriteError::WouldBlock { .. } => {
                        "a reliable subscriber has not acknowledged the last 4096 messages".into()
                    }
                    other => other.to_string(),
                },
            }),
        }
    }

    /// Whether any reader of the participant that owns `peer` is matched.
    pub fn reaches(&self, peer: GUID) -> bool {
        self.with(|inner| {
            inner.update();
            inner.readers.iter().any(|r| r.prefix == peer.prefix)
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        // A panic of RustDDS while writing does not leave this state inconsistent.
        act(&mut self.inner.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

impl Inner {
    /// Updates the set of matched readers.
    fn update(&mut self) {
        while let Some(status) = self.writer.try_recv_status() {
            match status {
                DataWriterStatus::PublicationMatched {
                    current, reader, ..
                } => {
                    if current.count_change() >= 0 {
                        self.readers.insert(reader);
                    } else {
                        self.readers.remove(&reader);
                    }
                }
                DataWriterStatus::OfferedIncompatibleQos {
                    reader,
                    last_policy_id,
                    ..
                } => tracing::warn!(
                    "a subscriber ({reader:?}) requests an incompatible quality of service: {last_policy_id:?}"
                ),
                _ => {}
            }
        }
    }
}

impl Publish for Arc<Writer> {
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError> {
        self.write(data, None)
    }

    fn subscribers(&self) -> usize {
        self.with(|inner| {
            inner.update();
            inner.readers.len()
        })
    }

    fn topic(&self) -> &str {
        &self.topic
    }
}

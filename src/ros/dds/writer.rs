//! A topic to write to, with the readers that it reaches.
//!
//! What late joiners are to get is kept here too, for when the writer is replaced.

use super::raw::RawWriter;
use crate::ros::middleware::{MiddlewareError, Publish, Qos};
use bytes::Bytes;
use rustdds::dds::WriteError;
use rustdds::{DataWriterStatus, GUID, SampleIdentity, StatusEvented, WriteOptionsBuilder};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

/// A writer.
pub struct Writer {
    topic: String,
    inner: Mutex<Inner>,
}

struct Inner {
    writer: RawWriter,
    readers: BTreeSet<GUID>,
    /// The last messages of a latched topic.
    kept: VecDeque<Bytes>,
    /// How many of them.
    keep: usize,
}

impl Writer {
    /// `topic` is its name in ROS.
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

    /// Writes with another writer from now on, which tells late joiners what this one did.
    pub fn replace(&self, writer: RawWriter) {
        self.with(|inner| {
            inner.readers.clear();
            for data in &inner.kept {
                if let Err(error) = writer.write(data.clone(), None) {
                    tracing::warn!("a latched message is lost: {error}");
                }
            }
            inner.writer = writer;
        });
    }

    /// Sends `data`, as the reply to the request `related` if there is one.
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
                        "a reliable subscriber has not taken the last 4096 messages".into()
                    }
                    other => other.to_string(),
                },
            }),
        }
    }

    /// Whether a reader of the participant that `peer` belongs to is matched.
    pub fn reaches(&self, peer: GUID) -> bool {
        self.with(|inner| {
            inner.update();
            inner.readers.iter().any(|r| r.prefix == peer.prefix)
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        // A panic of RustDDS while writing leaves nothing half done here.
        act(&mut self.inner.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

impl Inner {
    /// Takes over which readers came and went.
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
                    "a subscriber ({reader:?}) asks for another quality of service than is offered: {last_policy_id:?}"
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

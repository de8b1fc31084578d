//! Writes `.mcap` files in the format of rosbag2's own storage: profile `ros2`, CDR messages,
//! definitions including nested types, QoS of each topic, and rosbag2's metadata at the end.

use crate::files;
use crate::files::export::ExportError;
use crate::time::Stamp;
use crate::wire::definition;
use crate::wire::messages::Message;
use crate::wire::{Payload, Qos};
use mcap::records::{MessageHeader, Metadata};
use mcap::{Compression, McapError, McapResult, WriteOptions, Writer};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Uncompressed size of a chunk, same as in rosbag2.
const CHUNK_BYTES: u64 = 768 * 1024;
/// The newest version of rosbag2's metadata in which QoS is a string, as in all earlier versions.
const METADATA_VERSION: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel(usize);

struct Topic {
    id: u16,
    name: String,
    kind: &'static str,
    qos: String,
    messages: u32,
}

/// Writes a bag. The file appears at its path only after [`BagWriter::finish`]; if dropped earlier,
/// nothing is left behind.
pub struct BagWriter {
    path: PathBuf,
    writer: Writer<BufWriter<NamedTempFile>>,
    topics: Vec<Topic>,
    /// Times of the first and last message.
    span: Option<(Stamp, Stamp)>,
    message: Vec<u8>,
}

impl BagWriter {
    /// Creates a temporary file next to `path`.
    ///
    /// # Errors
    /// The folder is missing or not writable.
    pub fn create(path: &Path) -> Result<Self, ExportError> {
        let fail = |e| ExportError::io("write", path, e);
        let file = files::begin(path).map_err(fail)?;
        let options = WriteOptions::new()
            .profile("ros2")
            .library(concat!("mast3r_slam ", env!("CARGO_PKG_VERSION")))
            .compression(Some(Compression::Zstd))
            .compression_threads(0)
            .chunk_size(Some(CHUNK_BYTES));
        let writer = options.create(BufWriter::with_capacity(1 << 16, file));
        Ok(Self {
            path: path.to_owned(),
            writer: writer.map_err(|e| fail(cause(e)))?,
            topics: Vec::new(),
            span: None,
            message: Vec::new(),
        })
    }

    fn wrote<T>(&self, written: McapResult<T>) -> Result<T, ExportError> {
        written.map_err(|e| ExportError::io("write", &self.path, cause(e)))
    }

    /// Declares a topic of messages `M`; a topic that was declared before is unchanged.
    ///
    /// # Errors
    /// I/O errors, and a type without a [`definition`].
    pub fn topic<M: Message>(&mut self, name: &str, qos: Qos) -> Result<Channel, ExportError> {
        self.topic_of(name, M::TYPE, qos)
    }

    /// Like [`BagWriter::topic`], with the message type as a string.
    ///
    /// # Errors
    /// See [`BagWriter::topic`].
    pub fn topic_of(
        &mut self,
        name: &str,
        kind: &'static str,
        qos: Qos,
    ) -> Result<Channel, ExportError> {
        let same = |t: &Topic| t.name == name && t.kind == kind;
        if let Some(known) = self.topics.iter().position(same) {
            return Ok(Channel(known));
        }
        let text = definition(kind).ok_or_else(|| ExportError::Encode {
            path: self.path.clone(),
            reason: format!("the type {kind} has no definition"),
        })?;
        let schema = self.writer.add_schema(kind, "ros2msg", text.as_bytes());
        let schema = self.wrote(schema)?;
        let qos = qos_text(qos);
        let metadata = BTreeMap::from([
            ("offered_qos_profiles".to_owned(), qos.clone()),
            ("topic_type_hash".to_owned(), String::new()),
        ]);
        let id = self.writer.add_channel(schema, name, "cdr", &metadata);
        let id = self.wrote(id)?;
        self.topics.push(Topic {
            id,
            name: name.to_owned(),
            kind,
            qos,
            messages: 0,
        });
        Ok(Channel(self.topics.len() - 1))
    }

    /// Writes a message with recording time `time`. Times before 1970 are set to 1970.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write<M: Message + Serialize>(
        &mut self,
        channel: Channel,
        time: Stamp,
        message: &M,
    ) -> Result<(), ExportError> {
        let data = message.encode().map_err(|e| ExportError::Encode {
            path: self.path.clone(),
            reason: e.to_string(),
        })?;
        self.write_payload(channel, time, &data.into())
    }

    /// Like [`BagWriter::write`], for a serialised message.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write_payload(
        &mut self,
        channel: Channel,
        time: Stamp,
        payload: &Payload,
    ) -> Result<(), ExportError> {
        let time = time.max(Stamp { nanos: 0 });
        let Some(topic) = self.topics.get_mut(channel.0) else {
            return Ok(());
        };
        topic.messages += 1;
        let header = MessageHeader {
            channel_id: topic.id,
            sequence: topic.messages,
            log_time: time.nanos.unsigned_abs(),
            publish_time: time.nanos.unsigned_abs(),
        };
        self.message.clear();
        // Plain CDR in the given byte order.
        let little_endian = u8::from(!payload.big_endian);
        self.message.extend_from_slice(&[0, little_endian, 0, 0]);
        self.message.extend_from_slice(&payload.data);
        let written = self.writer.write_to_known_channel(&header, &self.message);
        self.wrote(written)?;
        self.span = Some(match self.span {
            None => (time, time),
            Some((first, last)) => (first.min(time), last.max(time)),
        });
        Ok(())
    }

    /// Completes the file and moves it to its path, replacing an existing file.
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish(mut self) -> Result<PathBuf, ExportError> {
        let description = Metadata {
            name: "rosbag2".to_owned(),
            metadata: BTreeMap::from([("serialized_metadata".to_owned(), self.description())]),
        };
        let written = self.writer.write_metadata(&description);
        self.wrote(written)?;
        let finished = self.writer.finish();
        self.wrote(finished)?;
        let fail = |e| ExportError::io("write", &self.path, e);
        let mut out = self.writer.into_inner();
        out.flush().map_err(fail)?;
        let file = out.into_inner().map_err(|e| fail(e.into_error()))?;
        files::complete(file, &self.path).map_err(fail)?;
        Ok(self.path)
    }

    /// rosbag2's metadata, as JSON, which is valid YAML.
    fn description(&self) -> String {
        let (first, last) = self.span.unwrap_or_default();
        let count: u64 = self.topics.iter().map(|t| u64::from(t.messages)).sum();
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let start = json!({ "nanoseconds_since_epoch": first.nanos });
        let duration = json!({ "nanoseconds": last.nanos.saturating_sub(first.nanos) });
        let topics = self.topics.iter().map(|topic| {
            json!({
                "topic_metadata": {
                    "name": topic.name,
                    "type": topic.kind,
                    "serialization_format": "cdr",
                    "offered_qos_profiles": topic.qos,
                    "type_description_hash": "",
                },
                "message_count": topic.messages,
            })
        });
        let all = json!({
            "version": METADATA_VERSION,
            "storage_identifier": "mcap",
            "duration": duration,
            "starting_time": start,
            "message_count": count,
            "topics_with_message_count": topics.collect::<Vec<Value>>(),
            "compression_format": "",
            "compression_mode": "",
            "relative_file_paths": [name],
            "files": [{
                "path": name,
                "starting_time": start,
                "duration": duration,
                "message_count": count,
            }],
            "custom_data": {},
            "ros_distro": "",
        });
        format!("{all:#}")
    }
}

/// Writing can fail only with I/O errors.
fn cause(error: McapError) -> io::Error {
    match error {
        McapError::Io(cause) => cause,
        other => io::Error::other(other.to_string()),
    }
}

/// `offered_qos_profiles` with rmw's enumeration values, as JSON, which is valid YAML.
fn qos_text(qos: Qos) -> String {
    // RMW_DURATION_INFINITE
    let infinite = json!({ "sec": 9_223_372_036_u64, "nsec": 854_775_807_u64 });
    let profile = json!([{
        "history": 1,
        "depth": qos.depth,
        "reliability": if qos.reliable { 1 } else { 2 },
        "durability": if qos.transient_local { 1 } else { 2 },
        "deadline": infinite,
        "lifespan": infinite,
        "liveliness": 1,
        "liveliness_lease_duration": infinite,
        "avoid_ros_namespace_conventions": false,
    }]);
    format!("{profile:#}")
}

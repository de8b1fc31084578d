//! MCAP files, read sequentially; the index at the end is used only to list topics in advance.

use super::stored::StoredMessage;
use super::{BagError, MESSAGE_BYTES, Topic, unpack};
use crate::time::Stamp;
use mcap::records::{Record, op};
use mcap::sans_io::linear_reader::{LinearReadEvent, LinearReader, LinearReaderOptions};
use mcap::{McapError, McapResult};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Size of the footer record and the magic number after it: opcode, length, two offsets, checksum,
/// magic number.
const FOOTER: u64 = 1 + 8 + 8 + 8 + 4 + 8;

/// Options for a file of `size` bytes. Memory is reserved for what a record or chunk claims to hold,
/// which must be possible for a file of this size.
fn options(size: u64) -> LinearReaderOptions {
    let limit = usize::try_from(unpack::limit(size)).unwrap_or(MESSAGE_BYTES);
    LinearReaderOptions::default()
        .with_skip_end_magic(true)
        .with_record_length_limit(limit.min(MESSAGE_BYTES))
}

/// `named` is `path` as given by the user.
pub fn topics(path: &Path, named: &Path) -> Result<Vec<Topic>, BagError> {
    match summary(path) {
        Ok(Some(topics)) => return Ok(topics),
        Ok(None) => tracing::warn!(
            "{}: no index found (recording may have been interrupted); reading the file twice",
            named.display()
        ),
        Err(error) => tracing::warn!(
            "{}: unusable index ({error}); reading the file twice",
            named.display()
        ),
    }
    let mut found = Channels::default();
    let file = File::open(path).map_err(|e| BagError::io(named, e))?;
    let size = file.metadata().map_err(|e| BagError::io(named, e))?.len();
    let read = records(BufReader::new(file), options(size), &mut |opcode, data| {
        found.take(opcode, data, true)
    });
    let topics = found.topics();
    let read = read.and_then(|whole| match whole {
        true => Ok(()),
        false => Err(McapError::UnexpectedEof),
    });
    match read {
        // Truncation is reported when the end is reached.
        Err(error) if topics.is_empty() => Err(damage(named, error)),
        _ => Ok(topics),
    }
}

/// The topics in the summary section; `None` if there is none.
fn summary(path: &Path) -> McapResult<Option<Vec<Topic>>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let Some(footer) = size.checked_sub(FOOTER) else {
        return Ok(None);
    };
    file.seek(SeekFrom::Start(footer))?;
    let mut bytes = Vec::new();
    file.by_ref().take(FOOTER).read_to_end(&mut bytes)?;
    let (Some(&op::FOOTER), Some(start), true) = (
        bytes.first(),
        bytes.get(9..17).and_then(|b| b.try_into().ok()),
        bytes.ends_with(mcap::MAGIC),
    ) else {
        return Ok(None);
    };
    let start = u64::from_le_bytes(start);
    if start == 0 {
        return Ok(None);
    }
    if start >= footer {
        return Err(McapError::BadIndex);
    }
    file.seek(SeekFrom::Start(start))?;
    let mut found = Channels::default();
    let options = options(size).with_skip_start_magic(true);
    let section = BufReader::new(file).take(footer - start);
    let read = records(section, options, &mut |opcode, data| {
        found.take(opcode, data, false)
    });
    match read {
        Ok(_) if found.complete => Ok(Some(found.topics())),
        Ok(_) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Calls `each` with all records of a file, including those in chunks, until the end of the data;
/// returns `false` if the file is truncated.
fn records(
    mut source: impl Read,
    options: LinearReaderOptions,
    each: &mut dyn FnMut(u8, &[u8]) -> McapResult<()>,
) -> McapResult<bool> {
    let mut reader = LinearReader::new_with_options(options);
    while let Some(event) = reader.next_event() {
        match event? {
            LinearReadEvent::ReadRequest(need) => {
                let read = loop {
                    match source.read(reader.insert(need)) {
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        read => break read?,
                    }
                };
                reader.notify_read(read);
            }
            LinearReadEvent::Record { opcode, .. } if opcode == op::DATA_END => return Ok(true),
            LinearReadEvent::Record { opcode, data } => each(opcode, data)?,
        }
    }
    Ok(false)
}

/// Channel information of a file.
#[derive(Default)]
struct Channels {
    schemas: BTreeMap<u16, String>,
    channels: BTreeMap<u16, mcap::records::Channel>,
    counts: BTreeMap<u16, u64>,
    /// Whether `counts` cover the whole file.
    complete: bool,
}

impl Channels {
    fn take(&mut self, opcode: u8, data: &[u8], count: bool) -> McapResult<()> {
        // No other record is worth parsing.
        let counted = count && opcode == op::MESSAGE;
        if !counted && !matches!(opcode, op::SCHEMA | op::CHANNEL | op::STATISTICS) {
            return Ok(());
        }
        match mcap::parse_record(opcode, data)? {
            Record::Schema { header, .. } => {
                self.schemas.insert(header.id, header.name);
            }
            Record::Channel(channel) => {
                self.channels.insert(channel.id, channel);
            }
            Record::Statistics(statistics) => {
                self.counts = statistics.channel_message_counts;
                self.complete = true;
            }
            Record::Message { header, .. } => {
                *self.counts.entry(header.channel_id).or_default() += 1
            }
            _ => {}
        }
        Ok(())
    }

    /// Several channels may share a topic.
    fn topics(&self) -> Vec<Topic> {
        let mut topics: Vec<Topic> = Vec::new();
        for channel in self.channels.values() {
            let kind = self.schemas.get(&channel.schema_id).cloned();
            let kind = kind.unwrap_or_default();
            let count = self.counts.get(&channel.id).copied().unwrap_or(0);
            let known = topics
                .iter_mut()
                .find(|t| t.name == channel.topic && t.kind == kind);
            match known {
                Some(topic) => topic.messages = topic.messages.map(|n| n.saturating_add(count)),
                None => topics.push(Topic {
                    name: channel.topic.clone(),
                    kind,
                    format: channel.message_encoding.clone(),
                    messages: Some(count),
                }),
            }
        }
        topics
    }
}

/// Messages of the named topics, in file order.
pub fn messages(
    path: &Path,
    named: &Path,
    wanted: &[String],
) -> Result<impl Iterator<Item = Result<StoredMessage, BagError>> + Send + use<>, BagError> {
    let file = File::open(path).map_err(|e| BagError::io(named, e))?;
    let size = file.metadata().map_err(|e| BagError::io(named, e))?.len();
    // Messages of a damaged chunk must not be used.
    let options = options(size).with_prevalidate_chunk_crcs(true);
    let reader = mcap::io::MessageReader::new_with_options(BufReader::new(file), options);
    let (named, wanted): (PathBuf, Vec<String>) = (named.to_owned(), wanted.to_vec());
    Ok(reader.filter_map(move |message| {
        let message = match message {
            Ok(message) => message,
            Err(error) => return Some(Err(damage(&named, error))),
        };
        let topic = wanted.iter().position(|t| *t == message.channel.topic)?;
        Some(Ok(StoredMessage {
            topic,
            log_time: Stamp {
                nanos: i64::try_from(message.log_time).unwrap_or(i64::MAX),
            },
            data: message.data.into_owned(),
        }))
    }))
}

fn damage(path: &Path, error: McapError) -> BagError {
    let found = match error {
        McapError::Io(cause) if cause.raw_os_error().is_some() => {
            return BagError::io(path, cause);
        }
        McapError::UnexpectedEof => {
            "a truncated file; everything before the end was read".to_owned()
        }
        McapError::UnsupportedCompression(name) => {
            format!("chunks compressed by {name:?}, expected zstd or lz4")
        }
        other => format!("damage ({other}); everything before it was read"),
    };
    BagError::content(path, "a complete MCAP file", found)
}

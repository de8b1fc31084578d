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
    source: impl Read,
    options: LinearReaderOptions,
    each: &mut dyn FnMut(u8, &[u8]) -> McapResult<()>,
) -> McapResult<bool> {
    let mut records = Records::new(source, options);
    let end = records.find(|opcode, data| match opcode {
        op::DATA_END => Ok(Some(())),
        _ => each(opcode, data).map(|()| None),
    })?;
    Ok(end.is_some())
}

/// The records of a file, in order, including those in chunks.
struct Records<R> {
    source: R,
    reader: LinearReader,
}

impl<R: Read> Records<R> {
    fn new(source: R, options: LinearReaderOptions) -> Self {
        let reader = LinearReader::new_with_options(options);
        Self { source, reader }
    }

    /// The first result of `wanted` for the next records; `None` at the end.
    fn find<T>(
        &mut self,
        mut wanted: impl FnMut(u8, &[u8]) -> McapResult<Option<T>>,
    ) -> McapResult<Option<T>> {
        while let Some(event) = self.reader.next_event() {
            match event? {
                LinearReadEvent::ReadRequest(need) => {
                    let read = loop {
                        match self.source.read(self.reader.insert(need)) {
                            Err(e) if e.kind() == ErrorKind::Interrupted => {}
                            read => break read?,
                        }
                    };
                    self.reader.notify_read(read);
                }
                LinearReadEvent::Record { opcode, data } => {
                    if let Some(found) = wanted(opcode, data)? {
                        return Ok(Some(found));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Parses a record. The crate reserves memory for as many bytes as a string claims to have, up to 4 GiB, before it
/// reads them; so a record with a string that is longer than the record is refused.
fn parse(opcode: u8, data: &[u8]) -> McapResult<Record<'_>> {
    // Identifiers, then the strings; the map of a channel has its length in bytes first, like a string.
    let (identifiers, strings) = match opcode {
        op::SCHEMA => (2, 2),
        op::CHANNEL => (4, 3),
        _ => (0, 0),
    };
    let mut rest = data.get(identifiers..).unwrap_or_default();
    let mut last: &[u8] = &[];
    for _ in 0..strings {
        last = take_string(&mut rest)?;
    }
    while opcode == op::CHANNEL && !last.is_empty() {
        take_string(&mut last)?;
    }
    mcap::parse_record(opcode, data)
}

/// Splits a string that follows its length off `from`.
fn take_string<'a>(from: &mut &'a [u8]) -> McapResult<&'a [u8]> {
    let too_long =
        || std::io::Error::new(ErrorKind::InvalidData, "a string is longer than its record");
    let (length, rest) = from.split_first_chunk().ok_or_else(too_long)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (text, rest) = rest.split_at_checked(length).ok_or_else(too_long)?;
    *from = rest;
    Ok(text)
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
        match parse(opcode, data)? {
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

    /// A message of one of the topics `wanted`, with its channel known by now.
    fn message(&self, data: &[u8], wanted: &[String]) -> McapResult<Option<StoredMessage>> {
        let Record::Message { header, data } = parse(op::MESSAGE, data)? else {
            return Ok(None);
        };
        let channel = self.channels.get(&header.channel_id);
        let unknown = McapError::UnknownChannel(header.sequence, header.channel_id);
        let channel = channel.ok_or(unknown)?;
        let topic = wanted.iter().position(|t| *t == channel.topic);
        Ok(topic.map(|topic| StoredMessage {
            topic,
            log_time: Stamp {
                nanos: i64::try_from(header.log_time).unwrap_or(i64::MAX),
            },
            data: data.into_owned(),
        }))
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
    let mut records = Records::new(BufReader::new(file), options);
    let (named, wanted): (PathBuf, Vec<String>) = (named.to_owned(), wanted.to_vec());
    let mut channels = Channels::default();
    let mut ended = false;
    let mut next = move || {
        records.find(|opcode, data| {
            channels.take(opcode, data, false)?;
            match opcode {
                op::MESSAGE => Ok(channels.message(data, &wanted)?.map(Some)),
                // The index after it may be damaged.
                op::DATA_END => Ok(Some(None)),
                _ => Ok(None),
            }
        })
    };
    Ok(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let message = next().map(Option::flatten);
        let message = message.map_err(|error| damage(&named, error)).transpose();
        ended = !matches!(message, Some(Ok(_)));
        message
    }))
}

fn damage(path: &Path, error: McapError) -> BagError {
    let damaged =
        |cause: &dyn std::fmt::Display| format!("damage ({cause}); everything before it was read");
    let found = match error {
        McapError::Io(cause) if cause.raw_os_error().is_some() => {
            return BagError::io(path, cause);
        }
        McapError::Io(cause) => damaged(&cause),
        McapError::UnexpectedEof => {
            "a truncated file; everything before the end was read".to_owned()
        }
        McapError::UnsupportedCompression(name) => {
            format!("chunks compressed by {name:?}, expected zstd or lz4")
        }
        other => damaged(&other),
    };
    BagError::content(path, "a complete MCAP file", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap();
        [&length.to_le_bytes(), text.as_bytes()].concat()
    }

    /// A channel's record: identifiers, topic, encoding, and a map of one pair.
    fn channel() -> Vec<u8> {
        let map = [string("key"), string("value")].concat();
        let length = u32::try_from(map.len()).unwrap().to_le_bytes();
        let head = [vec![1, 0, 2, 0], string("/image"), string("cdr")].concat();
        [head, length.to_vec(), map].concat()
    }

    #[test]
    fn a_string_that_is_longer_than_its_record_is_refused_before_memory_is_reserved() {
        let whole = channel();
        let Ok(Record::Channel(read)) = parse(op::CHANNEL, &whole) else {
            panic!("a channel that can be read");
        };
        assert_eq!((read.topic.as_str(), read.metadata.len()), ("/image", 1));
        let schema = [
            vec![7, 0],
            string("name"),
            string("ros2msg"),
            string("text"),
        ]
        .concat();
        assert!(matches!(
            parse(op::SCHEMA, &schema),
            Ok(Record::Schema { .. })
        ));
        // Each length in turn.
        let of_channel = [4, 14, 21, 25, 32].map(|at| (op::CHANNEL, &whole, at));
        let of_schema = [2, 10].map(|at| (op::SCHEMA, &schema, at));
        for (opcode, record, at) in of_channel.into_iter().chain(of_schema) {
            let mut record = record.clone();
            record[at + 3] = 0xFF;
            let error = parse(opcode, &record).expect_err("a length of nearly 4 GiB");
            let text = damage(Path::new("a.mcap"), error).to_string();
            assert!(text.contains("longer than its record"), "{at}: {text}");
        }
        // Records that end anywhere.
        for end in 0..whole.len() {
            assert!(parse(op::CHANNEL, &whole[..end]).is_err(), "{end}");
        }
    }
}

//! Reads a bag as a sequence of files.

use super::file::BagFile;
use super::stored::StoredMessages;
use super::{BagError, Topic, metadata};
use crate::time::Stamp;
use crate::wire::Payload;
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// File name extensions of bags.
const ENDINGS: [&str; 4] = [".mcap", ".db3", ".mcap.zstd", ".db3.zstd"];

/// A bag: a folder with `metadata.yaml` and one or more files, or a single file.
#[derive(Debug)]
pub struct Bag {
    path: PathBuf,
    files: Vec<PathBuf>,
    topics: Vec<Topic>,
}

/// A message in a bag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BagMessage {
    /// Index of its topic among the requested ones.
    pub topic: usize,
    /// Recording time.
    pub log_time: Stamp,
    /// CDR data.
    pub payload: Payload,
}

/// Whether the name is that of a bag file.
pub fn is_bag_name(path: &Path) -> bool {
    let name = path.to_string_lossy().to_lowercase();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The bag files in a folder, in natural order.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, BagError> {
    let io = |e| BagError::io(folder, e);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if is_bag_name(&path) && path.is_file() {
            files.push(path);
        }
    }
    // rosbag2 numbers its files: name_0.db3, name_1.db3, …, name_10.db3.
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let stem = name.split('.').next()?;
        stem.rsplit('_').next()?.parse::<u64>().ok()
    };
    files.sort_by_key(|path| (number(path), path.clone()));
    Ok(files)
}

impl Bag {
    /// Whether `path` is a bag, judged by its name or folder content; no file is opened.
    pub fn is_at(path: &Path) -> bool {
        match path.is_dir() {
            true => metadata::is_in(path) || files_in(path).is_ok_and(|files| !files.is_empty()),
            false => is_bag_name(path),
        }
    }

    /// Opens a bag and lists its topics.
    ///
    /// A folder without `metadata.yaml` (after an interrupted recording) is read as if all its
    /// `.mcap` and `.db3` files belonged to the bag, in the order of their numbers.
    ///
    /// # Errors
    /// Files that are missing, of another kind, or too damaged to list their topics.
    pub fn open(path: &Path) -> Result<Self, BagError> {
        let path = path.to_owned();
        let (files, described) = if !path.is_dir() {
            (vec![path.clone()], None)
        } else if path.join(metadata::NAME).is_file() {
            let (files, topics) = metadata::read(&path)?;
            (files, Some(topics))
        } else {
            let files = files_in(&path)?;
            if files.is_empty() {
                let expected = "a bag: metadata.yaml, .mcap or .db3 files";
                return Err(BagError::content(&path, expected, "neither"));
            }
            tracing::warn!(
                "{}: metadata.yaml is missing; reading all bag files in the folder ({})",
                path.display(),
                files.len()
            );
            (files, None)
        };
        let topics = match described {
            Some(topics) => topics,
            None => {
                let mut all: Vec<Topic> = Vec::new();
                for file in &files {
                    for topic in BagFile::open(file)?.topics()? {
                        let known = |t: &&mut Topic| t.name == topic.name && t.kind == topic.kind;
                        match all.iter_mut().find(known) {
                            Some(known) => {
                                let sum = known.messages.zip(topic.messages);
                                known.messages = sum.map(|(a, b)| a + b);
                            }
                            None => all.push(topic),
                        }
                    }
                }
                all
            }
        };
        Ok(Self {
            path,
            files,
            topics,
        })
    }

    /// The path as given to [`Bag::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn topics(&self) -> &[Topic] {
        &self.topics
    }

    /// Messages of the named topics, in recording order.
    pub fn messages(&self, wanted: &[&str]) -> Messages {
        Messages {
            files: self.files.iter().cloned().collect(),
            wanted: wanted.iter().map(|name| (*name).to_owned()).collect(),
            current: None,
        }
    }
}

/// Iterator over messages of a bag. It ends after an error.
pub struct Messages {
    files: VecDeque<PathBuf>,
    wanted: Vec<String>,
    current: Option<(PathBuf, StoredMessages)>,
}

impl Iterator for Messages {
    type Item = Result<BagMessage, BagError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((path, messages)) = &mut self.current {
                let path = path.clone();
                match messages.next() {
                    None => self.current = None,
                    Some(Err(error)) => return Some(Err(self.end(error))),
                    Some(Ok(stored)) => {
                        let payload = match encapsulated(stored.data) {
                            Ok(payload) => payload,
                            Err(found) => {
                                let topic = self.wanted.get(stored.topic).cloned();
                                let expected =
                                    format!("CDR in each message of {}", topic.unwrap_or_default());
                                let found = format!("{found} at {}", stored.log_time);
                                let error = BagError::content(&path, expected, found);
                                return Some(Err(self.end(error)));
                            }
                        };
                        return Some(Ok(BagMessage {
                            topic: stored.topic,
                            log_time: stored.log_time,
                            payload,
                        }));
                    }
                }
            }
            let path = self.files.pop_front()?;
            let opened = BagFile::open(&path).and_then(|file| file.messages(&self.wanted));
            match opened {
                Ok(messages) => self.current = Some((path, messages)),
                Err(error) => return Some(Err(self.end(error))),
            }
        }
    }
}

impl Messages {
    fn end(&mut self, error: BagError) -> BagError {
        self.files.clear();
        self.current = None;
        error
    }
}

/// Removes the encapsulation header: two bytes for the encoding, two bytes of options.
fn encapsulated(data: Vec<u8>) -> Result<Payload, String> {
    let big_endian = match data.get(..4) {
        Some([0, 0, _, _]) => true,
        Some([0, 1, _, _]) => false,
        Some([a, b, _, _]) => return Err(format!("the encapsulation {a:02x} {b:02x}")),
        _ => return Err(format!("{} bytes", data.len())),
    };
    Ok(Payload {
        data: Bytes::from(data).slice(4..),
        big_endian,
    })
}

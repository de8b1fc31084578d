//! A bag as a whole: its files one after another.

use super::file::{BagFile, StoredMessages};
use super::{BagError, Topic, metadata};
use crate::ros::middleware::Payload;
use crate::time::Stamp;
use bytes::Bytes;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// What a bag's files are called.
const ENDINGS: [&str; 4] = [".mcap", ".db3", ".mcap.zstd", ".db3.zstd"];

/// A bag: a folder with `metadata.yaml` and one or more files, or a single file.
#[derive(Debug)]
pub struct Bag {
    path: PathBuf,
    files: Vec<PathBuf>,
    topics: Vec<Topic>,
}

/// A message of a bag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BagMessage {
    /// Place of its topic among those asked for.
    pub topic: usize,
    /// When it was recorded.
    pub log_time: Stamp,
    /// Its CDR.
    pub payload: Payload,
}

/// Whether the name is one of a bag's file.
pub fn is_bag_name(path: &Path) -> bool {
    let name = path.to_string_lossy().to_lowercase();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The bag's files in a folder, in natural order.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, BagError> {
    let io = |e| BagError::io(folder, e);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if is_bag_name(&path) && path.is_file() {
            files.push(path);
        }
    }
    // rosbag2 counts: name_0.db3, name_1.db3, …, name_10.db3.
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let stem = name.split('.').next()?;
        stem.rsplit('_').next()?.parse::<u64>().ok()
    };
    files.sort_by_key(|path| (number(path), path.clone()));
    Ok(files)
}

impl Bag {
    /// Whether `path` is a bag by its name or what lies in it; nothing is opened.
    pub fn is_at(path: &Path) -> bool {
        match path.is_dir() {
            true => metadata::is_in(path) || files_in(path).is_ok_and(|files| !files.is_empty()),
            false => is_bag_name(path),
        }
    }

    /// Finds out which topics the bag has.
    ///
    /// A folder without `metadata.yaml` (its recording was cut off) is read as if it said that all `.mcap` and `.db3`
    /// files in it belong to the bag, in the order of their numbers.
    ///
    /// # Errors
    /// Files that are missing, of another kind, or so damaged that not even their topics are known.
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
                "{}: there is no metadata.yaml; all bag files in the folder are read ({})",
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

    /// As it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every topic.
    pub fn topics(&self) -> &[Topic] {
        &self.topics
    }

    /// The messages of the topics of these names, in the order in which they were recorded.
    pub fn messages(&self, wanted: &[&str]) -> Messages {
        Messages {
            files: self.files.iter().cloned().collect(),
            wanted: wanted.iter().map(|name| (*name).to_owned()).collect(),
            current: None,
        }
    }
}

/// Messages of a bag. After an error there are no more.
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

/// Takes off the encapsulation header: two bytes that say how, two of options.
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

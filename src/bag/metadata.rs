//! `metadata.yaml`, which rosbag2 puts beside a bag's files.

use super::{BagError, Topic};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file's name.
pub const NAME: &str = "metadata.yaml";
/// No bag's is longer; more is not read.
const BYTES: u64 = 1 << 28;

#[derive(Deserialize)]
struct Document {
    rosbag2_bagfile_information: Information,
}

/// What is used of it. Versions differ in the rest.
#[derive(Deserialize)]
struct Information {
    #[serde(default)]
    relative_file_paths: Vec<String>,
    #[serde(default)]
    topics_with_message_count: Vec<Counted>,
    #[serde(default)]
    compression_format: Option<String>,
}

#[derive(Deserialize)]
struct Counted {
    topic_metadata: Named,
    message_count: u64,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    serialization_format: String,
}

/// Whether there is one, and not another program's file of that name.
pub fn is_in(folder: &Path) -> bool {
    let mut start = Vec::new();
    let file = File::open(folder.join(NAME));
    let read = file.and_then(|file| file.take(4096).read_to_end(&mut start));
    read.is_ok() && String::from_utf8_lossy(&start).contains("rosbag2_bagfile_information")
}

/// What a folder's `metadata.yaml` says: the files in their order, and the topics.
///
/// # Errors
/// A file that cannot be read or is none, names of files that are not there, a compression other than zstd.
pub fn read(folder: &Path) -> Result<(Vec<PathBuf>, Vec<Topic>), BagError> {
    let path = folder.join(NAME);
    let size = std::fs::metadata(&path).map_err(|e| BagError::io(&path, e))?;
    let expected =
        "rosbag2's description of a bag (remove it to have the folder's files read without it)";
    if size.len() > BYTES {
        let found = format!("a file of {} bytes", size.len());
        return Err(BagError::content(&path, expected, found));
    }
    let bytes = std::fs::read(&path).map_err(|e| BagError::io(&path, e))?;
    let text = String::from_utf8_lossy(&bytes);
    let document: Document = serde_saphyr::from_str(&text)
        .map_err(|e| BagError::content(&path, expected, e.without_snippet().to_string()))?;
    let said = document.rosbag2_bagfile_information;
    let compression = said.compression_format.unwrap_or_default();
    if !matches!(compression.as_str(), "" | "zstd") {
        let found = format!("compression_format {compression:?}");
        return Err(BagError::content(
            &path,
            "compression by zstd, or none",
            found,
        ));
    }
    let mut files = Vec::new();
    for name in &said.relative_file_paths {
        files.push(find(folder, name).ok_or_else(|| {
            let found = format!("{name:?} among relative_file_paths, which is not there");
            BagError::content(&path, "the names of the bag's files", found)
        })?);
    }
    if files.is_empty() {
        let expected = "the names of the bag's files";
        return Err(BagError::content(&path, expected, "no relative_file_paths"));
    }
    let topics = said.topics_with_message_count.into_iter().map(|t| Topic {
        name: t.topic_metadata.name,
        kind: t.topic_metadata.kind,
        format: t.topic_metadata.serialization_format,
        messages: Some(t.message_count),
    });
    Ok((files, topics.collect()))
}

/// Old versions wrote names with the folder's own before them; some never wrote the ending of compressed files.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let file = Path::new(name).file_name()?;
    let mut compressed = file.to_owned();
    compressed.push(".zstd");
    [
        folder.join(name),
        folder.join(file),
        folder.join(compressed),
    ]
    .into_iter()
    .find(|path| path.is_file())
}

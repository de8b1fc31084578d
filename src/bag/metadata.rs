//! The file `metadata.yaml` that rosbag2 writes with a bag.

use super::{BagError, Topic};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

pub const NAME: &str = "metadata.yaml";
/// Largest description that is read.
const BYTES: u64 = 1 << 28;

#[derive(Deserialize)]
struct Document {
    rosbag2_bagfile_information: Information,
}

/// The fields that are used. Versions of rosbag2 differ in the others.
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

/// Whether `folder` holds a bag's description, and not another program's file of that name.
pub fn is_in(folder: &Path) -> bool {
    let mut start = Vec::new();
    let file = File::open(folder.join(NAME));
    let read = file.and_then(|file| file.take(4096).read_to_end(&mut start));
    read.is_ok() && String::from_utf8_lossy(&start).contains("rosbag2_bagfile_information")
}

/// The files in their order, and the topics, from a folder's `metadata.yaml`.
///
/// # Errors
/// A file that cannot be read or is not a bag's description, names of missing files, a compression other than zstd.
pub fn read(folder: &Path) -> Result<(Vec<PathBuf>, Vec<Topic>), BagError> {
    let path = folder.join(NAME);
    let size = std::fs::metadata(&path).map_err(|e| BagError::io(&path, e))?;
    let expected = "rosbag2's description of a bag (remove the file to read the bag without it)";
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
            let found = format!("{name:?} among relative_file_paths, which does not exist");
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

/// The file that `name` stands for, in `folder` or below it: a name that leads elsewhere (absolute, `..`) counts by its
/// last part only. Old versions of rosbag2 put the folder's own name first, and some omit the ending `.zstd`.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let name = Path::new(name);
    let file = name.file_name()?;
    let mut compressed = file.to_owned();
    compressed.push(".zstd");
    let below = name
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let as_written = below.then(|| folder.join(name));
    as_written
        .into_iter()
        .chain([folder.join(file), folder.join(compressed)])
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_the_folder_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let bag = root.path().join("bag");
        std::fs::create_dir_all(bag.join("parts")).unwrap();
        let outside = root.path().join("outside.mcap");
        for file in [&outside, &bag.join("a.mcap"), &bag.join("parts/b.mcap")] {
            std::fs::write(file, b"").unwrap();
        }
        // In YAML a back-slash begins an escape.
        let absolute = outside.display().to_string().replace('\\', "/");
        for name in ["../outside.mcap", "parts/../../outside.mcap", &absolute] {
            let text =
                format!("rosbag2_bagfile_information:\n  relative_file_paths: [\"{name}\"]\n");
            std::fs::write(bag.join(NAME), text).unwrap();
            let error = read(&bag).unwrap_err().to_string();
            assert!(error.contains("outside.mcap"), "{error}");
        }
        // Names as rosbag2 writes them, of today and of old.
        assert_eq!(find(&bag, "a.mcap"), Some(bag.join("a.mcap")));
        assert_eq!(
            find(&bag, "./parts/b.mcap"),
            Some(bag.join("./parts/b.mcap"))
        );
        assert_eq!(find(&bag, "bag/a.mcap"), Some(bag.join("a.mcap")));
        assert_eq!(find(&bag, "/home/me/bag/a.mcap"), Some(bag.join("a.mcap")));
    }
}

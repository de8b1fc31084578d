//! The folder of incidents: a bag each, with a limit for all together.

use super::ring::Contents;
use crate::bag::BagWriter;
use crate::files::export::{self, ExportError};
use crate::time::Stamp;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Minimum time between two incidents of one cause: a robot that fails again and again must not fill the disk.
pub const PAUSE: Duration = Duration::from_secs(600);
/// How the names of incidents begin and end.
const PREFIX: &str = "incident-";
const SUFFIX: &str = ".mcap";
/// Maximum length of a cause in a file's name.
const MAX_CAUSE: usize = 40;

/// Incidents in a folder.
#[derive(Debug)]
pub struct Shelf {
    folder: PathBuf,
    /// The sum of their sizes in bytes.
    quota: u64,
}

/// An incident in the folder.
#[derive(Debug)]
struct Incident {
    path: PathBuf,
    name: String,
    bytes: u64,
    modified: SystemTime,
}

impl Shelf {
    /// Creates the folder.
    ///
    /// # Errors
    /// A folder that cannot be created or written to.
    pub fn open(folder: &Path, quota: u64) -> Result<Self, ExportError> {
        export::create_folder(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            quota,
        })
    }

    /// The incident of this cause that is younger than [`PAUSE`], with its age, if there is one.
    pub fn recent(&self, cause: &str) -> Option<(PathBuf, Duration)> {
        let end = format!("-{}{SUFFIX}", slug(cause));
        let same = self
            .incidents()
            .into_iter()
            .filter(|i| i.name.ends_with(&end));
        let newest = same.max_by_key(|incident| incident.modified)?;
        // A file from the future is as good as one from now.
        let age = newest.modified.elapsed().unwrap_or_default();
        (age < PAUSE).then_some((newest.path, age))
    }

    /// Writes a bag, by way of a temporary file; then removes the oldest incidents beyond the quota, but not the new
    /// one.
    ///
    /// # Errors
    /// I/O errors.
    pub fn put(&self, cause: &str, contents: &Contents) -> Result<PathBuf, ExportError> {
        let name = format!("{PREFIX}{}-{}{SUFFIX}", utc(Stamp::now()), slug(cause));
        let mut bag = BagWriter::create(&self.folder.join(name))?;
        let topics = contents.topics.iter();
        let channels = topics
            .map(|topic| bag.topic_of(&topic.name, topic.kind, topic.qos))
            .collect::<Result<Vec<_>, _>>()?;
        for message in &contents.messages {
            if let Some(channel) = channels.get(message.topic) {
                bag.write_payload(*channel, message.time, &message.payload)?;
            }
        }
        let path = bag.finish()?;
        self.shrink(&path);
        Ok(path)
    }

    fn shrink(&self, newest: &Path) {
        let mut all = self.incidents();
        let mut bytes: u64 = all.iter().map(|incident| incident.bytes).sum();
        // Names begin with the time.
        all.sort_by(|a, b| a.name.cmp(&b.name));
        for incident in all.iter().filter(|incident| incident.path != newest) {
            if bytes <= self.quota {
                return;
            }
            let path = incident.path.display();
            match fs::remove_file(&incident.path) {
                Ok(()) => {
                    bytes -= incident.bytes;
                    tracing::info!("removed the incident {path}: all together exceed the quota");
                }
                Err(error) => tracing::warn!("cannot remove the incident {path}: {error}"),
            }
        }
    }

    /// All incidents; files of other names are not ours.
    fn incidents(&self) -> Vec<Incident> {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return Vec::new();
        };
        let ours = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let meta = entry.metadata().ok()?;
            let own = name.starts_with(PREFIX) && name.ends_with(SUFFIX) && meta.is_file();
            own.then_some(Incident {
                path: entry.path(),
                name,
                bytes: meta.len(),
                modified: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            })
        });
        ours.collect()
    }
}

/// A cause as a part of a file's name: small letters, digits and `-`.
fn slug(cause: &str) -> String {
    let letter = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() => c,
        _ => '-',
    };
    let all: String = cause.chars().map(letter).take(MAX_CAUSE).collect();
    all.trim_matches('-').to_owned()
}

/// `20261125T031200.123Z`
fn utc(time: Stamp) -> String {
    let time = chrono::DateTime::from_timestamp_nanos(time.nanos);
    time.format("%Y%m%dT%H%M%S%.3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Contents {
        Contents::default()
    }

    #[test]
    fn names_say_when_and_why_on_every_platform() {
        assert_eq!(
            utc(Stamp {
                nanos: 1_700_000_000_123_000_000
            }),
            "20231114T221320.123Z"
        );
        assert_eq!(slug("slam: Tracking/failed!"), "slam--tracking-failed");
        assert!(slug(&"x".repeat(500)).len() <= MAX_CAUSE);
    }

    #[test]
    fn incidents_of_one_cause_are_apart() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(&folder.path().join("new"), u64::MAX).unwrap();
        assert!(shelf.recent("lost").is_none());
        let path = shelf.put("lost", &empty()).unwrap();
        assert_eq!(shelf.recent("lost").unwrap().0, path);
        assert!(shelf.recent("operator").is_none());
        // After a restart, too.
        let again = Shelf::open(&folder.path().join("new"), u64::MAX).unwrap();
        assert!(again.recent("lost").is_some());
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - PAUSE).unwrap();
        assert!(shelf.recent("lost").is_none());
    }

    #[test]
    fn the_oldest_go_beyond_the_quota_and_foreign_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let foreign = folder.path().join("notes.mcap");
        fs::write(&foreign, vec![0; 10_000]).unwrap();
        let shelf = Shelf::open(folder.path(), u64::MAX).unwrap();
        let one = fs::metadata(shelf.put("a", &empty()).unwrap())
            .unwrap()
            .len();
        let shelf = Shelf::open(folder.path(), 2 * one + one / 2).unwrap();
        for cause in ["b", "c", "d"] {
            std::thread::sleep(Duration::from_millis(2));
            shelf.put(cause, &empty()).unwrap();
        }
        let mut names: Vec<String> = shelf.incidents().into_iter().map(|i| i.name).collect();
        names.sort();
        assert_eq!(names.len(), 2);
        assert!(names[0].ends_with("-c.mcap") && names[1].ends_with("-d.mcap"));
        assert!(foreign.exists());
        // The newest stays, even if it is too large on its own.
        let shelf = Shelf::open(folder.path(), 1).unwrap();
        let path = shelf.put("e", &empty()).unwrap();
        assert!(path.exists());
        assert_eq!(shelf.incidents().len(), 1);
    }
}

//! What `mast3r-slam bench` measured of the network on this machine: a file in the user's cache folder, by which
//! `auto` chooses between backends.

use crate::config::{BackendChoice, PrecisionChoice};
use crate::files;
use crate::gpu::DeviceInfo;
use crate::network::{CheckpointError, identity};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What the file says that it is.
const FORMAT: &str = "times of mast3r_slam's network, 1";
/// Rows that are kept: four backends on sixteen combinations of weights, sizes and precisions.
const MAX_ROWS: usize = 64;
/// Bytes that are read: several times as many as so many rows take.
const MAX_BYTES: u64 = 1 << 18;

/// What times must have in common to be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    gpu: String,
    /// The newest CUDA release that the driver supports.
    driver: [u32; 2],
    /// SHA-256 of the weights' lengths and heads.
    weights: String,
    size: [usize; 2],
    /// As configured.
    precision: String,
}

impl Key {
    /// The key of weights that are run on this GPU.
    ///
    /// # Errors
    /// If the weights cannot be read.
    pub fn new(
        gpu: &DeviceInfo,
        weights: &Path,
        (width, height): (usize, usize),
        precision: PrecisionChoice,
    ) -> Result<Self, CheckpointError> {
        Ok(Self {
            gpu: gpu.name.clone(),
            driver: [gpu.driver.0, gpu.driver.1],
            weights: identity(weights)?,
            size: [width, height],
            precision: precision.to_string(),
        })
    }
}

/// Medians of a backend, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub encoder: f64,
    pub pair: f64,
}

impl Times {
    /// An image and a pair, as a tracked frame takes them.
    pub fn sum(self) -> f64 {
        self.encoder + self.pair
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Row {
    key: Key,
    /// As `network.backend` names it.
    backend: String,
    times: Times,
}

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimesFile {
    format: String,
    /// The newest last.
    rows: Vec<Row>,
}

impl Default for TimesFile {
    fn default() -> Self {
        Self {
            format: FORMAT.into(),
            rows: Vec::new(),
        }
    }
}

/// Why a file of times is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TimesError {
    /// It cannot be read or written.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is damaged, or of another program.
    #[error(
        "{} is ignored: expected times of the network as `mast3r-slam bench` writes them, found {found}",
        path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is in it.
        found: String,
    },
}

impl TimesFile {
    /// Where the times are.
    pub fn path() -> PathBuf {
        files::cache("network_times.json")
    }

    /// The file at `path`; an empty one where there is none.
    ///
    /// # Errors
    /// If it cannot be read, or is no such file.
    pub fn read(path: &Path) -> Result<Self, TimesError> {
        let failed = |source| TimesError::Io {
            doing: "read",
            path: path.to_owned(),
            source,
        };
        let content = |found: String| TimesError::Content {
            path: path.to_owned(),
            found,
        };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            file => file.map_err(failed)?,
        };
        let mut bytes = Vec::new();
        (file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(content(format!("more than {MAX_BYTES} bytes")));
        }
        let found: Self = serde_json::from_slice(&bytes).map_err(|e| content(e.to_string()))?;
        if found.format != FORMAT {
            return Err(content(format!("the format {:?}", found.format)));
        }
        let time = |time: f64| time.is_finite() && time > 0.0;
        let wrong = |row: &&Row| !time(row.times.encoder) || !time(row.times.pair);
        match found.rows.iter().find(wrong) {
            Some(row) => Err(content(format!("times of {:?}", row.times))),
            None => Ok(found),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The times of a backend.
    pub fn get(&self, key: &Key, backend: BackendChoice) -> Option<Times> {
        let row = self.rows.iter().find(|row| row.is_of(key, backend))?;
        Some(row.times)
    }

    /// Keeps these times, in place of earlier ones of the same.
    pub fn put(&mut self, key: Key, backend: BackendChoice, times: Times) {
        self.rows.retain(|row| !row.is_of(&key, backend));
        let extra = (self.rows.len() + 1).saturating_sub(MAX_ROWS);
        self.rows.drain(..extra);
        self.rows.push(Row {
            key,
            backend: backend.to_string(),
            times,
        });
    }

    /// Writes the file, with its folder.
    ///
    /// # Errors
    /// From the file system.
    pub fn write(&self, path: &Path) -> Result<(), TimesError> {
        let failed = |source| TimesError::Io {
            doing: "write",
            path: path.to_owned(),
            source,
        };
        let text = serde_json::to_vec_pretty(self).map_err(|e| failed(e.into()))?;
        std::fs::create_dir_all(files::folder_of(path)).map_err(failed)?;
        files::write_bytes(path, &text).map_err(failed)
    }
}

impl Row {
    fn is_of(&self, key: &Key, backend: BackendChoice) -> bool {
        self.key == *key && self.backend == backend.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(gpu: &str, width: usize) -> Key {
        Key {
            gpu: gpu.into(),
            driver: [13, 0],
            weights: "0123".into(),
            size: [width, 384],
            precision: "auto".into(),
        }
    }

    const TIMES: Times = Times {
        encoder: 1.5,
        pair: 3.25,
    };

    #[test]
    fn times_come_back_from_their_file_for_the_same_gpu_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("new").join("times.json");
        assert_eq!(TimesFile::read(&path).expect("empty"), TimesFile::default());
        let mut file = TimesFile::default();
        file.put(
            key("A", 512),
            BackendChoice::Native,
            Times { pair: 9.0, ..TIMES },
        );
        file.put(key("A", 512), BackendChoice::Native, TIMES);
        file.put(key("B", 512), BackendChoice::Tensorrt, TIMES);
        file.write(&path).expect("written");
        let read = TimesFile::read(&path).expect("read");
        assert_eq!(read, file);
        assert_eq!(read.get(&key("A", 512), BackendChoice::Native), Some(TIMES));
        for (key, backend) in [
            (key("A", 512), BackendChoice::Tensorrt),
            (key("B", 512), BackendChoice::Native),
            (key("A", 256), BackendChoice::Native),
        ] {
            assert_eq!(read.get(&key, backend), None);
        }
        let other = Key {
            driver: [13, 1],
            ..key("A", 512)
        };
        assert_eq!(read.get(&other, BackendChoice::Native), None);
    }

    #[test]
    fn the_oldest_times_make_room() {
        let mut file = TimesFile::default();
        for width in 0..MAX_ROWS + 3 {
            file.put(key("A", width), BackendChoice::Native, TIMES);
        }
        assert_eq!(file.rows.len(), MAX_ROWS);
        assert_eq!(file.get(&key("A", 2), BackendChoice::Native), None);
        assert_eq!(file.get(&key("A", 3), BackendChoice::Native), Some(TIMES));
        let bytes = serde_json::to_vec_pretty(&file).expect("JSON").len() as u64;
        assert!(4 * bytes < MAX_BYTES, "{bytes}");
    }

    #[test]
    fn damaged_and_foreign_files_are_refused_with_their_path() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("times.json");
        let mut file = TimesFile::default();
        file.put(key("A", 512), BackendChoice::Native, TIMES);
        let good = serde_json::to_string(&file).expect("JSON");
        for (text, found) in [
            (good[..good.len() - 9].to_owned(), "EOF"),
            (good.replace(FORMAT, "something else"), "something else"),
            (good.replace("1.5", "-1.5"), "-1.5"),
            ("[]".into(), "invalid"),
            ("\u{1}\u{2}".into(), "expected value"),
            (" ".repeat(MAX_BYTES as usize + 1), "more than"),
        ] {
            std::fs::write(&path, &text).expect("a file");
            let error = TimesFile::read(&path).expect_err(found).to_string();
            assert!(error.contains(found), "{error}");
            assert!(error.contains("times.json"), "{error}");
        }
    }
}

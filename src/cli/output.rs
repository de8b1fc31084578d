//! The output folder of a run.

use super::CliError;
use crate::files::folder_of;
use std::path::{Path, PathBuf};

/// Names of result files and folders.
pub const RESULTS: [&str; 9] = [
    "trajectory.txt",
    "keyframes.txt",
    "frames.csv",
    "cloud.ply",
    crate::map::splat::FILE_NAME,
    "report.html",
    "keyframes.csv",
    "keyframes",
    "colmap",
];

/// A writable output folder. If dropped while still empty, a folder created for this run is
/// removed.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    made: bool,
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if self.made {
            // Fails if the folder is not empty, as intended.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

impl OutputFolder {
    /// Creates the folder and tests it by creating a file, so that missing write permission is
    /// reported before any work. Results of an earlier run are rejected unless `force` is set.
    pub fn create(path: &Path, force: bool) -> Result<Self, CliError> {
        let fail = |cause| CliError::OutputFolder {
            path: path.to_owned(),
            cause,
        };
        let made = !path.exists();
        std::fs::create_dir_all(path).map_err(fail)?;
        // Removed when dropped.
        tempfile::NamedTempFile::new_in(path).map_err(fail)?;
        if !force && !earlier(path).is_empty() {
            return Err(CliError::OutputExists {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            made,
        })
    }

    /// Removes the results of an earlier run, so that old and new results do not mix. Other files
    /// are kept.
    pub fn clear(&self) -> Result<(), CliError> {
        for old in earlier(&self.path) {
            let removed = match old.is_dir() {
                true => std::fs::remove_dir_all(&old),
                false => std::fs::remove_file(&old),
            };
            removed.map_err(|cause| CliError::OutputFolder { path: old, cause })?;
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Rejects an output file whose folder is missing or not writable, before any work.
pub fn check_folder_of(file: &Path) -> Result<(), CliError> {
    check_folder(folder_of(file))
}

/// Rejects a folder that is missing or not writable.
pub fn check_folder(folder: &Path) -> Result<(), CliError> {
    match tempfile::NamedTempFile::new_in(folder) {
        Ok(_) => Ok(()),
        Err(cause) => Err(CliError::OutputFolder {
            path: folder.to_owned(),
            cause,
        }),
    }
}

/// Results of an earlier run, including those of further submaps (`trajectory_submap1.txt`).
fn earlier(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| is_result(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect()
}

fn is_result(name: &str) -> bool {
    RESULTS.iter().any(|result| {
        let (stem, extension) = result.split_once('.').unwrap_or((result, ""));
        let Some(rest) = name.strip_prefix(stem) else {
            return false;
        };
        let rest = match extension {
            "" => Some(rest),
            _ => rest
                .strip_suffix(extension)
                .and_then(|r| r.strip_suffix('.')),
        };
        rest.is_some_and(|rest| {
            let digits = rest.strip_prefix("_submap");
            rest.is_empty()
                || digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
        })
    })
}

/// The folder of a run that names none: `logs/` followed by the name of the folder or file.
pub fn default_out(path: &Path) -> PathBuf {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = match full.is_dir() {
        true => full.file_name(),
        false => full.file_stem(),
    };
    Path::new("logs").join(name.unwrap_or("run".as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_s_own_files_count_as_results() {
        for name in [
            "trajectory.txt",
            "trajectory_submap12.txt",
            "keyframes",
            "colmap_submap1",
        ] {
            assert!(is_result(name), "{name}");
        }
        for name in [
            "trajectory.txt.bak",
            "my_trajectory.txt",
            "trajectory_submap.txt",
            "trajectory_submapx.txt",
            "keyframes2",
            "notes.txt",
            "txt",
        ] {
            assert!(!is_result(name), "{name}");
        }
    }

    #[test]
    fn earlier_results_need_force_and_the_rest_stays() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let path = root.path().join("a/b");
        let folder = OutputFolder::create(&path, false).expect("a new folder");
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists(), "nothing was written, so nothing stays");
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("notes.txt"), "mine").expect("a file");
        OutputFolder::create(&path, false).expect("a user's notes are not results");
        std::fs::write(path.join("trajectory.txt"), "old").expect("a file");
        std::fs::create_dir(path.join("keyframes")).expect("a folder");
        let error = OutputFolder::create(&path, false).expect_err("an earlier run");
        assert!(matches!(error, CliError::OutputExists { .. }), "{error}");
        let folder = OutputFolder::create(&path, true).expect("forced");
        assert!(
            path.join("trajectory.txt").exists(),
            "not before the run starts"
        );
        folder.clear().expect("removable");
        let left: Vec<_> = std::fs::read_dir(&path)
            .expect("the folder")
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left, ["notes.txt"]);
    }

    #[test]
    fn a_path_through_a_file_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = OutputFolder::create(&file.path().join("out"), false).expect_err("no folder");
        assert!(error.to_string().contains("--out"), "{error}");
    }

    #[test]
    fn the_default_folder_bears_the_sequence_s_name() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let sequence = root.path().join("fr1.xyz");
        std::fs::create_dir(&sequence).expect("a folder");
        std::fs::write(root.path().join("walk.mp4"), "").expect("a file");
        assert_eq!(default_out(&sequence), Path::new("logs/fr1.xyz"));
        assert_eq!(default_out(&sequence.join(".")), Path::new("logs/fr1.xyz"));
        assert_eq!(
            default_out(&root.path().join("walk.mp4")),
            Path::new("logs/walk")
        );
        assert_eq!(default_out(Path::new("/")), Path::new("logs/run"));
    }
}

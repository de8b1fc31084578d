//! The folder that keeps fetched weights.

use super::catalogue::Entry;
use super::error::WeightsError;
use crate::files;
use std::path::{Path, PathBuf};

/// Environment variable with the folder of fetched weights.
pub const VARIABLE: &str = "MAST3R_SLAM_WEIGHTS";

/// The folder of fetched weights: `MAST3R_SLAM_WEIGHTS`, else `mast3r_slam/weights` in the user's cache folder.
pub fn folder() -> PathBuf {
    match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) => named.into(),
        None => files::cache("weights"),
    }
}

/// The weights of `entry` in `folder`, if all of its files were fetched.
///
/// # Errors
/// [`WeightsError::NotFetched`].
pub fn locate(entry: &Entry, folder: &Path) -> Result<PathBuf, WeightsError> {
    let own = folder.join(entry.name);
    let missing = || WeightsError::NotFetched {
        name: entry.name,
        folder: folder.to_owned(),
    };
    // A file that is being fetched has another name.
    match entry.files.iter().all(|file| own.join(file.name).is_file()) {
        true => entry
            .files
            .first()
            .map(|file| own.join(file.name))
            .ok_or_else(missing),
        false => Err(missing()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::CATALOGUE;
    use super::*;

    #[test]
    fn weights_are_found_once_all_of_their_files_are_there() {
        let cache = tempfile::tempdir().unwrap();
        let entry = CATALOGUE.iter().find(|entry| !entry.bundled()).unwrap();
        let own = cache.path().join(entry.name);
        std::fs::create_dir(&own).unwrap();
        for file in entry.files {
            let error = locate(entry, cache.path()).unwrap_err().to_string();
            assert!(
                error.contains(&format!("weights get {}", entry.name)),
                "{error}"
            );
            std::fs::write(own.join(file.name), "").unwrap();
        }
        let found = locate(entry, cache.path()).unwrap();
        assert_eq!(found, own.join(entry.files[0].name));
    }
}

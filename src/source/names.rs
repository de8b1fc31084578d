//! Names of files and folders.

use super::SourceError;
use std::path::{Path, PathBuf};

/// The components of a path in lower case, for pattern matching only. Both `/` and `\` are
/// separators on every system, so that a Windows path in a file or script is understood. Must not
/// be used to open files.
pub fn path_components(path: &Path) -> Vec<String> {
    path.to_string_lossy()
        .split(['/', '\\'])
        .filter(|part| !part.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Whether the name has one of these extensions, ignoring case.
pub(super) fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension()
        .and_then(|e| e.to_str())
        .is_some_and(|e| extensions.iter().any(|x| e.eq_ignore_ascii_case(x)))
}

/// The names in a folder, without hidden files, unsorted.
pub(super) fn names(path: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let io = |cause| SourceError::Io {
        path: path.to_owned(),
        cause,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        if !name.to_string_lossy().starts_with('.') {
            names.push(PathBuf::from(name));
        }
    }
    Ok(names)
}

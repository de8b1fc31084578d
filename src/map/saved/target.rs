//! Where a map may be written: never over a file that is not a map, and on request only below a folder.

use super::{EXTENSION, FILE_NAME, MAGIC, MapFileError};
use crate::files;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The map file to write for `path`, a file with the map extension or a folder, which must lie in `root`.
///
/// # Errors
/// [`MapFileError::Foreign`] for an existing file that is not a map or that has another extension,
/// [`MapFileError::Outside`] for a path that leads out of `root` (by `..` or a link, too).
pub fn target_in(root: &Path, path: &Path) -> Result<PathBuf, MapFileError> {
    let file = match path.extension() {
        Some(extension) if extension == EXTENSION => path.to_owned(),
        _ if path.is_file() => return Err(foreign(path)),
        _ => path.join(FILE_NAME),
    };
    match files::is_within(root, &file) {
        Ok(true) => {}
        Ok(false) => {
            return Err(MapFileError::Outside {
                path: file,
                root: root.to_owned(),
            });
        }
        Err(cause) => return Err(io(&file, cause)),
    }
    check_target(&file)?;
    Ok(file)
}

/// Refuses to replace anything but a map. A path without a file is fine.
///
/// # Errors
/// [`MapFileError::Foreign`] for a file that does not begin as a map does; the system's.
pub fn check_target(path: &Path) -> Result<(), MapFileError> {
    match path.metadata() {
        // Opening a pipe or a device would wait or do harm.
        Ok(meta) if !meta.is_file() => return Err(foreign(path)),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(path, error)),
    }
    let mut start = Vec::new();
    let file = File::open(path).map_err(|e| io(path, e))?;
    let limit = MAGIC.len() as u64;
    file.take(limit)
        .read_to_end(&mut start)
        .map_err(|e| io(path, e))?;
    match start == MAGIC {
        true => Ok(()),
        false => Err(foreign(path)),
    }
}

fn foreign(path: &Path) -> MapFileError {
    MapFileError::Foreign {
        path: path.to_owned(),
    }
}

fn io(path: &Path, cause: std::io::Error) -> MapFileError {
    MapFileError::Io {
        action: "write",
        path: path.to_owned(),
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_maps_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let at = |name: &str| root.join(name);
        for (name, content) in [
            ("old.map", &b"M3RSLMAP and more"[..]),
            ("notes.map", b"precious"),
            ("short.map", b"M3RS"),
            (".bashrc", b"precious"),
            ("renamed", b"M3RSLMAP"),
        ] {
            fs::write(at(name), content).unwrap();
        }
        fs::create_dir_all(at("house/slam.map")).unwrap();
        for (name, file) in [
            ("new.map", "new.map"),
            ("old.map", "old.map"),
            ("walk", "walk/slam.map"),
            ("a/b", "a/b/slam.map"),
        ] {
            assert_eq!(target_in(root, &at(name)).unwrap(), at(file));
        }
        for name in ["notes.map", "short.map", ".bashrc", "renamed", "house"] {
            let error = target_in(root, &at(name)).unwrap_err();
            assert!(
                matches!(error, MapFileError::Foreign { .. }),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn nothing_is_written_outside_of_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("maps");
        fs::create_dir(&root).unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let paths = [
            outside.join("a.map"),
            root.join("../outside/a.map"),
            root.join("new/../../outside"),
            PathBuf::from("/etc"),
            folder.path().join("maps-of-others/a.map"),
        ];
        #[cfg(unix)]
        let linked = {
            std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
            ["link/a.map", "link/new/folder"].map(|path| root.join(path))
        };
        #[cfg(not(unix))]
        let linked: [PathBuf; 0] = [];
        for path in paths.into_iter().chain(linked) {
            let error = target_in(&root, &path).unwrap_err();
            assert!(
                matches!(error, MapFileError::Outside { .. }),
                "{}: {error}",
                path.display()
            );
        }
        assert!(target_in(&root, &root).is_ok() && target_in(&root, &root.join("a/b.map")).is_ok());
        // The root need not exist yet.
        let later = folder.path().join("later");
        assert!(target_in(&later, &later.join("a.map")).is_ok());
        assert!(target_in(&later, &root.join("a.map")).is_err());
    }
}

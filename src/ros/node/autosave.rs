//! Files for maps that end without having been saved: a bounded number, of which the largest map is
//! the last to be replaced.

use super::settings::Settings;
use crate::files;
use crate::map::saved;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A map with fewer keyframes is not kept: it is quickly made again, and would replace a larger one.
pub const MIN_KEYFRAMES: usize = 3;

/// The folder for such maps: `map_root`, or the folder of ROS where the node was started without a
/// map.
pub fn folder(settings: &Settings) -> Option<PathBuf> {
    if !settings.map_root.is_empty() {
        return Some(PathBuf::from(&settings.map_root));
    }
    let ros = std::env::var_os("ROS_HOME").map(PathBuf::from);
    ros.or_else(|| Some(files::home()?.join(".ros")))
        .map(|ros| ros.join("mast3r_slam"))
}

/// The file for the next map of the node with this full name, among `count` files of `folder`: one
/// that does not exist yet, otherwise the oldest, but not the one with the most keyframes.
///
/// # Errors
/// If there is only one file, and it is not a map.
pub fn file(folder: &Path, node: &str, count: usize) -> io::Result<PathBuf> {
    let name = node.trim_start_matches('/').replace('/', "-");
    let slot = |k| folder.join(format!("{name}-autosave-{k}.{}", saved::EXTENSION));
    let mut kept: Vec<(SystemTime, u32, PathBuf)> = Vec::new();
    for path in (0..count).map(slot) {
        let time = match fs::symlink_metadata(&path) {
            Ok(meta) => meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(_) => continue,
        };
        // Not one of ours: it stays.
        if saved::check_target(&path).is_ok() {
            let keyframes = saved::Reader::open(&path).map_or(0, |map| map.header().keyframes);
            kept.push((time, keyframes, path));
        }
    }
    let largest = kept.iter().map(|(_, keyframes, _)| *keyframes).max();
    if kept.len() > 1
        && let Some(at) = kept.iter().position(|(_, k, _)| Some(*k) == largest)
    {
        kept.remove(at);
    }
    let oldest = kept.into_iter().min_by_key(|(time, _, _)| *time);
    oldest.map(|(_, _, path)| path).ok_or_else(|| {
        let occupied = format!(
            "{} and its siblings are not maps; move them",
            slot(0).display()
        );
        io::Error::new(io::ErrorKind::AlreadyExists, occupied)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The beginning of a map: enough to be one of ours, not to be read.
    fn map(path: &Path, seconds: u64) {
        fs::write(path, b"M3RSLMAP").unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        file.set_modified(time).unwrap();
    }

    #[test]
    fn files_are_made_up_to_the_count_and_then_the_oldest_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |k: usize| folder.path().join(format!("robot-slam-autosave-{k}.map"));
        let next = || file(folder.path(), "/robot/slam", 3).unwrap();
        for (k, time) in [300, 100, 200].into_iter().enumerate() {
            assert_eq!(next(), at(k));
            map(&at(k), time);
        }
        // None has a keyframe, so the first is the largest: it stays.
        assert_eq!(next(), at(1));
        map(&at(1), 400);
        assert_eq!(next(), at(2));
        // Another node's maps are not touched.
        assert_eq!(
            file(folder.path(), "/slam", 3).unwrap(),
            folder.path().join("slam-autosave-0.map")
        );
    }

    #[test]
    fn what_is_not_a_map_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = |k: usize| folder.path().join(format!("slam-autosave-{k}.map"));
        fs::write(at(0), "precious").unwrap();
        map(&at(1), 100);
        assert_eq!(file(folder.path(), "/slam", 2).unwrap(), at(1));
        fs::remove_file(at(1)).unwrap();
        assert!(file(folder.path(), "/slam", 1).is_err());
    }
}

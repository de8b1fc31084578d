//! What a path holds.

use super::{SourceError, folder, seven_scenes};
use std::path::{Path, PathBuf};

/// The kinds of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A folder with `rgb.txt`.
    Tum,
    /// A folder with `rgb.txt` and `calibration.txt`.
    Eth3d,
    /// A folder with `mav0/cam0/data.csv`.
    Euroc,
    /// A folder with `*.color.png`, or with sequences `seq-01`, … of them.
    SevenScenes,
    /// A folder with images.
    Images,
    /// A video file.
    Video,
    /// A ROS 2 bag: a folder of `.mcap` or `.db3` files, or one such file.
    #[cfg(feature = "bags")]
    Bag,
}

impl Layout {
    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tum => "TUM RGB-D",
            Self::Eth3d => "ETH3D-SLAM",
            Self::Euroc => "EuRoC",
            Self::SevenScenes => "7-Scenes",
            Self::Images => "images",
            Self::Video => "video",
            #[cfg(feature = "bags")]
            Self::Bag => "ROS 2 bag",
        }
    }

    /// What a folder of this kind must hold.
    fn marker(self) -> &'static str {
        match self {
            Self::Tum | Self::Eth3d => "rgb.txt",
            Self::Euroc => "mav0/cam0/data.csv",
            Self::SevenScenes => "*.color.png",
            Self::Images | Self::Video => "images",
            #[cfg(feature = "bags")]
            Self::Bag => "metadata.yaml",
        }
    }
}

const VIDEO: [&str; 7] = ["mp4", "avi", "mov", "mkv", "webm", "m4v", "mpg"];

/// The parts of a path in lower case, for recognising names in it. Both `/` and `\` separate, on
/// every system: a Windows path that was written into a file or a script is then still understood.
/// Not for opening anything.
pub fn path_components(path: &Path) -> Vec<String> {
    path.to_string_lossy()
        .split(['/', '\\'])
        .filter(|part| !part.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// What the names in a path suggest: a component `tum`, `euroc`, `eth3d`, `7-scenes`, or
/// `rgbd_dataset_…`.
fn suggested(path: &Path) -> Option<Layout> {
    path_components(path)
        .iter()
        .rev()
        .find_map(|part| match part.as_str() {
            "tum" => Some(Layout::Tum),
            "eth3d" => Some(Layout::Eth3d),
            "euroc" => Some(Layout::Euroc),
            "7-scenes" => Some(Layout::SevenScenes),
            name if name.starts_with("rgbd_dataset_") => Some(Layout::Tum),
            _ => None,
        })
}

/// Tells what `path` is. What a folder holds decides; names in the path tell ETH3D-SLAM from TUM
/// RGB-D where the files do not, and make the message better when nothing is found.
///
/// # Errors
/// A missing path, a file that is no video, a folder in which nothing can be read.
pub fn detect(path: &Path) -> Result<Layout, SourceError> {
    let meta = std::fs::metadata(path).map_err(|cause| SourceError::Io {
        path: path.to_owned(),
        cause,
    })?;
    #[cfg(feature = "bags")]
    if !meta.is_dir() && crate::bag::Bag::is_at(path) {
        return Ok(Layout::Bag);
    }
    if !meta.is_dir() {
        let name = path.file_name().map(Path::new).unwrap_or(path);
        return if has_extension(name, &VIDEO) {
            Ok(Layout::Video)
        } else {
            Err(SourceError::content(
                path,
                "a folder with a dataset or images, a video (mp4, avi, mov, mkv, webm) or a ROS 2 bag (mcap, db3)",
                "a file of another kind",
            ))
        };
    }
    let hint = suggested(path);
    if path.join("rgb.txt").is_file() {
        let eth3d = path.join("calibration.txt").is_file() || hint == Some(Layout::Eth3d);
        return Ok(if eth3d { Layout::Eth3d } else { Layout::Tum });
    }
    if euroc_camera(path).is_some() {
        return Ok(Layout::Euroc);
    }
    if seven_scenes::sequence(path)?.is_some() {
        return Ok(Layout::SevenScenes);
    }
    #[cfg(feature = "bags")]
    if crate::bag::Bag::is_at(path) {
        return Ok(Layout::Bag);
    }
    let images = folder::images(path)?;
    match (images.is_empty(), hint) {
        (false, None) => Ok(Layout::Images),
        (false, Some(layout)) => {
            tracing::warn!(
                "{}: the path suggests {}, but there is no {}: read as a folder of images",
                path.display(),
                layout.name(),
                layout.marker()
            );
            Ok(Layout::Images)
        }
        (true, hint) => Err(SourceError::content(
            path,
            match hint {
                Some(layout) => {
                    format!("{} (the path suggests {})", layout.marker(), layout.name())
                }
                None => "images (png, jpg, bmp, tif, webp, ppm), a dataset \
                         (rgb.txt, mav0/cam0/data.csv or *.color.png) or a ROS 2 bag"
                    .to_owned(),
            },
            contents(path),
        )),
    }
}

/// The folder `cam0` of an EuRoC sequence, whose root or `mav0` is `path`.
pub(super) fn euroc_camera(path: &Path) -> Option<PathBuf> {
    [path.join("mav0").join("cam0"), path.join("cam0")]
        .into_iter()
        .find(|camera| camera.join("data.csv").is_file())
}

/// Whether the name ends in one of these, in any case.
pub(super) fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension()
        .and_then(|e| e.to_str())
        .is_some_and(|e| extensions.iter().any(|x| e.eq_ignore_ascii_case(x)))
}

/// The names in a folder, without hidden files, in no order.
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

fn contents(path: &Path) -> String {
    match names(path).map(|mut names| {
        names.sort();
        names
    }) {
        Ok(names) => match names.first() {
            None => "an empty folder".to_owned(),
            Some(first) => format!(
                "{} other entries such as {:?}",
                names.len(),
                first.as_os_str()
            ),
        },
        Err(e) => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_separators_separate() {
        let windows = Path::new(r"datasets\tum\rgbd_dataset_freiburg1_xyz");
        let parts = ["datasets", "tum", "rgbd_dataset_freiburg1_xyz"];
        assert_eq!(path_components(windows), parts);
        assert_eq!(suggested(windows), Some(Layout::Tum));
        assert_eq!(
            path_components(Path::new("/Data//TUM/rgbd_dataset_freiburg1_xyz/")),
            ["data", "tum", "rgbd_dataset_freiburg1_xyz"]
        );
        assert_eq!(
            suggested(Path::new(r"D:\data\7-scenes\chess")),
            Some(Layout::SevenScenes)
        );
        assert_eq!(suggested(Path::new("my/tumble")), None);
    }
}

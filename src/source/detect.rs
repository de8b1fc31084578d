//! Detects the kind of source at a path.

use super::euroc;
use super::layout::Layout;
use super::names::{has_extension, names, path_components};
use super::{SourceError, folder, seven_scenes};
use std::path::Path;

const VIDEO: [&str; 7] = ["mp4", "avi", "mov", "mkv", "webm", "m4v", "mpg"];

/// The layout suggested by a path component: `tum`, `euroc`, `eth3d`, `7-scenes`, or
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

/// Detects the layout of `path`. The content of a folder decides; names in the path distinguish
/// ETH3D-SLAM from TUM RGB-D where the files do not, and improve the message if nothing is found.
///
/// # Errors
/// A missing path, a file that is not a video, or a folder without readable content.
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
        let name = path.file_name().map_or(path, Path::new);
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
    if euroc::camera_folder(path).is_some() {
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
                "{}: the path suggests {}, but {} is missing; reading it as a folder of images",
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

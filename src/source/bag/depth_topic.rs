//! Selection of the depth topic in a bag.

use super::topics::{BagTopics, Mismatch, check_format, find, info_beside, list};
use crate::bag::Topic;
use crate::source::depth_message::DepthTransport;
use crate::wire::messages::Message;
use crate::wire::messages::sensor::{CameraInfo, CompressedImage, Image};

/// The depth topic of a bag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepthTopic {
    /// Full name.
    pub name: String,
    pub transport: DepthTransport,
    /// Full name of the calibration topic.
    pub camera_info: Option<String>,
}

/// Suffix of `compressed_depth_image_transport`.
const COMPRESSED: &str = "/compressedDepth";
/// Words by which drivers mark depth that is registered to the colour images.
const REGISTERED: [&str; 2] = ["aligned", "registered"];

/// Selects the depth topic. Without a name, it is the single image topic whose name contains "depth"; of several, the
/// one whose name says that it is registered; a raw topic takes precedence over its compressed version.
///
/// # Errors
/// No such topic, several, or a named topic of another type.
pub fn choose(topics: &[Topic], named: &BagTopics) -> Result<DepthTopic, Mismatch> {
    let kinds = [Image::TYPE, CompressedImage::TYPE];
    let topic = match &named.depth {
        Some(name) => find(topics, name, &kinds)?,
        None => obvious(topics)?,
    };
    check_format(topic)?;
    let camera_info = match &named.depth_info {
        Some(name) => Some(find(topics, name, &[CameraInfo::TYPE])?),
        None => info_beside(topics, base(&topic.name)),
    };
    if let Some(info) = camera_info {
        check_format(info)?;
    }
    Ok(DepthTopic {
        name: topic.name.clone(),
        transport: match topic.kind == CompressedImage::TYPE {
            true => DepthTransport::Compressed,
            false => DepthTransport::Raw,
        },
        camera_info: camera_info.map(|t| t.name.clone()),
    })
}

fn base(name: &str) -> &str {
    name.strip_suffix(COMPRESSED).unwrap_or(name)
}

fn obvious(topics: &[Topic]) -> Result<&Topic, Mismatch> {
    let is_depth = |t: &&Topic| {
        let kind = match t.kind == CompressedImage::TYPE {
            true => t.name.ends_with(COMPRESSED),
            false => t.kind == Image::TYPE,
        };
        kind && t.messages != Some(0) && t.name.to_lowercase().contains("depth")
    };
    let mut left: Vec<&Topic> = topics.iter().filter(is_depth).collect();
    let raw: Vec<&str> = left
        .iter()
        .filter(|t| t.kind == Image::TYPE)
        .map(|t| t.name.as_str())
        .collect();
    left.retain(|t| t.kind == Image::TYPE || !raw.contains(&base(&t.name)));
    let registered = |t: &&&Topic| REGISTERED.iter().any(|word| t.name.contains(word));
    let marked: Vec<&Topic> = left.iter().filter(registered).copied().collect();
    match (&left[..], &marked[..]) {
        ([one], _) | (_, [one]) => Ok(one),
        ([], _) => Err((
            "a depth topic: an image topic whose name contains depth, or --depth-topic".to_owned(),
            list(topics, &[Image::TYPE, CompressedImage::TYPE]),
        )),
        _ => {
            let names: Vec<&str> = left.iter().map(|t| t.name.as_str()).collect();
            let expected = "a single depth topic, or --depth-topic to select one";
            let found = format!("{}: {}", names.len(), names.join(", "));
            Err((expected.to_owned(), found))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all: &[(&str, &str)], named: &BagTopics) -> Result<DepthTopic, String> {
        choose(&Topic::of_sensors(all), named)
            .map_err(|(expected, found)| format!("{expected}; {found}"))
    }

    #[test]
    fn the_obvious_depth_topic_is_taken() {
        let realsense = [
            ("/d/color/image_raw", "Image"),
            ("/d/color/camera_info", "CameraInfo"),
            ("/d/depth/image_rect_raw", "Image"),
            ("/d/depth/image_rect_raw/compressedDepth", "CompressedImage"),
            ("/d/depth/camera_info", "CameraInfo"),
        ];
        let found = chosen(&realsense, &BagTopics::default()).expect("a topic");
        let expected = DepthTopic {
            name: "/d/depth/image_rect_raw".into(),
            transport: DepthTransport::Raw,
            camera_info: Some("/d/depth/camera_info".into()),
        };
        assert_eq!(found, expected);
        let mut aligned = realsense.to_vec();
        aligned.push((
            "/d/aligned_depth_to_color/image_raw/compressedDepth",
            "CompressedImage",
        ));
        let found = chosen(&aligned, &BagTopics::default()).expect("a topic");
        assert_eq!(found.name, aligned[5].0);
        assert_eq!(found.transport, DepthTransport::Compressed);
        assert_eq!(found.camera_info, None);
    }

    #[test]
    fn what_is_not_obvious_is_asked_for() {
        let two = [
            ("/a/depth", "Image"),
            ("/b/depth", "Image"),
            ("/b/info", "CameraInfo"),
        ];
        let error = chosen(&two, &BagTopics::default()).expect_err("two topics");
        assert!(
            error.contains("--depth-topic") && error.contains("/a/depth, /b/depth"),
            "{error}"
        );
        let named = BagTopics {
            depth: Some("b/depth".into()),
            depth_info: Some("/b/info".into()),
            ..Default::default()
        };
        let found = chosen(&two, &named).expect("the named one");
        assert_eq!(
            (found.name.as_str(), found.camera_info.as_deref()),
            ("/b/depth", Some("/b/info"))
        );
        let none = chosen(&[("/rgb", "Image")], &BagTopics::default()).expect_err("no depth");
        assert!(none.contains("/rgb (sensor_msgs/msg/Image)"), "{none}");
    }
}

//! Selection of the camera topics in a bag.

use crate::bag::Topic;
use crate::wire::messages::Message;
use crate::wire::messages::sensor::{CameraInfo, CompressedImage, Image};

/// Topics selected by the user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BagTopics {
    /// `sensor_msgs/Image` or `sensor_msgs/CompressedImage`.
    pub image: Option<String>,
    /// `sensor_msgs/CameraInfo`.
    pub camera_info: Option<String>,
    /// Depth images, if they are read: `sensor_msgs/Image`, or `sensor_msgs/CompressedImage` of
    /// `compressed_depth_image_transport`.
    pub depth: Option<String>,
    /// `sensor_msgs/CameraInfo` of the depth images.
    pub depth_info: Option<String>,
}

impl BagTopics {
    /// Whether no topic is selected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The topics of the selected camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Camera {
    /// Full name of the image topic.
    pub image: String,
    /// Whether messages hold compressed image files.
    pub compressed: bool,
    /// Whether the topic name indicates rectified images (`image_rect`, `image_rect_color`).
    pub rectified: bool,
    /// Number of image messages, if the bag records it.
    pub images: Option<u64>,
    /// Full name of the calibration topic.
    pub camera_info: Option<String>,
}

/// Expected and found.
pub type Mismatch = (String, String);

/// Selects the camera. Without a name, image topics with names that indicate depth, disparity or
/// masks are excluded, a raw topic takes precedence over its compressed version, and the single
/// remaining topic is used; if several remain, the one with a `camera_info` topic in its namespace.
///
/// # Errors
/// No image topic, several candidates, or a named topic of another type. All list the topics that
/// exist.
pub fn choose(topics: &[Topic], named: &BagTopics) -> Result<Camera, Mismatch> {
    let image = match &named.image {
        Some(name) => find(topics, name, &[Image::TYPE, CompressedImage::TYPE])?,
        None => obvious(topics)?,
    };
    check_format(image)?;
    let camera_info = match &named.camera_info {
        Some(name) => Some(find(topics, name, &[CameraInfo::TYPE])?),
        None => calibration_of(topics, image),
    };
    if let Some(info) = camera_info {
        check_format(info)?;
    }
    Ok(Camera {
        image: image.name.clone(),
        compressed: image.kind == CompressedImage::TYPE,
        rectified: base(&image.name).contains("/image_rect"),
        images: image.messages,
        camera_info: camera_info.map(|t| t.name.clone()),
    })
}

pub(super) fn find<'a>(
    topics: &'a [Topic],
    name: &str,
    kinds: &[&str],
) -> Result<&'a Topic, Mismatch> {
    let bare = |name: &str| name.trim_start_matches('/').to_owned();
    let found = topics.iter().find(|t| bare(&t.name) == bare(name));
    match found {
        Some(topic) if kinds.contains(&topic.kind.as_str()) => Ok(topic),
        Some(topic) => Err((
            format!("{name} to be a topic of {}", kinds.join(" or ")),
            format!("one of {}", topic.kind),
        )),
        None => Err((format!("the topic {name}"), list(topics, kinds))),
    }
}

pub(super) fn check_format(topic: &Topic) -> Result<(), Mismatch> {
    match topic.format.as_str() {
        "cdr" => Ok(()),
        other => Err((
            format!("messages of {} in ROS 2's format, cdr", topic.name),
            format!("the format {other:?}"),
        )),
    }
}

fn is_image(topic: &Topic) -> bool {
    [Image::TYPE, CompressedImage::TYPE].contains(&topic.kind.as_str())
}

/// Substrings by which drivers mark topics that are not colour images.
const OTHER_THAN_COLOUR: [&str; 5] = ["depth", "disparity", "mask", "label", "confidence"];

fn obvious(topics: &[Topic]) -> Result<&Topic, Mismatch> {
    let filled = |t: &&Topic| is_image(t) && t.messages != Some(0);
    let pictures: Vec<&Topic> = topics.iter().filter(filled).collect();
    if pictures.is_empty() {
        let kinds = format!("{} or {}", Image::TYPE, CompressedImage::TYPE);
        let empty = topics.iter().any(is_image);
        let found = match empty {
            true => "no messages on any such topic".to_owned(),
            false => list(topics, &[]),
        };
        return Err((format!("images: a topic of {kinds}"), found));
    }
    let plain = |t: &&&Topic| {
        let name = t.name.to_lowercase();
        !OTHER_THAN_COLOUR.iter().any(|word| name.contains(word))
    };
    let mut left: Vec<&Topic> = pictures.iter().filter(plain).copied().collect();
    // If the same images exist twice, prefer the uncompressed ones.
    let raw: Vec<String> = left
        .iter()
        .filter(|t| t.kind == Image::TYPE)
        .map(|t| t.name.clone())
        .collect();
    left.retain(|t| t.kind == Image::TYPE || !raw.iter().any(|r| r == base(&t.name)));
    match left[..] {
        [one] => return Ok(one),
        [] => {}
        _ => {
            let calibrated = |t: &&&Topic| beside(topics, t).is_some();
            let known: Vec<&Topic> = left.iter().filter(calibrated).copied().collect();
            if let [one] = known[..] {
                return Ok(one);
            }
        }
    }
    let names: Vec<&str> = pictures.iter().map(|t| t.name.as_str()).collect();
    Err((
        "a single image topic, or --image-topic to select one".to_owned(),
        format!("{}: {}", names.len(), names.join(", ")),
    ))
}

/// Name of the image_transport base topic of a compressed topic.
fn base(name: &str) -> &str {
    name.strip_suffix("/compressed").unwrap_or(name)
}

/// `camera_info` in the namespace of the image's topic.
fn beside<'a>(topics: &'a [Topic], image: &Topic) -> Option<&'a Topic> {
    info_beside(topics, base(&image.name))
}

/// `camera_info` in the namespace of a topic.
pub(super) fn info_beside<'a>(topics: &'a [Topic], name: &str) -> Option<&'a Topic> {
    let (namespace, _) = name.rsplit_once('/')?;
    let name = format!("{namespace}/camera_info");
    topics
        .iter()
        .find(|t| t.kind == CameraInfo::TYPE && t.name == name)
}

/// The calibration topic in the namespace of the image topic; otherwise the only one, provided
/// there is only one camera.
fn calibration_of<'a>(topics: &'a [Topic], image: &Topic) -> Option<&'a Topic> {
    beside(topics, image).or_else(|| {
        let all = |kind: &'static str| topics.iter().filter(move |t| t.kind == kind);
        let images = topics.iter().filter(|t| is_image(t)).count();
        match (all(CameraInfo::TYPE).next(), images) {
            (Some(only), 1) if all(CameraInfo::TYPE).count() == 1 => Some(only),
            _ => None,
        }
    })
}

/// Topics of the given types (all types if none match), for messages.
pub(super) fn list(topics: &[Topic], kinds: &[&str]) -> String {
    let of = |t: &&Topic| kinds.is_empty() || kinds.contains(&t.kind.as_str());
    let names: Vec<String> = topics
        .iter()
        .filter(of)
        .map(|t| format!("{} ({})", t.name, t.kind))
        .collect();
    match (names.is_empty(), kinds.is_empty()) {
        (false, _) => names.join(", "),
        (true, true) => "no topics at all".to_owned(),
        (true, false) => list(topics, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(all: &[(&str, &str)]) -> Result<(String, Option<String>), String> {
        choose(&Topic::of_sensors(all), &BagTopics::default())
            .map(|c| (c.image, c.camera_info))
            .map_err(|(expected, found)| format!("{expected}; {found}"))
    }

    #[test]
    fn the_obvious_camera_is_taken() {
        let case = |all: &[(&str, &str)], image: &str, info: Option<&str>| {
            let expected = (image.to_owned(), info.map(str::to_owned));
            assert_eq!(chosen(all), Ok(expected), "{all:?}");
        };
        case(&[("/imu", "Imu"), ("/picture", "Image")], "/picture", None);
        case(
            &[("/cam", "Image"), ("/elsewhere/info", "CameraInfo")],
            "/cam",
            Some("/elsewhere/info"),
        );
        case(
            &[
                ("/d/color/image_raw", "Image"),
                ("/d/color/image_raw/compressed", "CompressedImage"),
                ("/d/color/camera_info", "CameraInfo"),
                ("/d/depth/image_rect_raw", "Image"),
                ("/d/depth/image_rect_raw/compressedDepth", "CompressedImage"),
                ("/d/depth/camera_info", "CameraInfo"),
            ],
            "/d/color/image_raw",
            Some("/d/color/camera_info"),
        );
        case(
            &[
                ("/cam/image_raw/compressed", "CompressedImage"),
                ("/cam/camera_info", "CameraInfo"),
                ("/debug/overlay", "Image"),
            ],
            "/cam/image_raw/compressed",
            Some("/cam/camera_info"),
        );
        case(
            &[
                ("/a/image", "Image"),
                ("/b/image", "Image"),
                ("/b/camera_info", "CameraInfo"),
            ],
            "/b/image",
            Some("/b/camera_info"),
        );
    }

    #[test]
    fn rectified_images_are_known_by_their_name() {
        for (name, rectified) in [
            ("/cam/image_rect", true),
            ("/cam/image_rect_color/compressed", true),
            ("/cam/image_raw", false),
        ] {
            let kind = match name.ends_with("compressed") {
                true => "CompressedImage",
                false => "Image",
            };
            let camera = choose(&Topic::of_sensors(&[(name, kind)]), &BagTopics::default());
            assert_eq!(camera.map(|c| c.rectified), Ok(rectified), "{name}");
        }
    }

    #[test]
    fn what_is_not_obvious_is_asked_for() {
        let error = |all: &[(&str, &str)]| chosen(all).expect_err("no camera");
        let two = error(&[("/left/image", "Image"), ("/right/image", "Image")]);
        for part in ["--image-topic", "/left/image", "/right/image"] {
            assert!(two.contains(part), "{two}");
        }
        let none = error(&[("/imu", "Imu")]);
        assert!(none.contains("/imu (sensor_msgs/msg/Imu)"), "{none}");
        assert!(error(&[]).contains("no topics at all"));
        let depth = error(&[("/depth/a", "Image"), ("/depth/b", "Image")]);
        assert!(depth.contains("/depth/a, /depth/b"), "{depth}");
    }

    #[test]
    fn empty_topics_are_no_candidates() {
        let mut all = Topic::of_sensors(&[("/a/image", "Image"), ("/b/image", "Image")]);
        all[0].messages = Some(0);
        let camera = choose(&all, &BagTopics::default()).expect("a camera");
        assert_eq!(camera.image, "/b/image");
        all[1].messages = Some(0);
        let (_, found) = choose(&all, &BagTopics::default()).expect_err("nothing");
        assert!(found.contains("no message"), "{found}");
    }

    #[test]
    fn named_topics_are_held_to_their_types() {
        let all = Topic::of_sensors(&[
            ("/a/image", "Image"),
            ("/b/image", "Image"),
            ("/b/camera_info", "CameraInfo"),
        ]);
        let named = |image: &str, info: Option<&str>| {
            let named = BagTopics {
                image: Some(image.to_owned()),
                camera_info: info.map(str::to_owned),
                ..Default::default()
            };
            choose(&all, &named).map_err(|(expected, found)| format!("{expected}; {found}"))
        };
        let camera = named("a/image", Some("/b/camera_info")).expect("a camera");
        assert_eq!(camera.image, "/a/image");
        assert_eq!(camera.camera_info.as_deref(), Some("/b/camera_info"));
        assert_eq!(named("/a/image", None).expect("a camera").camera_info, None);
        let error = named("/b/camera_info", None).expect_err("no images");
        assert!(error.contains("sensor_msgs/msg/CameraInfo"), "{error}");
        let error = named("/c/image", None).expect_err("not there");
        assert!(
            error.contains("/a/image") && error.contains("/b/image"),
            "{error}"
        );
    }

    #[test]
    fn other_formats_than_cdr_are_refused() {
        let mut all = Topic::of_sensors(&[("/a/image", "Image")]);
        all[0].format = "protobuf".to_owned();
        let (expected, found) = choose(&all, &BagTopics::default()).expect_err("not cdr");
        assert!(expected.contains("cdr") && found.contains("protobuf"));
    }
}

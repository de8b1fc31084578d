//! The text of message types, as their `.msg` files have it: a bag carries it, so that it can be read where the types
//! are not installed.

use super::messages::diagnostic::DiagnosticArray;
use super::messages::geometry::{
    PoseStamped, PoseWithCovarianceStamped, TfMessage, TransformStamped,
};
use super::messages::nav::{Odometry, Path};
use super::messages::sensor::{CameraInfo, CompressedImage, Image, Imu, PointCloud2};
use super::messages::{Definition, Message, short_name};
use std::collections::VecDeque;

/// The types that are written into bags.
const RECORDED: [fn() -> Definition; 12] = [
    CameraInfo::own_definition,
    CompressedImage::own_definition,
    DiagnosticArray::own_definition,
    Image::own_definition,
    Imu::own_definition,
    Odometry::own_definition,
    Path::own_definition,
    PointCloud2::own_definition,
    PoseStamped::own_definition,
    PoseWithCovarianceStamped::own_definition,
    TfMessage::own_definition,
    TransformStamped::own_definition,
];

/// The definition of `package/msg/Type` followed by those of every type in it, as MCAP's schema encoding `ros2msg`
/// requires; `None` for a type that is not written into bags.
pub fn definition(kind: &str) -> Option<String> {
    let short = short_name(kind);
    let mut all = RECORDED.iter().map(|own| own());
    all.find(|own| own.name == short).map(with_parts)
}

/// The text of a type, then of its parts, breadth first, each once.
fn with_parts(own: Definition) -> String {
    let mut out = own.text;
    let mut seen = vec![own.name];
    let mut open = VecDeque::from(own.parts);
    while let Some(part) = open.pop_front() {
        let part = part();
        if seen.contains(&part.name) {
            continue;
        }
        out.push_str(&"=".repeat(80));
        out.push_str(&format!("\nMSG: {}\n{}", part.name, part.text));
        seen.push(part.name);
        open.extend(part.parts);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The types of every bag's message with those in them: what the interface packages of Jazzy say, without comments.
    const PUBLISHED: &str = include_str!("../../tests/data/ros/definitions.txt");

    #[test]
    fn the_text_of_every_type_is_that_of_its_package() {
        let published: BTreeMap<&str, &str> = PUBLISHED
            .split("MSG: ")
            .filter_map(|part| part.split_once('\n'))
            .collect();
        let mut open: Vec<fn() -> Definition> = RECORDED.to_vec();
        let mut found = BTreeMap::new();
        while let Some(own) = open.pop() {
            let own = own();
            if found.insert(own.name, own.text).is_none() {
                open.extend(own.parts);
            }
        }
        let found: BTreeMap<&str, &str> = found
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str()))
            .collect();
        assert_eq!(found, published);
    }

    #[test]
    fn parts_follow_in_the_form_that_readers_expect() {
        let bar = "=".repeat(80);
        let expected = format!(
            "std_msgs/Header header\ngeometry_msgs/Pose pose\n{bar}\nMSG: std_msgs/Header\n\
             builtin_interfaces/Time stamp\nstring frame_id\n{bar}\nMSG: geometry_msgs/Pose\n\
             geometry_msgs/Point position\ngeometry_msgs/Quaternion orientation\n{bar}\n\
             MSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n{bar}\nMSG: geometry_msgs/Point\n\
             float64 x\nfloat64 y\nfloat64 z\n{bar}\nMSG: geometry_msgs/Quaternion\n\
             float64 x 0\nfloat64 y 0\nfloat64 z 0\nfloat64 w 1\n"
        );
        assert_eq!(
            definition("geometry_msgs/msg/PoseStamped").as_deref(),
            Some(expected.as_str())
        );
        assert_eq!(definition("std_msgs/msg/Nothing"), None);
    }
}

//! The definitions of the message types that are written into bags, as their `.msg` files have them: without them a
//! bag could not be read where the types are not installed.

use std::collections::VecDeque;

/// Type and text, without comments.
const DEFINITIONS: &[(&str, &str)] = &[
    ("builtin_interfaces/Time", "int32 sec\nuint32 nanosec\n"),
    (
        "std_msgs/Header",
        "builtin_interfaces/Time stamp\nstring frame_id\n",
    ),
    ("geometry_msgs/Vector3", "float64 x\nfloat64 y\nfloat64 z\n"),
    ("geometry_msgs/Point", "float64 x\nfloat64 y\nfloat64 z\n"),
    (
        "geometry_msgs/Quaternion",
        "float64 x 0\nfloat64 y 0\nfloat64 z 0\nfloat64 w 1\n",
    ),
    (
        "geometry_msgs/Transform",
        "geometry_msgs/Vector3 translation\ngeometry_msgs/Quaternion rotation\n",
    ),
    (
        "geometry_msgs/TransformStamped",
        "std_msgs/Header header\nstring child_frame_id\ngeometry_msgs/Transform transform\n",
    ),
    (
        "tf2_msgs/TFMessage",
        "geometry_msgs/TransformStamped[] transforms\n",
    ),
    (
        "geometry_msgs/Pose",
        "geometry_msgs/Point position\ngeometry_msgs/Quaternion orientation\n",
    ),
    (
        "geometry_msgs/PoseStamped",
        "std_msgs/Header header\ngeometry_msgs/Pose pose\n",
    ),
    (
        "geometry_msgs/PoseWithCovariance",
        "geometry_msgs/Pose pose\nfloat64[36] covariance\n",
    ),
    (
        "geometry_msgs/PoseWithCovarianceStamped",
        "std_msgs/Header header\ngeometry_msgs/PoseWithCovariance pose\n",
    ),
    (
        "geometry_msgs/Twist",
        "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular\n",
    ),
    (
        "geometry_msgs/TwistWithCovariance",
        "geometry_msgs/Twist twist\nfloat64[36] covariance\n",
    ),
    (
        "nav_msgs/Odometry",
        "std_msgs/Header header\nstring child_frame_id\ngeometry_msgs/PoseWithCovariance pose\n\
         geometry_msgs/TwistWithCovariance twist\n",
    ),
    (
        "nav_msgs/Path",
        "std_msgs/Header header\ngeometry_msgs/PoseStamped[] poses\n",
    ),
    (
        "sensor_msgs/Image",
        "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n\
         uint8[] data\n",
    ),
    (
        "sensor_msgs/CompressedImage",
        "std_msgs/Header header\nstring format\nuint8[] data\n",
    ),
    (
        "sensor_msgs/RegionOfInterest",
        "uint32 x_offset\nuint32 y_offset\nuint32 height\nuint32 width\nbool do_rectify\n",
    ),
    (
        "sensor_msgs/CameraInfo",
        "std_msgs/Header header\nuint32 height\nuint32 width\nstring distortion_model\nfloat64[] d\nfloat64[9] k\n\
         float64[9] r\nfloat64[12] p\nuint32 binning_x\nuint32 binning_y\nsensor_msgs/RegionOfInterest roi\n",
    ),
    (
        "sensor_msgs/PointField",
        "uint8 INT8=1\nuint8 UINT8=2\nuint8 INT16=3\nuint8 UINT16=4\nuint8 INT32=5\nuint8 UINT32=6\nuint8 FLOAT32=7\n\
         uint8 FLOAT64=8\nstring name\nuint32 offset\nuint8 datatype\nuint32 count\n",
    ),
    (
        "sensor_msgs/PointCloud2",
        "std_msgs/Header header\nuint32 height\nuint32 width\nsensor_msgs/PointField[] fields\nbool is_bigendian\n\
         uint32 point_step\nuint32 row_step\nuint8[] data\nbool is_dense\n",
    ),
];

fn text_of(short: &str) -> Option<&'static str> {
    let found = DEFINITIONS.iter().find(|(name, _)| *name == short);
    found.map(|(_, text)| *text)
}

/// The definition of `package/msg/Type` followed by those of every type in it, as MCAP's schema encoding `ros2msg`
/// asks; `None` for a type that is never written.
pub fn definition(kind: &str) -> Option<String> {
    let short = kind.replacen("/msg/", "/", 1);
    let mut out = text_of(&short)?.to_owned();
    let mut seen = vec![short.clone()];
    let mut open = VecDeque::from([short]);
    while let Some(name) = open.pop_front() {
        for line in text_of(&name)?.lines() {
            let field = line.split([' ', '[']).next().unwrap_or_default();
            if !field.contains('/') || seen.iter().any(|s| s == field) {
                continue;
            }
            let text = text_of(field)?;
            out.push_str(&"=".repeat(80));
            out.push_str(&format!("\nMSG: {field}\n{text}"));
            seen.push(field.to_owned());
            open.push_back(field.to_owned());
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_whole() {
        for (short, _) in DEFINITIONS {
            let kind = short.replacen('/', "/msg/", 1);
            let text = definition(&kind).unwrap_or_else(|| panic!("{kind} lacks a part"));
            // Each part once.
            let parts: Vec<&str> = text.lines().filter(|l| l.starts_with("MSG: ")).collect();
            let mut distinct = parts.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(parts.len(), distinct.len(), "{kind}");
        }
        assert_eq!(definition("std_msgs/msg/Nothing"), None);
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
    }
}

//! Parameters of the node: one table of name, type, default, range and documentation.

use super::parameters::{Change, Constraint, Definition, ParameterError, Table, Value};
use crate::config::{BackendChoice, Config, DeviceChoice, Key, Kind, Range, Threads};
use crate::files::folder_of;
use crate::map::saved;
use crate::source::depth_message::DepthTransport;
use crate::wire::Qos;
use serde_json::Value as Json;
use std::path::Path;
use std::str::FromStr;

/// Kind of image messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `sensor_msgs/Image`
    Raw,
    /// `sensor_msgs/CompressedImage`
    Compressed,
}

/// A type that parameters are converted to.
trait FromValue {
    fn from_value(value: &Value) -> Self;
}

impl FromValue for String {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Text(text) => text.clone(),
            _ => Self::new(),
        }
    }
}

impl FromValue for bool {
    fn from_value(value: &Value) -> Self {
        matches!(value, Value::Bool(true))
    }
}

impl FromValue for f64 {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Double(number) => *number,
            _ => 0.0,
        }
    }
}

impl FromValue for usize {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Integer(number) => Self::try_from(*number).unwrap_or(0),
            _ => 0,
        }
    }
}

/// A choice of the configuration; empty: what the configuration says.
impl<T: FromStr> FromValue for Option<T> {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Text(name) => name.parse().ok(),
            _ => None,
        }
    }
}

impl FromValue for Transport {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Text(name) if name == "compressed" => Self::Compressed,
            _ => Self::Raw,
        }
    }
}

impl FromValue for DepthTransport {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Text(name) if name == "compressedDepth" => Self::Compressed,
            _ => Self::Raw,
        }
    }
}

impl FromValue for Qos {
    fn from_value(value: &Value) -> Self {
        match value {
            Value::Text(name) if name == "reliable" => Self::reliable(2),
            _ => Self::sensor_data(1),
        }
    }
}

/// Quality of service of a fast sensor, whose messages all count: best effort takes them from any publisher.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MotionQos(pub Qos);

/// Messages that wait in the middleware: those of half a second at 200 Hz.
const MOTION_DEPTH: usize = 100;

impl FromValue for MotionQos {
    fn from_value(value: &Value) -> Self {
        Self(match value {
            Value::Text(name) if name == "reliable" => Qos::reliable(MOTION_DEPTH),
            _ => Qos::sensor_data(MOTION_DEPTH),
        })
    }
}

/// Declares every parameter once: the struct of values, and the table of definitions for ROS.
macro_rules! parameters {
    ($($name:ident: $type:ty = $default:expr, $constraint:expr, $change:ident, $text:literal;)*) => {
        /// The values of the node's parameters.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Settings {
            $(#[doc = $text] pub $name: $type,)*
        }

        /// All parameters of the node itself.
        pub fn definitions() -> Vec<Definition> {
            vec![$(Definition {
                name: stringify!($name).into(),
                default: $default.into(),
                description: $text.into(),
                constraint: $constraint,
                change: Change::$change,
            },)*]
        }

        impl Settings {
            /// Reads the values; all exist and have the right type.
            pub fn of(table: &Table) -> Self {
                Self {
                    $($name: <$type>::from_value(table.value(stringify!($name))),)*
                }
            }
        }
    };
}

const QOS: Constraint = Constraint::OneOf(&["sensor_data", "reliable"]);
const BACKENDS: Constraint =
    Constraint::OneOf(&["", "auto", "cpu", "native", "onnxruntime", "tensorrt"]);
const DEVICES: Constraint = Constraint::OneOf(&["", "auto", "cpu", "cuda"]);
const SCHEDULES: Constraint = Constraint::OneOf(&["", "pipelined", "single"]);
const TRANSPORTS: Constraint = Constraint::OneOf(&["raw", "compressed"]);
const DEPTH_TRANSPORTS: Constraint = Constraint::OneOf(&["raw", "compressedDepth"]);
const ANY: Constraint = Constraint::None;
const FRAME: Constraint = Constraint::Frame;
const AUTOSAVES: Constraint = Constraint::Integer(0, 100);
/// Number of keyframes or poses.
const COUNT: Constraint = Constraint::Integer(0, 1_000_000);

parameters! {
    config: String = "", ANY, Unconfigured,
        "SLAM configuration: a YAML file or a built-in name (base, calib, ...); empty: the configuration for the weights";
    weights: String = "", ANY, Unconfigured,
        "network weights: a file (.pth or .safetensors), or a name of `mast3r-slam weights list`; empty: the bundled model";
    backend: Option<BackendChoice> = "", BACKENDS, Unconfigured,
        "backend of the network; empty: as in the configuration";
    device: Option<DeviceChoice> = "", DEVICES, Unconfigured,
        "device of SLAM; empty: as in the configuration";
    threads: Option<Threads> = "", SCHEDULES, Unconfigured,
        "pipelined: mapping on its own thread; single: sequential processing; empty: as in the configuration";
    max_keyframes: usize = 0i64, COUNT, Unconfigured,
        "maximum number of keyframes in the map; 0: as in the configuration";
    map_frame: String = "map", FRAME, Unconfigured,
        "frame of the map";
    odom_frame: String = "odom", FRAME, Unconfigured,
        "frame of the odometry";
    base_frame: String = "base_link", ANY, Unconfigured,
        "frame of the robot; its transform to the camera is read from /tf_static; empty: the camera's optical frame itself";
    camera_optical_frame: String = "", ANY, Unconfigured,
        "the camera's optical frame; empty: the frame_id of the images";
    publish_map_to_odom_tf: bool = true, ANY, Always,
        "broadcast map -> odom";
    publish_odom_to_base_tf: bool = true, ANY, Unconfigured,
        "broadcast odom -> base; false: another node does, and it is read from /tf";
    publish_when_lost: bool = false, ANY, Always,
        "while lost, keep publishing the last odometry with growing covariance";
    transform_publish_rate: f64 = 20.0, Constraint::Double(0.0, 1000.0), Always,
        "rate of map -> odom in Hz, from a timer of its own; 0: with each pose, with the image's stamp";
    transform_tolerance: f64 = 0.1, Constraint::Double(0.0, 10.0), Always,
        "how far in the future the timer stamps map -> odom, in seconds";
    two_d_mode: bool = false, ANY, Always,
        "the robot moves in a plane: roll, pitch and z of map -> odom, and of the node's own odometry, are zero";
    image_transport: Transport = "raw", TRANSPORTS, Unconfigured,
        "raw: subscribe to image; compressed: to image/compressed";
    image_qos: Qos = "sensor_data", QOS, Unconfigured,
        "quality of service of the images";
    camera_info_qos: Qos = "sensor_data", QOS, Unconfigured,
        "quality of service of camera_info";
    max_rate: f64 = 0.0, Constraint::Double(0.0, 1000.0), Always,
        "maximum number of images processed per second, by their stamps; 0: no limit";
    use_calib: bool = true, ANY, Unconfigured,
        "wait for camera_info and use it; false: estimate everything from the images";
    mask_file: String = "", ANY, Unconfigured,
        "image of the camera's size that is black where the camera sees the robot itself: those pixels match nothing and enter no pointmap, cloud or grid; empty: none";
    use_mask: bool = false, ANY, Unconfigured,
        "subscribe to mask, images of the camera's size that are black (0) where pixels are hidden, such as people; the newest one applies, for a second";
    use_depth: bool = false, ANY, Unconfigured,
        "subscribe to depth, depth images of a sensor, which make the map metric: 16UC1 in millimetres or 32FC1 in metres";
    depth_registered: bool = true, ANY, Unconfigured,
        "the depth images show what the camera's images show (aligned_depth, depth_registered); false: they come from a camera of its own, with depth/camera_info and a transform";
    depth_transport: DepthTransport = "raw", DEPTH_TRANSPORTS, Unconfigured,
        "raw: subscribe to depth; compressedDepth: to depth/compressedDepth";
    use_wheel_odometry: bool = false, ANY, Unconfigured,
        "subscribe to odom, poses of the base by wheels, which make the map metric and tell where the robot is while the camera sees nothing; the mount is the transform from their child_frame_id to the camera";
    odom_qos: MotionQos = "sensor_data", QOS, Unconfigured,
        "quality of service of odom";
    use_gyro: bool = false, ANY, Unconfigured,
        "subscribe to imu, whose angular velocity tells how the camera turns; the mount is the transform from the camera to its frame_id";
    imu_qos: MotionQos = "sensor_data", QOS, Unconfigured,
        "quality of service of imu";
    map_path: String = "", ANY, Always,
        "folder (or file that ends in .map) that ~/save_map writes to and ~/load_map reads";
    map_root: String = "", ANY, Never,
        "folder below which ~/save_map may write; empty: the folder of map_path at start";
    autosaves: usize = 3i64, AUTOSAVES, Always,
        "number of files for maps that end without ~/save_map (a failure, another camera, time that jumps back, a reset, the end of the node), in map_root or ~/.ros/mast3r_slam; the oldest is replaced, the largest map last; 0: such maps are dropped";
    load_map_on_start: bool = false, ANY, Unconfigured,
        "continue the map in map_path when images arrive, in its file, which is created if there is none; with localization_only, or if it was saved at once, the file stays as it is";
    localization_only: bool = false, ANY, Always,
        "localise in the map without changing it";
    map_voxel_size: f64 = 0.05, Constraint::Double(0.0, 10.0), Always,
        "voxel edge of published clouds in metres, one point is kept per voxel; 0: every point";
    map_publish_period: f64 = 2.0, Constraint::Double(0.1, 3600.0), Always,
        "minimum interval between publications of ~/map_points, in seconds";
    path_max_size: usize = 0i64, COUNT, Always,
        "maximum number of poses in ~/path, the newest ones; 0: no limit";
    cloud_chunk_bytes: usize = 65_536i64, Constraint::Integer(0, 1 << 30), Always,
        "maximum size of a cloud message in bytes; 0: one message per cloud, for suitably configured networks";
    cloud_rate: f64 = 10.0, Constraint::Double(0.0, 1000.0), Always,
        "maximum rate of ~/cloud in Hz, by the images' stamps; 0: every tracked frame";
    splat: bool = false, ANY, Unconfigured,
        "make a map of 3D Gaussians beside SLAM: ~/splat_image shows it, and ~/save_map writes it as PLY; slam.splat.* says how it is made";
    view_port: usize = 0i64, Constraint::Integer(0, 65_535), Unconfigured,
        "port of the live page and of metrics for Prometheus; 0: off";
    view_address: String = "127.0.0.1", ANY, Unconfigured,
        "address of this machine to serve them on; 0.0.0.0 shows what the camera sees to anyone who reaches the machine";
    incident_folder: String = "", ANY, Never,
        "folder for incidents: when the camera is lost for 5 s, when /diagnostics has an error, when the self-test fails, and when ~/save_incident is called, the last minute of images (JPEG), camera_info, transforms, odometry, poses and status is written there as an .mcap file that `mast3r-slam run` replays; at most one of a cause in 10 minutes; empty: off";
    incident_seconds: f64 = 60.0, Constraint::Double(1.0, 3600.0), Unconfigured,
        "length of an incident in seconds";
    incident_image_rate: f64 = 10.0, Constraint::Double(0.0, 1000.0), Unconfigured,
        "maximum rate of the images in an incident in Hz, which costs their compression; 0: every image; compressed images are all kept";
    incident_memory_mb: usize = 256i64, Constraint::Integer(1, 65_536), Unconfigured,
        "memory for the last minute in megabytes; older messages go first";
    incident_quota_mb: usize = 5000i64, Constraint::Integer(1, 1_000_000), Unconfigured,
        "disk space for incidents in megabytes; the oldest are removed";
    use_sim_time: bool = false, ANY, Unconfigured,
        "use the time from /clock";
    self_test: bool = false, ANY, Never,
        "before the node starts, load the network with these parameters, compare its outputs with recorded figures if there are any, and track a bundled sequence, as `mast3r-slam selftest` does; a failure ends the node";
    autostart: bool = true, ANY, Never,
        "configure and activate at start-up; false: left to a lifecycle manager";
}

/// Sets `map_root`, which is fixed after the start, to the folder that `map_path` names.
///
/// # Errors
/// None for a table that has both parameters.
pub fn fix_map_root(table: &mut Table) -> Result<(), ParameterError> {
    let Settings {
        map_root, map_path, ..
    } = Settings::of(table);
    if !map_root.is_empty() || map_path.is_empty() {
        return Ok(());
    }
    let path = Path::new(&map_path);
    let is_file = path.extension().is_some_and(|e| e == saved::EXTENSION);
    let folder = match is_file {
        true => folder_of(path),
        false => path,
    };
    table.preset("map_root", &Json::from(folder.to_string_lossy()))
}

/// Prefix of parameters for configuration keys: `slam.tracking.Q_conf`.
pub const PREFIX: &str = "slam.";

/// A parameter for every configuration key, which overrides the configuration.
pub fn keys() -> Vec<Definition> {
    let defaults = Config::default();
    let definition = |key: &'static Key| {
        let value = defaults.get(key.name)?;
        Some(Definition {
            default: value.into(),
            name: format!("{PREFIX}{}", key.name).into(),
            description: key.doc().into(),
            constraint: match (key.kind, key.range) {
                (Kind::Choice(names), _) => Constraint::OneOf(names),
                (Kind::Whole, Range::Whole(from, to)) => {
                    let bound = |n| i64::try_from(n).unwrap_or(i64::MAX);
                    Constraint::Integer(bound(from), bound(to))
                }
                (Kind::Number, Range::Fraction) => Constraint::Double(0.0, 1.0),
                // The configuration checks the rest, with the words of its own ranges.
                _ => Constraint::None,
            },
            change: Change::Unconfigured,
        })
    };
    Config::keys().filter_map(definition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::parameter::{ParameterValue, STRING};
    use serde_json::json;

    fn table() -> Table {
        Table::new(definitions())
    }

    #[test]
    fn defaults_keep_their_own_rules() {
        let mut table = table();
        let names: Vec<_> = table.names().map(str::to_owned).collect();
        for name in names {
            let value = table.get(&name).unwrap().1.to_message();
            assert_eq!(
                table.change(&name, &value, true).map(|_| ()),
                Ok(()),
                "{name}"
            );
        }
    }

    #[test]
    fn maps_are_written_below_the_folder_of_the_start() {
        for (path, root, expected) in [
            ("", "", ""),
            ("/maps/house", "", "/maps/house"),
            ("/maps/house.map", "", "/maps"),
            ("house.map", "", "."),
            ("/maps/house", "/maps", "/maps"),
        ] {
            let mut table = table();
            table.preset("map_path", &json!(path)).unwrap();
            table.preset("map_root", &json!(root)).unwrap();
            fix_map_root(&mut table).unwrap();
            assert_eq!(Settings::of(&table).map_root, expected, "{path} {root}");
            // A request cannot move it.
            let elsewhere = Value::Text("/etc".into()).to_message();
            assert!(table.change("map_root", &elsewhere, false).is_err());
            assert!(table.change("map_path", &elsewhere, true).is_ok());
        }
    }

    #[test]
    fn values_are_checked_and_taken_over() {
        let mut table = table();
        table.preset("max_rate", &json!(15)).unwrap();
        table.preset("device", &json!("cuda")).unwrap();
        table
            .preset("image_transport", &json!("compressed"))
            .unwrap();
        table.preset("autostart", &json!(false)).unwrap();
        let settings = Settings::of(&table);
        assert_eq!(
            (settings.max_rate, settings.device),
            (15.0, Some(DeviceChoice::Cuda))
        );
        assert_eq!(
            (settings.image_transport, settings.autostart),
            (Transport::Compressed, false)
        );
        for (name, value, part) in [
            ("max_rat", json!(1), "did you mean max_rate?"),
            ("max_rate", json!("fast"), "max_rate: expected a number"),
            ("max_rate", json!(-1), "from 0 to 1000"),
            ("max_rate", json!([1]), "an array"),
            ("device", json!("gpu"), "one of"),
            ("map_frame", json!("/map"), "without a leading /"),
            ("path_max_size", json!(1.5), "a whole number"),
        ] {
            let error = table.preset(name, &value).unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
        assert_eq!(
            Settings::of(&table),
            settings,
            "a refused value changed something"
        );
    }

    #[test]
    fn what_is_in_use_is_fixed() {
        let mut table = table();
        let cuda = ParameterValue {
            kind: STRING,
            string_value: "cuda".into(),
            ..Default::default()
        };
        assert!(
            table
                .change("device", &cuda, true)
                .unwrap_err()
                .to_string()
                .contains("unconfigured")
        );
        assert!(table.change("device", &cuda, false).is_ok());
        let off = Value::Bool(false).to_message();
        assert!(table.change("autostart", &off, false).is_err());
        assert!(table.change("publish_map_to_odom_tf", &off, true).is_ok());
        let unset = ParameterValue::default();
        assert!(
            table
                .change("max_rate", &unset, false)
                .unwrap_err()
                .to_string()
                .contains("no value")
        );
    }

    #[test]
    fn descriptors_say_what_is_allowed() {
        let table = table();
        let rate = table.get("max_rate").unwrap().0.descriptor();
        assert_eq!(rate.floating_point_range[0].to_value, 1000.0);
        let device = table.get("device").unwrap().0.descriptor();
        assert!(
            device.additional_constraints.contains("cuda")
                && device.additional_constraints.contains("unconfigured")
        );
        assert!(table.get("autostart").unwrap().0.descriptor().read_only);
    }
}

//! What the parameters say, typed.

use super::parameters::{Change, Constraint, Definition, Table, Value};
use crate::config::{DeviceChoice, Threads};
use crate::ros::middleware::Qos;

/// How images come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `sensor_msgs/Image`
    Raw,
    /// `sensor_msgs/CompressedImage`
    Compressed,
}

/// The node's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// YAML file or built-in name; empty: that of the weights.
    pub config: String,
    /// Empty: the bundled model.
    pub weights: String,
    /// Runtime of the network; empty: what the configuration says.
    pub engine: String,
    /// Empty: what the configuration says.
    pub device: Option<DeviceChoice>,
    /// Empty: what the configuration says.
    pub threads: Option<Threads>,
    /// 0: what the configuration says.
    pub keyframe_capacity: usize,
    /// Frames.
    pub map_frame: String,
    /// Frames.
    pub odom_frame: String,
    /// Empty: the camera's optical frame is the robot.
    pub base_frame: String,
    /// Empty: the one that the images name.
    pub camera_optical_frame: String,
    /// Whether `map -> odom` is broadcast.
    pub publish_map_to_odom_tf: bool,
    /// Whether `odom -> base` is ours; otherwise it is somebody else's and is read from `/tf`.
    pub publish_odom_to_base_tf: bool,
    /// Whether odometry goes on while lost.
    pub publish_when_lost: bool,
    /// How images come.
    pub transport: Transport,
    /// Of the images.
    pub image_qos: Qos,
    /// Of the calibration.
    pub camera_info_qos: Qos,
    /// Images per second that are looked at; 0: all.
    pub max_rate: f64,
    /// Whether the calibration is used.
    pub use_calibration: bool,
    /// Where the map is saved and loaded from.
    pub map_path: String,
    /// Whether to go on with the map in `map_path`.
    pub load_map_on_start: bool,
    /// Whether the map only serves to find the camera in.
    pub localization_only: bool,
    /// Metres; 0: every point.
    pub map_voxel_size: f64,
    /// Seconds.
    pub map_publish_period: f64,
    /// Poses; 0: all.
    pub path_max_size: usize,
    /// Bytes; 0: one message.
    pub cloud_chunk_bytes: usize,
    /// Whether time comes from `/clock`.
    pub use_sim_time: bool,
    /// Whether the node configures and activates itself.
    pub autostart: bool,
}

const QOS: &[&str] = &["sensor_data", "reliable"];

/// Every parameter of the node.
pub fn definitions() -> Vec<Definition> {
    use Change::{Always, Never, Unconfigured};
    use Constraint::{Double, Frame, Integer, OneOf};
    let text = |v: &str| Value::Text(v.into());
    let all = [
        (
            "config",
            text(""),
            Constraint::None,
            Unconfigured,
            "SLAM configuration: a YAML file or a built-in name (base, calib, ...); empty: the one that belongs to the weights",
        ),
        (
            "weights",
            text(""),
            Constraint::None,
            Unconfigured,
            "network weights (.pth or .safetensors); empty: the bundled model",
        ),
        (
            "engine",
            text(""),
            OneOf(&["", "auto", "cpu", "onnxruntime", "tensorrt"]),
            Unconfigured,
            "what runs the network; empty: what the configuration says",
        ),
        (
            "device",
            text(""),
            OneOf(&["", "auto", "cpu", "cuda"]),
            Unconfigured,
            "what SLAM runs on; empty: what the configuration says",
        ),
        (
            "threads",
            text(""),
            OneOf(&["", "pipelined", "single"]),
            Unconfigured,
            "pipelined: mapping in its own thread; single: everything in order; empty: what the configuration says",
        ),
        (
            "keyframe_capacity",
            Value::Integer(0),
            Integer(0, 1_000_000),
            Unconfigured,
            "keyframes that the map may hold; 0: what the configuration says",
        ),
        (
            "map_frame",
            text("map"),
            Frame,
            Unconfigured,
            "frame of the map",
        ),
        (
            "odom_frame",
            text("odom"),
            Frame,
            Unconfigured,
            "frame of the odometry",
        ),
        (
            "base_frame",
            text("base_link"),
            Constraint::None,
            Unconfigured,
            "frame of the robot; its transform to the camera is read from /tf_static; empty: the camera's optical frame itself",
        ),
        (
            "camera_optical_frame",
            text(""),
            Constraint::None,
            Unconfigured,
            "the camera's optical frame; empty: the one that the images' headers name",
        ),
        (
            "publish_map_to_odom_tf",
            Value::Bool(true),
            Constraint::None,
            Always,
            "broadcast map -> odom",
        ),
        (
            "publish_odom_to_base_tf",
            Value::Bool(true),
            Constraint::None,
            Unconfigured,
            "broadcast odom -> base; false: it is somebody else's and is read from /tf",
        ),
        (
            "publish_when_lost",
            Value::Bool(false),
            Constraint::None,
            Always,
            "while lost, go on publishing the last odometry with growing covariance",
        ),
        (
            "image_transport",
            text("raw"),
            OneOf(&["raw", "compressed"]),
            Unconfigured,
            "raw: subscribe to image; compressed: to image/compressed",
        ),
        (
            "image_qos",
            text("sensor_data"),
            OneOf(QOS),
            Unconfigured,
            "quality of service of the images",
        ),
        (
            "camera_info_qos",
            text("sensor_data"),
            OneOf(QOS),
            Unconfigured,
            "quality of service of camera_info",
        ),
        (
            "max_rate",
            Value::Double(0.0),
            Double(0.0, 1000.0),
            Always,
            "images per second that are looked at, by their stamps; 0: all",
        ),
        (
            "use_calibration",
            Value::Bool(true),
            Constraint::None,
            Unconfigured,
            "wait for camera_info and use it; false: estimate everything from the images",
        ),
        (
            "map_path",
            text(""),
            Constraint::None,
            Always,
            "folder (or file that ends in .map) that ~/save_map writes to and ~/load_map reads",
        ),
        (
            "load_map_on_start",
            Value::Bool(false),
            Constraint::None,
            Unconfigured,
            "go on with the map in map_path when images come",
        ),
        (
            "localization_only",
            Value::Bool(false),
            Constraint::None,
            Always,
            "find the camera in the map and change nothing in it",
        ),
        (
            "map_voxel_size",
            Value::Double(0.05),
            Double(0.0, 10.0),
            Always,
            "edge of the voxels of which the published clouds keep one point each, in metres; 0: every point",
        ),
        (
            "map_publish_period",
            Value::Double(2.0),
            Double(0.1, 3600.0),
            Always,
            "least time between two publications of ~/map_points, in seconds",
        ),
        (
            "path_max_size",
            Value::Integer(0),
            Integer(0, 1_000_000),
            Always,
            "poses of ~/path, the newest; 0: all",
        ),
        (
            "cloud_chunk_bytes",
            Value::Integer(65_536),
            Integer(0, 1 << 30),
            Always,
            "largest message of a cloud; 0: one message for a whole cloud, for networks that are set up for it",
        ),
        (
            "use_sim_time",
            Value::Bool(false),
            Constraint::None,
            Unconfigured,
            "take the time from /clock",
        ),
        (
            "autostart",
            Value::Bool(true),
            Constraint::None,
            Never,
            "configure and activate at start; false: a lifecycle manager does",
        ),
    ];
    let definition = |(name, default, constraint, change, description)| Definition {
        name,
        default,
        description,
        constraint,
        change,
    };
    all.into_iter().map(definition).collect()
}

impl Settings {
    /// From the parameters, which are all there and of their type.
    pub fn of(table: &Table) -> Self {
        let qos = |name| match table.text(name).as_str() {
            "reliable" => Qos::reliable(2),
            _ => Qos::sensor_data(1),
        };
        Self {
            config: table.text("config"),
            weights: table.text("weights"),
            engine: table.text("engine"),
            device: match table.text("device").as_str() {
                "auto" => Some(DeviceChoice::Auto),
                "cpu" => Some(DeviceChoice::Cpu),
                "cuda" => Some(DeviceChoice::Cuda),
                _ => None,
            },
            threads: match table.text("threads").as_str() {
                "single" => Some(Threads::Single),
                "pipelined" => Some(Threads::Pipelined),
                _ => None,
            },
            keyframe_capacity: table.count("keyframe_capacity"),
            map_frame: table.text("map_frame"),
            odom_frame: table.text("odom_frame"),
            base_frame: table.text("base_frame"),
            camera_optical_frame: table.text("camera_optical_frame"),
            publish_map_to_odom_tf: table.flag("publish_map_to_odom_tf"),
            publish_odom_to_base_tf: table.flag("publish_odom_to_base_tf"),
            publish_when_lost: table.flag("publish_when_lost"),
            transport: match table.text("image_transport").as_str() {
                "compressed" => Transport::Compressed,
                _ => Transport::Raw,
            },
            image_qos: qos("image_qos"),
            camera_info_qos: qos("camera_info_qos"),
            max_rate: table.number("max_rate"),
            use_calibration: table.flag("use_calibration"),
            map_path: table.text("map_path"),
            load_map_on_start: table.flag("load_map_on_start"),
            localization_only: table.flag("localization_only"),
            map_voxel_size: table.number("map_voxel_size"),
            map_publish_period: table.number("map_publish_period"),
            path_max_size: table.count("path_max_size"),
            cloud_chunk_bytes: table.count("cloud_chunk_bytes"),
            use_sim_time: table.flag("use_sim_time"),
            autostart: table.flag("autostart"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ros::messages::parameter::{ParameterValue, STRING};
    use serde_json::json;

    fn table() -> Table {
        Table::new(definitions())
    }

    #[test]
    fn defaults_keep_their_own_rules() {
        let mut table = table();
        let names: Vec<_> = table.names().collect();
        for name in names {
            let value = table.get(name).unwrap().1.to_message();
            assert_eq!(
                table.change(name, &value, true).map(|_| ()),
                Ok(()),
                "{name}"
            );
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
            (settings.transport, settings.autostart),
            (Transport::Compressed, false)
        );
        for (name, value, part) in [
            ("max_rat", json!(1), "did you mean max_rate?"),
            ("max_rate", json!("fast"), "max_rate is a number"),
            ("max_rate", json!(-1), "from 0 to 1000"),
            ("max_rate", json!([1]), "an array"),
            ("device", json!("gpu"), "one of"),
            ("map_frame", json!("/map"), "without / in front"),
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

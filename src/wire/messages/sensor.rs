//! sensor_msgs. Images borrow their pixels from the received payload.

use super::geometry::{Orientation, Vector3};
use super::{Header, messages};
use serde_bytes::{ByteBuf, Bytes};

/// `PointField::FLOAT32`
pub const FLOAT32: u8 = 7;
/// `PointField::UINT32`
pub const UINT32: u8 = 6;

messages! {
    /// A raw image. `step` is the bytes from row to row.
    Image<'a> = "sensor_msgs/msg/Image" {
        header: Header,
        height: u32,
        width: u32,
        encoding: String,
        is_bigendian: u8,
        step: u32,
        #[serde(borrow)]
        data: &'a Bytes,
    }
    /// A JPEG or PNG file in a message.
    CompressedImage<'a> = "sensor_msgs/msg/CompressedImage" {
        header: Header,
        format: String,
        #[serde(borrow)]
        data: &'a Bytes,
    }
    RegionOfInterest = "sensor_msgs/msg/RegionOfInterest" {
        x_offset: u32,
        y_offset: u32,
        height: u32,
        width: u32,
        do_rectify: bool,
    }
    CameraInfo = "sensor_msgs/msg/CameraInfo" {
        header: Header,
        height: u32,
        width: u32,
        distortion_model: String,
        d: Vec<f64>,
        k: [f64; 9],
        r: [f64; 9],
        p: [f64; 12],
        binning_x: u32,
        binning_y: u32,
        roi: RegionOfInterest,
    }
    PointField = "sensor_msgs/msg/PointField" [
        "uint8 INT8=1", "uint8 UINT8=2", "uint8 INT16=3", "uint8 UINT16=4", "uint8 INT32=5", "uint8 UINT32=6",
        "uint8 FLOAT32=7", "uint8 FLOAT64=8",
    ] { name: String, offset: u32, datatype: u8, count: u32 }
    PointCloud2 = "sensor_msgs/msg/PointCloud2" {
        header: Header,
        height: u32,
        width: u32,
        fields: Vec<PointField>,
        is_bigendian: bool,
        point_step: u32,
        row_step: u32,
        data: ByteBuf,
        is_dense: bool,
    }
    /// Rates about the axes of the sensor in rad/s, accelerations in m/s². The first element of a covariance is -1 where
    /// the sensor does not measure that.
    Imu = "sensor_msgs/msg/Imu" {
        header: Header,
        orientation: Orientation,
        orientation_covariance: [f64; 9],
        angular_velocity: Vector3,
        angular_velocity_covariance: [f64; 9],
        linear_acceleration: Vector3,
        linear_acceleration_covariance: [f64; 9],
    }
}

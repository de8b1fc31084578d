//! sensor_msgs. Images borrow their pixels from the payload that they came in.

use super::{Header, Message, messages};
use serde::{Deserialize, Serialize};
use serde_bytes::{ByteBuf, Bytes};

/// `PointField::FLOAT32`
pub const FLOAT32: u8 = 7;
/// `PointField::UINT32`
pub const UINT32: u8 = 6;

/// A raw image. `step` is the bytes from row to row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Image<'a> {
    pub header: Header,
    pub height: u32,
    pub width: u32,
    pub encoding: String,
    pub is_bigendian: u8,
    pub step: u32,
    #[serde(borrow)]
    pub data: &'a Bytes,
}

impl Message for Image<'_> {
    const TYPE: &'static str = "sensor_msgs/msg/Image";
}

/// A JPEG or PNG file in a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CompressedImage<'a> {
    pub header: Header,
    pub format: String,
    #[serde(borrow)]
    pub data: &'a Bytes,
}

impl Message for CompressedImage<'_> {
    const TYPE: &'static str = "sensor_msgs/msg/CompressedImage";
}

messages! {
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
    PointField = "sensor_msgs/msg/PointField" { name: String, offset: u32, datatype: u8, count: u32 }
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
}

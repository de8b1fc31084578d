//! visualization_msgs, as of Humble and later.

use super::geometry::{Point, Pose, Vector3};
use super::{ColorRgba, Duration, Header, Time, messages};
use serde_bytes::ByteBuf;

/// `Marker::LINE_LIST`: a line between every two consecutive points.
pub const LINE_LIST: i32 = 5;
/// `Marker::SPHERE_LIST`: a sphere at each point.
pub const SPHERE_LIST: i32 = 7;
/// `Marker::ADD`, which also replaces an existing marker.
pub const ADD: i32 = 0;

messages! {
    Uv = "visualization_msgs/msg/UVCoordinate" { u: f32, v: f32 }
    MeshFile = "visualization_msgs/msg/MeshFile" { filename: String, data: ByteBuf }
    CompressedTexture = "sensor_msgs/msg/CompressedImage" {
        header: Header,
        format: String,
        data: ByteBuf,
    }
    Marker = "visualization_msgs/msg/Marker" {
        header: Header,
        ns: String,
        id: i32,
        kind as "type": i32,
        action: i32,
        pose: Pose,
        scale: Vector3,
        color: ColorRgba,
        lifetime: Duration,
        frame_locked: bool,
        points: Vec<Point>,
        colors: Vec<ColorRgba>,
        texture_resource: String,
        texture: CompressedTexture,
        uv_coordinates: Vec<Uv>,
        text: String,
        mesh_resource: String,
        mesh_file: MeshFile,
        mesh_use_embedded_materials: bool,
    }
    MarkerArray = "visualization_msgs/msg/MarkerArray" { markers: Vec<Marker> }
}

/// The stamp of markers that are shown regardless of time.
pub fn always() -> Time {
    Time::default()
}

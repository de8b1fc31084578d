//! Point clouds as messages, split into chunks that any DDS peer with default settings can receive.

use crate::map::CloudPoint;
use crate::wire::messages::Header;
use crate::wire::messages::sensor::{FLOAT32, PointCloud2, PointField, UINT32};
use serde_bytes::ByteBuf;

/// Bytes per point: x, y, z, rgb, confidence, keyframe, revision, four each.
pub const POINT_BYTES: usize = 28;

/// Bytes per message in addition to its points, with a long frame name.
const OVERHEAD: usize = 512;

/// A point and its keyframe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The point, in the frame of the message.
    pub point: CloudPoint,
    pub keyframe: u32,
}

/// The messages of a cloud, each of at most `chunk_bytes` (0 for a single message), with at least
/// one point each. An empty cloud is one empty message, which clears the display.
pub fn chunks(
    header: &Header,
    points: &[Point],
    revision: u32,
    chunk_bytes: usize,
) -> impl Iterator<Item = PointCloud2> {
    let per_chunk = match chunk_bytes {
        0 => points.len().max(1),
        bytes => (bytes.saturating_sub(OVERHEAD) / POINT_BYTES).max(1),
    };
    let count = points.len().div_ceil(per_chunk).max(1);
    (0..count).map(move |k| {
        let from = (k * per_chunk).min(points.len());
        let to = (from + per_chunk).min(points.len());
        message(
            header.clone(),
            points.get(from..to).unwrap_or_default(),
            revision,
        )
    })
}

fn message(header: Header, points: &[Point], revision: u32) -> PointCloud2 {
    let mut data = Vec::with_capacity(points.len() * POINT_BYTES);
    for Point { point, keyframe } in points {
        for v in point.position {
            data.extend_from_slice(&v.to_le_bytes());
        }
        let [r, g, b] = point.color;
        // PCL's packed colour, also supported by RViz: 0x00RRGGBB in the bytes of a float.
        data.extend_from_slice(&[b, g, r, 0]);
        data.extend_from_slice(&point.confidence.to_le_bytes());
        data.extend_from_slice(&keyframe.to_le_bytes());
        data.extend_from_slice(&revision.to_le_bytes());
    }
    let bytes = data.len() as u32;
    PointCloud2 {
        header,
        height: 1,
        width: points.len() as u32,
        fields: fields(),
        is_bigendian: false,
        point_step: POINT_BYTES as u32,
        row_step: bytes,
        data: ByteBuf::from(data),
        is_dense: true,
    }
}

fn fields() -> Vec<PointField> {
    let names = [
        ("x", FLOAT32),
        ("y", FLOAT32),
        ("z", FLOAT32),
        ("rgb", FLOAT32),
        ("confidence", FLOAT32),
        ("keyframe", UINT32),
        ("revision", UINT32),
    ];
    let field = |(k, (name, datatype)): (usize, (&str, u8))| PointField {
        name: name.into(),
        offset: 4 * k as u32,
        datatype,
        count: 1,
    };
    names.into_iter().enumerate().map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Stamp;
    use crate::wire::messages::Message;

    fn points(n: usize) -> Vec<Point> {
        let point = |k| Point {
            point: CloudPoint {
                position: [k as f32, 0.5, -1.0],
                color: [1, 2, 3],
                confidence: 2.5,
            },
            keyframe: 9,
        };
        (0..n).map(point).collect()
    }

    #[test]
    fn every_point_is_in_one_chunk_and_none_is_too_large() {
        let header = Header::new(Stamp::default(), "map");
        for (n, bytes) in [
            (0, 65_536),
            (1, 65_536),
            (2322, 65_536),
            (2323, 65_536),
            (10_000, 65_536),
            (5, 1),
            (10_000, 0),
        ] {
            let messages: Vec<_> = chunks(&header, &points(n), 7, bytes).collect();
            let total: u32 = messages.iter().map(|m| m.width).sum();
            assert_eq!(total as usize, n);
            for message in &messages {
                assert_eq!(message.data.len(), message.width as usize * POINT_BYTES);
                let encoded = message.encode().unwrap().len();
                assert!(
                    bytes == 0 || message.width <= 1 || encoded <= bytes,
                    "{encoded} > {bytes}"
                );
            }
            assert_eq!(
                messages.len() == 1,
                bytes == 0 || n <= 2322 && bytes == 65_536
            );
        }
    }

    #[test]
    fn a_point_is_laid_out_as_its_fields_say() {
        let header = Header::new(Stamp::default(), "map");
        let message = chunks(&header, &points(3), 7, 0).next().unwrap();
        let at = |name: &str| {
            let field = message.fields.iter().find(|f| f.name == name).unwrap();
            let start = 2 * POINT_BYTES + field.offset as usize;
            <[u8; 4]>::try_from(&message.data[start..start + 4]).unwrap()
        };
        assert_eq!(f32::from_le_bytes(at("x")), 2.0);
        assert_eq!(f32::from_le_bytes(at("z")), -1.0);
        assert_eq!(u32::from_le_bytes(at("rgb")), 0x01_0203);
        assert_eq!(f32::from_le_bytes(at("confidence")), 2.5);
        assert_eq!(u32::from_le_bytes(at("keyframe")), 9);
        assert_eq!(u32::from_le_bytes(at("revision")), 7);
    }
}

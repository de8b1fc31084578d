//! The messages that a page reads, from the server or from a report: a kind, the length of what follows in bytes, and
//! that; little endian throughout. `messages.js` reads them.

use super::Cloud;
use crate::geometry::Sim3;
use nalgebra::Vector3;

/// The camera was lost at a position of the trail.
pub const LOST: u8 = 1;
/// Nothing connects a position of the trail with the one before.
pub const BREAK: u8 = 2;

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// JSON: which program this is.
    Hello = 1,
    /// JSON: `/status`.
    State = 2,
    /// The camera's image and matches.
    Image = 3,
    /// Keyframes and loops.
    Graph = 4,
    /// Points of a keyframe.
    Cloud = 5,
    /// Positions of the camera.
    Trail = 6,
    /// An occupancy grid.
    Grid = 7,
    /// JSON: the program ends.
    End = 8,
}

/// A keyframe of a graph.
#[derive(Debug, Clone, Copy)]
pub struct GraphKeyframe {
    pub id: u32,
    pub submap: u32,
    pub world_from_camera: Sim3,
}

/// A message whose content `fill` appends.
pub fn message(kind: Kind, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![kind as u8, 0, 0, 0, 0];
    fill(&mut out);
    // No message comes near 4 GiB: all of their parts have bounds.
    let length = (out.len() - 5) as u32;
    if let Some(place) = out.get_mut(1..5) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    out
}

/// Appends a whole number.
pub fn put(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_floats(out: &mut Vec<u8>, values: impl IntoIterator<Item = f64>) {
    for value in values {
        out.extend_from_slice(&(value as f32).to_le_bytes());
    }
}

/// A message of text.
pub fn text(kind: Kind, value: &str) -> Vec<u8> {
    message(kind, |out| out.extend_from_slice(value.as_bytes()))
}

/// The map's graph: number of the map, keyframes, loops; of each keyframe its id, its submap and its pose (position,
/// quaternion x y z w, scale); of each loop two ids.
pub fn graph(map: u64, keyframes: &[GraphKeyframe], loops: &[(u32, u32)]) -> Vec<u8> {
    message(Kind::Graph, |out| {
        for value in [map, keyframes.len() as u64, loops.len() as u64] {
            put(out, value as u32);
        }
        for keyframe in keyframes {
            put(out, keyframe.id);
            put(out, keyframe.submap);
            put_floats(out, keyframe.world_from_camera.to_array());
        }
        for (i, j) in loops {
            put(out, *i);
            put(out, *j);
        }
    })
}

/// Points of a keyframe: id, revision, and [`Cloud::write`].
pub fn cloud(id: u32, revision: u32, cloud: &Cloud) -> Vec<u8> {
    message(Kind::Cloud, |out| {
        put(out, id);
        put(out, revision);
        cloud.write(out);
    })
}

/// Positions from number `start` on, which replace all from there: `start`, the number of them, their coordinates, and
/// a byte of flags for each.
pub fn trail(start: usize, points: &[(Vector3<f64>, u8)]) -> Vec<u8> {
    message(Kind::Trail, |out| {
        put(out, start as u32);
        put(out, points.len() as u32);
        put_floats(out, points.iter().flat_map(|(p, _)| [p.x, p.y, p.z]));
        out.extend(points.iter().map(|(_, flags)| flags));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_its_kind_and_length() {
        assert_eq!(text(Kind::State, "{}"), b"\x02\x02\0\0\0{}");
        let one = GraphKeyframe {
            id: 7,
            submap: 1,
            world_from_camera: Sim3::identity(),
        };
        let bytes = graph(3, &[one], &[(7, 8)]);
        assert_eq!((bytes[0], bytes[1] as usize), (4, bytes.len() - 5));
        assert_eq!(bytes.len() - 5, 12 + 40 + 8);
        assert_eq!(bytes[bytes.len() - 4..], [8, 0, 0, 0]);
        assert_eq!(trail(2, &[(Vector3::zeros(), LOST)]).len(), 5 + 8 + 13);
    }
}

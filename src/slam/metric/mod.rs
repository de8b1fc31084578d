//! Metres: what sensors say about the scale of the map.

pub mod depth;
pub mod scale;

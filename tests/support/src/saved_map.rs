//! Parts of a map of eight pixels that is saved at once.

use mast3r_slam::compute::device::{ContentFormats, Floats, KeyframeContent};
use mast3r_slam::compute::store::FloatFormat;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::map::saved::{Header, ImageShape, SavedKeyframe};
use mast3r_slam::time::Stamp;

/// Pixels of an image.
pub const PIXELS: usize = 8;

/// The header of a map of two keyframes and an edge.
pub fn header() -> Header {
    Header {
        program: "mast3r_slam".to_owned(),
        weights: "ab".repeat(32),
        shape: ImageShape {
            width: 4,
            height: 2,
            tokens: 1,
            channels: 2,
        },
        formats: ContentFormats {
            confidence: FloatFormat::F32,
            features: FloatFormat::F32,
        },
        intrinsics: None,
        map_from_world: None,
        keyframes: 2,
        edges: 1,
        solved_edges: 1,
        factors: 0,
    }
}

/// What is stored for a keyframe.
pub fn keyframe_content() -> KeyframeContent {
    KeyframeContent {
        image: vec![9; 3 * PIXELS],
        points: vec![1.0; 3 * PIXELS],
        confidence: Floats::F32(vec![2.0; PIXELS]),
        features: Floats::F32(vec![0.5; 2]),
    }
}

/// A keyframe at the origin that no other one leads to.
pub fn keyframe(id: u32) -> SavedKeyframe {
    SavedKeyframe {
        id,
        submap: 0,
        frame_index: u64::from(id),
        stamp: Stamp { nanos: 1 },
        world_from_camera: Sim3::identity(),
        chain: None,
        content: keyframe_content(),
    }
}

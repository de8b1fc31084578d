//! Matches in a map file that is saved at once: the format has a flag of each, memory has not.

use mast3r_slam::compute::device::{
    ContentFormats, EdgeContent, Floats, KeyframeContent, MatchContent,
};
use mast3r_slam::compute::store::FloatFormat;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::map::saved::{self, Header, ImageShape, Reader, SavedEdge, SavedKeyframe};
use mast3r_slam::time::Stamp;
use std::path::Path;

const PIXELS: usize = 8;
/// SHA-256 at the end of a file.
const CHECKSUM: usize = 32;

/// Writes a map of two keyframes and an edge with these qualities in both directions.
fn write(path: &Path, quality: [f32; PIXELS]) {
    let header = Header {
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
    };
    let keyframe = |id: u32| SavedKeyframe {
        id,
        submap: 0,
        frame_index: u64::from(id),
        stamp: Stamp { nanos: 1 },
        world_from_camera: Sim3::identity(),
        chain: None,
        content: KeyframeContent {
            image: vec![9; 3 * PIXELS],
            points: vec![1.0; 3 * PIXELS],
            confidence: Floats::F32(vec![2.0; PIXELS]),
            features: Floats::F32(vec![0.5; 2]),
        },
    };
    let way = MatchContent {
        index: (0..PIXELS as u32).rev().collect(),
        quality: quality.to_vec(),
    };
    let edge = SavedEdge {
        i: 0,
        j: 1,
        match_fraction: 0.5,
        content: EdgeContent {
            i_from_j: way.clone(),
            j_from_i: way,
        },
        ..SavedEdge::default()
    };
    saved::write(path, &header, |out| {
        out.keyframe(&keyframe(0))?;
        out.keyframe(&keyframe(1))?;
        out.edge(&edge)
    })
    .expect("a map");
}

fn read(path: &Path) -> EdgeContent {
    let mut reader = Reader::open(path).expect("a map");
    for _ in 0..2 {
        reader
            .keyframe(&mut SavedKeyframe::default())
            .expect("a keyframe");
    }
    let mut edge = SavedEdge::default();
    reader.edge(&mut edge).expect("an edge");
    edge.content
}

#[test]
fn a_match_without_its_flag_has_quality_zero() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.map");
    let tiny = f32::from_bits(1);
    let quality = [0.5, 0.0, 1.5, f32::NAN, tiny, -1.0, f32::INFINITY, -0.0];
    let flags = [1, 0, 1, 0, 1, 0, 1, 0];
    write(&path, quality);
    let mut bytes = std::fs::read(&path).expect("the file");
    // The last direction is the last of the file: indices, flags, qualities, then the checksum.
    let at = bytes.len() - CHECKSUM - 5 * PIXELS;
    assert_eq!(bytes[at..at + PIXELS], flags);
    let expected = [0.5, 0.0, 1.5, 0.0, tiny, 0.0, f32::INFINITY, 0.0];
    let content = read(&path);
    for way in [&content.i_from_j, &content.j_from_i] {
        assert_eq!(way.quality, expected);
        assert_eq!(way.index, [7, 6, 5, 4, 3, 2, 1, 0]);
    }
    // As another program may write it: any number but 0 is a flag, and the quality of no match means nothing.
    bytes[at] = 0;
    bytes[at + 2] = 200;
    std::fs::write(&path, &bytes).expect("written");
    let changed = read(&path);
    assert_eq!(changed.i_from_j, content.i_from_j);
    assert_eq!(changed.j_from_i.quality[..3], [0.0, 0.0, 1.5]);
}

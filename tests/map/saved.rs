//! Matches in a map file that is saved at once: the format has a flag of each, memory has not.

use mast3r_slam::compute::device::{EdgeContent, MatchContent};
use mast3r_slam::map::saved::{self, Reader, SavedEdge, SavedKeyframe};
use std::path::Path;
use testkit::saved_map::{PIXELS, header, keyframe};

/// SHA-256 at the end of a file.
const CHECKSUM: usize = 32;

/// Writes a map of two keyframes and an edge with these qualities in both directions.
fn write(path: &Path, quality: [f32; PIXELS]) {
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
    saved::write(path, &header(), |out| {
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

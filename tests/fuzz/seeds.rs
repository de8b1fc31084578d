//! Good inputs of each format: what the program writes itself, and small files of the repository.

use crate::targets;
use mast3r_slam::bag::BagWriter;
use mast3r_slam::compute::device::{EdgeContent, MatchContent};
use mast3r_slam::compute::global::{Matrix7, PoseFactor};
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::map::EdgeKind;
use mast3r_slam::map::saved::{self, Header, SavedChain, SavedEdge, SavedKeyframe};
use mast3r_slam::map::splat::{self, Format, Splat, Splats};
use mast3r_slam::map::store::{self, EdgeRow, Job, KeyframeRow, RemovedRow, Rest, State, Writer};
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::Qos;
use mast3r_slam::wire::messages::geometry::{TfMessage, TransformStamped};
use mast3r_slam::wire::messages::parameter::{Parameter, SetParametersRequest};
use mast3r_slam::wire::messages::sensor::{CameraInfo, Image};
use mast3r_slam::wire::messages::{Clock, Header as Stamped, Message};
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use testkit::saved_map::{self, keyframe_content};

/// The seeds of a target that need no file of their own.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "pth" => data("pth"),
        "pickle" | "codebook" => data("retrieval"),
        "safetensors" => vec![safetensors()],
        "map" => vec![map(false), map(true)],
        "store" => store(false),
        "packed" => store(true),
        "splat" => splats(),
        "mcap" => vec![mcap()],
        "cdr" => messages(),
        "yaml" => yaml(),
        "trajectory" => data("eval"),
        "camera" => cameras(),
        "image" => images(),
        "depth" => depths(),
        _ => Vec::new(),
    }
}

/// Splats in every format.
fn splats() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut seeds = Vec::new();
    for degree in [0, 1] {
        let mut splats = Splats::new(degree);
        for k in 0..300 {
            splats.push(&Splat {
                mean: [k as f32 * 0.01, 0.5, -0.1 * k as f32],
                dc: [0.1; 3],
                scale: [-3.0; 3],
                ..Splat::default()
            });
        }
        for format in [Format::Ply, Format::CompressedPly, Format::Spz] {
            let path = folder.path().join("splats");
            splat::write(&path, format, &mut splats).expect("a file");
            seeds.push(std::fs::read(&path).expect("a file"));
        }
    }
    seeds
}

/// Small files of a folder of the tests' data.
fn data(folder: &str) -> Vec<Vec<u8>> {
    let folder = testkit::repository("tests/data").join(folder);
    let entries = std::fs::read_dir(&folder).expect("the tests' data");
    let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| std::fs::read(path).expect("a file");
    let all = paths.iter().filter(|p| p.is_file()).map(read);
    all.filter(|data| data.len() < 1 << 18).collect()
}

fn written(name: &str, write: impl FnOnce(&Path)) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    write(&path);
    std::fs::read(path).expect("the file")
}

fn safetensors() -> Vec<u8> {
    let header = br#"{"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]}}"#;
    let mut all = (header.len() as u64).to_le_bytes().to_vec();
    all.extend_from_slice(header);
    all.extend_from_slice(&[7; 32]);
    all
}

fn edge_content() -> EdgeContent {
    let matches = MatchContent {
        index: (0..8).collect(),
        quality: vec![0.5; 8],
    };
    EdgeContent {
        i_from_j: matches.clone(),
        j_from_i: matches,
    }
}

fn factor() -> PoseFactor {
    PoseFactor {
        i: 0,
        j: 1,
        i_from_j: Sim3::identity(),
        information: Matrix7::identity(),
    }
}

/// A map that is written as it is made, or packed, as its rows and as its file.
fn store(packed: bool) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("seed.map");
    store::create(&path, &targets::store_header()).expect("a new map");
    let writer = Writer::open(&path).expect("the map");
    let keyframe = |id: u32| KeyframeRow {
        id,
        ..KeyframeRow::default()
    };
    let edge = EdgeRow {
        number: 0,
        i: 0,
        j: 1,
        kind: EdgeKind::Loop,
        match_fraction: 0.5,
    };
    let removed = RemovedRow {
        id: 2,
        keyframe: 1,
        keyframe_from_removed: Sim3::identity(),
    };
    writer.set_state(State {
        epoch: 0,
        keyframes: vec![keyframe(0), keyframe(1)],
        edges: vec![edge],
        factors: vec![factor()],
        removed: Arc::new(vec![removed]),
        rest: Rest {
            solved_edges: 1,
            map_from_world: None,
        },
    });
    for id in 0..2 {
        let content = Box::new(keyframe_content());
        let whole = true;
        assert!(writer.send(Job::Keyframe { id, whole, content }));
    }
    let content = Box::new(edge_content());
    assert!(writer.send(Job::Edge { number: 0, content }));
    writer.flush().expect("a map on the disk");
    drop(writer);
    let to = folder.path().join("packed.map");
    let path = match packed {
        true => store::pack(&path, &to, false).map(|_| to).expect("packed"),
        false => path,
    };
    let rows = rows(&path).expect("a database");
    vec![rows, std::fs::read(&path).expect("the file")]
}

/// All rows of a map without their checksums, as the target reads them.
fn rows(path: &Path) -> rusqlite::Result<Vec<u8>> {
    let database = Connection::open(path)?;
    let mut all = Vec::new();
    for (tag, table) in (0_u8..).zip(targets::TABLES) {
        let query = match tag {
            0 => "SELECT 0, content FROM meta WHERE name = 'header'".to_owned(),
            8 => "SELECT 0, content FROM meta WHERE name = 'state'".to_owned(),
            _ => format!("SELECT id, content FROM {table}"),
        };
        let mut statement = database.prepare(&query)?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let (key, content): (u32, Vec<u8>) = (row.get(0)?, row.get(1)?);
            let content = &content[..content.len() - 8];
            all.push(tag);
            all.extend(key.to_le_bytes());
            all.extend((content.len() as u16).to_le_bytes());
            all.extend(content);
        }
    }
    Ok(all)
}

fn map(calibrated: bool) -> Vec<u8> {
    let intrinsics = Intrinsics {
        fx: 4.0,
        fy: 4.0,
        cx: 1.5,
        cy: 0.5,
    };
    let header = Header {
        intrinsics: calibrated.then_some(intrinsics),
        factors: u32::from(calibrated),
        ..saved_map::header()
    };
    let keyframe = |id: u32| SavedKeyframe {
        chain: (id > 0).then(|| SavedChain {
            keyframe: id - 1,
            keyframe_from_camera: Sim3::identity(),
        }),
        ..saved_map::keyframe(id)
    };
    let edge = SavedEdge {
        i: 0,
        j: 1,
        match_fraction: 0.5,
        content: edge_content(),
        ..SavedEdge::default()
    };
    written("seed.map", |path| {
        saved::write(path, &header, |out| {
            out.keyframe(&keyframe(0))?;
            out.keyframe(&keyframe(1))?;
            out.edge(&edge)?;
            if calibrated {
                out.factor(&factor())?;
            }
            Ok::<(), saved::WriteError>(())
        })
        .expect("a map");
    })
}

fn header() -> Stamped {
    Stamped::new(
        Stamp {
            nanos: 1_000_000_007,
        },
        "camera",
    )
}

fn info() -> CameraInfo {
    CameraInfo {
        header: header(),
        width: 8,
        height: 6,
        distortion_model: "plumb_bob".into(),
        d: vec![0.1; 5],
        k: [8.0, 0.0, 3.5, 0.0, 8.0, 2.5, 0.0, 0.0, 1.0],
        ..CameraInfo::default()
    }
}

fn picture(data: &[u8]) -> Image<'_> {
    Image {
        header: header(),
        height: 6,
        width: 8,
        encoding: "rgb8".into(),
        is_bigendian: 0,
        step: 24,
        data: serde_bytes::Bytes::new(data),
    }
}

fn mcap() -> Vec<u8> {
    written("seed.mcap", |path| {
        let mut bag = BagWriter::create(path).expect("a bag");
        let pixels = [5; 144];
        let images = bag
            .topic::<Image<'_>>("/image", Qos::reliable(1))
            .expect("a topic");
        let infos = bag
            .topic::<CameraInfo>("/camera_info", Qos::reliable(1))
            .expect("a topic");
        for nanos in 1..4 {
            let time = Stamp { nanos };
            bag.write(images, time, &picture(&pixels))
                .expect("an image");
            bag.write(infos, time, &info()).expect("its camera");
        }
        bag.finish().expect("a bag");
    })
}

fn messages() -> Vec<Vec<u8>> {
    let pixels = [5; 144];
    let transforms = vec![TransformStamped {
        header: header(),
        child_frame_id: "base".into(),
        ..TransformStamped::default()
    }];
    let parameters = vec![Parameter {
        name: "map_path".into(),
        ..Parameter::default()
    }];
    let all = [
        picture(&pixels).encode(),
        info().encode(),
        TfMessage { transforms }.encode(),
        Clock::default().encode(),
        SetParametersRequest { parameters }.encode(),
    ];
    let plain = all.into_iter().map(|m| m.expect("a message"));
    plain
        .flat_map(|m| [0, 1].map(|order| [&[order], &m[..]].concat()))
        .collect()
}

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn yaml() -> Vec<Vec<u8>> {
    texts(&[
        "inherit: base\ntracking:\n  Q_conf: 0.5\n  max_iters: 12\nnetwork: {size: 256}\nuse_calib: true\n",
        "/**:\n  ros__parameters:\n    max_rate: 10.0\n    slam: {tracking: {Q_conf: 0.5}}\n    map_path: \"/maps/a\"\n",
        "rosbag2_bagfile_information:\n  version: 5\n  relative_file_paths: [plain.map]\n  topics_with_message_count:\n  - topic_metadata: {name: /image, type: sensor_msgs/msg/Image, serialization_format: cdr}\n    message_count: 3\n",
        "a: &a [1, 2]\nb: [*a, *a]\nc: |\n  text\n  more\n",
    ])
}

fn cameras() -> Vec<Vec<u8>> {
    texts(&[
        "width: 640\nheight: 480\ncalibration: [500, 500, 320, 240, 0.1, 0.0, 0.0, 0.0]\n",
        "width: 640\nheight: 480\nfx: 500\nfy: 500\ncx: 320\ncy: 240\nk1: 0.1\n",
        "image_width: 640\nimage_height: 480\ncamera_matrix: {rows: 3, cols: 3, data: [500, 0, 320, 0, 500, 240, 0, 0, 1]}\ndistortion_model: plumb_bob\ndistortion_coefficients: {rows: 1, cols: 5, data: [0.1, 0, 0, 0, 0]}\n",
        "resolution: [640, 480]\nintrinsics: [500, 500, 320, 240]\ndistortion_model: equidistant\ndistortion_coefficients: [0.1, 0, 0, 0]\n",
    ])
}

/// A grey image of 4 by 2 pixels in each format that a few lines can write.
/// A format, the header with two parameters, and a PNG or RVL image.
fn depths() -> Vec<Vec<u8>> {
    let mut png = std::io::Cursor::new(Vec::new());
    let made = image::ImageBuffer::from_fn(4, 2, |u, v| image::Luma([(1000 + 300 * u + v) as u16]));
    made.write_to(&mut png, image::ImageFormat::Png)
        .expect("in memory");
    let rvl = [4u32, 1, 0x22A1_4000].map(u32::to_le_bytes).concat();
    let message = |format: u8, packed: &[u8]| {
        let header = [
            0u32.to_le_bytes(),
            10_100f32.to_le_bytes(),
            (-1009f32).to_le_bytes(),
        ];
        [&[format][..], &header.concat(), packed].concat()
    };
    vec![
        message(0, png.get_ref()),
        message(1, png.get_ref()),
        message(2, &rvl),
        message(3, &rvl),
    ]
}

fn images() -> Vec<Vec<u8>> {
    let mut bmp = b"BM".to_vec();
    for value in [78u32, 0, 54, 40, 4, 2] {
        bmp.extend_from_slice(&value.to_le_bytes());
    }
    bmp.extend_from_slice(&[1, 0, 24, 0]);
    for value in [0u32, 24, 0, 0, 0, 0] {
        bmp.extend_from_slice(&value.to_le_bytes());
    }
    bmp.extend_from_slice(&[100; 24]);
    let pgm = [&b"P5\n4 2\n255\n"[..], &[100; 8]].concat();
    vec![bmp, pgm]
}

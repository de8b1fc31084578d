//! Bags that are damaged, or not what they should be: each is told as what it is, and what could be read was.

use super::support::{frames, open, open_named, pattern};
use mast3r_slam::bag::BagWriter;
use mast3r_slam::source::SourceFrame;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::Qos;
use mast3r_slam::wire::messages::Header;
use mast3r_slam::wire::messages::nav::Odometry;
use mast3r_slam::wire::messages::sensor::Image;
use rusqlite::Connection;
use serde_bytes::Bytes;
use std::path::{Path, PathBuf};

const TOPIC: &str = "/camera/image_raw";

/// The identity of an image in the bag.
#[derive(Clone, Copy)]
struct Shot {
    stamp: i64,
    width: u32,
    step: u32,
    bytes: usize,
    encoding: &'static str,
}

impl Default for Shot {
    fn default() -> Self {
        Self {
            stamp: 0,
            width: 40,
            step: 120,
            bytes: 120 * 30,
            encoding: "rgb8",
        }
    }
}

fn at(millis: i64) -> Shot {
    Shot {
        stamp: 1_000_000_000_000 + millis * 1_000_000,
        ..Shot::default()
    }
}

/// A bag of these images, which were recorded in this order at 10 Hz.
fn bag(folder: &Path, shots: &[Shot]) -> PathBuf {
    let path = folder.join("bag.mcap");
    let mut bag = BagWriter::create(&path).unwrap();
    let image = bag.topic::<Image<'_>>(TOPIC, Qos::reliable(10)).unwrap();
    for (k, shot) in shots.iter().enumerate() {
        let data = pattern(k, shot.bytes);
        let message = Image {
            header: Header::new(Stamp { nanos: shot.stamp }, "camera"),
            height: 30,
            width: shot.width,
            encoding: shot.encoding.to_owned(),
            is_bigendian: 0,
            step: shot.step,
            data: Bytes::new(&data),
        };
        let recorded = Stamp {
            nanos: 1_000_000_000_000 + k as i64 * 100_000_000,
        };
        bag.write(image, recorded, &message).unwrap();
    }
    assert_eq!(bag.finish().unwrap(), path);
    path
}

/// Many images: several chunks.
fn long(folder: &Path) -> (PathBuf, usize) {
    let count = 900;
    let shots: Vec<Shot> = (0..count).map(|k| at(100 * k)).collect();
    (bag(folder, &shots), count as usize)
}

fn assert_has(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn refused(path: &Path, parts: &[&str]) {
    let error = open(path).err().expect("a refusal");
    assert_has(&error, parts);
}

/// `good` images, then an error.
fn ends(path: &Path, good: usize, parts: &[&str]) {
    let mut source = open(path).expect("a beginning");
    let (got, error) = frames(source.as_mut());
    assert_eq!(got.len(), good);
    assert_has(&error.expect("an error"), parts);
}

#[test]
fn a_file_that_breaks_off_gives_what_is_whole() {
    let root = tempfile::tempdir().unwrap();
    let (path, count) = long(root.path());
    let bytes = std::fs::read(&path).unwrap();
    let mut counts = Vec::new();
    for percent in [5, 30, 60, 90] {
        std::fs::write(&path, &bytes[..bytes.len() * percent / 100]).unwrap();
        let mut source = match open(&path) {
            Ok(source) => source,
            // Not even the first chunk is whole.
            Err(error) => {
                assert_has(&error, &["bag.mcap", "complete MCAP file", "truncated"]);
                counts.push(0);
                continue;
            }
        };
        let (got, error) = frames(source.as_mut());
        assert_has(
            &error.expect("it is truncated"),
            &["bag.mcap", "complete MCAP file", "truncated"],
        );
        let rows = got.iter().enumerate();
        assert!(
            rows.into_iter()
                .all(|(k, frame)| frame.image.data == pattern(k, 3600)),
            "{percent} %"
        );
        counts.push(got.len());
    }
    assert!(counts.is_sorted(), "{counts:?}");
    assert!(counts[2] > count / 3 && counts[3] < count, "{counts:?}");
}

#[test]
fn a_damaged_chunk_ends_the_images_and_none_of_it_is_believed() {
    let root = tempfile::tempdir().unwrap();
    let (path, count) = long(root.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 64] {
        *byte ^= 0x55;
    }
    std::fs::write(&path, &bytes).unwrap();
    let mut source = open(&path).expect("the index is whole");
    assert_eq!(source.remaining(), Some(count));
    let (got, error) = frames(source.as_mut());
    assert_has(&error.expect("damage"), &["bag.mcap", "damage"]);
    assert!(!got.is_empty() && got.len() < count);
    let mut rows = got.iter().enumerate();
    assert!(rows.all(|(k, frame)| frame.image.data == pattern(k, 3600)));
}

#[test]
fn a_damaged_index_is_done_without() {
    let root = tempfile::tempdir().unwrap();
    let (path, count) = long(root.path());
    let whole = std::fs::read(&path).unwrap();
    let size = whole.len();
    // Footer: opcode, length, then where the index begins.
    let start = u64::from_le_bytes(whole[size - 28..size - 20].try_into().unwrap()) as usize;
    let mut nowhere = whole.clone();
    nowhere[size - 28..size - 20].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut garbage = whole.clone();
    garbage[start..size - 40].fill(0xEE);
    let mut none = whole.clone();
    none[size - 28..size - 20].fill(0);
    for (what, bytes) in [("nowhere", nowhere), ("garbage", garbage), ("none", none)] {
        std::fs::write(&path, bytes).unwrap();
        let mut source = open(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(source.remaining(), Some(count), "{what}");
        let (got, error) = frames(source.as_mut());
        assert_eq!((got.len(), error), (count, None), "{what}");
    }
}

#[test]
fn invalid_images_end_the_run_where_they_are() {
    let cases: [(Shot, &[&str]); 5] = [
        (
            Shot {
                encoding: "32FC1",
                ..at(300)
            },
            &[TOPIC, "1000.300000", "32FC1", "rgb8"],
        ),
        (
            Shot {
                bytes: 3599,
                ..at(300)
            },
            &[TOPIC, "1000.300000", "3600, found 3599"],
        ),
        (
            Shot {
                step: 100,
                ..at(300)
            },
            &["120, found 100"],
        ),
        (
            Shot {
                width: 0,
                ..at(300)
            },
            &["0×30", "1×1"],
        ),
        (
            Shot {
                width: 20,
                ..at(300)
            },
            &[TOPIC, "40×30", "20×30", "1000.300000"],
        ),
    ];
    for (bad, parts) in cases {
        let root = tempfile::tempdir().unwrap();
        let path = bag(root.path(), &[at(0), at(100), at(200), bad, at(400)]);
        ends(&path, 3, parts);
    }
}

#[test]
fn the_first_image_is_refused_at_once() {
    let root = tempfile::tempdir().unwrap();
    let bad = Shot {
        encoding: "jpeg2000",
        ..at(0)
    };
    refused(&bag(root.path(), &[bad, at(100)]), &["jpeg2000"]);
}

#[test]
fn stamps_are_put_in_order_and_repeated_ones_left_out() {
    let root = tempfile::tempdir().unwrap();
    let path = bag(
        root.path(),
        &[
            at(0),
            at(200),
            at(100),
            at(300),
            at(300),
            at(400),
            at(90),
            at(500),
        ],
    );
    let (got, error) = frames(open(&path).unwrap().as_mut());
    assert_eq!(error, None);
    let stamps: Vec<i64> = got
        .iter()
        .map(|f| f.stamp.nanos / 1_000_000 - 1_000_000)
        .collect();
    assert_eq!(stamps, [0, 100, 200, 300, 400, 500]);
    let indices: Vec<usize> = got.iter().map(|f| f.index).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    assert!(got[1].image.data == pattern(2, 3600));
}

#[test]
fn time_that_goes_back_for_good_is_another_run() {
    let root = tempfile::tempdir().unwrap();
    let shots: Vec<Shot> = (0..10).chain(0..10).map(|k| at(500 * k)).collect();
    let path = bag(root.path(), &shots);
    ends(&path, 10, &[TOPIC, "--start", "1004.500000"]);
}

#[test]
fn images_without_stamps_take_the_time_of_recording() {
    let root = tempfile::tempdir().unwrap();
    let path = bag(root.path(), &[Shot::default(); 4]);
    let (got, error) = frames(open(&path).unwrap().as_mut());
    assert_eq!(error, None);
    let stamps: Vec<i64> = got.iter().map(|f| f.stamp.nanos / 100_000_000).collect();
    assert_eq!(stamps, [10_000, 10_001, 10_002, 10_003]);
}

#[test]
fn bags_without_images_are_told_by_what_they_hold() {
    let root = tempfile::tempdir().unwrap();
    // No image on the topic.
    refused(
        &bag(root.path(), &[]),
        &["no message", "sensor_msgs/msg/Image"],
    );
    // No such topic.
    let path = root.path().join("odometry.mcap");
    let mut other = BagWriter::create(&path).unwrap();
    let odometry = other.topic::<Odometry>("/odom", Qos::reliable(1)).unwrap();
    other
        .write(odometry, Stamp::default(), &Odometry::default())
        .unwrap();
    other.finish().unwrap();
    refused(&path, &["/odom (nav_msgs/msg/Odometry)"]);
    let error = open_named(&path, "/odom").err().expect("no images");
    assert_has(&error, &["sensor_msgs/msg/Image", "nav_msgs/msg/Odometry"]);
    // Nothing at all.
    let path = root.path().join("empty.mcap");
    BagWriter::create(&path).unwrap().finish().unwrap();
    refused(&path, &["no topics at all"]);
}

#[test]
fn several_cameras_are_named() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("two.mcap");
    let mut bag = BagWriter::create(&path).unwrap();
    for (k, name) in ["/left/image", "/right/image"].into_iter().enumerate() {
        let topic = bag.topic::<Image<'_>>(name, Qos::reliable(1)).unwrap();
        let data = pattern(k, 12);
        let message = Image {
            header: Header::new(Stamp { nanos: 5 }, name),
            height: 2,
            width: 2,
            encoding: "rgb8".to_owned(),
            is_bigendian: 0,
            step: 6,
            data: Bytes::new(&data),
        };
        bag.write(topic, Stamp { nanos: 5 }, &message).unwrap();
    }
    bag.finish().unwrap();
    refused(&path, &["--image-topic", "/left/image, /right/image"]);
    let mut source = open_named(&path, "right/image").unwrap();
    assert_eq!(source.camera_frame(), Some("/right/image"));
    let (got, error) = frames(source.as_mut());
    assert_eq!((got.len(), error), (1, None));
    assert!(got[0].image.data == pattern(1, 12));
    let error = open_named(&path, "/middle").err().expect("not there");
    assert_has(&error, &["/middle", "/left/image", "/right/image"]);
}

#[test]
fn files_of_other_kinds_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let cases: [(&str, &[u8], &[&str]); 5] = [
        ("empty.mcap", b"", &["an empty file"]),
        ("empty.db3", b"", &["an empty file"]),
        ("text.mcap", b"just text, no bag", &["another kind"]),
        ("old.db3", b"#ROSBAG V2.0\n", &["ROS 1", "rosbags-convert"]),
        (
            "magic.mcap",
            b"\x89MCAP0\r\n",
            &["complete MCAP file", "truncated"],
        ),
    ];
    for (name, content, parts) in cases {
        let path = root.path().join(name);
        std::fs::write(&path, content).unwrap();
        refused(&path, parts);
        refused(&path, &[name]);
    }
    let path = root.path().join("other.db3");
    let database = Connection::open(&path).unwrap();
    database
        .execute("CREATE TABLE cats (name TEXT)", [])
        .unwrap();
    drop(database);
    refused(&path, &["other.db3", "topics and messages"]);
}

#[test]
fn folders_that_promise_what_they_do_not_hold_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let metadata = root.path().join("metadata.yaml");
    let head = "rosbag2_bagfile_information:\n  version: 5\n";
    let cases: [(&str, &[&str]); 4] = [
        (
            "  relative_file_paths: [gone_0.mcap]\n",
            &["metadata.yaml", "gone_0.mcap"],
        ),
        (
            "  relative_file_paths: []\n",
            &["metadata.yaml", "no relative_file_paths"],
        ),
        (
            "  relative_file_paths: {{{\n",
            &["metadata.yaml", "remove the file"],
        ),
        (
            "  relative_file_paths: [a.mcap]\n  compression_format: lz5\n",
            &["lz5", "zstd"],
        ),
    ];
    for (rest, parts) in cases {
        std::fs::write(&metadata, format!("{head}{rest}")).unwrap();
        refused(root.path(), parts);
    }
    // Another program's metadata.yaml makes no bag of a folder.
    std::fs::write(&metadata, "author: me\n").unwrap();
    refused(root.path(), &["images", "ROS 2 bag"]);
}

/// A database as rosbag2 writes it, of `count` images.
fn database(path: &Path, count: usize) {
    let database = Connection::open(path).unwrap();
    let schema = "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, \
                  serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL); \
                  CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, \
                  timestamp INTEGER NOT NULL, data BLOB NOT NULL); \
                  CREATE INDEX timestamp_idx ON messages (timestamp ASC); \
                  INSERT INTO topics VALUES (1, '/camera/image_raw', 'sensor_msgs/msg/Image', 'cdr', '');";
    database.execute_batch(schema).unwrap();
    use mast3r_slam::wire::messages::Message;
    for k in 0..count {
        let data = pattern(k, 3600);
        let message = Image {
            header: Header::new(
                Stamp {
                    nanos: 1 + k as i64,
                },
                "camera",
            ),
            height: 30,
            width: 40,
            encoding: "rgb8".to_owned(),
            is_bigendian: 0,
            step: 120,
            data: Bytes::new(&data),
        };
        let mut cdr = vec![0, 1, 0, 0];
        cdr.extend_from_slice(&message.encode().unwrap());
        database
            .execute(
                "INSERT INTO messages VALUES (?1, 1, ?1, ?2)",
                (k as i64, cdr),
            )
            .unwrap();
    }
}

#[test]
fn a_database_that_breaks_off_gives_what_is_whole() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("bag.db3");
    database(&path, 60);
    let (got, error) = frames(open(&path).unwrap().as_mut());
    assert_eq!((got.len(), error), (60, None));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let mut source = open(&path).expect("its beginning is there");
    let (got, error) = frames(source.as_mut());
    assert_has(
        &error.expect("damage"),
        &["bag.db3", "complete rosbag2 database"],
    );
    assert!(got.len() > 10 && got.len() < 40, "{}", got.len());
    let mut rows = got.iter().enumerate();
    assert!(rows.all(|(k, frame)| frame.image.data == pattern(k, 3600)));
}

#[test]
fn messages_that_are_no_cdr_are_told() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("bag.db3");
    database(&path, 3);
    let whole = std::fs::read(&path).unwrap();
    let change = "UPDATE messages SET data = ?1 WHERE id = 2";
    for (data, parts) in [
        (&b""[..], ["CDR", "0 bytes"]),
        (b"\x00\x03\x00\x00abcdefgh", ["CDR", "encapsulation 00 03"]),
        (b"\x28\xb5\x2f\xfd garbage", ["zstd", "damaged"]),
        (
            b"\x00\x01\x00\x00\x01\x00",
            ["sensor_msgs/msg/Image", "2 bytes"],
        ),
    ] {
        std::fs::write(&path, &whole).unwrap();
        Connection::open(&path)
            .unwrap()
            .execute(change, [data])
            .unwrap();
        ends(&path, 2, &parts);
    }
}

#[test]
fn a_bag_compressed_as_a_whole_may_break_off() {
    let root = tempfile::tempdir().unwrap();
    let (plain, count) = long(root.path());
    let packed = root.path().join("packed.mcap.zstd");
    let bytes = zstd::encode_all(std::fs::File::open(&plain).unwrap(), 1).unwrap();
    std::fs::write(&packed, &bytes).unwrap();
    let (got, error) = frames(open(&packed).unwrap().as_mut());
    assert_eq!((got.len(), error), (count, None));
    std::fs::write(&packed, &bytes[..bytes.len() * 3 / 4]).unwrap();
    let mut source = open(&packed).expect("a beginning");
    let (got, error) = frames(source.as_mut());
    assert_has(
        &error.expect("it is truncated"),
        &["packed.mcap.zstd", "truncated"],
    );
    assert!(!got.is_empty() && got.len() < count);
    std::fs::write(&packed, b"\x28\xb5\x2f\xfd").unwrap();
    refused(&packed, &["packed.mcap.zstd"]);
}

/// Bytes changed at random: an error or an image that is what it was, never a panic and never another image.
#[test]
fn random_damage_is_told_and_believed_nowhere() {
    let root = tempfile::tempdir().unwrap();
    let shots: Vec<Shot> = (0..40).map(|k| at(100 * k)).collect();
    let mcap = bag(root.path(), &shots);
    let db3 = root.path().join("bag.db3");
    database(&db3, 40);
    for (path, checked) in [(&mcap, true), (&db3, false)] {
        let whole = std::fs::read(path).unwrap();
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        let mut damaged = 0;
        for _ in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..=next(4) {
                let at = next(bytes.len());
                bytes[at] ^= 1 + next(255) as u8;
            }
            if next(3) == 0 {
                bytes.truncate(next(whole.len()));
            }
            std::fs::write(path, &bytes).unwrap();
            let error = match open(path) {
                Err(error) => Some(error),
                Ok(mut source) => {
                    let (got, error) = frames(source.as_mut());
                    // MCAP has checksums; pixels in a database may change unseen.
                    let number = |stamp: Stamp| (stamp.nanos / 100_000_000 - 10_000) as usize;
                    let is_its_own =
                        |f: &SourceFrame| f.image.data == pattern(number(f.stamp), 3600);
                    assert!(!checked || got.iter().all(is_its_own), "another image");
                    error
                }
            };
            damaged += usize::from(error.is_some());
            let error = error.unwrap_or_default();
            assert!(!error.contains("panic"), "{error}");
        }
        println!("{}: {damaged} of 300 told", path.display());
        assert!(damaged > 50);
    }
}

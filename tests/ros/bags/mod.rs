//! ROS 2 bags as a source, and as what a run leaves. Bags of others are written, and ours are read, by PyPI rosbags
//! 0.11.9 (a Python with it is named by MAST3R_ROS_PYTHON).

mod broken;
mod depth;
mod motion;
mod node;
mod runs;
mod support;

use mast3r_slam::geometry::{Distortion, Intrinsics};
use mast3r_slam::image::decode;
use mast3r_slam::source::{Layout, SourceOptions, detect, open_bag};
use serde_json::{Value, json};
use std::path::Path;
use support::{SIZE, Sent, every_encoding, frames, open, write};
use testkit::needs::ros_python;

/// rosbags' storage and compression.
const KINDS: [(&str, &str); 7] = [
    ("SQLITE3", "NONE"),
    ("MCAP", "NONE"),
    ("SQLITE3", "FILE"),
    ("MCAP", "FILE"),
    ("SQLITE3", "MESSAGE"),
    ("MCAP", "MESSAGE"),
    ("MCAP", "STORAGE"),
];

fn info(topic: &str, stamp: i64, model: &str, d: &[f64]) -> Value {
    json!({
        "topic": topic, "type": "info", "stamp": stamp, "log": stamp, "width": SIZE.0, "height": SIZE.1,
        "model": model, "d": d, "k": [10.5, 0, 5.5, 0, 11.5, 3.5, 0, 0, 1],
    })
}

fn assert_same(source: &mut dyn mast3r_slam::source::Source, sent: &[Sent], what: &str) {
    let (got, error) = frames(source);
    assert_eq!(error, None, "{what}");
    assert_eq!(got.len(), sent.len(), "{what}");
    for (k, (frame, sent)) in got.iter().zip(sent).enumerate() {
        assert_eq!(frame.index, k, "{what}");
        assert_eq!(frame.stamp.nanos, sent.stamp, "{what}, image {k}");
        assert!(frame.image == sent.image, "{what}: image {k} differs");
    }
}

#[test]
fn every_kind_of_bag_gives_every_image_once() {
    let Some(python) = ros_python() else { return };
    let root = tempfile::tempdir().unwrap();
    let sent = every_encoding("/camera/image_raw");
    for (k, (storage, compression)) in KINDS.iter().enumerate() {
        let what = format!("{storage} {compression}");
        let path = root.path().join(format!("bag_{k}"));
        let mut messages = vec![
            info(
                "/camera/camera_info",
                sent[0].stamp,
                "plumb_bob",
                &[0.1, 0.2, 0.3, 0.4, 0.5],
            ),
            json!({ "topic": "/chatter", "type": "text", "text": "hello", "log": sent[0].stamp }),
        ];
        messages.extend(sent.iter().map(|s| s.specification.clone()));
        write(
            &python,
            &json!({
                "path": path, "storage": storage, "compression": compression, "messages": messages,
                "version": if k % 2 == 0 { 9 } else { 8 },
            }),
        );
        assert_eq!(detect(&path).unwrap(), Layout::Bag, "{what}");
        let mut source = open(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(source.remaining(), Some(sent.len()), "{what}");
        assert_eq!(source.camera_frame(), Some("camera"), "{what}");
        let calibration = *source.calibration().expect(&what);
        assert_eq!((calibration.width, calibration.height), SIZE, "{what}");
        let pinhole = Intrinsics {
            fx: 10.5,
            fy: 11.5,
            cx: 5.5,
            cy: 3.5,
        };
        assert_eq!(calibration.intrinsics, pinhole, "{what}");
        let lens = Distortion::PlumbBob([0.1, 0.2, 0.3, 0.4, 0.5]);
        assert_eq!(calibration.distortion, lens, "{what}");
        assert_same(source.as_mut(), &sent, &what);

        // The file alone, under a name that means something to SQLite, without the folder's metadata.yaml.
        let entries = std::fs::read_dir(&path).unwrap();
        let mut names = entries.map(|e| e.unwrap().path());
        let file = names.find(|p| !p.ends_with("metadata.yaml")).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let odd = root.path().join(name.replacen("bag", "odd %?#&'é bag", 1));
        std::fs::copy(&file, &odd).unwrap();
        let mut alone = open(&odd).unwrap_or_else(|e| panic!("{what}, alone: {e}"));
        assert_eq!(alone.remaining(), Some(sent.len()), "{what}");
        assert_same(alone.as_mut(), &sent, &format!("{what}, alone"));

        // The folder without it.
        std::fs::remove_file(path.join("metadata.yaml")).unwrap();
        let mut bare = open(&path).unwrap_or_else(|e| panic!("{what}, bare: {e}"));
        assert_same(bare.as_mut(), &sent, &format!("{what}, bare"));
    }
}

#[test]
fn start_end_and_stride_choose_images() {
    let Some(python) = ros_python() else { return };
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("bag");
    let sent = every_encoding("/image");
    let messages: Vec<Value> = sent.iter().map(|s| s.specification.clone()).collect();
    write(
        &python,
        &json!({ "path": path, "storage": "MCAP", "compression": "NONE", "messages": messages }),
    );
    let options = SourceOptions {
        start: 2,
        end: Some(11),
        stride: 3,
        ..Default::default()
    };
    let mut source = open_bag(&path, options, &Default::default()).unwrap();
    assert_eq!(source.remaining(), Some(3));
    assert!(source.calibration().is_none());
    let (got, error) = frames(source.as_mut());
    assert_eq!(error, None);
    let indices: Vec<usize> = got.iter().map(|f| f.index).collect();
    assert_eq!(indices, [2, 5, 8]);
    for frame in &got {
        assert!(frame.image == sent[frame.index].image);
    }
    let beyond = SourceOptions {
        start: sent.len(),
        ..Default::default()
    };
    let error = open_bag(&path, beyond, &Default::default()).err().unwrap();
    assert!(error.to_string().contains("14"), "{error}");
}

/// Two files that rosbag2 would have split a recording into.
#[test]
fn a_bag_of_several_files_is_read_in_their_order() {
    let Some(python) = ros_python() else { return };
    let root = tempfile::tempdir().unwrap();
    let sent = every_encoding("/image");
    let folder = root.path().join("split");
    std::fs::create_dir(&folder).unwrap();
    // Number 10 comes after number 9, whatever the letters say.
    for (number, part) in [(9, &sent[..6]), (10, &sent[6..])] {
        let path = root.path().join(format!("split_{number}"));
        let messages: Vec<Value> = part.iter().map(|s| s.specification.clone()).collect();
        write(
            &python,
            &json!({ "path": path, "storage": "SQLITE3", "compression": "NONE", "messages": messages }),
        );
        let name = format!("split_{number}.db3");
        std::fs::rename(path.join(&name), folder.join(&name)).unwrap();
    }
    let mut source = open(&folder).unwrap();
    assert_eq!(source.remaining(), Some(sent.len()));
    assert_same(source.as_mut(), &sent, "without metadata.yaml");

    let metadata = "rosbag2_bagfile_information:\n  version: 4\n  storage_identifier: sqlite3\n  \
                    relative_file_paths: [split/split_9.db3, split_10.db3]\n  topics_with_message_count:\n    \
                    - topic_metadata: {name: /image, type: sensor_msgs/msg/Image, serialization_format: cdr}\n      \
                    message_count: 14\n  compression_format: ''\n  compression_mode: ''\n";
    std::fs::write(folder.join("metadata.yaml"), metadata).unwrap();
    assert_same(open(&folder).unwrap().as_mut(), &sent, "with it");
}

#[test]
fn compressed_images_and_every_lens_are_read() {
    let Some(python) = ros_python() else { return };
    let root = tempfile::tempdir().unwrap();
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/room_loop/rgb");
    let file = bundled.join("1000.000000.jpg");
    let image = decode(&file).unwrap();
    let lenses: [(&str, &[f64], Distortion); 3] = [
        ("plumb_bob", &[0.0; 5], Distortion::None),
        (
            "rational_polynomial",
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            Distortion::Rational([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        ),
        (
            "equidistant",
            &[0.1, 0.2, 0.3, 0.4],
            Distortion::Equidistant([0.1, 0.2, 0.3, 0.4]),
        ),
    ];
    for (k, (model, d, lens)) in lenses.into_iter().enumerate() {
        let path = root.path().join(format!("bag_{k}"));
        let mut calibration = info("/cam/camera_info", 5, model, d);
        calibration["width"] = json!(image.width);
        calibration["height"] = json!(image.height);
        let picture = json!({
            "topic": "/cam/image_raw/compressed", "type": "compressed", "stamp": 7, "log": 8, "file": file,
            "format": "rgb8; jpeg compressed bgr8",
        });
        write(
            &python,
            &json!({
                "path": path, "storage": "SQLITE3", "compression": "NONE",
                "messages": [calibration, picture],
            }),
        );
        let mut source = open(&path).unwrap();
        assert_eq!(source.calibration().map(|c| c.distortion), Some(lens));
        let (got, error) = frames(source.as_mut());
        assert_eq!((got.len(), error), (1, None));
        assert_eq!(got[0].stamp.nanos, 7);
        assert!(got[0].image == image);
    }
}

/// Every way in which MCAP holds messages, and both byte orders.
#[test]
fn chunks_of_every_compression_and_both_byte_orders_are_read() {
    use byteorder::BigEndian;
    use mast3r_slam::bag::BagWriter;
    use mast3r_slam::time::Stamp;
    use mast3r_slam::wire::messages::sensor::Image;
    use mast3r_slam::wire::messages::{Header, Message};
    use mast3r_slam::wire::{Payload, Qos};
    use mcap::{Compression, WriteOptions};
    let root = tempfile::tempdir().unwrap();
    let original = root.path().join("original.mcap");
    let mut bag = BagWriter::create(&original).unwrap();
    let topic = bag.topic::<Image<'_>>("/image", Qos::reliable(1)).unwrap();
    for k in 0..20 {
        let data = support::pattern(k, 3 * 80 * 60);
        let stamp = Stamp {
            nanos: 1_000_000_000 * (k as i64 + 1),
        };
        let message = Image {
            header: Header::new(stamp, "camera"),
            height: 60,
            width: 80,
            encoding: "rgb8".to_owned(),
            is_bigendian: 0,
            step: 240,
            data: serde_bytes::Bytes::new(&data),
        };
        bag.write(topic, stamp, &message).unwrap();
    }
    bag.finish().unwrap();
    let bytes = std::fs::read(&original).unwrap();
    let chunked = |compression| {
        let options = WriteOptions::new().profile("ros2").compression(compression);
        options.chunk_size(Some(50_000))
    };
    let plain = WriteOptions::new().profile("ros2").use_chunks(false);
    let ways = [
        ("zstd", chunked(Some(Compression::Zstd)), false),
        ("lz4", chunked(Some(Compression::Lz4)), true),
        ("uncompressed", chunked(None), false),
        ("without chunks", plain, true),
    ];
    for (what, options, turned) in ways {
        let path = root.path().join(format!("{what}.mcap"));
        let mut writer = options
            .create(std::fs::File::create(&path).unwrap())
            .unwrap();
        for message in mcap::MessageStream::new(&bytes).unwrap() {
            let mut message = message.unwrap();
            if turned {
                let payload = Payload::from(bytes::Bytes::copy_from_slice(&message.data[4..]));
                let image = Image::decode(&payload).unwrap();
                let turned = cdr_encoding::to_vec_with_size_hint::<_, BigEndian>(&image, 64);
                let mut data = vec![0, 0, 0, 0];
                data.extend(turned.unwrap());
                message.data = data.into();
            }
            writer.write(&message).unwrap();
        }
        writer.finish().unwrap();
        let mut source = open(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (got, error) = frames(source.as_mut());
        assert_eq!((got.len(), error), (20, None), "{what}");
        for (k, frame) in got.iter().enumerate() {
            assert_eq!(frame.stamp.nanos, 1_000_000_000 * (k as i64 + 1), "{what}");
            assert!(
                frame.image.data == support::pattern(k, 14_400),
                "{what}: image {k}"
            );
        }
    }
}

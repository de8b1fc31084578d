//! Depth beside the images of a bag.

use mast3r_slam::bag::{BagWriter, Channel};
use mast3r_slam::source::{BagTopics, DepthOptions, Source, SourceOptions, open_bag};
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::Qos;
use mast3r_slam::wire::messages::Header;
use mast3r_slam::wire::messages::geometry::{TfMessage, Transform, TransformStamped};
use mast3r_slam::wire::messages::sensor::{CameraInfo, Image};
use mast3r_slam::{DepthCamera, DepthImage};
use nalgebra::{Isometry3, Vector3};
use std::path::{Path, PathBuf};

const MILLI: i64 = 1_000_000;
const START: i64 = 1_700_000_000_000 * MILLI;

/// A bag that is being written.
struct Writing {
    bag: BagWriter,
    path: PathBuf,
}

impl Writing {
    fn new(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        let bag = BagWriter::create(&path).unwrap();
        Self { bag, path }
    }

    fn image(&mut self, topic: &str, millis: i64, (frame, encoding): (&str, &str), pixel: &[u8]) {
        let channel: Channel = self
            .bag
            .topic::<Image<'_>>(topic, Qos::reliable(10))
            .unwrap();
        let stamp = Stamp {
            nanos: START + millis * MILLI,
        };
        let data = pixel.repeat(16 * 12);
        let message = Image {
            header: Header::new(stamp, frame),
            height: 12,
            width: 16,
            encoding: encoding.to_owned(),
            is_bigendian: 0,
            step: 16 * pixel.len() as u32,
            data: serde_bytes::Bytes::new(&data),
        };
        self.bag.write(channel, stamp, &message).unwrap();
    }

    fn colour(&mut self, millis: i64) {
        self.image("/d/color/image_raw", millis, ("colour", "rgb8"), &[1, 2, 3]);
    }

    fn depth(&mut self, millis: i64, frame: &str, value: u16) {
        let topic = "/d/depth/image_rect_raw";
        self.image(topic, millis, (frame, "16UC1"), &value.to_le_bytes());
    }

    fn info(&mut self) {
        let topic = "/d/depth/camera_info";
        let channel = self
            .bag
            .topic::<CameraInfo>(topic, Qos::reliable(10))
            .unwrap();
        let message = CameraInfo {
            width: 16,
            height: 12,
            k: [15.0, 0.0, 7.5, 0.0, 15.0, 5.5, 0.0, 0.0, 1.0],
            ..Default::default()
        };
        self.bag
            .write(channel, Stamp { nanos: START }, &message)
            .unwrap();
    }

    fn transform(&mut self, parent: &str, child: &str, x: f64) {
        let channel = self
            .bag
            .topic::<TfMessage>("/tf_static", Qos::latched(1))
            .unwrap();
        let stamp = Stamp { nanos: START };
        let message = TfMessage {
            transforms: vec![TransformStamped {
                header: Header::new(stamp, parent),
                child_frame_id: child.into(),
                transform: Transform::from(&Isometry3::translation(x, 0.0, 0.0)),
            }],
        };
        self.bag.write(channel, stamp, &message).unwrap();
    }

    fn open(self, topics: &BagTopics) -> Result<Box<dyn Source>, String> {
        self.bag.finish().unwrap();
        let options = SourceOptions {
            depth: Some(DepthOptions::default()),
            ..Default::default()
        };
        open_bag(&self.path, options, topics).map_err(|e| e.to_string())
    }
}

fn first(source: &mut dyn Source) -> Vec<Option<f32>> {
    let value = |image: &DepthImage| image.metres[0];
    source
        .map(|frame| frame.unwrap().depth.map(|depth| value(&depth.image)))
        .collect()
}

#[test]
fn depth_is_that_of_the_nearest_time_whatever_the_order_of_recording() {
    let root = tempfile::tempdir().unwrap();
    let mut bag = Writing::new(root.path(), "a.mcap");
    // Depth comes later than its image, one is missing, one is broken, one has no image.
    bag.colour(0);
    bag.depth(3, "colour", 1000);
    bag.colour(33);
    bag.colour(66);
    bag.depth(36, "colour", 2000);
    bag.depth(60, "colour", 3000);
    bag.depth(70, "colour", 4000);
    bag.colour(100);
    bag.colour(133);
    bag.image(
        "/d/depth/image_rect_raw",
        133,
        ("colour", "rgb8"),
        &[1, 2, 3],
    );
    bag.colour(166);
    bag.depth(186, "colour", 5000);
    let mut source = bag.open(&BagTopics::default()).unwrap();
    assert_eq!(source.depth_camera(), Some(&DepthCamera::Registered));
    let expected = [Some(1.0), Some(2.0), Some(4.0), None, None, Some(5.0)];
    assert_eq!(first(source.as_mut()), expected);
}

#[test]
fn depth_of_another_frame_has_its_calibration_and_place() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let both = |name: &str| {
        let mut bag = Writing::new(folder, name);
        bag.colour(0);
        bag.depth(0, "depth", 1000);
        bag
    };
    let refused = |bag: Writing| bag.open(&BagTopics::default()).err().expect("a refusal");
    let error = refused(both("no_info.mcap"));
    assert!(
        error.contains("no camera_info") && error.contains("\"depth\""),
        "{error}"
    );
    let mut bag = both("no_tf.mcap");
    bag.info();
    let error = refused(bag);
    assert!(error.contains("/tf_static does not connect"), "{error}");
    let mut bag = both("whole.mcap");
    bag.info();
    bag.transform("link", "colour", 0.1);
    bag.transform("/link", "/depth", -0.02);
    let source = bag.open(&BagTopics::default()).unwrap();
    let Some(DepthCamera::Own(own)) = source.depth_camera() else {
        panic!("expected a camera of its own");
    };
    let place = own.colour_from_depth.translation.vector;
    assert!(
        (place - Vector3::new(-0.12, 0.0, 0.0)).norm() < 1e-12,
        "{place}"
    );
    assert_eq!(
        (own.calibration.width, own.calibration.intrinsics.fx),
        (16, 15.0)
    );
    // A bag without depth, and a topic that does not exist.
    let mut bag = Writing::new(folder, "none.mcap");
    bag.colour(0);
    assert!(refused(bag).contains("--depth-topic"));
    let topics = BagTopics {
        depth: Some("/d/color/nothing".into()),
        ..Default::default()
    };
    let error = both("named.mcap").open(&topics).err().expect("a refusal");
    assert!(error.contains("/d/color/nothing"), "{error}");
}

//! Wheel odometry and IMU beside the images of a bag.

use mast3r_slam::bag::BagWriter;
use mast3r_slam::source::{MotionOptions, MotionSource, open_motion};
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::Qos;
use mast3r_slam::wire::messages::geometry::{
    Pose, TfMessage, Transform, TransformStamped, Vector3 as Rate,
};
use mast3r_slam::wire::messages::nav::Odometry;
use mast3r_slam::wire::messages::sensor::Imu;
use mast3r_slam::wire::messages::{Header, Message};
use nalgebra::{Isometry3, UnitQuaternion, Vector3};
use serde::Serialize;
use std::path::{Path, PathBuf};

const MILLI: i64 = 1_000_000;
const START: i64 = 1_700_000_000_000 * MILLI;

fn at(millis: i64) -> Stamp {
    Stamp {
        nanos: START + millis * MILLI,
    }
}

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

    fn send<M: Message + Serialize>(&mut self, topic: &str, millis: i64, message: &M) {
        let channel = self.bag.topic::<M>(topic, Qos::reliable(10)).unwrap();
        self.bag.write(channel, at(millis), message).unwrap();
    }

    fn wheels(&mut self, topic: &str, millis: i64, frame: &str, x: f64) {
        let mut message = Odometry {
            header: Header::new(at(millis), "odom"),
            child_frame_id: frame.into(),
            ..Default::default()
        };
        message.pose.pose = Pose::from(&Isometry3::translation(x, 0.0, 0.0));
        self.send(topic, millis, &message);
    }

    fn imu(&mut self, topic: &str, millis: i64, z: f64) {
        let message = Imu {
            header: Header::new(at(millis), "imu"),
            angular_velocity: Rate { x: 0.0, y: 0.0, z },
            ..Default::default()
        };
        self.send(topic, millis, &message);
    }

    fn transform(&mut self, parent: &str, child: &str, place: &Isometry3<f64>) {
        let message = TfMessage {
            transforms: vec![TransformStamped {
                header: Header::new(at(0), parent),
                child_frame_id: child.into(),
                transform: Transform::from(place),
            }],
        };
        self.send("/tf_static", 0, &message);
    }

    fn open(self, options: &MotionOptions) -> Result<MotionSource, String> {
        self.bag.finish().unwrap();
        open_motion(&self.path, options, Some("camera")).map_err(|e| e.to_string())
    }
}

fn both() -> MotionOptions {
    MotionOptions {
        wheels: true,
        gyro: true,
        ..Default::default()
    }
}

#[test]
fn the_only_topics_are_read_and_their_mounts_come_from_tf_static() {
    let root = tempfile::tempdir().unwrap();
    let mut bag = Writing::new(root.path(), "a.mcap");
    let camera = Isometry3::new(Vector3::new(0.2, 0.0, 0.5), Vector3::new(0.0, 0.3, -1.2));
    let imu = Isometry3::new(Vector3::new(0.1, 0.0, 0.1), Vector3::new(0.4, 0.0, 0.0));
    bag.transform("base", "camera", &camera);
    bag.transform("base", "imu", &imu);
    for k in 0..5 {
        bag.wheels("/wheel/odom", 20 * k, "base", k as f64);
        bag.imu("/imu/data", 5 * k, 0.1 * k as f64);
    }
    // Another frame on the topic, and an invalid pose, are left out.
    bag.wheels("/wheel/odom", 100, "trailer", 7.0);
    bag.wheels("/wheel/odom", 120, "base", f64::NAN);
    bag.wheels("/wheel/odom", 140, "base", 8.0);
    let source = bag.open(&both()).unwrap();
    let (mount, poses) = source.wheels.expect("wheels");
    assert!((mount.inverse() * camera).translation.vector.norm() < 1e-12);
    assert!((mount.rotation.inverse() * camera.rotation).angle() < 1e-9);
    let poses: Vec<(i64, f64)> = poses
        .map(|(stamp, pose)| ((stamp.nanos - START) / MILLI, pose.translation.x))
        .collect();
    let expected = [
        (0, 0.0),
        (20, 1.0),
        (40, 2.0),
        (60, 3.0),
        (80, 4.0),
        (140, 8.0),
    ];
    assert_eq!(poses, expected);
    let gyro = source.gyro.expect("a gyro");
    let turn = camera.rotation.inverse() * imu.rotation;
    assert!((gyro.camera_from_imu.inverse() * turn).angle() < 1e-9);
    assert_eq!(
        gyro.readings.map(|(_, reading)| reading.rate.z).last(),
        Some(0.4)
    );
}

#[test]
fn what_is_not_there_or_not_unique_is_said() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let refused =
        |bag: Writing, options: &MotionOptions| bag.open(options).err().expect("a refusal");
    let wheels = |topic: Option<&str>| MotionOptions {
        wheels: true,
        odom_topic: topic.map(str::to_owned),
        ..Default::default()
    };

    let mut none = Writing::new(folder, "none.mcap");
    none.imu("/imu", 0, 0.0);
    let error = refused(none, &wheels(None));
    assert!(
        error.contains("nav_msgs/msg/Odometry") && error.contains("/imu"),
        "{error}"
    );

    let two = |name: &str| {
        let mut bag = Writing::new(folder, name);
        bag.wheels("/a", 0, "base", 1.0);
        bag.wheels("/b", 0, "base", 2.0);
        bag
    };
    let error = refused(two("two.mcap"), &wheels(None));
    assert!(
        error.contains("--odom-topic") && error.contains("/a, /b"),
        "{error}"
    );
    let error = refused(two("unplaced.mcap"), &wheels(Some("/b")));
    for part in ["/tf_static", "\"base\"", "\"camera\"", "--base-from-camera"] {
        assert!(error.contains(part), "{error}");
    }
    let placed = MotionOptions {
        base_from_camera: Some(Isometry3::identity()),
        ..wheels(Some("/b"))
    };
    let source = two("placed.mcap").open(&placed).unwrap();
    let (_, mut poses) = source.wheels.expect("wheels");
    assert_eq!(poses.next().map(|(_, pose)| pose.translation.x), Some(2.0));
    let error = refused(
        two("kind.mcap"),
        &MotionOptions {
            gyro: true,
            imu_topic: Some("/a".into()),
            ..Default::default()
        },
    );
    assert!(error.contains("sensor_msgs/msg/Imu"), "{error}");

    let mut broken = Writing::new(folder, "broken.mcap");
    broken.wheels("/a", 0, "base", f64::INFINITY);
    let error = refused(broken, &wheels(None));
    assert!(error.contains("finite"), "{error}");

    let turned = MotionOptions {
        gyro: true,
        camera_from_imu: Some(UnitQuaternion::identity()),
        ..Default::default()
    };
    let mut alone = Writing::new(folder, "alone.mcap");
    alone.imu("/imu", 0, 0.5);
    let source = alone.open(&turned).unwrap();
    assert_eq!(source.gyro.expect("a gyro").readings.count(), 1);
}

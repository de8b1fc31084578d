//! Wheel odometry and gyro of datasets and folders.

use mast3r_slam::source::{MotionOptions, MotionSource, open_motion};
use nalgebra::{Isometry3, UnitQuaternion, Vector3};
use std::fs;
use std::path::Path;

fn open(path: &Path, wheels: bool, gyro: bool) -> Result<MotionSource, String> {
    let options = MotionOptions {
        wheels,
        gyro,
        ..Default::default()
    };
    open_motion(path, &options, None).map_err(|e| e.to_string())
}

fn refusal(path: &Path, wheels: bool, gyro: bool) -> String {
    open(path, wheels, gyro).err().expect("a refusal")
}

/// A folder of images.
fn folder(root: &Path) {
    image::RgbImage::new(4, 4)
        .save(root.join("0001.png"))
        .expect("an image");
}

#[test]
fn text_beside_images_is_read() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path();
    folder(path);
    assert!(refusal(path, true, false).contains("odometry.txt"));
    assert!(refusal(path, false, true).contains("gyro.txt"));
    fs::write(
        path.join("odometry.txt"),
        "# t x y z qx qy qz qw\n1.5 1 2 3 0 0 0 2\n1.6, 4, 5, 6, 0, 0, 1, 0\n",
    )
    .expect("a file");
    fs::write(
        path.join("gyro.txt"),
        "1.5 0.1 0.2 0.3\n1.505 0.1 0.2 0.4\n",
    )
    .expect("a file");
    let source = open(path, true, true).expect("sensors");
    let (mount, poses) = source.wheels.expect("wheels");
    // The camera's z is ahead, its x to the right.
    assert!((mount * Vector3::z() - Vector3::x()).norm() < 1e-12);
    assert!((mount * Vector3::x() + Vector3::y()).norm() < 1e-12);
    let poses: Vec<_> = poses.map(|(stamp, pose)| (stamp.nanos, pose)).collect();
    assert_eq!(
        poses[0],
        (1_500_000_000, Isometry3::translation(1.0, 2.0, 3.0))
    );
    assert_eq!(poses.len(), 2);
    let gyro = source.gyro.expect("a gyro");
    assert_eq!(gyro.camera_from_imu, UnitQuaternion::identity());
    let rates: Vec<_> = gyro
        .readings
        .map(|(stamp, reading)| (stamp.nanos, reading.rate.z, reading.acceleration))
        .collect();
    let expected = [(1_500_000_000, 0.3, None), (1_505_000_000, 0.4, None)];
    assert_eq!(rates, expected);
    let six = "1.5 0.1 0.2 0.3 0.5 9.8 0.1\n1.505 0.1 0.2 0.4 0.6 9.7 0.2\n";
    fs::write(path.join("gyro.txt"), six).expect("a file");
    let source = open(path, false, true).expect("a sensor");
    let last = source.gyro.expect("a gyro").readings.last();
    let (_, reading) = last.expect("a reading");
    assert_eq!(reading.acceleration, Some(Vector3::new(0.6, 9.7, 0.2)));
    assert!(
        open(path, false, false)
            .expect("no sensors")
            .wheels
            .is_none()
    );
}

#[test]
fn damaged_rows_are_named() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path();
    folder(path);
    for (text, part) in [
        ("1 0 0 0 0 0 0\n", "odometry.txt:1"),
        ("1 0 0 0 0 0 0 1\n2 0 x 0 0 0 0 1\n", "odometry.txt:2"),
        ("1 0 0 NaN 0 0 0 1\n", "odometry.txt:1"),
        ("1 0 0 0 0 0 0 0\n", "quaternion of zeros"),
        ("2 0 0 0 0 0 0 1\n2 0 0 0 0 0 0 1\n", "times that ascend"),
        ("# nothing\n", "no row"),
    ] {
        fs::write(path.join("odometry.txt"), text).expect("a file");
        let error = refusal(path, true, false);
        assert!(error.contains(part), "{text:?}: {error}");
    }
    let options = MotionOptions {
        wheels: true,
        odom_topic: Some("/odom".into()),
        ..Default::default()
    };
    let error = open_motion(path, &options, None).err().expect("a refusal");
    assert!(error.to_string().contains("--odom-topic"), "{error}");
}

#[test]
fn the_gyro_of_euroc_has_its_mount_and_its_noise() {
    let root = tempfile::tempdir().expect("a folder");
    let (camera, imu) = (root.path().join("mav0/cam0"), root.path().join("mav0/imu0"));
    fs::create_dir_all(camera.join("data")).expect("a folder");
    fs::create_dir_all(&imu).expect("a folder");
    fs::write(camera.join("data.csv"), "#t,name\n").expect("a file");
    // The camera's z is the body's x, its x the body's -y.
    let of_camera = "T_BS:\n  data: [0, 0, 1, 0.1, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 1]\n";
    fs::write(camera.join("sensor.yaml"), of_camera).expect("a file");
    assert!(refusal(root.path(), false, true).contains("imu0"));
    let of_imu = "T_BS:\n  data: [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]\n\
                  gyroscope_noise_density: 1.7e-4\ngyroscope_random_walk: 2.0e-5\n";
    fs::write(imu.join("sensor.yaml"), of_imu).expect("a file");
    let rows = "#t,wx,wy,wz,ax,ay,az\n1403636579758555392,0.1,0.2,0.3,9.8,0,0\n1403636579763555584,0.1,0.2,0.4,9.8,0,0\n";
    fs::write(imu.join("data.csv"), rows).expect("a file");
    let gyro = open(root.path(), false, true)
        .expect("a sensor")
        .gyro
        .expect("a gyro");
    assert_eq!(gyro.noise, Some((1.7e-4, 2e-5)));
    // A turn about the body's z, up, is one about the camera's -y.
    let up = gyro.camera_from_imu * Vector3::z();
    assert!((up + Vector3::y()).norm() < 1e-9, "{up}");
    let readings: Vec<_> = gyro.readings.collect();
    assert_eq!(readings.len(), 2);
    assert_eq!(
        (readings[1].0.nanos, readings[1].1.rate.z),
        (1_403_636_579_763_555_584, 0.4)
    );
    let up = readings[1].1.acceleration;
    assert_eq!(up, Some(Vector3::x() * 9.8));
}

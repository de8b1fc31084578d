//! The topic `depth`: depth images of a sensor.

use crate::support::stage::{PERIOD, START, Stage, info, tf};
use crate::support::wait;
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::messages::Header;
use mast3r_slam::wire::messages::sensor::{CompressedImage, Image};
use nalgebra::Isometry3;
use std::thread::sleep;
use std::time::Duration;
use testkit::room::SIZE;

/// Sends a depth image whose pixels all have these bytes, stamped as given.
fn depth(stage: &Stage, nanos: i64, size: (usize, usize), encoding: &str, pixel: &[u8]) {
    let data = pixel.repeat(size.0 * size.1);
    let image = Image {
        header: Header::new(Stamp { nanos }, "depth"),
        height: size.1 as u32,
        width: size.0 as u32,
        encoding: encoding.to_owned(),
        is_bigendian: 0,
        step: (size.0 * pixel.len()) as u32,
        data: serde_bytes::Bytes::new(&data),
    };
    stage.graph.send("/depth", &image);
}

/// Depth of 1.5 m for the next image, a millisecond before it.
fn good(stage: &Stage) {
    let size = (SIZE.0 / 2, SIZE.1 / 2);
    depth(
        stage,
        stage.next - 1_000_000,
        size,
        "16UC1",
        &1500u16.to_le_bytes(),
    );
}

/// Waits until the diagnostics say this, with images that the camera takes meanwhile.
fn says(stage: &Stage, part: &str) {
    wait(part, || {
        let (level, message) = stage.diagnostics();
        let said = message.contains(part);
        assert!(!said || level == 1, "not a warning: {message}");
        said
    });
}

#[test]
fn an_image_has_the_depth_of_its_time() {
    let mut stage = Stage::ready("use_depth:=true");
    for _ in 0..3 {
        good(&stage);
        stage.track(1);
    }
    wait("three frames with depth", || {
        stage.value("frames with depth") == 3
    });
    assert_eq!(stage.diagnostics(), (0, "tracking".into()));
    // Another time is none of it, and after a second the reason is said.
    let late = stage.next - 3_000_000_000;
    depth(&stage, late, SIZE, "16UC1", &1500u16.to_le_bytes());
    stage.track(1);
    sleep(Duration::from_millis(1100));
    depth(&stage, late + 1, SIZE, "16UC1", &1500u16.to_le_bytes());
    stage.track(1);
    says(&stage, "no depth: the newest depth image is 3.0");
    assert_eq!(stage.value("frames with depth"), 3);
    // Depth that comes again is used again.
    good(&stage);
    stage.track(1);
    wait("depth again", || {
        stage.diagnostics() == (0, "tracking".into())
    });
    assert_eq!(stage.value("frames with depth"), 4);
}

/// Missing depth is reported after a second of the clock that the images have.
#[test]
fn a_slow_clock_leaves_depth_its_time() {
    let mut stage = Stage::ready("use_depth:=true use_sim_time:=true");
    let clock = |stage: &Stage, millis: i64| stage.clock(START + millis * 1_000_000);
    clock(&stage, 0);
    good(&stage);
    stage.track(1);
    wait("depth", || stage.value("frames with depth") == 1);
    clock(&stage, 100);
    stage.track(1);
    sleep(Duration::from_millis(1200));
    clock(&stage, 200);
    stage.track(1);
    let reports = stage.graph.count("/diagnostics");
    wait("new diagnostics", || {
        stage.graph.count("/diagnostics") > reports + 1
    });
    assert_eq!(stage.diagnostics(), (0, "tracking".into()));
    clock(&stage, 2500);
    stage.track(1);
    says(&stage, "no depth: the last depth image arrived 2.5 s ago");
}

#[test]
fn depth_that_cannot_be_used_is_reported_and_tracking_goes_on() {
    let mut stage = Stage::ready("use_depth:=true");
    let cases = [
        ("no pixel", SIZE, "16UC1", vec![0, 0]),
        ("is not registered", (SIZE.0, 16), "16UC1", vec![1, 1]),
        (
            "is the unit right?",
            SIZE,
            "32FC1",
            1500f32.to_le_bytes().to_vec(),
        ),
        ("is the unit right?", SIZE, "16UC1", vec![2, 0]),
        ("expected 16UC1", SIZE, "rgb8", vec![1, 2, 3]),
        ("0×0", (0, 0), "16UC1", vec![]),
    ];
    for (part, size, encoding, pixel) in cases {
        good(&stage);
        stage.track(1);
        wait("good depth", || {
            stage.diagnostics() == (0, "tracking".into())
        });
        depth(&stage, stage.next, size, encoding, &pixel);
        stage.track(1);
        says(&stage, part);
    }
    assert_eq!(stage.value("frames with depth"), 6);
    assert_eq!(stage.value("frames not tracked"), 0);
    // A flood, and what is no message at all.
    for k in 0..50 {
        depth(&stage, stage.next + k * PERIOD, (4, 3), "16UC1", &[1, 1]);
    }
    let noise = bytes::Bytes::from_static(&[0, 1, 0, 0, 255, 255, 255, 255]);
    stage.graph.send_bytes("/depth", noise);
    stage.track(2);

    // Without the parameter, the topic is ignored.
    let mut stage = Stage::ready("");
    depth(&stage, stage.next, SIZE, "rgb8", &[1, 2, 3]);
    stage.track(2);
    wait("diagnostics", || {
        stage.diagnostics() == (0, "tracking".into())
    });
    assert_eq!(stage.value("frames with depth"), 0);
}

#[test]
fn depth_of_its_own_camera_needs_calibrations_and_a_transform() {
    let mut stage = Stage::ready("use_depth:=true depth_registered:=false");
    stage.graph.send("/camera_info", &info(100.0));
    let wide = |stage: &Stage| {
        depth(stage, stage.next, SIZE, "32FC1", &1.5f32.to_le_bytes());
    };
    wide(&stage);
    stage.track(1);
    says(&stage, "depth/camera_info");
    stage.graph.send("/depth/camera_info", &info(80.0));
    wide(&stage);
    stage.track(1);
    says(&stage, "depth and camera are not connected");
    let place = Isometry3::translation(0.05, 0.0, 0.0);
    stage
        .graph
        .send("/tf_static", &tf("camera", "depth", 0, &place));
    wide(&stage);
    stage.track(1);
    wait("a frame with depth", || {
        stage.value("frames with depth") == 1
    });
    // An image of another size than its camera_info says.
    good(&stage);
    stage.track(1);
    says(&stage, "use the camera_info of this topic");
}

#[test]
fn compressed_depth_has_a_topic_of_its_own() {
    let mut stage = Stage::ready("use_depth:=true depth_transport:=compressedDepth");
    let made = image::ImageBuffer::from_pixel(64, 48, image::Luma([1500u16]));
    let mut file = std::io::Cursor::new(vec![0; 12]);
    file.set_position(12);
    made.write_to(&mut file, image::ImageFormat::Png).unwrap();
    let send = |stage: &Stage, data: &[u8]| {
        let message = CompressedImage {
            header: Header::new(Stamp { nanos: stage.next }, "depth"),
            format: "16UC1; compressedDepth".to_owned(),
            data: serde_bytes::Bytes::new(data),
        };
        stage.graph.send("/depth/compressedDepth", &message);
    };
    let file = file.into_inner();
    send(&stage, &file);
    stage.track(1);
    wait("a frame with depth", || {
        stage.value("frames with depth") == 1
    });
    send(&stage, &file[..60]);
    stage.track(1);
    says(&stage, "PNG");
}

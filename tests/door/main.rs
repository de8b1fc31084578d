//! The library as another crate sees it: what `src/lib.rs` shows, and nothing else.

mod face;

use mast3r_slam::{
    Config, DeviceChoice, Encoding, Frame, ImageFormat, MapMode, OpenError, Pace, RawImage, Slam,
    Stamp, TrackingState, source,
};
use std::path::Path;

fn room() -> Box<dyn source::Source> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/room_loop");
    let options = source::SourceOptions {
        end: Some(6),
        ..Default::default()
    };
    source::open(&folder, options).expect("the bundled sequence")
}

#[test]
fn a_sequence_goes_in_and_a_map_comes_out() {
    let mut frames = room();
    let builder = Slam::builder()
        .config(Config::builtin("mini").expect("a configuration"))
        .device(DeviceChoice::Cpu)
        .source(frames.as_mut());
    let mut slam = builder.build().expect("SLAM");
    let about = slam.about();
    assert!(about.description.contains("bundled mini model at 256×192"));
    assert!(about.notes.is_empty(), "{:?}", about.notes);
    let mut stamps = Vec::new();
    for frame in frames {
        let tracked = slam.process(&(&frame.expect("a frame")).into());
        let tracked = tracked.expect("a result");
        assert_ne!(tracked.state, TrackingState::Lost);
        stamps.push(tracked.stamp);
    }
    assert_eq!(stamps.len(), 6);
    let folder = tempfile::tempdir().expect("a folder");
    let mut map = slam.finish().expect("a map").titled("six frames");
    let written = map.write(folder.path()).expect("files");
    assert!(written.accuracy.is_none());
    for file in ["trajectory.txt", "cloud.ply", "report.html"] {
        assert!(folder.path().join(file).exists(), "{file}");
    }
    let saved = map.save(folder.path().join("room.map")).expect("a file");
    assert_eq!(saved.keyframes, map.snapshot().keyframes.len());

    // And on with it, as a live camera.
    let mut frames = room();
    let builder = Slam::builder()
        .device(DeviceChoice::Cpu)
        .source(frames.as_mut())
        .pace(Pace::Live)
        .map(folder.path().join("room.map"), MapMode::Continue);
    let mut slam = builder.build().expect("SLAM in the map");
    assert_eq!(slam.poses().load().poses.len(), saved.keyframes);
    slam.reset().expect("a fresh start");
    assert!(slam.snapshot().frames.is_empty());
}

#[test]
fn any_camera_s_image_is_a_frame() {
    let (width, height) = (64, 48);
    let grey = vec![100; width * height];
    let image = RawImage {
        encoding: Encoding::Mono8,
        width,
        height,
        stride: width,
        data: &grey,
    };
    let frame = Frame {
        index: 0,
        stamp: Stamp::from_seconds(1.5),
        image,
    };
    let builder = Slam::builder()
        .device(DeviceChoice::Cpu)
        .format(ImageFormat::from(&image));
    let mut slam = builder.build().expect("SLAM");
    slam.process(&frame).expect("a result");
}

#[test]
fn what_is_missing_is_an_error_before_anything_is_loaded() {
    let error = Slam::builder().build().err().expect("no format");
    assert!(matches!(error, OpenError::NoFormat), "{error}");
    let mut frames = room();
    let calibrated = Slam::builder().source(frames.as_mut()).calibrated(true);
    // The bundled sequence has its calibration; a bare format has none.
    assert!(calibrated.build().is_ok());
    let format = ImageFormat {
        encoding: Encoding::Rgb8,
        width: 64,
        height: 48,
        stride: 192,
    };
    let bare = Slam::builder().format(format).calibrated(true).build();
    let error = bare.err().expect("no calibration");
    assert!(matches!(error, OpenError::NoCalibration { .. }), "{error}");
    let error = Slam::builder().weights("missing.pth").build().err();
    let error = error.expect("no weights").to_string();
    assert!(error.contains("missing.pth"), "{error}");
}

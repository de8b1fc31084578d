//! Datasets and folders of images, good and bad, each on a small folder that the test writes.

use image::{GrayImage, Luma, Rgb, RgbImage as Picture};
use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::source::{Layout, Source, SourceError, SourceFrame, SourceOptions, detect, open};
use std::fs;
use std::path::{Path, PathBuf};

/// An image whose first pixel tells which one it is.
fn image(path: &Path, number: u8, width: u32, height: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    Picture::from_pixel(width, height, Rgb([number, 100, 200]))
        .save(path)
        .unwrap();
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn tum(folder: &Path, count: u8) {
    let mut list = String::from("# timestamp filename\n\n");
    for i in 0..count {
        image(&folder.join(format!("rgb/{i}.png")), i, 64, 48);
        list += &format!("100.{i}00000 rgb/{i}.png\n");
    }
    write(folder.join("rgb.txt"), &list);
}

fn all(source: &mut dyn Source) -> Vec<SourceFrame> {
    let mut frames = Vec::new();
    while let Some(frame) = source.next_frame().unwrap() {
        frames.push(frame);
    }
    frames
}

fn open_all(path: &Path) -> (Box<dyn Source>, Vec<SourceFrame>) {
    let mut source = open(path, SourceOptions::default()).unwrap();
    let frames = all(source.as_mut());
    (source, frames)
}

fn refusal(path: &Path) -> String {
    refusal_with(path, SourceOptions::default())
}

fn refusal_with(path: &Path, options: SourceOptions) -> String {
    open(path, options).err().expect("a refusal").to_string()
}

fn numbers(frames: &[SourceFrame]) -> Vec<u8> {
    frames.iter().map(|f| f.image.data[0]).collect()
}

fn text(frames: &[SourceFrame]) -> Vec<String> {
    frames.iter().map(|f| f.stamp.to_string()).collect()
}

#[test]
fn a_tum_sequence_is_read_in_order_with_exact_times() {
    let dir = tempfile::tempdir().unwrap();
    tum(dir.path(), 6);
    write(dir.path().join("groundtruth.txt"), "100.0 0 0 0 0 0 0 1\n");
    write(
        dir.path().join("camera.yaml"),
        "# pinhole\nwidth: 64\nheight: 48\nfx: 50.5\nfy: 51\ncx: 31.5\ncy: 23.5\nfps: 30.0\n",
    );
    assert_eq!(detect(dir.path()).unwrap(), Layout::Tum);
    let mut source = open(dir.path(), SourceOptions::default()).unwrap();
    assert_eq!(source.remaining(), Some(6));
    assert_eq!(source.describe(), "TUM RGB-D, 6 frames");
    assert_eq!(
        source.ground_truth(),
        Some(&*dir.path().join("groundtruth.txt"))
    );
    assert!(!source.always_undistort());
    let k = source.calibration().unwrap();
    assert_eq!(
        (k.width, k.height, k.intrinsics.fx, k.intrinsics.cy),
        (64, 48, 50.5, 23.5)
    );
    assert_eq!(k.distortion, Distortion::None);
    let frames = all(source.as_mut());
    assert_eq!(source.remaining(), Some(0));
    assert_eq!(numbers(&frames), [0, 1, 2, 3, 4, 5]);
    assert_eq!(text(&frames)[3], "100.300000");
    assert_eq!(frames[3].origin, dir.path().join("rgb/3.png"));
    assert!(
        source.next_frame().unwrap().is_none(),
        "and stays at its end"
    );
}

#[test]
fn start_end_and_stride_choose() {
    let dir = tempfile::tempdir().unwrap();
    tum(dir.path(), 9);
    for (start, end, stride, expected) in [
        (0, None, 2, vec![0, 2, 4, 6, 8]),
        (1, Some(8), 3, vec![1, 4, 7]),
        (1, Some(7), 3, vec![1, 4]),
        (8, Some(1000), 1, vec![8]),
        (0, None, 100, vec![0]),
    ] {
        let options = SourceOptions {
            stride,
            start,
            end,
            calibration: None,
            depth: None,
        };
        let mut source = open(dir.path(), options).unwrap();
        assert_eq!(source.remaining(), Some(expected.len()));
        let frames = all(source.as_mut());
        let indices: Vec<usize> = frames.iter().map(|f| f.index).collect();
        assert_eq!(indices, expected);
        let same: Vec<usize> = numbers(&frames).iter().map(|&n| n.into()).collect();
        assert_eq!(same, expected);
    }
    for (start, end, stride, message) in [
        (0, None, 0, "stride: expected at least 1, found 0"),
        (
            9,
            None,
            1,
            "start: expected less than the number of frames, 9, found 9",
        ),
        (
            5,
            Some(5),
            1,
            "end: expected more than the start, 5, found 5",
        ),
    ] {
        let options = SourceOptions {
            stride,
            start,
            end,
            calibration: None,
            depth: None,
        };
        assert_eq!(refusal_with(dir.path(), options), message);
    }
}

#[test]
fn dropping_a_source_in_the_middle_does_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    tum(dir.path(), 9);
    drop(open(dir.path(), SourceOptions::default()).unwrap());
    let mut source = open(dir.path(), SourceOptions::default()).unwrap();
    source.next_frame().unwrap();
}

/// The camera of each part of TUM RGB-D, also under a name with a Windows path in it.
#[test]
fn freiburg_cameras_are_recognised_with_either_separator() {
    let cases = [
        ("tum/rgbd_dataset_freiburg1_xyz", 517.3, Some(1.1633)),
        ("a/b/rgbd_dataset_freiburg2_desk", 520.9, Some(0.9172)),
        ("rgbd_dataset_freiburg3_long_office_household", 535.4, None),
        #[cfg(not(windows))]
        (
            r"datasets\tum\rgbd_dataset_freiburg1_xyz",
            517.3,
            Some(1.1633),
        ),
        #[cfg(not(windows))]
        (
            r"freiburg1\..\tum\rgbd_dataset_freiburg2_desk\",
            520.9,
            Some(0.9172),
        ),
    ];
    for (name, fx, k3) in cases {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(name);
        image(&folder.join("rgb/a.png"), 1, 640, 480);
        write(folder.join("rgb.txt"), "1.5 rgb/a.png\n");
        assert_eq!(detect(&folder).unwrap(), Layout::Tum, "{name}");
        let source = open(&folder, SourceOptions::default()).unwrap();
        assert_eq!(source.describe(), "TUM RGB-D, 1 frame");
        let k = source.calibration().unwrap();
        assert_eq!(
            (k.width, k.height, k.intrinsics.fx),
            (640, 480, fx),
            "{name}"
        );
        match (k.distortion, k3) {
            (Distortion::PlumbBob(d), Some(k3)) => assert_eq!(d[4], k3, "{name}"),
            (Distortion::None, None) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[cfg(unix)]
#[test]
fn a_link_to_a_freiburg_folder_has_its_camera() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("rgbd_dataset_freiburg1_xyz");
    image(&folder.join("a.png"), 1, 640, 480);
    write(folder.join("rgb.txt"), "1.5 a.png\n");
    let link = dir.path().join("here");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    let source = open(&link, SourceOptions::default()).unwrap();
    assert_eq!(source.calibration().unwrap().intrinsics.fy, 516.5);
}

#[test]
fn bad_lists_are_refused_with_the_line() {
    for (list, place, part) in [
        (
            "# x\n1.0 a.png\n0.5 a.png\n",
            "rgb.txt:3",
            "expected a time after 1.000000",
        ),
        ("1.0 a.png\n1.0 a.png\n", "rgb.txt:2", "found 1.0"),
        (
            "1.0 a.png\n\n2.0 b.png\n",
            "rgb.txt:3",
            "\"b.png\", which does not exist",
        ),
        (
            "one a.png\n",
            "rgb.txt:1",
            "a time in seconds, found \"one\"",
        ),
        ("nan a.png\n", "rgb.txt:1", "a time in seconds"),
        ("1.0\n", "rgb.txt:1", "a time and a file name"),
        ("# nothing\n", "rgb.txt", "found none"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        image(&dir.path().join("a.png"), 1, 32, 32);
        write(dir.path().join("rgb.txt"), list);
        let message = refusal(dir.path());
        assert!(
            message.contains(&format!("{place}:")) && message.contains(part),
            "{message}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rgb.txt"), [0xff, 0xfe, 0x31]).unwrap();
    assert!(refusal(dir.path()).contains("UTF-8"));
}

#[test]
fn an_eth3d_sequence_has_the_camera_of_its_calibration_file() {
    let dir = tempfile::tempdir().unwrap();
    image(&dir.path().join("rgb/a.png"), 1, 74, 46);
    write(dir.path().join("rgb.txt"), "5.25 rgb/a.png\n");
    write(dir.path().join("groundtruth.txt"), "5.25 0 0 0 0 0 0 1\n");
    write(
        dir.path().join("calibration.txt"),
        "726.2 726.3 35.5 20.25\n",
    );
    assert_eq!(detect(dir.path()).unwrap(), Layout::Eth3d);
    let (source, frames) = open_all(dir.path());
    assert_eq!(text(&frames), ["5.250000"]);
    assert!(source.ground_truth().is_some());
    let k = source.calibration().unwrap();
    assert_eq!((k.width, k.height), (74, 46));
    assert_eq!((k.intrinsics.fx, k.intrinsics.cy), (726.2, 20.25));
    for (bad, part) in [
        ("726 726 35\n", "fx fy cx cy"),
        ("a b c d", "fx fy cx cy"),
        ("NaN 1 1 1", "found fx = NaN"),
        (
            "-5 1 1 1",
            "expected a positive number of pixels, found fx = -5",
        ),
    ] {
        write(dir.path().join("calibration.txt"), bad);
        let message = refusal(dir.path());
        assert!(
            message.contains("calibration.txt") && message.contains(part),
            "{message}"
        );
    }
}

const SENSOR: &str = "sensor_type: camera\ncomment: VI-Sensor cam0 (MT9M034)\n\
    T_BS:\n  cols: 4\n  rows: 4\n  data: [0.0, -1.0, 0.0, 0.5,\n    1.0, 0.0, 0.0, 0.25,\n    \
    0.0, 0.0, 1.0, 0.125,\n    0.0, 0.0, 0.0, 1.0]\nrate_hz: 20\nresolution: [75, 48]\n\
    camera_model: pinhole\nintrinsics: [45.8, 45.7, 36.7, 24.8] #fu, fv, cu, cv\n\
    distortion_model: radial-tangential\n\
    distortion_coefficients: [-0.283, 0.074, 0.00019, 1.76e-05]\n";

fn euroc(folder: &Path) {
    let camera = folder.join("mav0/cam0");
    fs::create_dir_all(camera.join("data")).unwrap();
    for (i, name) in ["1403636579763555584", "1403636579813555456"]
        .iter()
        .enumerate()
    {
        GrayImage::from_pixel(75, 48, Luma([40 + i as u8]))
            .save(camera.join("data").join(format!("{name}.png")))
            .unwrap();
    }
    write(
        camera.join("data.csv"),
        "#timestamp [ns],filename\r\n1403636579763555584,1403636579763555584.png\r\n\
         1403636579813555456,1403636579813555456.png\r\n",
    );
    write(camera.join("sensor.yaml"), SENSOR);
}

#[test]
fn a_euroc_sequence_is_grey_made_rgb_and_always_undistorted() {
    let dir = tempfile::tempdir().unwrap();
    euroc(dir.path());
    for path in [dir.path().to_owned(), dir.path().join("mav0")] {
        assert_eq!(detect(&path).unwrap(), Layout::Euroc);
        let (source, frames) = open_all(&path);
        assert!(source.always_undistort());
        assert_eq!(
            text(&frames),
            ["1403636579.763555584", "1403636579.813555456"]
        );
        assert_eq!(frames[1].image.data[..3], [41, 41, 41]);
        let k = source.calibration().unwrap();
        assert_eq!((k.width, k.height, k.intrinsics.cx), (75, 48, 36.7));
        assert_eq!(
            k.distortion,
            Distortion::PlumbBob([-0.283, 0.074, 0.00019, 1.76e-05, 0.0])
        );
        assert!(source.ground_truth().is_none());
    }
}

#[test]
fn euroc_ground_truth_becomes_the_camera_s() {
    let dir = tempfile::tempdir().unwrap();
    euroc(dir.path());
    // The body a quarter turn about x (w = x = √½) at (1, 2, 3).
    write(
        dir.path().join("mav0/state_groundtruth_estimate0/data.csv"),
        "#timestamp, p_x, p_y, p_z, q_w, q_x, q_y, q_z, v_x\n\
         1403636579763555584,1,2,3,0.70710678118654757,0.70710678118654757,0,0,0.1,0.2\n",
    );
    let source = open(dir.path(), SourceOptions::default()).unwrap();
    let path = source.ground_truth().unwrap().to_owned();
    let lines = fs::read_to_string(&path).unwrap();
    let line = lines.lines().find(|l| !l.starts_with('#')).unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    assert_eq!(fields[0], "1403636579.763555584");
    let values: Vec<f64> = fields[1..].iter().map(|f| f.parse().unwrap()).collect();
    // R_x(90°)·(0.5, 0.25, 0.125) = (0.5, −0.125, 0.25); rotation R_x(90°)·R_z(90°) has the
    // quaternion (x y z w) = ½(1, −1, 1, 1).
    let expected = [1.5, 1.875, 3.25, 0.5, -0.5, 0.5, 0.5];
    for (found, expected) in values.iter().zip(expected) {
        // Written with nine decimals.
        assert!((found - expected).abs() < 1e-8, "{values:?}");
    }
    drop(source);
    assert!(!path.exists(), "the temporary file goes with the source");

    write(
        dir.path().join("mav0/state_groundtruth_estimate0/data.csv"),
        "#timestamp\n1403636579763555584,1,2,nan,1,0,0,0\n",
    );
    let message = refusal(dir.path());
    assert!(
        message.contains("data.csv:2: expected a finite pose"),
        "{message}"
    );
}

#[test]
fn bad_euroc_files_are_refused() {
    for (list, place) in [
        (
            "1,1403636579763555584.png\n1,1403636579763555584.png\n",
            "data.csv:2: expected a time after 1",
        ),
        (
            "1.5,1403636579763555584.png\n",
            "data.csv:1: expected a time in nanoseconds",
        ),
        ("1,gone.png\n", "\"gone.png\", which does not exist"),
        ("1 x\n", "a comma"),
        ("", "found none"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        euroc(dir.path());
        write(dir.path().join("mav0/cam0/data.csv"), list);
        let message = refusal(dir.path());
        assert!(message.contains(place), "{message}");
    }
    let dir = tempfile::tempdir().unwrap();
    euroc(dir.path());
    let sensor = SENSOR.replace("resolution: [75, 48]", "resolution: [70, 70]");
    write(dir.path().join("mav0/cam0/sensor.yaml"), &sensor);
    let message = refusal(dir.path());
    assert!(
        message.contains("70×70") && message.contains("75×48"),
        "{message}"
    );
}

#[test]
fn a_seven_scenes_sequence_is_in_natural_order_with_its_poses() {
    let dir = tempfile::tempdir().unwrap();
    let seq = dir.path().join("seq-01");
    for i in [0u8, 1, 2, 10] {
        image(&seq.join(format!("frame-{i}.color.png")), i, 640, 480);
    }
    image(&seq.join("frame-0.depth.png"), 99, 640, 480);
    image(&dir.path().join("seq-02/frame-0.color.png"), 50, 640, 480);
    write(
        seq.join("frame-2.pose.txt"),
        "0 -1 0 0.5\n 1 0 0 0.25\n 0 0 1 0.125\n 0 0 0 1\n",
    );
    write(seq.join("frame-1.pose.txt"), &"-1.#IND ".repeat(16));
    for path in [dir.path(), seq.as_path()] {
        assert_eq!(detect(path).unwrap(), Layout::SevenScenes);
        let (source, frames) = open_all(path);
        assert_eq!(numbers(&frames), [0, 1, 2, 10]);
        assert_eq!(
            text(&frames),
            ["0.000000", "1.000000", "2.000000", "3.000000"]
        );
        assert_eq!(source.calibration().unwrap().intrinsics.fx, 585.0);
        let truth = fs::read_to_string(source.ground_truth().unwrap()).unwrap();
        let lines: Vec<&str> = truth.lines().filter(|l| !l.starts_with('#')).collect();
        // A quarter turn about z; the lost pose is left out.
        assert_eq!(
            lines,
            ["2.000000 0.500000000 0.250000000 0.125000000 \
              0.000000000 0.000000000 0.707106781 0.707106781"]
        );
    }
    write(seq.join("frame-2.pose.txt"), "1 2 3\n");
    assert!(refusal(&seq).contains("16 numbers of a rigid transformation"));
}

#[test]
fn a_folder_of_images_is_sorted_naturally_at_30_hz() {
    let dir = tempfile::tempdir().unwrap();
    for (name, number) in [("f10.png", 10), ("f9.PNG", 9), ("f1.bmp", 1), ("f2.tif", 2)] {
        image(&dir.path().join(name), number, 32, 16);
    }
    write(dir.path().join("notes.txt"), "not an image");
    write(dir.path().join("._f3.png"), "a hidden file");
    assert_eq!(detect(dir.path()).unwrap(), Layout::Images);
    let (source, frames) = open_all(dir.path());
    assert_eq!(numbers(&frames), [1, 2, 9, 10]);
    assert_eq!(
        text(&frames),
        ["0.000000", "0.033333333", "0.066666666", "0.100000"]
    );
    assert!(source.calibration().is_none() && source.ground_truth().is_none());
}

#[test]
fn names_that_are_times_are_the_times() {
    let dir = tempfile::tempdir().unwrap();
    for (name, number) in [("10.25.png", 3), ("9.5.png", 2), ("9.25.png", 1)] {
        image(&dir.path().join(name), number, 32, 16);
    }
    let (_, frames) = open_all(dir.path());
    assert_eq!(numbers(&frames), [1, 2, 3]);
    assert_eq!(text(&frames), ["9.250000", "9.500000", "10.250000"]);
    image(&dir.path().join("9.50.png"), 4, 32, 16);
    let message = refusal(dir.path());
    assert!(
        message.contains("9.500000, which is also the time of"),
        "{message}"
    );
}

#[test]
fn what_cannot_be_opened_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("gone");
    assert!(matches!(
        open(&missing, SourceOptions::default()),
        Err(SourceError::Io { .. })
    ));
    assert!(refusal(&missing).starts_with("cannot read "));
    let message = refusal(dir.path());
    assert!(
        message.contains("expected images") && message.ends_with("found an empty folder"),
        "{message}"
    );
    write(dir.path().join("readme.md"), "");
    assert!(refusal(dir.path()).ends_with("found 1 other entries such as \"readme.md\""));
    let message = refusal(&dir.path().join("readme.md"));
    assert!(
        message.contains("a folder with a dataset or images, a video"),
        "{message}"
    );
    let tum = dir.path().join("TUM/some_sequence");
    fs::create_dir_all(&tum).unwrap();
    assert!(refusal(&tum).contains("expected rgb.txt (the path suggests TUM RGB-D)"));
}

#[test]
fn a_broken_image_is_an_error_in_its_place_and_can_be_skipped() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..6u8 {
        image(&dir.path().join(format!("{i}.png")), i, 32, 16);
    }
    write(dir.path().join("0.png"), "this is text");
    write(dir.path().join("2.png"), "");
    let whole = fs::read(dir.path().join("3.png")).unwrap();
    fs::write(dir.path().join("3.png"), &whole[..whole.len() / 2]).unwrap();
    image(&dir.path().join("4.png"), 4, 16, 32);
    let mut source = open(dir.path(), SourceOptions::default()).unwrap();
    let mut seen = Vec::new();
    loop {
        match source.next_frame() {
            Ok(Some(frame)) => seen.push(format!("frame {}", frame.index)),
            Ok(None) => break,
            Err(e) => seen.push(e.to_string()),
        }
    }
    assert_eq!(seen.len(), 6);
    assert!(
        seen[0].contains("0.png: expected a PNG, JPEG"),
        "{}",
        seen[0]
    );
    assert_eq!(seen[1], "frame 1");
    assert!(
        seen[2].contains("2.png") && seen[2].contains("an empty file"),
        "{}",
        seen[2]
    );
    assert!(
        seen[3].contains("3.png: expected a complete"),
        "{}",
        seen[3]
    );
    // Both sizes, the file, and whose size it should be.
    for part in ["4.png: expected an image of 32×16", "1.png, found 16×32"] {
        assert!(seen[4].contains(part), "{}", seen[4]);
    }
    assert_eq!(seen[5], "frame 5");
    assert_eq!(source.remaining(), Some(0));
}

#[test]
fn a_folder_of_nothing_but_broken_images_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path().join("0.png"), "this is text");
    write(dir.path().join("1.png"), "this too");
    assert!(refusal(dir.path()).contains("0.png: expected a PNG, JPEG"));
}

#[test]
fn a_given_calibration_fits_is_scaled_or_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    tum(dir.path(), 1);
    let given = |width, height| SourceOptions {
        calibration: Some(Calibration {
            width,
            height,
            intrinsics: Intrinsics {
                fx: 100.0,
                fy: 102.0,
                cx: (width - 1) as f64 / 2.0,
                cy: (height - 1) as f64 / 2.0,
            },
            distortion: Distortion::PlumbBob([0.1, 0.0, 0.0, 0.0, 0.0]),
        }),
        ..SourceOptions::default()
    };
    let same = open(dir.path(), given(64, 48)).unwrap();
    assert_eq!(same.calibration().unwrap().intrinsics.fx, 100.0);
    // Twice the size: half the focal length, and the middle stays the middle.
    let scaled = *open(dir.path(), given(128, 96))
        .unwrap()
        .calibration()
        .unwrap();
    assert_eq!((scaled.width, scaled.height), (64, 48));
    let k = scaled.intrinsics;
    assert_eq!((k.fx, k.fy, k.cx, k.cy), (50.0, 51.0, 31.5, 23.5));
    assert_eq!(
        scaled.distortion,
        Distortion::PlumbBob([0.1, 0.0, 0.0, 0.0, 0.0])
    );
    for (width, height) in [(64, 64), (48, 64), (640, 360)] {
        let message = refusal_with(dir.path(), given(width, height));
        assert!(
            message.contains(&format!("{width}×{height}")) && message.contains("64×48"),
            "{message}"
        );
    }
}

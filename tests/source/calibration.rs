//! Calibration files in each layout, good and bad.

use mast3r_slam::geometry::{Calibration, Distortion};
use mast3r_slam::source::{SourceError, read_calibration};

fn read(text: &str) -> Result<Calibration, SourceError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("camera.yaml");
    std::fs::write(&path, text).unwrap();
    read_calibration(&path)
}

#[test]
fn the_list_layout_takes_4_8_or_9_values() {
    let k = read("width: 640\nheight: 480\ncalibration: [525, 526.5, 319.5, 239.5]\n").unwrap();
    assert_eq!((k.width, k.height), (640, 480));
    let i = k.intrinsics;
    assert_eq!((i.fx, i.fy, i.cx, i.cy), (525.0, 526.5, 319.5, 239.5));
    assert_eq!(k.distortion, Distortion::None);
    let eight = "width: 640\nheight: 480\ncalibration: [525, 526, 319, 239, 0.1, 0.2, 0.3, 0.4]\n";
    assert_eq!(
        read(eight).unwrap().distortion,
        Distortion::PlumbBob([0.1, 0.2, 0.3, 0.4, 0.0])
    );
    let nine =
        "width: 640\nheight: 480\ncalibration: [525, 526, 319, 239, 0.1, 0.2, 0.3, 0.4, 0.5]\n";
    assert_eq!(
        read(nine).unwrap().distortion,
        Distortion::PlumbBob([0.1, 0.2, 0.3, 0.4, 0.5])
    );
}

const FLAT: &str = "width: 540\nheight: 360\nfx: 495.57\nfy: 495.48\ncx: 269.5\ncy: 169.19\n";

#[test]
fn the_flat_layout_takes_any_coefficients() {
    assert_eq!(read(FLAT).unwrap().distortion, Distortion::None);
    assert_eq!(
        read(&format!("{FLAT}k1: 0.1\np2: 0.4\n"))
            .unwrap()
            .distortion,
        Distortion::PlumbBob([0.1, 0.0, 0.0, 0.4, 0.0])
    );
    assert_eq!(
        read(&format!("{FLAT}k1: 0.1\nk4: 0.4\n"))
            .unwrap()
            .distortion,
        Distortion::Rational([0.1, 0.0, 0.0, 0.0, 0.0, 0.4, 0.0, 0.0])
    );
    assert_eq!(
        read(&format!(
            "{FLAT}distortion_model: equidistant\nk1: 0.1\nk3: 0.3\n"
        ))
        .unwrap()
        .distortion,
        Distortion::Equidistant([0.1, 0.0, 0.3, 0.0])
    );
}

fn ros(model: &str, coefficients: &str) -> String {
    format!(
        "image_width: 640\nimage_height: 480\ncamera_name: narrow_stereo\n\
         camera_matrix:\n  rows: 3\n  cols: 3\n  data: [438.8, 0., 305.6, 0., 437.4, 238.7, 0., 0., 1.]\n\
         distortion_model: {model}\n\
         distortion_coefficients:\n  rows: 1\n  cols: 5\n  data: {coefficients}\n\
         rectification_matrix:\n  rows: 3\n  cols: 3\n  data: [1., 0., 0., 0., 1., 0., 0., 0., 1.]\n\
         projection_matrix:\n  rows: 3\n  cols: 4\n  data: [1., 0., 0., 0., 0., 1., 0., 0., 0., 0., 1., 0.]\n"
    )
}

#[test]
fn ros_camera_info_is_read_with_its_model() {
    let k = read(&ros("plumb_bob", "[-0.36, 0.11, 0.001, -0.002, 0.]")).unwrap();
    let i = k.intrinsics;
    assert_eq!((k.width, k.height), (640, 480));
    assert_eq!((i.fx, i.fy, i.cx, i.cy), (438.8, 437.4, 305.6, 238.7));
    assert_eq!(
        k.distortion,
        Distortion::PlumbBob([-0.36, 0.11, 0.001, -0.002, 0.0])
    );
    let k = read(&ros(
        "rational_polynomial",
        "[1., 2., 3., 4., 5., 6., 7., 8.]",
    ))
    .unwrap();
    assert_eq!(
        k.distortion,
        Distortion::Rational([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    );
    // All zero, it is a fisheye still.
    let k = read(&ros("equidistant", "[0., 0., 0., 0.]")).unwrap();
    assert_eq!(k.distortion, Distortion::Equidistant([0.0; 4]));
}

#[test]
fn what_is_wrong_is_named() {
    let nan = FLAT.replace("495.57", ".nan");
    let negative = FLAT.replace("495.48", "-1");
    let normalised = FLAT.replace("495.57", "0.92");
    let infinite = FLAT.replace("169.19", ".inf");
    let word = FLAT.replace("495.48", "wide");
    let zero = FLAT.replace("540", "0");
    let no_cy = FLAT.replace("cy:", "cyy:");
    let no_width = FLAT.replace("width:", "w:");
    let many = format!("{FLAT}distortion_model: plumb_bob\nk5: 1\n");
    for (text, parts) in [
        (
            nan.as_str(),
            ["a positive number of pixels", "found fx = NaN"],
        ),
        (&negative, ["a positive number of pixels", "found fy = -1"]),
        (
            &normalised,
            ["1/50 of the image's longer side", "found fx = 0.92"],
        ),
        (&infinite, ["a finite number", "found cy = inf"]),
        (
            &word,
            ["a calibration in YAML", "invalid floating point at line 4"],
        ),
        (&zero, ["at least one pixel", "size = 0"]),
        (&no_cy, ["expected cy", "no such key"]),
        (&no_width, ["size as width and height", "no such keys"]),
        (&many, ["at most 5 coefficients of plumb_bob", "7 values"]),
        (
            "width: 4\nheight: 3\ncalibration: [1, 2]\n",
            ["fx, fy, cx, cy", "2 values"],
        ),
        (
            &ros("spherical", "[]"),
            ["plumb_bob, rational_polynomial", "found spherical"],
        ),
        (
            &ros("equidistant", "[1., 2., 3., 4., 5.]"),
            ["4 coefficients", "5 values"],
        ),
        (&ros("plumb_bob", "[.nan]"), ["a finite number", "NaN"]),
        ("- 1\n- 2\n", ["a calibration in YAML", "found"]),
        ("", ["expected", "found"]),
        ("width: [\n", ["a calibration in YAML", "found"]),
    ] {
        let message = read(text).unwrap_err().to_string();
        assert!(message.contains("camera.yaml: expected"), "{message}");
        for part in parts {
            assert!(message.contains(part), "{text}\n{message}");
        }
    }
    let missing = read_calibration(std::path::Path::new("gone.yaml")).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read gone.yaml"));
}

//! Errors of `eval` for trajectories that cannot be read or compared.

use mast3r_slam::eval::{self, Alignment, Delta, EvalError, Options, StampedPose};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::time::Stamp;
use mast3r_slam::trajectory::{self, BadRows};
use nalgebra::Vector3;
use std::path::PathBuf;

/// Poses on a helix, so that every alignment is determined.
fn helix(n: usize) -> Vec<StampedPose> {
    (0..n)
        .map(|k| {
            let u = k as f64 * 0.3;
            StampedPose {
                stamp: Stamp::from_seconds(10.0 + k as f64),
                world_from_camera: Sim3 {
                    translation: Vector3::new(u.cos(), u.sin(), 0.1 * u),
                    ..Sim3::identity()
                },
            }
        })
        .collect()
}

fn file(text: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("poses.txt");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn refusal(text: impl AsRef<[u8]>) -> String {
    let (_folder, path) = file(text);
    trajectory::read(&path, BadRows::Refuse)
        .unwrap_err()
        .to_string()
}

const ROW: &str = "1.0 0 0 0 0 0 0 1\n";

#[test]
fn comments_blank_lines_commas_tabs_and_windows_line_ends_are_read() {
    let (_folder, path) = file(
        "\u{feff}# a comment\r\n\r\n1.000000 1 2 3 0 0 0 2\r\n  1.5,1,2,3,0,0,0,1\n#x\n2,\t1 2 3 0 0 0 1",
    );
    let poses = trajectory::read(&path, BadRows::Refuse).unwrap().poses;
    let stamps: Vec<String> = poses.iter().map(|p| p.stamp.to_string()).collect();
    assert_eq!(stamps, ["1.000000", "1.500000", "2.000000"]);
    for p in &poses {
        assert_eq!(
            p.world_from_camera.to_array(),
            [1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 1.0, 1.0]
        );
    }
}

#[test]
fn eurocs_own_file_is_read() {
    let (_folder, path) = file(
        "#timestamp [ns],p_x,...\n1403636579763555584,1,2,3,0.5,0.5,-0.5,0.5,0,0,0,0,0,0,0,0,0\n",
    );
    let pose = trajectory::read(&path, BadRows::Refuse).unwrap().poses[0];
    assert_eq!(pose.stamp.nanos, 1_403_636_579_763_555_584);
    let array = pose.world_from_camera.to_array();
    assert_eq!(array, [1.0, 2.0, 3.0, 0.5, -0.5, 0.5, 0.5, 1.0]);
}

#[test]
fn a_bad_line_is_named_with_what_was_expected() {
    let text = refusal(format!("# h\n{ROW}\n2.0 1 2 3 0 0 0\n"));
    assert!(
        text.contains("poses.txt:4: expected `timestamp tx"),
        "{text}"
    );
    assert!(text.contains("found 7 columns"), "{text}");
    let text = refusal(format!("{ROW}2.0 1 two 3 0 0 0 1\n"));
    assert!(
        text.contains(":2: expected a number, found \"two\""),
        "{text}"
    );
    let text = refusal(format!("{ROW}99999999999 1 2 3 0 0 0 1\n"));
    assert!(text.contains(":2: expected a time in seconds"), "{text}");
    let text = refusal(format!("{ROW}2.0 nan 2 3 0 0 0 1\n"));
    assert!(text.contains(":2: expected finite numbers"), "{text}");
    let text = refusal(format!("{ROW}2.0 1 2 3 0 0 0 0\n"));
    assert!(
        text.contains(":2:") && text.contains("quaternion"),
        "{text}"
    );
}

#[test]
fn other_files_are_refused_shortly() {
    let png = [&b"\x89PNG\r\n\x1a\n"[..], &[0xfe; 5000]].concat();
    let text = refusal(png);
    assert!(
        text.contains("poses.txt:1: expected") && text.len() < 400,
        "{text}"
    );
    let text = refusal("# only comments\n");
    assert!(text.contains("contains no usable pose"), "{text}");
    let text = trajectory::read("/no/such/file".as_ref(), BadRows::Skip)
        .unwrap_err()
        .to_string();
    assert!(text.contains("/no/such/file"), "{text}");
}

#[test]
fn ground_truth_rows_that_are_not_finite_are_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (estimate, truth) = (folder.path().join("est.txt"), folder.path().join("gt.txt"));
    trajectory::write(&estimate, &helix(10)).unwrap();
    trajectory::write(&truth, &helix(10)).unwrap();
    let mut text = std::fs::read_to_string(&truth).unwrap();
    text.push_str("30 nan nan nan nan nan nan nan\nnan 0 0 0 0 0 0 1\n31 inf 0 0 0 0 0 1\n");
    std::fs::write(&truth, text).unwrap();
    let e = eval::evaluate_files(&estimate, &truth, &Options::default()).unwrap();
    assert_eq!(
        (e.skipped_truth_rows, e.truth_poses, e.errors.len()),
        (3, 10, 10)
    );
    // The files hold nine decimals, so both agree; what is left is rounding.
    assert!(e.ate.max < 1e-12);
    assert!(e.to_string().contains("skipped 3 ground-truth rows"), "{e}");
    // In the estimate they are an error.
    let text = eval::evaluate_files(&truth, &estimate, &Options::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("gt.txt:12: expected finite numbers"),
        "{text}"
    );
    // Nothing left.
    std::fs::write(&truth, "30 nan nan nan nan nan nan nan\n").unwrap();
    let text = eval::evaluate_files(&estimate, &truth, &Options::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("skipped rows with non-finite numbers: 1"),
        "{text}"
    );
}

#[test]
fn trajectories_of_different_clocks_are_refused_with_their_ranges() {
    let mut truth = helix(5);
    for p in &mut truth {
        p.stamp.nanos += 1_000_000_000_000;
    }
    let text = eval::evaluate(&helix(5), &truth, &Options::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("10.000000 to 14.000000") && text.contains("1010.000000"),
        "{text}"
    );
    let options = Options {
        offset: 1000.0,
        ..Options::default()
    };
    assert!(eval::evaluate(&helix(5), &truth, &options).unwrap().ate.max < 1e-12);
}

#[test]
fn an_undetermined_alignment_is_refused_but_none_is_fine() {
    let line: Vec<_> = helix(5)
        .into_iter()
        .enumerate()
        .map(|(k, mut p)| {
            p.world_from_camera.translation = Vector3::x() * k as f64;
            p
        })
        .collect();
    let refused = eval::evaluate(&line, &line, &Options::default());
    assert!(
        matches!(refused, Err(EvalError::Degenerate { pairs: 5 })),
        "{refused:?}"
    );
    let one = eval::evaluate(&helix(1), &helix(9), &Options::default());
    assert!(
        matches!(one, Err(EvalError::Degenerate { pairs: 1 })),
        "{one:?}"
    );
    let options = Options {
        alignment: Alignment::None,
        ..Options::default()
    };
    let one = eval::evaluate(&helix(1), &helix(9), &options).unwrap();
    assert_eq!(
        (one.ate.rmse, one.rpe_translation, one.ate_percent),
        (0.0, None, None)
    );
    assert!(one.to_string().contains("too few poses"));
    serde_json::to_string(&one.to_json()).unwrap();
}

#[test]
fn settings_and_poses_are_checked() {
    let with = |change: fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        eval::evaluate(&helix(5), &helix(5), &options).map_err(|e| e.to_string())
    };
    assert!(
        with(|o| o.tolerance = -1.0)
            .unwrap_err()
            .contains("tolerance is -1")
    );
    assert!(
        with(|o| o.tolerance = f64::NAN)
            .unwrap_err()
            .contains("tolerance is NaN")
    );
    assert!(
        with(|o| o.offset = f64::INFINITY)
            .unwrap_err()
            .contains("offset is inf")
    );
    assert!(
        with(|o| o.delta = Delta::Frames(0))
            .unwrap_err()
            .contains("at least one frame")
    );
    assert!(
        with(|o| o.delta = Delta::Metres(0.0))
            .unwrap_err()
            .contains("positive number")
    );
    let mut broken = helix(5);
    broken[3].world_from_camera.translation.y = f64::NAN;
    let text = eval::evaluate(&broken, &helix(5), &Options::default())
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("pose 3 of the estimate (stamp 13.000000)"),
        "{text}"
    );
    let none = eval::evaluate(&[], &helix(5), &Options::default());
    assert!(matches!(none, Err(EvalError::Empty("estimate"))));
}

#[test]
fn path_percent_and_order_are_reported() {
    let truth = helix(21);
    let chord =
        (truth[1].world_from_camera.translation - truth[0].world_from_camera.translation).norm();
    // Every 4th pose from the 5th to the 17th: twelve steps of ground truth lie between.
    let estimate: Vec<_> = truth[4..17].iter().copied().step_by(4).collect();
    let e = eval::evaluate(&estimate, &truth, &Options::default()).unwrap();
    assert!((e.path_length - 12.0 * chord).abs() < 1e-12);
    assert!(!e.unordered);
    let mut turned = truth.clone();
    turned.swap(3, 9);
    let e = eval::evaluate(&turned, &truth, &Options::default()).unwrap();
    assert!(e.unordered && e.to_string().contains("out of order"), "{e}");
}

//! `mast3r-slam splat`: files of splats.

use std::path::Path;
use std::process::Output;
use testkit::program::{assert_failed, message, program, text};

fn splat(args: &[&str]) -> Output {
    let mut command = program(&["splat"]);
    command.args(args).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", message(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A PLY of `count` splats of degree 0, one value of which may be replaced.
fn ply(path: &Path, count: usize, value: Option<f32>) {
    let names = "x y z nx ny nz f_dc_0 f_dc_1 f_dc_2 opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3";
    let mut file = format!("ply\nformat binary_little_endian 1.0\nelement vertex {count}\n");
    for name in names.split(' ') {
        file += &format!("property float {name}\n");
    }
    file += "end_header\n";
    let mut bytes = file.into_bytes();
    for row in 0..count {
        let mut values = [0.25f32; 17];
        values[0] = row as f32;
        values[13] = 1.0;
        if row == 3 {
            values[9] = value.unwrap_or(values[9]);
        }
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }
    std::fs::write(path, bytes).expect("a file");
}

#[test]
fn a_file_is_converted_there_and_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    ply(&path("a.ply"), 300, None);
    let files = [
        ("a.ply", "b.compressed.ply", "compressed PLY"),
        ("b.compressed.ply", "c.spz", "spz 4"),
        ("c.spz", "d.ply", "PLY (3DGS)"),
    ];
    for (from, to, format) in files {
        let (from, to) = (path(from), path(to));
        let text_of = said(&splat(&["convert", text(&from), text(&to)]));
        assert!(
            text_of.contains("300 rows") && text_of.contains(format),
            "{text_of}"
        );
        let text_of = said(&splat(&["info", text(&to)]));
        assert!(
            text_of.contains("rows: 300") && text_of.contains(format),
            "{text_of}"
        );
        assert!(text_of.contains("x 0.00 … 299.00"), "{text_of}");
    }
    assert_eq!(
        path("a.ply").metadata().expect("a file").len(),
        path("d.ply").metadata().expect("a file").len()
    );
}

#[test]
fn bad_files_and_names_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let (good, bad, out) = (path("good.ply"), path("bad.ply"), path("out.ply"));
    ply(&good, 10, None);
    ply(&bad, 10, Some(f32::NAN));
    let output = splat(&["convert", text(&bad), text(&out)]);
    assert_failed(&output, &["bad.ply", "opacity", "row 3"]);
    assert!(!out.exists());
    std::fs::write(&out, b"mine").expect("a file");
    let refused = splat(&["convert", text(&good), text(&out)]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(message(&refused).contains("--force"));
    assert_eq!(std::fs::read(&out).expect("a file"), b"mine");
    said(&splat(&["convert", text(&good), text(&out), "--force"]));
    let other = splat(&["convert", text(&good), text(&path("a.splat"))]);
    assert_eq!(other.status.code(), Some(2));
    assert!(message(&other).contains(".compressed.ply"));
    std::fs::write(&bad, b"solid\n").expect("a file");
    assert_failed(&splat(&["info", text(&bad)]), &["not a file of splats"]);
    assert_failed(&splat(&["info", text(&path("no.ply"))]), &["cannot read"]);
}

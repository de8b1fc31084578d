//! Files of Gaussian splats: what is written is read back, sizes are exact, and bad files are named errors.

use mast3r_slam::map::splat::{
    self, Format, MAX_ROWS, Reader, Splat, SplatFileError, SplatRows, Splats, coefficients,
};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const ALL: [(Format, &str); 3] = [
    (Format::Ply, "a.ply"),
    (Format::CompressedPly, "a.compressed.ply"),
    (Format::Spz, "a.spz"),
];

/// A repeatable sequence of numbers in `[-1, 1]`.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

fn random(count: usize, degree: u8) -> Splats {
    let mut numbers = Numbers(u64::from(degree) + 7);
    let mut splats = Splats::new(degree);
    for _ in 0..count {
        let mut n = || numbers.next();
        let mut row = Splat {
            mean: [4.0 * n(), 2.0 * n(), 6.0 * n()],
            dc: [1.5 * n(), 1.5 * n(), 1.5 * n()],
            rest: [0.0; 45],
            scale: [n() - 4.0, n() - 4.0, n() - 4.0],
            rotation: [2.0 * n(), n(), n(), n()],
            opacity: 3.0 * n(),
        };
        for value in &mut row.rest[..3 * coefficients(degree)] {
            *value = 0.5 * n();
        }
        splats.push(&row);
    }
    splats
}

fn written(folder: &TempDir, name: &str, format: Format, splats: &mut Splats) -> PathBuf {
    let path = folder.path().join(name);
    let bytes = splat::write(&path, format, splats).unwrap();
    assert_eq!(bytes, fs::metadata(&path).unwrap().len(), "{name}");
    path
}

fn rows(path: &Path) -> Vec<Splat> {
    let mut reader = Reader::open(path).unwrap();
    let mut all = Vec::new();
    let mut row = Splat::default();
    while reader.next(&mut row).unwrap() {
        all.push(row);
    }
    all
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Angle between two rotations, in radians.
fn angle(a: [f32; 4], b: [f32; 4]) -> f32 {
    let dot = |a: [f32; 4], b: [f32; 4]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    2.0 * (dot(a, b).abs() / (dot(a, a) * dot(b, b)).sqrt())
        .min(1.0)
        .acos()
}

#[test]
fn a_ply_is_read_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for degree in 0..=3 {
        let mut splats = random(40_000, degree);
        let path = written(&folder, "a.ply", Format::Ply, &mut splats);
        assert_eq!(splat::load(&path, MAX_ROWS).unwrap(), splats);
    }
}

#[test]
fn sizes_are_those_of_the_layouts() {
    let folder = tempfile::tempdir().unwrap();
    for (degree, floats, rest) in [(0, 17, 0), (1, 26, 9), (2, 41, 24), (3, 62, 45)] {
        for count in [0usize, 1, 255, 256, 257] {
            let mut splats = random(count, degree);
            let header = |path: &Path| {
                let content = fs::read(path).unwrap();
                let end = b"end_header\n";
                let at = content.windows(end.len()).position(|w| w == end).unwrap();
                at + end.len()
            };
            let path = written(&folder, "a.ply", Format::Ply, &mut splats);
            let bytes = fs::metadata(&path).unwrap().len() as usize;
            assert_eq!(bytes, header(&path) + 4 * floats * count);
            let path = written(&folder, "b.ply", Format::CompressedPly, &mut splats);
            let bytes = fs::metadata(&path).unwrap().len() as usize;
            let content = 72 * count.div_ceil(256) + (16 + rest) * count;
            assert_eq!(bytes, header(&path) + content);
        }
    }
}

#[test]
fn the_header_of_a_ply_is_that_of_3dgs() {
    let folder = tempfile::tempdir().unwrap();
    let mut splats = random(2, 3);
    let path = written(&folder, "a.ply", Format::Ply, &mut splats);
    let content = fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&content);
    let names: Vec<&str> = text
        .lines()
        .take_while(|line| *line != "end_header")
        .filter_map(|line| line.strip_prefix("property float "))
        .collect();
    let rest: Vec<String> = (0..45).map(|k| format!("f_rest_{k}")).collect();
    let mut expected = vec![
        "x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2",
    ];
    expected.extend(rest.iter().map(String::as_str));
    expected.extend([
        "opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3",
    ]);
    assert_eq!(names, expected);
    // Higher coefficients are ordered by colour: the sixteenth is the first of green.
    let first = content.len() - 2 * 248;
    let at = first + 4 * (9 + 15);
    let green = f32::from_le_bytes(content[at..at + 4].try_into().unwrap());
    assert_eq!(green, splats.get(0).unwrap().rest[1]);
}

#[test]
fn quantised_formats_are_read_back_within_their_steps() {
    let folder = tempfile::tempdir().unwrap();
    for degree in 0..=3 {
        let mut splats = random(3000, degree);
        let path = written(&folder, "a.spz", Format::Spz, &mut splats);
        let found = rows(&path);
        assert_eq!(found.len(), 3000);
        for (k, b) in found.iter().enumerate() {
            let a = splats.get(k).unwrap();
            for i in 0..3 {
                assert!((a.mean[i] - b.mean[i]).abs() <= 0.5 / 4096.0 + 1e-6);
                assert!((a.scale[i] - b.scale[i]).abs() <= 0.5 / 16.0 + 1e-5);
                assert!((a.dc[i] - b.dc[i]).abs() <= 0.5 / 255.0 / 0.15 + 1e-5);
            }
            assert!((sigmoid(a.opacity) - sigmoid(b.opacity)).abs() <= 0.6 / 255.0);
            assert!(angle(a.rotation, b.rotation) < 0.01);
            for (i, (a, b)) in a.rest.iter().zip(b.rest).enumerate() {
                let step = if i < 9 { 8.0 } else { 16.0 } / 128.0;
                assert!(
                    (a - b).abs() <= 0.5 * step + 0.5 / 128.0 + 1e-6,
                    "{i}: {a} {b}"
                );
            }
        }
        // The order of a compressed PLY is its own: each row is found by its nearest centre.
        let path = written(
            &folder,
            "a.compressed.ply",
            Format::CompressedPly,
            &mut splats,
        );
        let found = rows(&path);
        assert_eq!(found.len(), 3000);
        let all: Vec<Splat> = (0..3000).filter_map(|k| splats.get(k)).collect();
        let mut taken = vec![false; 3000];
        for b in &found {
            let distance = |a: &Splat| -> f32 {
                a.mean
                    .iter()
                    .zip(b.mean)
                    .map(|(a, b)| (a - b).powi(2))
                    .sum()
            };
            let k = (0..3000).min_by(|i, j| distance(&all[*i]).total_cmp(&distance(&all[*j])));
            let k = k.unwrap();
            assert!(
                !std::mem::replace(&mut taken[k], true),
                "row {k} occurs twice"
            );
            let a = all[k];
            // A chunk is at most as large as the cloud.
            assert!(distance(&a).sqrt() < 0.012);
            assert!(angle(a.rotation, b.rotation) < 0.006);
            assert!((sigmoid(a.opacity) - sigmoid(b.opacity)).abs() <= 0.6 / 255.0);
            for i in 0..3 {
                assert!((a.scale[i] - b.scale[i]).abs() <= 2.0 / 1023.0);
                assert!((a.dc[i] - b.dc[i]).abs() <= 3.0 / 255.0);
            }
            for (a, b) in a.rest.iter().zip(b.rest) {
                assert!((a - b).abs() <= 4.0 / 256.0 + 1e-6);
            }
        }
    }
}

#[test]
fn the_axes_of_an_spz_are_right_up_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut splats = Splats::new(0);
    splats.push(&Splat {
        mean: [1.0, 2.0, -3.0],
        ..Splat::default()
    });
    let path = written(&folder, "a.spz", Format::Spz, &mut splats);
    let content = fs::read(&path).unwrap();
    assert_eq!(&content[..4], b"NGSP");
    let size = u64::from_le_bytes(content[32..40].try_into().unwrap()) as usize;
    let first = 32 + 5 * 16;
    let positions = zstd::decode_all(&content[first..first + size]).unwrap();
    // Steps of 1/4096: 1, -2, 3 in 24 bits.
    assert_eq!(
        positions,
        [0x00, 0x10, 0x00, 0x00, 0xe0, 0xff, 0x00, 0x30, 0x00]
    );
}

#[test]
fn a_file_that_is_cut_or_has_more_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut splats = random(300, 1);
    for (format, name) in ALL {
        let path = written(&folder, name, format, &mut splats);
        let content = fs::read(&path).unwrap();
        for size in [
            content.len() - 1,
            content.len() / 2,
            content.len() + 1,
            40,
            10,
            0,
        ] {
            let mut other = content.clone();
            other.resize(size, 0);
            let bad = folder.path().join("bad");
            fs::write(&bad, &other).unwrap();
            let error = Reader::open(&bad).expect_err(name);
            let named = matches!(
                error,
                SplatFileError::Length { .. } | SplatFileError::Format { .. }
            );
            assert!(named, "{name} of {size} bytes: {error}");
        }
    }
}

#[test]
fn values_that_are_not_finite_are_named_with_their_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut splats = random(20, 0);
    splats.push(&Splat {
        mean: [0.0, f32::NAN, 0.0],
        ..Splat::default()
    });
    let path = written(&folder, "a.ply", Format::Ply, &mut splats);
    let error = splat::load(&path, MAX_ROWS).unwrap_err();
    assert!(
        matches!(error, SplatFileError::Row { row: 20, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("position"), "{error}");
}

#[test]
fn other_layouts_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ply");
    let float = |names: &[&str]| -> String {
        names
            .iter()
            .map(|n| format!("property float {n}\n"))
            .collect()
    };
    let base = [
        "x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1", "scale_2",
        "rot_0", "rot_1", "rot_2", "rot_3",
    ];
    let head = "ply\nformat binary_little_endian 1.0\nelement vertex 0\n";
    // Normals are optional.
    fs::write(&path, format!("{head}{}end_header\n", float(&base))).unwrap();
    assert_eq!(Reader::open(&path).unwrap().info().count, 0);
    for (text, word) in [
        (format!("{head}{}end_header\n", float(&base[1..])), "no x"),
        (
            format!(
                "{head}{}property float f_rest_0\nend_header\n",
                float(&base)
            ),
            "higher coefficients",
        ),
        (
            format!("{head}property double x\n{}end_header\n", float(&base[1..])),
            "not float",
        ),
        (
            "ply\nformat ascii 1.0\nelement vertex 0\nend_header\n".to_owned(),
            "ascii",
        ),
        ("solid\n".to_owned(), "start with ply"),
        ("\u{1f}\u{8b}".to_owned(), "ply"),
    ] {
        fs::write(&path, &text).unwrap();
        let error = Reader::open(&path).unwrap_err();
        assert!(matches!(error, SplatFileError::Format { .. }), "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    fs::write(&path, [0x1f, 0x8b, 8, 0, 0]).unwrap();
    let error = Reader::open(&path).unwrap_err().to_string();
    assert!(error.contains("before version 4"), "{error}");
}

#[test]
fn a_limit_of_rows_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(&folder, "a.ply", Format::Ply, &mut random(11, 0));
    assert_eq!(splat::load(&path, 11).unwrap().len(), 11);
    let error = splat::load(&path, 10).unwrap_err();
    assert!(matches!(
        error,
        SplatFileError::TooMany {
            found: 11,
            max: 10,
            ..
        }
    ));
}

/// Rows that end before they said.
struct Short(Splats);

impl SplatRows for Short {
    fn count(&self) -> u64 {
        self.0.count() + 1
    }
    fn degree(&self) -> u8 {
        self.0.degree()
    }
    fn read(&mut self, first: u64, dst: &mut [Splat]) -> io::Result<()> {
        self.0.read(first, dst)
    }
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    for (format, name) in ALL {
        let path = folder.path().join(name);
        fs::write(&path, b"old").unwrap();
        assert!(splat::write(&path, format, &mut Short(random(3, 0))).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}

#[test]
fn names_say_the_format() {
    for (format, name) in ALL {
        assert_eq!(Format::of(Path::new(name)), Some(format));
    }
    assert_eq!(Format::of(Path::new("a/B.PLY")), Some(Format::Ply));
    assert_eq!(Format::of(Path::new("a.splat")), None);
}

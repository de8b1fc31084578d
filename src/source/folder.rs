//! Plain folders of images.

use super::SourceError;
use super::calibration::read_calibration;
use super::entry::Entry;
use super::list::{Camera, Listing};
use super::names::{has_extension, names};
use super::stream::GroundTruth;
use crate::time::Stamp;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

const IMAGES: [&str; 10] = [
    "png", "jpg", "jpeg", "bmp", "tif", "tiff", "webp", "ppm", "pgm", "pnm",
];

pub(super) fn list(folder: &Path) -> Result<Listing, SourceError> {
    let files = images(folder)?;
    let entries = match times(&files) {
        Some(mut timed) => {
            timed.sort_by_key(|timed| timed.0);
            if let Some([a, b]) = timed.windows(2).find_map(|w| match w {
                [a, b] if a.0 == b.0 => Some([a, b]),
                _ => None,
            }) {
                return Err(SourceError::content(
                    &folder.join(&b.1),
                    "a unique time in each file name",
                    format!("{}, which is also the time of {}", b.0, a.1.display()),
                ));
            }
            timed
                .into_iter()
                .map(|(stamp, name)| Entry {
                    stamp,
                    path: folder.join(name),
                })
                .collect()
        }
        None => files
            .into_iter()
            .enumerate()
            .map(|(i, name)| Entry {
                stamp: at_30_hz(i),
                path: folder.join(name),
            })
            .collect(),
    };
    let yaml = folder.join("camera.yaml");
    let calibration = yaml
        .is_file()
        .then(|| read_calibration(&yaml))
        .transpose()?;
    let truth = folder.join("groundtruth.txt");
    Ok(Listing {
        kind: "folder of images",
        entries,
        camera: Camera::or_unknown(calibration),
        depth: None,
        always_undistort: false,
        ground_truth: truth.is_file().then_some(GroundTruth::File(truth)),
    })
}

/// Image files in a folder, in natural order.
pub(super) fn images(folder: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let mut files = names(folder)?;
    files.retain(|name| has_extension(name, &IMAGES));
    sort_naturally(&mut files);
    Ok(files)
}

/// Sorts so that `frame2` comes before `frame10`.
pub(super) fn sort_naturally(names: &mut [PathBuf]) {
    names.sort_by(|a, b| natural_order(&a.to_string_lossy(), &b.to_string_lossy()));
}

/// Compares runs of digits as numbers and everything else by character; equal numbers with
/// different leading zeros are compared as text.
fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a, b);
    loop {
        let (Some(p), Some(q)) = (x.chars().next(), y.chars().next()) else {
            return x.len().cmp(&y.len()).then_with(|| a.cmp(b));
        };
        let order = if p.is_ascii_digit() && q.is_ascii_digit() {
            let (digits_x, digits_y) = (take_digits(&mut x), take_digits(&mut y));
            let (n, m) = (
                digits_x.trim_start_matches('0'),
                digits_y.trim_start_matches('0'),
            );
            n.len().cmp(&m.len()).then_with(|| n.cmp(m))
        } else {
            x = &x[p.len_utf8()..];
            y = &y[q.len_utf8()..];
            p.cmp(&q)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn take_digits<'a>(text: &mut &'a str) -> &'a str {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    digits
}

fn at_30_hz(index: usize) -> Stamp {
    Stamp {
        nanos: (index as i128 * 1_000_000_000 / 30) as i64,
    }
}

/// The stamps, if every file name is a time: seconds with a decimal point, or nanoseconds with 18
/// digits or more. Small integers are frame numbers, not times.
fn times(names: &[PathBuf]) -> Option<Vec<(Stamp, PathBuf)>> {
    names
        .iter()
        .map(|name| Some((time_of(name.file_stem()?.to_str()?)?, name.clone())))
        .collect()
}

fn time_of(stem: &str) -> Option<Stamp> {
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    match stem.split_once('.') {
        Some((whole, fraction)) if digits(whole) && digits(fraction) => stem.parse().ok(),
        None if digits(stem) && stem.len() >= 18 => Some(Stamp {
            nanos: stem.parse().ok()?,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_in_names_count() {
        let mut names: Vec<PathBuf> = [
            "b1.png",
            "a10.png",
            "a2.png",
            "a02.png",
            "a1b3.png",
            "a1b20.png",
            "a.png",
            "10.png",
            "9.png",
        ]
        .iter()
        .map(PathBuf::from)
        .collect();
        sort_naturally(&mut names);
        let sorted: Vec<_> = names.iter().filter_map(|n| n.to_str()).collect();
        assert_eq!(
            sorted,
            [
                "9.png",
                "10.png",
                "a.png",
                "a1b3.png",
                "a1b20.png",
                "a02.png",
                "a2.png",
                "a10.png",
                "b1.png"
            ]
        );
    }

    #[test]
    fn names_are_times_only_when_they_look_like_it() {
        let nanos = |stem| time_of(stem).map(|s| s.nanos);
        assert_eq!(nanos("1305031102.175304"), Some(1_305_031_102_175_304_000));
        assert_eq!(
            nanos("1403636579763555584"),
            Some(1_403_636_579_763_555_584)
        );
        assert_eq!(nanos("0.200000"), Some(200_000_000));
        for stem in [
            "000123",
            "frame-1.5",
            "1.2.3",
            ".5",
            "5.",
            "",
            "20240101120000",
        ] {
            assert_eq!(nanos(stem), None, "{stem}");
        }
    }

    proptest! {
        #[test]
        fn natural_order_is_an_order(a in "[a-c0-2.]{0,6}", b in "[a-c0-2.]{0,6}", c in "[a-c0-2.]{0,6}") {
            prop_assert_eq!(natural_order(&a, &b), natural_order(&b, &a).reverse());
            prop_assert_eq!(natural_order(&a, &b) == Ordering::Equal, a == b);
            if natural_order(&a, &b).is_le() && natural_order(&b, &c).is_le() {
                prop_assert!(natural_order(&a, &c).is_le());
            }
        }
    }
}

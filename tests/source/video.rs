//! Videos through the real programs where they are installed, and the message where they are not.

use mast3r_slam::source::{Layout, SourceFrame, SourceOptions, detect, open};
use std::path::Path;
use std::process::Command;
use testkit::needs::ffmpeg;
use testkit::program::{assert_failed, program, text};

/// `count` frames of 64×48 at 10 Hz, frame n of red n·20, through `ffmpeg` with `arguments`.
fn encode(path: &Path, count: u8, arguments: &[&str]) {
    let raw = path.with_extension("raw");
    let pixels: Vec<u8> = (0..count)
        .flat_map(|n| [n * 20, 100, 200].repeat(64 * 48))
        .collect();
    std::fs::write(&raw, pixels).unwrap();
    let output = Command::new("ffmpeg")
        .args([
            "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "64x48",
        ])
        .args(["-r", "10", "-i"])
        .arg(&raw)
        .args(arguments)
        .arg(path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn read(path: &Path, options: SourceOptions) -> (String, Option<usize>, Vec<SourceFrame>) {
    let mut source = open(path, options).unwrap();
    let (about, remaining) = (source.describe(), source.remaining());
    let mut frames = Vec::new();
    while let Some(frame) = source.next_frame().unwrap() {
        frames.push(frame);
    }
    (about, remaining, frames)
}

#[test]
fn a_missing_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.mp4");
    std::fs::write(&path, b"x").unwrap();
    let out = dir.path().join("out");
    let ran = program(&["run", text(&path), "--out", text(&out)])
        .env("PATH", dir.path())
        .output()
        .expect("the program starts");
    assert_failed(&ran, &["not found", "install FFmpeg"]);
}

#[test]
fn uneven_times_come_from_the_decoder_and_no_frame_is_doubled_or_dropped() {
    if ffmpeg().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("uneven.mkv");
    // Ticks of a tenth: 0, 1, 3, 6, 10, …
    let lossless = [
        "-vf",
        "setpts=N*(N+1)/2",
        "-c:v",
        "ffv1",
        "-pix_fmt",
        "bgr0",
    ];
    encode(&path, 8, &lossless);
    assert_eq!(detect(&path).unwrap(), Layout::Video);
    let (_, _, frames) = read(&path, SourceOptions::default());
    let times: Vec<i64> = frames.iter().map(|f| f.stamp.nanos / 1_000_000).collect();
    assert_eq!(times, [0, 100, 300, 600, 1000, 1500, 2100, 2800]);
    for (n, frame) in frames.iter().enumerate() {
        assert_eq!((frame.image.width, frame.image.height), (64, 48));
        assert_eq!(frame.index, n);
        assert_eq!(frame.image.data[..3], [n as u8 * 20, 100, 200]);
    }
    let options = SourceOptions {
        start: 1,
        end: Some(6),
        stride: 2,
        calibration: None,
        depth: None,
    };
    let (about, remaining, frames) = read(&path, options);
    assert_eq!((about.as_str(), remaining), ("video, 3 frames", Some(3)));
    let found: Vec<(usize, u8, i64)> = frames
        .iter()
        .map(|f| (f.index, f.image.data[0] / 20, f.stamp.nanos / 1_000_000))
        .collect();
    assert_eq!(found, [(1, 1, 100), (3, 3, 600), (5, 5, 1500)]);
}

/// A playlist makes ffmpeg read the files that it names, which its author chooses.
#[test]
fn a_playlist_with_a_video_s_name_is_refused() {
    if ffmpeg().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.mp4");
    encode(&other, 3, &["-c:v", "mpeg4"]);
    let path = other.display();
    let playlists = [
        format!(
            "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{path}\n#EXT-X-ENDLIST\n"
        ),
        "ffconcat version 1.0\nfile other.mp4\n".to_owned(),
    ];
    for text in playlists {
        let playlist = dir.path().join("walk.mp4");
        std::fs::write(&playlist, &text).unwrap();
        let error = open(&playlist, SourceOptions::default()).err();
        let error = error
            .unwrap_or_else(|| panic!("read through {text}"))
            .to_string();
        assert!(error.contains("not a playlist"), "{error}");
    }
}

#[test]
fn frames_stored_out_of_order_come_in_order_and_are_counted() {
    if ffmpeg().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b_frames.mp4");
    encode(&path, 12, &["-c:v", "mpeg4", "-bf", "2", "-q:v", "2"]);
    let (about, remaining, frames) = read(&path, SourceOptions::default());
    assert_eq!((about.as_str(), remaining), ("video, 12 frames", Some(12)));
    let reds: Vec<u8> = frames.iter().map(|f| f.image.data[0]).collect();
    assert!(reds.windows(2).all(|w| w[0] < w[1]), "{reds:?}");
    assert_eq!(reds.len(), 12);
    for (n, frame) in frames.iter().enumerate() {
        // Tenths of a second, from the container's start (mp4 may shift it by the reordering).
        let since = frame.stamp.nanos - frames[0].stamp.nanos;
        assert_eq!(since, n as i64 * 100_000_000);
    }
    let beyond = SourceOptions {
        start: 12,
        ..SourceOptions::default()
    };
    let text = open(&path, beyond).err().unwrap().to_string();
    assert_eq!(
        text,
        "start: expected less than the number of frames, 12, found 12"
    );

    let bytes = std::fs::read(&path).unwrap();
    for (name, part) in [("empty.mp4", 0), ("cut.mp4", bytes.len() / 2)] {
        let broken = dir.path().join(name);
        std::fs::write(&broken, &bytes[..part]).unwrap();
        let text = open(&broken, SourceOptions::default())
            .err()
            .unwrap()
            .to_string();
        assert!(
            text.contains(name) && text.contains("expected a video"),
            "{text}"
        );
    }
}

use super::*;
use std::sync::MutexGuard;

/// Serialises the tests: a program that is being written while another test starts a process cannot
/// be run ("text file busy").
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn messages_of_ffmpeg_4_to_9_are_understood() {
    let ticks = |line| match parse_message(line) {
        Some(Message::Frame(ticks, size)) => Some((ticks, size)),
        _ => None,
    };
    let old = "[Parsed_showinfo_1 @ 0x55d0] n:   3 pts:   1536 pts_time:0.1     pos:  1234 \
               fmt:yuv420p sar:1/1 s:640x480 i:P iskey:0 type:P";
    assert_eq!(ticks(old), Some((Some(1536), Some((640, 480)))));
    let new = "[Parsed_showinfo_1 @ 0x55d0] n:  12 pts:-512 pts_time:-0.033 duration: 512 \
               duration_time:0.033 fmt:yuv420p cl:left sar:1/1 s:64x48 i:P";
    assert_eq!(ticks(new), Some((Some(-512), Some((64, 48)))));
    let none = "[Parsed_showinfo_1 @ 0x55d0] n:   0 pts: NOPTS pts_time:NOPTS s:64x48";
    assert_eq!(ticks(none), Some((None, Some((64, 48)))));
    let config = "[Parsed_showinfo_1 @ 0x1] config in time_base: 1/15360, frame_rate: 30/1";
    assert!(matches!(
        parse_message(config),
        Some(Message::TimeBase(1, 15360))
    ));
    let out = "[Parsed_showinfo_1 @ 0x1] config out time_base: 0/0, frame_rate: 0/0";
    assert!(parse_message(out).is_none());
    assert!(matches!(
        parse_message("moov atom not found"),
        Some(Message::Other(_))
    ));
}

#[test]
fn a_missing_program_is_named_with_what_to_do() {
    let _alone = alone();
    let programs = Programs {
        ffmpeg: PathBuf::from("/nowhere/ffmpeg"),
        ffprobe: PathBuf::from("/nowhere/ffprobe"),
    };
    let text = open(Path::new("a.mp4"), &programs, &SourceOptions::default())
        .err()
        .unwrap()
        .to_string();
    assert!(text.starts_with("ffprobe: not found"), "{text}");
    assert!(text.contains("install FFmpeg"), "{text}");
    let text = passthrough(&programs).unwrap_err().to_string();
    assert!(text.starts_with("ffmpeg: not found"), "{text}");
}

/// Scripts that print and send what a test specifies.
#[cfg(unix)]
mod stand_ins {
    use super::*;
    use crate::source::Source;
    use std::os::unix::fs::PermissionsExt;

    fn script(folder: &Path, name: &str, body: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// 2×1 pixels, six bytes per frame.
    fn programs(folder: &Path, probe: &str, ffmpeg: &str) -> Programs {
        let version = "if [ \"$1\" = -version ]; then echo ffmpeg version 6.0 x; exit; fi\n";
        Programs {
            ffprobe: script(folder, "ffprobe", probe),
            ffmpeg: script(folder, "ffmpeg", &format!("{version}{ffmpeg}")),
        }
    }

    const PROBE: &str = r#"echo '{"streams":[{"width":2,"height":1}]}'"#;

    fn read(programs: &Programs) -> Vec<Result<(i64, Vec<u8>), String>> {
        let options = SourceOptions::default();
        let mut source = open(Path::new("a.mp4"), programs, &options).unwrap();
        assert_eq!(source.remaining(), None);
        let mut frames = Vec::new();
        loop {
            match source.next_frame() {
                Ok(Some(frame)) => frames.push(Ok((frame.stamp.nanos, frame.image.data))),
                Ok(None) => return frames,
                Err(e) => frames.push(Err(e.to_string())),
            }
        }
    }

    const HEAD: &str = "echo '[Parsed_showinfo_1 @ 0] config in time_base: 1/90000, x' >&2\n";

    #[test]
    fn times_are_the_stream_s_own_and_bad_ones_are_skippable() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let frame = |ticks: &str, size: &str, bytes: &str| {
            format!(
                "echo '[Parsed_showinfo_1 @ 0] n: 0 pts: {ticks} pts_time:0 s:{size} ' >&2\n\
                 printf {bytes}\n"
            )
        };
        let body = [
            HEAD.to_owned(),
            frame("0", "2x1", "abcdef"),
            // 3003 / 90000 s: 30000/1001 Hz, truncated to nanoseconds.
            frame("3003", "2x1", "ghijkl"),
            frame("3003", "2x1", "mnopqr"),
            frame("NOPTS", "2x1", "stuvwx"),
            frame("9009", "4x2", "yzabcd"),
            frame("12012", "2x1", "efghij"),
        ]
        .concat();
        let frames = read(&programs(folder.path(), PROBE, &body));
        assert_eq!(frames.len(), 6);
        assert_eq!(frames[0], Ok((0, b"abcdef".to_vec())));
        assert_eq!(frames[1], Ok((33_366_666, b"ghijkl".to_vec())));
        for (k, part) in [
            (2, "expected a time after 0.033366666"),
            (3, "expected a presentation time"),
            (
                4,
                "expected frames of 2×1 pixels, the size of the first, found 4×2",
            ),
        ] {
            let text = frames[k].as_ref().unwrap_err();
            assert!(text.contains(part) && text.contains("a.mp4"), "{text}");
        }
        assert_eq!(frames[5], Ok((133_466_666, b"efghij".to_vec())));
    }

    #[test]
    fn a_failure_is_reported_once_with_the_programs_words() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let body = format!(
            "{HEAD}echo '[Parsed_showinfo_1 @ 0] n: 0 pts: 0 s:2x1' >&2\nprintf abcdefgh\n\
             echo 'a.mp4: Invalid data found' >&2\nexit 1\n"
        );
        let frames = read(&programs(folder.path(), PROBE, &body));
        assert_eq!(frames.len(), 2);
        assert!(frames[0].is_ok());
        let text = frames[1].as_ref().unwrap_err();
        assert!(
            text.contains("after frame 1") && text.contains("Invalid data found"),
            "{text}"
        );
    }

    #[test]
    fn what_ffprobe_rejects_is_refused() {
        let _alone = alone();
        for (probe, part) in [
            (
                "echo 'moov atom not found' >&2; exit 1",
                "found moov atom not found",
            ),
            (
                "echo '{\"streams\":[]}'",
                "expected a video stream, found none",
            ),
            ("echo '{}'", "expected a video stream, found none"),
            ("echo nonsense", "cannot parse"),
            ("echo '{\"streams\":[{\"width\":0,\"height\":9}]}'", "0×9"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let programs = programs(folder.path(), probe, "exit 1");
            let text = open(Path::new("a.mp4"), &programs, &SourceOptions::default())
                .err()
                .unwrap()
                .to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_turned_video_is_as_it_is_shown() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let probe = r#"echo '{"streams":[{"width":640,"height":480,"nb_frames":"7",
            "side_data_list":[{"rotation":-90}]}]}'"#;
        let programs = programs(folder.path(), probe, "exit 0");
        let found = super::super::probe(Path::new("a.mp4"), &programs).unwrap();
        assert_eq!(found, ((480, 640), Some(7)));
    }

    #[test]
    fn dropping_the_source_ends_the_program() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        // Would run for a minute without sending anything more.
        let body = format!(
            "{HEAD}echo $$ > {0}.new; mv {0}.new {0}\nexec sleep 60\n",
            pid.display()
        );
        let programs = programs(folder.path(), PROBE, &body);
        let source = open(Path::new("a.mp4"), &programs, &SourceOptions::default()).unwrap();
        while !pid.exists() {
            std::thread::yield_now();
        }
        let id = std::fs::read_to_string(&pid).unwrap();
        let process = Path::new("/proc").join(id.trim());
        let can_see = process.exists();
        drop(source);
        // The process was waited for, so it is gone rather than just exiting.
        assert!(can_see || !cfg!(target_os = "linux"));
        assert!(!process.exists());
    }
}

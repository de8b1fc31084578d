//! `run --map FILE`: a map in its file as it is made, whatever ends the program.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use testkit::patience::patience;
use testkit::program::{Scene, assert_failed, executable, message, program, run, text};
use testkit::skip::{Need, skip};

/// Times that the program is killed, unless MAST3R_KILLS says otherwise.
const KILLS: u64 = 12;

/// Seconds of work that may be lost on a machine that is as fast as is expected.
const LOSS: u64 = 5;

/// Keyframes in a map that `map check` finds undamaged.
fn checked(map: &Path) -> usize {
    let output = program(&["map", "check", text(map)])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", message(&output));
    let words = said.rsplit(": ").next().expect("words");
    assert!(words.contains("undamaged"), "{said}");
    let count = words.split(' ').next().expect("a number");
    count.parse().expect("a number")
}

/// A run with its map in `map` that logs what happens to keyframes.
fn logged_run(scene: &Scene, map: &Path) -> Command {
    let (sequence, out) = (text(&scene.sequence), scene.out());
    let mut run = program(&["run", sequence, "--out", text(&out), "--force"]);
    run.args([
        "--size",
        "64",
        "--threads",
        "pipelined",
        "--jobs",
        "1",
        "--map",
        text(map),
    ])
    .env("RUST_LOG", "mast3r_slam=debug");
    run
}

fn start(scene: &Scene, map: &Path) -> Child {
    logged_run(scene, map)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

/// What a run logs of its keyframes. It logs a removal before it writes the map without that keyframe.
#[derive(Default)]
struct Log {
    added: Vec<Instant>,
    removed: usize,
}

impl Log {
    fn note(&mut self, (at, line): (Instant, String)) {
        if line.contains("keyframe added") {
            self.added.push(at);
        }
        self.removed += usize::from(line.contains("keyframe removed"));
    }

    /// Reads until a keyframe was added or the run ends.
    fn wait_for_a_keyframe(&mut self, lines: &Receiver<(Instant, String)>) {
        while self.added.is_empty()
            && let Ok(line) = lines.recv()
        {
            self.note(line);
        }
    }

    /// Number of keyframes that were added more than [`LOSS`] seconds before.
    fn older_than_loss(&self, now: Instant) -> usize {
        let is_old = |at: &&Instant| now.duration_since(**at) > patience(LOSS);
        self.added.iter().filter(is_old).count()
    }
}

#[test]
fn a_run_that_is_killed_at_any_moment_leaves_its_map() {
    let scene = Scene::new(120);
    let map = scene.folder.path().join("room.map");
    // Not random, so that a failure repeats as far as it can: spread over the start, the run and its end.
    let mut known = 0;
    let kills = std::env::var("MAST3R_KILLS").ok();
    let kills = kills.map_or(KILLS, |kills| kills.parse().expect("a number of kills"));
    for kill in 0..kills {
        let mut child = start(&scene, &map);
        let stderr = child.stderr.take().expect("a pipe");
        let (sender, receiver) = channel();
        let listener = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // The test may have heard enough.
                let _ = sender.send((Instant::now(), line));
            }
        });
        // One of four dies while it starts, the others between their first keyframe and their end.
        let mut log = Log::default();
        if kill % 4 != 0 {
            log.wait_for_a_keyframe(&receiver);
        }
        std::thread::sleep(Duration::from_millis(50 + kill * 7919 % 1500));
        let killed = Instant::now();
        child.kill().expect("killed");
        child.wait().expect("it ended");
        listener.join().expect("the log");
        if !map.exists() {
            continue;
        }
        receiver.try_iter().for_each(|line| log.note(line));
        let (old, removed) = (log.older_than_loss(killed), log.removed);
        let count = checked(&map);
        assert!(
            count + removed >= known + old,
            "kill {kill}: {count} keyframes, {removed} removed; {known} before, and {old} made in time"
        );
        known = count;
    }
    assert!(known > 0, "no run came to a keyframe");
    // The next one goes on, and says what it found.
    let last = logged_run(&scene, &map)
        .output()
        .expect("the program starts");
    let message = message(&last);
    assert!(last.status.success(), "{message}");
    let said = String::from_utf8_lossy(&last.stdout).into_owned();
    for part in [
        format!("map: {known} keyframes"),
        "stopped while this map was in use".into(),
    ] {
        assert!(said.contains(&part), "{part:?} is not in: {said}");
    }
    // The sequence begins where the map does. So small a network loses the camera later on, and may begin submaps.
    assert!(!said.contains(" 0 relocalised"), "{said}");
    let removed = message.matches("keyframe removed").count();
    assert!(checked(&map) + removed >= known, "{message}");
}

#[test]
fn what_is_older_than_five_seconds_survives_a_kill() {
    let scene = Scene::new(400);
    let map = scene.folder.path().join("room.map");
    let mut child = start(&scene, &map);
    let stderr = child.stderr.take().expect("a pipe");
    let mut log = Log::default();
    // Keyframes come for as long as it takes to have some of them for five seconds.
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        log.note((Instant::now(), line));
        if log.older_than_loss(Instant::now()) >= 3 {
            break;
        }
    }
    let killed = Instant::now();
    child.kill().expect("killed");
    child.wait().expect("it ended");
    let (old, removed) = (log.older_than_loss(killed), log.removed);
    assert!(old >= 3, "the run ended with {old} such keyframes");
    let count = checked(&map);
    assert!(
        count + removed >= old,
        "{count} keyframes are left and {removed} were removed, {old} were older"
    );
}

#[test]
fn a_session_goes_on_in_the_file_and_reading_it_changes_nothing() {
    let scene = Scene::new(6);
    let map = scene.folder.path().join("room.map");
    let first = scene.run(&["--map", text(&map)]);
    assert!(first.status.success(), "{}", message(&first));
    let said = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(said.contains("map: new, in "), "{said}");
    let made = checked(&map);
    assert!(made > 0);
    let before = std::fs::read(&map).expect("the map");
    let out = scene.folder.path().join("second");
    let second = run(&scene.sequence, &out, &["--map", text(&map), "--read-only"]);
    assert!(second.status.success(), "{}", message(&second));
    let said = String::from_utf8_lossy(&second.stdout).into_owned();
    assert!(said.contains("read only"), "{said}");
    assert!(std::fs::read(&map).expect("the map") == before);
    let out = scene.folder.path().join("third");
    let third = run(&scene.sequence, &out, &["--map", text(&map)]);
    assert!(third.status.success(), "{}", message(&third));
    let said = String::from_utf8_lossy(&third.stdout).into_owned();
    assert!(
        said.contains("1 relocalised") && !said.contains("unconnected"),
        "{said}"
    );
    assert!(
        checked(&map) > made,
        "the frame that was found is no keyframe"
    );
    let info = program(&["map", "info", text(&map)])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&info.stdout).into_owned();
    for part in [
        "state: closed",
        "images: 64×48, uncalibrated",
        "keyframes: ",
        "submaps: 1",
    ] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
}

#[test]
fn a_damaged_row_is_named_by_map_check() {
    let scene = Scene::new(6);
    let map = scene.folder.path().join("room.map");
    let first = scene.run(&["--map", text(&map)]);
    assert!(first.status.success(), "{}", message(&first));
    let database = rusqlite::Connection::open(&map).expect("a database");
    let damage = "UPDATE points SET content = zeroblob(100) WHERE id = 0";
    database.execute(damage, []).expect("damaged");
    drop(database);
    let check = program(&["map", "check", text(&map)])
        .output()
        .expect("the program starts");
    assert_failed(&check, &["is damaged: 1 keyframes (0)"]);
}

#[test]
fn a_disk_that_is_full_ends_neither_the_run_nor_the_map() {
    let scene = Scene::new(40);
    let map = scene.folder.path().join("room.map");
    let (sequence, out) = (text(&scene.sequence), scene.folder.path().join("out"));
    let args = [
        "run",
        sequence,
        "--out",
        text(&out),
        "--size",
        "64",
        "--threads",
        "single",
        "--map",
        text(&map),
    ];
    // Files of 200 KiB or 400 (shells differ in the unit) and no more: room for an empty map.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 400; trap '' XFSZ; exec \"$@\"", "sh"])
        .arg(executable())
        .args(args)
        .env_remove("RUST_LOG")
        .env_remove("MAST3R_SLAM_SHARE")
        .output()
        .expect("sh starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("40 frames in"), "{said}{}", message(&output));
    let message = message(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("SLAM goes on") && message.contains("room.map"),
        "{message}"
    );
    assert!(!message.contains("panicked"), "{message}");
    // What was written before can be used.
    checked(&map);
}

#[test]
fn a_folder_that_vanishes_ends_neither_the_run_nor_its_results() {
    let scene = Scene::new(120);
    let folder = scene.folder.path().join("maps");
    std::fs::create_dir(&folder).expect("a folder");
    let mut child = start(&scene, &folder.join("room.map"));
    let stderr = child.stderr.take().expect("a pipe");
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let added = |line: &String| line.contains("keyframe added");
    assert_eq!(lines.by_ref().filter(added).take(3).count(), 3);
    std::fs::remove_dir_all(&folder).expect("removed");
    let said = lines.collect::<Vec<_>>().join("\n");
    let status = child.wait().expect("it ended");
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(
        said.contains("SLAM goes on") && said.contains("room.map"),
        "{said}"
    );
    let trajectory = std::fs::read_to_string(scene.out().join("trajectory.txt"));
    let poses = trajectory.expect("the trajectory");
    assert!(poses.lines().count() > 3, "{poses}");
}

/// Runs with a file system of so many kilobytes at `medium`, which this run alone sees, with a copy of `map` if that
/// exists; `then` is a command of the shell before the run. Its files are left in `map` + `.after`. `None` if this
/// system does not let tests do that.
fn mounted(medium: &Path, kilobytes: u32, map: &Path, then: &str, run: &Command) -> Option<Output> {
    let script = format!(
        "exec unshare --mount --map-root-user sh -c 'mount -t tmpfs -o size={kilobytes}k tmpfs \"$medium\" || exit 77; \
         if [ -e \"$map\" ]; then cp \"$map\" \"$medium\" || exit 77; fi; {then} || exit 77; \
         \"$@\"; code=$?; mkdir -p \"$map.after\"; cp \"$medium\"/* \"$map.after\"; exit $code' sh \"$@\""
    );
    let output = Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(run.get_program())
        .args(run.get_args())
        .envs([("map", map), ("medium", medium)])
        .env_remove("RUST_LOG")
        .env_remove("MAST3R_SLAM_SHARE")
        .output()
        .expect("sh starts");
    if output.status.code() == Some(77) || message(&output).contains("unshare") {
        let reason = "this system does not let tests mount a file system";
        skip(Need::Mount, reason);
        return None;
    }
    Some(output)
}

#[test]
fn a_map_larger_than_the_disk_that_is_left_ends_neither_the_run_nor_the_map() {
    let scene = Scene::new(40);
    let medium = scene.folder.path().join("medium");
    std::fs::create_dir(&medium).expect("a folder");
    let none = scene.folder.path().join("room.map");
    let (out, map) = (scene.out(), medium.join("room.map"));
    let run = [
        "run",
        text(&scene.sequence),
        "--out",
        text(&out),
        "--size",
        "64",
        "--threads",
        "single",
        "--map",
        text(&map),
    ];
    let Some(output) = mounted(&medium, 400, &none, "true", &program(&run)) else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let message = message(&output);
    assert!(said.contains("40 frames in"), "{said}{message}");
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("SLAM goes on") && message.contains("room.map"),
        "{message}"
    );
    assert!(!message.contains("panicked"), "{message}");
    // What was written before can be used, away from the full disk.
    checked(&scene.folder.path().join("room.map.after/room.map"));
}

/// File names on Unix are bytes.
#[test]
#[cfg(target_os = "linux")]
fn a_map_s_path_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let scene = Scene::new(6);
    let map = scene
        .folder
        .path()
        .join(OsStr::from_bytes(b"caf\xe9 \xff.map"));
    let run = |out: &str| {
        let out = scene.folder.path().join(out);
        let mut run = program(&["run", text(&scene.sequence), "--out", text(&out)]);
        run.args(["--size", "64", "--threads", "single", "--map"]);
        let output = run.arg(&map).output().expect("the program starts");
        assert!(output.status.success(), "{}", message(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(run("first").contains("map: new, in "));
    let found = run("second");
    assert!(
        !found.contains("map: new") && found.contains("1 relocalised"),
        "{found}"
    );
    for command in ["info", "check"] {
        let mut look = program(&["map", command]);
        let output = look.arg(&map).output().expect("the program starts");
        assert!(output.status.success(), "{}", message(&output));
    }
    let packed = scene.folder.path().join(OsStr::from_bytes(b"\xfe.map"));
    let mut pack = program(&["map", "pack"]);
    let output = pack.args([&map, &packed]).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{}", message(&output));
    assert!(packed.exists());
}

#[test]
fn a_map_on_a_read_only_medium_can_be_read_and_is_not_continued() {
    let scene = Scene::new(6);
    let map = scene.folder.path().join("room.map");
    let first = scene.run(&["--map", text(&map)]);
    assert!(first.status.success(), "{}", message(&first));
    let medium = scene.folder.path().join("medium");
    std::fs::create_dir(&medium).expect("a folder");
    let on_medium = medium.join("room.map");
    let mounted = |out: &str, extra: &[&str]| {
        let out = scene.folder.path().join(out);
        let mut args = vec!["run", text(&scene.sequence), "--out", text(&out)];
        args.extend(["--size", "64", "--map", text(&on_medium)]);
        args.extend(extra);
        let read_only = "mount -o remount,ro \"$medium\"";
        mounted(&medium, 1 << 20, &map, read_only, &program(&args))
    };
    let Some(reading) = mounted("reading", &["--read-only"]) else {
        return;
    };
    let said = String::from_utf8_lossy(&reading.stdout).into_owned();
    assert!(reading.status.success(), "{said}{}", message(&reading));
    assert!(
        said.contains("read only") && said.contains("relocalised"),
        "{said}"
    );
    let going_on = mounted("going on", &[]).expect("it could be mounted before");
    assert_failed(&going_on, &["room.map", "--read-only"]);
    let said = String::from_utf8_lossy(&going_on.stdout).into_owned();
    assert!(
        !said.contains("frames in"),
        "it was refused after the run: {said}"
    );
}

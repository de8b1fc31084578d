//! Tests that need something which is not there. Each writes down what it needs; the list stands after the result of
//! its program, and after those of all programs (`tests/zz_skipped.rs`).

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Something that a test needs and that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// An NVIDIA GPU.
    Cuda,
    /// ONNX Runtime's library.
    OnnxRuntime,
    /// TensorRT-RTX's libraries.
    TensorRt,
    /// A Python with cyclonedds and rosbags.
    RosPython,
    /// The Fast DDS library and a C++ compiler.
    FastDds,
    /// The program `ffmpeg`.
    Ffmpeg,
    /// The permission to mount a file system.
    Mount,
    /// The program `chromium`.
    Chromium,
    /// The program `promtool`.
    Promtool,
}

impl Need {
    /// The variable of the environment that makes the absence a failure.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Cuda => "MAST3R_REQUIRE_CUDA",
            Self::OnnxRuntime => "MAST3R_REQUIRE_ORT",
            Self::TensorRt => "MAST3R_REQUIRE_TENSORRT",
            Self::RosPython | Self::FastDds => "MAST3R_REQUIRE_DDS",
            Self::Ffmpeg => "MAST3R_REQUIRE_FFMPEG",
            Self::Mount => "MAST3R_REQUIRE_MOUNT",
            Self::Chromium | Self::Promtool => "MAST3R_REQUIRE_CHROMIUM",
        }
    }

    /// Instructions for running the test.
    fn remedy(self) -> &'static str {
        match self {
            Self::Cuda => "run it on a machine with an NVIDIA GPU and its driver",
            Self::OnnxRuntime => {
                "set ORT_DYLIB_PATH to the folder of libonnxruntime.so (pip install onnxruntime)"
            }
            Self::TensorRt => {
                "set MAST3R_TENSORRT_DIR to the folder of TensorRT-RTX's libraries (pip install tensorrt-rtx-cu13-libs)"
            }
            Self::RosPython => {
                "set MAST3R_ROS_PYTHON to a Python with cyclonedds and rosbags (pip install both)"
            }
            Self::FastDds => "install a C++ compiler and libfastrtps-dev",
            Self::Ffmpeg => "install ffmpeg",
            Self::Chromium => "install chromium, or set MAST3R_CHROMIUM to such a browser",
            Self::Promtool => "install prometheus, which has promtool",
            Self::Mount => "run it where `unshare --mount --map-root-user` is permitted",
        }
    }
}

/// Writes down that the calling test is skipped as `need` is not there; `why` is what was found instead.
///
/// # Panics
/// If the environment says that it must be there (see [`Need::variable`]).
pub fn skip(need: Need, why: impl Display) {
    let (variable, remedy) = (need.variable(), need.remedy());
    let required = std::env::var_os(variable).is_some_and(|value| value != "0");
    assert!(!required, "{variable} is set, but: {why}; {remedy}");
    let thread = std::thread::current();
    let line = format!("{}: {remedy}", thread.name().unwrap_or("a thread"));
    let mut here = HERE.lock().expect("no test panics while it holds this");
    if here.contains(&line) {
        return;
    }
    if here.is_empty() {
        // SAFETY (of the declaration): C's `atexit`, which takes a function without arguments.
        assert_eq!(atexit(at_exit), 0);
    }
    let mut list = OpenOptions::new()
        .create(true)
        .append(true)
        .open(list())
        .expect("the list of skipped tests");
    // One write: several programs may append at once.
    let row = format!("{}\t{}::{line}\n", run_id(), program());
    list.write_all(row.as_bytes())
        .expect("the list of skipped tests");
    here.push(line);
}

/// The main function of the last test program. Prints what this run of `cargo test` has skipped, and forgets it; after
/// the documentation's tests, which cargo runs last, one more line says how much that was. `missing` are features that
/// the run was built without, each with the tests that it would add.
pub fn summary(missing: &[(&str, &str)]) {
    if let (Ok(run), Ok(line)) = (std::env::var(RUN), std::env::var(LINE)) {
        return say_after(&run, &line);
    }
    let text = fs::read_to_string(list()).unwrap_or_default();
    let mine = format!("{}\t", run_id());
    let skipped: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix(&mine))
        .collect();
    for line in &skipped {
        println!("skipped {line}");
    }
    for (feature, tests) in missing {
        println!("not built: {tests}; --features {feature} builds them");
    }
    // The list of an earlier run, or the one that was just printed.
    let _ = fs::remove_file(list());
    let line = match (skipped.len(), missing.len()) {
        (0, 0) => "skipped: nothing".to_owned(),
        (n, m) => format!(
            "skipped: {n} tests; not built: those of {m} features; what each needs stands above (\"skipped\", \"not built\")"
        ),
    };
    println!("{line}");
    let _ = Command::new(own_path())
        .env(RUN, run_id().to_string())
        .env(LINE, line)
        .spawn();
}

/// Set for the process that says the last line: cargo's process, and the line.
const RUN: &str = "MAST3R_SKIPPED_RUN";
const LINE: &str = "MAST3R_SKIPPED_LINE";

/// Waits for the process `run` to end, an hour at most, and prints `line`.
fn say_after(run: &str, line: &str) {
    let process = Path::new("/proc").join(run);
    let begun = Instant::now();
    while process.exists() && begun.elapsed() < Duration::from_secs(3600) {
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{line}");
}

static HERE: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" {
    // SAFETY: C's `atexit` may be called from any thread; it keeps the address of a function.
    safe fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
}

/// After the test harness has printed its result.
extern "C" fn at_exit() {
    let Ok(here) = HERE.lock() else { return };
    let mut text = String::new();
    for line in here.iter() {
        text += &format!("skipped {line}\n");
    }
    text += &format!(
        "skipped: {} tests of this program, see above\n\n",
        here.len()
    );
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Identifies one `cargo test`: the process that started all its programs.
fn run_id() -> u32 {
    #[cfg(unix)]
    return std::os::unix::process::parent_id();
    #[cfg(not(unix))]
    return 0;
}

fn own_path() -> PathBuf {
    std::env::current_exe().expect("a test program has a path")
}

/// The test program's name, without cargo's hash.
fn program() -> String {
    let path = own_path();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let (name, _hash) = name.rsplit_once('-').unwrap_or((&name, ""));
    name.to_owned()
}

/// The list, beside the folder of the test programs.
fn list() -> PathBuf {
    let path = own_path();
    let folder = path.ancestors().nth(2).unwrap_or(&path);
    folder.join("skipped_tests.txt")
}

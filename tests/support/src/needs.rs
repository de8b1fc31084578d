//! Programs and libraries that tests look for. Each says `None` after [`skip`]: the test returns.

use crate::skip::{Need, skip};
use std::process::Command;

/// A Python with cyclonedds and rosbags: MAST3R_ROS_PYTHON, or `python3`.
pub fn ros_python() -> Option<String> {
    let named = std::env::var("MAST3R_ROS_PYTHON").ok();
    let program = named.unwrap_or_else(|| "python3".into());
    let test = Command::new(&program)
        .args(["-c", "import cyclonedds, rosbags"])
        .output();
    if test.is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    skip(
        Need::RosPython,
        format!("{program} has no cyclonedds and rosbags"),
    );
    None
}

/// Whether `ffmpeg` and `ffprobe` can be run.
pub fn ffmpeg() -> Option<()> {
    let runs = |name| Command::new(name).arg("-version").output().is_ok();
    if runs("ffmpeg") && runs("ffprobe") {
        return Some(());
    }
    skip(Need::Ffmpeg, "ffmpeg is not installed");
    None
}

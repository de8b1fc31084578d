//! Files, disks and limits of this machine.

use super::Finding;
use crate::cli::output::check_folder;
use crate::files::free_space;
use crate::slam_builder::{DEMO_SEQUENCE, OpenError, Settings, find_asset};
use std::path::Path;

/// Bytes that a long run writes: the report, the cloud, keyframes, a map of a thousand keyframes.
const SPACE: u64 = 4 << 30;

/// Installs the files that come with the program.
const REINSTALL: &str = if cfg!(target_os = "linux") {
    "sudo apt-get install --reinstall mast3r-slam"
} else {
    "$env:MAST3R_SLAM_SHARE = \"$HOME\\mast3r-slam\\share\\mast3r_slam\", where the archive was unpacked"
};

/// The weights that runs with these options use; `own` if the user named some.
pub fn weights(settings: &Result<Settings, OpenError>, own: bool) -> Finding {
    let name = "weights";
    let settings = match settings {
        Ok(settings) => settings,
        Err(error @ OpenError::Asset { .. }) => return Finding::missing(name, error, REINSTALL),
        // The error names the option or the file that is wrong.
        Err(error) => return Finding::unusable(name, error),
    };
    let path = settings.weights.display();
    match crate::network::load_network(&settings.weights) {
        Ok(_) => Finding::ok(name, format!("{}, {path}", settings.weights_name())),
        Err(error) if own => Finding::unusable(name, error),
        Err(error) => Finding::missing(name, error, REINSTALL),
    }
}

/// The demo's images.
pub fn demo() -> Finding {
    match find_asset(DEMO_SEQUENCE) {
        Ok(path) => Finding::ok("demo", path.display()),
        Err(error) => Finding::optional("demo", error, REINSTALL),
    }
}

/// Whether runs can write to `folder`, and how much.
pub fn disk(folder: &Path) -> Finding {
    let name = "disk";
    // A run creates the folder and those above it.
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let existing = absolute.ancestors().find(|folder| folder.exists());
    let folder = existing.unwrap_or(&absolute);
    let shown = folder.display();
    if let Err(error) = check_folder(folder) {
        let command = format!("sudo chown \"$USER\" {shown}");
        return Finding::missing(name, error, command);
    }
    match free_space(folder) {
        None => Finding::ok(name, format!("{shown} can be written to")),
        Some(free) => {
            let text = format!("{shown} has {:.1} GB free", free as f64 / 1e9);
            match free < SPACE {
                true => Finding::optional(
                    name,
                    format!(
                        "{text}; a long run writes up to {:.1} GB",
                        SPACE as f64 / 1e9
                    ),
                    format!("du -xh -d 2 {shown} | sort -h | tail"),
                ),
                false => Finding::ok(name, text),
            }
        }
    }
}

/// Whether bursts of images fit the sockets' buffers.
#[cfg(feature = "ros")]
pub fn receive_buffers() -> Finding {
    use crate::ros::buffers::{RECEIVE_BUFFER, check};
    let name = "receive buffers";
    match check() {
        Ok(Some(limit)) => Finding::ok(name, format!("up to {limit} bytes")),
        Ok(None) => Finding::ok(name, "this system has no limit that can be read"),
        Err(error) => {
            let command = format!("sudo sysctl -w net.core.rmem_max={RECEIVE_BUFFER}");
            Finding::optional(name, error, command)
        }
    }
}

/// Whether the node's threads may raise their priority.
#[cfg(feature = "ros")]
pub fn priority() -> Finding {
    use crate::ros::priority::{NOT_PERMITTED, RaisedPriority};
    let name = "RLIMIT_NICE";
    if RaisedPriority::new().permitted() {
        return Finding::ok(name, "threads may have a raised priority");
    }
    if cfg!(not(target_os = "linux")) {
        return Finding::ok(name, "not used on this system");
    }
    let line = "echo \"$USER - nice -10\" | sudo tee /etc/security/limits.d/mast3r-slam.conf, then log in again";
    Finding::optional(name, NOT_PERMITTED, line)
}

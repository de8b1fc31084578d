//! Shared by test programs and benches: scenes with known ground truth, random numbers, running the program.

pub mod browser;
pub mod camera;
pub mod counting;
pub mod deceiver;
pub mod faulty;
pub mod flat;
pub mod http;
pub mod map_room;
pub mod matching_scene;
pub mod needs;
pub mod networks;
pub mod patience;
pub mod patrol;
pub mod program;
pub mod random;
pub mod room;
pub mod saved_map;
pub mod skip;
pub mod solver_scene;

use std::path::{Path, PathBuf};

/// A file of the repository: below the working folder if it is there (a test program that was built on another machine
/// runs in a copy of the repository), otherwise where this crate was built.
pub fn repository(path: &str) -> PathBuf {
    match std::env::current_dir() {
        Ok(here) if here.join(path).exists() => here.join(path),
        _ => Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(path),
    }
}

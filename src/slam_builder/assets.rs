//! Files installed with the program: the bundled model and the demo sequence.

use super::OpenError;
use std::path::{Path, PathBuf};

/// Weights of the bundled model, below the share folder.
pub const MINI_WEIGHTS: &str = "engines/mast3r-mini/model.safetensors";
/// The demo sequence, below the share folder.
pub const DEMO_SEQUENCE: &str = "assets/room_loop";
/// Recorded figures of the self-test, below the share folder.
pub const FIGURES: &str = "assets/selftest";
/// Environment variable with the share folder; if set, no other location is searched.
pub const SHARE_VARIABLE: &str = "MAST3R_SLAM_SHARE";

/// The path of a bundled file or folder: below `MAST3R_SLAM_SHARE`; else relative to the executable
/// (`../share/mast3r_slam`, and one level further up as installed by ament); else in the repository
/// that the program was built from.
pub fn find(name: &'static str) -> Result<PathBuf, OpenError> {
    let variable = std::env::var_os(SHARE_VARIABLE).map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    find_in(name, variable.as_deref(), executable.as_deref())
}

fn find_in(
    name: &'static str,
    variable: Option<&Path>,
    executable: Option<&Path>,
) -> Result<PathBuf, OpenError> {
    let mut shares: Vec<(PathBuf, String)> = Vec::new();
    match variable {
        Some(share) => shares.push((share.to_owned(), format!(" ({SHARE_VARIABLE})"))),
        None => {
            let bin = executable.and_then(Path::parent);
            for folder in bin.into_iter().flat_map(|b| b.ancestors().skip(1).take(2)) {
                shares.push((folder.join("share/mast3r_slam"), String::new()));
            }
            shares.push((env!("CARGO_MANIFEST_DIR").into(), " (the sources)".into()));
        }
    }
    let found = shares
        .iter()
        .map(|(s, _)| s.join(name))
        .find(|p| p.exists());
    found.ok_or_else(|| {
        let mut looked: Vec<String> = shares
            .iter()
            .map(|(share, note)| format!("{}{note}", share.display()))
            .collect();
        if variable.is_none() {
            looked.insert(0, format!("{SHARE_VARIABLE} (not set)"));
        }
        OpenError::Asset {
            name,
            looked: looked.join(", "),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_s_neighbourhood_is_searched() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let share = root.path().join("share/mast3r_slam");
        std::fs::create_dir_all(&share).expect("a folder");
        std::fs::write(share.join("thing"), "").expect("a file");
        for exe in ["bin/mast3r-slam", "lib/mast3r_slam/mast3r-slam"] {
            let found = find_in("thing", None, Some(&root.path().join(exe)));
            assert_eq!(found.expect(exe), share.join("thing"));
        }
    }

    #[test]
    fn all_places_are_named_when_nothing_is_found() {
        let error = find_in(
            "no/such/thing",
            None,
            Some(Path::new("/opt/x/bin/mast3r-slam")),
        )
        .expect_err("nothing there")
        .to_string();
        let beside = Path::new("/opt/x").join("share/mast3r_slam");
        for part in [
            "no/such/thing",
            SHARE_VARIABLE,
            &beside.display().to_string(),
            env!("CARGO_MANIFEST_DIR"),
        ] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    #[test]
    fn the_variable_is_obeyed_even_when_it_is_wrong() {
        let error = find_in("Cargo.toml", Some(Path::new("/nowhere")), None)
            .expect_err("the sources must not step in")
            .to_string();
        assert!(error.contains("/nowhere"), "{error}");
    }
}

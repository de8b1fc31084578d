//! Locates and loads TensorRT at run time; the program is not linked with it.

use super::error::TensorRtError;
use super::target::Flavour;
use super::version::Version;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Environment variable with the folder of TensorRT's libraries; if set, no other location is
/// searched.
pub const FOLDER_VARIABLE: &str = "MAST3R_TENSORRT_DIR";

/// Loads the library that runs engines (and builds them) and returns its version. It is loaded
/// once; later calls return the same version.
pub fn load() -> Result<Version, TensorRtError> {
    static LOADED: Mutex<Option<Version>> = Mutex::new(None);
    // The value is consistent even if the lock is poisoned.
    let mut loaded = LOADED
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(version) = *loaded {
        return Ok(version);
    }
    let (path, library) = find(Flavour::HERE.name(), &names(Kind::Inference))?;
    let version = version_of(&path, &library)?;
    check(&path, version, Version::of_interface())?;
    trtx::dynamically_load_tensorrt(Some(&path))
        .map_err(|error| unloadable(&path, &error.to_string()))?;
    // The bindings now hold the library; `library` was only needed to read its version.
    drop(library);
    *loaded = Some(version);
    Ok(version)
}

/// Rejects a library that lacks functions the program calls.
fn check(path: &Path, found: Version, needed: Version) -> Result<(), TensorRtError> {
    if found.serves(needed) {
        return Ok(());
    }
    Err(TensorRtError::Version {
        flavour: Flavour::HERE,
        path: path.to_owned(),
        found,
        needed,
    })
}

/// Loads the ONNX parser needed for building. It is loaded once.
pub fn load_parser() -> Result<(), TensorRtError> {
    let (path, library) = find("TensorRT's ONNX parser", &names(Kind::Parser))?;
    trtx::dynamically_load_tensorrt_onnxparser(Some(&path))
        .map_err(|error| unloadable(&path, &error.to_string()))?;
    drop(library);
    Ok(())
}

#[derive(Clone, Copy)]
enum Kind {
    Inference,
    Parser,
}

/// File names, in order of preference.
fn names(kind: Kind) -> Vec<String> {
    let Version { major, minor, .. } = Version::of_interface();
    let stem = match (Flavour::HERE, kind) {
        (Flavour::Rtx, Kind::Inference) => "tensorrt_rtx",
        (Flavour::Rtx, Kind::Parser) => "tensorrt_onnxparser_rtx",
        (Flavour::Enterprise, Kind::Inference) => "nvinfer",
        (Flavour::Enterprise, Kind::Parser) => "nvonnxparser",
    };
    if cfg!(windows) {
        match Flavour::HERE {
            Flavour::Rtx => vec![format!("{stem}_{major}_{minor}.dll")],
            Flavour::Enterprise => vec![format!("{stem}_{major}.dll")],
        }
    } else {
        vec![format!("lib{stem}.so.{major}"), format!("lib{stem}.so")]
    }
}

/// Loads the first of `names` that can be loaded.
fn find(
    library: &'static str,
    names: &[String],
) -> Result<(PathBuf, libloading::Library), TensorRtError> {
    let variable = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    find_in(
        library,
        names,
        variable.as_deref(),
        executable.as_deref().and_then(Path::parent),
    )
}

fn find_in(
    library: &'static str,
    names: &[String],
    variable: Option<&Path>,
    beside: Option<&Path>,
) -> Result<(PathBuf, libloading::Library), TensorRtError> {
    let mut looked = Vec::new();
    let mut places: Vec<Option<PathBuf>> = Vec::new();
    match variable {
        Some(folder) => {
            looked.push(format!(
                "{} ({FOLDER_VARIABLE}) and its lib",
                folder.display()
            ));
            places.push(Some(folder.to_owned()));
            places.push(Some(folder.join("lib")));
        }
        None => {
            looked.push(format!("{FOLDER_VARIABLE} (not set)"));
            if let Some(folder) = beside {
                looked.push(folder.display().to_string());
                places.push(Some(folder.to_owned()));
            }
            let path = if cfg!(windows) {
                "PATH"
            } else {
                "LD_LIBRARY_PATH"
            };
            looked.push(format!("the loader's path ({path})"));
            places.push(None);
        }
    }
    for place in &places {
        for name in names {
            let path = match place {
                Some(folder) => folder.join(name),
                None => PathBuf::from(name),
            };
            // SAFETY: TensorRT's initialisers are meant to be run by the loader; the user is
            // responsible for a folder specified explicitly.
            match unsafe { libloading::Library::new(&path) } {
                Ok(library) => return Ok((path, library)),
                // The file exists but cannot be used: it is for another machine, or its own
                // dependencies are missing.
                Err(error) if path.is_file() => return Err(unloadable(&path, &error.to_string())),
                Err(_) => {}
            }
        }
    }
    Err(TensorRtError::Missing {
        flavour: Flavour::HERE,
        library,
        names: names.join(" or "),
        looked: looked.join(", "),
    })
}

fn unloadable(path: &Path, message: &str) -> TensorRtError {
    TensorRtError::Content {
        path: path.to_owned(),
        expected: "a library that can be loaded".into(),
        found: message.to_owned(),
    }
}

/// Queries the library's version.
fn version_of(path: &Path, library: &libloading::Library) -> Result<Version, TensorRtError> {
    let part = |name: &str| {
        // SAFETY: these functions take nothing and return an int32_t in every TensorRT that has them
        // (NvInferRuntime.h, since 10.0 and in all of TensorRT-RTX).
        let value = unsafe {
            library
                .get::<unsafe extern "C" fn() -> i32>(name)
                .map(|function| function())
        };
        let value = value.map_err(|_| TensorRtError::Content {
            path: path.to_owned(),
            expected: Flavour::HERE.name().into(),
            found: format!("a library without {name}"),
        })?;
        Ok::<_, TensorRtError>(u32::try_from(value).unwrap_or(0))
    };
    Ok(Version {
        major: part("getInferLibMajorVersion")?,
        minor: part("getInferLibMinorVersion")?,
        patch: part("getInferLibPatchVersion")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(major: u32, minor: u32, patch: u32) -> Version {
        Version {
            major,
            minor,
            patch,
        }
    }

    #[test]
    fn newer_libraries_of_the_same_major_version_serve() {
        let interface = version(1, 7, 0);
        for (found, serves) in [
            (version(1, 7, 1), true),
            (version(1, 8, 0), true),
            (version(1, 6, 9), false),
            (version(2, 7, 0), false),
            (version(0, 9, 0), false),
        ] {
            assert_eq!(found.serves(interface), serves, "{found}");
        }
    }

    #[test]
    fn an_old_library_is_refused_with_both_versions() {
        let path = Path::new("/opt/trt/libtensorrt_rtx.so.1");
        assert!(check(path, version(1, 7, 1), version(1, 7, 0)).is_ok());
        let error = check(path, version(1, 3, 2), version(1, 7, 0)).unwrap_err();
        let message = error.to_string();
        for part in [
            "/opt/trt/libtensorrt_rtx.so.1",
            "1.3.2",
            "needs 1.7",
            "install",
        ] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_under_the_name_is_no_tensorrt() {
        let (path, library) = find_in("x", &["libm.so.6".into()], None, None).expect("glibc");
        let error = version_of(&path, &library).unwrap_err().to_string();
        assert!(error.contains("getInferLibMajorVersion"), "{error}");
    }

    #[test]
    fn what_is_missing_is_named_with_every_place() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let names = ["libno_such_thing.so.1".to_owned()];
        let message = |variable: Option<&Path>, beside: Option<&Path>| {
            let error = find_in("TensorRT-RTX", &names, variable, beside);
            error.map(|_| ()).expect_err("nothing there").to_string()
        };
        let named = message(Some(folder.path()), None);
        let free = message(None, Some(Path::new("/opt/x/bin")));
        let place = folder.path().display().to_string();
        for part in [&place, FOLDER_VARIABLE, "libno_such_thing.so.1", "install"] {
            assert!(named.contains(part), "{part:?} is not in {named}");
        }
        assert!(!named.contains("LD_LIBRARY_PATH"), "{named}");
        for part in ["/opt/x/bin", "not set", "LD_LIBRARY_PATH"] {
            assert!(free.contains(part), "{part:?} is not in {free}");
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_told_from_a_missing_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("lib")).expect("a folder");
        std::fs::write(folder.path().join("lib/libx.so"), "not ELF").expect("a file");
        let error = find_in("x", &["libx.so".into()], Some(folder.path()), None);
        let error = error.map(|_| ()).expect_err("not a library");
        assert!(
            matches!(&error, TensorRtError::Content { path, .. } if path.ends_with("lib/libx.so")),
            "{error}"
        );
    }
}

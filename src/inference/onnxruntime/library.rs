//! Locates and loads the ONNX Runtime library, once per process.

use super::error::{RUNTIME, failure};
use crate::inference::InferenceError;
use ort::environment::Environment;
use ort::ep::ExecutionProvider;
use ort::logging::LogLevel;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Environment variable with the library or its folder, shared by all programs that use the `ort`
/// crate.
const VARIABLE: &str = "ORT_DYLIB_PATH";

#[cfg(target_os = "windows")]
const FILE: &str = "onnxruntime.dll";
#[cfg(target_os = "macos")]
const FILE: &str = "libonnxruntime.dylib";
#[cfg(not(any(target_os = "windows", target_os = "macos")))]
const FILE: &str = "libonnxruntime.so";

/// The loaded library.
pub(super) struct Library {
    pub(super) environment: Environment,
    path: PathBuf,
    /// Execution providers compiled into the library.
    providers: Vec<String>,
}

static LOADED: Mutex<Option<Arc<Library>>> = Mutex::new(None);

impl Library {
    /// Loads the library: `named` (a file or a folder), else the one in the environment variable,
    /// else one next to this program or on the system's search path.
    pub(super) fn load(named: Option<&Path>) -> Result<Arc<Self>, InferenceError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*loaded {
            return Ok(Arc::clone(library));
        }
        let path = find(named)?;
        preload(&path);
        let builder = ort::init_from(&path).map_err(|error| {
            unavailable(format!(
                "{error}. It requires the CUDA and cuDNN libraries it was built for (with pip's \
                 onnxruntime-gpu: the folders nvidia/*/lib of the Python packages, in LD_LIBRARY_PATH)"
            ))
        })?;
        let environment = builder
            .with_name(env!("CARGO_PKG_NAME"))
            .with_telemetry(false)
            .build()
            .map_err(|e| failure("starting", e))?;
        // More verbose logging emits a message per node and run, which can cost more than the node
        // itself.
        environment.set_log_level(LogLevel::Warning);
        let library = Arc::new(Self {
            environment,
            providers: providers()?,
            path,
        });
        *loaded = Some(Arc::clone(&library));
        Ok(library)
    }

    /// Whether the library supports NVIDIA GPUs.
    pub(super) fn has_cuda(&self) -> bool {
        let cuda = <ort::ep::CUDA as ExecutionProvider>::NAME;
        self.providers.iter().any(|name| name == cuda)
    }

    /// The error for a library without CUDA support.
    pub(super) fn without_cuda(&self) -> InferenceError {
        unavailable(format!(
            "{} was built without CUDA (it has {}); install onnxruntime-gpu and set its library in \
             network.onnxruntime or {VARIABLE}",
            self.path.display(),
            self.providers.join(", "),
        ))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Loads the library like a run does; returns its path and what it was built for.
///
/// # Errors
/// [`InferenceError::Unavailable`] if there is no library, or it cannot be loaded.
pub fn describe_library(named: Option<&Path>) -> Result<String, InferenceError> {
    let library = Library::load(named)?;
    let (path, providers) = (library.path.display(), library.providers.join(", "));
    Ok(format!("{path}, with {providers}"))
}

fn unavailable(reason: String) -> InferenceError {
    InferenceError::Unavailable {
        runtime: RUNTIME,
        reason,
    }
}

/// Queries the execution providers of the loaded library.
fn providers() -> Result<Vec<String>, InferenceError> {
    const DOING: &str = "asking for its execution providers";
    let (mut names, mut count) = (std::ptr::null_mut(), 0);
    let api = ort::api();
    // SAFETY: both outputs are written before they are read; a non-null status holds an error.
    unsafe {
        let status = (api.GetAvailableProviders)(&mut names, &mut count);
        ort::Error::result_from_status(status).map_err(|e| failure(DOING, e))?;
    }
    let text = |n: usize| {
        // SAFETY: the library returned `count` zero-terminated strings that live until they are
        // released.
        unsafe { CStr::from_ptr(*names.add(n)) }
            .to_string_lossy()
            .into_owned()
    };
    let found = (0..usize::try_from(count).unwrap_or(0)).map(text).collect();
    // SAFETY: returned by the library above and released once.
    unsafe {
        let status = (api.ReleaseAvailableProviders)(names, count);
        ort::Error::result_from_status(status).map_err(|e| failure(DOING, e))?;
    }
    Ok(found)
}

/// Finds the library file. A bare file name is left to the system's loader.
fn find(named: Option<&Path>) -> Result<PathBuf, InferenceError> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let told = match (named, &variable) {
        (Some(path), _) => Some(("network.onnxruntime", path)),
        (None, Some(value)) => Some((VARIABLE, Path::new(value))),
        (None, None) => None,
    };
    if let Some((by, path)) = told {
        return at(path).ok_or_else(|| {
            unavailable(format!(
                "{by} says {}, where there is neither ONNX Runtime's library nor a folder with {FILE}",
                path.display()
            ))
        });
    }
    let beside = std::env::current_exe();
    let beside = beside.ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let folders = beside
        .into_iter()
        .flat_map(|folder| [folder.clone(), folder.join("lib"), folder.join("../lib")]);
    let mut looked = Vec::new();
    for folder in folders {
        if let Some(file) = at(&folder) {
            return Ok(file);
        }
        looked.push(folder.display().to_string());
    }
    // Preloading succeeds if the system's loader can find the library; loading it again is cheap.
    match ort::util::preload_dylib(FILE) {
        Ok(()) => Ok(FILE.into()),
        Err(error) => Err(unavailable(format!(
            "no {FILE} in {} nor where the system looks for libraries ({error}). Install ONNX Runtime \
             (`pip install onnxruntime-gpu`) and name its library, or the folder with it \
             (site-packages/onnxruntime/capi), in network.onnxruntime or {VARIABLE}",
            looked.join(", "),
        ))),
    }
}

/// The library at `path`: the file itself, or the one in that folder. Python's packages have the
/// version behind the name.
fn at(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return Some(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir(path)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let rest = name.strip_prefix(FILE);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) && file.is_file()
        })
        .collect();
    // The shortest name is the one without a version.
    found.sort_by_key(|file| file.as_os_str().len());
    let first = found.into_iter().next()?;
    Some(std::path::absolute(&first).unwrap_or(first))
}

/// In Python packages, the CUDA and cuDNN libraries are in folders next to ONNX Runtime's, which
/// the system's loader does not search, so those found are loaded first.
fn preload(library: &Path) {
    let Some(packages) = library.ancestors().nth(3) else {
        return;
    };
    let Ok(folders) = std::fs::read_dir(packages.join("nvidia")) else {
        return;
    };
    // Those of Windows have other names for the same folder.
    let inside = match cfg!(windows) {
        true => &["bin", "bin/x86_64"][..],
        false => &["lib"],
    };
    let folders: Vec<PathBuf> = folders
        .filter_map(|entry| Some(entry.ok()?.path()))
        .flat_map(|package| inside.iter().map(move |name| package.join(name)))
        .collect();
    let names = ort::ep::cuda::CUDA_DYLIBS
        .iter()
        .chain(ort::ep::cuda::CUDNN_DYLIBS);
    for name in names {
        for file in folders.iter().map(|folder| folder.join(name)) {
            if file.exists()
                && let Err(error) = ort::util::preload_dylib(&file)
            {
                tracing::debug!("cannot preload {}: {error}", file.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_its_library_the_name_without_a_version_first() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(at(folder.path()), None);
        for other in ["libonnxruntime_providers_cuda.so", "notes.txt"] {
            std::fs::write(folder.path().join(other), "").expect("written");
        }
        assert_eq!(at(folder.path()), None);
        let versioned = folder.path().join(format!("{FILE}.1.31.1"));
        std::fs::write(&versioned, "").expect("written");
        assert_eq!(at(folder.path()), Some(versioned.clone()));
        assert_eq!(at(&versioned), Some(versioned));
        let plain = folder.path().join(FILE);
        std::fs::write(&plain, "").expect("written");
        assert_eq!(at(folder.path()), Some(plain));
    }

    #[test]
    fn a_named_library_that_is_not_there_is_named_in_the_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = find(Some(folder.path())).expect_err("an empty folder");
        let message = error.to_string();
        for part in [
            "network.onnxruntime",
            FILE,
            &folder.path().to_string_lossy(),
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}

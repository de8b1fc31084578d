//! Finds nvcc and compiles what has changed.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Machine code for: Orin, Hopper, Thor, desktop Blackwell. Then PTX, which the driver compiles on
/// any other GPU: of the newest, and of the oldest that the kernels allow (everything from Ampere).
const ARCHITECTURES: &str = "sm_87,sm_90,sm_110,sm_120,compute_80,compute_120";

const FLAGS: &[&str] = &[
    "-fatbin",
    "-std=c++17",
    "-O3",
    "-lineinfo",
    "-Xptxas",
    "-v,-warn-spills",
];

/// A folder of kernels, which become one table of the library.
struct Folder {
    path: &'static str,
    /// File name of the table in `OUT_DIR`.
    table: &'static str,
    flags: &'static [&'static str],
    /// Whether kernels use what only one architecture has.
    own_features: bool,
}

const FOLDERS: [Folder; 2] = [
    // The CPU code does not fuse multiplications with additions, and the same bits are wanted from both.
    Folder {
        path: "kernels",
        table: "kernels.rs",
        flags: &["-fmad=false"],
        own_features: false,
    },
    // The network's: compared with the CPU within a tolerance.
    Folder {
        path: "kernels/native",
        table: "native_kernels.rs",
        flags: &[],
        own_features: true,
    },
];

/// The first release with it: machine code of six targets compresses to a fifth.
const COMPRESSION: ((u32, u32), &str) = ((12, 8), "--compress-mode=size");

/// The compiler that CI uses; with any other, a new warning must not stop a build.
const CHECKED_RELEASE: (u32, u32) = (13, 0);

/// An nvcc and the release that it says it is.
struct Compiler {
    path: PathBuf,
    release: (u32, u32),
}

pub fn build() -> Result<(), String> {
    println!("cargo::rerun-if-changed=kernels");
    for name in ["CUDA_HOME", "MAST3R_CUDA_ARCHS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let variable = |name| std::env::var_os(name).ok_or(format!("{name} is not set"));
    let out = PathBuf::from(variable("OUT_DIR")?);
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let compiler = find()?;
    let architectures = architectures()?;
    let mut folders = Vec::with_capacity(FOLDERS.len());
    for folder in &FOLDERS {
        let path = root.join(folder.path);
        let mut sources: Vec<PathBuf> = fs::read_dir(&path)
            .and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect())
            .map_err(|e| format!("cannot list {}: {e}", path.display()))?;
        sources.retain(|path| path.extension().is_some_and(|e| e == "cu"));
        sources.sort();
        folders.push((folder, sources));
    }
    let sources: Vec<(&Folder, &PathBuf)> = folders
        .iter()
        .flat_map(|(folder, sources)| sources.iter().map(|source| (*folder, source)))
        .collect();

    // As many compilers as cargo may run jobs.
    let jobs = std::env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok());
    let queue = Mutex::new(sources.iter());
    let failures = Mutex::new(String::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.unwrap_or(1).clamp(1, sources.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().map_or(None, |mut queue| queue.next());
                    let Some((folder, source)) = next else { break };
                    if let Err(message) = compile(&compiler, &architectures, folder, source, &out)
                        && let Ok(mut all) = failures.lock()
                    {
                        all.push_str(&message);
                        all.push('\n');
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().map_err(|e| e.to_string())?;
    if !failures.is_empty() {
        return Err(failures);
    }
    for (folder, sources) in &folders {
        write_table(&compiler, &architectures, sources, &out.join(folder.table))?;
    }
    Ok(())
}

/// `CUDA_HOME/bin`, then `PATH`, then the PyPI packages of the `python3` (or `python`) on `PATH`.
fn find() -> Result<Compiler, String> {
    let program = if cfg!(windows) { "nvcc.exe" } else { "nvcc" };
    let mut looked = String::new();
    let mut candidates = Vec::new();
    match std::env::var_os("CUDA_HOME") {
        Some(home) => {
            let path = PathBuf::from(home).join("bin").join(program);
            match release(&path) {
                Ok(release) => return Ok(Compiler { path, release }),
                Err(why) => {
                    let _ = writeln!(looked, "  CUDA_HOME: {}: {why}", path.display());
                }
            }
        }
        None => looked.push_str("  CUDA_HOME: not set\n"),
    }
    println!("cargo::rerun-if-env-changed=PATH");
    let paths = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&paths)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
    {
        Some(path) => candidates.push((path, "PATH")),
        None => looked.push_str("  PATH: no nvcc in it\n"),
    }
    for python in ["python3", "python"] {
        let script = "import nvidia; print('\\n'.join(nvidia.__path__))";
        let Ok(output) = Command::new(python).args(["-c", script]).output() else {
            continue;
        };
        for folder in String::from_utf8_lossy(&output.stdout).lines() {
            for toolkit in ["cu13", "cuda_nvcc"] {
                let path = Path::new(folder).join(toolkit).join("bin").join(program);
                if path.is_file() {
                    candidates.push((path, "PyPI packages"));
                }
            }
        }
    }
    if !candidates.iter().any(|(_, from)| *from == "PyPI packages") {
        looked.push_str("  PyPI packages: python3 knows no nvidia/cu13/bin/nvcc\n");
    }
    for (path, from) in candidates {
        match release(&path) {
            Ok(release) => return Ok(Compiler { path, release }),
            Err(why) => {
                let _ = writeln!(looked, "  {from}: {}: {why}", path.display());
            }
        }
    }
    Err(format!(
        "the feature `cuda` needs CUDA's compiler nvcc, and there is none:\n{looked}\
         Point CUDA_HOME to a CUDA toolkit, or put nvcc on PATH, or take it from PyPI:\n  \
         pip install nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* \
         nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*"
    ))
}

/// `13.0` of "Cuda compilation tools, release 13.0, V13.0.88".
fn release(nvcc: &Path) -> Result<(u32, u32), String> {
    let output = Command::new(nvcc)
        .arg("--version")
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_once("release ")
        .and_then(|(_, rest)| rest.split_once(','))
        .and_then(|(number, _)| number.split_once('.'))
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or(format!("`nvcc --version` says no release: {text:?}"))
}

/// The targets, by default [`ARCHITECTURES`].
fn architectures() -> Result<Vec<String>, String> {
    let list = std::env::var("MAST3R_CUDA_ARCHS").unwrap_or_default();
    let list = if list.trim().is_empty() {
        ARCHITECTURES
    } else {
        &list
    };
    let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
    for name in &names {
        let number = name
            .strip_prefix("sm_")
            .or_else(|| name.strip_prefix("compute_"));
        if number.is_none_or(|n| n.parse::<u32>().is_err()) {
            return Err(format!(
                "MAST3R_CUDA_ARCHS: {name:?} is no target; write for example sm_90,compute_90"
            ));
        }
    }
    Ok(names)
}

/// Compiles one file, unless it, the headers that it includes and the command are as they were, or as for another set
/// of the package's features.
fn compile(
    compiler: &Compiler,
    architectures: &[String],
    folder: &Folder,
    source: &Path,
    out: &Path,
) -> Result<(), String> {
    let made = |extension| out.join(stem(source)).with_extension(extension);
    let flags = FLAGS.iter().chain(folder.flags);
    let mut arguments: Vec<OsString> = flags.map(OsString::from).collect();
    if compiler.release == CHECKED_RELEASE {
        arguments.extend(["-Werror".into(), "all-warnings".into()]);
    }
    let (first, compression) = COMPRESSION;
    if compiler.release >= first {
        arguments.push(compression.into());
    }
    for name in architectures {
        let number = name
            .trim_start_matches("sm_")
            .trim_start_matches("compute_");
        // Hopper's matrix products are only in code for this very architecture.
        let own = match folder.own_features && name == "sm_90" {
            true => "a",
            false => "",
        };
        arguments.push(format!("-gencode=arch=compute_{number}{own},code={name}{own}").into());
    }
    arguments.push(source.as_os_str().to_owned());

    // Where the results go is not part of it.
    let fingerprint = |headers: &[PathBuf]| -> Option<String> {
        let mut hasher = DefaultHasher::new();
        (&compiler.path, compiler.release, &arguments).hash(&mut hasher);
        for path in headers {
            (path, fs::read(path).ok()?).hash(&mut hasher);
        }
        Some(format!("{:016x}", hasher.finish()))
    };
    let complete = |folder: &Path| {
        let file = |extension| folder.join(stem(source)).with_extension(extension);
        let known = fs::read_to_string(file("stamp")).ok();
        let rule = fs::read_to_string(file("d")).unwrap_or_default();
        file("fatbin").is_file()
            && known.is_some()
            && fingerprint(&own_files(source, &rule)) == known
    };
    if complete(out) {
        return Ok(());
    }
    let stamp = made("stamp");
    let _ = fs::remove_file(&stamp);
    if let Some(other) = other_outputs(out).into_iter().find(|other| complete(other)) {
        let from = other.join(stem(source));
        // The stamp last: with it the others are complete.
        let copied = ["fatbin", "log", "d", "stamp"]
            .into_iter()
            .try_for_each(|e| fs::copy(from.with_extension(e), made(e)).map(drop));
        if copied.is_ok() {
            return Ok(());
        }
    }
    let output = Command::new(&compiler.path)
        .args(&arguments)
        .arg("-MD")
        .args(["-o".into(), made("fatbin"), "-MF".into(), made("d")])
        .output()
        .map_err(|e| format!("cannot run {}: {e}", compiler.path.display()))?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    let write = |path: &Path, text: &str| {
        fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
    };
    write(&made("log"), &log)?;
    // What is no report on a kernel: the compiler's complaints.
    let complaints: String = log
        .lines()
        .filter(|line| !line.starts_with("ptxas info") && !line.contains("bytes stack frame"))
        .fold(String::new(), |all, line| all + line + "\n");
    if !output.status.success() {
        return Err(format!(
            "{} on {}: {}\n{complaints}",
            compiler.path.display(),
            source.display(),
            output.status
        ));
    }
    for line in complaints.lines().filter(|line| !line.trim().is_empty()) {
        println!("cargo::warning={line}");
    }
    let dependencies = fs::read_to_string(made("d"))
        .map_err(|e| format!("nvcc left no list of headers for {}: {e}", source.display()))?;
    let fingerprint = fingerprint(&own_files(source, &dependencies))
        .ok_or(format!("a header of {} vanished", source.display()))?;
    write(&stamp, &fingerprint)
}

/// The `OUT_DIR`s of this package with other features, and for other platforms: cargo puts them into
/// `TARGET/release/build/PACKAGE-HASH/out` and, when it compiles for another platform, into
/// `TARGET/PLATFORM/release/build/PACKAGE-HASH/out`.
fn other_outputs(out: &Path) -> Vec<PathBuf> {
    let above: Vec<&Path> = out.ancestors().collect();
    let Some(profile) = above.get(3).and_then(|folder| folder.file_name()) else {
        return Vec::new();
    };
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let package = concat!(env!("CARGO_PKG_NAME"), "-");
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(package)
    };
    // The folder with the profile's folder in it is TARGET or TARGET/PLATFORM.
    let mut others: Vec<PathBuf> = (above.iter().skip(4).take(2))
        .flat_map(|folder| entries(folder).into_iter().chain([folder.to_path_buf()]))
        .flat_map(|folder| entries(&folder.join(profile).join("build")))
        .filter(is_ours)
        .map(|build| build.join("out"))
        .filter(|other| other != out)
        .collect();
    others.sort();
    others.dedup();
    others
}

/// The files of a make rule that lie beside `source`: the compiler's own headers change only with
/// the compiler.
fn own_files(source: &Path, rule: &str) -> Vec<PathBuf> {
    let folder = source.parent().unwrap_or(Path::new(""));
    // Make escapes a space within a name by a backslash.
    let rule = rule.replace("\\\r\n", " ").replace("\\\n", " ");
    let rule = rule.replace("\\ ", "\0");
    let mut files: Vec<PathBuf> = rule
        .split_whitespace()
        .map(|name| PathBuf::from(name.replace('\0', " ")))
        .filter(|path| path.starts_with(folder) && path.is_file())
        .collect();
    files.sort();
    files.dedup();
    files
}

fn stem(source: &Path) -> String {
    let stem = source.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// A folder's table: what was compiled, for which targets, by which compiler.
fn write_table(
    compiler: &Compiler,
    architectures: &[String],
    sources: &[PathBuf],
    table: &Path,
) -> Result<(), String> {
    let (major, minor) = compiler.release;
    let mut text = format!(
        "/// Release of the compiler.\npub const RELEASE: (u32, u32) = ({major}, {minor});\n\
         /// Targets: machine code (`sm_`) and PTX (`compute_`).\n\
         pub const ARCHITECTURES: &[&str] = &{architectures:?};\n\
         /// File name without extension, fat binary.\npub static IMAGES: &[(&str, &[u8])] = &[\n"
    );
    for name in sources.iter().map(|source| stem(source)) {
        let path = table.with_file_name(&name).with_extension("fatbin");
        // The driver reads the headers in place, as 8-byte words.
        let _ = writeln!(
            text,
            "    ({name:?}, &Aligned(*include_bytes!({path:?})).0),"
        );
    }
    text.push_str("];\n");
    fs::write(table, text).map_err(|e| format!("cannot write {}: {e}", table.display()))
}

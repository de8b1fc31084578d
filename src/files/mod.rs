//! Atomic file writes: a temporary file next to the target, followed by a rename.

pub(crate) mod at;
pub mod export;
pub mod memory;
mod space;

pub use space::free_space;

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes `path`, in an existing folder: `body` fills a temporary file in the same folder, which is
/// then flushed, synced and renamed. If an error occurs, no new file is left behind and an existing
/// file at `path` is unchanged. Permissions follow the umask, as if the file had been created
/// directly.
///
/// # Errors
/// I/O errors, and errors of `body`; none names the temporary file.
pub fn write<F>(path: &Path, body: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
{
    let mut file = begin(path)?;
    let mut out = BufWriter::with_capacity(1 << 16, file.as_file_mut());
    body(&mut out)?;
    out.flush()?;
    drop(out);
    complete(file, path)
}

/// The folder of a file.
pub fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The temporary file of [`write()`], for content written incrementally. It is removed when
/// dropped.
///
/// # Errors
/// See [`write()`].
pub fn begin(path: &Path) -> io::Result<NamedTempFile> {
    if path.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let folder = folder_of(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".writing-");
    // By default tempfile makes the file readable by its owner only.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // The error from tempfile would name the temporary file.
    builder
        .tempfile_in(folder)
        .map_err(|e| io::Error::from(e.kind()))
}

/// Moves a complete file from [`begin`] to `path`.
///
/// # Errors
/// See [`write()`].
pub fn complete(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// The folder `name` of this program's in the user's cache folder; `name` itself where there is no user.
pub fn cache(name: &str) -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = if cfg!(windows) {
        variable("LOCALAPPDATA").map(PathBuf::from)
    } else {
        let named = variable("XDG_CACHE_HOME").map(PathBuf::from);
        named.or_else(|| Some(home()?.join(".cache")))
    };
    match cache {
        Some(cache) => cache.join("mast3r_slam").join(name),
        None => name.into(),
    }
}

/// The user's home folder, from the system's own variable for it.
pub fn home() -> Option<PathBuf> {
    let variable = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// [`write()`] for content that is already in memory.
///
/// # Errors
/// See [`write()`].
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, |out| out.write_all(bytes))
}

/// Whether `path`, whose last parts need not exist, lies in `root` or is it, once links are followed. A path with `..`
/// in it does not.
///
/// # Errors
/// The operating system's.
pub fn is_within(root: &Path, path: &Path) -> io::Result<bool> {
    if path.components().any(|part| part == Component::ParentDir) {
        return Ok(false);
    }
    Ok(resolved(path)?.starts_with(resolved(root)?))
}

/// The absolute path with the links of its existing part followed.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let mut missing = Vec::new();
    let mut existing = path.as_path();
    loop {
        match existing.canonicalize() {
            Ok(found) => {
                return Ok(missing
                    .into_iter()
                    .rev()
                    .fold(found, |p, part| p.join(part)));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let (Some(parent), Some(name)) = (existing.parent(), existing.file_name()) else {
            return Ok(path);
        };
        missing.push(name.to_owned());
        existing = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn entries(folder: &Path) -> Vec<String> {
        let list = fs::read_dir(folder).unwrap();
        list.map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn an_old_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.txt");
        write_bytes(&path, b"one").unwrap();
        write_bytes(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(entries(folder.path()), ["c.txt"]);
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.ply");
        write_bytes(&path, b"old").unwrap();
        // The disk accepts some blocks and then no more.
        let error = write(&path, |out| {
            out.write_all(&[7; 200_000])?;
            Err(ErrorKind::StorageFull.into())
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(folder.path()), ["c.ply"]);
    }

    #[test]
    fn a_missing_folder_is_an_error_that_names_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let error = write_bytes(&folder.path().join("no/c.txt"), b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!error.to_string().contains(".writing-"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn others_may_read_the_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (ours, plain) = (folder.path().join("ours"), folder.path().join("plain"));
        write_bytes(&ours, b"").unwrap();
        fs::write(&plain, b"").unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }
}

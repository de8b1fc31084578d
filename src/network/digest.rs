//! What tells weights from others.

use super::{CheckpointError, files};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes at the beginning of weights that hold the names and shapes of all tensors.
const HEAD: u64 = 1 << 20;

/// SHA-256 of the weights at `path` in hexadecimal, over the concatenation if there are two files.
/// TensorRT engines and codebooks are bound to this hash.
///
/// # Errors
/// See [`CheckpointError`].
pub fn hash(path: &Path) -> Result<String, CheckpointError> {
    digest(path, |mut file, hasher| {
        io::copy(&mut file, hasher).map(drop)
    })
}

/// SHA-256 of the lengths and the heads of the files that the weights at `path` consist of, in hexadecimal: what determines
/// how long a network takes, without reading gigabytes.
///
/// # Errors
/// See [`CheckpointError`].
pub fn identity(path: &Path) -> Result<String, CheckpointError> {
    digest(path, |file, hasher| {
        let bytes: u64 = file.metadata()?.len();
        hasher.update(bytes.to_le_bytes());
        io::copy(&mut file.take(HEAD), hasher).map(drop)
    })
}

/// SHA-256 of what `add` takes of each file.
fn digest(
    path: &Path,
    add: impl Fn(File, &mut Sha256) -> io::Result<()>,
) -> Result<String, CheckpointError> {
    let mut hasher = Sha256::new();
    for path in files(path)? {
        let added = File::open(&path).and_then(|file| add(file, &mut hasher));
        added.map_err(|source| CheckpointError::Io { path, source })?;
    }
    let digest = hasher.finalize();
    Ok(digest.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_told_apart_by_length_and_head() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let identity_of = |bytes: &[u8]| {
            let path = folder.path().join("weights");
            std::fs::write(&path, bytes).expect("a file");
            identity(&path).expect("read")
        };
        let first = identity_of(b"weights");
        assert_eq!(first, identity_of(b"weights"));
        assert_ne!(first, identity_of(b"weighty"));
        let long = vec![7; HEAD as usize + 10];
        assert_ne!(identity_of(&long), identity_of(&long[1..]));
        assert!(identity(&folder.path().join("none")).is_err());
    }
}

//! zstd: files that are compressed as a whole, and single messages. The unpacked size is bounded, since a few
//! kilobytes can be made to unpack into terabytes.

use super::{BagError, MESSAGE_BYTES};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use tempfile::{NamedTempFile, TempPath};

/// The first bytes of a zstd frame.
const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// Bytes that hold a frame's header, with its promised size if there is one (RFC 8878, section 3.1.1).
const FRAME_HEADER: u64 = 18;
/// Largest ratio of unpacked to packed size. Camera images pack by a factor of 1 to 10, text by up to 50.
const MAX_RATIO: u64 = 128;
/// Unpacked size that any file may have, however small it is when packed: 64 MiB.
const ALWAYS_ALLOWED: u64 = 1 << 26;

/// Whether `data` begins a zstd frame.
pub fn is_compressed(data: &[u8]) -> bool {
    data.starts_with(&MAGIC)
}

/// The unpacked size that a file of `size` bytes may have.
pub fn limit(size: u64) -> u64 {
    size.saturating_mul(MAX_RATIO).max(ALWAYS_ALLOWED)
}

/// Unpacks a file into a temporary one. Everything before the damage of a damaged file is kept.
///
/// # Errors
/// A file that cannot be read, a copy that cannot be written, an unpacked size of more than [`ALWAYS_ALLOWED`] bytes
/// and [`MAX_RATIO`] times the packed one, whether the file promises it or unpacks into it.
pub fn file(path: &Path) -> Result<TempPath, BagError> {
    let io = |e| BagError::io(path, e);
    let mut packed = File::open(path).map_err(io)?;
    let size = packed.metadata().map_err(io)?.len();
    let limit = limit(size);
    let mut header = Vec::new();
    let mut start = Read::by_ref(&mut packed).take(FRAME_HEADER);
    start.read_to_end(&mut header).map_err(io)?;
    let promised = zstd::zstd_safe::get_frame_content_size(&header);
    if let Ok(Some(promised)) = promised
        && promised > limit
    {
        return Err(too_large(path, size, limit));
    }
    let packed = io::Cursor::new(header).chain(packed);
    let mut decoder = zstd::Decoder::new(BufReader::new(packed)).map_err(|e| damaged(path, &e))?;
    let mut copy = NamedTempFile::new().map_err(|e| no_space(path, &e))?;
    let mut buffer = vec![0; 1 << 18];
    let mut written = 0;
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => return Ok(copy.into_temp_path()),
            Ok(n) => {
                written += n as u64;
                if written > limit {
                    return Err(too_large(path, size, limit));
                }
                let part = buffer.get(..n).unwrap_or_default();
                copy.write_all(part).map_err(|e| no_space(path, &e))?;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // The bag's reader reports where the kept part ends.
            Err(e) => {
                tracing::warn!("{}: {}", path.display(), damaged(path, &e));
                return Ok(copy.into_temp_path());
            }
        }
    }
}

/// Unpacks one message of at most [`MESSAGE_BYTES`] bytes.
///
/// # Errors
/// Damaged data, or a message of more bytes.
pub fn message(data: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let limit = MESSAGE_BYTES as u64 + 1;
    zstd::Decoder::new(data)?
        .take(limit)
        .read_to_end(&mut out)?;
    if out.len() > MESSAGE_BYTES {
        return Err(io::Error::other(format!(
            "it unpacks into more than {MESSAGE_BYTES} bytes"
        )));
    }
    Ok(out)
}

fn too_large(path: &Path, packed: u64, limit: u64) -> BagError {
    BagError::content(
        path,
        format!("a zstd-compressed file of {packed} bytes that unpacks into at most {limit} bytes"),
        "one that unpacks into more; unpack it with zstd if you trust it, and open the result",
    )
}

fn damaged(path: &Path, error: &io::Error) -> BagError {
    let found = format!("a damaged one: {error}");
    BagError::content(path, "a zstd-compressed file", found)
}

fn no_space(path: &Path, error: &io::Error) -> BagError {
    let folder = std::env::temp_dir();
    let text = format!("{error} (it is unpacked into {})", folder.display());
    BagError::io(path, io::Error::new(error.kind(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(bytes: &[u8]) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_file_is_unpacked() {
        let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let file = packed(&zstd::encode_all(&content[..], 1).unwrap());
        let copy = super::file(file.path()).unwrap();
        assert!(std::fs::read(&copy).unwrap() == content);
    }

    #[test]
    fn a_file_that_unpacks_into_far_more_is_refused() {
        let size = ALWAYS_ALLOWED + 1;
        let zeros = vec![0; size as usize];
        // The size is in the frame's header of the first, and not in the second's.
        let promised = zstd::bulk::compress(&zeros, 1).unwrap();
        let silent = zstd::encode_all(&zeros[..], 1).unwrap();
        let header = |frame: &[u8]| {
            zstd::zstd_safe::get_frame_content_size(frame)
                .ok()
                .flatten()
        };
        assert_eq!((header(&promised), header(&silent)), (Some(size), None));
        for bytes in [promised, silent] {
            assert!(bytes.len() < 10_000, "{}", bytes.len());
            let error = file(packed(&bytes).path()).unwrap_err().to_string();
            assert!(
                error.contains("unpacks into at most 67108864 bytes"),
                "{error}"
            );
        }
    }
}

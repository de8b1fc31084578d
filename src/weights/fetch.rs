//! Fetches one file over HTTP: into a partial file beside the target, which is continued after an interruption,
//! checked, and renamed.

use super::error::WeightsError;
use crate::files::{folder_of, free_space};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body, http};

/// Attempts in a row that bring no byte before fetching fails.
const MAX_FAILURES: usize = 4;
/// Pause after the first failure; it doubles with each further one.
const PAUSE: Duration = Duration::from_millis(500);
/// Time for a connection, for an answer, and between two pieces of it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum size of a file whose size is not known: a server must not fill the disk.
const MAX_BYTES: u64 = 16 << 30;
/// Bytes read at once.
const PIECE: usize = 1 << 16;

/// The file to fetch.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub address: &'a str,
    pub target: &'a Path,
    /// Expected size.
    pub bytes: Option<u64>,
    /// Expected SHA-256 in lower-case hexadecimal digits.
    pub sha256: Option<&'a str>,
}

/// Observes fetching.
pub trait Watch {
    /// This many bytes of `total`, if known, are on disk.
    fn at(&self, bytes: u64, total: Option<u64>);
    /// Whether to stop; what was fetched is kept.
    fn stop(&self) -> bool;
}

/// How fetching ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The file is complete and checked.
    Done { bytes: u64, sha256: String },
    /// [`Watch::stop`] ended it.
    Stopped { bytes: u64 },
}

/// An HTTP client.
pub struct Client(Agent);

impl Default for Client {
    /// Certificates are checked against those that the system trusts.
    fn default() -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE))
            .user_agent(concat!("mast3r-slam/", env!("CARGO_PKG_VERSION")))
            .build();
        Self(config.new_agent())
    }
}

/// Why an attempt ended early.
enum Break {
    /// Another attempt may go on.
    Again(String),
    Stop,
    Fatal(WeightsError),
}

impl From<WeightsError> for Break {
    fn from(error: WeightsError) -> Self {
        Self::Fatal(error)
    }
}

impl Client {
    /// Fetches a file, or what is missing of it.
    ///
    /// # Errors
    /// See [`WeightsError`]. The partial file is kept for the next call, unless its content is wrong.
    pub fn fetch(&self, wanted: &Wanted<'_>, watch: &dyn Watch) -> Result<Outcome, WeightsError> {
        let mut partial = Partial::open(wanted)?;
        let mut failures = 0;
        loop {
            let before = partial.bytes;
            match self.attempt(wanted, &mut partial, watch) {
                Ok(()) => break,
                Err(Break::Stop) => {
                    return Ok(Outcome::Stopped {
                        bytes: partial.bytes,
                    });
                }
                Err(Break::Fatal(error)) => return Err(error),
                Err(Break::Again(cause)) => {
                    failures = if partial.bytes > before {
                        1
                    } else {
                        failures + 1
                    };
                    if failures >= MAX_FAILURES {
                        let address = wanted.address.to_owned();
                        return Err(WeightsError::Network { address, cause });
                    }
                    tracing::warn!("{}: {cause}; trying again", wanted.address);
                    std::thread::sleep(PAUSE * (1 << (failures - 1)));
                    if watch.stop() {
                        return Ok(Outcome::Stopped {
                            bytes: partial.bytes,
                        });
                    }
                }
            }
        }
        partial.complete(wanted)
    }

    /// Asks for what is missing, and appends it.
    fn attempt(
        &self,
        wanted: &Wanted<'_>,
        partial: &mut Partial,
        watch: &dyn Watch,
    ) -> Result<(), Break> {
        if wanted.bytes == Some(partial.bytes) {
            return Ok(());
        }
        let mut request = self.0.get(wanted.address);
        if partial.bytes > 0 {
            request = request.header("Range", format!("bytes={}-", partial.bytes));
            if let Some(version) = &partial.version {
                request = request.header("If-Range", version);
            }
        }
        let response = request.call().map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Break::Fatal(WeightsError::Network {
                address: wanted.address.to_owned(),
                cause: error.to_string(),
            }),
            other => Break::Again(other.to_string()),
        })?;
        let total = match response.status().as_u16() {
            206 => {
                let range = header(&response, "content-range").and_then(content_range);
                match range {
                    Some((from, total)) if from == partial.bytes => total,
                    _ => {
                        partial.restart()?;
                        return Err(Break::Again(
                            "the server sent another range than asked for".into(),
                        ));
                    }
                }
            }
            200 => {
                // The whole file: the server knows no ranges, or the file has changed.
                partial.restart()?;
                header(&response, "content-length").and_then(|length| length.parse().ok())
            }
            416 => {
                partial.restart()?;
                return Err(Break::Again(
                    "the server's file is shorter than what was fetched before".into(),
                ));
            }
            status @ (408 | 429 | 500..=599) => {
                return Err(Break::Again(format!("the server answered {status}")));
            }
            status => {
                let address = wanted.address.to_owned();
                return Err(WeightsError::Status { address, status }.into());
            }
        };
        let limit = wanted.bytes.unwrap_or(MAX_BYTES);
        let wrong_size = |found| WeightsError::Size {
            address: wanted.address.to_owned(),
            expected: limit,
            found,
        };
        if let Some(total) =
            total.filter(|&total| total > limit || wanted.bytes.is_some_and(|bytes| bytes != total))
        {
            return Err(wrong_size(total).into());
        }
        let version = header(&response, "etag").filter(|tag| !tag.starts_with("W/"));
        partial.keep_version(version.or(header(&response, "last-modified")))?;
        partial.check_space(total.or(wanted.bytes))?;
        let total = total.or(wanted.bytes);
        let mut body = response.into_body().into_reader();
        let mut piece = vec![0; PIECE];
        loop {
            watch.at(partial.bytes, total);
            if watch.stop() {
                return Err(Break::Stop);
            }
            let read = match body.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Break::Again(ended(
                        &error.to_string(),
                        partial.bytes,
                        total,
                    )));
                }
            };
            if partial.bytes + read as u64 > limit {
                return Err(wrong_size(partial.bytes + read as u64).into());
            }
            partial.append(piece.get(..read).unwrap_or_default())?;
        }
        match total {
            Some(all) if partial.bytes < all => {
                let words = ended("the connection ended", partial.bytes, total);
                Err(Break::Again(words))
            }
            _ => Ok(()),
        }
    }
}

fn header<'a>(response: &'a http::Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// Where the body ended, in words.
fn ended(why: &str, bytes: u64, total: Option<u64>) -> String {
    match total {
        Some(total) => format!("{why} after {bytes} of {total} bytes"),
        None => format!("{why} after {bytes} bytes"),
    }
}

/// First byte and total of `bytes 5-9/10`; the total may be `*`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((first.parse().ok()?, total))
}

/// The part of a file that was fetched, locked while it grows.
struct Partial {
    path: PathBuf,
    file: File,
    bytes: u64,
    hash: Sha256,
    /// The server's name for this version of the file, so that parts of two versions are never joined.
    version: Option<String>,
}

impl Partial {
    fn open(wanted: &Wanted<'_>) -> Result<Self, WeightsError> {
        let folder = folder_of(wanted.target);
        std::fs::create_dir_all(folder).map_err(|cause| io(folder, cause))?;
        let path = beside(wanted.target, ".part");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = file.map_err(|cause| io(&path, cause))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(WeightsError::Busy { path }),
            Err(TryLockError::Error(cause)) => return Err(io(&path, cause)),
        }
        let version = std::fs::read_to_string(beside(&path, ".version")).ok();
        let mut partial = Self {
            path,
            file,
            bytes: 0,
            hash: Sha256::new(),
            version: version.filter(|text| !text.is_empty()),
        };
        let hashed = std::io::copy(&mut partial.file, &mut partial.hash);
        partial.bytes = hashed.map_err(|cause| partial.io(cause))?;
        if wanted.bytes.is_some_and(|bytes| partial.bytes > bytes) {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn io(&self, cause: std::io::Error) -> WeightsError {
        io(&self.path, cause)
    }

    fn restart(&mut self) -> Result<(), WeightsError> {
        let emptied = self
            .file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|cause| self.io(cause))?;
        (self.bytes, self.hash, self.version) = (0, Sha256::new(), None);
        Ok(())
    }

    fn keep_version(&mut self, version: Option<&str>) -> Result<(), WeightsError> {
        if self.version.as_deref() == version {
            return Ok(());
        }
        let path = beside(&self.path, ".version");
        std::fs::write(&path, version.unwrap_or_default()).map_err(|cause| self.full_or(cause))?;
        self.version = version.map(str::to_owned);
        Ok(())
    }

    /// Rejects a file that does not fit on the disk, where its size and the room are known.
    fn check_space(&self, total: Option<u64>) -> Result<(), WeightsError> {
        let folder = folder_of(&self.path);
        let needed = total.unwrap_or(0).saturating_sub(self.bytes);
        match free_space(folder) {
            Some(free) if free < needed => Err(WeightsError::NoSpace {
                folder: folder.to_owned(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    fn append(&mut self, piece: &[u8]) -> Result<(), WeightsError> {
        self.file
            .write_all(piece)
            .map_err(|cause| self.full_or(cause))?;
        self.hash.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    fn full_or(&self, cause: std::io::Error) -> WeightsError {
        match cause.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => WeightsError::NoSpace {
                folder: folder_of(&self.path).to_owned(),
                needed: PIECE as u64,
                free: free_space(folder_of(&self.path)).unwrap_or(0),
            },
            _ => self.io(cause),
        }
    }

    /// Checks size and hash, and gives the file its name.
    fn complete(self, wanted: &Wanted<'_>) -> Result<Outcome, WeightsError> {
        let address = || wanted.address.to_owned();
        let digest = self.hash.clone().finalize();
        let found: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        let wrong = match (wanted.bytes, wanted.sha256) {
            (Some(expected), _) if expected != self.bytes => Some(WeightsError::Size {
                address: address(),
                expected,
                found: self.bytes,
            }),
            (_, Some(expected)) if expected != found => Some(WeightsError::Hash {
                address: address(),
                expected: expected.to_owned(),
                found: found.clone(),
            }),
            _ => None,
        };
        let version = beside(&self.path, ".version");
        if let Some(error) = wrong {
            let _ = std::fs::remove_file(version);
            let removed = std::fs::remove_file(&self.path);
            return Err(removed.map_or_else(|cause| self.io(cause), |()| error));
        }
        self.file.sync_all().map_err(|cause| self.full_or(cause))?;
        let Self {
            path, file, bytes, ..
        } = self;
        // Windows does not rename a locked file.
        drop(file);
        std::fs::rename(&path, wanted.target).map_err(|cause| io(wanted.target, cause))?;
        let _ = std::fs::remove_file(version);
        Ok(Outcome::Done {
            bytes,
            sha256: found,
        })
    }
}

fn io(path: &Path, cause: std::io::Error) -> WeightsError {
    let path = path.to_owned();
    WeightsError::Io { path, cause }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests;

//! Opening, creating and locking the file.

use super::rows::{self, Table};
use super::{PACKED_VERSION, StoreError, VERSION, lock};
use crate::map::saved::{Header, MAGIC};
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `M3RS`, at the place where SQLite keeps a number for the application: a map that is written as it is made.
pub const APPLICATION: u32 = 0x4d33_5253;
/// `M3RP` at that place: a packed map.
pub const PACKED: u32 = 0x4d33_5250;

const SQLITE: &[u8; 16] = b"SQLite format 3\0";

/// Limits on the size of a map's images and tokens, above those of any network.
const MAX_PIXELS: usize = 1 << 24;
const MAX_FEATURES: usize = 1 << 26;

/// How long an access waits for another process's.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a file is, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// There is no file.
    Missing,
    /// A map that is written as it is made.
    Store,
    /// A map that was saved at once: see [`crate::map::saved`].
    Saved,
    /// A map without tokens and matches, see [`super::pack()`].
    Packed,
    /// Anything else.
    Foreign,
}

impl Kind {
    /// What the file at `path` is.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(path: &Path) -> Result<Self, StoreError> {
        kind_of(path).map_err(|cause| StoreError::Open {
            path: path.to_owned(),
            cause,
        })
    }
}

/// Like [`Kind::of`], with the operating system's error.
///
/// # Errors
/// If the file cannot be read.
pub fn kind_of(path: &Path) -> io::Result<Kind> {
    match path.metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Kind::Missing),
        Err(error) => return Err(error),
        // Opening a pipe or a device would wait or do harm.
        Ok(meta) if !meta.is_file() => return Ok(Kind::Foreign),
        Ok(_) => {}
    }
    let mut start = Vec::new();
    File::open(path)?.take(100).read_to_end(&mut start)?;
    let is_of = |application: u32| {
        start.starts_with(SQLITE) && start.get(68..72) == Some(&application.to_be_bytes()[..])
    };
    Ok(if is_of(APPLICATION) {
        Kind::Store
    } else if is_of(PACKED) {
        Kind::Packed
    } else if start.starts_with(&MAGIC) {
        Kind::Saved
    } else {
        Kind::Foreign
    })
}

/// A database with the name of its file, for errors.
#[derive(Debug)]
pub struct Database {
    pub path: PathBuf,
    pub connection: Connection,
}

impl Database {
    /// Wraps an error of the database.
    pub fn failed(&self, cause: rusqlite::Error) -> StoreError {
        failed(&self.path, cause)
    }

    /// The header of the map.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn header(&self) -> Result<Header, StoreError> {
        let unusable = |what: &str| StoreError::Unusable {
            path: self.path.clone(),
            what: what.to_owned(),
        };
        let row = self.meta("header")?;
        let row = row.ok_or_else(|| unusable("its header is missing"))?;
        let mut payload = rows::open(Table::Header, 0, &row)
            .map_err(|_| unusable("its header is damaged; use a copy of it"))?;
        let header = Header::parse(&mut payload);
        let header = header.map_err(|_| unusable("its header is invalid"))?;
        // Memory is reserved by these sizes.
        let (pixels, features) = (header.shape.pixels(), header.shape.features());
        match pixels <= MAX_PIXELS && features <= MAX_FEATURES {
            true => Ok(header),
            false => Err(unusable("its images are larger than those of any network")),
        }
    }

    /// The content of a row of `meta`.
    pub fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let query = "SELECT content FROM meta WHERE name = ?1";
        let row = self.connection.query_row(query, [name], |row| row.get(0));
        row.optional().map_err(|e| self.failed(e))
    }

    fn check_version(&self, (expected, known): (u32, u32)) -> Result<(), StoreError> {
        let pragma = |name| {
            let value = self
                .connection
                .pragma_query_value(None, name, |row| row.get(0));
            value.map_err(|e| self.failed(e))
        };
        let (application, found): (u32, u32) = (pragma("application_id")?, pragma("user_version")?);
        let path = self.path.clone();
        if application != expected {
            return Err(StoreError::Foreign { path });
        }
        match found <= known {
            true => Ok(()),
            false => Err(StoreError::Newer { path, found, known }),
        }
    }
}

fn failed(path: &Path, cause: rusqlite::Error) -> StoreError {
    StoreError::Database {
        path: path.to_owned(),
        cause,
    }
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Database, StoreError> {
    // A file's name is never taken as a URI with options.
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |cause| failed(path, cause);
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    // A map may come from any source.
    let careful = "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;";
    connection.execute_batch(careful).map_err(failed)?;
    Ok(Database {
        path: path.to_owned(),
        connection,
    })
}

/// Opens a map to read it; another process may write it. Also returns whether it is packed.
///
/// # Errors
/// If the file is not a map, or cannot be read.
pub fn open_to_read(path: &Path) -> Result<(Database, bool), StoreError> {
    let io = |cause| StoreError::Open {
        path: path.to_owned(),
        cause,
    };
    let format = match Kind::of(path)? {
        Kind::Store => (APPLICATION, VERSION),
        Kind::Packed => (PACKED, PACKED_VERSION),
        Kind::Missing => return Err(io(ErrorKind::NotFound.into())),
        Kind::Saved | Kind::Foreign => {
            return Err(StoreError::Foreign {
                path: path.to_owned(),
            });
        }
    };
    let database = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    database.check_version(format)?;
    Ok((database, format.0 == PACKED))
}

/// A map that only this process writes.
#[derive(Debug)]
pub struct Owned {
    // Dropped first: closing any other handle of the file gives up SQLite's own locks.
    pub database: Database,
    lock: File,
}

impl Owned {
    /// Whether the file still stands under its name.
    pub fn stands(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let (Ok(there), Ok(own)) = (self.database.path.metadata(), self.lock.metadata()) else {
                return false;
            };
            (there.dev(), there.ino()) == (own.dev(), own.ino())
        }
        #[cfg(not(unix))]
        {
            let _ = &self.lock;
            self.database.path.exists()
        }
    }
}

/// Opens a map to continue it.
///
/// # Errors
/// If the file is not a map, is in use, or cannot be written to.
pub fn open(path: &Path) -> Result<Owned, StoreError> {
    let io = |cause: io::Error| {
        let path = path.to_owned();
        match cause.kind() {
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                StoreError::NotWritable { path, cause }
            }
            _ => StoreError::Open { path, cause },
        }
    };
    if Kind::of(path)? != Kind::Store {
        return Err(StoreError::Foreign {
            path: path.to_owned(),
        });
    }
    let lock = lock::hold(path).map_err(io)?;
    let lock = lock.ok_or_else(|| StoreError::InUse {
        path: path.to_owned(),
        holder: holder(path),
    })?;
    let database = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    database.check_version((APPLICATION, VERSION))?;
    // A commit is on the disk when it returns; the log is written back after 4 MB, by the thread that writes.
    let mode = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 256; \
                PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -8000; PRAGMA temp_store = MEMORY;";
    let set = database.connection.execute_batch(mode);
    set.map_err(|e| database.failed(e))?;
    Ok(Owned { database, lock })
}

/// The process that writes the map, in words.
fn holder(path: &Path) -> String {
    let session = open_to_read(path).and_then(|(database, _)| database.meta("session"));
    let session = session
        .ok()
        .flatten()
        .and_then(|row| String::from_utf8(row).ok());
    match session.as_deref().and_then(|s| s.strip_prefix("open ")) {
        Some(process) => format!("another program ({process})"),
        None => "another program".to_owned(),
    }
}

//! Makes a new file, which appears under its name when it is complete.

use super::StoreError;
use super::file::{APPLICATION, Database, PACKED};
use super::rows::{self, Table};
use super::{PACKED_VERSION, VERSION};
use crate::files;
use crate::map::saved::Header;
use rusqlite::{Connection, OpenFlags, params};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Page size in bytes of a map that is written as it is made: large, because nearly all content is in rows of
/// hundreds of kilobytes.
const PAGE: u32 = 16384;
/// Page size in bytes of a packed map, where a page's unused rest counts.
const PACKED_PAGE: u32 = 4096;

const TABLES: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE keyframe (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE image (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE points (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE edge (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE matches (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE factor (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE removed (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
";

/// Creates an empty map at `path`, where no file may be.
///
/// # Errors
/// If the folder does not exist or cannot be written to.
pub fn create(path: &Path, header: &Header) -> Result<(), StoreError> {
    NewFile::begin(path, header, false)?.complete(false)
}

/// A file in the making, in one transaction. It is removed when dropped.
pub struct NewFile {
    // Closed before the file is removed.
    database: Database,
    file: NamedTempFile,
}

impl NewFile {
    /// Begins the map `path`, packed or not.
    ///
    /// # Errors
    /// If the folder does not exist or cannot be written to.
    pub fn begin(path: &Path, header: &Header, packed: bool) -> Result<Self, StoreError> {
        let io = |cause| open_error(path, cause);
        let file = files::begin(path).map_err(io)?;
        let mut row = Vec::new();
        header.body(&mut row).map_err(io)?;
        rows::seal(Table::Header, 0, &mut row);
        let (page, application, version) = match packed {
            true => (PACKED_PAGE, PACKED, PACKED_VERSION),
            false => (PAGE, APPLICATION, VERSION),
        };
        let fill = || -> rusqlite::Result<Connection> {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let new = Connection::open_with_flags(file.path(), flags)?;
            new.pragma_update(None, "page_size", page)?;
            // The file is not in use under this name, so that it needs no journal next to it.
            new.pragma_update(None, "journal_mode", "MEMORY")?;
            new.execute_batch("BEGIN")?;
            new.pragma_update(None, "application_id", application)?;
            new.pragma_update(None, "user_version", version)?;
            new.execute_batch(TABLES)?;
            let insert = "INSERT INTO meta (name, content) VALUES ('header', ?1)";
            new.execute(insert, [&row])?;
            Ok(new)
        };
        let path = path.to_owned();
        match fill() {
            Ok(connection) => Ok(Self {
                database: Database { path, connection },
                file,
            }),
            Err(cause) => Err(StoreError::Database { path, cause }),
        }
    }

    /// The database, to which tables of numbers can be written.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Adds a row, which is sealed.
    ///
    /// # Errors
    /// The database's.
    pub fn put(&self, table: &str, key: i64, row: &[u8]) -> Result<(), StoreError> {
        let insert = format!("INSERT INTO {table} (id, content) VALUES (?1, ?2)");
        let inserted = self.database.connection.execute(&insert, params![key, row]);
        inserted.map(|_| ()).map_err(|e| self.database.failed(e))
    }

    /// Has the file appear under its name, on the disk; with `replace`, in place of one that is there.
    ///
    /// # Errors
    /// If there is a file, or the disk is full.
    pub fn complete(self, replace: bool) -> Result<(), StoreError> {
        let Self { database, file } = self;
        let commit = database.connection.execute_batch("COMMIT");
        commit.map_err(|e| database.failed(e))?;
        let Database { path, connection } = database;
        drop(connection);
        let io = |cause| open_error(&path, cause);
        // What a deleted map of this name left behind would be taken for the new one's.
        for suffix in ["-wal", "-shm", "-journal"] {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            match std::fs::remove_file(PathBuf::from(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(error)),
                _ => {}
            }
        }
        if replace {
            return files::complete(file, &path).map_err(io);
        }
        file.as_file().sync_all().map_err(io)?;
        file.persist_noclobber(&path).map_err(|e| io(e.error))?;
        Ok(())
    }
}

fn open_error(path: &Path, cause: io::Error) -> StoreError {
    StoreError::Open {
        path: path.to_owned(),
        cause,
    }
}

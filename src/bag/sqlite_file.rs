//! SQLite files (`.db3`), as written by rosbag2's sqlite3 storage. Messages are read in order of
//! their ids, which is the recording order; indices are not used, so a broken one does no harm.

use super::stored::StoredMessage;
use super::{BagError, Topic};
use crate::time::Stamp;
use rusqlite::{Connection, Error, OpenFlags, OptionalExtension};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Opens the database read-only and declares it immutable; otherwise SQLite could not read from a
/// read-only medium.
fn connect(path: &Path, named: &Path) -> Result<Connection, BagError> {
    let unwritten = path.with_file_name({
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push("-wal");
        name
    });
    // A log left by an interrupted recorder is part of the bag.
    let log = std::fs::metadata(unwritten).is_ok_and(|log| log.len() > 0);
    let full = std::path::absolute(path).map_err(|e| BagError::io(named, e))?;
    let mut uri = "file:".to_owned();
    for byte in full.to_string_lossy().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b':' => {
                uri.push(char::from(byte));
            }
            other => {
                // Writing to a string cannot fail.
                let _ = write!(uri, "%{other:02X}");
            }
        }
    }
    if !log {
        uri.push_str("?immutable=1");
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags).map_err(|e| damage(named, &e))?;
    // Nothing is written, but this is the only mode in which SQLite reads a truncated file up to
    // its end.
    connection
        .pragma_update(None, "writable_schema", true)
        .map_err(|e| damage(named, &e))?;
    Ok(connection)
}

fn damage(path: &Path, error: &Error) -> BagError {
    let found = format!("a failure ({error}); everything before it was read");
    BagError::content(path, "a complete rosbag2 database", found)
}

struct Row {
    id: i64,
    topic: Topic,
}

fn rows(connection: &Connection, named: &Path) -> Result<Vec<Row>, BagError> {
    let tables = connection
        .query_row(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('topics', 'messages')",
            [],
            |row| row.get::<_, i64>(0),
        )
        .map_err(|e| damage(named, &e))?;
    if tables != 2 {
        return Err(BagError::content(
            named,
            "a rosbag2 database with the tables topics and messages",
            "an SQLite database without them",
        ));
    }
    let query = || {
        let mut statement = connection
            .prepare("SELECT id, name, type, serialization_format FROM topics ORDER BY id")?;
        let rows = statement.query_map([], |row| {
            Ok(Row {
                id: row.get(0)?,
                topic: Topic {
                    name: row.get(1)?,
                    kind: row.get(2)?,
                    format: row.get(3)?,
                    messages: None,
                },
            })
        })?;
        rows.collect::<Result<Vec<Row>, Error>>()
    };
    query().map_err(|e| damage(named, &e))
}

/// `named` is `path` as given by the user.
pub fn topics(path: &Path, named: &Path) -> Result<Vec<Topic>, BagError> {
    let connection = connect(path, named)?;
    let rows = rows(&connection, named)?;
    let topics = rows.into_iter().map(|row| {
        let count = connection.query_row(
            "SELECT count(*) FROM messages NOT INDEXED WHERE topic_id = ?1",
            [row.id],
            |counted| counted.get::<_, i64>(0),
        );
        Topic {
            // The count is unknown for a damaged file; damage is reported when it is reached.
            messages: count.ok().and_then(|n| u64::try_from(n).ok()),
            ..row.topic
        }
    });
    Ok(topics.collect())
}

/// Messages of the named topics, in order of their ids.
pub fn messages(
    path: &Path,
    named: &Path,
    wanted: &[String],
) -> Result<impl Iterator<Item = Result<StoredMessage, BagError>> + Send + use<>, BagError> {
    let connection = connect(path, named)?;
    let mut ids = Vec::new();
    for row in rows(&connection, named)? {
        if let Some(topic) = wanted.iter().position(|t| *t == row.topic.name) {
            ids.push((row.id, topic));
        }
    }
    let list: Vec<String> = ids.iter().map(|(id, _)| id.to_string()).collect();
    let sql = format!(
        "SELECT id, topic_id, timestamp, data FROM messages NOT INDEXED \
         WHERE id > ?1 AND topic_id IN ({}) ORDER BY id LIMIT 1",
        list.join(",")
    );
    let named: PathBuf = named.to_owned();
    let mut last = i64::MIN;
    let mut ended = ids.is_empty();
    Ok(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let read = connection.prepare(&sql).and_then(|mut statement| {
            let row = statement.query_row([last], |row| {
                let nanos = row.get(2)?;
                let data: Vec<u8> = row.get(3)?;
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, nanos, data))
            });
            row.optional()
        });
        match read {
            // In a damaged file, a search for what comes after a row can find it again.
            Ok(Some((id, ..))) if id <= last => {
                ended = true;
                let found = format!("{id} after {last}; everything before it was read");
                let expected = "ids of messages that ascend";
                Some(Err(BagError::content(&named, expected, found)))
            }
            Ok(Some((id, topic_id, nanos, data))) => {
                last = id;
                let topic = ids.iter().find(|(known, _)| *known == topic_id);
                Some(Ok(StoredMessage {
                    topic: topic.map_or(0, |(_, topic)| *topic),
                    log_time: Stamp { nanos },
                    data,
                }))
            }
            Ok(None) => {
                ended = true;
                None
            }
            Err(error) => {
                ended = true;
                Some(Err(damage(&named, &error)))
            }
        }
    }))
}

//! What the file holds, so that only what differs from the map is written.

use super::StoreError;
use super::file::Database;
use super::hand_over::State;
use super::rows::{self, EdgeRow, KeyframeRow, RemovedRow, Rest, Table};
use crate::compute::global::PoseFactor;
use rusqlite::types::FromSql;
use rusqlite::{Row, params};
use rustc_hash::{FxHashMap, FxHashSet};

/// The rows of a file. A row of numbers that is damaged is `None`: it differs from any other.
#[derive(Debug, Default)]
pub struct OnDisk {
    keyframes: FxHashMap<u32, Option<KeyframeRow>>,
    images: FxHashSet<u32>,
    points: FxHashSet<u32>,
    edges: FxHashMap<u64, Option<EdgeRow>>,
    matches: FxHashSet<u64>,
    factors: FxHashMap<u64, Option<PoseFactor>>,
    removed: FxHashMap<u32, Option<RemovedRow>>,
    rest: Rest,
}

/// The rest of the map's state; without its row, or if that is damaged, nothing was solved.
pub fn rest(database: &Database) -> Result<Rest, StoreError> {
    let row = database.meta("state")?.unwrap_or_default();
    Ok(Rest::read(&row).unwrap_or_default())
}

/// The first columns of all rows of a query.
fn all<T>(
    database: &Database,
    query: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let rows = || -> rusqlite::Result<Vec<T>> {
        let mut statement = database.connection.prepare(query)?;
        let rows = statement.query_map([], read)?;
        rows.collect()
    };
    rows().map_err(|e| database.failed(e))
}

/// All keys of a table, ascending.
pub fn keys<K: FromSql>(database: &Database, table: &str) -> Result<Vec<K>, StoreError> {
    let query = format!("SELECT id FROM {table} ORDER BY id");
    all(database, &query, |row| row.get(0))
}

/// All rows of a table of numbers, decoded.
pub fn numbers<K: FromSql + Copy, V>(
    database: &Database,
    table: &str,
    decode: impl Fn(K, &[u8]) -> Result<V, StoreError>,
) -> Result<Vec<(K, Option<V>)>, StoreError> {
    let query = format!("SELECT id, content FROM {table} ORDER BY id");
    all(database, &query, |row| {
        let key = row.get(0)?;
        let content = row.get_ref(1)?.as_blob().unwrap_or_default();
        Ok((key, decode(key, content).ok()))
    })
}

/// A key of 64 bits as SQLite stores it.
pub fn signed(key: u64) -> i64 {
    key.cast_signed()
}

/// Decodes rows whose keys have 64 bits.
pub fn wide<V>(
    decode: impl Fn(u64, &[u8]) -> Result<V, StoreError>,
) -> impl Fn(i64, &[u8]) -> Result<V, StoreError> {
    move |key, row| decode(key.cast_unsigned(), row)
}

fn unsigned<V>(rows: Vec<(i64, V)>) -> impl Iterator<Item = (u64, V)> {
    rows.into_iter()
        .map(|(key, row)| (key.cast_unsigned(), row))
}

impl OnDisk {
    /// Reads what the file holds.
    pub fn read(database: &Database) -> Result<Self, StoreError> {
        let edges = numbers(database, "edge", wide(EdgeRow::read))?;
        let factors = numbers(database, "factor", wide(rows::read_factor))?;
        let matches: Vec<i64> = keys(database, "matches")?;
        Ok(Self {
            keyframes: FxHashMap::from_iter(numbers(database, "keyframe", KeyframeRow::read)?),
            images: FxHashSet::from_iter(keys(database, "image")?),
            points: FxHashSet::from_iter(keys(database, "points")?),
            edges: FxHashMap::from_iter(unsigned(edges)),
            matches: matches.into_iter().map(i64::cast_unsigned).collect(),
            factors: FxHashMap::from_iter(unsigned(factors)),
            removed: FxHashMap::from_iter(numbers(database, "removed", RemovedRow::read)?),
            rest: rest(database)?,
        })
    }

    /// Notes that the image, points or matches of this key were written.
    pub fn note(&mut self, table: Table, key: u64) {
        let id = u32::try_from(key);
        match (table, id) {
            (Table::Image, Ok(id)) => _ = self.images.insert(id),
            (Table::Points, Ok(id)) => _ = self.points.insert(id),
            (Table::Matches, _) => _ = self.matches.insert(key),
            _ => {}
        }
    }

    fn is_whole(&self, id: u32) -> bool {
        self.images.contains(&id) && self.points.contains(&id)
    }

    /// Writes every row of numbers that differs from `state`, except those of keyframes and edges whose content is
    /// not written yet, and deletes what is not in `state`.
    pub fn follow(&mut self, database: &Database, state: &State) -> Result<(), StoreError> {
        self.update(database, state).map_err(|e| database.failed(e))
    }

    fn update(&mut self, database: &Database, state: &State) -> rusqlite::Result<()> {
        let connection = &database.connection;
        let put = |table: &str| {
            connection.prepare(&format!(
                "INSERT OR REPLACE INTO {table} (id, content) VALUES (?1, ?2)"
            ))
        };
        let delete = |table: &str, key: i64| {
            connection.execute(&format!("DELETE FROM {table} WHERE id = ?1"), [key])
        };
        let mut row = Vec::new();
        let mut statement = put("keyframe")?;
        for keyframe in &state.keyframes {
            let same = self.keyframes.get(&keyframe.id) == Some(&Some(*keyframe));
            if !same && self.is_whole(keyframe.id) {
                keyframe.write(&mut row);
                statement.execute(params![keyframe.id, row])?;
                self.keyframes.insert(keyframe.id, Some(*keyframe));
            }
        }
        let kept = FxHashSet::from_iter(state.keyframes.iter().map(|k| k.id));
        let known = self
            .keyframes
            .keys()
            .chain(&self.images)
            .chain(&self.points);
        let gone = FxHashSet::from_iter(known.copied().filter(|id| !kept.contains(id)));
        for id in gone {
            for table in ["keyframe", "image", "points"] {
                delete(table, id.into())?;
            }
            self.keyframes.remove(&id);
            self.images.remove(&id);
            self.points.remove(&id);
        }

        let mut statement = put("edge")?;
        for edge in &state.edges {
            let same = self.edges.get(&edge.number) == Some(&Some(*edge));
            let whole = self.matches.contains(&edge.number)
                && self.is_whole(edge.i)
                && self.is_whole(edge.j);
            if !same && whole {
                edge.write(&mut row);
                statement.execute(params![signed(edge.number), row])?;
                self.edges.insert(edge.number, Some(*edge));
            }
        }
        let kept = FxHashSet::from_iter(state.edges.iter().map(|e| e.number));
        let known = self.edges.keys().chain(&self.matches);
        let gone = FxHashSet::from_iter(known.copied().filter(|n| !kept.contains(n)));
        for number in gone {
            delete("edge", signed(number))?;
            delete("matches", signed(number))?;
            self.edges.remove(&number);
            self.matches.remove(&number);
        }

        let mut statement = put("factor")?;
        for factor in &state.factors {
            let key = rows::factor_key(factor);
            if self.factors.get(&key) != Some(&Some(*factor)) {
                rows::write_factor(factor, &mut row);
                statement.execute(params![signed(key), row])?;
                self.factors.insert(key, Some(*factor));
            }
        }
        let kept = FxHashSet::from_iter(state.factors.iter().map(rows::factor_key));
        let gone = Vec::from_iter(self.factors.keys().copied().filter(|k| !kept.contains(k)));
        for key in gone {
            delete("factor", signed(key))?;
            self.factors.remove(&key);
        }

        let mut statement = put("removed")?;
        for removed in state.removed.iter() {
            if self.removed.get(&removed.id) != Some(&Some(*removed)) {
                removed.write(&mut row);
                statement.execute(params![removed.id, row])?;
                self.removed.insert(removed.id, Some(*removed));
            }
        }
        if self.removed.len() > state.removed.len() {
            let kept = FxHashSet::from_iter(state.removed.iter().map(|r| r.id));
            let gone = Vec::from_iter(self.removed.keys().copied().filter(|id| !kept.contains(id)));
            for id in gone {
                delete("removed", id.into())?;
                self.removed.remove(&id);
            }
        }

        if self.rest != state.rest {
            state.rest.write(&mut row);
            let put = "INSERT OR REPLACE INTO meta (name, content) VALUES ('state', ?1)";
            connection.execute(put, [&row])?;
            self.rest = state.rest;
        }
        Ok(())
    }
}

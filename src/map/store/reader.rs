//! Reads a snapshot of a map, one keyframe or edge at a time.

use super::StoreError;
use super::coding::Coder;
use super::file::{self, Database};
use super::on_disk::{self, keys, numbers, signed, wide};
use super::rows::{self, EdgeRow, KeyframeRow, RemovedRow, Rest, Table};
use crate::compute::device::{EdgeContent, KeyframeContent};
use crate::compute::global::PoseFactor;
use crate::map::saved::Header;
use rusqlite::OptionalExtension;
use std::fmt;
use std::path::Path;

/// What could not be read of a map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Damage {
    /// Ids of keyframes of which a part is damaged or missing.
    pub keyframes: Vec<u32>,
    /// Numbers of such edges.
    pub edges: Vec<u64>,
    /// Other rows that are damaged.
    pub others: usize,
}

impl Damage {
    /// Whether everything could be read.
    pub fn is_none(&self) -> bool {
        self.keyframes.is_empty() && self.edges.is_empty() && self.others == 0
    }
}

/// Ids that a message names.
const NAMED: usize = 10;

fn named<T: fmt::Display>(f: &mut fmt::Formatter<'_>, what: &str, ids: &[T]) -> fmt::Result {
    write!(f, "{} {what} (", ids.len())?;
    for (at, id) in ids.iter().take(NAMED).enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(f, "{comma}{id}")?;
    }
    let more = if ids.len() > NAMED { ", …" } else { "" };
    write!(f, "{more})")
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named(f, "keyframes", &self.keyframes)?;
        f.write_str(", ")?;
        named(f, "edges", &self.edges)?;
        write!(f, " and {} other rows", self.others)
    }
}

/// A snapshot of a map. Another process may go on writing the file.
#[derive(Debug)]
pub struct Reader {
    database: Database,
    packed: bool,
    header: Header,
    keyframes: Vec<KeyframeRow>,
    edges: Vec<EdgeRow>,
    factors: Vec<PoseFactor>,
    removed: Vec<RemovedRow>,
    rest: Rest,
    damage: Damage,
    /// The keyframe and the edge after the newest ones.
    next: (u32, u64),
    coder: Coder,
}

impl Reader {
    /// Opens a map and reads all its numbers.
    ///
    /// # Errors
    /// If the file is not a map, or its description is damaged.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (database, packed) = file::open_to_read(path)?;
        // All that follows sees the file as it is at the first of these queries.
        let begin = database.connection.execute_batch("BEGIN");
        begin.map_err(|e| database.failed(e))?;
        let mut header = database.header()?;
        let mut damage = Damage::default();
        let mut keyframes = Vec::new();
        for (id, row) in numbers(&database, "keyframe", KeyframeRow::read)? {
            match row {
                Some(row) => keyframes.push(row),
                None => damage.keyframes.push(id),
            }
        }
        let mut edges = Vec::new();
        for (number, row) in numbers(&database, "edge", wide(EdgeRow::read))? {
            match row {
                Some(row) => edges.push(row),
                None => damage.edges.push(number.cast_unsigned()),
            }
        }
        let factors = numbers(&database, "factor", wide(rows::read_factor))?;
        let removed = numbers(&database, "removed", RemovedRow::read)?;
        let lost = factors.iter().filter(|(_, row)| row.is_none()).count();
        damage.others = lost + removed.iter().filter(|(_, row)| row.is_none()).count();
        let images: Vec<u32> = keys(&database, "image")?;
        let matches: Vec<i64> = keys(&database, "matches")?;
        let ids = keyframes.iter().map(|k: &KeyframeRow| k.id);
        let ids = ids.chain(images).chain(removed.iter().map(|(id, _)| *id));
        let newest_edge = edges.iter().map(|e: &EdgeRow| e.number);
        let newest_edge = newest_edge.chain(matches.into_iter().map(i64::cast_unsigned));
        let next = (
            ids.max().map_or(0, |id| id.saturating_add(1)),
            newest_edge
                .max()
                .map_or(0, |number| number.saturating_add(1)),
        );
        let rest = on_disk::rest(&database)?;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        (header.keyframes, header.edges) = (count(keyframes.len()), count(edges.len()));
        header.solved_edges = rest.solved_edges;
        header.factors = count(factors.len());
        header.map_from_world = rest.map_from_world;
        Ok(Self {
            database,
            packed,
            header,
            keyframes,
            edges,
            factors: factors.into_iter().filter_map(|(_, row)| row).collect(),
            removed: removed.into_iter().filter_map(|(_, row)| row).collect(),
            rest,
            damage,
            next,
            coder: Coder::default(),
        })
    }

    /// The description of the map.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether it is a packed map: keyframes have no tokens, and edges no matches.
    pub fn is_packed(&self) -> bool {
        self.packed
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.database.path
    }

    /// The keyframes, ascending by id.
    pub fn keyframes(&self) -> &[KeyframeRow] {
        &self.keyframes
    }

    /// The edges in the order in which they were made.
    pub fn edges(&self) -> &[EdgeRow] {
        &self.edges
    }

    /// The factors.
    pub fn factors(&self) -> &[PoseFactor] {
        &self.factors
    }

    /// The removed keyframes.
    pub fn removed(&self) -> &[RemovedRow] {
        &self.removed
    }

    /// The rest of the map's state.
    pub fn rest(&self) -> Rest {
        self.rest
    }

    /// Id of the next keyframe, and number of the next edge.
    pub fn next(&self) -> (u32, u64) {
        self.next
    }

    /// What could not be read so far.
    pub fn damage(&self) -> &Damage {
        &self.damage
    }

    /// How the last session ended: `open` and its process, or `closed`.
    pub fn session(&self) -> Option<String> {
        let row = self.database.meta("session").ok().flatten()?;
        String::from_utf8(row).ok()
    }

    /// Replaces `dst` by the content of keyframe `id`; returns `false`, and notes it, if that is damaged.
    pub fn read_keyframe(&mut self, id: u32, dst: &mut KeyframeContent) -> bool {
        let read = self.try_keyframe(id, dst);
        if let Err(error) = &read {
            tracing::warn!(
                "keyframe {id} of {} is left out: {error}",
                self.path().display()
            );
            self.damage.keyframes.push(id);
        }
        read.is_ok()
    }

    fn try_keyframe(&mut self, id: u32, dst: &mut KeyframeContent) -> Result<(), StoreError> {
        let key = u64::from(id);
        let row = self.content("points", key)?;
        let points = rows::open(Table::Points, key, &row)?;
        match self.packed {
            true => self.coder.unpack_pointmap(points, &self.header, dst)?,
            false => self.coder.unpack_points(points, &self.header, dst)?,
        }
        let row = self.content("image", key)?;
        let image = rows::open(Table::Image, key, &row)?;
        match self.packed {
            true => Coder::unpack_picture(image, &self.header, dst),
            false => self.coder.unpack_image(image, &self.header, dst),
        }
    }

    /// Replaces `dst` by the matches of edge `number`, which a packed map does not have; returns `false`, and notes it, if
    /// they are damaged.
    pub fn read_edge(&mut self, number: u64, dst: &mut EdgeContent) -> bool {
        let read = self.try_edge(number, dst);
        if let Err(error) = &read {
            tracing::warn!(
                "edge {number} of {} is left out: {error}",
                self.path().display()
            );
            self.damage.edges.push(number);
        }
        read.is_ok()
    }

    fn try_edge(&mut self, number: u64, dst: &mut EdgeContent) -> Result<(), StoreError> {
        let row = self.content("matches", number)?;
        let matches = rows::open(Table::Matches, number, &row)?;
        self.coder.unpack_matches(matches, &self.header, dst)
    }

    fn content(&self, table: &str, key: u64) -> Result<Vec<u8>, StoreError> {
        let query = format!("SELECT content FROM {table} WHERE id = ?1");
        let connection = &self.database.connection;
        let row = connection.query_row(&query, [signed(key)], |row| row.get(0));
        let row = row.optional().map_err(|e| self.database.failed(e))?;
        row.ok_or(StoreError::Row("a part of it is missing"))
    }

    /// Reads everything; returns what is damaged, and what the database says of its structure.
    pub fn check(&mut self) -> (Damage, Vec<String>) {
        let mut keyframe = KeyframeContent::default();
        for id in Vec::from_iter(self.keyframes.iter().map(|k| k.id)) {
            self.read_keyframe(id, &mut keyframe);
        }
        let mut edge = EdgeContent::default();
        let edges = self.edges.iter().filter(|_| !self.packed);
        for number in Vec::from_iter(edges.map(|e| e.number)) {
            self.read_edge(number, &mut edge);
        }
        (self.damage.clone(), self.structure())
    }

    fn structure(&self) -> Vec<String> {
        let rows = || -> rusqlite::Result<Vec<String>> {
            let check = "PRAGMA integrity_check(20)";
            let mut statement = self.database.connection.prepare(check)?;
            let rows = statement.query_map([], |row| row.get(0))?;
            rows.collect()
        };
        let mut found = rows().unwrap_or_else(|error| vec![error.to_string()]);
        found.retain(|line| line != "ok");
        found
    }
}

//! The newest message of each kind, and what each page has seen of them. A slow page gets the newest when it is ready
//! and misses those in between.

use super::clouds::Kept;
use crate::page::messages;
use axum::body::Bytes;
use nalgebra::Vector3;
use std::collections::{BTreeMap, HashMap};

/// Turns between two clouds: limits the bandwidth of a page to about half a megabyte per second.
const CLOUD_TURNS: u64 = 2;
/// Clouds of a turn once the program ends.
const CLOUDS_AT_END: usize = 16;

/// A message, and how many of its kind there were before it.
#[derive(Debug, Clone, Default)]
pub struct Newest {
    number: u64,
    message: Bytes,
}

impl Newest {
    /// Replaces the message.
    pub fn put(&mut self, message: Bytes) {
        self.number += 1;
        self.message = message;
    }

    /// The message, if the reader has not seen it.
    fn news(&self, seen: &mut u64) -> Option<Bytes> {
        let news = self.number > *seen;
        *seen = self.number;
        news.then(|| self.message.clone())
    }
}

/// The newest messages.
#[derive(Debug, Default)]
pub struct Board {
    /// Changes with the map: pages then begin anew.
    pub map: u64,
    pub hello: Newest,
    pub state: Newest,
    pub image: Newest,
    pub graph: Newest,
    pub grid: Newest,
    pub end: Newest,
    pub clouds: BTreeMap<u32, Kept>,
    /// Changes when positions other than the last ones do.
    pub trail_generation: u64,
    pub trail: Vec<(Vector3<f64>, u8)>,
}

/// What one page has seen.
#[derive(Debug, Default)]
pub struct Cursor {
    turns: u64,
    map: u64,
    hello: u64,
    state: u64,
    image: u64,
    graph: u64,
    grid: u64,
    end: u64,
    trail: (u64, usize),
    /// Revisions.
    clouds: HashMap<u32, u32>,
}

/// Messages for a page.
#[derive(Debug, Default)]
pub struct Turn {
    pub messages: Vec<Bytes>,
    /// Images that the page missed.
    pub left_out: u64,
    /// Nothing follows.
    pub last: bool,
}

impl Cursor {
    /// What is new.
    pub fn turn(&mut self, board: &Board) -> Turn {
        self.turns += 1;
        if self.map != board.map {
            self.map = board.map;
            // Said hello again, a page forgets the map.
            (self.hello, self.graph, self.grid, self.trail) = (0, 0, 0, (0, 0));
            self.clouds.clear();
        }
        let mut out = Turn::default();
        out.messages.extend(board.hello.news(&mut self.hello));
        out.messages.extend(board.state.news(&mut self.state));
        out.messages.extend(board.graph.news(&mut self.graph));
        self.trail(board, &mut out);
        let before = self.image;
        if let Some(image) = board.image.news(&mut self.image) {
            // The first one of a page follows none.
            if before > 0 {
                out.left_out = self.image - before - 1;
            }
            out.messages.push(image);
        }
        out.messages.extend(board.grid.news(&mut self.grid));
        let complete = self.clouds(board, &mut out);
        if complete && let Some(end) = board.end.news(&mut self.end) {
            out.messages.push(end);
            out.last = true;
        }
        out
    }

    fn trail(&mut self, board: &Board, out: &mut Turn) {
        if self.trail.0 != board.trail_generation {
            self.trail = (board.trail_generation, 0);
        } else if self.trail.1 >= board.trail.len() {
            return;
        }
        let start = self.trail.1;
        let news = board.trail.get(start..).unwrap_or_default();
        out.messages.push(messages::trail(start, news).into());
        self.trail.1 = board.trail.len();
    }

    /// Adds clouds; returns whether the page has all of them.
    fn clouds(&mut self, board: &Board, out: &mut Turn) -> bool {
        let ends = board.end.number > 0;
        if !ends && !self.turns.is_multiple_of(CLOUD_TURNS) {
            return false;
        }
        let gone = self
            .clouds
            .keys()
            .filter(|id| !board.clouds.contains_key(id));
        let gone: Vec<u32> = gone.copied().collect();
        for id in gone {
            self.clouds.remove(&id);
            out.messages
                .push(messages::cloud(id, 0, &Default::default()).into());
        }
        let mut left = if ends { CLOUDS_AT_END } else { 1 };
        // The newest first: that is where the camera is.
        for (id, kept) in board.clouds.iter().rev() {
            if self.clouds.get(id) == Some(&kept.revision) {
                continue;
            }
            if left == 0 {
                return false;
            }
            left -= 1;
            self.clouds.insert(*id, kept.revision);
            out.messages.push(kept.message.clone());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(turn: &Turn) -> Vec<u8> {
        turn.messages.iter().map(|m| m[0]).collect()
    }

    fn board() -> Board {
        let mut board = Board {
            map: 1,
            trail_generation: 1,
            trail: vec![(Vector3::zeros(), 0); 3],
            ..Board::default()
        };
        board.hello.put(Bytes::from_static(b"\x01"));
        board.state.put(Bytes::from_static(b"\x02"));
        board
    }

    #[test]
    fn a_slow_page_gets_the_newest_and_what_it_missed_is_counted() {
        let mut board = board();
        let mut cursor = Cursor::default();
        assert_eq!(kinds(&cursor.turn(&board)), [1, 2, 6]);
        assert!(cursor.turn(&board).messages.is_empty());
        board.image.put(Bytes::from_static(b"\x03"));
        assert_eq!(cursor.turn(&board).left_out, 0);
        for k in 0..7_u8 {
            board.image.put(vec![3, k].into());
            board.state.put(Bytes::from_static(b"\x02"));
        }
        let turn = cursor.turn(&board);
        assert_eq!(kinds(&turn), [2, 3]);
        assert_eq!((turn.left_out, turn.messages[1][1]), (6, 6));
    }

    #[test]
    fn the_trail_grows_by_its_news_and_is_sent_anew_when_it_moves() {
        let mut board = board();
        let mut cursor = Cursor::default();
        cursor.turn(&board);
        board.trail.push((Vector3::x(), 0));
        let start = |turn: &Turn| {
            (
                turn.messages[0][0],
                turn.messages[0][5],
                turn.messages[0][9],
            )
        };
        assert_eq!(start(&cursor.turn(&board)), (6, 3, 1));
        board.trail_generation = 2;
        assert_eq!(start(&cursor.turn(&board)), (6, 0, 4));
    }

    #[test]
    fn clouds_come_one_by_one_and_all_before_the_end() {
        let mut board = board();
        let kept = |id: u32, revision| {
            let points = Default::default();
            Kept::closed(revision, messages::cloud(id, revision, &points).into())
        };
        board.clouds = (0..40).map(|id| (id, kept(id, 1))).collect();
        let mut cursor = Cursor::default();
        let ids = |turn: &Turn| -> Vec<u8> {
            let clouds = turn.messages.iter().filter(|m| m[0] == 5);
            clouds.map(|m| m[5]).collect()
        };
        let sent: Vec<u8> = (0..6).flat_map(|_| ids(&cursor.turn(&board))).collect();
        assert_eq!(sent, [39, 38, 37]);
        // Removed from the map, and read again.
        board.clouds.remove(&38);
        board.clouds.insert(39, kept(39, 2));
        let sent: Vec<u8> = (0..2).flat_map(|_| ids(&cursor.turn(&board))).collect();
        assert_eq!(sent, [38, 39]);
        board.end.put(Bytes::from_static(b"\x08"));
        let mut turns = Vec::new();
        while turns.last().is_none_or(|t: &Turn| !t.last) {
            turns.push(cursor.turn(&board));
        }
        assert_eq!(turns.len(), 3);
        assert_eq!(turns.iter().flat_map(&ids).count(), 37);
        assert_eq!(kinds(&turns[2]).last(), Some(&8));
    }

    #[test]
    fn another_map_begins_anew() {
        let mut board = board();
        let mut cursor = Cursor::default();
        cursor.turn(&board);
        board.map = 2;
        assert_eq!(kinds(&cursor.turn(&board)), [1, 6]);
    }
}

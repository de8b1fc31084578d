//! Makes messages from the feed, in the server's thread, while a page is open.

use super::board::Board;
use super::clouds::{self, Clouds};
use super::feed::{Passed, Scene};
use super::messages::{self, json_text};
use super::scrape::{Scraped, VERSION};
use super::trail::Trail;
use crate::map::MapSnapshot;
use crate::page::messages::Kind;
use crate::slam::PoseTable;
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum interval between two graphs, and between two trails that moved.
const GRAPH_PERIOD: Duration = Duration::from_millis(500);
/// Bytes per second that graphs may take.
const GRAPH_RATE: f64 = 200e3;
/// Maximum number of keyframes drawn.
const GRAPH_KEYFRAMES: usize = 4_000;
/// Interval between two states while no frames come.
const STATE_PERIOD: Duration = Duration::from_secs(1);

/// The end of the program.
pub struct End {
    /// The finished map.
    pub map: Option<MapSnapshot>,
    /// The last message.
    pub text: String,
}

/// What was made last.
pub struct Composer {
    scraped: Arc<Scraped>,
    board: Arc<Mutex<Board>>,
    /// SLAM and map to which the rest belongs.
    scene: Option<(u64, u64)>,
    trail: Trail,
    passed: Vec<Passed>,
    clouds: Clouds,
    /// Number of frames of the last state.
    frames: Option<u64>,
    stated: Option<Instant>,
    /// Version of the last graph, and when the next one may follow.
    graph: Option<(u64, Instant)>,
    /// Generation of the trail on the board.
    trail_of: u64,
}

impl Composer {
    /// Fills `board`.
    pub fn new(scraped: Arc<Scraped>, board: Arc<Mutex<Board>>) -> Self {
        Self {
            scraped,
            board,
            scene: None,
            trail: Trail::default(),
            passed: Vec::new(),
            clouds: Clouds::default(),
            frames: None,
            stated: None,
            graph: None,
            trail_of: 0,
        }
    }

    /// Takes the positions that passed; needed now and then without a page too.
    pub fn follow(&mut self) -> Option<(Arc<Scene>, Arc<PoseTable>)> {
        let scene = self.scraped.feed.scene()?;
        let table = scene.poses.load_full();
        let key = (scene.number, table.map);
        if self.scene != Some(key) {
            self.scene = Some(key);
            self.trail.clear();
            self.clouds.clear();
            self.graph = None;
            let hello = json!({
                "program": "mast3r_slam",
                "version": VERSION,
                "engine": scene.engine,
            });
            let mut board = lock(&self.board);
            board.map += 1;
            board.hello.put(json_text(Kind::Hello, &hello));
            board.clouds.clear();
            board.trail.clear();
            board.trail_generation += 1;
        }
        self.scraped.feed.take_passed(&mut self.passed);
        for passed in self.passed.drain(..) {
            self.trail.add(&passed, &table);
        }
        Some((scene, table))
    }

    /// Makes the messages of what is new.
    pub fn compose(&mut self) {
        self.state();
        let Some((scene, table)) = self.follow() else {
            return;
        };
        self.image();
        self.map(&table, false);
        self.clouds.look(&self.scraped.feed, &scene, &table);
        let mut board = lock(&self.board);
        board.clouds.clone_from(self.clouds.kept());
        if let Some(grid) = self
            .scraped
            .feed
            .take_grid()
            .and_then(|g| messages::grid(&g))
        {
            board.grid.put(grid);
        }
    }

    /// Makes the last messages.
    pub fn end(&mut self, end: &End) {
        (self.frames, self.stated) = (None, None);
        self.state();
        if let Some((scene, table)) = self.follow() {
            self.map(&table, true);
            if let Some(map) = end.map.as_ref().filter(|_| self.scraped.feed.watched()) {
                self.clouds.complete(map, &table, scene.min_confidence);
                lock(&self.board).clouds.clone_from(self.clouds.kept());
            }
        }
        let text = json!({"text": end.text});
        lock(&self.board).end.put(json_text(Kind::End, &text));
    }

    fn state(&mut self) {
        let frames = Some(self.scraped.feed.now().frames);
        let due = self.stated.is_none_or(|at| at.elapsed() >= STATE_PERIOD);
        if frames == self.frames && !due {
            return;
        }
        (self.frames, self.stated) = (frames, Some(Instant::now()));
        let state = json_text(Kind::State, &self.scraped.status());
        lock(&self.board).state.put(state);
    }

    fn image(&self) {
        let slot = self.scraped.feed.seen();
        let Some(mut seen) = slot.take() else {
            return;
        };
        let made = messages::image(seen.number, seen.size, &mut seen.content, seen.tracked);
        slot.give_back(seen);
        match made {
            Ok(image) => lock(&self.board).image.put(image),
            Err(error) => tracing::debug!("the page shows no image: {error}"),
        }
    }

    /// Graph and trail, at once or when they are due.
    fn map(&mut self, table: &PoseTable, now: bool) {
        let due = self.graph.is_none_or(|(_, next)| Instant::now() >= next) || now;
        let version = self.graph.map(|(version, _)| version);
        let moved = due && version != Some(table.version);
        if moved {
            let shown = clouds::every(table, GRAPH_KEYFRAMES);
            let graph = messages::graph(table, |id| shown.contains(&id));
            let rest = Duration::from_secs_f64(graph.len() as f64 / GRAPH_RATE);
            let next = Instant::now() + GRAPH_PERIOD.max(rest);
            self.graph = Some((table.version, next));
            lock(&self.board).graph.put(graph);
        }
        let mut board = lock(&self.board);
        let generation = self.trail.generation();
        if moved || self.trail_of != generation {
            self.trail_of = generation;
            board.trail = self.trail.world(0, table);
            board.trail_generation += 1;
        } else {
            let start = board.trail.len();
            board.trail.extend(self.trail.world(start, table));
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

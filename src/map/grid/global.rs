//! The sum of the local grids.

use super::local::{Cleared, cell_of};
use super::{FloorPose, GridOptions, LocalGrid};
use nalgebra::Vector2;
use std::collections::BTreeMap;

/// The grid grows by whole blocks of cells, so that it does not grow at every keyframe.
const BLOCK: i32 = 64;
/// Keyframes that one update places or moves; the next one goes on with the rest.
pub const MAX_MOVES: usize = 128;
/// Places are rounded to steps, each of which moves what is within `grid.max_range` by at most this fraction of a cell.
const PLACE_STEP: f64 = 0.25;
/// A keyframe that sees an obstacle counts as much as so many that see free space there.
const OBSTACLE_WEIGHT: u32 = 2;

/// Value of a cell that no keyframe shows, as in `nav_msgs/OccupancyGrid`.
const UNKNOWN: i8 = -1;
const FREE: i8 = 0;
const OCCUPIED: i8 = 100;

/// How often a cell was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Votes {
    obstacle: u16,
    /// Those for an obstacle that may hang.
    hanging: u16,
    free: u16,
    /// Those of rays as high as such an obstacle.
    through: u16,
}

impl Votes {
    fn value(self) -> i8 {
        let wins =
            |obstacle: u16, free: u16| u32::from(obstacle) * OBSTACLE_WEIGHT > u32::from(free);
        let occupied = wins(self.obstacle, self.free) || wins(self.hanging, self.through);
        match (occupied, self.free) {
            (true, _) => OCCUPIED,
            (false, 0) => UNKNOWN,
            (false, _) => FREE,
        }
    }

    fn change(count: &mut u16, adds: bool) {
        *count = match adds {
            true => count.saturating_add(1),
            false => count.saturating_sub(1),
        };
    }
}

/// A place in whole steps. A keyframe is counted at its rounded place: small changes cost nothing, and yet the grid is
/// that of the present map, however it came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    at: [i64; 2],
    heading: i64,
    /// Steps of the log scale.
    scale: i64,
}

/// Sizes of the steps.
#[derive(Debug, Clone, Copy)]
struct Steps {
    /// Metres.
    at: f64,
    /// Radians, and log scale.
    turn: f64,
}

impl Steps {
    fn new(options: &GridOptions) -> Self {
        let at = PLACE_STEP * options.resolution;
        Self {
            at,
            turn: at / options.max_range,
        }
    }

    fn round(&self, place: &FloorPose) -> Place {
        let steps = |value: f64, step: f64| (value / step).round() as i64;
        Place {
            at: [place.at.x, place.at.y].map(|v| steps(v, self.at)),
            heading: steps(place.heading, self.turn),
            scale: steps(place.scale.ln(), self.turn),
        }
    }

    fn pose(&self, place: &Place) -> FloorPose {
        let [x, y] = place.at.map(|steps| steps as f64 * self.at);
        FloorPose {
            at: Vector2::new(x, y),
            heading: place.heading as f64 * self.turn,
            scale: (place.scale as f64 * self.turn).exp(),
        }
    }
}

/// A keyframe's part of the sum.
#[derive(Debug)]
struct Part {
    local: LocalGrid,
    /// Revision of the points that were traced.
    revision: u32,
    /// Where it is counted; `None` before it is.
    placed: Option<Place>,
    /// Where it should be.
    place: Place,
}

/// Why a keyframe is to be traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// It never was.
    All,
    /// Its points or its scale have changed.
    Change,
}

/// A rectangle of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First column and row.
    pub from: [usize; 2],
    /// Columns and rows.
    pub size: [usize; 2],
}

/// The grid's cells, row after row from the lower left corner: -1 unknown, 0 free, 100 occupied.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OccupancyMap {
    /// Metres.
    pub resolution: f64,
    /// The lower left corner of the first cell, in metres.
    pub origin: [f64; 2],
    pub columns: usize,
    pub rows: usize,
    pub cells: Vec<i8>,
}

/// The grid of a map, made of its keyframes' local grids.
#[derive(Debug)]
pub struct GlobalGrid {
    options: GridOptions,
    steps: Steps,
    parts: BTreeMap<u32, Part>,
    corner: [i32; 2],
    size: [usize; 2],
    votes: Vec<Votes>,
    /// Whether a part did not fit. From then on the extent is fixed, so that what was not counted is
    /// not taken off either.
    full: bool,
    changed: Option<Window>,
    resized: bool,
}

impl GlobalGrid {
    /// An empty grid.
    pub fn new(options: &GridOptions) -> Self {
        Self {
            options: *options,
            steps: Steps::new(options),
            parts: BTreeMap::new(),
            corner: [0; 2],
            size: [0; 2],
            votes: Vec::new(),
            full: false,
            changed: None,
            resized: false,
        }
    }

    /// What the local grid of a keyframe lacks that has this scale and this revision of its points.
    pub fn lack(&self, id: u32, scale: f64, revision: u32) -> Option<Lack> {
        let Some(part) = self.parts.get(&id) else {
            return Some(Lack::All);
        };
        let current = part.revision == revision && part.local.fits(scale, &self.options);
        (!current).then_some(Lack::Change)
    }

    /// Adds a keyframe, or replaces its local grid. `revision` is that of its points.
    pub fn insert(&mut self, id: u32, local: LocalGrid, revision: u32, place: FloorPose) {
        self.remove(id);
        self.parts.insert(
            id,
            Part {
                local,
                revision,
                placed: None,
                place: self.steps.round(&place),
            },
        );
    }

    /// Removes a keyframe.
    pub fn remove(&mut self, id: u32) {
        if let Some(part) = self.parts.remove(&id)
            && let Some(placed) = part.placed
        {
            self.count(&part.local, &self.steps.pose(&placed), false);
        }
    }

    /// Removes the keyframes that `keep` refuses.
    pub fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let gone: Vec<u32> = self.parts.keys().copied().filter(|id| !keep(*id)).collect();
        for id in gone {
            self.remove(id);
        }
    }

    /// Sets where a keyframe is; [`GlobalGrid::update`] moves it there.
    pub fn set_place(&mut self, id: u32, place: FloorPose) {
        if let Some(part) = self.parts.get_mut(&id) {
            part.place = self.steps.round(&place);
        }
    }

    /// Moves at most [`MAX_MOVES`] keyframes to their places, oldest first; returns whether all are
    /// there.
    pub fn update(&mut self) -> bool {
        let waiting: Vec<u32> = (self.parts.iter())
            .filter(|(_, part)| part.placed != Some(part.place))
            .map(|(id, _)| *id)
            .take(MAX_MOVES + 1)
            .collect();
        for id in waiting.iter().take(MAX_MOVES) {
            let Some(mut part) = self.parts.remove(id) else {
                continue;
            };
            if let Some(placed) = part.placed {
                self.count(&part.local, &self.steps.pose(&placed), false);
            }
            let place = self.steps.pose(&part.place);
            self.make_room(&part.local, &place);
            self.count(&part.local, &place, true);
            part.placed = Some(part.place);
            self.parts.insert(*id, part);
        }
        waiting.len() <= MAX_MOVES
    }

    /// Whether the grid has reached `grid.max_cells`, and parts of the map are outside of it.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Columns and rows.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The cells that changed since the last call, and whether the grid's extent did.
    pub fn take_changes(&mut self) -> (Option<Window>, bool) {
        (self.changed.take(), std::mem::take(&mut self.resized))
    }

    /// The values of the cells in a window, row after row; cells outside of the grid are unknown.
    pub fn values(&self, window: &Window) -> Vec<i8> {
        let [columns, rows] = window.size;
        let mut values = Vec::with_capacity(columns * rows);
        for row in 0..rows {
            let start = (window.from[1] + row) * self.size[0] + window.from[0];
            let line = self.votes.get(start..start + columns).unwrap_or_default();
            values.extend(line.iter().map(|votes| votes.value()));
            values.resize((row + 1) * columns, UNKNOWN);
        }
        values
    }

    /// The whole grid.
    pub fn map(&self) -> OccupancyMap {
        let whole = Window {
            from: [0, 0],
            size: self.size,
        };
        OccupancyMap {
            resolution: self.options.resolution,
            origin: self.corner.map(|k| f64::from(k) * self.options.resolution),
            columns: self.size[0],
            rows: self.size[1],
            cells: self.values(&whole),
        }
    }

    /// Adds or takes off the votes of a local grid.
    fn count(&mut self, local: &LocalGrid, place: &FloorPose, adds: bool) {
        let Some(window) = self.window(local, place) else {
            return;
        };
        let cleared = local.cleared_at(place);
        let columns = self.size[0];
        for row in window.from[1]..window.from[1] + window.size[1] {
            let y = (f64::from(self.corner[1]) + row as f64 + 0.5) * self.options.resolution;
            for column in window.from[0]..window.from[0] + window.size[0] {
                let x = (f64::from(self.corner[0]) + column as f64 + 0.5) * self.options.resolution;
                let cleared = cleared(&Vector2::new(x, y));
                if cleared != Cleared::Not
                    && let Some(votes) = self.votes.get_mut(row * columns + column)
                {
                    Votes::change(&mut votes.free, adds);
                    if cleared == Cleared::Through {
                        Votes::change(&mut votes.through, adds);
                    }
                }
            }
        }
        let mut last = None;
        for (point, hangs) in local.obstacles_at(place) {
            let index = self.index(cell_of(&point, self.options.resolution));
            // Neighbouring means may fall into one cell, which then has one vote of them.
            if index == last {
                continue;
            }
            last = index;
            if let Some(votes) = index.and_then(|k| self.votes.get_mut(k)) {
                Votes::change(&mut votes.obstacle, adds);
                if hangs {
                    Votes::change(&mut votes.hanging, adds);
                }
            }
        }
        self.changed = Some(match self.changed {
            Some(before) => before.with(&window),
            None => window,
        });
    }

    fn index(&self, cell: [i32; 2]) -> Option<usize> {
        let at = |k: usize| {
            let offset = i64::from(cell[k]) - i64::from(self.corner[k]);
            usize::try_from(offset).ok().filter(|v| *v < self.size[k])
        };
        Some(at(1)? * self.size[0] + at(0)?)
    }

    /// The cells of the grid that a local grid may touch.
    fn window(&self, local: &LocalGrid, place: &FloorPose) -> Option<Window> {
        let (low, high) = extent(local, place, self.options.resolution);
        let clip = |k: usize| {
            let inside = |cell: i32| {
                let offset = i64::from(cell) - i64::from(self.corner[k]);
                usize::try_from(offset.max(0)).map_or(0, |v| v.min(self.size[k]))
            };
            (inside(low[k]), inside(high[k].saturating_add(1)))
        };
        let ((left, right), (bottom, top)) = (clip(0), clip(1));
        (left < right && bottom < top).then_some(Window {
            from: [left, bottom],
            size: [right - left, top - bottom],
        })
    }

    /// Enlarges the grid until a local grid lies in it, or marks it as full.
    fn make_room(&mut self, local: &LocalGrid, place: &FloorPose) {
        if self.full {
            return;
        }
        let (low, high) = extent(local, place, self.options.resolution);
        let block = |cell: i32, up: i32| (cell.div_euclid(BLOCK) + up).saturating_mul(BLOCK);
        let mut corner = low.map(|cell| block(cell, 0));
        let mut end = high.map(|cell| block(cell, 1));
        if !self.votes.is_empty() {
            for k in 0..2 {
                let own = i64::from(self.corner[k]) + self.size[k] as i64;
                corner[k] = corner[k].min(self.corner[k]);
                end[k] = end[k].max(i32::try_from(own).unwrap_or(i32::MAX));
            }
        }
        let side =
            |k: usize| usize::try_from(i64::from(end[k]) - i64::from(corner[k])).unwrap_or(0);
        let size = [side(0), side(1)];
        if corner == self.corner && size == self.size {
            return;
        }
        let cells = size[0].checked_mul(size[1]);
        let Some(cells) = cells.filter(|cells| *cells <= self.options.max_cells) else {
            self.full = true;
            return;
        };
        let mut votes = vec![Votes::default(); cells];
        let shift = |k: usize| usize::try_from(i64::from(self.corner[k]) - i64::from(corner[k]));
        if let (Ok(right), Ok(up), false) = (shift(0), shift(1), self.votes.is_empty()) {
            for (row, line) in self.votes.chunks_exact(self.size[0]).enumerate() {
                let start = (row + up) * size[0] + right;
                if let Some(new) = votes.get_mut(start..start + line.len()) {
                    new.copy_from_slice(line);
                }
            }
        }
        (self.corner, self.size, self.votes) = (corner, size, votes);
        self.changed = None;
        self.resized = true;
    }
}

impl Window {
    /// The smallest window around both.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let from: [usize; 2] = std::array::from_fn(|k| self.from[k].min(other.from[k]));
        let size = std::array::from_fn(|k| {
            let end = (self.from[k] + self.size[k]).max(other.from[k] + other.size[k]);
            end - from[k]
        });
        Self { from, size }
    }
}

/// First and last cell that a local grid may touch.
fn extent(local: &LocalGrid, place: &FloorPose, resolution: f64) -> ([i32; 2], [i32; 2]) {
    let reach = Vector2::repeat(local.reach() * (place.scale / local.scale()).abs());
    (
        cell_of(&(place.at - reach), resolution),
        cell_of(&(place.at + reach), resolution),
    )
}

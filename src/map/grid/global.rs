//! The sum of the local grids.

use super::local::cell_of;
use super::{FloorPose, LocalGrid};
use nalgebra::Vector2;
use std::collections::BTreeMap;

/// The grid grows by whole blocks of cells, so that it does not grow at every keyframe.
const BLOCK: i32 = 64;
/// Keyframes that one update places or moves; the next one goes on with the rest.
pub const MAX_MOVES: usize = 128;
/// A local grid moves with its keyframe once one of its cells is off by this fraction of a cell.
const TOLERANCE: f64 = 0.5;
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
    free: u16,
}

impl Votes {
    fn value(self) -> i8 {
        let (obstacle, free) = (u32::from(self.obstacle), u32::from(self.free));
        match (obstacle * OBSTACLE_WEIGHT > free, obstacle + free) {
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

/// A keyframe's part of the sum.
#[derive(Debug)]
struct Part {
    local: LocalGrid,
    /// Where it is counted; `None` before it is.
    placed: Option<FloorPose>,
    /// Where it should be.
    place: FloorPose,
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
    resolution: f64,
    max_cells: usize,
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
    pub fn new(resolution: f64, max_cells: usize) -> Self {
        Self {
            resolution,
            max_cells,
            parts: BTreeMap::new(),
            corner: [0; 2],
            size: [0; 2],
            votes: Vec::new(),
            full: false,
            changed: None,
            resized: false,
        }
    }

    /// Whether the local grid of a keyframe of this scale has to be traced.
    pub fn lacks(&self, id: u32, scale: f64) -> bool {
        self.parts
            .get(&id)
            .is_none_or(|part| !part.local.fits(scale))
    }

    /// Adds a keyframe, or replaces its local grid.
    pub fn insert(&mut self, id: u32, local: LocalGrid, place: FloorPose) {
        self.remove(id);
        let placed = None;
        self.parts.insert(
            id,
            Part {
                local,
                placed,
                place,
            },
        );
    }

    /// Removes a keyframe.
    pub fn remove(&mut self, id: u32) {
        if let Some(part) = self.parts.remove(&id)
            && let Some(placed) = part.placed
        {
            self.count(&part.local, &placed, false);
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
            part.place = place;
        }
    }

    /// Moves at most [`MAX_MOVES`] keyframes to their places, oldest first; returns whether all are
    /// there.
    pub fn update(&mut self) -> bool {
        let resolution = self.resolution;
        let waits = |part: &Part| {
            part.placed
                .is_none_or(|placed| moved(&placed, &part.place, &part.local, resolution))
        };
        let waiting: Vec<u32> = (self.parts.iter())
            .filter(|(_, part)| waits(part))
            .map(|(id, _)| *id)
            .take(MAX_MOVES + 1)
            .collect();
        for id in waiting.iter().take(MAX_MOVES) {
            let Some(mut part) = self.parts.remove(id) else {
                continue;
            };
            if let Some(placed) = part.placed {
                self.count(&part.local, &placed, false);
            }
            self.make_room(&part.local, &part.place);
            self.count(&part.local, &part.place, true);
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
            resolution: self.resolution,
            origin: self.corner.map(|k| f64::from(k) * self.resolution),
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
        let free = local.free_at(place);
        let columns = self.size[0];
        for row in window.from[1]..window.from[1] + window.size[1] {
            let y = (f64::from(self.corner[1]) + row as f64 + 0.5) * self.resolution;
            for column in window.from[0]..window.from[0] + window.size[0] {
                let x = (f64::from(self.corner[0]) + column as f64 + 0.5) * self.resolution;
                if free(&Vector2::new(x, y))
                    && let Some(votes) = self.votes.get_mut(row * columns + column)
                {
                    Votes::change(&mut votes.free, adds);
                }
            }
        }
        let mut last = None;
        for point in local.obstacles_at(place) {
            let index = self.index(cell_of(&point, self.resolution));
            // Neighbouring means may fall into one cell, which then has one vote of them.
            if index == last {
                continue;
            }
            last = index;
            if let Some(votes) = index.and_then(|k| self.votes.get_mut(k)) {
                Votes::change(&mut votes.obstacle, adds);
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
        let (low, high) = extent(local, place, self.resolution);
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
        let (low, high) = extent(local, place, self.resolution);
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
        let Some(cells) = cells.filter(|cells| *cells <= self.max_cells) else {
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

/// Whether a cell of the local grid is no longer where it is counted.
fn moved(placed: &FloorPose, place: &FloorPose, local: &LocalGrid, resolution: f64) -> bool {
    let turned = nalgebra::Rotation2::new(place.heading - placed.heading).angle();
    let shift = (place.at - placed.at).norm();
    let stretch = (place.scale / placed.scale - 1.0).abs();
    let off = shift + local.reach() * (turned.abs() + stretch);
    off > TOLERANCE * resolution || off.is_nan()
}

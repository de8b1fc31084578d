//! The camera's path, in constant memory: each position is relative to a keyframe and moves with it.

use super::feed::Passed;
use crate::page::messages::{BREAK, LOST};
use crate::slam::PoseTable;
use nalgebra::Vector3;

/// Maximum number of positions: when they are reached, every second one goes.
pub const MAX: usize = 4096;

#[derive(Debug, Clone, Copy)]
struct Point {
    /// `None`: in the world.
    keyframe: Option<u32>,
    /// In the keyframe's camera frame.
    position: Vector3<f64>,
    submap: u32,
    flags: u8,
}

/// The positions.
#[derive(Debug)]
pub struct Trail {
    points: Vec<Point>,
    /// Number of frames for each position.
    stride: usize,
    /// Frames since the last position.
    skipped: usize,
    /// Changes when positions other than the last ones do.
    generation: u64,
}

impl Default for Trail {
    fn default() -> Self {
        Self {
            points: Vec::with_capacity(MAX),
            stride: 1,
            skipped: 0,
            generation: 0,
        }
    }
}

impl Trail {
    /// Forgets all positions.
    pub fn clear(&mut self) {
        self.points.clear();
        (self.stride, self.skipped) = (1, 0);
        self.generation += 1;
    }

    /// Adds a position, relative to the newest keyframe of its submap.
    pub fn add(&mut self, passed: &Passed, table: &PoseTable) {
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        let at = table.submaps.iter().rposition(|s| *s == passed.submap);
        let keyframe = at.and_then(|at| Some((*table.ids.get(at)?, table.poses.get(at)?)));
        let keyframe = keyframe.filter(|(_, pose)| pose.is_finite());
        let (id, position) = match keyframe {
            Some((id, pose)) => (Some(id), pose.inverse().transform(&passed.position)),
            None => (None, passed.position),
        };
        let last = self.points.last();
        let jumps = last.is_some_and(|last| last.submap != passed.submap);
        let flags = if passed.lost { LOST } else { 0 } | if jumps { BREAK } else { 0 };
        self.points.push(Point {
            keyframe: id,
            position,
            submap: passed.submap,
            flags,
        });
        if self.points.len() >= MAX {
            self.thin();
        }
    }

    fn thin(&mut self) {
        let mut index = 0;
        self.points.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        self.stride *= 2;
        self.generation += 1;
    }

    /// Changes when positions other than the last ones do.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Positions from number `start` on, in the world by `table`, with their flags.
    pub fn world(&self, start: usize, table: &PoseTable) -> Vec<(Vector3<f64>, u8)> {
        let points = self.points.get(start..).unwrap_or_default();
        let place = |point: &Point| {
            let pose = point.keyframe.and_then(|id| table.pose_of(id));
            let world = pose.map_or(point.position, |pose| pose.transform(&point.position));
            (world, point.flags)
        };
        points.iter().map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;

    fn at(x: f64) -> Sim3 {
        Sim3 {
            translation: Vector3::new(x, 0.0, 0.0),
            ..Sim3::identity()
        }
    }

    fn passed(x: f64, lost: bool) -> Passed {
        Passed {
            position: Vector3::new(x, 0.0, 0.0),
            submap: 0,
            lost,
        }
    }

    #[test]
    fn positions_move_with_their_keyframe() {
        let mut table = PoseTable {
            ids: vec![0, 3],
            poses: vec![at(0.0), at(5.0)],
            submaps: vec![0, 0],
            ..PoseTable::default()
        };
        let mut trail = Trail::default();
        trail.add(&passed(6.0, false), &table);
        trail.add(&passed(7.0, true), &table);
        let other = Passed {
            submap: 4,
            ..passed(1.0, false)
        };
        trail.add(&other, &table);
        table.poses[1] = at(105.0);
        let world: Vec<_> = trail
            .world(0, &table)
            .iter()
            .map(|(p, f)| (p.x, *f))
            .collect();
        assert_eq!(world, [(106.0, 0), (107.0, LOST), (1.0, BREAK)]);
        assert_eq!(trail.world(2, &table).len(), 1);
        assert!(trail.world(9, &table).is_empty());
    }

    #[test]
    fn a_month_takes_no_more_memory_than_a_minute() {
        let table = PoseTable::default();
        let mut trail = Trail::default();
        let room = trail.points.capacity();
        for k in 0..100_000 {
            trail.add(&passed(f64::from(k), false), &table);
            assert!(trail.points.len() < MAX);
        }
        assert_eq!(trail.points.capacity(), room);
        let world = trail.world(0, &table);
        // From the first to the last, evenly.
        assert_eq!(world[0].0.x, 0.0);
        assert!(world.last().is_some_and(|(p, _)| p.x > 99_000.0));
        assert!(world.len() > MAX / 4);
        assert!(trail.generation() > 3);
    }
}

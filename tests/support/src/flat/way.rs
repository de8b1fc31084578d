//! The shortest way to a place.

use super::follower::Leg;
use super::plan::{Flat, ROBOT_HEIGHTS};
use pathfinding::directed::astar::astar;

/// Side of a cell, in millimetres.
const CELL: i32 = 50;
/// Steps to the eight cells around one, and their lengths in millimetres.
const STEPS: [([i32; 2], u32); 8] = [
    ([1, 0], 50),
    ([0, 1], 50),
    ([-1, 0], 50),
    ([0, -1], 50),
    ([1, 1], 71),
    ([-1, 1], 71),
    ([-1, -1], 71),
    ([1, -1], 71),
];

fn centre(cell: [i32; 2]) -> [f64; 2] {
    cell.map(|k| f64::from(k * CELL) * 1e-3)
}

fn cell(at: [f64; 2]) -> [i32; 2] {
    at.map(|v| (v * 1e3 / f64::from(CELL)).round() as i32)
}

/// Whether a circle of this radius touches nothing that the robot would touch, in metres.
pub fn is_clear(flat: &Flat, at: [f64; 2], radius: f64) -> bool {
    flat.distance(at, ROBOT_HEIGHTS) >= radius
}

/// The shortest way between two points on which the robot's centre stays `radius` metres away from everything, but for
/// the first and last half metre; `None` if there is none.
pub fn way(flat: &Flat, from: [f64; 2], to: [f64; 2], radius: f64) -> Option<Vec<Leg>> {
    let near_an_end = |at: [f64; 2]| [from, to].iter().any(|end| distance(at, *end) < 0.5);
    let may = |at: [f64; 2]| {
        is_clear(flat, at, radius) || near_an_end(at) && is_clear(flat, at, 0.75 * radius)
    };
    let goal = cell(to);
    let (cells, _) = astar(
        &cell(from),
        |&[x, y]| {
            let next = STEPS.map(|([dx, dy], length)| ([x + dx, y + dy], length));
            next.into_iter().filter(|(cell, _)| may(centre(*cell)))
        },
        |&cell| (1e3 * distance(centre(cell), centre(goal))) as u32,
        |&cell| cell == goal,
    )?;
    // Only the corners: each point is the last one that is seen from the one before.
    let straight = |a: [f64; 2], b: [f64; 2]| {
        let steps = (distance(a, b) / 0.02).ceil().max(1.0);
        (0..=steps as usize).all(|k| {
            let part = k as f64 / steps;
            may([0, 1].map(|axis| a[axis] + part * (b[axis] - a[axis])))
        })
    };
    let mut points: Vec<[f64; 2]> = cells.iter().skip(1).map(|c| centre(*c)).collect();
    points.push(to);
    let (mut legs, mut at) = (Vec::new(), from);
    while !points.is_empty() {
        let seen = points.iter().rposition(|p| straight(at, *p)).unwrap_or(0);
        at = points[seen];
        legs.push(Leg::To(at));
        points.drain(..=seen);
    }
    Some(legs)
}

fn distance(a: [f64; 2], b: [f64; 2]) -> f64 {
    (a[0] - b[0]).hypot(a[1] - b[1])
}

//! Follows way-points.

use super::robot::{Command, Place, wrapped};

/// A part of a route.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Leg {
    /// Drive to a point, in metres.
    To([f64; 2]),
    /// Turn in place by an angle in radians, counter-clockwise.
    Turn(f64),
}

/// Distance from a way-point at which it is passed, in metres.
const PASSED: f64 = 0.1;
/// Distance from a point at which the robot stops, in metres.
const REACHED: f64 = 0.04;
/// A remaining angle at which a turn has ended, in radians.
const TURNED: f64 = 0.03;
/// The robot turns in place while its target is farther aside than this, in radians.
const ASIDE: f64 = 0.6;

/// Turns towards each way-point, drives to it, and goes on to the next.
#[derive(Debug, Clone)]
pub struct Follower {
    legs: Vec<Leg>,
    next: usize,
    /// m/s.
    speed: f64,
    /// rad/s.
    turn_rate: f64,
    /// During a turn in place: the last heading, and what remains.
    turning: Option<[f64; 2]>,
}

impl Follower {
    /// Drives at most `speed` m/s and turns in place at `turn_rate` rad/s.
    pub fn new(legs: &[Leg], speed: f64, turn_rate: f64) -> Self {
        Self {
            legs: legs.to_vec(),
            next: 0,
            speed,
            turn_rate,
            turning: None,
        }
    }

    /// Number of legs that are done.
    pub fn done(&self) -> usize {
        self.next
    }

    /// What to do at this place; `None`: the route has ended.
    pub fn command(&mut self, place: &Place) -> Option<Command> {
        loop {
            let command = match *self.legs.get(self.next)? {
                Leg::To(point) => self.drive(place, point),
                Leg::Turn(angle) => self.turn(place, angle),
            };
            match command {
                Some(command) => return Some(command),
                None => self.next += 1,
            }
        }
    }

    fn drive(&self, place: &Place, [x, y]: [f64; 2]) -> Option<Command> {
        let (dx, dy) = (x - place.x, y - place.y);
        let distance = dx.hypot(dy);
        let goes_on = matches!(self.legs.get(self.next + 1), Some(Leg::To(_)));
        if distance < if goes_on { PASSED } else { REACHED } {
            return None;
        }
        let aside = wrapped(dy.atan2(dx) - place.heading);
        let w = (2.5 * aside).clamp(-self.turn_rate, self.turn_rate);
        if aside.abs() > ASIDE {
            return Some(Command { v: 0.0, w });
        }
        let slowed = if goes_on {
            f64::INFINITY
        } else {
            0.1 + 1.5 * distance
        };
        let v = self.speed.min(slowed) * (1.0 - aside.abs() / ASIDE);
        Some(Command { v, w })
    }

    fn turn(&mut self, place: &Place, angle: f64) -> Option<Command> {
        let [last, remaining] = self.turning.unwrap_or([place.heading, angle]);
        let remaining = remaining - wrapped(place.heading - last);
        self.turning = Some([place.heading, remaining]);
        if remaining.abs() < TURNED {
            self.turning = None;
            return None;
        }
        let w = (3.0 * remaining).clamp(-self.turn_rate, self.turn_rate);
        Some(Command { v: 0.0, w })
    }
}

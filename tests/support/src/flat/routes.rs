//! Routes through the flat.

use super::follower::Leg::{self, To, Turn};
use super::robot::Place;
use std::f64::consts::{FRAC_PI_2, PI};

/// Where [`rounds`] begins.
pub fn rounds_start() -> Place {
    Place::new(1.0, 4.7, 0.0)
}

/// Laps through the three rooms and their doors; every second lap takes the other side of the pillar and of the table.
pub fn rounds(laps: usize) -> Vec<Leg> {
    let lap = |k: usize| -> Vec<Leg> {
        let (pillar, table): (&[_], &[_]) = match k % 2 {
            0 => (
                &[[3.4, 4.25], [4.7, 4.2]],
                &[[6.45, 2.6], [5.2, 2.5], [4.95, 1.6]],
            ),
            _ => (
                &[[3.4, 5.3], [4.7, 5.3]],
                &[
                    [7.05, 2.6],
                    [7.05, 1.0],
                    [6.6, 0.6],
                    [5.5, 0.66],
                    [4.95, 1.3],
                ],
            ),
        };
        let before = [[6.3, 4.6], [6.5, 3.9], [6.5, 3.2]];
        let after = [
            [4.2, 1.5],
            [3.3, 1.5],
            [2.8, 2.5],
            [1.95, 2.75],
            [1.9, 3.2],
            [1.9, 4.1],
            [1.2, 4.6],
        ];
        let points = pillar.iter().chain(&before).chain(table).chain(&after);
        points.map(|&point| To(point)).collect()
    };
    (0..laps).flat_map(lap).collect()
}

/// Where [`turns`] begins.
pub fn turns_start() -> Place {
    Place::new(2.9, 4.6, PI)
}

/// Turns in place at a dozen places, a third of which are so near to a wall, the sofa or a box that these fill the view.
pub fn turns() -> Vec<Leg> {
    vec![
        To([1.9, 4.4]),
        Turn(FRAC_PI_2),
        To([1.9, 2.8]),
        Turn(-PI),
        // Before the sofa: its front is 0.15 m before the lens.
        To([2.75, 2.5]),
        To([2.75, 1.5]),
        To([1.8, 1.1]),
        Turn(PI),
        Turn(-PI),
        // Before the shelf.
        To([0.75, 1.6]),
        Turn(2.0 * PI),
        To([0.75, 2.7]),
        To([1.9, 2.85]),
        Turn(-FRAC_PI_2),
        // Before the box in the corner.
        To([3.1, 3.0]),
        Turn(2.0 * PI),
        To([3.1, 1.5]),
        To([4.95, 1.5]),
        Turn(1.5 * PI),
        To([5.2, 2.5]),
        Turn(-PI),
        To([6.5, 2.75]),
        // Before the wall beside the door.
        To([7.4, 3.1]),
        Turn(2.0 * PI),
        To([6.5, 2.9]),
        To([6.5, 4.4]),
        Turn(-2.0 * PI),
        To([4.9, 4.3]),
        // Before the pillar.
        To([4.6, 4.6]),
        Turn(PI),
        To([4.3, 4.2]),
        To([2.9, 4.4]),
        Turn(PI),
    ]
}

//! Obstacles that a keyframe looks under, as the top of a table.
//!
//! A ray that passes below an obstacle shows that the floor behind it is empty, not that a robot has room there: it
//! clears what is in front of the obstacle only. One that passes above an obstacle shows the floor behind it as it is.

/// Slopes, as metres up for each metre ahead, are told apart to this, about a degree: points of one obstacle at about
/// one height do not hang over each other.
const STEP: f64 = 0.02;
/// Maximum slope that is told apart, of either sign.
const MAX_SLOPE: f64 = 2.0;
/// Number of slopes.
const SLOPES: usize = (2.0 * MAX_SLOPE / STEP) as usize;

/// Obstacles around a camera, by direction and slope.
pub struct Obstacles {
    /// Distance of the nearest one, for each direction and slope, in metres.
    nearest: Vec<f32>,
}

/// The nearest obstacles above each slope.
pub struct Overhangs {
    nearest: Vec<f32>,
}

fn bin(direction: usize, slope: f64) -> usize {
    let of_slope = ((slope + MAX_SLOPE) / STEP).clamp(0.0, (SLOPES - 1) as f64);
    direction * SLOPES + of_slope as usize
}

impl Obstacles {
    /// No obstacle.
    pub fn new(directions: usize) -> Self {
        Self {
            nearest: vec![f32::INFINITY; directions * SLOPES],
        }
    }

    /// Adds the point of an obstacle at this horizontal distance.
    pub fn add(&mut self, direction: usize, slope: f64, distance: f64) {
        if let Some(nearest) = self.nearest.get_mut(bin(direction, slope)) {
            *nearest = nearest.min(distance as f32);
        }
    }

    /// What hangs over each slope.
    pub fn overhangs(mut self) -> Overhangs {
        for slopes in self.nearest.chunks_exact_mut(SLOPES) {
            let mut above = f32::INFINITY;
            for nearest in slopes.iter_mut().rev() {
                let here = *nearest;
                *nearest = above;
                above = above.min(here);
            }
        }
        Overhangs {
            nearest: self.nearest,
        }
    }
}

impl Overhangs {
    /// Horizontal distance of the nearest obstacle above a ray; infinite without one.
    pub fn nearest(&self, direction: usize, slope: f64) -> f64 {
        let nearest = self.nearest.get(bin(direction, slope));
        nearest.map_or(f64::INFINITY, |nearest| f64::from(*nearest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_obstacle_hangs_over_lower_rays_of_its_direction() {
        let mut obstacles = Obstacles::new(3);
        obstacles.add(1, -0.1, 1.5);
        obstacles.add(1, 0.3, 2.5);
        obstacles.add(1, -0.1, 1.8);
        obstacles.add(2, 9.0, 0.4);
        let above = obstacles.overhangs();
        assert_eq!(above.nearest(1, -0.2), 1.5);
        assert_eq!(above.nearest(1, -99.0), 1.5);
        assert_eq!(above.nearest(1, -0.1), 2.5, "it does not hang over itself");
        assert_eq!(above.nearest(1, 0.1), 2.5);
        assert_eq!(above.nearest(1, 0.4), f64::INFINITY);
        assert_eq!(above.nearest(0, -0.2), f64::INFINITY);
        assert!(
            (above.nearest(2, 0.0) - 0.4).abs() < 1e-6,
            "steep ones count"
        );
        assert_eq!(above.nearest(2, 5.0), f64::INFINITY);
        assert_eq!(above.nearest(7, 0.0), f64::INFINITY);
    }
}

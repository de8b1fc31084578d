//! The node's poses compared with the truth.

use nalgebra::Isometry3;
use std::fmt;
use std::ops::Range;
use testkit::flat::Place;

/// Nanoseconds before and after the worst position of which every error is reported.
const AROUND: i64 = 800_000_000;

/// Errors of the node's poses. The first pose, and it alone, says where the map is in the world.
#[derive(Default)]
pub struct Errors {
    world_from_map: Option<Isometry3<f64>>,
    /// Nanoseconds since the start, metres, radians.
    errors: Vec<(i64, f64, f64)>,
}

impl Errors {
    /// A pose of the robot in the map and the true place; the estimated place in the world.
    pub fn add(&mut self, nanos: i64, map_from_base: &Isometry3<f64>, truth: &Place) -> Place {
        let world_from_map = self
            .world_from_map
            .get_or_insert_with(|| truth.isometry() * map_from_base.inverse());
        let place = Place::of(&(*world_from_map * map_from_base));
        let turned = truth
            .isometry()
            .rotation
            .angle_to(&place.isometry().rotation);
        self.errors.push((nanos, place.distance(truth), turned));
        place
    }

    /// The map's place in the world.
    pub fn world_from_map(&self) -> Isometry3<f64> {
        self.world_from_map.expect("a pose")
    }

    /// Time of the first pose at or after `nanos`.
    pub fn first_since(&self, nanos: i64) -> Option<i64> {
        self.errors.iter().map(|e| e.0).find(|&at| at >= nanos)
    }

    pub fn poses_in(&self, times: Range<i64>) -> usize {
        self.errors.iter().filter(|e| times.contains(&e.0)).count()
    }

    /// Metres.
    pub fn max_position(&self) -> f64 {
        self.errors.iter().map(|e| e.1).fold(0.0, f64::max)
    }

    /// Metres.
    pub fn rms_position(&self) -> f64 {
        let sum: f64 = self.errors.iter().map(|e| e.1 * e.1).sum();
        (sum / self.errors.len().max(1) as f64).sqrt()
    }

    /// Degrees.
    pub fn max_heading(&self) -> f64 {
        let max = self.errors.iter().map(|e| e.2).fold(0.0, f64::max);
        max.to_degrees()
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worst = |key: fn(&(i64, f64, f64)) -> f64| {
            let at = self.errors.iter().max_by(|a, b| key(a).total_cmp(&key(b)));
            at.map_or(0.0, |e| e.0 as f64 * 1e-9)
        };
        write!(
            f,
            "{} poses; position: rms {:.3} m, at most {:.3} m ({:.1} s); heading: at most {:.2} degrees ({:.1} s)",
            self.errors.len(),
            self.rms_position(),
            self.max_position(),
            worst(|e| e.1),
            self.max_heading(),
            worst(|e| e.2)
        )?;
        // Images around the worst position.
        let at = (worst(|e| e.1) * 1e9) as i64;
        for (nanos, metres, radians) in &self.errors {
            if (nanos - at).abs() <= AROUND {
                let seconds = *nanos as f64 * 1e-9;
                write!(
                    f,
                    "; {seconds:.1} s: {metres:.3} m, {:.2}",
                    radians.to_degrees()
                )?;
            }
        }
        Ok(())
    }
}

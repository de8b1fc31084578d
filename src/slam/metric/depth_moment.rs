//! The camera at a frame with depth, and the pixels of it that are looked at.

use crate::geometry::Sim3;
use crate::time::Stamp;
use nalgebra::Vector6;

/// The camera at a frame with depth.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub stamp: Stamp,
    /// Its pose along the path of steps, which no optimisation of the map moves.
    pub path_from_camera: Sim3,
    /// The camera's velocity `ξ` in its own frame, per second, if known.
    pub velocity: Option<Vector6<f64>>,
    /// The motion from the frame before; the identity if that is not known.
    pub step: Sim3,
}

/// Columns and rows of the pixels that are looked at: at most `points` along the longer side.
pub fn grid(
    (width, height): (usize, usize),
    points: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let step = width.max(height).div_ceil(points).max(1);
    let rows = (step / 2..height).step_by(step);
    rows.flat_map(move |v| (step / 2..width).step_by(step).map(move |u| (u, v)))
}

/// The motion `Exp([τ, φ])`.
pub fn exp(twist: &Vector6<f64>) -> Sim3 {
    Sim3::exp(&twist.push(0.0))
}

//! Weights of residuals that may be outliers.

/// Residuals beyond this many standard deviations count less.
const HUBER: f64 = 1.345;

/// Huber's weight of a residual in standard deviations.
pub fn huber_weight(residual: f64) -> f64 {
    HUBER / residual.abs().max(HUBER)
}

//! A line through points of the plane.

/// Running sums of a line fit by least squares, relative to running means to stay accurate over many samples.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LineFit {
    n: f64,
    mean_x: f64,
    mean_y: f64,
    xx: f64,
    xy: f64,
}

impl LineFit {
    /// Adds a point.
    pub fn add(&mut self, x: f64, y: f64) {
        self.n += 1.0;
        let dx = x - self.mean_x;
        self.mean_x += dx / self.n;
        self.mean_y += (y - self.mean_y) / self.n;
        self.xx += dx * (x - self.mean_x);
        self.xy += dx * (y - self.mean_y);
    }

    /// Slope and intercept, if the points determine a line that rises.
    pub fn rising(&self) -> Option<(f64, f64)> {
        let slope = self.xy / self.xx;
        let offset = self.mean_y - slope * self.mean_x;
        (slope > 0.0 && slope.is_finite() && offset.is_finite()).then_some((slope, offset))
    }
}

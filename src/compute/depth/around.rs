//! What the depths around a pixel say about it (docs/algorithm.md, Metric scale).

/// Minimum number of the eight pixels around one that have its depth, if that is of a surface: a table's edge or a
/// chair's leg may be one pixel wide, and a wrong measurement is mostly alone.
pub(crate) const SURFACE: usize = 2;
/// Distance of pixels between whose depths a point is taken for one of an edge: both of an edge's pixels are without
/// depth.
pub(crate) const EDGE: usize = 2;

/// Depths that differ by a larger part of theirs are of different surfaces.
pub(crate) const SAME_SURFACE: f32 = 0.05;

/// Whether two depths are near enough to each other; false without a depth.
pub(crate) fn same_surface(z: f32, other: f32) -> bool {
    z > 0.0 && other > z * (1.0 - SAME_SURFACE) && other < z * (1.0 + SAME_SURFACE)
}

/// Depths of an image, row by row; 0: not measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DepthImage<'a> {
    pub metres: &'a [f32],
    /// Columns.
    pub width: usize,
}

impl DepthImage<'_> {
    /// Depth of pixel `n`.
    pub fn at(self, n: usize) -> Option<f32> {
        self.metres.get(n).copied()
    }

    /// Depths of the pixels around one, up to a distance in rows and columns, that lie in the image.
    fn around(self, n: usize, distance: usize) -> impl Iterator<Item = f32> {
        let width = self.width.max(1);
        let (u, v) = (n % width, n / width);
        let columns = u.saturating_sub(distance)..(u + distance + 1).min(width);
        let rows = v.saturating_sub(distance)..=v + distance;
        let pixels = rows.flat_map(move |v| columns.clone().map(move |u| v * width + u));
        pixels.filter_map(move |other| self.at(other).filter(|_| other != n))
    }

    /// Whether enough of the pixels around one have its depth.
    pub fn is_of_surface(self, n: usize) -> bool {
        let own = self.at(n).unwrap_or(0.0);
        let same = self.around(n, 1).filter(|other| same_surface(own, *other));
        same.count() >= SURFACE
    }

    /// Whether a point of pixel `n`, of this depth, lies between the depths around the pixel, and on none of them.
    pub fn is_of_edge(self, n: usize, depth: f32) -> bool {
        let (mut nearer, mut farther) = (false, false);
        for other in self.around(n, EDGE).filter(|other| *other > 0.0) {
            if same_surface(depth, other) {
                return false;
            }
            nearer |= other < depth;
            farther |= other > depth;
        }
        nearer && farther
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 5;

    fn image(metres: &[f32]) -> DepthImage<'_> {
        DepthImage {
            metres,
            width: WIDTH,
        }
    }

    #[test]
    fn rows_do_not_run_into_each_other() {
        // The last pixel of a row has the depth of the first ones of the next.
        let mut metres = [3.0; 3 * WIDTH];
        for n in [WIDTH - 1, WIDTH, WIDTH + 1] {
            metres[n] = 1.0;
        }
        assert!(!image(&metres).is_of_surface(WIDTH - 1));
        assert!(!image(&metres).is_of_surface(WIDTH));
        metres[0] = 1.0;
        assert!(image(&metres).is_of_surface(WIDTH));
    }

    #[test]
    fn a_point_of_an_edge_has_something_in_front_and_behind_it_within_two_pixels() {
        let row = [1.0, 1.0, 0.0, 0.0, 3.0];
        assert!(image(&row).is_of_edge(2, 2.0));
        assert!(image(&row).is_of_edge(3, 2.0));
        for (n, depth) in [(2, 0.5), (2, 4.0), (2, 1.04), (3, 2.9), (2, f32::NAN)] {
            assert!(!image(&row).is_of_edge(n, depth), "{n}: {depth} m");
        }
        let far_apart = [1.0, 0.0, 0.0, 0.0, 3.0];
        assert!(image(&far_apart).is_of_edge(2, 2.0));
        assert!(!image(&far_apart).is_of_edge(1, 2.0));
        let unmeasured = [0.0, f32::NAN, 0.0, -1.0, 3.0];
        assert!(!image(&unmeasured).is_of_edge(2, 2.0));
    }

    #[test]
    fn images_of_no_pixels_have_neither() {
        for width in [0, 1, 7] {
            let empty = DepthImage { metres: &[], width };
            assert!(!empty.is_of_surface(3) && !empty.is_of_edge(3, 1.0));
        }
    }
}

//! Where in an image its matches are (docs/algorithm.md, Factor graph and loop closure).

/// Cells along each side of an image.
pub const CELLS: usize = 4;

/// Number of matches in each cell of an image, row by row.
pub type Spread = [u32; CELLS * CELLS];

/// Counts the matches of a quality above `q_conf` in each cell of an image of this width; one entry of `quality` for each
/// pixel, 0 where nothing matches.
pub fn spread(quality: &[f32], width: usize, q_conf: f32) -> Spread {
    let mut counts = Spread::default();
    let height = quality.len() / width.max(1);
    for (n, quality) in quality.iter().enumerate() {
        if *quality > q_conf && height > 0 {
            let (u, v) = (n % width, n / width);
            let cell = (v * CELLS / height) * CELLS + u * CELLS / width;
            if let Some(count) = counts.get_mut(cell) {
                *count += 1;
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_counted_where_they_are() {
        let (width, height) = (20, 12);
        let quality = |keep: &dyn Fn(usize, usize) -> bool| -> Vec<f32> {
            let pixels = 0..width * height;
            pixels
                .map(|n| 2.0 * f32::from(u8::from(keep(n % width, n / width))))
                .collect()
        };
        let count = |keep: &dyn Fn(usize, usize) -> bool| spread(&quality(keep), width, 1.5);
        assert_eq!(count(&|_, _| true), [15; 16]);
        assert_eq!(count(&|_, _| false), [0; 16]);
        let mut corner = Spread::default();
        corner[15] = 15;
        corner[14] = 3;
        assert_eq!(count(&|u, v| u >= 14 && v >= 9), corner);
        let all = quality(&|_, _| true);
        assert_eq!(spread(&all, width, 2.0), [0; 16], "quality");
        assert_eq!(spread(&[f32::NAN; 240], width, 1.5), [0; 16]);
        // Nothing matches, whatever the limit.
        assert_eq!(spread(&[0.0; 240], width, 0.0), [0; 16]);
        assert_eq!(spread(&[], 0, 1.5), [0; 16]);
        // More cells than pixels.
        assert_eq!(spread(&[2.0], 1, 1.5).iter().sum::<u32>(), 1);
    }
}

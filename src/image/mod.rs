//! Pixels: decoded images, Pillow-exact resampling, undistortion, the network's input.

/// An 8-bit RGB image, rows from the top, `data.len() == width * height * 3`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RgbImage {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Interleaved R, G, B.
    pub data: Vec<u8>,
}

impl RgbImage {
    /// A black image.
    pub fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            data: vec![0; width * height * 3],
        }
    }
}

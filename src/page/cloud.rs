//! The points of a keyframe for a page: few, and in nine bytes each.

use crate::geometry::Intrinsics;
use crate::map::KeyframeView;
use crate::map::cloud::camera_points;
use nalgebra::Vector3;

/// Maximum number of points of a keyframe.
pub const MAX_POINTS: usize = 5_000;
/// Coordinates are stored as fractions of the largest one.
const STEPS: f32 = 32_767.0;

/// Points in their keyframe's camera frame, before scale: the page moves them with the keyframe.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cloud {
    /// The largest coordinate.
    extent: f32,
    /// Three coordinates a point, in units of `extent / 32767`.
    positions: Vec<i16>,
    /// R, G, B.
    colors: Vec<u8>,
}

impl Cloud {
    /// The most confident point of each block of pixels, at most `max` in all, of those above `min_confidence`.
    pub fn of(
        view: &KeyframeView,
        intrinsics: Option<&Intrinsics>,
        min_confidence: f32,
        max: usize,
    ) -> Self {
        let (width, height) = (view.image.width, view.image.height);
        let side = block(width, height, max.max(1));
        let columns = width.div_ceil(side);
        let mut best: Vec<Option<(f32, usize, Vector3<f64>)>> =
            vec![None; columns * height.div_ceil(side)];
        for (pixel, point, confidence) in camera_points(view.clone(), intrinsics, min_confidence) {
            let (u, v) = (pixel % width.max(1), pixel / width.max(1));
            if let Some(slot) = best.get_mut(v / side * columns + u / side)
                && slot
                    .as_ref()
                    .is_none_or(|(before, ..)| confidence > *before)
            {
                *slot = Some((confidence, pixel, point));
            }
        }
        let chosen = || best.iter().flatten();
        let largest = chosen().flat_map(|(.., p)| p.iter().map(|v| v.abs()));
        let extent = largest.fold(0.0, f64::max) as f32;
        if !(extent.is_finite() && extent > 0.0) {
            return Self::default();
        }
        let mut cloud = Self {
            extent,
            ..Self::default()
        };
        let pixels = view.image.data.as_chunks::<3>().0;
        for (_, pixel, point) in chosen() {
            let Some(color) = pixels.get(*pixel) else {
                continue;
            };
            for v in point.iter() {
                // Within the range, as no coordinate is larger than the extent.
                cloud
                    .positions
                    .push((*v as f32 / extent * STEPS).round() as i16);
            }
            cloud.colors.extend_from_slice(color);
        }
        cloud
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.colors.len() / 3
    }

    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.colors.is_empty()
    }

    /// Appends the form that the page reads: extent, number of points, coordinates, colours; little endian.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.extent.to_le_bytes());
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        for v in &self.positions {
            out.extend_from_slice(&v.to_le_bytes());
        }
        out.extend_from_slice(&self.colors);
    }
}

/// Side of the smallest blocks of which there are at most `max`.
fn block(width: usize, height: usize, max: usize) -> usize {
    let count = |side: usize| width.div_ceil(side) * height.div_ceil(side);
    let sides = 1..=width.max(height).max(1);
    sides
        .into_iter()
        .find(|side| count(*side) <= max)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::RgbImage;
    use std::sync::Arc;

    fn view(width: usize, height: usize) -> KeyframeView {
        let n = width * height;
        let mut image = RgbImage::new(width, height);
        for (k, value) in image.data.iter_mut().enumerate() {
            *value = (k / 3 % 251) as u8;
        }
        let points = (0..n).flat_map(|k| [k as f32 * 0.01, -0.5, 2.0]);
        KeyframeView {
            image: Arc::new(image),
            points: Arc::new(points.collect()),
            confidence: Arc::new((0..n).map(|k| k as f32).collect()),
        }
    }

    #[test]
    fn each_block_keeps_its_most_confident_point() {
        let cloud = Cloud::of(&view(40, 30), None, 1.5, 100);
        // 40 × 30 pixels in blocks of 4 × 4: 10 × 8 of them.
        assert_eq!(cloud.len(), 80);
        let mut bytes = Vec::new();
        cloud.write(&mut bytes);
        assert_eq!(bytes.len(), 8 + 80 * 9);
        let extent = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        assert!((extent - 11.99).abs() < 1e-5, "{extent}");
        // The last pixel of the first block, at row 3, column 3.
        let x = i16::from_le_bytes([bytes[8], bytes[9]]);
        let x = f32::from(x) / 32_767.0 * extent;
        assert!((x - 1.23).abs() < 1e-3, "{x}");
        assert_eq!(bytes[8 + 80 * 6], 123);
    }

    #[test]
    fn pointmaps_of_any_kind_have_a_cloud() {
        assert!(Cloud::of(&KeyframeView::default(), None, 0.0, 100).is_empty());
        assert!(Cloud::of(&view(4, 4), None, f32::INFINITY, 100).is_empty());
        let mut broken = view(8, 8);
        broken.points = Arc::new(vec![f32::NAN; 3 * 64]);
        assert!(Cloud::of(&broken, None, 0.0, 100).is_empty());
        broken.points = Arc::new(vec![0.0; 3 * 64]);
        assert!(Cloud::of(&broken, None, 0.0, 100).is_empty());
        let few = Cloud::of(&view(512, 384), None, 0.0, MAX_POINTS);
        assert!(
            few.len() <= MAX_POINTS && few.len() > MAX_POINTS / 2,
            "{}",
            few.len()
        );
        assert_eq!(Cloud::of(&view(1, 1), None, -1.0, 0).len(), 1);
    }
}

//! Ray casting: what a camera sees of the flat.

use super::plan::Flat;
use super::texture::surface;
use crate::camera::centred;
use mast3r_slam::geometry::Intrinsics;
use mast3r_slam::image::RgbImage;
use nalgebra::{Isometry3, Vector3};

/// An image and its depth.
#[derive(Debug, Clone)]
pub struct View {
    pub image: RgbImage,
    /// Metres along the optical axis, row by row.
    pub depth: Vec<f32>,
}

/// A camera with 68 degrees of horizontal view and square pixels, without distortion.
pub fn camera(width: usize, height: usize) -> Intrinsics {
    centred(0.742, (width, height))
}

/// A block relative to the camera's centre.
struct Near {
    low: [f32; 3],
    high: [f32; 3],
    texture: u32,
}

/// Directions of a row's pixels and what their rays hit.
struct Row {
    /// Along each axis of the world, for 1 m along the optical axis.
    directions: [Vec<f32>; 3],
    inverses: [Vec<f32>; 3],
    depth: Vec<f32>,
    hit: Vec<u32>,
}

impl Row {
    fn new(width: usize) -> Self {
        let axes = || std::array::from_fn(|_| vec![0.0; width]);
        Self {
            directions: axes(),
            inverses: axes(),
            depth: vec![0.0; width],
            hit: vec![0; width],
        }
    }

    fn aim(&mut self, axes: &[Vector3<f32>; 3], y: f32, fx: f32, cx: f32) {
        for column in 0..self.depth.len() {
            let x = (column as f32 - cx) / fx;
            let direction = axes[0] * x + axes[1] * y + axes[2];
            for k in 0..3 {
                // A ray that is parallel to an axis would divide by zero.
                let d = direction[k];
                let d = if d.abs() < 1e-7 { 1e-7 } else { d };
                self.directions[k][column] = d;
                self.inverses[k][column] = 1.0 / d;
            }
        }
        self.depth.fill(f32::INFINITY);
    }

    /// Intersects all rays with a block (the slab method); the loop has no branches, so that it is vectorised.
    fn meet(&mut self, index: u32, block: &Near) {
        let [ix, iy, iz] = &self.inverses;
        let rays = ix.iter().zip(iy).zip(iz);
        let found = self.depth.iter_mut().zip(&mut self.hit);
        let min = |a: f32, b: f32| if a < b { a } else { b };
        let max = |a: f32, b: f32| if a > b { a } else { b };
        for (((ix, iy), iz), (depth, hit)) in rays.zip(found) {
            let (x0, x1) = (block.low[0] * ix, block.high[0] * ix);
            let (y0, y1) = (block.low[1] * iy, block.high[1] * iy);
            let (z0, z1) = (block.low[2] * iz, block.high[2] * iz);
            let enter = max(max(min(x0, x1), min(y0, y1)), min(z0, z1));
            let leave = min(min(max(x0, x1), max(y0, y1)), max(z0, z1));
            let meets = (enter <= leave) & (enter > 0.0) & (enter < *depth);
            *depth = if meets { enter } else { *depth };
            *hit = if meets { index } else { *hit };
        }
    }
}

impl Flat {
    /// What a camera at this pose (camera to world; x right, y down, z ahead) sees. It must not be inside of a block.
    /// All cores share the rows.
    pub fn view(
        &self,
        world_from_camera: &Isometry3<f64>,
        camera: &Intrinsics,
        size: (usize, usize),
    ) -> View {
        let (width, height) = size;
        let rotation = world_from_camera.rotation.to_rotation_matrix();
        let axes: [Vector3<f32>; 3] =
            std::array::from_fn(|k| rotation.matrix().column(k).map(|v| v as f32));
        let blocks = self.before(world_from_camera);
        let mut image = RgbImage::new(width, height);
        let mut depth = vec![0.0; width * height];
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let rows = height.div_ceil(cores).max(1);
        let centre = world_from_camera.translation.vector.map(|v| v as f32);
        let [fx, fy, cx, cy] = [camera.fx, camera.fy, camera.cx, camera.cy].map(|v| v as f32);
        std::thread::scope(|scope| {
            let bands = image.data.chunks_mut(3 * width * rows);
            for (band, (pixels, depth)) in bands.zip(depth.chunks_mut(width * rows)).enumerate() {
                let (blocks, axes) = (&blocks, &axes);
                scope.spawn(move || {
                    let mut row = Row::new(width);
                    let lines = pixels.chunks_mut(3 * width).zip(depth.chunks_mut(width));
                    for (k, (pixels, depth)) in lines.enumerate() {
                        let y = ((band * rows + k) as f32 - cy) / fy;
                        row.aim(axes, y, fx, cx);
                        for (index, block) in blocks.iter().enumerate() {
                            row.meet(index as u32, block);
                        }
                        shade(&row, blocks, &centre, 1.0 / fx, pixels);
                        depth.copy_from_slice(&row.depth);
                    }
                });
            }
        });
        View { image, depth }
    }

    /// Blocks of which a part is in front of the camera.
    fn before(&self, world_from_camera: &Isometry3<f64>) -> Vec<Near> {
        let centre = world_from_camera.translation.vector;
        let ahead = world_from_camera.rotation * Vector3::z();
        let near = |b: &super::Block| {
            let relative = |corner: [f64; 3]| std::array::from_fn(|k| corner[k] - centre[k]);
            let (low, high): ([f64; 3], [f64; 3]) = (relative(b.low), relative(b.high));
            let farthest: f64 = (0..3)
                .map(|k| (low[k] * ahead[k]).max(high[k] * ahead[k]))
                .sum();
            (farthest > 0.0).then(|| Near {
                low: low.map(|v| v as f32),
                high: high.map(|v| v as f32),
                texture: b.texture,
            })
        };
        self.blocks().iter().filter_map(near).collect()
    }
}

/// Colours of a row. `pixel` is the tangent of a pixel's angle.
fn shade(row: &Row, blocks: &[Near], centre: &Vector3<f32>, pixel: f32, pixels: &mut [u8]) {
    for (column, rgb) in pixels.chunks_exact_mut(3).enumerate() {
        let depth = row.depth[column];
        if !depth.is_finite() {
            continue;
        }
        let block = &blocks[row.hit[column] as usize];
        let direction: [f32; 3] = std::array::from_fn(|k| row.directions[k][column]);
        // The face is that of the axis along which the ray enters last.
        let enters = |k: usize| {
            let side = if direction[k] > 0.0 {
                block.low[k]
            } else {
                block.high[k]
            };
            side * row.inverses[k][column]
        };
        let axis = (1..3).fold(0, |best, k| if enters(k) > enters(best) { k } else { best });
        let (u, v) = ((axis + 1) % 3, (axis + 2) % 3);
        let at = |k: usize| centre[k] + depth * direction[k];
        let length = (direction[0] * direction[0]
            + direction[1] * direction[1]
            + direction[2] * direction[2])
            .sqrt();
        let footprint = depth * pixel * length / direction[axis].abs().max(0.1);
        let positive = direction[axis] < 0.0;
        let seed = block
            .texture
            .wrapping_mul(8)
            .wrapping_add(axis as u32 * 2 + u32::from(positive));
        let colour = surface(seed.wrapping_mul(0x9e37_79b1), at(u), at(v), footprint);
        // Light comes from above and from the south-west.
        let light = [[0.78, 0.92], [0.7, 1.0], [0.75, 1.0]][axis][usize::from(positive)];
        for (value, c) in rgb.iter_mut().zip(colour) {
            *value = (c * light * 235.0).clamp(4.0, 250.0) as u8;
        }
    }
}

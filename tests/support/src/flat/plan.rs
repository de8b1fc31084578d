//! The plan: blocks that fill space, and distances from them.

/// Heights above the floor between which the robot would touch something.
pub const ROBOT_HEIGHTS: [f64; 2] = [0.02, 0.6];
/// Heights above the floor between which a grid for navigation has obstacles (`config/nav2/slam.yaml`).
pub const GRID_HEIGHTS: [f64; 2] = [0.1, 1.0];

/// Inner length along x and along y, and the height of the rooms.
const SIZE: [f64; 3] = [8.0, 6.0, 2.5];
/// Upper edge of the doors.
const DOOR: f64 = 2.05;

/// A solid box whose sides are parallel to the axes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// The corner with the smallest coordinates.
    pub low: [f64; 3],
    /// The corner with the largest coordinates.
    pub high: [f64; 3],
    /// The texture's seed.
    pub texture: u32,
}

impl Block {
    fn overlaps(&self, heights: [f64; 2]) -> bool {
        self.low[2] < heights[1] && self.high[2] > heights[0]
    }

    /// Distance of a point of the plane from the block's footprint; 0 within.
    fn distance(&self, [x, y]: [f64; 2]) -> f64 {
        let beside = |low: f64, high: f64, at: f64| (low - at).max(at - high).max(0.0);
        let dx = beside(self.low[0], self.high[0], x);
        let dy = beside(self.low[1], self.high[1], y);
        dx.hypot(dy)
    }
}

/// The flat. Room A is in the south-west (sofa, coffee table, shelf), room B in the south-east (table, chair,
/// sideboard), room C in the north (pillar). Doors of 1 m join each with both others.
#[derive(Debug, Clone)]
pub struct Flat {
    blocks: Vec<Block>,
}

/// Footprints and heights: x from, x to, y from, y to, z from, z to.
const INSIDE: &[[f64; 6]] = &[
    // Walls between C and the other rooms, with the doors' lintels.
    [0.0, 1.4, 3.5, 3.7, 0.0, SIZE[2]],
    [1.4, 2.4, 3.5, 3.7, DOOR, SIZE[2]],
    [2.4, 6.0, 3.5, 3.7, 0.0, SIZE[2]],
    [6.0, 7.0, 3.5, 3.7, DOOR, SIZE[2]],
    [7.0, 8.0, 3.5, 3.7, 0.0, SIZE[2]],
    // The wall between A and B.
    [4.1, 4.3, 0.0, 1.0, 0.0, SIZE[2]],
    [4.1, 4.3, 1.0, 2.0, DOOR, SIZE[2]],
    [4.1, 4.3, 2.0, 3.5, 0.0, SIZE[2]],
    // Room A: a sofa,
    [0.9, 2.7, 0.0, 0.85, 0.0, 0.42],
    [0.9, 2.7, 0.0, 0.22, 0.42, 0.82],
    [0.75, 0.9, 0.0, 0.85, 0.0, 0.6],
    [2.7, 2.85, 0.0, 0.85, 0.0, 0.6],
    // a shelf with boards, a coffee table, a cabinet and a box.
    [0.0, 0.35, 1.6, 2.9, 0.0, 0.5],
    [0.0, 0.35, 1.6, 1.65, 0.5, 1.9],
    [0.0, 0.35, 2.85, 2.9, 0.5, 1.9],
    [0.0, 0.08, 1.65, 2.85, 0.5, 1.9],
    [0.0, 0.35, 1.65, 2.85, 0.95, 1.0],
    [0.0, 0.35, 1.65, 2.85, 1.42, 1.47],
    [0.0, 0.35, 1.65, 2.85, 1.85, 1.9],
    [0.05, 0.28, 1.9, 2.2, 1.0, 1.3],
    [1.4, 2.2, 1.75, 2.25, 0.34, 0.42],
    [1.45, 1.53, 1.8, 1.88, 0.0, 0.34],
    [2.07, 2.15, 1.8, 1.88, 0.0, 0.34],
    [1.45, 1.53, 2.12, 2.2, 0.0, 0.34],
    [2.07, 2.15, 2.12, 2.2, 0.0, 0.34],
    [3.65, 4.1, 0.0, 0.65, 0.0, 1.1],
    [3.45, 3.9, 2.8, 3.2, 0.0, 0.5],
    // Room B: a table with a chair, a sideboard, a bookcase and a box.
    [5.6, 6.6, 1.3, 2.1, 0.7, 0.75],
    [5.65, 5.72, 1.35, 1.42, 0.0, 0.7],
    [6.48, 6.55, 1.35, 1.42, 0.0, 0.7],
    [5.65, 5.72, 1.98, 2.05, 0.0, 0.7],
    [6.48, 6.55, 1.98, 2.05, 0.0, 0.7],
    [5.9, 6.3, 1.0, 1.4, 0.0, 0.45],
    [5.9, 6.3, 1.0, 1.06, 0.45, 0.9],
    [7.5, 8.0, 0.4, 2.2, 0.0, 0.85],
    [4.6, 5.4, 0.0, 0.3, 0.0, 1.7],
    [4.4, 4.85, 2.9, 3.35, 0.0, 0.6],
    // Room C: the pillar, a bookcase, a sideboard and two boxes.
    [4.0, 4.3, 4.7, 5.0, 0.0, SIZE[2]],
    [1.0, 2.6, 5.7, 6.0, 0.0, 1.8],
    [5.2, 6.6, 5.6, 6.0, 0.0, 0.8],
    [7.4, 7.8, 5.3, 5.7, 0.0, 0.55],
    [0.1, 0.5, 5.3, 5.7, 0.0, 0.7],
];

impl Flat {
    /// The flat; the seed chooses the textures.
    pub fn new(seed: u64) -> Self {
        let [x, y, z] = SIZE;
        let outer = 0.5;
        let shell = [
            [-outer, 0.0, -outer, y + outer, 0.0, z],
            [x, x + outer, -outer, y + outer, 0.0, z],
            [0.0, x, -outer, 0.0, 0.0, z],
            [0.0, x, y, y + outer, 0.0, z],
            [-outer, x + outer, -outer, y + outer, -outer, 0.0],
            [-outer, x + outer, -outer, y + outer, z, z + outer],
        ];
        let all = shell.iter().chain(INSIDE).enumerate();
        let block = |(k, b): (usize, &[f64; 6])| Block {
            low: [b[0], b[2], b[4]],
            high: [b[1], b[3], b[5]],
            texture: (seed as u32).wrapping_mul(0x9e37_79b9) ^ (k as u32 + 1),
        };
        Self::of(all.map(block).collect())
    }

    /// Another scene, of these blocks alone.
    pub fn of(blocks: Vec<Block>) -> Self {
        Self { blocks }
    }

    /// All that fills space.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Whether a point in space is within a block, or outside of the flat.
    pub fn is_solid(&self, point: [f64; 3]) -> bool {
        let within = |b: &Block| (0..3).all(|k| (b.low[k]..=b.high[k]).contains(&point[k]));
        !(0..3).all(|k| (0.0..=SIZE[k]).contains(&point[k])) || self.blocks.iter().any(within)
    }

    /// Distance of a point of the plane from the nearest solid thing between two heights; 0 within one and outside of
    /// the flat.
    pub fn distance(&self, at: [f64; 2], heights: [f64; 2]) -> f64 {
        if !(0..2).all(|k| (0.0..=SIZE[k]).contains(&at[k])) {
            return 0.0;
        }
        let near = self.blocks.iter().filter(|b| b.overlaps(heights));
        near.map(|b| b.distance(at)).fold(f64::INFINITY, f64::min)
    }

    /// Whether everything within `depth` of a point of the plane is solid between two heights: the point lies that deep
    /// inside of something. Judged at 33 points of the circle and within.
    pub fn is_deep_inside(&self, at: [f64; 2], depth: f64, heights: [f64; 2]) -> bool {
        let solid = |dx: f64, dy: f64| self.distance([at[0] + dx, at[1] + dy], heights) == 0.0;
        let ring = |radius: f64| {
            (0..16).all(|k| {
                let (sin, cos) = (f64::from(k) * std::f64::consts::PI / 8.0).sin_cos();
                solid(radius * cos, radius * sin)
            })
        };
        solid(0.0, 0.0) && ring(depth / 2.0) && ring(depth)
    }
}

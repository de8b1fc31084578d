//! Cameras and views of a Gaussian map.

use super::SplatError;
use super::layout::MAX_DEGREE;
use crate::geometry::{Intrinsics, Sim3};
use nalgebra::{Matrix3, Vector3};

/// Maximum side of an image that is rendered, pixels.
pub const MAX_SIDE: usize = 16_384;

/// A pinhole camera in the world. Pixel centres have integer coordinates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Camera {
    pub intrinsics: Intrinsics,
    /// Columns, pixels.
    pub width: usize,
    /// Rows, pixels.
    pub height: usize,
    /// R of the camera-from-world transform p ↦ R p + t.
    pub rotation: Matrix3<f64>,
    /// t of that transform, metres.
    pub translation: Vector3<f64>,
    /// Bands of the spherical harmonics beyond this degree are left out.
    pub degree: u8,
}

impl Camera {
    /// The camera of an image of `size` (columns, rows) at a pose. The pose's scale belongs to a keyframe's own points
    /// and is not used.
    pub fn new(intrinsics: Intrinsics, size: (usize, usize), world_from_camera: &Sim3) -> Self {
        let inverse = world_from_camera.rotation.inverse();
        Self {
            intrinsics,
            width: size.0,
            height: size.1,
            rotation: inverse.to_rotation_matrix().into_inner(),
            translation: -(inverse * world_from_camera.translation),
            degree: MAX_DEGREE,
        }
    }

    /// Number of pixels.
    pub fn pixels(&self) -> usize {
        self.width * self.height
    }

    /// Centre of projection in the world frame, metres.
    pub fn centre(&self) -> Vector3<f64> {
        -(self.rotation.transpose() * self.translation)
    }

    /// # Errors
    /// [`SplatError::Camera`] for a side of 0 or above [`MAX_SIDE`], focal lengths that are not positive, and values
    /// that are not finite.
    pub fn check(&self) -> Result<(), SplatError> {
        let k = &self.intrinsics;
        let sides = [self.width, self.height].map(|side| (1..=MAX_SIDE).contains(&side));
        let focal = [k.fx, k.fy].map(|f| f.is_finite() && f > 0.0);
        let pose = self.rotation.iter().chain(self.translation.iter());
        let finite = pose.chain([&k.cx, &k.cy]).all(|v| v.is_finite());
        if finite && sides == [true; 2] && focal == [true; 2] {
            return Ok(());
        }
        Err(SplatError::Camera {
            width: self.width,
            height: self.height,
            fx: k.fx,
            fy: k.fy,
        })
    }
}

/// A camera with what it saw, for training.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub camera: Camera,
    /// `height × width × 3`, 8-bit R, G, B.
    pub image: &'a [u8],
    /// `height × width` depths along the camera's z axis in world metres; values that are not finite and positive are
    /// not used.
    pub depth: Option<&'a [f32]>,
}

impl View<'_> {
    /// # Errors
    /// [`SplatError::Camera`] and [`SplatError::Length`].
    pub fn check(&self) -> Result<(), SplatError> {
        self.camera.check()?;
        let n = self.camera.pixels();
        expect_length("bytes of a view's image", 3 * n, self.image.len())?;
        match self.depth {
            Some(depth) => expect_length("depths of a view", n, depth.len()),
            None => Ok(()),
        }
    }
}

/// A keyframe's pointmap, from which rows are seeded.
#[derive(Debug, Clone, Copy)]
pub struct Pointmap<'a> {
    /// Camera of the pointmap's pixels.
    pub camera: Camera,
    /// Pose and scale of the keyframe: world = s R point + t.
    pub world_from_camera: Sim3,
    /// `height × width × 3` points in the camera frame before the scale.
    pub points: &'a [f32],
    /// `height × width` confidences (an average over the estimates).
    pub confidence: &'a [f32],
    /// `height × width × 3`, 8-bit R, G, B.
    pub image: &'a [u8],
    /// Keyframe with which the rows will move.
    pub anchor: u32,
}

impl Pointmap<'_> {
    /// # Errors
    /// [`SplatError::Camera`] and [`SplatError::Length`].
    pub fn check(&self) -> Result<(), SplatError> {
        self.camera.check()?;
        let n = self.camera.pixels();
        expect_length("coordinates of a pointmap", 3 * n, self.points.len())?;
        expect_length("confidences of a pointmap", n, self.confidence.len())?;
        expect_length("bytes of a pointmap's image", 3 * n, self.image.len())
    }
}

/// What a camera would see, `height × width` pixels in row-major order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rendering {
    pub width: usize,
    pub height: usize,
    /// R, G, B, not limited to 1.
    pub color: Vec<f32>,
    /// Sum of z·alpha·transmittance, metres; divided by the silhouette it is the expected depth.
    pub depth: Vec<f32>,
    /// 1 − the remaining transmittance.
    pub silhouette: Vec<f32>,
}

impl Rendering {
    /// Makes room for an image; the values are unspecified afterwards. Allocates only if it grows.
    pub fn reshape(&mut self, width: usize, height: usize) {
        self.width = width;
        self.height = height;
        self.color.resize(3 * width * height, 0.0);
        self.depth.resize(width * height, 0.0);
        self.silhouette.resize(width * height, 0.0);
    }
}

/// Checks a length.
pub(super) fn expect_length(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), SplatError> {
    if expected == found {
        return Ok(());
    }
    Err(SplatError::Length {
        what,
        expected,
        found,
    })
}

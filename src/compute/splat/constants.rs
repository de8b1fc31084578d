//! Constants of the renderer and of refinement, shared by every device (docs/algorithm.md, Gaussian map).

/// Side of a square image tile, pixels.
pub const TILE: u32 = 16;
/// Depth below which a row is not drawn, metres.
pub const NEAR: f32 = 0.01;
/// Blending stops before the transmittance would fall below this.
pub const MIN_TRANSMITTANCE: f32 = 1e-4;
/// Maximum alpha of a row at a pixel; above it no gradient passes.
pub const MAX_ALPHA: f32 = 0.99;
/// Minimum alpha of a row at a pixel; smaller ones are skipped.
pub const MIN_ALPHA: f32 = 1.0 / 255.0;
/// Added to the diagonal of a projected covariance, square pixels.
pub const LOW_PASS: f32 = 0.3;
/// The Jacobian of the projection takes x/z and y/z within this times the tangent of half the field of view, measured
/// from the principal point to the farther edge of the image.
pub const FIELD_MARGIN: f32 = 1.3;
/// Maximum extent of a row in standard deviations of its projection.
pub const MAX_SIGMAS: f32 = 3.33;
/// Colour where no row is, R, G, B.
pub const BACKGROUND: [f32; 3] = [0.0; 3];

/// The zeroth spherical harmonic: colour = 0.5 + `SH_C0`·dc.
pub const SH_C0: f32 = 0.282_094_79;
/// Factor of the first band.
pub const SH_C1: f32 = 0.488_602_51;
/// Factors of the second band.
pub const SH_C2: [f32; 5] = [
    1.092_548_4,
    1.092_548_4,
    0.315_391_57,
    1.092_548_4,
    0.546_274_22,
];
/// Factors of the third band.
pub const SH_C3: [f32; 7] = [
    0.590_043_6,
    2.890_611_4,
    0.457_045_8,
    0.373_176_33,
    0.457_045_8,
    1.445_305_7,
    0.590_043_6,
];

/// A row whose quaternion has a smaller squared norm is invalid: it is not drawn, and refinement removes it.
pub const MIN_NORM2: f32 = 1e-8;
/// Number by which a split divides the standard deviations.
pub const SPLIT_SHRINK: f32 = 1.6;

/// Adam's decay of the first moment.
pub const BETA1: f32 = 0.9;
/// Adam's decay of the second moment.
pub const BETA2: f32 = 0.999;
/// Added to the root of Adam's second moment.
pub const EPSILON: f32 = 1e-15;

/// Largest distance by which a view's pose may be corrected, extents.
pub const MAX_SHIFT: f64 = 0.3;
/// Largest angle by which a view's pose may be corrected, radians.
pub const MAX_TURN: f64 = 0.15;

/// Side of SSIM's Gaussian window, pixels; beyond the image's edge its values are 0.
pub const SSIM_WINDOW: usize = 11;
/// Standard deviation of SSIM's window, pixels.
pub const SSIM_SIGMA: f64 = 1.5;
/// SSIM's constants for values from 0 to 1.
pub const SSIM_C1: f64 = 0.01 * 0.01;
/// See [`SSIM_C1`].
pub const SSIM_C2: f64 = 0.03 * 0.03;

/// Maximum number of draws of one row in a relocation that the formula takes into account.
pub const MAX_DRAWS: u32 = 51;
/// Limits of an opacity after relocation.
pub const RELOCATED_OPACITY: [f32; 2] = [0.005, 1.0 - 1e-7];

/// Rows whose holes and extras one tile of the scan counts.
pub const SCAN_TILE: u64 = 2048;

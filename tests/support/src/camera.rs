//! A camera without distortion.

use mast3r_slam::geometry::Intrinsics;

/// Square pixels, the optical axis in the middle, and a focal length of `focal` times the image's width.
pub fn centred(focal: f64, (width, height): (usize, usize)) -> Intrinsics {
    let focal = focal * width as f64;
    Intrinsics {
        fx: focal,
        fy: focal,
        cx: (width as f64 - 1.0) / 2.0,
        cy: (height as f64 - 1.0) / 2.0,
    }
}

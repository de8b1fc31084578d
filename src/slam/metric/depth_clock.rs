//! How a scale by depth depends on the offset of the depth camera's stamps, which is found only after a while.

use super::depth_moment::{exp, grid};
use crate::geometry::Intrinsics;
use nalgebra::Vector6;

/// Time over which the change of depth is measured, in seconds.
const STEP: f64 = 0.05;
/// Larger changes of log depth over [`STEP`] are those of other surfaces.
const MAX_CHANGE: f64 = 0.2;
/// Minimum number of pixels for a rate.
const MIN_PIXELS: usize = 30;

/// What the offset of depth does to a measured scale.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DepthClock {
    /// The offset that the depth was corrected for, in seconds.
    pub offset: f64,
    /// Change of the mean log depth of a pixel per second, as the camera moved.
    pub rate: f64,
}

impl DepthClock {
    /// What has to be added to a log scale if the offset is `now`.
    pub fn correction(&self, now: f64) -> f64 {
        -self.rate * (now - self.offset)
    }
}

/// Change per second of the mean log depth at the pixels of a depth image of `width × height`, for a camera of this
/// velocity: each point is compared to the image where the camera sees it a moment later. 0 if there are too few.
pub fn rate(
    metres: &[f32],
    (width, height): (usize, usize),
    camera: &Intrinsics,
    velocity: &Vector6<f64>,
) -> f64 {
    let later_from_now = exp(&(velocity * -STEP));
    let depth_at = |u: usize, v: usize| {
        let z = metres.get(v * width + u).copied().map(f64::from)?;
        (z > 0.0 && z.is_finite()).then_some(z)
    };
    let change = |(u, v): (usize, usize)| {
        let point = camera.ray(u as f64, v as f64) * depth_at(u, v)?;
        let later = later_from_now.transform(&point);
        let at = camera.project(&later).map(f64::round);
        let inside = at.x >= 0.0 && at.y >= 0.0 && at.x < width as f64 && at.y < height as f64;
        let there = depth_at(at.x as usize, at.y as usize).filter(|_| inside && later.z > 0.0)?;
        Some((later.z / there).ln()).filter(|change| change.abs() < MAX_CHANGE)
    };
    let (sum, count) = grid((width, height))
        .filter_map(change)
        .fold((0.0, 0), |(sum, count), change| (sum + change, count + 1));
    match count >= MIN_PIXELS {
        true => sum / count as f64 / STEP,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (usize, usize) = (160, 120);
    const CAMERA: Intrinsics = Intrinsics {
        fx: 120.0,
        fy: 120.0,
        cx: 79.5,
        cy: 59.5,
    };

    /// Depth of the plane `n·p = d`, as the camera sees it after moving by `Exp(twist)`.
    fn plane(n: [f64; 3], d: f64, twist: &Vector6<f64>) -> Vec<f32> {
        let n = nalgebra::Vector3::from(n);
        let moved = exp(twist);
        let seen = moved.rotation.inverse() * n;
        let distance = d - n.dot(&moved.translation);
        let pixels = (0..SIZE.1).flat_map(|v| (0..SIZE.0).map(move |u| (u, v)));
        pixels
            .map(|(u, v)| (distance / seen.dot(&CAMERA.ray(u as f64, v as f64))) as f32)
            .collect()
    }

    fn mean_log(metres: &[f32]) -> f64 {
        let used = grid(SIZE).filter_map(|(u, v)| metres.get(v * SIZE.0 + u));
        let logs: Vec<f64> = used.map(|z| f64::from(*z).ln()).collect();
        logs.iter().sum::<f64>() / logs.len() as f64
    }

    #[test]
    fn it_is_the_derivative_of_mean_log_depth() {
        let still = Vector6::zeros();
        for (n, d, velocity) in [
            ([0.0, 0.0, 1.0], 2.0, [0.0, 0.0, 0.5, 0.0, 0.0, 0.0]),
            ([0.2, -0.4, 0.9], 3.0, [0.4, -0.2, -0.3, 0.1, -0.2, 0.3]),
            ([-0.5, 0.1, 0.8], 1.5, [-0.3, 0.1, 0.0, -0.1, 0.3, 0.0]),
        ] {
            let velocity = Vector6::from(velocity);
            let h = 1e-3;
            let [before, after] = [-h, h].map(|t| mean_log(&plane(n, d, &(velocity * t))));
            let expected = (after - before) / (2.0 * h);
            let found = rate(&plane(n, d, &still), SIZE, &CAMERA, &velocity);
            assert!(
                (found - expected).abs() < 0.05 * expected.abs() + 0.005,
                "{found} for {expected}"
            );
        }
    }

    #[test]
    fn depth_with_holes_and_noise_gives_it_too_and_too_little_gives_none() {
        let velocity = Vector6::from([0.0, 0.0, 0.5, 0.0, 0.0, 0.0]);
        let whole = plane([0.0, 0.0, 1.0], 2.0, &Vector6::zeros());
        let mut state = 7_u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 8) / f64::from(1 << 24)
        };
        let noisy = |z: f32| match draw() < 0.3 {
            true => 0.0,
            false => z * (1.0 + 0.05 * (2.0 * draw() - 1.0)) as f32,
        };
        let noisy: Vec<f32> = whole.iter().copied().map(noisy).collect();
        let found = rate(&noisy, SIZE, &CAMERA, &velocity);
        assert!((found + 0.25).abs() < 0.05, "{found}");
        for nothing in [
            vec![0.0; whole.len()],
            vec![f32::NAN; whole.len()],
            Vec::new(),
        ] {
            assert_eq!(rate(&nothing, SIZE, &CAMERA, &velocity), 0.0);
        }
    }

    #[test]
    fn late_depth_of_a_camera_that_approaches_is_too_large() {
        // Depth is 20 ms older than its frame: it is larger by 20 ms · 0.5 /s.
        let clock = DepthClock {
            offset: 0.0,
            rate: -0.5,
        };
        assert!((clock.correction(-0.02) + 0.01).abs() < 1e-12);
        assert_eq!(clock.correction(0.0), 0.0);
    }
}

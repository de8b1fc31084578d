use super::super::depth_room::{LIMITS, depth_of, normal, pose, random};
use super::*;

const SIZE: (usize, usize) = (516, 390);
const BLOCKS: usize = 64;

fn camera() -> Intrinsics {
    Intrinsics {
        fx: 400.0,
        fy: 410.0,
        cx: 255.5,
        cy: 191.5,
    }
}

/// The depth of the plane `normal · P = 1`.
fn plane(normal: Vector3<f64>) -> Vec<f32> {
    let pixel = |n: usize| {
        let ray = camera().ray((n % SIZE.0) as f64, (n / SIZE.0) as f64);
        (1.0 / normal.dot(&ray)) as f32
    };
    (0..SIZE.0 * SIZE.1).map(pixel).collect()
}

fn fit(metres: &[f32]) -> Surface {
    let mut surface = Surface::new(SIZE, camera(), LIMITS, BLOCKS);
    surface.fit(metres);
    surface
}

fn tilted() -> Vector3<f64> {
    Vector3::new(0.1, -0.15, 0.4)
}

/// Unit vectors across a normal.
fn tangents(normal: &Vector3<f64>) -> (Vector3<f64>, Vector3<f64>) {
    let across = normal.cross(&Vector3::x()).normalize();
    (across, normal.cross(&across))
}

#[test]
fn a_plane_is_found_in_every_window() {
    let surface = fit(&plane(tilted()));
    assert_eq!(surface.capacity(), 57 * 43, "blocks of 9 × 9 pixels");
    assert_eq!(surface.planes().count(), surface.capacity());
    for plane in surface.planes() {
        let normal = plane.normal / plane.distance;
        assert!((normal - tilted()).norm() < 2e-4, "{plane:?}");
        assert!((tilted().dot(&plane.point) - 1.0).abs() < 1e-6, "{plane:?}");
    }
    let point = camera().ray(300.0, 100.0) * 2.0;
    let near = surface.plane_at(&point).expect("a plane");
    let at = camera().project(&near.point);
    assert!((at.x - 300.0).abs() < 9.0 && (at.y - 100.0).abs() < 9.0);
    for outside in [
        camera().ray(-1.0, 100.0),
        camera().ray(600.0, 100.0),
        camera().ray(300.0, 400.0),
        -camera().ray(300.0, 100.0),
        Vector3::repeat(f64::NAN),
        Vector3::zeros(),
    ] {
        assert!(surface.plane_at(&outside).is_none(), "{outside}");
    }
}

#[test]
fn noise_has_a_mean_of_zero_in_the_planes() {
    for sigma in [0.05, 0.1] {
        let mut metres = plane(tilted());
        for (n, z) in metres.iter_mut().enumerate() {
            *z *= (1.0 + sigma * normal(n)) as f32;
        }
        let surface = fit(&metres);
        let count = surface.planes().count();
        // Chance refuses 4.4 % of the windows (χ² with six degrees of freedom).
        assert!(count > surface.capacity() * 95 / 100, "{count}");
        let off: Vec<_> = surface
            .planes()
            .map(|plane| tilted().dot(&plane.point) - 1.0)
            .collect();
        let mean = off.iter().sum::<f64>() / count as f64;
        let rms = (off.iter().map(|off| off * off).sum::<f64>() / count as f64).sqrt();
        // 729 pixels a window; a fit of 1/z would be wrong by the square of sigma.
        assert!(mean.abs() < 0.1 * sigma * sigma, "{mean}");
        assert!(rms < 1.2 * sigma / 27.0, "{rms}");
        // Normals err as their covariances say.
        let chi2 = surface.planes().map(|plane| {
            let off = plane.normal - tilted().normalize();
            let (across, along) = tangents(&plane.normal);
            let basis = nalgebra::Matrix3x2::from_columns(&[across, along]);
            let covariance = basis.transpose() * plane.tilt * basis;
            let off = basis.transpose() * off;
            off.dot(&(covariance.try_inverse().expect("a covariance") * off))
        });
        let mean = chi2.sum::<f64>() / count as f64;
        assert!(mean > 1.8 && mean < 2.0 + 4.0 * sigma, "{mean}");
    }
}

#[test]
fn few_pixels_show_planes() {
    let mut metres = plane(tilted());
    for (n, z) in metres.iter_mut().enumerate() {
        if random(n) > 0.03 {
            *z = 0.0;
        }
    }
    let surface = fit(&metres);
    let count = surface.planes().count();
    assert!(count > surface.capacity() * 9 / 10, "{count}");
    for plane in surface.planes() {
        assert!((tilted().dot(&plane.point) - 1.0).abs() < 1e-6, "{plane:?}");
        let normal = plane.normal / plane.distance;
        assert!((normal - tilted()).norm() < 1e-3, "{plane:?}");
    }
}

/// A step of a sixteenth is hidden in the noise of pixels, whose variance it raises by a third.
#[test]
fn noise_does_not_hide_an_edge_between_blocks() {
    let mut metres = plane(Vector3::new(0.0, 0.0, 0.5));
    for (n, z) in metres.iter_mut().enumerate() {
        if n % SIZE.0 >= 252 {
            *z *= 1.0625;
        }
        *z *= (1.0 + 0.05 * normal(n)) as f32;
    }
    let surface = fit(&metres);
    let found = |u: f64| planes_of_column(&surface, u);
    // The windows of the blocks on both sides of the edge have a third beyond it.
    for (u, min, max) in [
        (238.0, 0.8, 1.0),
        (247.0, 0.0, 0.1),
        (256.0, 0.0, 0.1),
        (265.0, 0.8, 1.0),
    ] {
        assert!((min..=max).contains(&found(u)), "{u}: {}", found(u));
    }
}

/// The part of the blocks at this column of pixels that have a plane.
fn planes_of_column(surface: &Surface, u: f64) -> f64 {
    let rows = SIZE.1 / 9;
    let at = |row: usize| camera().ray(u, 9.0 * row as f64 + 4.0) * 2.0;
    let planes = (0..rows).filter(|row| surface.plane_at(&at(*row)).is_some());
    planes.count() as f64 / rows as f64
}

#[test]
fn a_window_with_an_edge_has_no_plane() {
    let edge = |sigma: f64| {
        let mut metres = plane(Vector3::new(0.0, 0.0, 0.5));
        for (n, z) in metres.iter_mut().enumerate() {
            if n % SIZE.0 >= 258 {
                *z *= 1.5;
            }
            *z *= (1.0 + sigma * normal(n)) as f32;
        }
        fit(&metres)
    };
    for sigma in [0.0, 0.05] {
        let surface = edge(sigma);
        let found = |u: f64| planes_of_column(&surface, u);
        assert_eq!(found(258.0), 0.0, "{sigma}");
        // Windows are larger if there is noise.
        assert_eq!(found(248.0) == 0.0, sigma > 0.0);
        assert!(found(235.0).min(found(285.0)) > 0.8, "{sigma}");
    }
    // The corners of a room.
    let surface = fit(&depth_of(&pose(0.0), SIZE, &camera()));
    for plane in surface.planes() {
        let corner = (pose(0.0) * nalgebra::Point3::from(plane.point))
            .coords
            .abs();
        let wall = (corner - Vector3::new(3.0, 1.5, 3.0)).abs().min();
        assert!(wall < 0.03, "{corner}");
    }
}

#[test]
fn what_was_not_measured_is_left_out() {
    for invalid in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut metres = plane(tilted());
        for (n, z) in metres.iter_mut().enumerate() {
            if random(n) < 0.5 || n / SIZE.0 < 100 {
                *z = invalid;
            }
        }
        let surface = fit(&metres);
        assert!(surface.planes().count() > 30 * 57);
        for plane in surface.planes() {
            assert!((tilted().dot(&plane.point) - 1.0).abs() < 1e-6, "{invalid}");
        }
        let nothing = fit(&vec![invalid; SIZE.0 * SIZE.1]);
        assert_eq!(nothing.planes().count(), 0);
    }
    // Pixels along a line, such as a lidar's, have no plane.
    for along in [0, 1] {
        let mut metres = plane(tilted());
        for (n, z) in metres.iter_mut().enumerate() {
            if [n % SIZE.0, n / SIZE.0][along] % 60 != 30 {
                *z = 0.0;
            }
        }
        assert_eq!(fit(&metres).planes().count(), 0, "{along}");
    }
    let mut diagonal = plane(tilted());
    for (n, z) in diagonal.iter_mut().enumerate() {
        if n % SIZE.0 != n / SIZE.0 {
            *z = 0.0;
        }
    }
    assert_eq!(fit(&diagonal).planes().count(), 0);
}

#[test]
fn a_surface_keeps_nothing_of_an_image_before() {
    let mut surface = fit(&plane(tilted()));
    surface.fit(&vec![0.0; SIZE.0 * SIZE.1]);
    assert_eq!(surface.planes().count(), 0);
}

/// Noise leaves the pixels of a near or far wall that are within the limits.
#[test]
fn what_noise_truncates_has_no_planes() {
    let limits = DepthLimits {
        min: 1.0,
        max: 8.0,
        ..LIMITS
    };
    // The sensor measures from `near` to `far`.
    let within = |depth: f32, sigma: f64, near: f32, far: f32| {
        let mut metres = plane(Vector3::new(0.0, 0.0, 1.0 / f64::from(depth)));
        for (n, z) in metres.iter_mut().enumerate() {
            *z *= (1.0 + sigma * normal(n)) as f32;
            if !(near..far).contains(z) {
                *z = 0.0;
            }
        }
        let mut surface = Surface::new(SIZE, camera(), limits, BLOCKS);
        surface.fit(&metres);
        surface.planes().count()
    };
    let count = |depth, sigma| within(depth, sigma, 1.0, 8.0);
    assert!(count(7.5, 0.0) > 2000 && count(1.05, 0.0) > 2000);
    assert!(count(6.0, 0.05) > 2000 && count(1.5, 0.05) > 2000);
    assert_eq!((count(7.5, 0.05), count(1.05, 0.05)), (0, 0));
    // What noise takes beyond the limits is there.
    let whole = |depth, sigma| within(depth, sigma, 0.5, 12.0);
    assert!(whole(7.5, 0.05) > 2000 && whole(1.05, 0.05) > 2000);
}

#[test]
fn a_narrow_image_has_blocks_as_wide_as_it_is() {
    for size in [(16, 2048), (2048, 16), (1, 1)] {
        let mut surface = Surface::new(size, camera(), LIMITS, BLOCKS);
        surface.fit(&vec![2.0; size.0 * size.1]);
        assert_eq!(surface.capacity(), size.0.max(size.1) / size.0.min(size.1));
        let planes = surface.planes().count();
        assert_eq!(planes == surface.capacity(), size.0 > 1, "{size:?}");
    }
}

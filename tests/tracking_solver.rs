//! Tracking: poses recovered from matched pointmaps.

mod tracking_common;

use mast3r_slam::compute::tracking::{PoseSolver, Residual};
use mast3r_slam::config::TrackingConfig;
use mast3r_slam::geometry::Sim3;
use tracking_common::{Pair, Random, distance, intrinsics};

const SIZE: (usize, usize) = (101, 75);

fn residuals() -> [Residual; 2] {
    [
        Residual::Rays,
        Residual::Calibrated(intrinsics(SIZE.0, SIZE.1)),
    ]
}

/// Stops only when nothing moves any more.
fn exhaustive() -> TrackingConfig {
    TrackingConfig {
        rel_error: 0.0,
        delta_norm: 1e-10,
        ..TrackingConfig::default()
    }
}

#[test]
fn an_exact_pose_is_recovered_from_identity() {
    for residual in residuals() {
        let truth = Sim3::exp(&Random(1).tangent(0.1));
        let pair = Pair::exact(SIZE.0, SIZE.1, truth);
        let mut solver = PoseSolver::new(SIZE.0 * SIZE.1);
        let found = solver
            .solve(
                &pair.correspondences(),
                residual,
                &Sim3::identity(),
                &exhaustive(),
            )
            .unwrap();
        assert!(found.converged, "{found:?}");
        assert!(
            distance(&found.keyframe_from_frame, &truth) < 1e-6,
            "{residual:?} {found:?}"
        );
    }
}

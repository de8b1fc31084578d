//! Global solve: keyframe poses recovered from matches.

mod tracking_common;

use mast3r_slam::compute::global::{GlobalResidual, GlobalSolver};
use mast3r_slam::config::LocalOptConfig;
use mast3r_slam::geometry::Sim3;
use tracking_common::{Graph, distance};

const SIZE: (usize, usize) = (53, 41);

#[test]
fn exact_poses_are_recovered() {
    for residual in [GlobalResidual::Rays, GlobalResidual::Points] {
        let graph = Graph::new(SIZE.0, SIZE.1, 6, &Graph::chain(6, 9), 0.05);
        let mut poses = vec![Sim3::identity(); 6];
        let params = LocalOptConfig {
            max_iters: 50,
            rel_error: 0.0,
            ..LocalOptConfig::default()
        };
        let report = GlobalSolver::new()
            .solve(
                &graph.keyframes(),
                &graph.edges(),
                &[],
                residual,
                SIZE.0,
                SIZE.1,
                &params,
                &mut poses,
            )
            .unwrap();
        for (p, t) in poses.iter().zip(&graph.truth) {
            assert!(
                distance(p, t) < 1e-5,
                "{residual:?} {} {report:?}",
                distance(p, t)
            );
        }
    }
}

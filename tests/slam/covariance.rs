//! The reported covariance grows with the noise and is consistent with the error.

use mast3r_slam::map::TrackingState;
use mast3r_slam::slam::{Covariance6, Frame, Pace};
use testkit::room::walk::{config, images, stamp};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, square_walk};

const FRAMES: usize = 8;

/// Covariances of the frames that are tracked against the first keyframe, and how far each camera is from where
/// the truth has it, in metres.
fn walked(noise: f64, calibrated: bool) -> Vec<(Covariance6, f64)> {
    let poses = square_walk(90, 1.0)[..FRAMES].to_vec();
    let spoil = Spoil {
        noise,
        ..Spoil::default()
    };
    let backend = RoomBackend::new(SIZE, poses.clone(), spoil);
    let images = images(&backend, (0..FRAMES).map(Some));
    let camera = Some(intrinsics(SIZE));
    let mut config = config(calibrated);
    // The first keyframe stays the one that is tracked against.
    config.tracking.match_frac_thresh = 0.0;
    let mut system = cpu_slam(config, Pace::EveryFrame, Box::new(backend), None, camera);
    let mut all = Vec::new();
    for (k, image) in images.iter().enumerate() {
        let input = Frame {
            index: k,
            stamp: stamp(k),
            image: image.into(),
        };
        let record = system.process(&input).expect("frame");
        if k == 0 {
            assert_eq!(record.state, TrackingState::Initialising);
            assert_eq!(record.covariance, None, "nothing was solved");
            continue;
        }
        assert_eq!(record.state, TrackingState::Tracking, "frame {k}");
        let covariance = record.covariance.expect("a covariance");
        let truth = poses[0].inverse() * poses[k];
        let off = (record.world_from_camera.translation - truth.translation).norm();
        assert_eq!(record.keyframe, None, "frame {k}");
        all.push((covariance, off));
    }
    all
}

#[test]
fn it_is_symmetric_positive_grows_with_noise_and_holds_the_error() {
    for calibrated in [false, true] {
        let mut before = 0.0;
        for noise in [0.002, 0.01, 0.03] {
            let all = walked(noise, calibrated);
            let mut sum = 0.0;
            for (covariance, off) in &all {
                assert!(covariance.iter().all(|v| v.is_finite()));
                assert_eq!(*covariance, covariance.transpose());
                assert!(covariance.cholesky().is_some(), "{covariance}");
                let position = covariance.fixed_view::<3, 3>(0, 0).trace();
                // Three standard deviations of the largest axis at most.
                assert!(
                    off.powi(2) <= 9.0 * position,
                    "calibrated {calibrated}, noise {noise}: {off} m, deviation {} m",
                    position.sqrt()
                );
                sum += position;
            }
            let mean = sum / all.len() as f64;
            println!(
                "calibrated {calibrated}, noise {noise}: deviation {:.4} m, largest error {:.4} m",
                mean.sqrt(),
                all.iter().map(|(_, off)| *off).fold(0.0, f64::max)
            );
            assert!(mean > before, "noise {noise}: {mean} after {before}");
            before = mean;
        }
    }
}

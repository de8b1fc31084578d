//! Walks through the room: what the system is shown, and what is made of it.

use super::RoomBackend;
use mast3r_slam::compute::retrieval::{BuildOptions, RetrievalModel};
use mast3r_slam::config::{Config, Threads};
use mast3r_slam::eval::{self, Alignment, Evaluation};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::Backend;
use mast3r_slam::map::{MapSnapshot, TrackingState};
use mast3r_slam::slam::{Frame, Slam};
use mast3r_slam::time::Stamp;
use mast3r_slam::trajectory::StampedPose;
use std::sync::Arc;

pub fn config(calibrated: bool) -> Config {
    let mut config = Config {
        use_calib: calibrated,
        threads: Threads::Single,
        ..Config::default()
    };
    // The room's descriptors all have confidence 4.
    config.reloc.strict = false;
    without_economy(&mut config);
    config
}

/// Turns off the rules that keep the map small, for tests that count keyframes and edges.
pub fn without_economy(config: &mut Config) {
    config.economy.reuse = false;
    config.economy.remove = false;
    config.local_opt.skeleton = false;
    config.local_opt.max_edges = 0;
}

pub fn stamp(k: usize) -> Stamp {
    Stamp {
        nanos: 1_000_000_000 + 33_000_000 * k as i64,
    }
}

/// A vocabulary learnt from the room itself.
pub fn vocabulary(backend: &mut RoomBackend) -> Arc<RetrievalModel> {
    let shape = backend.shape().clone();
    let features: Vec<Vec<f32>> = (0..backend.frames())
        .step_by(3)
        .map(|k| {
            let mut f = vec![0.0; shape.tokens * shape.feature_dim];
            let image = backend.image(k);
            backend.encode(&image, &mut f).expect("encode");
            f
        })
        .collect();
    let options = BuildOptions {
        clusters: 256,
        ..BuildOptions::default()
    };
    Arc::new(RetrievalModel::build(&features, shape.feature_dim, &options).expect("vocabulary"))
}

/// Images of the frames named by `order` (`None`: a black image).
pub fn images(
    backend: &RoomBackend,
    order: impl IntoIterator<Item = Option<usize>>,
) -> Vec<RgbImage> {
    let image = |frame: Option<usize>| match frame {
        Some(frame) => backend.image(frame),
        None => backend.black_image(),
    };
    order.into_iter().map(image).collect()
}

/// Shows frame `k` to the system.
pub fn show(system: &mut Slam, k: usize, image: &RgbImage) {
    let input = Frame {
        index: k,
        stamp: stamp(k),
        image: image.into(),
    };
    system.process(&input).expect("frame");
}

/// Shows `images` to the system; the map that it makes of them.
pub fn walk(system: &mut Slam, images: &[RgbImage]) -> MapSnapshot {
    for (k, image) in images.iter().enumerate() {
        show(system, k, image);
    }
    system.complete().expect("finish");
    system.snapshot()
}

/// Root mean square distance of the tracked frames from the truth after a similarity, metres.
pub fn ate(snapshot: &MapSnapshot, truth: &[Sim3]) -> f64 {
    evaluation(snapshot, truth, Alignment::Sim3).ate.rmse
}

/// The tracked frames against the truth.
pub fn evaluation(snapshot: &MapSnapshot, truth: &[Sim3], alignment: Alignment) -> Evaluation {
    let estimate: Vec<StampedPose> = snapshot
        .frames
        .iter()
        .filter(|f| f.state != TrackingState::Lost)
        .map(|f| StampedPose {
            stamp: f.stamp,
            world_from_camera: f.world_from_camera,
        })
        .collect();
    let truth: Vec<StampedPose> = truth
        .iter()
        .enumerate()
        .map(|(k, pose)| StampedPose {
            stamp: stamp(k),
            world_from_camera: *pose,
        })
        .collect();
    let options = eval::Options {
        alignment,
        ..eval::Options::default()
    };
    eval::evaluate(&estimate, &truth, &options).expect("evaluation")
}

pub fn lost(snapshot: &MapSnapshot) -> usize {
    snapshot
        .frames
        .iter()
        .filter(|f| f.state == TrackingState::Lost)
        .count()
}

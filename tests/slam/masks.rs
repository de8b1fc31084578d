//! A robot that sees itself: its body moves with the camera.

use mast3r_slam::compute::device::DeviceError;
use mast3r_slam::config::Config;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::Backend;
use mast3r_slam::map::MapSnapshot;
use mast3r_slam::slam::{MappingCounts, Pace, Slam};
use testkit::room::body::{BODY, Body, grey, mask};
use testkit::room::walk::{ate, config, images, vocabulary, walk};
use testkit::room::{RoomBackend, SIZE, Spoil, cpu_slam, intrinsics, square_walk};

const FRAMES: usize = 60;

fn configured(calibrated: bool, masks: bool) -> Config {
    let mut config = config(calibrated);
    config.tracking.masks = masks;
    config.local_opt.judge_loops = false;
    config
}

fn system(config: Config, sees_itself: bool) -> (Slam, Vec<RgbImage>) {
    let spoil = Spoil {
        noise: 0.01,
        outliers: 0.05,
        bias: 0.0,
    };
    let mut room = RoomBackend::new(SIZE, square_walk(FRAMES, 0.6), spoil);
    let (places, images) = (vocabulary(&mut room), images(&room, (0..FRAMES).map(Some)));
    let backend: Box<dyn Backend> = match sees_itself {
        true => Box::new(Body(Box::new(room))),
        false => Box::new(room),
    };
    let camera = Some(intrinsics(SIZE));
    let slam = cpu_slam(config, Pace::EveryFrame, backend, Some(places), camera);
    (slam, images)
}

struct Run {
    error: f64,
    map: MapSnapshot,
    counts: MappingCounts,
}

fn run(calibrated: bool, sees_itself: bool, masked: bool) -> Run {
    let (mut slam, images) = system(configured(calibrated, masked), sees_itself);
    if masked {
        let mask = mask();
        slam.set_mask(Some(&grey(&mask, SIZE))).expect("a mask");
    }
    let map = walk(&mut slam, &images);
    Run {
        error: ate(&map, &square_walk(FRAMES, 0.6)),
        counts: slam.mapping_counts(),
        map,
    }
}

#[test]
fn a_masked_body_moves_no_pose_and_is_in_no_pointmap() {
    for calibrated in [false, true] {
        // The same half of the room, without a body.
        let alone = run(calibrated, false, true);
        let masked = run(calibrated, true, true);
        let unmasked = run(calibrated, true, false);
        let errors = [&alone, &masked, &unmasked].map(|run| run.error);
        assert!(errors[1] <= 1.25 * errors[0], "{errors:?}");
        assert!(errors[2] > 5.0 * errors[1], "the body is seen: {errors:?}");
        assert!(masked.counts.failed_solves == 0 && masked.map.edges.len() > 2);
        for frame in &masked.map.frames {
            // A fraction of the visible pixels: what is hidden matches nothing.
            assert!(frame.unique_fraction <= 1.0, "frame {}", frame.index);
        }
        for keyframe in &masked.map.keyframes {
            let view = keyframe.view();
            let (scene, body) = view.confidence.split_at(BODY * SIZE.0);
            assert!(body.iter().all(|c| *c == 0.0), "keyframe {}", keyframe.id);
            assert!(scene.iter().all(|c| *c > 0.0), "keyframe {}", keyframe.id);
        }
    }
}

#[test]
fn a_mask_that_shows_everything_changes_nothing() {
    let bits = |masks: bool, set: bool| {
        let (mut slam, images) = system(configured(true, masks), false);
        if set {
            let white = vec![255; SIZE.0 * SIZE.1];
            slam.set_mask(Some(&grey(&white, SIZE))).expect("a mask");
        }
        let map = walk(&mut slam, &images);
        let poses = map
            .frames
            .iter()
            .flat_map(|f| f.world_from_camera.to_array());
        poses.map(f64::to_bits).collect::<Vec<u64>>()
    };
    let without = bits(false, false);
    assert!(bits(true, false) == without && bits(true, true) == without);
}

#[test]
fn a_mask_may_change_and_go_while_keyframes_keep_what_was_hidden() {
    let (mut slam, images) = system(configured(false, true), true);
    let mask = mask();
    slam.set_mask(Some(&grey(&mask, SIZE))).expect("a mask");
    let (first, rest) = images.split_at(2);
    let show = |slam: &mut Slam, images: &[RgbImage], from: usize| {
        for (k, image) in images.iter().enumerate() {
            let frame = mast3r_slam::slam::Frame {
                index: from + k,
                stamp: testkit::room::walk::stamp(from + k),
                image: image.into(),
            };
            slam.process(&frame).expect("frame");
        }
    };
    show(&mut slam, first, 0);
    slam.set_mask(None).expect("no mask");
    show(&mut slam, &rest[..1], 2);
    slam.complete().expect("finish");
    let view = slam.snapshot().keyframes[0].view();
    assert!(view.confidence[BODY * SIZE.0..].iter().all(|c| *c == 0.0));
}

#[test]
fn bad_masks_are_refused_and_the_previous_one_stays() {
    let (mut slam, _) = system(configured(false, false), false);
    let white = vec![255; SIZE.0 * SIZE.1];
    let refused = slam.set_mask(Some(&grey(&white, SIZE)));
    assert!(matches!(refused, Err(DeviceError::NoMasks)), "{refused:?}");
    slam.set_mask(None).expect("nothing to hide");

    let (mut slam, images) = system(configured(false, true), false);
    let black = vec![0; SIZE.0 * SIZE.1];
    slam.set_mask(Some(&grey(&black, SIZE))).expect("a mask");
    for (size, bytes) in [((SIZE.0 / 2, SIZE.1), SIZE.0 / 2 * SIZE.1), (SIZE, 7)] {
        let refused = slam.set_mask(Some(&grey(&white[..bytes], size)));
        assert!(matches!(refused, Err(DeviceError::Image(_))), "{refused:?}");
    }
    // Everything is still hidden: no map can be started.
    let map = walk(&mut slam, &images[..3]);
    assert!(map.keyframes.is_empty());
}

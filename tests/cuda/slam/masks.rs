//! Hidden pixels: the GPU makes the CPU's map of what is left.

use super::{On, SPOIL, Walked, compare, system};
use mast3r_slam::compute::device::DeviceError;
use testkit::room::body::{BODY, Body, grey, mask};
use testkit::room::walk::{config, images, vocabulary, walk};
use testkit::room::{RoomBackend, SIZE, Spoil, square_walk};

#[test]
fn a_masked_body_moves_no_pose_as_on_the_cpu() {
    let Some(context) = crate::cuda() else { return };
    let poses = square_walk(60, 0.6);
    let hidden = mask();
    // Half of the image loses its way with the bias of `SPOIL`, on the CPU as well.
    let spoil = Spoil { bias: 0.0, ..SPOIL };
    for calibrated in [false, true] {
        let mut config = config(calibrated);
        config.tracking.masks = true;
        let [cpu, gpu] = [On::Cpu, On::Gpu(&context)].map(|on| {
            let mut room = RoomBackend::new(SIZE, poses.clone(), spoil);
            let (places, images) = (vocabulary(&mut room), images(&room, (0..60).map(Some)));
            let body = Box::new(Body(Box::new(room)));
            let mut system = system(&on, body, &config, Some(places));
            system.set_mask(Some(&grey(&hidden, SIZE))).expect("a mask");
            let map = walk(&mut system, &images);
            let counts = system.mapping_counts();
            Walked { map, counts }
        });
        for keyframe in &gpu.map.keyframes {
            let view = keyframe.view();
            let (_, body) = view.confidence.split_at(BODY * SIZE.0);
            assert!(body.iter().all(|c| *c == 0.0), "keyframe {}", keyframe.id);
        }
        compare(
            &format!("masked, calibrated {calibrated}"),
            &cpu,
            &gpu,
            &poses,
        );
    }
}

#[test]
fn a_mask_needs_masks_and_everything_hidden_is_no_map() {
    let Some(context) = crate::cuda() else { return };
    for masks in [false, true] {
        let mut config = config(false);
        config.tracking.masks = masks;
        let room = RoomBackend::new(SIZE, square_walk(60, 0.6), SPOIL);
        let images = images(&room, (0..3).map(Some));
        let mut system = system(&On::Gpu(&context), Box::new(room), &config, None);
        let black = vec![0; SIZE.0 * SIZE.1];
        let set = system.set_mask(Some(&grey(&black, SIZE)));
        match masks {
            true => {
                set.expect("a mask");
                assert!(walk(&mut system, &images).keyframes.is_empty());
            }
            false => assert!(matches!(set, Err(DeviceError::NoMasks)), "{set:?}"),
        }
    }
}

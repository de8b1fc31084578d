//! Invalid network outputs and their handling.

use super::{On, SPOIL, Walked, compare, decisions, run, system};
use crate::cuda;
use mast3r_slam::config::Loops;
use mast3r_slam::inference::{Backend, PairOutput};
use mast3r_slam::map::TrackingState;
use mast3r_slam::slam::Frame;
use testkit::room::rig::{Meddled, Mood, Valve, Valved};
use testkit::room::walk::{config, images, lost, stamp};
use testkit::room::{RoomBackend, SIZE, Spoil, square_walk};

/// NaN, infinities, zeros and 1e30 on a few per cent of the pixels, in every output.
#[test]
fn a_poisoned_output_makes_the_cpu_s_map() {
    let Some(context) = cuda() else { return };
    let poses = square_walk(90, 1.0)[..30].to_vec();
    // With less of a bias between the two views, the camera is never lost.
    let spoil = Spoil {
        bias: 0.01,
        ..SPOIL
    };
    for calibrated in [false, true] {
        let room = RoomBackend::new(SIZE, poses.clone(), spoil);
        let images = images(&room, (0..poses.len()).map(Some));
        let [cpu, gpu] = [On::Cpu, On::Gpu(&context)].map(|on| {
            let poisoned = Valved {
                room: room.share(),
                valve: Valve::new(Mood::Works),
                mappers: false,
                poison: true,
            };
            run(&on, Box::new(poisoned), &images, &config(calibrated), None)
        });
        assert_eq!(lost(&cpu.map), 0);
        compare("poisoned", &cpu, &gpu, &poses);
    }
}

/// From the fourth frame on every output is one value: the run says what is the matter where the CPU
/// says it, searches no longer, and keeps what was mapped before.
#[test]
fn a_network_that_died_is_named_as_on_the_cpu() {
    const DIES: u8 = 77;
    let Some(context) = cuda() else { return };
    let poses = square_walk(60, 0.6)[..6].to_vec();
    for value in [0.0, f32::NAN, f32::INFINITY] {
        let [(cpu, of_cpu), (gpu, of_gpu)] = [On::Cpu, On::Gpu(&context)].map(|on| {
            let mut dead = false;
            let meddle = move |mark: u8, out: &mut PairOutput| {
                dead |= mark == DIES;
                if dead {
                    for view in [&mut out.view1, &mut out.view2] {
                        view.points.fill(value);
                        view.confidence.fill(value);
                        view.descriptors.fill(value);
                        view.descriptor_confidence.fill(value);
                    }
                }
                Ok(())
            };
            let room = RoomBackend::new(SIZE, poses.clone(), SPOIL);
            let mut images = images(&room, (0..poses.len()).map(Some));
            images[3].data[3] = DIES;
            let backend = Meddled {
                room,
                mark: 0,
                meddle,
            };
            let mut config = config(false);
            config.loops = Loops::Off;
            let mut system = system(&on, Box::new(backend), &config, None);
            let error = (0..40).find_map(|k| {
                let input = Frame {
                    index: k,
                    stamp: stamp(k),
                    image: (&images[k.min(4)]).into(),
                };
                let error = system.process(&input).err()?;
                Some((k, error.to_string()))
            });
            system.complete().expect("finish");
            let map = system.snapshot();
            let counts = system.mapping_counts();
            (error.expect("an error"), Walked { map, counts })
        });
        assert_eq!(gpu, cpu, "{value}");
        assert!(gpu.0 < 20, "{gpu:?}");
        crate::assert_same("frames", &decisions(&of_gpu.map), &decisions(&of_cpu.map));
        assert_eq!(of_gpu.map.frames[2].state, TrackingState::Tracking);
        for key in &of_gpu.map.keyframes {
            let view = key.view();
            let mut values = view.points.iter().chain(view.confidence.iter());
            assert!(values.all(|v| v.is_finite()), "keyframe {}", key.id);
        }
    }
}

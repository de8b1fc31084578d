//! Failures while SLAM runs: a failing backend, a dead or slow mapping thread.

use mast3r_slam::compute::device::DeviceError;
use mast3r_slam::config::Threads;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::inference::{InferenceError, PairOutput};
use mast3r_slam::map::{MapSnapshot, TrackingState};
use mast3r_slam::slam::{MapLabel, Pace, SavedMap, SavedMapError, Slam, SlamError, TrackedFrame};
use testkit::room::rig::{Mood, Rig, TOLERANCE, Valve, bits, config, keyframes_of};
use testkit::room::{Spoil, square_walk};

#[test]
fn a_relocalisation_that_fails_midway_is_an_error_and_the_map_stays() {
    for threads in [Threads::Single, Threads::Pipelined] {
        let mut rig = Rig::new(square_walk(60, 0.6), threads, Pace::EveryFrame, Mood::Works);
        let records: Vec<_> = (0..30).map(|k| rig.show(Some(k)).expect("frame")).collect();
        assert_eq!(rig.show(None).expect("black").state, TrackingState::Lost);
        rig.valve.set(Mood::Fails);
        // Seen before, so it has candidates; the first of their edges fails.
        let error = rig.show(Some(28)).expect_err("the network fails");
        assert!(
            matches!(
                error,
                SlamError::Device(DeviceError::Inference(InferenceError::Runtime { .. }))
            ),
            "{threads:?}: {error}"
        );
        rig.system.complete().expect("what was computed stays");
        let map = rig.system.snapshot();
        assert_eq!(
            map.keyframes.len(),
            keyframes_of(records.iter().map(|f| &f.record)),
            "{threads:?}"
        );
        assert!(map.keyframes.len() > 1);
        assert_eq!(map.frames.len(), 32);
        for (k, frame) in map.frames.iter().enumerate() {
            assert_eq!(frame.state == TrackingState::Lost, k >= 30, "frame {k}");
        }
        for key in &map.keyframes {
            // Every frame's pose is composed from the keyframes' present poses.
            let frame = &map.frames[key.frame_index];
            assert_eq!(bits(&frame.world_from_camera), bits(&key.world_from_camera));
            assert!(key.view().confidence.iter().all(|c| c.is_finite()));
        }
    }
}

#[test]
fn a_mapping_thread_that_dies_is_told_at_the_next_frame_and_leaves_its_map() {
    for (mood, message) in [
        (Mood::Fails, "room failed while decoding"),
        (Mood::Panics, "the network fell over"),
    ] {
        let mut rig = Rig::new(
            square_walk(60, 0.6),
            Threads::Pipelined,
            Pace::EveryFrame,
            mood,
        );
        rig.show(Some(0)).expect("frame");
        let mut k = 1;
        // The next keyframe kills the thread. Its own frame, shown again and again, has nothing for
        // the mapper, and tells all the same once the thread has ended.
        loop {
            let record = rig.show(Some(k)).expect("frame");
            if record.keyframe.is_some() {
                break;
            }
            k += 1;
        }
        let error = (0..500).find_map(|_| rig.show(Some(k)).err());
        let error = error.expect("an error").to_string();
        assert!(error.contains(message), "{error}");
        // Going on regardless gives an error, not a wrong map.
        let again = rig.show(Some(0)).expect_err("it has ended").to_string();
        assert!(again.contains("earlier"), "{again}");
        // The map of a mapper that failed can be read and saved.
        let (sender, maps) = std::sync::mpsc::channel::<MapSnapshot>();
        let reply = Box::new(move |map| sender.send(map).expect("the test listens"));
        assert!(rig.system.read_map(reply));
        assert_eq!(maps.recv().expect("a map").keyframes.len(), 2);
        let folder = tempfile::tempdir().expect("a folder");
        let saved = save(&mut rig.system, &folder.path().join("failed.map"));
        assert_eq!(saved.expect("saved").keyframes, 2);
        rig.system.complete().expect("told already");
        assert_eq!(rig.keyframes(), 2);
    }
}

fn save(slam: &mut Slam, path: &std::path::Path) -> Result<SavedMap, SavedMapError> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let reply = Box::new(move |saved| sender.send(saved).expect("the test listens"));
    let label = Box::new(|| Ok(MapLabel::default()));
    assert!(slam.save_map_with(path.to_owned(), label, reply));
    receiver.recv().expect("an answer")
}

#[test]
fn a_mapping_failure_that_no_frame_met_is_told_by_finish() {
    let mut rig = Rig::new(
        square_walk(60, 0.6),
        Threads::Pipelined,
        Pace::EveryFrame,
        Mood::Waits,
    );
    let mut k = 0;
    while keyframes_of(&rig.system.snapshot().frames) < 3 {
        rig.show(Some(k)).expect("frame");
        k += 1;
    }
    rig.valve.set(Mood::Fails);
    let error = rig.system.complete().expect_err("the edge failed");
    assert!(
        matches!(error, SlamError::Device(DeviceError::Inference(_))),
        "{error}"
    );
    // Keyframe 0, and keyframe 1, whose edge failed; keyframe 2 was never looked at.
    assert_eq!(rig.keyframes(), 2);
    // Its frames keep their poses all the same.
    let map = rig.system.snapshot();
    assert!(map.frames.iter().all(|f| f.state != TrackingState::Lost));
    assert_ne!(
        bits(&map.frames[k - 1].world_from_camera),
        bits(&Sim3::identity())
    );
}

#[test]
fn a_tracking_network_that_fails_leaves_the_map_with_all_that_was_fused() {
    let run = |frames: usize| {
        let spoil = Spoil {
            noise: 0.01,
            ..Spoil::default()
        };
        let walk = square_walk(300, 1.0)[..4].to_vec();
        let mut passes = 0;
        let mut rig = Rig::meddled(walk, spoil, config(Threads::Single), move |_, _| {
            passes += 1;
            match passes {
                ..=3 => Ok(()),
                _ => Valve::new(Mood::Fails).pass().map(|_| ()),
            }
        });
        let good = (0..frames).filter(|&k| rig.show(Some(k)).is_ok()).count();
        rig.system.complete().expect("finish");
        (good, rig.system.snapshot())
    };
    // Frame 3 meets a network that fails; the map is that of the three frames before it.
    let ((good, died), (_, ended)) = (run(4), run(3));
    assert_eq!(good, 3);
    assert_eq!(died.frames[3].state, TrackingState::Lost);
    assert_eq!((died.keyframes.len(), ended.keyframes.len()), (1, 1));
    assert!(died.keyframes[0].view().points == ended.keyframes[0].view().points);
    assert!(died.keyframes[0].view().confidence == ended.keyframes[0].view().confidence);
}

#[test]
fn the_end_of_the_data_waits_for_every_pending_keyframe() {
    let walk = square_walk(60, 0.6);
    let run = |threads, mood| {
        let mut rig = Rig::new(walk.clone(), threads, Pace::EveryFrame, mood);
        let mut records: Vec<TrackedFrame> = Vec::new();
        // Fewer keyframes than the queue holds: nothing here may wait for the mapper.
        while keyframes_of(records.iter().map(|f| &f.record)) < 6 {
            records.push(rig.show(Some(records.len())).expect("frame"));
        }
        (rig, records.len())
    };
    let (mut pending, frames) = run(Threads::Pipelined, Mood::Waits);
    assert!(pending.system.snapshot().edges.is_empty());
    pending.valve.set(Mood::Works);
    pending.system.complete().expect("drained");

    let (mut inline, same) = run(Threads::Single, Mood::Works);
    inline.system.complete().expect("finish");
    assert_eq!(frames, same);
    let (a, b) = (pending.system.snapshot(), inline.system.snapshot());
    assert_eq!(a.keyframes.len(), 6);
    assert_eq!(a.edges, b.edges);
    assert_eq!(a.edges.len(), 5);
    // The same events in the same order. Poses are not the same bits: a keyframe's pointmap is as
    // old as its event, and inline the solves come between.
    for (a, b) in a.keyframes.iter().zip(&b.keyframes) {
        assert_eq!((a.id, a.frame_index), (b.id, b.frame_index));
        let apart = a.world_from_camera.translation - b.world_from_camera.translation;
        assert!(apart.norm() < 1e-3, "{apart}");
    }
}

#[test]
fn every_fusion_mode_runs_through_the_whole_system() {
    use mast3r_slam::config::FilteringMode::*;
    for mode in [
        WeightedPointmap,
        WeightedSpherical,
        Recent,
        First,
        BestScore,
        IndepConf,
    ] {
        let mut config = config(Threads::Single);
        config.tracking.filtering_mode = mode;
        let walk = square_walk(90, 1.0)[..24].to_vec();
        let mut rig = Rig::with(walk, config, Pace::EveryFrame, Mood::Works);
        for k in 0..24 {
            let record = rig.show(Some(k)).expect("frame");
            assert_ne!(record.state, TrackingState::Lost, "{mode:?}, frame {k}");
        }
        // A relocalised keyframe too has an estimate that counts as one (its average is finite).
        rig.show(None).expect("black");
        assert_eq!(
            rig.show(Some(22)).expect("frame").state,
            TrackingState::Relocalised
        );
        assert_ne!(
            rig.show(Some(23)).expect("frame").state,
            TrackingState::Lost
        );
        rig.system.complete().expect("finish");
        let map = rig.system.snapshot();
        assert!(map.keyframes.len() > 2, "{mode:?}");
        for key in &map.keyframes {
            // The room's confidences are all 3.
            assert!(
                key.view().confidence.iter().all(|c| (c - 3.0).abs() < 1e-5),
                "{mode:?}"
            );
        }
    }
}

/// Confidences that change from pixel to pixel and from frame to frame: no two modes fuse alike.
#[test]
fn fusion_modes_differ_where_confidences_do() {
    use mast3r_slam::config::FilteringMode::*;
    let modes = [
        WeightedPointmap,
        WeightedSpherical,
        Recent,
        First,
        BestScore,
        IndepConf,
    ];
    let fused = modes.map(|mode| {
        let mut config = config(Threads::Single);
        config.tracking.filtering_mode = mode;
        let spoil = Spoil {
            noise: 0.01,
            ..Spoil::default()
        };
        let walk = square_walk(600, 1.0)[..6].to_vec();
        let mut calls = 0;
        let mut rig = Rig::meddled(walk, spoil, config, move |_, out| {
            calls += 1;
            for view in [&mut out.view1, &mut out.view2] {
                for (n, confidence) in view.confidence.iter_mut().enumerate() {
                    *confidence = 2.0 + ((7 * n + 13 * calls) % 11) as f32 / 4.0;
                }
            }
            Ok(())
        });
        for k in 0..6 {
            let record = rig.show(Some(k)).expect("frame");
            assert_ne!(record.state, TrackingState::Lost, "{mode:?}, frame {k}");
        }
        rig.system.complete().expect("finish");
        let map = rig.system.snapshot();
        assert_eq!(map.keyframes.len(), 1, "{mode:?}");
        let key = map.keyframes[0].view();
        let values = key.points.iter().chain(key.confidence.iter());
        values.map(|v| v.to_bits()).collect::<Vec<u32>>()
    });
    for (a, first) in fused.iter().enumerate() {
        for (b, second) in fused.iter().enumerate().skip(a + 1) {
            assert!(first != second, "{:?} fuses as {:?}", modes[a], modes[b]);
        }
    }
}

#[test]
fn keyframes_whose_edges_match_nothing_stay_where_tracking_put_them() {
    let walk = square_walk(60, 0.6);
    let mut rig = Rig::new(walk.clone(), Threads::Single, Pace::EveryFrame, Mood::Works);
    let mut blind = Vec::new();
    for k in 0..60 {
        // Two keyframes in the middle whose edges hold no match at all, then all is well again.
        let made = keyframes_of(&rig.system.snapshot().frames);
        let mood = if (3..5).contains(&made) {
            Mood::Blind
        } else {
            Mood::Works
        };
        rig.valve.set(mood);
        let record = rig.show(Some(k)).expect("frame");
        assert_ne!(record.state, TrackingState::Lost, "frame {k}");
        if record.keyframe.is_some() && mood == Mood::Blind {
            blind.push(record.index);
        }
    }
    rig.system.complete().expect("finish");
    let map = rig.system.snapshot();
    assert_eq!(blind.len(), 2);
    assert!(map.keyframes.len() > 5);
    assert_eq!(rig.system.mapping_counts().failed_solves, 0);
    let world = walk[0].inverse();
    for key in &map.keyframes {
        let truth = world * walk[key.frame_index];
        let apart = key.world_from_camera.translation - truth.translation;
        assert!(apart.norm() < TOLERANCE, "keyframe {}: {apart}", key.id);
    }
}

#[test]
fn values_that_are_not_finite_reach_no_pose_and_no_point() {
    for calibrated in [false, true] {
        let mut config = config(Threads::Single);
        config.use_calib = calibrated;
        let walk = square_walk(60, 0.6)[..30].to_vec();
        let mut rig = Rig::poisoned(walk.clone(), config, Pace::EveryFrame, Mood::Works, true);
        for k in 0..30 {
            let record = rig.show(Some(k)).expect("frame");
            assert_ne!(record.state, TrackingState::Lost, "frame {k}");
        }
        rig.system.complete().expect("finish");
        let map = rig.system.snapshot();
        assert!(map.keyframes.len() > 3);
        assert_eq!(rig.system.mapping_counts().failed_solves, 0);
        let world = walk[0].inverse();
        for frame in &map.frames {
            let truth = world * walk[frame.index];
            let apart = (frame.world_from_camera.translation - truth.translation).norm();
            assert!(apart < TOLERANCE, "frame {}: {apart} m", frame.index);
        }
        for key in &map.keyframes {
            assert!(
                key.view()
                    .points
                    .iter()
                    .chain(key.view().confidence.iter())
                    .all(|v| v.is_finite())
            );
        }
    }
}

#[test]
fn a_refused_candidate_has_no_say_in_where_a_lost_frame_is() {
    for strict in [false, true] {
        let mut config = config(Threads::Single);
        config.reloc.strict = strict;
        config.retrieval.k = 4;
        // Too little for a solve to repair a pose that starts at the wrong keyframe.
        config.local_opt.max_iters = 1;
        let walk = square_walk(60, 0.6);
        let mut rig = Rig::with(walk.clone(), config, Pace::EveryFrame, Mood::Works);
        for k in 0..36 {
            rig.show(Some(k)).expect("frame");
        }
        let keys: Vec<usize> = rig
            .system
            .snapshot()
            .keyframes
            .iter()
            .map(|k| k.frame_index)
            .collect();
        rig.show(None).expect("black");
        // Where the fourth newest keyframe is; the newest shows another place.
        let there = keys[keys.len() - 4];
        let record = rig.show(Some(there)).expect("frame");
        if strict {
            assert_eq!(record.state, TrackingState::Lost);
            continue;
        }
        assert_eq!(record.state, TrackingState::Relocalised);
        let map = rig.system.snapshot();
        let id = keys.len() as u32;
        let edges: Vec<_> = map
            .edges
            .iter()
            .filter(|e| e.i == id || e.j == id)
            .collect();
        let newest = id - 1;
        assert!(
            !edges.is_empty() && edges.iter().all(|e| e.i != newest && e.j != newest),
            "{edges:?}"
        );
        let truth = walk[0].inverse() * walk[there];
        let apart = (record.world_from_camera.translation - truth.translation).norm();
        assert!(apart < TOLERANCE, "{apart} m");
    }
}

#[test]
fn a_network_that_shows_nothing_any_more_is_an_error_not_a_search_without_end() {
    // The lens is covered for long: nothing is said against the network, which is fine.
    let mut rig = Rig::new(
        square_walk(60, 0.6),
        Threads::Single,
        Pace::EveryFrame,
        Mood::Works,
    );
    rig.show(Some(0)).expect("frame");
    for _ in 0..25 {
        assert_eq!(rig.show(None).expect("black").state, TrackingState::Lost);
    }

    // From the marked image on, what all-zero weights give.
    let mut dead = false;
    let zero = move |mark: u8, out: &mut PairOutput| {
        dead |= mark == 77;
        for view in [&mut out.view1, &mut out.view2] {
            if dead {
                view.points.fill(0.0);
                view.confidence.fill(2.0);
                view.descriptors.fill(f32::NAN);
                view.descriptor_confidence.fill(1.0);
            }
        }
        Ok(())
    };
    let (walk, config) = (square_walk(60, 0.6), config(Threads::Single));
    let mut rig = Rig::meddled(walk, Spoil::default(), config, zero);
    rig.images[3].data[3] = 77;
    let error = (0..40).find_map(|k| Some((k, rig.show(Some(k.min(4))).err()?.to_string())));
    let (index, message) = error.expect("an error");
    assert!(index < 20, "{index}");
    assert!(message.contains("all weights are zero"), "{message}");
    rig.system.complete().expect("finish");
    let map = rig.system.snapshot();
    assert_eq!(map.keyframes.len(), 1);
    assert_eq!(map.frames[2].state, TrackingState::Tracking);
}

//! What goes wrong while SLAM runs: a backend that fails, a mapping thread that dies or is slow.

mod common;

use common::{RoomBackend, SIZE, Spoil, square_walk};
use mast3r_slam::config::{Config, Loops, Threads};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput};
use mast3r_slam::map::{FrameRecord, TrackingState};
use mast3r_slam::slam::{FrameInput, Pace, SlamError, System};
use mast3r_slam::time::Stamp;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What the mapper's network does next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Works,
    Fails,
    Panics,
    /// Every decoder pass waits until the mood changes.
    Waits,
}

/// A hold on the mapper's network.
#[derive(Clone)]
struct Valve(Arc<(Mutex<Mood>, Condvar)>);

impl Valve {
    fn new(mood: Mood) -> Self {
        Self(Arc::new((Mutex::new(mood), Condvar::new())))
    }

    fn set(&self, mood: Mood) {
        *self.0.0.lock().expect("valve") = mood;
        self.0.1.notify_all();
    }

    fn pass(&self) -> Result<(), InferenceError> {
        let mood = {
            let guard = self.0.0.lock().expect("valve");
            // A test that should not wait, but does, ends with an error instead of hanging.
            let limit = Duration::from_secs(100);
            let waiting = |mood: &mut Mood| *mood == Mood::Waits;
            *self
                .0
                .1
                .wait_timeout_while(guard, limit, waiting)
                .expect("valve")
                .0
        };
        match mood {
            Mood::Works => Ok(()),
            Mood::Panics => panic!("the network fell over"),
            Mood::Fails | Mood::Waits => Err(InferenceError::Runtime {
                runtime: "room",
                doing: "decoding",
                message: format!("{mood:?}"),
            }),
        }
    }
}

/// The room; the handle that the mapper gets obeys a valve.
struct Valved {
    room: Box<dyn Backend>,
    valve: Valve,
    mappers: bool,
}

impl Backend for Valved {
    fn shape(&self) -> &NetworkShape {
        self.room.shape()
    }

    fn name(&self) -> String {
        self.room.name()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            room: self.room.share(),
            valve: self.valve.clone(),
            mappers: true,
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        self.room.encode(image, features)
    }

    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        if self.mappers {
            self.valve.pass()?;
        }
        self.room.decode(a, b, out)
    }
}

/// A system in the room without a retrieval model: a lost frame is looked for among the newest
/// keyframes.
struct Rig {
    system: System,
    images: Vec<Arc<RgbImage>>,
    black: Arc<RgbImage>,
    next: usize,
    valve: Valve,
}

impl Rig {
    fn new(poses: Vec<Sim3>, threads: Threads, pace: Pace, mood: Mood) -> Self {
        Self::with(poses, config(threads), pace, mood)
    }

    fn with(poses: Vec<Sim3>, config: Config, pace: Pace, mood: Mood) -> Self {
        let frames = poses.len();
        let room = RoomBackend::new(SIZE, poses, Spoil::default());
        let images = (0..frames).map(|k| Arc::new(room.image(k))).collect();
        let black = Arc::new(room.black_image());
        let valve = Valve::new(mood);
        let backend = Valved {
            room: Box::new(room),
            valve: valve.clone(),
            mappers: false,
        };
        let system = System::new(config, pace, Box::new(backend), None, None).expect("system");
        Self {
            system,
            images,
            black,
            next: 0,
            valve,
        }
    }

    /// Shows frame `k` of the walk, or nothing.
    fn show(&mut self, k: Option<usize>) -> Result<FrameRecord, SlamError> {
        let index = self.next;
        self.next += 1;
        self.system.process(FrameInput {
            index,
            stamp: Stamp {
                nanos: 33_000_000 * index as i64,
            },
            image: Arc::clone(k.map_or(&self.black, |k| &self.images[k])),
            preprocess_ms: 0.0,
        })
    }

    fn keyframes(&self) -> usize {
        self.system.snapshot().keyframes.len()
    }
}

fn config(threads: Threads) -> Config {
    let mut config = Config {
        threads,
        loops: Loops::Off,
        ..Config::default()
    };
    config.reloc.strict = false;
    config
}

fn keyframes_of(records: &[FrameRecord]) -> usize {
    records.iter().filter(|r| r.keyframe.is_some()).count()
}

fn bits(pose: &Sim3) -> [u64; 8] {
    pose.to_array().map(f64::to_bits)
}

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
            matches!(error, SlamError::Inference(InferenceError::Runtime { .. })),
            "{threads:?}: {error}"
        );
        rig.system.finish().expect("what was computed stays");
        let map = rig.system.snapshot();
        assert_eq!(map.keyframes.len(), keyframes_of(&records), "{threads:?}");
        assert!(map.keyframes.len() > 1);
        assert_eq!(map.frames.len(), 32);
        for (k, frame) in map.frames.iter().enumerate() {
            assert_eq!(frame.state == TrackingState::Lost, k >= 30, "frame {k}");
        }
        for key in &map.keyframes {
            // Every frame's pose is composed from the keyframes' present poses.
            let frame = &map.frames[key.frame_index];
            assert_eq!(bits(&frame.world_from_camera), bits(&key.world_from_camera));
            assert!(key.confidence.iter().all(|c| c.is_finite()));
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
            Mood::Works,
        );
        let mut k = 0;
        while keyframes_of(&rig.system.snapshot().frames) < 3 {
            rig.show(Some(k)).expect("frame");
            k += 1;
        }
        rig.valve.set(mood);
        // The keyframe that kills the thread comes some frames later. After it, frames that have
        // nothing for the mapper follow: one of them must tell, as soon as the thread has ended.
        let mut error = None;
        let mut same = 0;
        while error.is_none() && same < 5000 {
            let shown = k.min(59);
            same += usize::from(shown == 59);
            error = rig.show(Some(shown)).err();
            k += 1;
        }
        let error = error.expect("an error").to_string();
        assert!(error.contains(message), "{error}");
        // Whoever goes on regardless gets an error, not a wrong map.
        let again = rig.show(Some(0)).expect_err("it has ended").to_string();
        assert!(again.contains("earlier"), "{again}");
        rig.system.finish().expect("told already");
        assert!((3..=5).contains(&rig.keyframes()), "{}", rig.keyframes());
        assert!(rig.system.mapping_counts().is_some());
    }
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
    let error = rig.system.finish().expect_err("the edge failed");
    assert!(matches!(error, SlamError::Inference(_)), "{error}");
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
    struct Dies(RoomBackend, usize);
    impl Backend for Dies {
        fn shape(&self) -> &NetworkShape {
            self.0.shape()
        }
        fn name(&self) -> String {
            self.0.name()
        }
        fn share(&self) -> Box<dyn Backend> {
            self.0.share()
        }
        fn encode(&mut self, image: &RgbImage, out: &mut [f32]) -> Result<(), InferenceError> {
            self.0.encode(image, out)
        }
        fn decode(
            &mut self,
            a: &[f32],
            b: &[f32],
            o: &mut PairOutput,
        ) -> Result<(), InferenceError> {
            let Some(left) = self.1.checked_sub(1) else {
                return Valve::new(Mood::Fails).pass();
            };
            self.1 = left;
            self.0.decode(a, b, o)
        }
    }
    let run = |frames: usize| {
        let spoil = Spoil {
            noise: 0.01,
            ..Spoil::default()
        };
        let room = RoomBackend::new(SIZE, square_walk(300, 1.0)[..4].to_vec(), spoil);
        let images: Vec<_> = (0..frames).map(|k| Arc::new(room.image(k))).collect();
        let backend = Box::new(Dies(room, 3));
        let config = config(Threads::Single);
        let mut system =
            System::new(config, Pace::EveryFrame, backend, None, None).expect("system");
        let mut good = 0;
        for (index, image) in images.into_iter().enumerate() {
            let input = FrameInput {
                index,
                stamp: Stamp::default(),
                image,
                preprocess_ms: 0.0,
            };
            good += usize::from(system.process(input).is_ok());
        }
        system.finish().expect("finish");
        (good, system.snapshot())
    };
    // Frame 3 meets a network that fails; the map is that of the three frames before it.
    let ((good, died), (_, ended)) = (run(4), run(3));
    assert_eq!(good, 3);
    assert_eq!(died.frames[3].state, TrackingState::Lost);
    assert_eq!((died.keyframes.len(), ended.keyframes.len()), (1, 1));
    assert!(died.keyframes[0].points == ended.keyframes[0].points);
    assert!(died.keyframes[0].confidence == ended.keyframes[0].confidence);
}

#[test]
fn the_end_of_the_data_waits_for_every_pending_keyframe() {
    let walk = square_walk(60, 0.6);
    let run = |threads, mood| {
        let mut rig = Rig::new(walk.clone(), threads, Pace::EveryFrame, mood);
        let mut records = Vec::new();
        // Fewer keyframes than the queue holds: nothing here may wait for the mapper.
        while keyframes_of(&records) < 6 {
            records.push(rig.show(Some(records.len())).expect("frame"));
        }
        (rig, records.len())
    };
    let (mut pending, frames) = run(Threads::Pipelined, Mood::Waits);
    assert!(pending.system.mapping_counts().is_none());
    assert!(pending.system.snapshot().edges.is_empty());
    pending.valve.set(Mood::Works);
    pending.system.finish().expect("drained");

    let (mut inline, same) = run(Threads::Single, Mood::Works);
    inline.system.finish().expect("finish");
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
fn live_tracking_does_not_wait_for_mapping_and_postpones_keyframes() {
    const FRAMES: usize = 40;
    let mut config = config(Threads::Pipelined);
    // Every frame wants to be a keyframe.
    config.tracking.match_frac_thresh = 1.01;
    let walk = square_walk(400, 1.0)[..FRAMES].to_vec();
    let mut rig = Rig::with(walk, config, Pace::Live, Mood::Waits);
    let records: Vec<_> = (0..FRAMES)
        .map(|k| rig.show(Some(k)).expect("does not wait"))
        .collect();
    assert!(records.iter().all(|r| r.state != TrackingState::Lost));
    // Mapping is stuck at keyframe 1; 8 may wait for it, keyframe 0 may have been one of them.
    let made = keyframes_of(&records);
    assert!((8..=9).contains(&made), "{made}");
    assert!(records[FRAMES - 1].keyframe.is_none());
    rig.valve.set(Mood::Works);
    // The postponed keyframe is made once there is room again.
    let caught_up = (0..5000).any(|_| {
        std::thread::yield_now();
        rig.show(Some(FRAMES - 1))
            .expect("frame")
            .keyframe
            .is_some()
    });
    assert!(caught_up);
    rig.system.finish().expect("finish");
    let map = rig.system.snapshot();
    assert_eq!(map.keyframes.len(), made + 1);
    assert_eq!(map.edges.len(), made);
    assert_eq!(map.frames.len(), rig.next);
    assert!(map.frames.iter().all(|f| f.state != TrackingState::Lost));
}

#[test]
fn a_live_camera_that_is_lost_does_not_wait_for_the_answer() {
    let mut rig = Rig::new(
        square_walk(400, 1.0)[..12].to_vec(),
        Threads::Pipelined,
        Pace::Live,
        Mood::Works,
    );
    for k in 0..10 {
        assert_ne!(rig.show(Some(k)).expect("frame").state, TrackingState::Lost);
    }
    assert_eq!(rig.show(None).expect("black").state, TrackingState::Lost);
    rig.valve.set(Mood::Waits);
    for _ in 0..20 {
        // The first asks, the others find the mapper busy.
        assert_eq!(rig.show(Some(9)).expect("frame").state, TrackingState::Lost);
    }
    rig.valve.set(Mood::Works);
    let found = (0..5000).any(|_| {
        std::thread::yield_now();
        rig.show(Some(10)).expect("frame").state == TrackingState::Tracking
    });
    assert!(found);
    rig.system.finish().expect("finish");
    let map = rig.system.snapshot();
    assert_eq!(rig.system.mapping_counts().map(|c| c.relocalised), Some(1));
    // The frame that asked is the one that was found.
    assert_eq!(map.frames[11].state, TrackingState::Relocalised);
    assert!(map.frames.iter().all(|f| f.submap == 0));
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
        rig.system.finish().expect("finish");
        let map = rig.system.snapshot();
        assert!(map.keyframes.len() > 2, "{mode:?}");
        for key in &map.keyframes {
            // The room's confidences are all 3.
            assert!(
                key.confidence.iter().all(|c| (c - 3.0).abs() < 1e-5),
                "{mode:?}"
            );
        }
    }
}

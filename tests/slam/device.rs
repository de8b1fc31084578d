//! A device that is lost in the middle of a run: the run ends, and what is not on it is kept.

use mast3r_slam::compute::cpu;
use mast3r_slam::compute::device::{DeviceError, Setup};
use mast3r_slam::config::{DeviceConfig, Threads};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::map::trajectories;
use mast3r_slam::map::{CloudOptions, TrackingState, colmap, keyframes, ply};
use mast3r_slam::slam::{MapLabel, Pace, SavedMapError, Slam, SlamError};
use std::sync::Arc;
use testkit::faulty::Faults;
use testkit::room::rig::{Rig, bits, config, keyframes_of};
use testkit::room::{RoomBackend, SIZE, Spoil, square_walk};

#[test]
fn a_lost_device_ends_the_run_and_every_pose_is_kept() {
    for threads in [Threads::Single, Threads::Pipelined] {
        let plug = Faults::default();
        let room = RoomBackend::new(SIZE, square_walk(60, 0.6), Spoil::default());
        let images: Vec<_> = (0..30).map(|k| room.image(k)).collect();
        let config = Arc::new(config(threads));
        let setup = Setup {
            config: Arc::new(DeviceConfig::from(&*config)),
            preprocessor: None,
            intrinsics: None,
            places: None,
        };
        let whole = cpu::device(Box::new(room), setup);
        let device = plug.over(whole);
        let system = Slam::new(&config, Pace::EveryFrame, device, None).expect("system");
        let mut rig = Rig::of(system, images);
        let records: Vec<_> = (0..25).map(|k| rig.show(Some(k)).expect("frame")).collect();
        plug.lose();
        let error = rig.show(Some(25)).expect_err("the device is gone");
        assert!(
            matches!(error, SlamError::Device(DeviceError::Lost { .. })),
            "{error}"
        );
        assert!(error.to_string().contains("the plug was pulled"), "{error}");
        // It cannot give its last pointmap back, and says so.
        rig.system.complete().expect_err("still gone");

        let map = rig.system.snapshot();
        assert_eq!(map.frames.len(), 25);
        assert!(map.frames.iter().all(|f| f.state != TrackingState::Lost));
        let moved = |p: &Sim3| bits(p) != bits(&Sim3::identity());
        assert!(map.frames[1..].iter().all(|f| moved(&f.world_from_camera)));
        assert!(!map.keyframes.is_empty());
        assert!(map.keyframes.len() <= keyframes_of(records.iter().map(|f| &f.record)));
        assert!(map.keyframes.iter().all(|k| k.view().points.is_empty()));

        // A map without its points cannot be continued, and no partial file is left.
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("room.map");
        let label = || Ok(MapLabel::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        let reply = Box::new(move |saved| sender.send(saved).expect("the test listens"));
        assert!(rig.system.save_map_with(file, Box::new(label), reply));
        let saved: Result<_, SavedMapError> = receiver.recv().expect("an answer");
        let error = saved.expect_err("nothing to save").to_string();
        assert!(error.contains("the plug was pulled"), "{error}");
        assert_eq!(
            std::fs::read_dir(folder.path())
                .expect("the folder")
                .count(),
            0
        );

        // Everything that poses make can be written, with keyframes that name no image.
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        trajectories::write_frames(&at("trajectory.txt"), &map).expect("frames");
        trajectories::write_keyframes(&at("keyframes.txt"), &map).expect("keyframes");
        let options = CloudOptions::default();
        ply::write(&at("cloud.ply"), &map, &options).expect("an empty cloud");
        colmap::write(&at("colmap"), &map, &options).expect("a model without images");
        let table = keyframes::write(folder.path(), &map).expect("a table");
        let table = std::fs::read_to_string(table).expect("the table");
        assert_eq!(table.lines().count(), 1 + map.keyframes.len());
        assert!(
            table.lines().skip(1).all(|line| line.ends_with(',')),
            "{table}"
        );
        let lines = std::fs::read_to_string(at("trajectory.txt")).expect("the file");
        assert_eq!(lines.lines().filter(|l| !l.starts_with('#')).count(), 25);
    }
}

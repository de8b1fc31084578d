//! A device that is lost in the middle of a run: the run ends, and what is not on it is kept.

mod common;

use common::rig::{Rig, bits, config, keyframes_of};
use common::{RoomBackend, SIZE, Spoil, square_walk};
use mast3r_slam::compute::cpu;
use mast3r_slam::compute::device::{
    ContentFormats, Device, DeviceError, EdgeContent, EdgeId, FramePoints, FrameTimes,
    KeyframeBulk, KeyframeContent, MappingDevice, NewEdge, Outcome, PoseGraph, Setup, Ticket,
    TrackingDevice, TwoWay,
};
use mast3r_slam::compute::global::{GlobalReport, SolveError};
use mast3r_slam::compute::retrieval::Hit;
use mast3r_slam::compute::stop::Stop;
use mast3r_slam::config::Threads;
use mast3r_slam::geometry::Sim3;
use mast3r_slam::image::encoding::RawImage;
use mast3r_slam::inference::NetworkShape;
use mast3r_slam::map::{CloudOptions, TrackingState, colmap, keyframes, ply, trajectory};
use mast3r_slam::slam::{MapLabel, Pace, SavedMapError, SlamError, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Pulled: every call from then on fails.
#[derive(Clone, Default)]
struct Plug(Arc<AtomicBool>);

impl Plug {
    fn pull(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn current(&self) -> Result<(), DeviceError> {
        match self.0.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(DeviceError::Lost {
                device: "test",
                cause: "the plug was pulled".into(),
            }),
        }
    }
}

struct Tracking(Box<dyn TrackingDevice>, Plug);
struct Mapping(Box<dyn MappingDevice>, Plug);

impl TrackingDevice for Tracking {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn shape(&self) -> &NetworkShape {
        self.0.shape()
    }
    fn encode(&mut self, image: &RawImage<'_>) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.encode(image)
    }
    fn mono(&mut self) -> Result<usize, DeviceError> {
        self.1.current()?;
        self.0.mono()
    }
    fn track(&mut self) -> Result<Outcome, DeviceError> {
        self.1.current()?;
        self.0.track()
    }
    fn start_keyframe(&mut self) -> Result<Ticket, DeviceError> {
        self.1.current()?;
        self.0.start_keyframe()
    }
    fn put_down_frame(&mut self) -> Result<Ticket, DeviceError> {
        self.1.current()?;
        self.0.put_down_frame()
    }
    fn resume_keyframe(&mut self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.resume_keyframe(ticket)
    }
    fn put_down_pointmap(&mut self) -> Result<Ticket, DeviceError> {
        self.1.current()?;
        self.0.put_down_pointmap()
    }
    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.read_frame(dst)
    }
    fn self_test(&mut self) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.self_test()
    }
    fn times(&self) -> FrameTimes {
        self.0.times()
    }
}

impl MappingDevice for Mapping {
    fn accept_keyframe(&mut self, id: u32, ticket: &Ticket) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.accept_keyframe(id, ticket)
    }
    fn accept_pointmap(&mut self, id: u32, ticket: &Ticket) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.accept_pointmap(id, ticket)
    }
    fn drop_keyframe(&mut self, id: u32) {
        self.0.drop_keyframe(id);
    }
    fn knows_places(&self) -> bool {
        self.0.knows_places()
    }
    fn look_up(&mut self, id: u32, hits: &mut Vec<Hit>) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.look_up(id, hits)
    }
    fn remember(&mut self, id: u32) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.remember(id)
    }
    fn heed(&mut self, stop: &Stop) {
        self.0.heed(stop);
    }
    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.make_edges(pairs, made)
    }
    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError> {
        self.1.current()?;
        self.0.relative_poses(edge)
    }
    fn drop_edge(&mut self, edge: EdgeId) {
        self.0.drop_edge(edge);
    }
    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError> {
        self.1.current()?;
        self.0.solve(graph, poses)
    }
    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError> {
        self.1.current()?;
        self.0.read_keyframe(id)
    }
    fn lend_keyframe(&mut self, id: u32) -> Result<Ticket, DeviceError> {
        self.1.current()?;
        self.0.lend_keyframe(id)
    }
    fn content_formats(&self) -> ContentFormats {
        self.0.content_formats()
    }
    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.export_keyframe(id, dst)
    }
    fn import_keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.import_keyframe(id, content)
    }
    fn export_edge(&self, edge: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError> {
        self.1.current()?;
        self.0.export_edge(edge, dst)
    }
    fn import_edge(
        &mut self,
        i: u32,
        j: u32,
        content: &EdgeContent,
    ) -> Result<EdgeId, DeviceError> {
        self.1.current()?;
        self.0.import_edge(i, j, content)
    }
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[test]
fn a_lost_device_ends_the_run_and_every_pose_is_kept() {
    for threads in [Threads::Single, Threads::Pipelined] {
        let plug = Plug::default();
        let room = RoomBackend::new(SIZE, square_walk(60, 0.6), Spoil::default());
        let images: Vec<_> = (0..30).map(|k| room.image(k)).collect();
        let config = Arc::new(config(threads));
        let setup = Setup {
            config: Arc::clone(&config),
            preprocessor: None,
            intrinsics: None,
            places: None,
        };
        let whole = cpu::device(Box::new(room), setup);
        let device = Device {
            tracking: Box::new(Tracking(whole.tracking, plug.clone())),
            mapping: Box::new(Mapping(whole.mapping, plug.clone())),
        };
        let system = System::with_device(config, Pace::EveryFrame, device, None).expect("system");
        let mut rig = Rig::of(system, images);
        let records: Vec<_> = (0..25).map(|k| rig.show(Some(k)).expect("frame")).collect();
        plug.pull();
        let error = rig.show(Some(25)).expect_err("the device is gone");
        assert!(
            matches!(error, SlamError::Device(DeviceError::Lost { .. })),
            "{error}"
        );
        assert!(error.to_string().contains("the plug was pulled"), "{error}");
        // It cannot give its last pointmap back, and says so.
        rig.system.finish().expect_err("still gone");

        let map = rig.system.snapshot();
        assert_eq!(map.frames.len(), 25);
        assert!(map.frames.iter().all(|f| f.state != TrackingState::Lost));
        let moved = |p: &Sim3| bits(p) != bits(&Sim3::identity());
        assert!(map.frames[1..].iter().all(|f| moved(&f.world_from_camera)));
        assert!(!map.keyframes.is_empty());
        assert!(map.keyframes.len() <= keyframes_of(&records));
        assert!(map.keyframes.iter().all(|k| k.points.is_empty()));

        // A map without its points is none to go on with, and no half of one is left.
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("room.map");
        let label = || Ok(MapLabel::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        let reply = Box::new(move |saved| sender.send(saved).expect("the test listens"));
        assert!(rig.system.save_map(file, Box::new(label), reply));
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
        trajectory::write_frames(&at("trajectory.txt"), &map).expect("frames");
        trajectory::write_keyframes(&at("keyframes.txt"), &map).expect("keyframes");
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

//! Everything that exists while the node is configured: subscriptions, publishers, threads.

use super::NodeError;
use super::clock_gate::{ClockGate, Verdict};
use super::clouds::{self, CloudTopics};
use super::correction;
use super::correction_slot::Correction;
use super::depth::{self, DepthTopics};
use super::depth_inbox::DepthInbox;
use super::depth_slot::DepthSlot;
use super::grid::{self, GridTopics};
use super::inbox::{Inbox, Order};
use super::incidents;
use super::masks::MaskSlot;
use super::motion_inbox::MotionInbox;
use super::output::{self, Publishers};
use super::pulses::Pulses;
use super::service::Progress;
use super::settings::{Settings, Transport};
use super::shared::{CameraSlot, Event, Shared};
use super::splat_slot::SplatSlot;
use super::splats;
use super::status::{State, Status};
use super::supervisor::Supervisor;
use super::tf_listener::TfBuffer;
use super::topics::Topics;
use super::tracking;
use super::view::{NodeDoor, NodeView};
use super::watchdog;
use crate::config::Config;
use crate::map::grid::GridOptions;
use crate::ros::middleware::{Lane, Middleware, MiddlewareError, OnMessage, Subscription};
use crate::slam_builder::SlamBuilder;
use crate::source::depth_message::DepthTransport;
use crate::source::motion_message;
use crate::time::Stamp;
use crate::wire::messages::diagnostic::DiagnosticArray;
use crate::wire::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use crate::wire::messages::nav::Odometry;
use crate::wire::messages::sensor::{CameraInfo, CompressedImage, Image, Imu};
use crate::wire::messages::{Clock, Message};
use crate::wire::{Payload, Qos};
use arc_swap::{ArcSwap, ArcSwapOption};
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Maximum number of events waiting for the output thread: two seconds of a fast camera. Further
/// ones are dropped and counted.
const EVENTS: usize = 256;

/// A configured node. Dropping it ends its threads.
pub struct Running {
    // Dropped before the threads that it tells of.
    view: Option<NodeView>,
    // Dropped first of the rest, so that nothing arrives while the rest is dropped.
    subscriptions: Vec<Subscription>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Subscribes, advertises and starts the threads. Images are ignored until the node is active.
    pub fn start(
        middleware: &Arc<dyn Middleware>,
        builder: SlamBuilder,
        config: &Config,
        settings: Settings,
        door: NodeDoor,
    ) -> Result<Self, NodeError> {
        let beside = incidents::beside(middleware, &settings)?;
        let middleware = &beside.client;
        let (events, receiver) = sync_channel(EVENTS);
        let min_confidence = config.output.c_conf;
        let grid = GridOptions::new(&config.grid, min_confidence);
        let grid = config.grid.enable.then_some(grid);
        let shared = Arc::new(Shared {
            builder,
            min_confidence,
            grid,
            name: middleware.node_name(),
            supervisor: Supervisor::default(),
            pulses: Pulses::default(),
            settings: ArcSwap::from_pointee(settings.clone()),
            inbox: Inbox::default(),
            status: Status::default(),
            tf: Mutex::new(TfBuffer::default()),
            camera: Mutex::new(CameraSlot::default()),
            events,
            poses: ArcSwapOption::empty(),
            placement: ArcSwapOption::empty(),
            correction: Correction::default(),
            mask: MaskSlot::default(),
            depth_input: DepthInbox::default(),
            depth_camera: Mutex::new(CameraSlot::default()),
            odometry: MotionInbox::default(),
            rates: MotionInbox::default(),
            depth: DepthSlot::default(),
            splat_slot: SplatSlot::default(),
            splats: ArcSwapOption::empty(),
            page: door.feed(),
            incidents: beside.requests,
            closing: AtomicBool::new(false),
            active: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            sim_time: AtomicI64::new(0),
        });
        let topics = Topics::new(middleware.as_ref())?;
        let (diagnostics, tf) = (Arc::clone(&topics.diagnostics), Arc::clone(&topics.tf));
        let kind = DiagnosticArray::TYPE;
        let localization = middleware.advertise("~/localization_status", kind, Qos::reliable(1))?;
        let cloud_topics = CloudTopics::new(middleware.as_ref())?;
        let depth_topics = DepthTopics::new(middleware.as_ref())?;
        let mut running = Self {
            view: Some(door.serve(&shared).map_err(NodeError::Configure)?),
            subscriptions: Vec::new(),
            shared,
            threads: Vec::new(),
        };
        let shared = Arc::clone(&running.shared);
        running.thread("tracking", move || tracking::run(shared))?;
        let (shared, node) = (Arc::clone(&running.shared), middleware.node_name());
        let graph = Arc::clone(middleware);
        let same_name_nodes = Box::new(move || graph.same_name_nodes());
        running.thread("output", move || {
            let publishers = Publishers {
                topics,
                localization,
            };
            output::run(shared, publishers, node, same_name_nodes, &receiver);
        })?;
        let shared = Arc::clone(&running.shared);
        running.thread("transforms", move || correction::run(&shared, tf.as_ref()))?;
        let shared = Arc::clone(&running.shared);
        running.thread("clouds", move || clouds::run(shared, cloud_topics))?;
        let shared = Arc::clone(&running.shared);
        running.thread("depth", move || depth::run(&shared, &depth_topics))?;
        if let Some(options) = grid {
            let topics = GridTopics::new(middleware.as_ref())?;
            let shared = Arc::clone(&running.shared);
            running.thread("grid", move || grid::run(shared, topics, options))?;
        }
        if config.splat.enable {
            let topic = splats::advertise(middleware.as_ref())?;
            let (shared, config) = (Arc::clone(&running.shared), config.clone());
            running.thread("splats", move || {
                splats::run(&shared, topic.as_ref(), &config);
            })?;
        }
        let shared = Arc::clone(&running.shared);
        running.thread("watchdog", move || {
            watchdog::run(&shared, diagnostics.as_ref())
        })?;
        for (name, work) in beside.threads {
            let shared = Arc::clone(&running.shared);
            running.thread(name, move || work(shared))?;
        }
        running.subscribe(middleware.as_ref(), &settings)?;
        Ok(running)
    }

    /// State shared by the threads.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The reason why the node must end: a thread failed or has ended.
    pub fn failure(&self) -> Option<String> {
        let ended = self.threads.iter().find(|thread| thread.is_finished());
        let ended = ended.map(|thread| {
            let name = thread.thread().name().unwrap_or("a");
            format!("the {name} thread has ended")
        });
        self.shared.supervisor.failure().or(ended)
    }

    /// The error that stopped tracking, if any.
    pub fn tracking_failure(&self) -> Option<String> {
        match self.shared.status.state() {
            State::Failed(why) => Some(why),
            _ => None,
        }
    }

    /// The current work of the tracking thread.
    pub fn progress(&self, now: Instant) -> Progress {
        let pulses = &self.shared.pulses;
        match pulses.starting.busy_for(now) {
            Some(since) => Progress::Starting(since),
            None => Progress::Works(pulses.tracking.works()),
        }
    }

    /// The error that stopped SLAM or mapping, if any.
    pub fn slam_failure(&self) -> Option<String> {
        self.shared.status.failure()
    }

    /// Starts or stops processing images.
    pub fn set_active(&self, active: bool) {
        self.shared.active.store(active, Ordering::Release);
        self.shared.inbox.clear();
        if !active {
            self.shared.status.enter(State::Idle);
        } else {
            let missing = "no images received yet; check the topic (remap image) and image_qos";
            self.shared.status.enter(State::Waiting(missing.into()));
        }
    }

    fn thread(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), MiddlewareError> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(run).map_err(|e| MiddlewareError::Create {
            what: "thread",
            name: name.to_owned(),
            cause: e.to_string(),
        })?;
        self.threads.push(thread);
        Ok(())
    }

    fn subscribe(
        &mut self,
        middleware: &dyn Middleware,
        settings: &Settings,
    ) -> Result<(), MiddlewareError> {
        let mut add = |topic: &str, kind, qos, lane, handler: OnMessage| {
            let made = middleware.subscribe(topic, kind, qos, lane, handler)?;
            self.subscriptions.push(made);
            Ok::<(), MiddlewareError>(())
        };
        let shared = &self.shared;

        let at = Arc::clone(shared);
        let fixed = messages(shared, move |message: TfMessage| {
            take_tf(&at, &message, true)
        });
        add(
            "/tf_static",
            TfMessage::TYPE,
            Qos::latched(100),
            Lane::Transforms,
            fixed,
        )?;
        let at = Arc::clone(shared);
        let moving = messages(shared, move |message: TfMessage| {
            take_tf(&at, &message, false)
        });
        add(
            "/tf",
            TfMessage::TYPE,
            Qos::reliable(100),
            Lane::Transforms,
            moving,
        )?;

        let at = Arc::clone(shared);
        let info = messages(shared, move |info: CameraInfo| at.camera().take(&info));
        add(
            "camera_info",
            CameraInfo::TYPE,
            settings.camera_info_qos,
            Lane::Rest,
            info,
        )?;

        let at = Arc::clone(shared);
        let initial = messages(shared, move |message| initial_pose(&at, &message));
        add(
            "initial_pose",
            PoseWithCovarianceStamped::TYPE,
            Qos::reliable(1),
            Lane::Rest,
            initial,
        )?;

        if settings.use_sim_time {
            let at = Arc::clone(shared);
            let mut gate = ClockGate::default();
            let clock = messages(shared, move |message: Clock| {
                take_clock(&at, &mut gate, &message);
            });
            add(
                "/clock",
                Clock::TYPE,
                Qos::sensor_data(1),
                Lane::Clock,
                clock,
            )?;
        }

        if settings.use_mask {
            let at = Arc::clone(shared);
            let mask: OnMessage = Box::new(move |payload| at.mask.put(payload, at.moment()));
            add("mask", Image::TYPE, settings.image_qos, Lane::Images, mask)?;
        }

        if settings.use_depth {
            let at = Arc::clone(shared);
            let depth: OnMessage =
                Box::new(move |payload| at.depth_input.put(payload, at.moment()));
            let transport = settings.depth_transport;
            let topic = match transport {
                DepthTransport::Raw => "depth",
                DepthTransport::Compressed => "depth/compressedDepth",
            };
            let (kind, qos) = (transport.kind(), settings.image_qos);
            add(topic, kind, qos, Lane::Images, depth)?;
        }
        if settings.use_depth && !settings.depth_registered {
            let at = Arc::clone(shared);
            let info = messages(shared, move |info: CameraInfo| {
                let slot = at.depth_camera.lock();
                slot.unwrap_or_else(PoisonError::into_inner).take(&info);
            });
            let (topic, qos) = ("depth/camera_info", settings.camera_info_qos);
            add(topic, CameraInfo::TYPE, qos, Lane::Rest, info)?;
        }

        if settings.use_wheel_odometry {
            let at = Arc::clone(shared);
            let odometry: OnMessage = Box::new(move |payload| {
                let measured = motion_message::odometry(&payload);
                if let Err(why) = at.odometry.put(measured, at.moment()) {
                    at.status
                        .warn("odom", || format!("ignoring wheel odometry: {why}"));
                }
            });
            let qos = settings.odom_qos.0;
            add("odom", Odometry::TYPE, qos, Lane::Transforms, odometry)?;
        }
        if settings.use_gyro {
            let at = Arc::clone(shared);
            let rates: OnMessage = Box::new(move |payload| {
                let measured = motion_message::imu(&payload);
                if let Err(why) = at.rates.put(measured, at.moment()) {
                    at.status.warn("imu", || format!("ignoring the IMU: {why}"));
                }
            });
            add(
                "imu",
                Imu::TYPE,
                settings.imu_qos.0,
                Lane::Transforms,
                rates,
            )?;
        }

        let at = Arc::clone(shared);
        let image: OnMessage = Box::new(move |payload| {
            at.status.images.add();
            at.inbox.put(payload, at.moment());
        });
        let (topic, kind) = match settings.image_transport {
            Transport::Raw => ("image", Image::TYPE),
            Transport::Compressed => ("image/compressed", CompressedImage::TYPE),
        };
        add(topic, kind, settings.image_qos, Lane::Images, image)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.view = None;
        self.subscriptions.clear();
        self.shared.closing.store(true, Ordering::Release);
        self.shared.inbox.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the node panicked");
            }
        }
    }
}

/// Wraps a handler of decoded messages; messages that cannot be decoded are counted and logged.
fn messages<M: Message + DeserializeOwned>(
    shared: &Arc<Shared>,
    mut handler: impl FnMut(M) + Send + 'static,
) -> OnMessage {
    let shared = Arc::clone(shared);
    Box::new(move |payload: Payload| match M::decode(&payload) {
        Ok(message) => handler(message),
        Err(error) => shared.status.warn(M::TYPE, || error.to_string()),
    })
}

fn take_tf(shared: &Shared, message: &TfMessage, fixed: bool) {
    let refused = shared.tf().take(message, fixed);
    if refused > 0 {
        shared.status.warn("tf", || {
            format!("ignoring {refused} invalid transforms in a message on /tf or /tf_static")
        });
    }
}

fn initial_pose(shared: &Shared, message: &PoseWithCovarianceStamped) {
    let settings = shared.settings.load();
    let frame = message.header.frame_id.as_str();
    if frame != settings.map_frame {
        let expected = &settings.map_frame;
        tracing::warn!("ignoring initial_pose in frame {frame:?}, expected {expected:?}");
        return;
    }
    match message.pose.pose.isometry() {
        Some(map_from_base) => shared.tell(Event::InitialPose(map_from_base)),
        None => {
            tracing::warn!("ignoring invalid initial_pose (not finite, or not a rotation)")
        }
    }
}

fn take_clock(shared: &Shared, gate: &mut ClockGate, message: &Clock) {
    let nanos = Stamp::from(&message.clock).nanos;
    let verdict = gate.check(nanos, Instant::now());
    match verdict {
        Verdict::Take => {}
        Verdict::Back(by) => {
            shared.tf().forget_moving();
            let why = format!("/clock jumped back by {:.3} s", by as f64 * 1e-9);
            if !shared.inbox.order(Order::TimeJump(why)) {
                tracing::warn!("/clock jumped back, but the command queue is too full for a reset");
            }
        }
        Verdict::Ahead(by) | Verdict::Other(by) => shared.status.warn("clocks", || {
            format!(
                "/clock has two publishers, {:.3} s apart: stop one of them (ros2 topic info --verbose /clock names \
                 them); until then the later time is used, and the other one begins no new map",
                by as f64 * 1e-9
            )
        }),
    }
    if !matches!(verdict, Verdict::Other(_)) {
        shared.sim_time.store(nanos, Ordering::Relaxed);
    }
}

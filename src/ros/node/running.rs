//! What exists while the node is configured: subscriptions, publishers, threads.

use super::clouds::{self, CloudTopics};
use super::depth::{self, DepthSlot, DepthTopics};
use super::engine::EngineFactory;
use super::inbox::{Inbox, Order};
use super::output;
use super::publish::Topics;
use super::settings::{Settings, Transport};
use super::shared::{CameraSlot, Event, Shared};
use super::status::{State, Status};
use super::tf::TfBuffer;
use super::tracking;
use crate::ros::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use crate::ros::messages::sensor::{CameraInfo, CompressedImage, Image};
use crate::ros::messages::{Clock, Message};
use crate::ros::middleware::{
    Lane, Middleware, MiddlewareError, OnMessage, Payload, Qos, Subscription,
};
use crate::time::Stamp;
use arc_swap::{ArcSwap, ArcSwapOption};
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Events that may wait for the output thread: two seconds of a fast camera.
const EVENTS: usize = 256;
/// `/clock` going back by more than this is a jump.
const JUMP_NANOS: i64 = 1_000_000_000;

/// A configured node. Dropped, its threads end.
pub struct Running {
    // First, so that nothing comes any more when the rest goes.
    subscriptions: Vec<Subscription>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Subscribes, advertises and starts the threads. Images are not looked at before it is active.
    pub fn start(
        middleware: &Arc<dyn Middleware>,
        factory: &Arc<dyn EngineFactory>,
        settings: Settings,
    ) -> Result<Self, MiddlewareError> {
        let (events, receiver) = sync_channel(EVENTS);
        let shared = Arc::new(Shared {
            factory: Arc::clone(factory),
            settings: ArcSwap::from_pointee(settings.clone()),
            inbox: Inbox::default(),
            status: Status::default(),
            tf: Mutex::new(TfBuffer::default()),
            camera: Mutex::new(CameraSlot::default()),
            events,
            poses: ArcSwapOption::empty(),
            placement: ArcSwapOption::empty(),
            depth: DepthSlot::default(),
            closing: AtomicBool::new(false),
            active: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            sim_time: AtomicI64::new(0),
        });
        let topics = Topics::new(middleware.as_ref())?;
        let cloud_topics = CloudTopics::new(middleware.as_ref())?;
        let depth_topics = DepthTopics::new(middleware.as_ref())?;
        let mut running = Self {
            subscriptions: Vec::new(),
            shared,
            threads: Vec::new(),
        };
        let shared = Arc::clone(&running.shared);
        running.thread("tracking", move || tracking::run(shared))?;
        let (shared, node) = (Arc::clone(&running.shared), middleware.node_name());
        let graph = Arc::clone(middleware);
        let namesakes = Box::new(move || graph.namesakes());
        running.thread("output", move || {
            output::run(shared, topics, node, namesakes, &receiver);
        })?;
        let shared = Arc::clone(&running.shared);
        running.thread("clouds", move || clouds::run(shared, cloud_topics))?;
        let shared = Arc::clone(&running.shared);
        running.thread("depth", move || depth::run(&shared, &depth_topics))?;
        running.subscribe(middleware.as_ref(), &settings)?;
        Ok(running)
    }

    /// What the threads share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Starts or stops looking at images.
    pub fn set_active(&self, active: bool) {
        self.shared.active.store(active, Ordering::Release);
        self.shared.inbox.clear();
        if !active {
            self.shared.status.enter(State::Idle);
        } else {
            let missing = "images have not come yet; check the topic (remap image) and image_qos";
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
            Lane::Rest,
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
            Lane::Rest,
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
            let clock = messages(shared, move |message: Clock| take_clock(&at, &message));
            add(
                "/clock",
                Clock::TYPE,
                Qos::sensor_data(1),
                Lane::Rest,
                clock,
            )?;
        }

        let at = Arc::clone(shared);
        let image: OnMessage = Box::new(move |payload| {
            at.status.images.add();
            at.inbox.put(payload);
        });
        let (topic, kind) = match settings.transport {
            Transport::Raw => ("image", Image::TYPE),
            Transport::Compressed => ("image/compressed", CompressedImage::TYPE),
        };
        add(topic, kind, settings.image_qos, Lane::Images, image)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
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

/// A handler of messages that are decoded first; those that cannot be are counted and said.
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
            format!(
                "{refused} transforms of a message on /tf or /tf_static are none and are ignored"
            )
        });
    }
}

fn initial_pose(shared: &Shared, message: &PoseWithCovarianceStamped) {
    let settings = shared.settings.load();
    let frame = message.header.frame_id.as_str();
    if frame != settings.map_frame {
        let expected = &settings.map_frame;
        tracing::warn!(
            "initial_pose is in the frame {frame:?}, expected {expected:?}; it is ignored"
        );
        return;
    }
    match message.pose.pose.isometry() {
        Some(map_from_base) => shared.tell(Event::InitialPose(map_from_base)),
        None => {
            tracing::warn!("initial_pose is no pose (not finite, or no rotation); it is ignored")
        }
    }
}

fn take_clock(shared: &Shared, message: &Clock) {
    let now = Stamp::from(&message.clock).nanos;
    let before = shared.sim_time.swap(now, Ordering::Relaxed);
    if before - now > JUMP_NANOS {
        shared.tf().forget_moving();
        let back = (before - now) as f64 * 1e-9;
        let why = format!("/clock went back by {back:.3} s");
        if !shared.inbox.order(Order::Reset(why)) {
            tracing::warn!("/clock went back, but too much is waiting to reset");
        }
    }
}

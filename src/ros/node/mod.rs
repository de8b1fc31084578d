//! The node: its subscriptions, publishers, services and behaviour. It accesses ROS only through
//! [`Middleware`].
//!
//! Threads: one tracks (images come from a slot that keeps only the newest), one publishes poses
//! and diagnostics, one `map -> odom`, one clouds, one depth images, and one watches the others; the middleware's own
//! threads only pass messages on. Tracking never waits for any of them.

mod autosave;
mod clock_gate;
mod cloud;
mod clouds;
mod correction;
mod correction_slot;
mod depth;
mod depth_inbox;
mod depth_input;
mod depth_slot;
mod engine;
mod frame_cloud;
mod grid;
mod image_filter;
mod inbox;
mod incident_requests;
mod incidents;
mod lifecycle;
mod localization;
mod map_cloud;
mod masks;
mod moment;
mod motion_inbox;
mod motion_input;
mod output;
mod page_feed;
mod parameters;
mod pose_messages;
mod publish;
mod pulses;
mod reading;
#[cfg(feature = "bags")]
mod record;
mod rep105;
mod running;
mod saving;
mod service;
mod services;
mod settings;
mod shared;
mod splat_slot;
mod splats;
mod status;
mod supervisor;
mod tf_listener;
mod topics;
mod tracking;
mod uncertainty;
mod view;
mod watchdog;

pub use parameters::ParameterError;
#[cfg(feature = "bags")]
pub use record::RunRecorder;
use settings::Settings;

use super::args::{ArgsError, RosArgs};
use super::buffers;
use super::middleware::{Middleware, MiddlewareError, Publish};
use crate::config::Config;
use crate::files::folder_of;
use crate::image;
use crate::map::saved;
use crate::map::store::{self, Kind};
use crate::selftest::{self, Golden, SelfTestError};
use crate::slam::Pace;
use crate::slam_builder::{OpenError, SlamBuilder};
use crate::wire::Qos;
use crate::wire::messages::Message;
use crate::wire::messages::lifecycle::TransitionEvent;
use crate::wire::messages::parameter::{Parameter, ParameterEvent, ParameterValue};
use crate::wire::names::NameError;
use lifecycle::{Action, Primary, Step};
use parameters::{Table, Value};
use running::Running;
use service::{Progress, Service};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use view::NodeDoor;

/// Error from starting or running the node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Invalid command line or parameter file.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// Invalid parameter.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// Invalid name.
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Middleware(#[from] MiddlewareError),
    /// SLAM cannot be configured with these parameters.
    #[error("the node could not be configured: {0}")]
    Configure(String),
    /// SLAM failed while the node was running, and was not reset.
    #[error("SLAM failed: {0}")]
    Slam(String),
    /// A thread of the node failed.
    #[error("{0}")]
    Thread(String),
    /// The self-test failed or could not run.
    #[error("the node does not start: {0}")]
    SelfTest(#[from] SelfTestError),
}

/// The node. Dropping it leaves the graph.
pub struct Node {
    inner: Arc<Inner>,
}

/// State shared by services and the owner.
struct Inner {
    /// SLAM's builder, before the parameters are applied.
    builder: SlamBuilder,
    parameters: Mutex<Table>,
    /// Locked during transitions.
    lifecycle: Mutex<Lifecycle>,
    parameter_events: Box<dyn Publish>,
    transition_events: Box<dyn Publish>,
    // Last, so that everything created from it is dropped first.
    middleware: Arc<dyn Middleware>,
}

struct Lifecycle {
    state: Primary,
    running: Option<Running>,
}

/// Interval at which [`Node::run`] checks whether to stop.
const STOP_POLL: Duration = Duration::from_millis(50);

impl Node {
    /// Joins the graph with the parameters of the command line; configures and activates the node
    /// unless `autostart` is false.
    ///
    /// # Errors
    /// Unknown parameters, invalid values, names that cannot be advertised, or settings rejected by
    /// SLAM.
    pub fn start(
        middleware: Arc<dyn Middleware>,
        builder: SlamBuilder,
        args: &RosArgs,
    ) -> Result<Self, NodeError> {
        let full = middleware.node_name();
        let mut table = table_of(&full, args)?;
        settings::fix_map_root(&mut table)?;
        tracing::info!("{full}: {}", middleware.describe());
        if let Err(small) = buffers::check() {
            tracing::warn!("{small}");
        }
        let settings = Settings::of(&table);
        if settings.self_test
            && let Err(error) = self_test(builder.clone(), &settings, &table)
        {
            match incidents::report(&settings, "self-test", &error.to_string()) {
                Ok(Some(path)) => tracing::error!("incident: wrote {}", path.display()),
                Ok(None) => {}
                Err(why) => tracing::warn!("the incident cannot be written: {why}"),
            }
            return Err(error);
        }
        let autostart = settings.autostart;
        let inner = Arc::new(Inner {
            parameter_events: middleware.advertise(
                "/parameter_events",
                ParameterEvent::TYPE,
                Qos::reliable(1000),
            )?,
            transition_events: middleware.advertise(
                "~/transition_event",
                TransitionEvent::TYPE,
                Qos::reliable(10),
            )?,
            middleware,
            builder,
            parameters: Mutex::new(table),
            lifecycle: Mutex::new(Lifecycle {
                state: Primary::Unconfigured,
                running: None,
            }),
        });
        services::serve(&inner)?;
        if autostart {
            inner.act(Action::Configure).map_err(NodeError::Configure)?;
            inner.act(Action::Activate).map_err(NodeError::Configure)?;
        }
        Ok(Self { inner })
    }

    /// Runs the self-test with the parameters that the node of this full name would have, without joining the graph.
    /// Missing engines are built, if the configuration allows it.
    ///
    /// # Errors
    /// Invalid parameters, or a self-test that fails.
    pub fn self_test(
        builder: SlamBuilder,
        full_name: &str,
        args: &RosArgs,
    ) -> Result<(), NodeError> {
        let table = table_of(full_name, args)?;
        self_test(builder, &Settings::of(&table), &table)
    }

    /// Waits until `stop` returns true, then shuts everything down. Tells the service manager, if there is one, that the
    /// node is ready and works.
    ///
    /// # Errors
    /// A thread that failed, which ends the node immediately, or SLAM that failed and was not
    /// reset; with a service manager, which restarts the node, SLAM that failed ends it immediately.
    pub fn run(self, stop: &dyn Fn() -> bool) -> Result<(), NodeError> {
        let mut service = Service::from_environment();
        service.ready();
        let ended = self.watch(stop, &mut service);
        service.stopping();
        ended
    }

    fn watch(&self, stop: &dyn Fn() -> bool, service: &mut Service) -> Result<(), NodeError> {
        while !stop() {
            // A transition, which may write a map, holds the lock.
            let progress = match self.inner.try_life() {
                None => Progress::Transition,
                Some(life) => match &life.running {
                    None => Progress::Unconfigured,
                    Some(running) => {
                        if let Some(why) = running.failure() {
                            return Err(NodeError::Thread(why));
                        }
                        let failed = running.tracking_failure().filter(|_| service.supervised());
                        if let Some(why) = failed {
                            return Err(NodeError::Slam(why));
                        }
                        running.progress(Instant::now())
                    }
                },
            };
            service.feed(progress, Instant::now());
            std::thread::sleep(STOP_POLL);
        }
        let life = self.inner.life();
        match life.running.as_ref().and_then(Running::slam_failure) {
            Some(why) => Err(NodeError::Slam(why)),
            None => Ok(()),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Services may keep the rest alive until the middleware is dropped.
        self.inner.life().running = None;
    }
}

impl Inner {
    fn life(&self) -> MutexGuard<'_, Lifecycle> {
        self.lifecycle.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The lifecycle, unless a transition is under way.
    fn try_life(&self) -> Option<MutexGuard<'_, Lifecycle>> {
        match self.lifecycle.try_lock() {
            Ok(life) => Some(life),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.parameters.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Performs a transition; on failure returns the reason, and the state is unchanged.
    fn act(&self, action: Action) -> Result<(), String> {
        let mut life = self.life();
        let step = life.state.step(action);
        match step {
            Some(step) => self.take(&mut life, step),
            None => Err(format!(
                "{action:?} is not possible while {}",
                life.state.message().label
            )),
        }
    }

    fn take(&self, life: &mut Lifecycle, step: Step) -> Result<(), String> {
        let done = self.carry_out(life, step.action);
        if let Err(why) = &done {
            tracing::error!("{:?} failed: {why}", step.action);
        } else {
            life.state = step.to;
            tracing::info!("the node is {}", step.to.message().label);
        }
        for event in step.events(done.is_ok()) {
            self.tell_transition(&event);
        }
        done
    }

    fn carry_out(&self, life: &mut Lifecycle, action: Action) -> Result<(), String> {
        match action {
            Action::Configure => {
                let running = self.configure().map_err(|error| match error {
                    NodeError::Configure(why) => why,
                    error => error.to_string(),
                });
                life.running = Some(running?);
            }
            Action::Activate | Action::Deactivate => {
                if let Some(running) = &life.running {
                    running.set_active(action == Action::Activate);
                }
            }
            Action::Cleanup | Action::Shutdown => life.running = None,
        }
        Ok(())
    }

    /// Checks the parameters and starts the threads; SLAM itself is created with the first image.
    fn configure(&self) -> Result<Running, NodeError> {
        let mut table = self.table();
        let settings = Settings::of(&table);
        let builder = slam_of(self.builder.clone(), &settings, given_keys(&table));
        let refused = |e: OpenError| NodeError::Configure(e.to_string());
        let config = builder.settings().map_err(refused)?.config;
        for key in Config::keys() {
            if let Some(value) = config.get(key.name) {
                table.show(&format!("{}{}", settings::PREFIX, key.name), value.into());
            }
        }
        drop(table);
        if !settings.mask_file.is_empty() {
            image::dimensions(Path::new(&settings.mask_file))
                .map_err(|e| NodeError::Configure(format!("mask_file: {e}")))?;
        }
        if settings.load_map_on_start {
            check_map(&settings.map_path, settings.localization_only)
                .map_err(NodeError::Configure)?;
        }
        let door = NodeDoor::bind(&settings).map_err(NodeError::Configure)?;
        Running::start(&self.middleware, builder, &config, settings, door)
    }

    fn tell_transition(&self, event: &crate::wire::messages::lifecycle::TransitionDescription) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let message = TransitionEvent {
            timestamp: since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
            transition: event.transition.clone(),
            start_state: event.start_state.clone(),
            goal_state: event.goal_state.clone(),
        };
        self.tell(self.transition_events.as_ref(), &message);
    }

    /// Changes all of the parameters or none.
    fn change(&self, changes: &[(&str, &ParameterValue)]) -> Result<(), ParameterError> {
        let life = self.life();
        let configured = life.state.configured();
        let mut table = self.table();
        let mut new = table.clone();
        let mut changed = Vec::new();
        for (name, value) in changes {
            let before: Value = new.change(name, value, configured)?;
            if let Some((_, now)) = new.get(name).filter(|(_, now)| **now != before) {
                changed.push(Parameter {
                    name: (*name).to_owned(),
                    value: now.to_message(),
                });
            }
        }
        *table = new;
        let settings = Settings::of(&table);
        drop(table);
        let stamp = match &life.running {
            Some(running) => {
                running.shared().settings.store(Arc::new(settings));
                running.shared().now()
            }
            None => Default::default(),
        };
        drop(life);
        if !changed.is_empty() {
            let event = ParameterEvent {
                stamp: stamp.into(),
                node: self.middleware.node_name(),
                changed_parameters: changed,
                ..Default::default()
            };
            self.tell(self.parameter_events.as_ref(), &event);
        }
        Ok(())
    }

    fn tell<M: Message + serde::Serialize>(&self, topic: &dyn Publish, message: &M) {
        let sent = message.encode().map_err(MiddlewareError::from);
        if let Err(error) = sent.and_then(|data| topic.publish(data)) {
            tracing::warn!("{error}");
        }
    }
}

/// The parameters of the node of this full name.
fn table_of(full: &str, args: &RosArgs) -> Result<Table, NodeError> {
    let mut definitions = settings::definitions();
    definitions.extend(settings::keys());
    let mut table = Table::new(definitions);
    let name = full.rsplit('/').next().unwrap_or(full);
    for (parameter, value) in args.parameters_of(name, full)? {
        if parameter.starts_with("qos_overrides.") {
            tracing::warn!(
                "{parameter} is not supported and ignored: set image_qos or camera_info_qos"
            );
            continue;
        }
        table.preset(&parameter, &value)?;
    }
    Ok(table)
}

/// The configuration keys that parameters set.
fn given_keys(table: &Table) -> Vec<(String, serde_json::Value)> {
    let given = table.given_below(settings::PREFIX);
    given
        .map(|(key, value)| (key.to_owned(), value.to_json()))
        .collect()
}

/// Runs the self-test with the node's parameters; a check that fails is an error.
fn self_test(builder: SlamBuilder, settings: &Settings, table: &Table) -> Result<(), NodeError> {
    let report = selftest::run(
        slam_of(builder, settings, given_keys(table)),
        &Golden::IfKnown,
    )?;
    match report.passed() {
        true => tracing::info!("the self-test passed:\n{report}"),
        false => return Err(SelfTestError::Failed(report.failures()).into()),
    }
    Ok(())
}

/// Applies the node's parameters to `builder`.
fn slam_of(
    builder: SlamBuilder,
    settings: &Settings,
    keys: Vec<(String, serde_json::Value)>,
) -> SlamBuilder {
    let mut builder = builder.pace(Pace::Live).calibrated(settings.use_calib);
    for (key, value) in keys {
        builder = builder.set_value(key, value);
    }
    if !settings.config.is_empty() {
        builder = builder.config_file(&settings.config);
    }
    if !settings.weights.is_empty() {
        builder = builder.weights(&settings.weights);
    }
    if let Some(backend) = settings.backend {
        builder = builder.backend(backend);
    }
    if let Some(device) = settings.device {
        builder = builder.device(device);
    }
    if let Some(threads) = settings.threads {
        builder = builder.threads(threads);
    }
    if settings.use_mask {
        builder = builder.set_value("tracking.masks", true.into());
    }
    if settings.splat {
        builder = builder.set_value("splat.enable", true.into());
    }
    if settings.use_depth {
        builder = builder.depth();
    }
    if !settings.mask_file.is_empty() {
        builder = builder.mask(&settings.mask_file);
    }
    match settings.max_keyframes {
        0 => builder,
        keyframes => builder.max_keyframes(keyframes),
    }
}

/// Rejects an initial map that cannot be read.
fn check_map(map_path: &str, localization_only: bool) -> Result<(), String> {
    if map_path.is_empty() {
        return Err(
            "load_map_on_start is true and map_path is empty; set it to the map's file or folder"
                .into(),
        );
    }
    let file = saved::file_of(Path::new(map_path));
    match store::kind_of(&file) {
        Err(error) => Err(format!("map_path: {}: {error}", file.display())),
        // It is created with the first image.
        Ok(Kind::Missing) if !localization_only && folder_of(&file).is_dir() => Ok(()),
        Ok(Kind::Missing) if !localization_only => Err(format!(
            "map_path: expected an existing folder for the map, found none at {}: create it",
            folder_of(&file).display()
        )),
        Ok(Kind::Store | Kind::Packed) => store::Reader::open(&file)
            .map(|_| ())
            .map_err(|e| e.to_string()),
        Ok(_) => saved::Reader::open(&file)
            .map(|_| ())
            .map_err(|e| e.to_string()),
    }
}

//! The node: what it subscribes to, publishes, answers and does, knowing the world only through
//! [`Middleware`].
//!
//! Threads: one tracks (images from a slot in which the newest wins), one publishes poses and diagnostics,
//! one publishes clouds, one depths; the middleware's own threads only hand things over. Tracking waits for none of
//! them.

mod cloud;
mod clouds;
mod depth;
mod engine;
mod frames;
mod gates;
mod inbox;
mod lifecycle;
mod map_cloud;
mod output;
mod parameters;
mod publish;
#[cfg(feature = "bags")]
mod record;
mod robot;
mod running;
mod services;
mod settings;
mod shared;
mod status;
mod tf;
mod tracking;
mod uncertainty;

pub use engine::{Engine, EngineError, EngineFactory, ImageFormat, OnMap, OnSaved};
pub use parameters::ParameterError;
#[cfg(feature = "bags")]
pub use record::Recorder;
#[cfg(feature = "bags")]
pub use robot::Seen;
pub use settings::{Settings, Transport};

use super::args::{ArgsError, RosArgs};
use super::messages::Message;
use super::messages::lifecycle::TransitionEvent;
use super::messages::parameter::{Parameter, ParameterEvent, ParameterValue};
use super::middleware::{Middleware, MiddlewareError, Publish, Qos};
use super::names::NameError;
use lifecycle::{Action, Primary, Step};
use parameters::{Table, Value};
use running::Running;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Why the node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The command line or a parameter file.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// A parameter.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// A name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The middleware.
    #[error(transparent)]
    Middleware(#[from] MiddlewareError),
    /// SLAM cannot be set up with these parameters.
    #[error("the node could not be configured: {0}")]
    Configure(String),
}

/// The node. Dropped, it leaves the graph.
pub struct Node {
    inner: Arc<Inner>,
}

/// What services and the owner share.
struct Inner {
    factory: Arc<dyn EngineFactory>,
    parameters: Mutex<Table>,
    /// Held during transitions.
    lifecycle: Mutex<Life>,
    parameter_events: Box<dyn Publish>,
    transition_events: Box<dyn Publish>,
    // Last, so that what it has made goes before it.
    middleware: Arc<dyn Middleware>,
}

struct Life {
    state: Primary,
    running: Option<Running>,
}

/// How often [`Node::run`] looks whether it is to end.
const STOP_POLL: Duration = Duration::from_millis(50);

impl Node {
    /// Joins the graph with the parameters of the command line, and configures and activates the node
    /// unless `autostart` is false.
    ///
    /// # Errors
    /// Unknown parameters, bad values, names that cannot be advertised, settings that SLAM refuses.
    pub fn start(
        middleware: Arc<dyn Middleware>,
        factory: Arc<dyn EngineFactory>,
        args: &RosArgs,
    ) -> Result<Self, NodeError> {
        let mut table = Table::new(settings::definitions());
        let full = middleware.node_name();
        let name = full.rsplit('/').next().unwrap_or(&full).to_owned();
        for (parameter, value) in args.parameters_of(&name, &full)? {
            if parameter.starts_with("qos_overrides.") {
                tracing::warn!("{parameter} is ignored: set image_qos or camera_info_qos");
                continue;
            }
            table.preset(&parameter, &value)?;
        }
        tracing::info!("{full}: {}", middleware.describe());
        warn_of_small_buffers();
        let autostart = Settings::of(&table).autostart;
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
            factory,
            parameters: Mutex::new(table),
            lifecycle: Mutex::new(Life {
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

    /// Waits until `stop`, then ends everything.
    pub fn run(self, stop: &dyn Fn() -> bool) {
        while !stop() {
            std::thread::sleep(STOP_POLL);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Services may still hold the rest until the middleware goes.
        self.inner.life().running = None;
    }
}

impl Inner {
    fn life(&self) -> MutexGuard<'_, Life> {
        self.lifecycle.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.parameters.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Does a transition; `Err`: why it failed, and the state is as before.
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

    fn take(&self, life: &mut Life, step: Step) -> Result<(), String> {
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

    fn carry_out(&self, life: &mut Life, action: Action) -> Result<(), String> {
        match action {
            Action::Configure => {
                let settings = Settings::of(&self.table());
                self.factory.check(&settings).map_err(|e| e.to_string())?;
                let running = Running::start(&self.middleware, &self.factory, settings);
                life.running = Some(running.map_err(|e| e.to_string())?);
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

    fn tell_transition(&self, event: &super::messages::lifecycle::TransitionDescription) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let message = TransitionEvent {
            timestamp: since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
            transition: event.transition.clone(),
            start_state: event.start_state.clone(),
            goal_state: event.goal_state.clone(),
        };
        self.tell(self.transition_events.as_ref(), &message);
    }

    /// Changes parameters: all of them or none.
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

/// The kernel's limit for receive buffers, below which bursts of images are lost.
const RECEIVE_BUFFER: u64 = 2 << 20;

fn warn_of_small_buffers() {
    let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max");
    let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
    if let Some(limit) = limit.filter(|limit| *limit < RECEIVE_BUFFER) {
        tracing::warn!(
            "the kernel limits receive buffers to {limit} bytes, raw images will be lost: run \
             `sudo sysctl -w net.core.rmem_max={RECEIVE_BUFFER}` (or use image_transport:=compressed)"
        );
    }
}

//! Client based on rcl and the RMW of the sourced ROS 2, for use on robots.
//!
//! Topics carry the node's own CDR; service messages are converted through the CDR of r2r's
//! generated types, which have the same fields in the same order.

use super::middleware::{
    Lane, Middleware, MiddlewareError, OnMessage, OnRequest, Publish, Respond, Subscription,
};
use crate::wire::cdr;
use crate::wire::names::NodeNames;
use crate::wire::{Payload, Qos};
use bytes::Bytes;
use futures::stream::{BoxStream, SelectAll, StreamExt};
use r2r::{PublisherUntyped, QosProfile, WrappedServiceTypeSupport};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A task to run with the node on the thread that spins it.
type Job = Box<dyn FnOnce(&mut r2r::Node) + Send>;
/// A subscription or service with its handler attached.
type Handled = BoxStream<'static, ()>;

/// Maximum time to wait for messages before new subscriptions and publishers are served.
const SPIN: Duration = Duration::from_millis(5);
/// Maximum number of tasks that wait for the spinning thread. Each caller waits for its own, so this
/// is the number of threads that create subscriptions, publishers and services at once.
const JOBS: usize = 8;
/// Maximum number of subscriptions and services that wait to be handled. The node creates about
/// thirty in all, and each waits only until the lane's thread wakes up.
const STREAMS: usize = 64;

/// A node of the sourced ROS. Dropping it leaves the graph.
pub struct R2r {
    names: NodeNames,
    jobs: Option<SyncSender<Job>>,
    /// By [`Lane`].
    lanes: Vec<mpsc::Sender<Handled>>,
    threads: Vec<JoinHandle<()>>,
}

impl R2r {
    /// Creates the node. rcl reads `--ros-args` from the command line of the process itself;
    /// `names` must come from the same arguments.
    pub fn new(names: &NodeNames) -> Result<Self, MiddlewareError> {
        let fail = |cause: String| MiddlewareError::Join {
            domain: std::env::var("ROS_DOMAIN_ID")
                .ok()
                .and_then(|d| d.parse().ok())
                .unwrap_or(0),
            cause,
        };
        let context = r2r::Context::create().map_err(|e| fail(e.to_string()))?;
        let node = r2r::Node::create(context, names.name(), names.namespace());
        let node = node.map_err(|e| fail(e.to_string()))?;
        let mut threads = Vec::new();
        let mut start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(run);
            thread
                .map(|t| threads.push(t))
                .map_err(|e| fail(e.to_string()))
        };
        let (jobs, inbox) = sync_channel(JOBS);
        start("ros-spin", Box::new(move || spin(node, &inbox)))?;
        let mut lanes = Vec::new();
        for lane in Lane::ALL {
            let (streams, inbox) = mpsc::channel(STREAMS);
            start(lane.thread(), Box::new(move || handle(inbox)))?;
            lanes.push(streams);
        }
        Ok(Self {
            names: names.clone(),
            jobs: Some(jobs),
            lanes,
            threads,
        })
    }

    /// Runs `act` with the node and waits for its result.
    fn with<T: Send + 'static>(
        &self,
        what: &'static str,
        name: &str,
        act: impl FnOnce(&mut r2r::Node) -> r2r::Result<T> + Send + 'static,
    ) -> Result<T, MiddlewareError> {
        let fail = |cause: String| MiddlewareError::Create {
            what,
            name: name.to_owned(),
            cause,
        };
        let (sender, result) = sync_channel(1);
        let job: Job = Box::new(move |node| {
            // The caller waits below.
            let _ = sender.send(act(node));
        });
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(job));
        match (sent, result.recv()) {
            (Some(Ok(())), Ok(result)) => result.map_err(|e| fail(e.to_string())),
            _ => Err(fail("the node has stopped spinning".into())),
        }
    }

    fn lane(&self, lane: Lane) -> Option<&mpsc::Sender<Handled>> {
        self.lanes.get(lane as usize)
    }

    fn serve_as<T>(&self, service: &str, mut handler: OnRequest) -> Result<(), MiddlewareError>
    where
        T: WrappedServiceTypeSupport + 'static,
        T::Request: Send,
        T::Response: Send,
    {
        let name = service.to_owned();
        let requests = self.with("service", service, move |node| {
            node.create_service::<T>(&name, QosProfile::services_default())
        })?;
        let name = service.to_owned();
        let handled = requests.map(move |request| {
            let encoded = cdr::encode("a request", &request.message, 256);
            let payload = match encoded {
                Ok(data) => Payload::from(data),
                Err(error) => return tracing::warn!("{name}: {error}"),
            };
            let name = name.clone();
            let respond: Respond = Box::new(move |data| {
                let reply = cdr::decode::<T::Response>("a reply", &Payload::from(data));
                let sent = reply
                    .map_err(|e| e.to_string())
                    .and_then(|reply| request.respond(reply).map_err(|e| e.to_string()));
                if let Err(error) = sent {
                    tracing::warn!("{name}: cannot send a reply: {error}");
                }
            });
            handler(payload, respond);
        });
        if let Some(lane) = self.lane(Lane::Services) {
            // The lane lives at least as long as the node.
            let _ = lane.try_send(handled.boxed());
        }
        Ok(())
    }
}

impl Drop for R2r {
    fn drop(&mut self) {
        self.jobs = None;
        self.lanes.clear();
        for thread in self.threads.drain(..) {
            let own = thread.thread().id() == std::thread::current().id();
            if !own && thread.join().is_err() {
                tracing::error!("a thread of the ROS client panicked");
            }
        }
    }
}

/// Spins the node until the client is dropped.
fn spin(mut node: r2r::Node, jobs: &Receiver<Job>) {
    loop {
        loop {
            match jobs.try_recv() {
                Ok(job) => job(&mut node),
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            }
        }
        node.spin_once(SPIN);
    }
}

/// Hands a stream to the thread that handles it.
fn take_over(lane: &mpsc::Sender<Handled>, stream: Handled) {
    if lane.try_send(stream).is_err() {
        tracing::error!("a subscription is not handled: {STREAMS} others wait, or the client ends");
    }
}

/// Handles messages and requests until the client is dropped.
fn handle(mut inbox: mpsc::Receiver<Handled>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!("messages are not handled: {error}"),
    };
    runtime.block_on(async {
        let mut all = SelectAll::new();
        loop {
            tokio::select! {
                stream = inbox.recv() => match stream {
                    Some(stream) => all.push(stream),
                    None => return,
                },
                // A message was handled when it was taken.
                Some(()) = all.next(), if !all.is_empty() => {}
            }
        }
    });
}

fn profile(qos: Qos) -> QosProfile {
    let profile = QosProfile::default().keep_last(qos.depth);
    let profile = match qos.reliable {
        true => profile.reliable(),
        false => profile.best_effort(),
    };
    match qos.transient_local {
        true => profile.transient_local(),
        false => profile.volatile(),
    }
}

/// A publisher, behind a lock because r2r's publisher is `Send` but not `Sync`.
struct Topic {
    name: String,
    publisher: Mutex<PublisherUntyped>,
    jobs: SyncSender<Job>,
}

/// Encapsulation header of little-endian plain CDR.
const LITTLE_ENDIAN: [u8; cdr::HEADER] = [0, 1, 0, 0];

impl Publish for Topic {
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError> {
        let mut whole = Vec::with_capacity(cdr::HEADER + data.len());
        whole.extend_from_slice(&LITTLE_ENDIAN);
        whole.extend_from_slice(&data);
        let publisher = self.publisher.lock().unwrap_or_else(|e| e.into_inner());
        publisher
            .publish_raw(&whole)
            .map_err(|cause| MiddlewareError::Send {
                topic: self.name.clone(),
                cause: cause.to_string(),
            })
    }

    fn subscribers(&self) -> usize {
        let publisher = self.publisher.lock().unwrap_or_else(|e| e.into_inner());
        publisher
            .get_inter_process_subscription_count()
            .unwrap_or(0)
    }

    fn topic(&self) -> &str {
        &self.name
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        let publisher = self
            .publisher
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone();
        // Without the node there is nothing to clean up.
        let _ = self.jobs.send(Box::new(move |node| {
            node.destroy_publisher_untyped(publisher)
        }));
    }
}

impl Middleware for R2r {
    fn describe(&self) -> String {
        let rmw = std::env::var("RMW_IMPLEMENTATION").unwrap_or_else(|_| "its default RMW".into());
        let distribution = std::env::var("ROS_DISTRO").unwrap_or_else(|_| "unknown".into());
        format!("ROS 2 {distribution} through rcl, {rmw}")
    }

    fn node_name(&self) -> String {
        self.names.full()
    }

    fn resolve(&self, name: &str) -> Result<String, MiddlewareError> {
        Ok(self.names.resolve(name)?)
    }

    fn advertise(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
    ) -> Result<Box<dyn Publish>, MiddlewareError> {
        // rcl expands and remaps the name itself.
        let asked = topic.to_owned();
        let publisher = self.with("publisher", topic, move |node| {
            node.create_publisher_untyped(&asked, type_name, profile(qos))
        })?;
        let Some(jobs) = self.jobs.clone() else {
            return Err(MiddlewareError::Create {
                what: "publisher",
                name: topic.to_owned(),
                cause: "the node has ended".into(),
            });
        };
        Ok(Box::new(Topic {
            name: self.names.resolve(topic)?,
            publisher: Mutex::new(publisher),
            jobs,
        }))
    }

    fn subscribe(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
        lane: Lane,
        mut handler: OnMessage,
    ) -> Result<Subscription, MiddlewareError> {
        let asked = topic.to_owned();
        let messages = self.with("subscription", topic, move |node| {
            node.subscribe_raw(&asked, type_name, profile(qos))
        })?;
        let (alive, ended) = oneshot::channel::<()>();
        let handled = messages.take_until(ended).map(move |whole| {
            let big_endian = whole.get(1).is_some_and(|kind| kind & 1 == 0);
            if whole.len() >= cdr::HEADER {
                let data = Bytes::from(whole).slice(cdr::HEADER..);
                handler(Payload { data, big_endian });
            }
        });
        if let Some(lane) = self.lane(lane) {
            // The lane lives at least as long as the node.
            let _ = lane.try_send(handled.boxed());
        }
        Ok(Box::new(alive))
    }

    fn serve(
        &self,
        service: &str,
        type_name: &'static str,
        handler: OnRequest,
    ) -> Result<(), MiddlewareError> {
        macro_rules! serve {
            ($($(#[$condition:meta])* $name:literal => $kind:ty,)*) => {
                match type_name {
                    $($(#[$condition])* $name => self.serve_as::<$kind>(service, handler),)*
                    _ => Err(MiddlewareError::Create {
                        what: "service",
                        name: service.to_owned(),
                        cause: format!("this client does not support {type_name}"),
                    }),
                }
            };
        }
        use r2r::lifecycle_msgs::srv as lifecycle;
        use r2r::rcl_interfaces::srv as rcl;
        serve!(
            // r2r's documentation mode, which works without ROS, lacks this package.
            #[cfg(not(feature = "r2r-check"))]
            "std_srvs/srv/Trigger" => r2r::std_srvs::srv::Trigger::Service,
            "lifecycle_msgs/srv/ChangeState" => lifecycle::ChangeState::Service,
            "lifecycle_msgs/srv/GetState" => lifecycle::GetState::Service,
            "lifecycle_msgs/srv/GetAvailableStates" => lifecycle::GetAvailableStates::Service,
            "lifecycle_msgs/srv/GetAvailableTransitions" => lifecycle::GetAvailableTransitions::Service,
            "rcl_interfaces/srv/GetParameters" => rcl::GetParameters::Service,
            "rcl_interfaces/srv/GetParameterTypes" => rcl::GetParameterTypes::Service,
            "rcl_interfaces/srv/DescribeParameters" => rcl::DescribeParameters::Service,
            "rcl_interfaces/srv/ListParameters" => rcl::ListParameters::Service,
            "rcl_interfaces/srv/SetParameters" => rcl::SetParameters::Service,
            "rcl_interfaces/srv/SetParametersAtomically" => rcl::SetParametersAtomically::Service,
        )
    }

    /// r2r does not list nodes, but it lists the publishers of a topic with their nodes, and every
    /// rcl node has a publisher on this topic.
    fn same_name_nodes(&self) -> usize {
        let (name, namespace) = (
            self.names.name().to_owned(),
            self.names.namespace().to_owned(),
        );
        let topic = match self.names.resolve("/parameter_events") {
            Ok(topic) => topic,
            Err(_) => return 0,
        };
        let found = self.with("list of publishers", "/parameter_events", move |node| {
            let all = node.get_publishers_info_by_topic(&topic, false)?;
            let own = all
                .iter()
                .filter(|p| p.node_name == name && p.node_namespace == namespace);
            Ok(own.count())
        });
        // One of them is this node's own.
        found.map_or(0, |count| count.saturating_sub(1))
    }
}

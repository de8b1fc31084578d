//! The client that speaks DDS itself, on RustDDS. No ROS installation is needed, to build or to run.

mod environment;
mod graph;
mod lane;
mod link;
mod raw;
mod service;
mod watch;
mod writer;

pub use environment::{Environment, EnvironmentError, Mapping, Reach};

use super::middleware::{
    Lane as LaneName, Middleware, MiddlewareError, OnMessage, OnRequest, Publish, Qos, Subscription,
};
use super::names::NodeNames;
use graph::Others;
use lane::{Lane, OnSample, Ticket};
use link::{DdsTopic, Link};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use writer::Writer;

/// Requests and replies, as `rmw_qos_profile_services_default`.
const SERVICE_QOS: Qos = Qos::reliable(10);

/// One node on a DDS participant. Dropped, it leaves the graph.
pub struct Dds {
    // First, so that no handler runs any more when the rest goes.
    services: Mutex<Vec<Arc<Ticket>>>,
    images: Lane,
    rest: Lane,
    core: Arc<Core>,
    ending: Arc<AtomicBool>,
    watch: Option<JoinHandle<()>>,
}

impl Drop for Dds {
    fn drop(&mut self) {
        // It must not be the last to hold the participant: the process may end before it lets go.
        self.ending.store(true, Ordering::Release);
        if self
            .watch
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!("the thread that looks for lost peers panicked");
        }
    }
}

/// What outlives a participant.
struct Core {
    environment: Environment,
    names: NodeNames,
    others: Arc<Others>,
    link: Mutex<Link>,
    endpoints: Mutex<Vec<(DdsTopic, Endpoint)>>,
}

/// What has to be made anew on another participant, as long as somebody has it.
enum Endpoint {
    Reader(Weak<Ticket>),
    Writer(Weak<Writer>),
}

impl Core {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<(DdsTopic, Endpoint)>> {
        self.endpoints.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn remember(&self, topic: DdsTopic, endpoint: Endpoint) {
        let mut all = self.endpoints();
        all.retain(|(_, endpoint)| match endpoint {
            Endpoint::Reader(ticket) => ticket.strong_count() > 0,
            Endpoint::Writer(writer) => writer.strong_count() > 0,
        });
        all.push((topic, endpoint));
    }

    /// Takes another participant, with all that the node has, in place of the one it has.
    fn rejoin(&self) -> Result<(), MiddlewareError> {
        let mut new = Link::new(&self.names, &self.environment)?;
        self.others.set_own(new.id());
        let fail = |topic: &DdsTopic, cause| MiddlewareError::Create {
            what: "reader or writer",
            name: topic.name.clone(),
            cause,
        };
        let mut link = self.link();
        for (topic, endpoint) in self.endpoints().iter() {
            match endpoint {
                Endpoint::Reader(ticket) => {
                    if let Some(ticket) = ticket.upgrade() {
                        ticket.replace(new.reader(topic).map_err(|e| fail(topic, e))?);
                    }
                }
                Endpoint::Writer(writer) => {
                    if let Some(writer) = writer.upgrade() {
                        writer.replace(new.writer(topic).map_err(|e| fail(topic, e))?);
                    }
                }
            }
        }
        *link = new;
        Ok(())
    }
}

impl Dds {
    /// Joins the domain.
    pub fn new(names: NodeNames, environment: Environment) -> Result<Self, MiddlewareError> {
        let fail = |cause: String| MiddlewareError::Join {
            domain: environment.domain,
            cause,
        };
        let thread = |name, first| Lane::start(name, first).map_err(|e| fail(e.to_string()));
        let link = Link::new(&names, &environment)?;
        let others = Arc::new(Others::default());
        others.set_own(link.id());
        let mut client = Self {
            services: Mutex::default(),
            images: thread("ros-images", true)?,
            rest: thread("ros-rest", false)?,
            core: Arc::new(Core {
                environment,
                names,
                others,
                link: Mutex::new(link),
                endpoints: Mutex::default(),
            }),
            ending: Arc::default(),
            watch: None,
        };
        // Each participant's message replaces its last one; those of all are read.
        let topic = DdsTopic {
            name: graph::TOPIC.into(),
            kind: graph::TYPE.into(),
            qos: Qos::latched(100),
        };
        let handler = client.core.others.handler(environment.gid_bytes);
        let heard = client.read(topic, LaneName::Rest, handler).map_err(fail)?;
        client.keep(heard);
        let (core, ending) = (Arc::clone(&client.core), Arc::clone(&client.ending));
        let thread = std::thread::Builder::new()
            .name("ros-watch".into())
            .spawn(move || watch::run(&core, environment.domain, &ending));
        client.watch = Some(thread.map_err(|e| fail(e.to_string()))?);
        Ok(client)
    }

    /// Reads a topic until the ticket is dropped.
    fn read(
        &self,
        topic: DdsTopic,
        lane: LaneName,
        handler: OnSample,
    ) -> Result<Arc<Ticket>, String> {
        let lane = match lane {
            LaneName::Images => &self.images,
            LaneName::Rest => &self.rest,
        };
        // Held until the endpoint is remembered, so that no new participant comes without it.
        let mut link = self.core.link();
        let reader = link.reader(&topic)?;
        let ticket = Arc::new(lane.add(reader, handler));
        self.core
            .remember(topic, Endpoint::Reader(Arc::downgrade(&ticket)));
        Ok(ticket)
    }

    /// A writer of a topic; `name` is what ROS calls it.
    fn write(&self, name: String, topic: DdsTopic) -> Result<Arc<Writer>, String> {
        let mut link = self.core.link();
        let writer = Arc::new(Writer::new(name, link.writer(&topic)?, topic.qos));
        self.core
            .remember(topic, Endpoint::Writer(Arc::downgrade(&writer)));
        Ok(writer)
    }

    fn keep(&self, ticket: Arc<Ticket>) {
        let mut services = self.services.lock().unwrap_or_else(|e| e.into_inner());
        services.push(ticket);
    }
}

impl Middleware for Dds {
    fn describe(&self) -> String {
        format!("DDS without ROS (RustDDS), {}", self.core.environment)
    }

    fn node_name(&self) -> String {
        self.core.names.full()
    }

    fn resolve(&self, name: &str) -> Result<String, MiddlewareError> {
        Ok(self.core.names.resolve(name)?)
    }

    fn advertise(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
    ) -> Result<Box<dyn Publish>, MiddlewareError> {
        let name = self.core.names.resolve(topic)?;
        let topic = DdsTopic {
            name: format!("rt{name}"),
            kind: raw::dds_type(type_name, ""),
            qos,
        };
        match self.write(name.clone(), topic) {
            Ok(writer) => Ok(Box::new(writer)),
            Err(cause) => Err(MiddlewareError::Create {
                what: "publisher",
                name,
                cause,
            }),
        }
    }

    fn subscribe(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
        lane: LaneName,
        mut handler: OnMessage,
    ) -> Result<Subscription, MiddlewareError> {
        let name = self.core.names.resolve(topic)?;
        let topic = DdsTopic {
            name: format!("rt{name}"),
            kind: raw::dds_type(type_name, ""),
            qos,
        };
        let on_sample: OnSample = Box::new(move |sample| handler(sample.payload));
        match self.read(topic, lane, on_sample) {
            Ok(ticket) => Ok(Box::new(ticket)),
            Err(cause) => Err(MiddlewareError::Create {
                what: "subscription",
                name,
                cause,
            }),
        }
    }

    fn serve(
        &self,
        service: &str,
        type_name: &'static str,
        handler: OnRequest,
    ) -> Result<(), MiddlewareError> {
        let name = self.core.names.resolve(service)?;
        let fail = |cause| MiddlewareError::Create {
            what: "service",
            name: name.clone(),
            cause,
        };
        let replies = DdsTopic {
            name: format!("rr{name}Reply"),
            kind: raw::dds_type(type_name, "_Response"),
            qos: SERVICE_QOS,
        };
        let requests = DdsTopic {
            name: format!("rq{name}Request"),
            kind: raw::dds_type(type_name, "_Request"),
            qos: SERVICE_QOS,
        };
        let replies = self.write(name.clone(), replies).map_err(fail)?;
        let on_sample = service::handler(self.core.environment.mapping, replies, handler);
        let ticket = self.read(requests, LaneName::Rest, on_sample);
        self.keep(ticket.map_err(fail)?);
        Ok(())
    }

    fn namesakes(&self) -> usize {
        self.core.others.named(&self.core.names.full())
    }
}

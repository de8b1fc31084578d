//! DDS client based on RustDDS; needs no ROS installation to build or run.

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
    Lane as LaneName, Middleware, MiddlewareError, OnMessage, OnRequest, Publish, Subscription,
};
use crate::wire::Qos;
use crate::wire::names::NodeNames;
use graph::Others;
use lane::{Handle, Lane, OnSample};
use link::{DdsTopic, Link};
use rustdds::{GUID, RTPSEntity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use writer::Writer;

/// QoS of requests and replies, same as `rmw_qos_profile_services_default`.
const SERVICE_QOS: Qos = Qos::reliable(10);

/// A node on a DDS participant. Dropping it leaves the graph.
pub struct Dds {
    // Dropped first, so that no handler runs while the rest is dropped.
    services: Mutex<Vec<Arc<Handle>>>,
    /// By [`LaneName`].
    lanes: [Lane; LaneName::ALL.len()],
    core: Arc<Core>,
    ending: Arc<AtomicBool>,
    watch: Option<JoinHandle<()>>,
}

impl Drop for Dds {
    fn drop(&mut self) {
        // The watch thread must not hold the last reference to the participant: the process could
        // exit before it is released.
        self.ending.store(true, Ordering::Release);
        if self
            .watch
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::error!("the thread that watches for lost peers panicked");
        }
    }
}

/// State that outlives a participant.
struct Core {
    environment: Environment,
    names: NodeNames,
    others: Arc<Others>,
    link: Mutex<Link>,
    endpoints: Mutex<Vec<(DdsTopic, Endpoint, GUID)>>,
}

/// An endpoint to recreate on a new participant while it is in use.
enum Endpoint {
    Reader(Weak<Handle>),
    Writer(Weak<Writer>),
}

impl Core {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<(DdsTopic, Endpoint, GUID)>> {
        self.endpoints.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Remembers an endpoint; those that are no longer in use leave the node's announcement.
    fn remember(&self, link: &mut Link, topic: DdsTopic, endpoint: Endpoint, id: GUID) {
        let mut all = self.endpoints();
        let mut gone = Vec::new();
        all.retain(|(_, endpoint, id)| {
            let used = match endpoint {
                Endpoint::Reader(ticket) => ticket.strong_count() > 0,
                Endpoint::Writer(writer) => writer.strong_count() > 0,
            };
            if !used {
                gone.push(*id);
            }
            used
        });
        all.push((topic, endpoint, id));
        link.forget(&gone);
    }

    /// Replaces the participant by a new one with the same endpoints.
    fn rejoin(&self) -> Result<(), MiddlewareError> {
        let mut new = Link::new(&self.names, &self.environment)?;
        self.others.set_own(new.id());
        let fail = |topic: &DdsTopic, cause| MiddlewareError::Create {
            what: "reader or writer",
            name: topic.name.clone(),
            cause,
        };
        let mut link = self.link();
        for (topic, endpoint, id) in self.endpoints().iter_mut() {
            match endpoint {
                Endpoint::Reader(ticket) => {
                    if let Some(ticket) = ticket.upgrade() {
                        let reader = new.reader(topic).map_err(|e| fail(topic, e))?;
                        *id = reader.guid();
                        ticket.replace(reader);
                    }
                }
                Endpoint::Writer(writer) => {
                    if let Some(writer) = writer.upgrade() {
                        let writes = new.writer(topic).map_err(|e| fail(topic, e))?;
                        *id = writes.guid();
                        writer.replace(writes);
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
        let lane = |name: LaneName| Lane::start(name.thread(), name == LaneName::Images);
        let lanes = LaneName::ALL
            .map(lane)
            .into_iter()
            .collect::<Result<Vec<_>, _>>();
        let lanes = lanes.map_err(|e| fail(e.to_string()))?;
        let lanes = lanes.try_into();
        let lanes = lanes.map_err(|_| fail("a thread for each lane".to_owned()))?;
        let link = Link::new(&names, &environment)?;
        let others = Arc::new(Others::default());
        others.set_own(link.id());
        let mut client = Self {
            services: Mutex::default(),
            lanes,
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
        // Each message of a participant replaces its previous one; the messages of all participants
        // are read.
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

    /// Reads a topic until the handle is dropped.
    fn read(
        &self,
        topic: DdsTopic,
        lane: LaneName,
        handler: OnSample,
    ) -> Result<Arc<Handle>, String> {
        let lane = &self.lanes[lane as usize];
        // Held until the endpoint is recorded, so that a rejoin cannot miss it.
        let mut link = self.core.link();
        let reader = link.reader(&topic)?;
        let id = reader.guid();
        let ticket = Arc::new(lane.add(reader, handler));
        let endpoint = Endpoint::Reader(Arc::downgrade(&ticket));
        self.core.remember(&mut link, topic, endpoint, id);
        Ok(ticket)
    }

    /// Creates a writer; `name` is the ROS name of the topic.
    fn write(&self, name: String, topic: DdsTopic) -> Result<Arc<Writer>, String> {
        let mut link = self.core.link();
        let writes = link.writer(&topic)?;
        let id = writes.guid();
        let writer = Arc::new(Writer::new(name, writes, topic.qos));
        let endpoint = Endpoint::Writer(Arc::downgrade(&writer));
        self.core.remember(&mut link, topic, endpoint, id);
        Ok(writer)
    }

    fn keep(&self, ticket: Arc<Handle>) {
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
        let ticket = self.read(requests, LaneName::Services, on_sample);
        self.keep(ticket.map_err(fail)?);
        Ok(())
    }

    fn same_name_nodes(&self) -> usize {
        self.core.others.named(&self.core.names.full())
    }
}

//! The client that speaks DDS itself, on RustDDS. No ROS installation is needed, to build or to run.

mod environment;
mod graph;
mod lane;
mod raw;
mod service;
mod writer;

pub use environment::{Environment, EnvironmentError, Mapping, Reach};

use super::middleware::{
    Lane as LaneName, Middleware, MiddlewareError, OnMessage, OnRequest, Publish, Qos, Subscription,
};
use super::names::NodeNames;
use graph::{Others, OwnNode};
use lane::{Lane, OnSample, Ticket};
use raw::{Raw, RawReader, RawWriter};
use rustdds::{DomainParticipant, DomainParticipantBuilder, GUID, RTPSEntity, TopicKind};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use writer::Writer;

/// Requests and replies, as `rmw_qos_profile_services_default`.
const SERVICE_QOS: Qos = Qos::reliable(10);

/// One node on one DDS participant. Dropped, it leaves the graph.
pub struct Dds {
    // First, so that no handler runs any more when the rest goes.
    services: Mutex<Vec<Ticket>>,
    images: Lane,
    rest: Lane,
    environment: Environment,
    names: NodeNames,
    publisher: rustdds::Publisher,
    subscriber: rustdds::Subscriber,
    own: Mutex<OwnNode>,
    others: Arc<Others>,
    graph: RawWriter,
    participant: DomainParticipant,
}

impl Dds {
    /// Joins the domain.
    pub fn new(names: NodeNames, environment: Environment) -> Result<Self, MiddlewareError> {
        let fail = |cause: String| MiddlewareError::Join {
            domain: environment.domain,
            cause,
        };
        let mut builder = DomainParticipantBuilder::new(environment.domain);
        if environment.reach == Reach::Localhost {
            builder = builder.with_only_networks([Ipv4Addr::LOCALHOST]);
        }
        let participant = builder.build().map_err(|e| fail(e.to_string()))?;
        let any = raw::writer_policies(Qos::reliable(10));
        let publisher = participant
            .create_publisher(&any)
            .map_err(|e| fail(e.to_string()))?;
        let subscriber = participant
            .create_subscriber(&any)
            .map_err(|e| fail(e.to_string()))?;

        // A participant's message replaces its last one, but those of all participants are read: the topic's
        // cache has the depth of the first topic of this name.
        let heard = raw::reader_policies(Qos::latched(100));
        let topic = participant
            .create_topic(
                graph::TOPIC.into(),
                graph::TYPE.into(),
                &heard,
                TopicKind::NoKey,
            )
            .map_err(|e| fail(e.to_string()))?;
        let told = raw::writer_policies(Qos::latched(1));
        let graph: RawWriter = publisher
            .create_datawriter_no_key::<_, Raw>(&topic, Some(told))
            .map_err(|e| fail(e.to_string()))?;
        let reader: RawReader = subscriber
            .create_simple_datareader_no_key::<_, Raw>(&topic, Some(heard))
            .map_err(|e| fail(e.to_string()))?;

        let thread = |name| Lane::start(name).map_err(|e| fail(e.to_string()));
        let (images, rest) = (thread("ros-images")?, thread("ros-rest")?);
        let mut own = OwnNode::new(participant.guid(), &names, environment.gid_bytes);
        own.add_writer(graph.guid());
        own.add_reader(reader.guid());
        let others = Arc::new(Others::default());
        let heard = rest.add(
            reader,
            others.handler(participant.guid(), environment.gid_bytes),
        );
        let client = Self {
            services: Mutex::new(vec![heard]),
            images,
            rest,
            environment,
            names,
            publisher,
            subscriber,
            own: Mutex::new(own),
            others,
            graph,
            participant,
        };
        client.announce(|_| ());
        Ok(client)
    }

    /// Changes what is known of this node, and tells.
    fn announce(&self, change: impl FnOnce(&mut OwnNode)) {
        let mut own = self.own.lock().unwrap_or_else(|e| e.into_inner());
        change(&mut own);
        if let Err(error) = self.graph.write(own.encode(), None) {
            tracing::warn!("this node may be missing in the ROS graph: {error}");
        }
    }

    /// A reader of the DDS topic `dds_name`.
    fn reader(&self, dds_name: String, dds_type: String, qos: Qos) -> Result<RawReader, String> {
        let qos = raw::reader_policies(qos);
        let topic = self
            .participant
            .create_topic(dds_name, dds_type, &qos, TopicKind::NoKey)
            .map_err(|e| e.to_string())?;
        self.subscriber
            .create_simple_datareader_no_key::<_, Raw>(&topic, Some(qos))
            .map_err(|e| e.to_string())
    }

    /// A writer of the DDS topic `dds_name`, and its id.
    fn writer(
        &self,
        name: String,
        dds_name: String,
        dds_type: String,
        qos: Qos,
    ) -> Result<(Writer, GUID), String> {
        let qos = raw::writer_policies(qos);
        let topic = self
            .participant
            .create_topic(dds_name, dds_type, &qos, TopicKind::NoKey)
            .map_err(|e| e.to_string())?;
        let writer: RawWriter = self
            .publisher
            .create_datawriter_no_key::<_, Raw>(&topic, Some(qos))
            .map_err(|e| e.to_string())?;
        let id = writer.guid();
        Ok((Writer::new(name, writer), id))
    }
}

impl Middleware for Dds {
    fn describe(&self) -> String {
        format!("DDS without ROS (RustDDS), {}", self.environment)
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
        let name = self.names.resolve(topic)?;
        let made = self.writer(
            name.clone(),
            format!("rt{name}"),
            raw::dds_type(type_name, ""),
            qos,
        );
        let (writer, id) = made.map_err(|cause| MiddlewareError::Create {
            what: "publisher",
            name,
            cause,
        })?;
        self.announce(|own| own.add_writer(id));
        Ok(Box::new(writer))
    }

    fn subscribe(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
        lane: LaneName,
        mut handler: OnMessage,
    ) -> Result<Subscription, MiddlewareError> {
        let name = self.names.resolve(topic)?;
        let made = self.reader(format!("rt{name}"), raw::dds_type(type_name, ""), qos);
        let reader = made.map_err(|cause| MiddlewareError::Create {
            what: "subscription",
            name,
            cause,
        })?;
        self.announce(|own| own.add_reader(reader.guid()));
        let on_sample: OnSample = Box::new(move |sample| handler(sample.payload));
        let lane = match lane {
            LaneName::Images => &self.images,
            LaneName::Rest => &self.rest,
        };
        Ok(Box::new(lane.add(reader, on_sample)))
    }

    fn serve(
        &self,
        service: &str,
        type_name: &'static str,
        handler: OnRequest,
    ) -> Result<(), MiddlewareError> {
        let name = self.names.resolve(service)?;
        let fail = |cause| MiddlewareError::Create {
            what: "service",
            name: name.clone(),
            cause,
        };
        let (replies, id) = self
            .writer(
                name.clone(),
                format!("rr{name}Reply"),
                raw::dds_type(type_name, "_Response"),
                SERVICE_QOS,
            )
            .map_err(fail)?;
        let requests = self
            .reader(
                format!("rq{name}Request"),
                raw::dds_type(type_name, "_Request"),
                SERVICE_QOS,
            )
            .map_err(fail)?;
        self.announce(|own| {
            own.add_writer(id);
            own.add_reader(requests.guid());
        });
        let on_sample = service::handler(self.environment.mapping, Arc::new(replies), handler);
        let ticket = self.rest.add(requests, on_sample);
        self.services
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(ticket);
        Ok(())
    }

    fn namesakes(&self) -> usize {
        self.others.named(&self.names.full())
    }
}

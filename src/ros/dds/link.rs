//! A DDS participant and the node's endpoints on it.

use super::environment::{Environment, Reach};
use super::graph::{self, OwnNode};
use super::raw::{self, Raw, RawReader, RawWriter};
use crate::ros::middleware::MiddlewareError;
use crate::ros::priority::RaisedPriority;
use crate::wire::Qos;
use crate::wire::names::NodeNames;
use rustdds::{
    DomainParticipant, DomainParticipantBuilder, DomainParticipantStatusListener, GUID, RTPSEntity,
    TopicKind,
};
use std::net::Ipv4Addr;

/// A DDS topic.
#[derive(Debug, Clone)]
pub struct DdsTopic {
    /// `rt/image`, `rq/…Request`, `rr/…Reply`.
    pub name: String,
    /// `sensor_msgs::msg::dds_::Image_`
    pub kind: String,
    pub qos: Qos,
}

/// The participant. Dropping it leaves the domain.
pub struct Link {
    publisher: rustdds::Publisher,
    subscriber: rustdds::Subscriber,
    own: OwnNode,
    graph: RawWriter,
    participant: DomainParticipant,
}

impl Link {
    /// Joins the domain and announces the node, initially without endpoints.
    pub fn new(names: &NodeNames, environment: &Environment) -> Result<Self, MiddlewareError> {
        let fail = |cause: String| MiddlewareError::Join {
            domain: environment.domain,
            cause,
        };
        let mut builder = DomainParticipantBuilder::new(environment.domain);
        if environment.reach == Reach::Localhost {
            builder = builder.with_only_networks([Ipv4Addr::LOCALHOST]);
        }
        // The participant's threads carry every message and inherit this priority.
        let priority = RaisedPriority::new();
        let participant = builder.build().map_err(|e| fail(e.to_string()))?;
        drop(priority);
        let any = raw::writer_policies(Qos::reliable(10));
        let publisher = participant
            .create_publisher(&any)
            .map_err(|e| fail(e.to_string()))?;
        let subscriber = participant
            .create_subscriber(&any)
            .map_err(|e| fail(e.to_string()))?;
        let told = raw::writer_policies(Qos::latched(1));
        let topic = participant
            .create_topic(
                graph::TOPIC.into(),
                graph::TYPE.into(),
                &told,
                TopicKind::NoKey,
            )
            .map_err(|e| fail(e.to_string()))?;
        let graph: RawWriter = publisher
            .create_datawriter_no_key::<_, Raw>(&topic, Some(told))
            .map_err(|e| fail(e.to_string()))?;
        let mut own = OwnNode::new(participant.guid(), names, environment.gid_bytes);
        own.add_writer(graph.guid());
        let link = Self {
            publisher,
            subscriber,
            own,
            graph,
            participant,
        };
        link.announce();
        Ok(link)
    }

    pub fn id(&self) -> GUID {
        self.participant.guid()
    }

    /// Listener for participants that join and leave.
    pub fn events(&self) -> DomainParticipantStatusListener {
        self.participant.status_listener()
    }

    /// Creates a reader.
    pub fn reader(&mut self, topic: &DdsTopic) -> Result<RawReader, String> {
        let qos = raw::reader_policies(topic.qos);
        let (name, kind) = (topic.name.clone(), topic.kind.clone());
        let made = self
            .participant
            .create_topic(name, kind, &qos, TopicKind::NoKey)
            .and_then(|topic| {
                self.subscriber
                    .create_simple_datareader_no_key::<_, Raw>(&topic, Some(qos))
            });
        let reader = made.map_err(|e| e.to_string())?;
        self.own.add_reader(reader.guid());
        self.announce();
        Ok(reader)
    }

    /// Creates a writer.
    pub fn writer(&mut self, topic: &DdsTopic) -> Result<RawWriter, String> {
        let qos = raw::writer_policies(topic.qos);
        let (name, kind) = (topic.name.clone(), topic.kind.clone());
        let made = self
            .participant
            .create_topic(name, kind, &qos, TopicKind::NoKey)
            .and_then(|topic| {
                self.publisher
                    .create_datawriter_no_key::<_, Raw>(&topic, Some(qos))
            });
        let writer: RawWriter = made.map_err(|e| e.to_string())?;
        self.own.add_writer(writer.guid());
        self.announce();
        Ok(writer)
    }

    /// Drops endpoints that are no longer in use from the next announcement: a node that is configured again and again
    /// must not announce ever more.
    pub fn forget(&mut self, gone: &[GUID]) {
        self.own.remove(gone);
    }

    /// Announces the node's endpoints.
    fn announce(&self) {
        if let Err(error) = self.graph.write(self.own.encode(), None) {
            tracing::warn!("cannot announce this node in the ROS graph: {error}");
        }
    }
}

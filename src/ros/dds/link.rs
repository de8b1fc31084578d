//! One DDS participant with what the node has on it.

use super::environment::{Environment, Reach};
use super::graph::{self, OwnNode};
use super::raw::{self, Raw, RawReader, RawWriter};
use crate::ros::middleware::{MiddlewareError, Qos};
use crate::ros::names::NodeNames;
use crate::ros::priority::First;
use rustdds::{
    DomainParticipant, DomainParticipantBuilder, DomainParticipantStatusListener, GUID, RTPSEntity,
    TopicKind,
};
use std::net::Ipv4Addr;

/// A topic of DDS.
#[derive(Debug, Clone)]
pub struct DdsTopic {
    /// `rt/image`, `rq/…Request`, `rr/…Reply`.
    pub name: String,
    /// `sensor_msgs::msg::dds_::Image_`
    pub kind: String,
    /// Of the reader or writer.
    pub qos: Qos,
}

/// The participant. Dropped, it leaves the domain.
pub struct Link {
    publisher: rustdds::Publisher,
    subscriber: rustdds::Subscriber,
    own: OwnNode,
    graph: RawWriter,
    participant: DomainParticipant,
}

impl Link {
    /// Joins the domain. The node is told of, without endpoints so far.
    pub fn new(names: &NodeNames, environment: &Environment) -> Result<Self, MiddlewareError> {
        let fail = |cause: String| MiddlewareError::Join {
            domain: environment.domain,
            cause,
        };
        let mut builder = DomainParticipantBuilder::new(environment.domain);
        if environment.reach == Reach::Localhost {
            builder = builder.with_only_networks([Ipv4Addr::LOCALHOST]);
        }
        // Its threads carry every message; they inherit that.
        let first = First::new();
        let participant = builder.build().map_err(|e| fail(e.to_string()))?;
        drop(first);
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

    /// Id of the participant.
    pub fn id(&self) -> GUID {
        self.participant.guid()
    }

    /// Who comes and goes.
    pub fn events(&self) -> DomainParticipantStatusListener {
        self.participant.status_listener()
    }

    /// A reader of a topic.
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

    /// A writer of a topic.
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

    /// Tells what belongs to the node.
    fn announce(&self) {
        if let Err(error) = self.graph.write(self.own.encode(), None) {
            tracing::warn!("this node may be missing in the ROS graph: {error}");
        }
    }
}

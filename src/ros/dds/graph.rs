//! `ros_discovery_info`: which endpoints belong to which node. It is what `ros2 node list` and `ros2 node
//! info` read.

use super::lane::{OnSample, Sample};
use crate::ros::cdr;
use crate::ros::names::NodeNames;
use bytes::{BufMut, BytesMut};
use rustdds::GUID;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Name of the topic, the same in DDS.
pub const TOPIC: &str = "ros_discovery_info";
/// Its DDS type.
pub const TYPE: &str = "rmw_dds_common::msg::dds_::ParticipantEntitiesInfo_";

/// This node's endpoints.
#[derive(Debug, Clone)]
pub struct OwnNode {
    participant: GUID,
    namespace: String,
    name: String,
    gid_bytes: usize,
    readers: Vec<GUID>,
    writers: Vec<GUID>,
}

impl OwnNode {
    /// A node without endpoints.
    pub fn new(participant: GUID, names: &NodeNames, gid_bytes: usize) -> Self {
        Self {
            participant,
            namespace: names.namespace().to_owned(),
            name: names.name().to_owned(),
            gid_bytes,
            readers: Vec::new(),
            writers: Vec::new(),
        }
    }

    /// Adds a reader.
    pub fn add_reader(&mut self, reader: GUID) {
        self.readers.push(reader);
    }

    /// Adds a writer.
    pub fn add_writer(&mut self, writer: GUID) {
        self.writers.push(writer);
    }

    /// The message: little-endian CDR of `ParticipantEntitiesInfo`.
    pub fn encode(&self) -> bytes::Bytes {
        let gid = |guid: &GUID, out: &mut BytesMut| {
            out.put_slice(&guid.to_bytes());
            out.put_bytes(0, self.gid_bytes.saturating_sub(16));
        };
        let align =
            |out: &mut BytesMut| out.put_bytes(0, out.len().next_multiple_of(4) - out.len());
        let text = |text: &str, out: &mut BytesMut| {
            align(out);
            out.put_u32_le(text.len() as u32 + 1);
            out.put_slice(text.as_bytes());
            out.put_u8(0);
        };
        let mut out = BytesMut::with_capacity(1024);
        gid(&self.participant, &mut out);
        out.put_u32_le(1);
        text(&self.namespace, &mut out);
        text(&self.name, &mut out);
        for ids in [&self.readers, &self.writers] {
            align(&mut out);
            out.put_u32_le(ids.len() as u32);
            ids.iter().for_each(|id| gid(id, &mut out));
        }
        out.freeze()
    }
}

type Id16 = [u8; 16];
type Id24 = [u8; 24];

#[derive(serde::Deserialize)]
struct Info<Id> {
    gid: Id,
    nodes: Vec<NodeInfo<Id>>,
}

#[derive(serde::Deserialize)]
struct NodeInfo<Id> {
    namespace: String,
    name: String,
    _readers: Vec<Id>,
    _writers: Vec<Id>,
}

/// A participant's part of the ids of all that belongs to it.
pub type Prefix = [u8; 12];

/// The participant that an id belongs to.
pub fn prefix_of(id: &[u8]) -> Prefix {
    std::array::from_fn(|k| id.get(k).copied().unwrap_or(0))
}

/// What other participants say: full names of the nodes of each.
#[derive(Debug, Default)]
pub struct Others {
    nodes: Mutex<HashMap<Prefix, Vec<String>>>,
    /// Ours.
    own: Mutex<Prefix>,
}

impl Others {
    /// Messages of participant `own` are not heard from now on; what others said is forgotten.
    pub fn set_own(&self, own: GUID) {
        *self.own.lock().unwrap_or_else(|e| e.into_inner()) = prefix_of(&own.to_bytes());
        self.nodes().clear();
    }

    /// How many other nodes have this full name.
    pub fn named(&self, full_name: &str) -> usize {
        let nodes = self.nodes();
        nodes.values().flatten().filter(|n| *n == full_name).count()
    }

    /// A participant has gone.
    pub fn forget(&self, participant: &Prefix) {
        self.nodes().remove(participant);
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Prefix, Vec<String>>> {
        self.nodes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the messages of the topic.
    pub fn handler(self: &Arc<Self>, gid_bytes: usize) -> OnSample {
        let others = Arc::clone(self);
        Box::new(move |sample: Sample| {
            let own = *others.own.lock().unwrap_or_else(|e| e.into_inner());
            if prefix_of(&sample.writer.to_bytes()) == own {
                return;
            }
            let payload = &sample.payload;
            let read = match gid_bytes {
                24 => cdr::decode::<Info<Id24>>(TOPIC, payload)
                    .map(|i| (prefix_of(&i.gid), full_names(i.nodes))),
                _ => cdr::decode::<Info<Id16>>(TOPIC, payload)
                    .map(|i| (prefix_of(&i.gid), full_names(i.nodes))),
            };
            match read {
                Ok((participant, nodes)) => drop(others.nodes().insert(participant, nodes)),
                Err(error) => tracing::debug!(
                    "{error}; its sender may be of another ROS distribution (see ROS_DISTRO)"
                ),
            }
        })
    }
}

fn full_names<Id>(nodes: Vec<NodeInfo<Id>>) -> Vec<String> {
    let full = |n: NodeInfo<Id>| match n.namespace.as_str() {
        "/" => format!("/{}", n.name),
        _ => format!("{}/{}", n.namespace, n.name),
    };
    nodes.into_iter().map(full).collect()
}

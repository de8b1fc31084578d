//! The topic `ros_discovery_info`, which maps endpoints to nodes and is read by `ros2 node list`
//! and `ros2 node info`.

use super::lane::{OnSample, Sample};
use crate::wire::cdr;
use crate::wire::names::NodeNames;
use bytes::{BufMut, BytesMut};
use rustdds::GUID;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Name of the topic, identical in DDS.
pub const TOPIC: &str = "ros_discovery_info";
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

    /// Removes endpoints.
    pub fn remove(&mut self, gone: &[GUID]) {
        for ids in [&mut self.readers, &mut self.writers] {
            ids.retain(|id| !gone.contains(id));
        }
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
    /// The participant; the sender's own id is used instead.
    _gid: Id,
    nodes: Vec<NodeInfo<Id>>,
}

#[derive(serde::Deserialize)]
struct NodeInfo<Id> {
    namespace: String,
    name: String,
    _readers: Vec<Id>,
    _writers: Vec<Id>,
}

/// Maximum number of participants whose announcements are kept: far more than a robot's network has, and a bound on
/// the memory that other participants can claim.
const PARTICIPANTS: usize = 512;
/// Maximum number of nodes of a participant; a process with more composed nodes is not known.
const NODES: usize = 256;
/// Longest full name, the limit of ROS.
const NAME_BYTES: usize = 255;

/// The part of an id shared by all entities of a participant.
pub type Prefix = [u8; 12];

/// The participant to which an id belongs.
pub fn prefix_of(id: &[u8]) -> Prefix {
    std::array::from_fn(|k| id.get(k).copied().unwrap_or(0))
}

/// Announcements of other participants: full names of the nodes of each.
#[derive(Debug, Default)]
pub struct Others {
    nodes: Mutex<HashMap<Prefix, Vec<String>>>,
    /// Prefix of our own participant.
    own: Mutex<Prefix>,
}

impl Others {
    /// Ignores messages of participant `own` from now on and forgets earlier announcements.
    pub fn set_own(&self, own: GUID) {
        *self.own.lock().unwrap_or_else(|e| e.into_inner()) = prefix_of(&own.to_bytes());
        self.nodes().clear();
    }

    /// Number of other nodes with this full name.
    pub fn named(&self, full_name: &str) -> usize {
        let nodes = self.nodes();
        nodes.values().flatten().filter(|n| *n == full_name).count()
    }

    /// Removes a participant that has left.
    pub fn forget(&self, participant: &Prefix) {
        self.nodes().remove(participant);
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Prefix, Vec<String>>> {
        self.nodes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Keeps the nodes of the participant that announced them. Entries end with the participant ([`Self::forget`]),
    /// so they are kept under the id of the sender, never under one that a message claims.
    fn keep(&self, sender: Prefix, mut names: Vec<String>) {
        names.retain(|name| name.len() <= NAME_BYTES);
        names.truncate(NODES);
        let mut nodes = self.nodes();
        if nodes.contains_key(&sender) || nodes.len() < PARTICIPANTS {
            nodes.insert(sender, names);
        } else {
            tracing::debug!(
                "more than {PARTICIPANTS} participants announce nodes; one is not known"
            );
        }
    }

    /// A handler for messages of the topic.
    pub fn handler(self: &Arc<Self>, gid_bytes: usize) -> OnSample {
        let others = Arc::clone(self);
        Box::new(move |sample: Sample| {
            let own = *others.own.lock().unwrap_or_else(|e| e.into_inner());
            let sender = prefix_of(&sample.writer.to_bytes());
            if sender == own {
                return;
            }
            let payload = &sample.payload;
            let read = match gid_bytes {
                24 => cdr::decode::<Info<Id24>>(TOPIC, payload).map(|i| full_names(i.nodes)),
                _ => cdr::decode::<Info<Id16>>(TOPIC, payload).map(|i| full_names(i.nodes)),
            };
            match read {
                Ok(nodes) => others.keep(sender, nodes),
                Err(error) => tracing::debug!(
                    "{error}; its sender may run another ROS distribution (see ROS_DISTRO)"
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(number: usize) -> Prefix {
        let mut prefix = [0; 12];
        prefix[..8].copy_from_slice(&number.to_le_bytes());
        prefix
    }

    #[test]
    fn endpoints_that_went_are_not_announced() {
        let names = NodeNames::new("slam", "/", &[]).unwrap();
        let id = |k: u8| GUID::from_bytes([k; 16]);
        let mut own = OwnNode::new(id(0), &names, 16);
        own.add_writer(id(1));
        let before = own.encode();
        own.add_reader(id(2));
        own.add_writer(id(3));
        assert_eq!(own.encode().len(), before.len() + 2 * 16);
        own.remove(&[id(2), id(3), id(9)]);
        assert_eq!(own.encode(), before);
    }

    #[test]
    fn what_others_announce_is_bounded_and_ends_with_them() {
        let others = Others::default();
        for k in 0..2 * PARTICIPANTS {
            others.keep(sender(k), vec!["/slam".to_owned(); 2 * NODES]);
        }
        assert_eq!(others.named("/slam"), PARTICIPANTS * NODES);
        // An announcement replaces the earlier one of its sender.
        others.keep(
            sender(0),
            vec!["/slam".to_owned(), "/".repeat(NAME_BYTES + 1)],
        );
        assert_eq!(others.named("/slam"), (PARTICIPANTS - 1) * NODES + 1);
        assert_eq!(others.named(&"/".repeat(NAME_BYTES + 1)), 0);
        (1..PARTICIPANTS).for_each(|k| others.forget(&sender(k)));
        assert_eq!(others.named("/slam"), 1);
        others.keep(sender(PARTICIPANTS), vec!["/slam".to_owned()]);
        assert_eq!(others.named("/slam"), 2, "there is room again");
    }
}

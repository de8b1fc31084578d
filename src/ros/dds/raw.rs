//! CDR bytes as a RustDDS data type: the node serialises messages itself.

use crate::wire::{Payload, Qos};
use bytes::Bytes;
use rustdds::no_key::{
    DataWriter, Decode, DefaultDecoder, DeserializerAdapter, SerializerAdapter, SimpleDataReader,
};
use rustdds::policy::{Durability, History, Reliability, ResourceLimits};
use rustdds::{QosPolicies, QosPolicyBuilder, RepresentationIdentifier};
use std::convert::Infallible;

/// Passes bytes through unchanged.
pub struct Raw;

pub type RawReader = SimpleDataReader<Payload, Raw>;
pub type RawWriter = DataWriter<Bytes, Raw>;

impl DeserializerAdapter<Payload> for Raw {
    type Error = Infallible;
    type Decoded = Payload;

    fn supported_encodings() -> &'static [RepresentationIdentifier] {
        &[
            RepresentationIdentifier::CDR_LE,
            RepresentationIdentifier::CDR_BE,
        ]
    }

    fn transform_decoded(decoded: Payload) -> Payload {
        decoded
    }
}

impl DefaultDecoder<Payload> for Raw {
    type Decoder = Copy;
    const DECODER: Copy = Copy;
}

/// Copies a payload out of RustDDS's cache: the only copy of an incoming image.
#[derive(Clone)]
pub struct Copy;

impl<'de> Decode<'de, Payload> for Copy {
    type Error = Infallible;

    fn decode_bytes(
        self,
        bytes: &'de [u8],
        encoding: RepresentationIdentifier,
    ) -> Result<Payload, Infallible> {
        Ok(Payload {
            data: Bytes::copy_from_slice(bytes),
            big_endian: encoding == RepresentationIdentifier::CDR_BE,
        })
    }
}

impl SerializerAdapter<Bytes> for Raw {
    type Error = Infallible;

    fn output_encoding() -> RepresentationIdentifier {
        RepresentationIdentifier::CDR_LE
    }

    fn to_bytes(data: &Bytes) -> Result<Bytes, Infallible> {
        Ok(data.clone())
    }
}

/// A reliable writer waits this long for a slow reader; after that the message is dropped and
/// counted.
const MAX_BLOCKING_MILLIS: i64 = 100;

/// Maximum number of unacknowledged messages of a reliable writer: a reader that died silently must
/// not block the others until its lease (10 to 20 s) expires.
const IN_FLIGHT: usize = 4096;

/// DDS QoS policies of a writer.
pub fn writer_policies(qos: Qos) -> QosPolicies {
    policies(qos, IN_FLIGHT.max(qos.depth))
}

/// DDS QoS policies of a reader. RustDDS caches as many messages as the limit allows, so it is low:
/// images are large.
pub fn reader_policies(qos: Qos) -> QosPolicies {
    policies(qos, qos.depth.max(4))
}

fn policies(qos: Qos, samples: usize) -> QosPolicies {
    let reliability = match qos.reliable {
        true => Reliability::Reliable {
            max_blocking_time: rustdds::Duration::from_millis(MAX_BLOCKING_MILLIS),
        },
        false => Reliability::BestEffort,
    };
    let durability = match qos.transient_local {
        true => Durability::TransientLocal,
        false => Durability::Volatile,
    };
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    QosPolicyBuilder::new()
        .reliability(reliability)
        .durability(durability)
        .history(History::KeepLast {
            depth: number(qos.depth),
        })
        .resource_limits(ResourceLimits {
            max_samples: number(samples),
            max_instances: 1,
            max_samples_per_instance: number(samples),
        })
        .build()
}

/// Converts `sensor_msgs/msg/Image` to `sensor_msgs::msg::dds_::Image_`, with `part` (`_Request`)
/// before the final `_`.
pub fn dds_type(ros: &str, part: &str) -> String {
    let (package, name) = ros.rsplit_once('/').unwrap_or(("", ros));
    format!("{}::dds_::{name}{part}_", package.replace('/', "::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_are_those_of_the_rmws() {
        assert_eq!(
            dds_type("sensor_msgs/msg/Image", ""),
            "sensor_msgs::msg::dds_::Image_"
        );
        assert_eq!(
            dds_type("std_srvs/srv/Trigger", "_Request"),
            "std_srvs::srv::dds_::Trigger_Request_"
        );
    }
}

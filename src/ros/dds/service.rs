//! Services over DDS. Each RMW has its own convention for requests and for addressing replies.

use super::environment::Mapping;
use super::lane::{OnSample, Sample};
use super::writer::Writer;
use crate::ros::middleware::{OnRequest, Publish, Respond};
use crate::wire::Payload;
use bytes::{BufMut, Bytes, BytesMut};
use rustdds::{GUID, SampleIdentity};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `rmw_cyclonedds_cpp` prefixes requests and replies with the client id and the request number, 8
/// bytes each. CDR aligns to at most 8 bytes, so the data after the header is aligned as if it
/// stood alone.
const CYCLONE_HEADER: usize = 16;

/// Destination of a reply.
enum Address {
    /// Sample identity of the request, or the client's reply reader with the request's number.
    FastDds(SampleIdentity),
    /// Header of the request, little-endian.
    Cyclone([u8; CYCLONE_HEADER]),
}

/// Answers the requests of a reader through `replies`. Without a `mapping`, each request is
/// answered by the convention of its sender's DDS implementation.
pub fn handler(
    mapping: Option<Mapping>,
    replies: Arc<Writer>,
    mut on_request: OnRequest,
) -> OnSample {
    Box::new(move |sample| {
        let mapping = mapping.unwrap_or_else(|| mapping_of(sample.writer));
        let client = sample.writer;
        let Some((request, address)) = open(sample, mapping) else {
            tracing::warn!(
                "invalid request on {1}: expected more than {0} bytes; set RMW_IMPLEMENTATION to that of the sender",
                CYCLONE_HEADER,
                replies.topic()
            );
            return;
        };
        let replies = Arc::clone(&replies);
        let respond: Respond = Box::new(move |data| reply(&replies, client, address, data));
        on_request(request, respond);
    })
}

/// Cyclone DDS ids begin with its vendor id, 1.16 (other implementations use theirs).
fn mapping_of(writer: GUID) -> Mapping {
    match writer.to_bytes() {
        [1, 16, ..] => Mapping::Cyclone,
        _ => Mapping::FastDds,
    }
}

fn open(sample: Sample, mapping: Mapping) -> Option<(Payload, Address)> {
    let Sample {
        payload,
        writer,
        number,
        related,
    } = sample;
    match mapping {
        Mapping::FastDds => {
            // As in rmw_fastrtps: the number is the request's own; the id is that of the client's
            // reply reader if the request names it.
            let named = related.map(|r| r.writer_guid);
            let writer_guid = named.filter(|&g| g != GUID::GUID_UNKNOWN).unwrap_or(writer);
            let identity = SampleIdentity {
                writer_guid,
                sequence_number: number,
            };
            Some((payload, Address::FastDds(identity)))
        }
        Mapping::Cyclone => {
            let mut header: [u8; CYCLONE_HEADER] =
                payload.data.get(..CYCLONE_HEADER)?.try_into().ok()?;
            if payload.big_endian {
                let (id, number) = header.split_at_mut(8);
                id.reverse();
                number.reverse();
            }
            let request = Payload {
                data: payload.data.slice(CYCLONE_HEADER..),
                big_endian: payload.big_endian,
            };
            Some((request, Address::Cyclone(header)))
        }
    }
}

/// Maximum wait for the client's reply reader to be discovered: a reply sent before that is lost.
const MATCHING: Duration = Duration::from_millis(300);

fn reply(replies: &Writer, client: GUID, address: Address, data: Bytes) {
    let start = Instant::now();
    while !replies.reaches(client) && start.elapsed() < MATCHING {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (data, identity) = match address {
        Address::FastDds(identity) => (data, Some(identity)),
        Address::Cyclone(header) => {
            let mut whole = BytesMut::with_capacity(CYCLONE_HEADER + data.len());
            whole.put_slice(&header);
            whole.put_slice(&data);
            (whole.freeze(), None)
        }
    };
    if let Err(error) = replies.write(data, identity) {
        tracing::warn!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustdds::SequenceNumber;

    fn request(bytes: &'static [u8], big_endian: bool) -> Sample {
        Sample {
            payload: Payload {
                data: Bytes::from_static(bytes),
                big_endian,
            },
            writer: GUID::from_bytes([1, 16, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
            number: SequenceNumber::from(7i64),
            related: None,
        }
    }

    #[test]
    fn cyclone_headers_are_split_off_and_kept_in_little_endian() {
        let bytes = b"\x01\x02\x03\x04\x05\x06\x07\x08\x00\x00\x00\x00\x00\x00\x00\x09data";
        let (payload, address) = open(request(bytes, true), Mapping::Cyclone).unwrap();
        assert_eq!(&payload.data[..], b"data");
        let Address::Cyclone(header) = address else {
            panic!("expected a Cyclone address");
        };
        assert_eq!(
            header,
            *b"\x08\x07\x06\x05\x04\x03\x02\x01\x09\x00\x00\x00\x00\x00\x00\x00"
        );
        assert!(open(request(b"short", false), Mapping::Cyclone).is_none());
    }

    #[test]
    fn fast_dds_requests_are_known_by_the_reply_reader_that_they_name() {
        let mut sample = request(b"data", false);
        let reader = GUID::from_bytes([1, 15, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 1, 4]);
        sample.related = Some(SampleIdentity {
            writer_guid: reader,
            sequence_number: SequenceNumber::from(0i64),
        });
        let (payload, address) = open(sample, Mapping::FastDds).unwrap();
        assert_eq!(&payload.data[..], b"data");
        let Address::FastDds(identity) = address else {
            panic!("expected a Fast DDS address");
        };
        assert_eq!(identity.writer_guid, reader);
        assert_eq!(i64::from(identity.sequence_number), 7);
    }

    #[test]
    fn the_sender_s_vendor_tells_its_mapping() {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&[1, 16]);
        assert_eq!(mapping_of(GUID::from_bytes(bytes)), Mapping::Cyclone);
        bytes[1] = 15;
        assert_eq!(mapping_of(GUID::from_bytes(bytes)), Mapping::FastDds);
    }
}

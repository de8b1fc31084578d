//! Recovery of peers that were lost and have returned.
//!
//! RustDDS 0.15 forgets a participant if its announcements are missing for the duration of its
//! lease (10 s with Cyclone DDS, which announces every 8 s: one lost datagram suffices), and then
//! treats later announcements as repetitions of known ones. Such a peer would stay lost until
//! restarted. This module therefore listens to announcements itself, and rejoins the domain when a
//! forgotten peer announces itself again.

use super::Core;
use super::graph::{Prefix, prefix_of};
use rustdds::{DomainParticipantStatusEvent, LostReason, StatusEvented};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Polling interval.
const PERIOD: Duration = Duration::from_millis(100);
/// A peer must have been lost for this long before its announcement counts: older ones may still
/// have been in transit.
const SURELY_LOST: Duration = Duration::from_secs(1);
/// Minimum time between two rejoins.
const PATIENCE: Duration = Duration::from_secs(15);
/// Maximum number of lost peers to remember.
const REMEMBERED: usize = 1024;

/// Runs until `ending` is set.
pub fn run(core: &Core, domain: u16, ending: &AtomicBool) {
    let socket = match listen(domain) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!(
                "cannot listen for announcements, so peers that were unreachable for long may stay lost: {error}"
            );
            None
        }
    };
    let mut lost: BTreeMap<Prefix, Instant> = BTreeMap::new();
    let mut joined: Option<Instant> = None;
    let mut events = core.link().events();
    while !ending.load(Ordering::Acquire) {
        std::thread::sleep(PERIOD);
        while let Some(event) = events.try_recv_status() {
            match event {
                DomainParticipantStatusEvent::ParticipantLost { id, reason } => {
                    let id = prefix_of(id.as_ref());
                    core.others.forget(&id);
                    if matches!(reason, LostReason::Timeout { .. }) && lost.len() < REMEMBERED {
                        lost.insert(id, Instant::now());
                    }
                }
                DomainParticipantStatusEvent::ParticipantDiscovered { dpd } => {
                    lost.remove(&prefix_of(&dpd.guid.to_bytes()));
                }
                _ => {}
            }
        }
        let back = socket.as_ref().is_some_and(|socket| {
            // Read all pending announcements, so that none is stale next time.
            let mut back = false;
            while let Some(sender) = announcement(socket) {
                let since = lost.get(&sender);
                back |= since.is_some_and(|at| at.elapsed() > SURELY_LOST);
            }
            back
        });
        if back && joined.is_none_or(|at| at.elapsed() > PATIENCE) {
            joined = Some(Instant::now());
            tracing::warn!("a lost peer has returned: rejoining the domain");
            match core.rejoin() {
                Ok(()) => lost.clear(),
                Err(error) => tracing::error!("{error}; will try again"),
            }
            events = core.link().events();
        }
    }
}

/// A socket that receives the announcements of all participants: the kernel delivers a multicast
/// datagram to every socket on its port, and RustDDS has joined the group on every interface.
fn listen(domain: u16) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // RTPS 9.6.1: port base, domain gain, offset of multicast discovery.
    let port = 7400 + 250 * domain;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    Ok(socket.into())
}

/// The sender of the next datagram, if it is an RTPS message.
fn announcement(socket: &UdpSocket) -> Option<Prefix> {
    let mut buffer = [0u8; 20];
    loop {
        // Longer datagrams are truncated; the RTPS header has 20 bytes.
        match socket.recv(&mut buffer) {
            Ok(20) if buffer.starts_with(b"RTPS") => return Some(prefix_of(&buffer[8..])),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

//! Peers that were lost and are there again.
//!
//! RustDDS 0.15 forgets a participant whose announcements were missing for its lease (10 s with Cyclone DDS,
//! which announces every 8 s: one lost datagram is enough), and then takes the ones that come again for
//! repetitions of what it knows. Such a peer would stay lost until it is started again. So the announcements
//! are looked at here as well, and when a forgotten peer sends one, the node joins the domain anew.

use super::Core;
use super::graph::{Prefix, prefix_of};
use rustdds::{DomainParticipantStatusEvent, LostReason, StatusEvented};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(100);
/// A peer's announcement counts when it was lost this long ago: some may have been on their way.
const SURELY_LOST: Duration = Duration::from_secs(1);
/// Least time between two new beginnings.
const PATIENCE: Duration = Duration::from_secs(15);
/// Peers that are remembered as lost.
const REMEMBERED: usize = 1024;

/// Runs until it is `ending`.
pub fn run(core: &Core, domain: u16, ending: &AtomicBool) {
    let socket = match listen(domain) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::warn!(
                "peers that were out of reach for long may stay lost, as announcements cannot be listened to: {error}"
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
            // All that have come, so that none is old the next time.
            let mut back = false;
            while let Some(sender) = announcement(socket) {
                let since = lost.get(&sender);
                back |= since.is_some_and(|at| at.elapsed() > SURELY_LOST);
            }
            back
        });
        if back && joined.is_none_or(|at| at.elapsed() > PATIENCE) {
            joined = Some(Instant::now());
            tracing::warn!("a peer that was out of reach is back: the node joins the domain anew");
            match core.rejoin() {
                Ok(()) => lost.clear(),
                Err(error) => tracing::error!("{error}; it is tried again"),
            }
            events = core.link().events();
        }
    }
}

/// A socket that hears the announcements of all participants: the kernel gives a multicast datagram to every
/// socket of its port, and RustDDS has joined the group on every interface.
fn listen(domain: u16) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // RTPS 9.6.1: port base, domain gain, offset of multicast discovery.
    let port = 7400 + 250 * domain;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    Ok(socket.into())
}

/// The sender of the next datagram, if there is one that is RTPS.
fn announcement(socket: &UdpSocket) -> Option<Prefix> {
    let mut buffer = [0u8; 20];
    loop {
        // What does not fit is cut off; the header of RTPS has 20 bytes.
        match socket.recv(&mut buffer) {
            Ok(20) if buffer.starts_with(b"RTPS") => return Some(prefix_of(&buffer[8..])),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

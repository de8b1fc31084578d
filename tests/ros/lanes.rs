//! The DDS client's threads: a handler that takes long delays neither transforms nor the clock.

use crate::support::wait;
use bytes::Bytes;
use mast3r_slam::ros::dds::{Dds, Environment};
use mast3r_slam::ros::middleware::{Lane, Middleware, OnMessage};
use mast3r_slam::wire::Qos;
use mast3r_slam::wire::messages::{Clock, Message};
use mast3r_slam::wire::names::NodeNames;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn client(name: &str) -> Dds {
    // No other test's domain.
    let domain = 60 + std::process::id() % 40;
    let environment = Environment::from(&|variable| match variable {
        "ROS_DOMAIN_ID" => Some(domain.to_string()),
        "ROS_LOCALHOST_ONLY" => Some("1".to_owned()),
        _ => None,
    });
    let names = NodeNames::new(name, "/", &[]).unwrap();
    Dds::new(names, environment.unwrap()).expect("the domain")
}

#[test]
fn each_lane_has_a_thread_of_its_own() {
    let names: HashSet<_> = Lane::ALL.iter().map(|lane| lane.thread()).collect();
    assert_eq!(names.len(), Lane::ALL.len());
    for (k, lane) in Lane::ALL.into_iter().enumerate() {
        assert_eq!(lane as usize, k);
    }
}

#[test]
fn transforms_and_the_clock_do_not_wait_for_services() {
    let (node, peer) = (client("node"), client("peer"));
    let counts: Arc<[AtomicUsize; Lane::ALL.len()]> = Arc::default();
    let (gate, opened) = channel::<()>();
    let opened = Arc::new(Mutex::new(Some(opened)));
    let mut kept = Vec::new();
    let mut topics = Vec::new();
    for lane in Lane::ALL {
        let (counts, opened) = (Arc::clone(&counts), Arc::clone(&opened));
        let take: OnMessage = Box::new(move |_| {
            counts[lane as usize].fetch_add(1, Ordering::AcqRel);
            let opened = match lane {
                Lane::Services => opened.lock().unwrap().take(),
                _ => None,
            };
            if let Some(opened) = opened {
                // As long as a transition that waits for a solve; a test that fails does not hang.
                let _ = opened.recv_timeout(Duration::from_secs(60));
            }
        });
        let topic = format!("/lane_{}", lane as usize);
        let heard = node.subscribe(&topic, Clock::TYPE, Qos::reliable(10), lane, take);
        kept.push(heard.expect("a subscription"));
        let told = peer.advertise(&topic, Clock::TYPE, Qos::reliable(10));
        topics.push(told.expect("a publisher"));
    }
    wait("the subscriptions", || {
        topics.iter().all(|topic| topic.subscribers() > 0)
    });
    let clock = || Clock::default().encode().expect("a message");
    let send = |lane: Lane, data: Bytes| topics[lane as usize].publish(data).expect("sent");
    let count = |lane: Lane| counts[lane as usize].load(Ordering::Acquire);
    send(Lane::Services, clock());
    wait("the slow handler", || count(Lane::Services) == 1);
    send(Lane::Services, clock());
    for lane in Lane::ALL.into_iter().filter(|lane| *lane != Lane::Services) {
        send(lane, clock());
        wait("a message beside it", || count(lane) == 1);
    }
    assert_eq!(count(Lane::Services), 1, "the handler was not slow");
    gate.send(()).expect("the handler waits");
    wait("the next request", || count(Lane::Services) == 2);
}

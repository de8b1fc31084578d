//! The node's live page and metrics.

use crate::support::Fault;
use crate::support::stage::Stage;
use crate::support::wait;
use mast3r_slam::ros::node::Node;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Status and body of GET `path`.
fn get(port: u16, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: robot\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, body.to_owned())
}

fn status(port: u16) -> Value {
    serde_json::from_str(&get(port, "/status").1).unwrap()
}

/// Steps until a page's stream has had messages of all these kinds.
fn await_kinds(port: u16, expected: &[u8], mut step: impl FnMut()) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    stream
        .write_all(b"GET /stream HTTP/1.1\r\nHost: robot\r\n\r\n")
        .unwrap();
    let (mut raw, mut buffer) = (Vec::new(), [0; 65_536]);
    for _ in 0..300 {
        step();
        // Nothing may come for a moment.
        if let Ok(read) = stream.read(&mut buffer) {
            raw.extend_from_slice(&buffer[..read]);
        }
        let kinds = kinds(&raw);
        if expected.iter().all(|kind| kinds.contains(kind)) {
            return;
        }
    }
    panic!("expected {expected:?}, found {:?}", kinds(&raw));
}

/// Kinds of the complete messages of an answer in chunks.
fn kinds(raw: &[u8]) -> Vec<u8> {
    let Some(start) = raw.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Vec::new();
    };
    let (mut rest, mut body) = (&raw[start + 4..], Vec::new());
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let length = std::str::from_utf8(&rest[..end]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        let Some(chunk) = rest.get(end + 2..end + 2 + length) else {
            break;
        };
        body.extend_from_slice(chunk);
        rest = rest.get(end + 4 + length..).unwrap_or_default();
    }
    let (mut kinds, mut body) = (Vec::new(), body.as_slice());
    while let Some([kind, length @ ..]) = body.first_chunk::<5>() {
        let length = u32::from_le_bytes(length.to_owned()) as usize;
        if body.len() < 5 + length {
            break;
        }
        kinds.push(*kind);
        body = &body[5 + length..];
    }
    kinds
}

#[test]
fn the_node_serves_its_state_and_the_map() {
    let port = free_port();
    // The camera is 0.5 m above the robot's frame, which is 0.9 m above the room's floor.
    let mut stage = Stage::ready(&format!(
        "view_port:={port} slam.grid.enable:=true slam.grid.min_height:=-0.7 slam.grid.max_height:=0.8 \
         map_publish_period:=0.1"
    ));
    assert!(
        status(port)["state"]
            .as_str()
            .unwrap()
            .starts_with("waiting")
    );
    assert_eq!(get(port, "/healthz"), (200, "ok\n".into()));
    stage.track(12);
    wait("the state", || status(port)["state"] == "tracking");
    assert!(status(port)["frames"].as_u64().unwrap() >= 12);
    // Image, graph, cloud, trail and grid reach a page while the camera goes on.
    await_kinds(port, &[1, 2, 3, 4, 5, 6, 7], || {
        stage.track(1);
    });
    // An image of the wrong kind is counted by its reason.
    stage.raw(stage.next, "yuv4711", (128, 96, 384), &[0; 128 * 96 * 3]);
    wait("the rejected image", || {
        let metrics = get(port, "/metrics").1;
        metrics.contains("mast3r_slam_dropped_total{reason=\"image_rejected\"} 1\n")
    });
    // A failure is told, and a reset ends it.
    stage.fault(Fault::Fail);
    wait("the failure", || get(port, "/healthz").0 == 503);
    let (_, why) = get(port, "/healthz");
    assert!(why.contains("the device is gone"), "{why}");
    assert!(get(port, "/metrics").1.contains("mast3r_slam_up 0.0\n"));
    assert!(stage.trigger("reset").success);
    wait("health", || get(port, "/healthz").0 == 200);
    // The end of the node frees the port.
    stage.node = None;
    TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn a_port_that_cannot_be_served_refuses_the_configuration() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for (parameters, parts) in [
        (format!("view_port:={port}"), ["in use", "view_port"]),
        (
            "view_port:=1 view_address:=robot".to_owned(),
            ["view_address", "\"robot\""],
        ),
    ] {
        let room = crate::support::Room::default();
        let args = crate::support::stage::arguments(&parameters);
        let graph = Arc::new(crate::support::memory::Memory::new());
        let error = Node::start(graph, room.builder(), &args)
            .err()
            .expect("an error")
            .to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

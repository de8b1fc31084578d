//! The node as systemd starts it: a socket for notifications, and a watchdog.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::program::{program, text};
use testkit::repository;

struct Manager {
    socket: UnixDatagram,
    node: Child,
    _folder: tempfile::TempDir,
}

impl Manager {
    fn start(domain: u32, parameters: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        // Long: the self-test shares the machine with other tests.
        socket
            .set_read_timeout(Some(Duration::from_secs(300)))
            .expect("a time");
        let mut command = program(&["node", "--client", "dds", "--ros-args"]);
        for parameter in ["device:=cpu", "base_frame:=''", "autosaves:=0"]
            .iter()
            .chain(parameters)
        {
            command.args(["-p", parameter]);
        }
        command
            .env("NOTIFY_SOCKET", text(&path))
            .env("WATCHDOG_USEC", "400000")
            .env_remove("WATCHDOG_PID")
            .env(
                "ROS_DOMAIN_ID",
                (40 + (std::process::id() + domain) % 180).to_string(),
            )
            .stderr(Stdio::piped());
        let node = command.spawn().expect("the program starts");
        Self {
            socket,
            node,
            _folder: folder,
        }
    }

    fn message(&self) -> String {
        let mut buffer = [0; 512];
        let length = self.socket.recv(&mut buffer).expect("a notification");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

#[test]
fn the_node_is_ready_after_the_self_test_and_feeds_the_watchdog_until_it_stops() {
    let mut manager = Manager::start(1, &["self_test:=true"]);
    assert!(manager.message().starts_with("READY=1"));
    for _ in 0..5 {
        assert_eq!(manager.message(), "WATCHDOG=1");
    }
    let id = manager.node.id().to_string();
    let told = Command::new("kill").args(["-TERM", &id]).status();
    assert!(told.expect("kill").success());
    let last = std::iter::repeat_with(|| manager.message()).find(|text| text != "WATCHDOG=1");
    assert!(last.is_some_and(|text| text.starts_with("STOPPING=1")));
    assert!(manager.node.wait().expect("an end").success());
}

#[test]
fn a_node_whose_self_test_fails_never_is_ready() {
    let weights = repository("tests/data/network/tiny-random.pth");
    let weights = format!("weights:={}", text(&weights));
    let mut manager = Manager::start(2, &["self_test:=true", &weights, "slam.network.size:=128"]);
    assert_eq!(manager.node.wait().expect("an end").code(), Some(1));
    let mut said = String::new();
    let errors = manager.node.stderr.as_mut().expect("a pipe");
    std::io::Read::read_to_string(errors, &mut said).expect("a text");
    assert!(
        said.contains("the node does not start: the self-test failed"),
        "{said}"
    );
    manager.socket.set_nonblocking(true).expect("a socket");
    let mut buffer = [0; 16];
    assert!(manager.socket.recv(&mut buffer).is_err(), "a notification");
}

//! The protocol of sd_notify(3): datagrams to a Unix socket.

use std::io;

/// The service manager's socket.
pub struct Notifier {
    #[cfg(target_os = "linux")]
    socket: std::os::unix::net::UnixDatagram,
}

impl Notifier {
    /// Connects to the socket of this name: a path, or an abstract name that starts with `@`.
    #[cfg(target_os = "linux")]
    pub fn new(name: &str) -> io::Result<Self> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram};
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
            None => {
                let text =
                    "expected NOTIFY_SOCKET to be an absolute path, or a name that starts with @";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not stop the node.
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address)?;
        Ok(Self { socket })
    }

    #[cfg(not(target_os = "linux"))]
    pub fn new(_: &str) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends variables, one on a line.
    #[cfg(target_os = "linux")]
    pub fn send(&self, state: &str) -> io::Result<()> {
        self.socket.send(state.as_bytes()).map(|_| ())
    }

    #[cfg(not(target_os = "linux"))]
    pub fn send(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn messages_arrive_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Notifier::new(path.to_str().unwrap())
            .unwrap()
            .send("READY=1")
            .unwrap();
        assert_eq!(received(&socket), "READY=1");
        let name = format!("mast3r-slam-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::new(&format!("@{name}"))
            .unwrap()
            .send("WATCHDOG=1")
            .unwrap();
        assert_eq!(received(&socket), "WATCHDOG=1");
    }

    #[test]
    fn a_socket_that_is_not_there_is_an_error() {
        assert!(Notifier::new("/nowhere/notify").is_err());
        assert!(Notifier::new("relative").is_err());
    }
}

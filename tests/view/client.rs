//! A small HTTP client.

use socket2::{Domain, Socket, Type};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use testkit::patience::patience;

/// Maximum time without a byte, in seconds.
const PATIENCE: u64 = 30;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

/// The whole answer to GET `path`.
pub fn get(address: SocketAddr, path: &str) -> Answer {
    let mut stream = Stream::open(address, path);
    let mut body = Vec::new();
    while let Some(part) = stream.chunk() {
        body.extend(part);
    }
    Answer {
        status: stream.status,
        headers: stream.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    }
}

/// An answer that is read bit by bit.
pub struct Stream {
    pub status: u16,
    pub headers: String,
    from: BufReader<TcpStream>,
    /// Bytes of a body of known length.
    left: Option<usize>,
    messages: Vec<u8>,
}

impl Stream {
    /// Asks for `path` and reads the headers.
    pub fn open(address: SocketAddr, path: &str) -> Self {
        let socket = TcpStream::connect(address).expect("a connection");
        Self::ask(socket, address, path)
    }

    /// The same, on a socket that holds little of what is not read yet.
    pub fn open_narrow(address: SocketAddr, path: &str) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a buffer");
        socket.connect(&address.into()).expect("a connection");
        Self::ask(socket.into(), address, path)
    }

    fn ask(mut socket: TcpStream, address: SocketAddr, path: &str) -> Self {
        socket
            .set_read_timeout(Some(patience(PATIENCE)))
            .expect("a timeout");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("a request");
        let mut from = BufReader::new(socket);
        let mut headers = String::new();
        while !headers.ends_with("\r\n\r\n") {
            let read = from.read_line(&mut headers).expect("headers");
            assert!(read > 0, "the answer ends in its headers: {headers}");
        }
        let status = headers.split(' ').nth(1).and_then(|s| s.parse().ok());
        let length = headers.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        });
        Self {
            status: status.expect("a status"),
            headers,
            from,
            left: length,
            messages: Vec::new(),
        }
    }

    /// The next part of the body; `None` at its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        if let Some(left) = self.left {
            self.left = Some(0);
            let mut body = vec![0; left];
            self.from.read_exact(&mut body).expect("the body");
            return (left > 0).then_some(body);
        }
        let mut line = String::new();
        self.from.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim(), 16)
            .ok()
            .filter(|n| *n > 0)?;
        let mut part = vec![0; length + 2];
        self.from.read_exact(&mut part).ok()?;
        part.truncate(length);
        Some(part)
    }

    /// The next message of the page's stream: its kind, and what it holds.
    pub fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some(header) = self.messages.first_chunk::<5>() {
                let [kind, length @ ..] = *header;
                let end = 5 + u32::from_le_bytes(length) as usize;
                if self.messages.len() >= end {
                    let rest = self.messages.split_off(end);
                    let message = std::mem::replace(&mut self.messages, rest);
                    return Some((kind, message[5..].to_vec()));
                }
            }
            let part = self.chunk()?;
            self.messages.extend(part);
        }
    }
}

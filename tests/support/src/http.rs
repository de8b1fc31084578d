//! An HTTP server on this machine, for one file, which may fail in chosen ways.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the server does with one request; requests after the last of the list are answered fully.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The file, or the range that was asked for.
    Whole,
    /// The file from its start, whatever range was asked for.
    NoRanges,
    /// This many bytes of the body; then the connection ends.
    Cut(usize),
    /// This status and no file.
    Status(u16),
}

/// A server. Its thread ends with the test program.
pub struct Server {
    address: String,
    /// `path range if-range` of each request.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves `content` at every path.
    pub fn new(content: Vec<u8>, tag: &str, answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, tag, answers) = (Arc::clone(&requests), tag.to_owned(), answers.to_vec());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let answer = answers.get(number).copied().unwrap_or(Answer::Whole);
                // A client that goes away is none of the server's business.
                let _ = stream.and_then(|stream| serve(stream, &content, &tag, answer, &log));
            }
        });
        Self { address, requests }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("a list").clone()
    }
}

fn serve(
    mut stream: TcpStream,
    content: &[u8],
    tag: &str,
    answer: Answer,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut condition) = (None, None);
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.trim().to_owned()),
            "if-range" => condition = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let shown = |value: &Option<String>| value.clone().unwrap_or("-".into());
    let request = format!("{path} {} {}", shown(&range), shown(&condition));
    log.lock().expect("a list").push(request);
    let from = range
        .as_deref()
        .and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let same = condition.is_none_or(|condition| condition == tag);
    let end = format!("ETag: {tag}\r\nConnection: close\r\n\r\n");
    let (head, body) = match (answer, from) {
        (Answer::Status(status), _) => (
            format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n{end}"),
            &[][..],
        ),
        (Answer::Whole | Answer::Cut(_), Some(from)) if same && from >= content.len() => (
            format!("HTTP/1.1 416 Range\r\nContent-Length: 0\r\n{end}"),
            &[][..],
        ),
        (Answer::Whole | Answer::Cut(_), Some(from)) if same => {
            let all = content.len();
            let length = all - from;
            let range = format!("Content-Range: bytes {from}-{}/{all}", all - 1);
            (
                format!("HTTP/1.1 206 Part\r\n{range}\r\nContent-Length: {length}\r\n{end}"),
                &content[from..],
            )
        }
        _ => (
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{end}",
                content.len()
            ),
            content,
        ),
    };
    let body = match answer {
        Answer::Cut(bytes) => &body[..bytes.min(body.len())],
        _ => body,
    };
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    stream.flush()
}

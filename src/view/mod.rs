//! A live page and metrics: an HTTP server on localhost that shows what SLAM does. Tracking hands numbers, images and
//! keyframes to a [`Feed`] and never waits; everything else happens in the server's thread, and most of it only while a
//! page is open. See docs/monitoring.md.
//!
//! `feed` (tracking's side) → `composer` (messages) → `board` (the newest of each) → `stream` (one for each page).

mod board;
mod clouds;
mod composer;
mod feed;
mod host;
mod listener;
mod messages;
mod meters;
mod scrape;
mod seen;
mod server;
mod stream;
mod trail;

pub use feed::{Feed, GridImage, SplatReader};
pub use host::{Host, HostReport};
pub use stream::MAX_PAGES;

use crate::map::MapSnapshot;
use composer::End;
use prometheus_client::registry::Registry;
use scrape::Scraped;
use server::{EndSlot, Site};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// The port of `run --view`.
pub const DEFAULT_PORT: &str = "8090";
/// Bytes of a connection that the system holds for a page.
const SEND_BUFFER: u32 = 64 << 10;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;
/// Interval at which open pages are checked.
const TICK: Duration = Duration::from_millis(20);

/// The live page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The address is taken, or not one of this machine.
    #[error(
        "cannot serve the live page on {address}: {}; choose another port, or 0 for any that is free \
         ({option}), or end the program that uses this one",
        why_not_bound(cause)
    )]
    Bind {
        address: SocketAddr,
        /// What sets the port.
        option: &'static str,
        cause: std::io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start the live page's thread: {0}")]
    Thread(std::io::Error),
}

/// The same words on every system for the most frequent cause.
fn why_not_bound(cause: &std::io::Error) -> String {
    match cause.kind() {
        std::io::ErrorKind::AddrInUse => "the port is in use".to_owned(),
        _ => cause.to_string(),
    }
}

/// A bound port, before anything is served.
pub struct Door {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    registry: Registry,
    feed: Arc<Feed>,
}

impl Door {
    /// Binds the port; 0 is any that is free. `option` is what sets it, for the error.
    ///
    /// # Errors
    /// If the port is in use, or the address is not one of this machine.
    pub fn bind(ip: IpAddr, port: u16, option: &'static str) -> Result<Self, ViewError> {
        let address = SocketAddr::new(ip, port);
        let refused = |cause| ViewError::Bind {
            address,
            option,
            cause,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(ViewError::Thread)?;
        let listener = listen(&runtime, address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let mut registry = Registry::with_prefix("mast3r_slam");
        let feed = Arc::new(Feed::new(&mut registry));
        Ok(Self {
            runtime,
            listener,
            address,
            registry,
            feed,
        })
    }

    /// What tracking fills.
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Starts the server.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub fn serve(self, host: Arc<dyn Host>) -> Result<View, ViewError> {
        let Self {
            runtime,
            listener,
            address,
            mut registry,
            feed,
        } = self;
        let scraped = Arc::new(Scraped {
            feed: Arc::clone(&feed),
            host,
            left_out: 0.into(),
            refused: 0.into(),
        });
        registry.register_collector(Box::new(Arc::clone(&scraped)));
        let site = Arc::new(Site {
            scraped,
            registry,
            board: Arc::default(),
            page: server::page(),
            reading_splats: Arc::default(),
        });
        let end = EndSlot::default();
        let (stop, stopped) = oneshot::channel();
        let slot = Arc::clone(&end);
        let serve = move || {
            runtime.block_on(server::run(listener, site, slot, stopped));
        };
        let thread = std::thread::Builder::new().name("view".to_owned());
        let thread = thread.spawn(serve).map_err(ViewError::Thread)?;
        Ok(View {
            feed,
            address,
            end,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// Listens on `address`.
fn listen(runtime: &Runtime, address: SocketAddr) -> std::io::Result<TcpListener> {
    let _entered = runtime.enter();
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // A port whose last connections still close is free. On Windows, this would let two programs use one port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    // Connections inherit it: what waits for a slow page is old.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A server that runs. Dropping it ends it.
pub struct View {
    feed: Arc<Feed>,
    address: SocketAddr,
    end: EndSlot,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Display for View {
    /// The page's address, as a browser on this machine takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.address;
        if shown.ip().is_unspecified() {
            shown.set_ip(match shown.ip() {
                IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        write!(f, "http://{shown}/")
    }
}

impl View {
    /// What tracking fills.
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows the finished map on open pages, tells them that the program ends, and waits, for `patience` at most, until
    /// they have received that.
    pub fn end(self, map: Option<&MapSnapshot>, text: &str, patience: Duration) {
        let end = End {
            map: map.cloned(),
            text: text.to_owned(),
        };
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        let start = Instant::now();
        while self.feed.watched() && start.elapsed() < patience {
            std::thread::sleep(TICK);
        }
        // What is in the sockets' buffers leaves before the process ends.
        std::thread::sleep(TICK);
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Dropping the sender ends the server.
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the live page's thread panicked");
        }
    }
}

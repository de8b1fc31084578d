//! Input of the tracking thread: the newest image, and commands.

use super::moment::Moment;
use crate::geometry::Sim3;
use crate::map::MapSnapshot;
use crate::slam::{MapSource, SavedMapError};
use crate::wire::Payload;
use heapless::Deque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

/// A received image message.
#[derive(Debug)]
pub struct Arrival {
    /// The message.
    pub payload: Payload,
    /// Time of arrival.
    pub at: Moment,
}

/// A command that the tracking thread executes between frames.
pub enum Order {
    /// Start a new map, as a user asks; with a reason.
    Reset(String),
    /// Start a new map because time went back, once the present one is on disk; with a reason.
    TimeJump(String),
    /// Read keyframes for the clouds, unless the reader gives up before.
    Keyframes(Vec<u32>, Weak<()>, OnMap),
    /// Save the map to a file and, if a folder is given, write the results of a run to it.
    Save {
        file: PathBuf,
        results: Option<PathBuf>,
        /// Receives the result.
        reply: OnText,
    },
    /// A hint that the camera is here, in SLAM's world.
    Hint(Sim3),
    /// Load a map file and resume it.
    Load(PathBuf, OnText),
    /// Resume the map file of such an order, which was checked.
    Checked(Checked, OnText),
}

/// A map file that was checked, or the reason why it cannot be used.
pub type Checked = Result<Box<MapSource>, SavedMapError>;

/// Receives keyframes, on the mapping thread.
pub type OnMap = Box<dyn FnOnce(MapSnapshot) + Send>;

/// Receives a description of what was saved or loaded, or an error.
pub type OnText = Box<dyn FnOnce(Result<String, String>) + Send>;

/// The next input.
pub enum Next {
    /// An image.
    Image(Arrival),
    /// An order.
    Order(Order),
    /// Nothing within the waiting time.
    Idle,
    /// The inbox is closed.
    Closed,
}

#[derive(Default)]
struct State {
    image: Option<Arrival>,
    orders: Deque<Order, ORDERS>,
    closed: bool,
}

/// A slot for one image, in which a newer image replaces an older one, and a queue of commands.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    dropped: AtomicU64,
}

/// Maximum number of waiting commands; further ones are rejected. A service call sends one or two,
/// the cloud thread one at a time.
const ORDERS: usize = 64;

impl Inbox {
    /// Stores an image that arrived at `at`; an unread one is dropped and counted.
    pub fn put(&self, payload: Payload, at: Moment) {
        let arrival = Arrival { payload, at };
        let mut state = self.lock();
        let old = state.image.replace(arrival);
        drop(state);
        if old.is_some() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.changed.notify_one();
    }

    /// Sends a command; returns `false` if the queue is full or the inbox is closed.
    pub fn order(&self, order: Order) -> bool {
        let mut state = self.lock();
        let taken = !state.closed && state.orders.push_back(order).is_ok();
        if taken {
            self.changed.notify_one();
        }
        taken
    }

    /// Drops the waiting image.
    pub fn clear(&self) {
        self.lock().image = None;
    }

    /// Closes the inbox.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Number of images replaced by newer ones before they were read.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits up to `patience` for the next input. Commands have priority over images.
    pub fn next(&self, patience: Duration) -> Next {
        let mut state = self.lock();
        let deadline = Instant::now() + patience;
        loop {
            if state.closed {
                return Next::Closed;
            }
            if let Some(order) = state.orders.pop_front() {
                return Next::Order(order);
            }
            if let Some(image) = state.image.take() {
                return Next::Image(image);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Idle;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is consistent even if the lock is poisoned.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn now() -> Moment {
        Instant::now().into()
    }

    fn image(text: &'static str) -> Payload {
        Bytes::from_static(text.as_bytes()).into()
    }

    #[test]
    fn the_newest_image_wins_and_the_others_are_counted() {
        let inbox = Inbox::default();
        for text in ["a", "b", "c"] {
            inbox.put(image(text), now());
        }
        let Next::Image(arrival) = inbox.next(Duration::ZERO) else {
            panic!("expected an image");
        };
        assert_eq!(&arrival.payload.data[..], b"c");
        assert_eq!(inbox.dropped(), 2);
        assert!(matches!(inbox.next(Duration::ZERO), Next::Idle));
    }

    #[test]
    fn orders_come_first_and_are_bounded() {
        let inbox = Inbox::default();
        inbox.put(image("a"), now());
        assert!(inbox.order(Order::Reset("why".into())));
        assert!(matches!(
            inbox.next(Duration::ZERO),
            Next::Order(Order::Reset(_))
        ));
        assert!(matches!(inbox.next(Duration::ZERO), Next::Image(_)));
        for _ in 0..ORDERS {
            assert!(inbox.order(Order::Reset(String::new())));
        }
        assert!(!inbox.order(Order::Reset(String::new())));
        inbox.close();
        assert!(matches!(inbox.next(Duration::from_secs(60)), Next::Closed));
        assert!(!inbox.order(Order::Reset(String::new())));
    }

    #[test]
    fn a_waiting_thread_is_woken() {
        let inbox = std::sync::Arc::new(Inbox::default());
        let other = std::sync::Arc::clone(&inbox);
        let waiting = std::thread::spawn(move || {
            matches!(other.next(Duration::from_secs(600)), Next::Image(_))
        });
        inbox.put(image("a"), now());
        assert!(waiting.join().unwrap());
    }
}

//! What waits for the tracking thread: the newest image, and orders.

use super::engine::{OnMap, OnSaved};
use crate::ros::middleware::Payload;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// An image message as it came.
#[derive(Debug)]
pub struct Arrival {
    /// The message.
    pub payload: Payload,
    /// When it came.
    pub at: Instant,
}

/// What the tracking thread is told to do between frames.
pub enum Order {
    /// Begin a new map; why.
    Reset(String),
    /// Read keyframes for the clouds.
    Keyframes(Vec<u32>, OnMap),
    /// Read the whole map.
    Map(OnMap),
    /// Save the map into a file.
    Save(PathBuf, OnSaved),
    /// Go on with the map in a file.
    Load(PathBuf, OnLoaded),
}

/// Gets what became of loading a map: what was loaded, or why it was not.
pub type OnLoaded = Box<dyn FnOnce(Result<String, String>) + Send>;

/// What comes next.
pub enum Next {
    /// An image.
    Image(Arrival),
    /// An order.
    Order(Order),
    /// Nothing for some time.
    Idle,
    /// It is over.
    Closed,
}

#[derive(Default)]
struct State {
    image: Option<Arrival>,
    orders: VecDeque<Order>,
    closed: bool,
}

/// A slot for one image, of which a newer one takes the place, and a queue of orders.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    dropped: AtomicU64,
}

/// Orders that may wait; more are refused (each is asked for again by whoever needs it).
const ORDERS: usize = 64;

impl Inbox {
    /// Puts an image in; one that nobody has looked at is dropped and counted.
    pub fn put(&self, payload: Payload) {
        let arrival = Arrival {
            payload,
            at: Instant::now(),
        };
        let mut state = self.lock();
        let old = state.image.replace(arrival);
        drop(state);
        if old.is_some() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.changed.notify_one();
    }

    /// Gives an order; `false` if too many wait or it is over.
    pub fn order(&self, order: Order) -> bool {
        let mut state = self.lock();
        let fine = !state.closed && state.orders.len() < ORDERS;
        if fine {
            state.orders.push_back(order);
            self.changed.notify_one();
        }
        fine
    }

    /// Drops the waiting image.
    pub fn clear(&self) {
        self.lock().image = None;
    }

    /// Ends it.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Images that were dropped because a newer one came first.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits for what comes next, at most `patience`. Orders come before images.
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
        // Nothing in here is left half done by a panic.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn image(text: &'static str) -> Payload {
        Bytes::from_static(text.as_bytes()).into()
    }

    #[test]
    fn the_newest_image_wins_and_the_others_are_counted() {
        let inbox = Inbox::default();
        for text in ["a", "b", "c"] {
            inbox.put(image(text));
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
        inbox.put(image("a"));
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
        inbox.put(image("a"));
        assert!(waiting.join().unwrap());
    }
}

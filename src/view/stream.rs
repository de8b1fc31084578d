//! The stream of messages to one page.

use super::board::{Board, Cursor};
use super::scrape::Scraped;
use axum::body::{Bytes, HttpBody};
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Maximum number of pages at once.
pub const MAX_PAGES: usize = 8;
/// Interval between two turns: twenty updates per second.
pub const TURN: Duration = Duration::from_millis(50);
/// A page that takes nothing for this long counts as gone, such as a phone that sleeps.
const PATIENCE: Duration = Duration::from_secs(60);
/// Messages between a page's task and its connection.
const QUEUE: usize = 1;

/// One of the places for pages; dropped, it is free again.
pub struct Seat {
    scraped: Arc<Scraped>,
}

impl Seat {
    /// A place, if one is free.
    pub fn take(scraped: &Arc<Scraped>) -> Option<Self> {
        let more = |taken: usize| (taken < MAX_PAGES).then_some(taken + 1);
        let pages: &AtomicUsize = scraped.feed.watchers();
        let taken = pages.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        if taken.is_err() {
            scraped.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok().then(|| Self {
            scraped: Arc::clone(scraped),
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.scraped.feed.watchers().fetch_sub(1, Ordering::AcqRel);
    }
}

/// The body of the answer.
pub struct Stream(Receiver<Bytes>);

/// Starts the stream of a page that has a seat.
pub fn start(seat: Seat, board: Arc<Mutex<Board>>) -> Stream {
    let (sender, receiver) = channel(QUEUE);
    tokio::spawn(run(seat, board, sender));
    Stream(receiver)
}

async fn run(seat: Seat, board: Arc<Mutex<Board>>, sender: Sender<Bytes>) {
    let mut cursor = Cursor::default();
    let mut turns = interval(TURN);
    // A page that was slow gets the newest, and not what it missed.
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !sender.is_closed() {
        turns.tick().await;
        let turn = cursor.turn(&board.lock().unwrap_or_else(PoisonError::into_inner));
        seat.scraped
            .left_out
            .fetch_add(turn.left_out, Ordering::Relaxed);
        for message in turn.messages {
            match timeout(PATIENCE, sender.send(message)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
        if turn.last {
            return;
        }
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|message| message.map(|m| Ok(Frame::data(m))))
    }
}

//! A bag as a client of the ROS graph: what is published is recorded. It stands beside another client
//! (`node --record`) or alone (`run --record`).

use super::middleware::{Middleware, MiddlewareError};
use super::tap::{Listener, Tap, Tapped};
use crate::bag::{BagWriter, Channel};
use crate::files::export::ExportError;
use crate::time::Stamp;
use crate::wire::Payload;
use crate::wire::messages::Message;
use crate::wire::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use crate::wire::messages::nav::{Odometry, Path as PathMessage};
use crate::wire::messages::sensor::PointCloud2;
use crate::wire::names::NodeNames;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Types of the messages that are recorded.
const RECORDED: [&str; 5] = [
    TfMessage::TYPE,
    Odometry::TYPE,
    PoseWithCovarianceStamped::TYPE,
    PathMessage::TYPE,
    PointCloud2::TYPE,
];
/// Not recorded: it repeats for each frame what the clouds of keyframes say.
const OMITTED: &str = "~/cloud";
/// Recorded as it is received: without it the recorded tree of frames would end at the robot.
const RECEIVED: &str = "/tf_static";
/// The node's name without a client.
const NAME: &str = "mast3r_slam";

/// Records transforms, odometry, poses, path and clouds, and `/tf_static` as it is received. To the node the bag is
/// a subscriber, so clouds are made for it.
pub struct Recording {
    tap: Arc<Tap<Bag>>,
    bag: Arc<Bag>,
}

/// The bag that all topics write to.
struct Bag {
    writing: Mutex<Writing>,
    /// The time at which messages are recorded; `None`: the time at which they are published.
    time: Mutex<Option<Stamp>>,
}

enum Writing {
    On(Box<BagWriter>),
    Failed(ExportError),
    Finished,
}

impl Recording {
    /// Begins a bag that will be at `path`, beside a client. Messages are recorded at the time at which they are
    /// published, as `ros2 bag record` does.
    ///
    /// # Errors
    /// A folder that is missing or cannot be written to.
    pub fn beside(client: Arc<dyn Middleware>, path: &Path) -> Result<Self, MiddlewareError> {
        Self::new(Some(client), path, None)
    }

    /// Begins a bag that will be at `path`, without a client beside it. Messages are recorded at `start`, and later at
    /// the time that [`Recording::set_time`] says.
    ///
    /// # Errors
    /// A folder that is missing or cannot be written to.
    pub fn alone(path: &Path, start: Stamp) -> Result<Self, MiddlewareError> {
        Self::new(None, path, Some(start))
    }

    fn new(
        client: Option<Arc<dyn Middleware>>,
        path: &Path,
        time: Option<Stamp>,
    ) -> Result<Self, MiddlewareError> {
        let writer = BagWriter::create(path).map_err(|cause| MiddlewareError::Create {
            what: "bag",
            name: path.display().to_string(),
            cause: cause.to_string(),
        })?;
        let bag = Arc::new(Bag {
            writing: Mutex::new(Writing::On(Box::new(writer))),
            time: Mutex::new(time),
        });
        let tap = match client {
            Some(client) => Tap::beside(client, Arc::clone(&bag)),
            None => Tap::alone(NodeNames::new(NAME, "/", &[])?, Arc::clone(&bag)),
        };
        let tap = Arc::new(tap);
        Ok(Self { tap, bag })
    }

    /// The client whose messages are recorded.
    pub fn client(&self) -> Arc<dyn Middleware> {
        Arc::clone(&self.tap) as Arc<dyn Middleware>
    }

    /// Sets the time at which the next messages are recorded.
    pub fn set_time(&self, time: Stamp) {
        *lock(&self.bag.time) = Some(time);
    }

    /// Completes the bag; gives its path, `None` if that was done before. Nothing is recorded any more.
    ///
    /// # Errors
    /// The error of the first failed write, or of completing the file.
    pub fn finish(&self) -> Result<Option<PathBuf>, ExportError> {
        let mut writing = lock(&self.bag.writing);
        match std::mem::replace(&mut *writing, Writing::Finished) {
            Writing::On(writer) => writer.finish().map(Some),
            Writing::Failed(error) => Err(error),
            Writing::Finished => Ok(None),
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here is left half done by a panic.
    of.lock().unwrap_or_else(|e| e.into_inner())
}

impl Bag {
    /// Writes; the first failure ends the recording and is logged.
    fn with<T>(&self, write: impl FnOnce(&mut BagWriter) -> Result<T, ExportError>) -> Option<T> {
        let mut writing = lock(&self.writing);
        let Writing::On(writer) = &mut *writing else {
            return None;
        };
        match write(writer) {
            Ok(done) => Some(done),
            Err(error) => {
                tracing::error!("nothing more is recorded: {error}");
                *writing = Writing::Failed(error);
                None
            }
        }
    }
}

impl Listener for Bag {
    type Handle = Channel;

    fn topic(&self, topic: Tapped<'_>) -> Option<Channel> {
        let recorded = match topic.published {
            true => RECORDED.contains(&topic.kind) && topic.topic != OMITTED,
            false => topic.topic == RECEIVED,
        };
        let channel = || self.with(|bag| bag.topic_of(topic.name, topic.kind, topic.qos));
        recorded.then(channel).flatten()
    }

    fn message(&self, channel: Channel, payload: &Payload) {
        let time = lock(&self.time).unwrap_or_else(Stamp::now);
        self.with(|bag| bag.write_payload(channel, time, payload));
    }

    fn subscribes(&self) -> bool {
        true
    }
}

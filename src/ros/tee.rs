//! A client of the ROS graph of which a bag keeps what is said: `mast3r-slam node --record`.

use super::messages::Message;
use super::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use super::messages::nav::{Odometry, Path as PathMessage};
use super::messages::sensor::PointCloud2;
use super::middleware::{
    Lane, Middleware, MiddlewareError, OnMessage, OnRequest, Payload, Publish, Qos, Subscription,
};
use crate::bag::{BagWriter, Channel};
use crate::map::ExportError;
use crate::time::Stamp;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is recorded of what the node publishes.
const RECORDED: [&str; 5] = [
    TfMessage::TYPE,
    Odometry::TYPE,
    PoseWithCovarianceStamped::TYPE,
    PathMessage::TYPE,
    PointCloud2::TYPE,
];
/// Heard, not said; without it the recorded tree of frames would end at the robot.
const HEARD: &str = "/tf_static";

/// A client whose transforms, odometry, poses, path and clouds are recorded too, and `/tf_static` as it is heard.
/// To the node the bag is a subscriber, so clouds are made for it. Messages are recorded as of the time at which they
/// are published, as `ros2 bag record` does.
pub struct Tee {
    client: Arc<dyn Middleware>,
    bag: Arc<Shared>,
}

/// The bag; none after it was finished or could not be written.
struct Shared {
    writer: Mutex<Writing>,
}

enum Writing {
    On(Box<BagWriter>),
    Failed(ExportError),
    Finished,
}

impl Tee {
    /// Begins a bag that will be at `path`.
    ///
    /// # Errors
    /// A folder that is missing or cannot be written to.
    pub fn new(client: Arc<dyn Middleware>, path: &Path) -> Result<Self, ExportError> {
        let writer = Writing::On(Box::new(BagWriter::create(path)?));
        Ok(Self {
            client,
            bag: Arc::new(Shared {
                writer: Mutex::new(writer),
            }),
        })
    }

    /// Completes the bag; gives its path, `None` if that was done before. Nothing is recorded any more.
    ///
    /// # Errors
    /// Of the first message that could not be written, or of completing.
    pub fn finish(&self) -> Result<Option<PathBuf>, ExportError> {
        let mut writing = self.bag.lock();
        match std::mem::replace(&mut *writing, Writing::Finished) {
            Writing::On(writer) => writer.finish().map(Some),
            Writing::Failed(error) => Err(error),
            Writing::Finished => Ok(None),
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Writing> {
        // Whoever panicked did not do so between two states.
        self.writer.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Writes; the first failure ends the recording and is said.
    fn with<T>(&self, write: impl FnOnce(&mut BagWriter) -> Result<T, ExportError>) -> Option<T> {
        let mut writing = self.lock();
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

    fn record(&self, channel: Channel, payload: &Payload) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
        self.with(|bag| bag.write_payload(channel, Stamp { nanos }, payload));
    }
}

/// A topic whose messages are recorded before they are sent.
struct Both {
    inner: Box<dyn Publish>,
    bag: Arc<Shared>,
    channel: Channel,
}

impl Publish for Both {
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError> {
        self.bag.record(self.channel, &Payload::from(data.clone()));
        self.inner.publish(data)
    }

    fn subscribers(&self) -> usize {
        self.inner.subscribers() + 1
    }

    fn topic(&self) -> &str {
        self.inner.topic()
    }
}

impl Middleware for Tee {
    fn describe(&self) -> String {
        format!("{}; recorded", self.client.describe())
    }

    fn node_name(&self) -> String {
        self.client.node_name()
    }

    fn resolve(&self, name: &str) -> Result<String, MiddlewareError> {
        self.client.resolve(name)
    }

    fn advertise(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
    ) -> Result<Box<dyn Publish>, MiddlewareError> {
        let inner = self.client.advertise(topic, type_name, qos)?;
        if !RECORDED.contains(&type_name) {
            return Ok(inner);
        }
        let channel = self
            .bag
            .with(|bag| bag.topic_of(inner.topic(), type_name, qos));
        Ok(match channel {
            Some(channel) => Box::new(Both {
                inner,
                bag: Arc::clone(&self.bag),
                channel,
            }),
            None => inner,
        })
    }

    fn subscribe(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
        lane: Lane,
        mut handler: OnMessage,
    ) -> Result<Subscription, MiddlewareError> {
        if topic == HEARD {
            let channel = self.bag.with(|bag| bag.topic_of(HEARD, type_name, qos));
            let bag = Arc::clone(&self.bag);
            handler = Box::new(move |payload: Payload| {
                if let Some(channel) = channel {
                    bag.record(channel, &payload);
                }
                handler(payload);
            });
        }
        self.client.subscribe(topic, type_name, qos, lane, handler)
    }

    fn serve(
        &self,
        service: &str,
        type_name: &'static str,
        handler: OnRequest,
    ) -> Result<(), MiddlewareError> {
        self.client.serve(service, type_name, handler)
    }

    fn namesakes(&self) -> usize {
        self.client.namesakes()
    }
}

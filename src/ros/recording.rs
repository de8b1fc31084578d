//! A bag as a client of the ROS graph: what is published is recorded. It stands beside another client
//! (`node --record`) or alone (`run --record`).

use super::middleware::{
    Lane, Middleware, MiddlewareError, OnMessage, OnRequest, Publish, Subscription,
};
use crate::bag::{BagWriter, Channel};
use crate::files::export::ExportError;
use crate::time::Stamp;
use crate::wire::messages::Message;
use crate::wire::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use crate::wire::messages::nav::{Odometry, Path as PathMessage};
use crate::wire::messages::sensor::PointCloud2;
use crate::wire::names::NodeNames;
use crate::wire::{Payload, Qos};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

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
/// The node's name where no client says it.
const NAME: &str = "mast3r_slam";

/// Records transforms, odometry, poses, path and clouds, and `/tf_static` as it is received. To the node the bag is
/// a subscriber, so clouds are made for it.
pub struct Recording {
    client: Option<Arc<dyn Middleware>>,
    names: NodeNames,
    bag: Arc<Bag>,
}

/// The bag that all topics write to.
struct Bag {
    writing: Mutex<Writing>,
    /// The time that messages are recorded at; none: the time at which they are published.
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

    /// Begins a bag that will be at `path` and is the only one to be told. Messages are recorded at `start`, and
    /// later at the time that [`Recording::set_time`] says.
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
        Ok(Self {
            client,
            names: NodeNames::new(NAME, "/", &[])?,
            bag: Arc::new(Bag {
                writing: Mutex::new(Writing::On(Box::new(writer))),
                time: Mutex::new(time),
            }),
        })
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

    fn record(&self, channel: Channel, payload: &Payload) {
        let time = lock(&self.time).unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let nanos = since.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX));
            Stamp { nanos }
        });
        self.with(|bag| bag.write_payload(channel, time, payload));
    }
}

/// A topic whose messages are recorded before they are sent.
struct Topic {
    name: String,
    client: Option<Box<dyn Publish>>,
    bag: Arc<Bag>,
    channel: Option<Channel>,
}

impl Publish for Topic {
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError> {
        if let Some(channel) = self.channel {
            self.bag.record(channel, &Payload::from(data.clone()));
        }
        match &self.client {
            Some(client) => client.publish(data),
            None => Ok(()),
        }
    }

    fn subscribers(&self) -> usize {
        let others = self
            .client
            .as_ref()
            .map_or(0, |client| client.subscribers());
        others + usize::from(self.channel.is_some())
    }

    fn topic(&self) -> &str {
        &self.name
    }
}

impl Middleware for Recording {
    fn describe(&self) -> String {
        match &self.client {
            Some(client) => format!("{}; recorded", client.describe()),
            None => "a bag".to_owned(),
        }
    }

    fn node_name(&self) -> String {
        match &self.client {
            Some(client) => client.node_name(),
            None => self.names.full(),
        }
    }

    fn resolve(&self, name: &str) -> Result<String, MiddlewareError> {
        match &self.client {
            Some(client) => client.resolve(name),
            None => Ok(self.names.resolve(name)?),
        }
    }

    fn advertise(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
    ) -> Result<Box<dyn Publish>, MiddlewareError> {
        let name = self.resolve(topic)?;
        let client = match &self.client {
            Some(client) => Some(client.advertise(topic, type_name, qos)?),
            None => None,
        };
        let recorded = RECORDED.contains(&type_name) && topic != OMITTED;
        let channel = || self.bag.with(|bag| bag.topic_of(&name, type_name, qos));
        let channel = recorded.then(channel).flatten();
        Ok(Box::new(Topic {
            client,
            bag: Arc::clone(&self.bag),
            channel,
            name,
        }))
    }

    fn subscribe(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
        lane: Lane,
        mut handler: OnMessage,
    ) -> Result<Subscription, MiddlewareError> {
        let Some(client) = &self.client else {
            return Ok(Box::new(()));
        };
        if topic == RECEIVED {
            let channel = self.bag.with(|bag| bag.topic_of(RECEIVED, type_name, qos));
            let bag = Arc::clone(&self.bag);
            handler = Box::new(move |payload: Payload| {
                if let Some(channel) = channel {
                    bag.record(channel, &payload);
                }
                handler(payload);
            });
        }
        client.subscribe(topic, type_name, qos, lane, handler)
    }

    fn serve(
        &self,
        service: &str,
        type_name: &'static str,
        handler: OnRequest,
    ) -> Result<(), MiddlewareError> {
        match &self.client {
            Some(client) => client.serve(service, type_name, handler),
            None => Ok(()),
        }
    }

    fn same_name_nodes(&self) -> usize {
        self.client
            .as_ref()
            .map_or(0, |client| client.same_name_nodes())
    }
}

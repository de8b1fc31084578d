//! The middleware interface required by the node: topics and services that carry CDR bytes.

use crate::wire::cdr::CdrError;
use crate::wire::names::NameError;
use crate::wire::{Payload, Qos};
use bytes::Bytes;

/// Middleware error.
#[derive(Debug, thiserror::Error)]
pub enum MiddlewareError {
    /// A name that ROS does not allow.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A message cannot be serialised.
    #[error(transparent)]
    Cdr(#[from] CdrError),
    /// A topic or service cannot be created.
    #[error("cannot create {what} {name}: {cause}")]
    Create {
        what: &'static str,
        name: String,
        cause: String,
    },
    /// The middleware cannot be started.
    #[error("cannot join ROS domain {domain}: {cause}")]
    Join { domain: u16, cause: String },
    /// The middleware rejected a message.
    #[error("a message for {topic} was not sent: {cause}")]
    Send { topic: String, cause: String },
}

/// A publisher on one topic.
pub trait Publish: Send + Sync {
    /// Sends CDR data. May wait up to 0.1 s for a slow reliable reader.
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError>;

    /// Number of subscriptions.
    fn subscribers(&self) -> usize;

    /// Full name of the topic.
    fn topic(&self) -> &str;
}

/// Called for every message, on a middleware thread; must return quickly.
pub type OnMessage = Box<dyn FnMut(Payload) + Send>;

/// Sends the response to a request; callable once, from any thread.
pub type Respond = Box<dyn FnOnce(Bytes) + Send>;

/// Called for every request, on a middleware thread; must return quickly.
pub type OnRequest = Box<dyn FnMut(Payload, Respond) + Send>;

/// Ends a subscription when dropped.
pub type Subscription = Box<dyn Send + Sync>;

/// The middleware thread that calls a subscription's handler. A slow request, such as a transition
/// that waits for a solve, delays neither transforms nor the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The thread for camera images.
    Images,
    /// The thread for `/tf` and `/tf_static`, and for the motion sensors.
    Transforms,
    /// The thread for `/clock`.
    Clock,
    /// The thread for services.
    Services,
    /// The thread for everything else.
    Rest,
}

impl Lane {
    /// All lanes, in the order of their discriminants.
    pub const ALL: [Self; 5] = [
        Self::Images,
        Self::Transforms,
        Self::Clock,
        Self::Services,
        Self::Rest,
    ];

    /// Name of the lane's thread.
    pub fn thread(self) -> &'static str {
        match self {
            Self::Images => "ros-images",
            Self::Transforms => "ros-tf",
            Self::Clock => "ros-clock",
            Self::Services => "ros-services",
            Self::Rest => "ros-rest",
        }
    }
}

/// A ROS client: one node. Names may be relative (`image`), private (`~/odometry`) or absolute
/// (`/tf`); they are expanded and remapped according to the command line. Types are
/// `package/msg/Type` and `package/srv/Type`.
pub trait Middleware: Send + Sync {
    /// Description of the client and its configuration, for the log.
    fn describe(&self) -> String;

    fn node_name(&self) -> String;

    /// Expands and remaps a name to its full name.
    fn resolve(&self, name: &str) -> Result<String, MiddlewareError>;

    /// Creates a publisher.
    fn advertise(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
    ) -> Result<Box<dyn Publish>, MiddlewareError>;

    /// Creates a subscription.
    fn subscribe(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
        lane: Lane,
        handler: OnMessage,
    ) -> Result<Subscription, MiddlewareError>;

    /// Creates a service, which runs until the client is dropped.
    fn serve(
        &self,
        service: &str,
        type_name: &'static str,
        handler: OnRequest,
    ) -> Result<(), MiddlewareError>;

    /// Number of other nodes with the same full name, as far as the graph is known.
    fn same_name_nodes(&self) -> usize;
}

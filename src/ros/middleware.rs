//! What the node needs of a middleware, and nothing more: topics and services that carry CDR bytes.

use bytes::Bytes;

/// A serialised message: CDR data without the four bytes of encapsulation header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// The CDR data.
    pub data: Bytes,
    /// Its byte order.
    pub big_endian: bool,
}

impl From<Bytes> for Payload {
    /// Little-endian data.
    fn from(data: Bytes) -> Self {
        Self {
            data,
            big_endian: false,
        }
    }
}

/// Quality of service, as far as the node's topics differ in it. History is always keep-last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qos {
    /// Lost messages are sent again.
    pub reliable: bool,
    /// Late joiners get the last messages ("latched").
    pub transient_local: bool,
    /// How many messages are kept.
    pub depth: usize,
}

impl Qos {
    /// rmw's sensor data profile with a history of `depth`.
    pub const fn sensor_data(depth: usize) -> Self {
        Self {
            reliable: false,
            transient_local: false,
            depth,
        }
    }

    /// Reliable, for those who listen now.
    pub const fn reliable(depth: usize) -> Self {
        Self {
            reliable: true,
            transient_local: false,
            depth,
        }
    }

    /// Reliable, and the last `depth` messages for late joiners too.
    pub const fn latched(depth: usize) -> Self {
        Self {
            reliable: true,
            transient_local: true,
            depth,
        }
    }
}

/// Why the middleware could not do something.
#[derive(Debug, thiserror::Error)]
pub enum MiddlewareError {
    /// A name that ROS does not allow.
    #[error(transparent)]
    Name(#[from] super::names::NameError),
    /// A message that could not be serialised.
    #[error(transparent)]
    Cdr(#[from] super::cdr::CdrError),
    /// A topic or service could not be made.
    #[error("cannot create {what} {name}: {cause}")]
    Create {
        /// Publisher, subscription, service.
        what: &'static str,
        /// Its full name.
        name: String,
        /// The middleware's reason.
        cause: String,
    },
    /// The middleware could not be started at all.
    #[error("cannot join ROS domain {domain}: {cause}")]
    Join {
        /// The domain.
        domain: u16,
        /// The middleware's reason.
        cause: String,
    },
    /// A message that the middleware would not take.
    #[error("a message for {topic} was not sent: {cause}")]
    Send {
        /// Full name of the topic.
        topic: String,
        /// The middleware's reason.
        cause: String,
    },
}

/// One topic to publish on.
pub trait Publish: Send + Sync {
    /// Hands CDR data over. May wait for a reliable reader that is slow, for at most 0.1 s.
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError>;

    /// How many subscriptions there are.
    fn subscribers(&self) -> usize;

    /// Full name of the topic.
    fn topic(&self) -> &str;
}

/// Called for every message, in a thread of the middleware; must return soon.
pub type OnMessage = Box<dyn FnMut(Payload) + Send>;

/// Sends the answer to a request; from any thread, once.
pub type Respond = Box<dyn FnOnce(Bytes) + Send>;

/// Called for every request, in a thread of the middleware; must return soon.
pub type OnRequest = Box<dyn FnMut(Payload, Respond) + Send>;

/// Ends a subscription when dropped.
pub type Subscription = Box<dyn Send + Sync>;

/// Which of the middleware's threads calls a subscription's handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The one for camera images.
    Images,
    /// The one for everything else.
    Rest,
}

/// A client of the ROS graph: one node. Names may be relative (`image`), private (`~/odometry`) or
/// absolute (`/tf`); they are expanded and remapped as the command line says. Types are
/// `package/msg/Type` and `package/srv/Type`.
pub trait Middleware: Send + Sync {
    /// Which client this is and how it was set up, for the log.
    fn describe(&self) -> String;

    /// The node's full name.
    fn node_name(&self) -> String;

    /// The full name that a name stands for.
    fn resolve(&self, name: &str) -> Result<String, MiddlewareError>;

    /// Starts publishing.
    fn advertise(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
    ) -> Result<Box<dyn Publish>, MiddlewareError>;

    /// Starts listening.
    fn subscribe(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
        lane: Lane,
        handler: OnMessage,
    ) -> Result<Subscription, MiddlewareError>;

    /// Starts answering requests, until the client is dropped.
    fn serve(
        &self,
        service: &str,
        type_name: &'static str,
        handler: OnRequest,
    ) -> Result<(), MiddlewareError>;

    /// Other nodes of this very name, as far as the graph is known.
    fn namesakes(&self) -> usize;
}

//! A ROS client whose messages a listener sees as they pass.

use super::middleware::{
    Lane, Middleware, MiddlewareError, OnMessage, OnRequest, Publish, Subscription,
};
use crate::wire::names::NodeNames;
use crate::wire::{Payload, Qos};
use bytes::Bytes;
use std::sync::Arc;

/// A topic, as the node names it and as ROS does.
#[derive(Debug, Clone, Copy)]
pub struct Tapped<'a> {
    /// The name that the node gives: `~/pose`.
    pub topic: &'a str,
    /// The full name, after remapping: `/mast3r_slam/pose`.
    pub name: &'a str,
    /// `package/msg/Type`
    pub kind: &'static str,
    pub qos: Qos,
    /// Whether the node publishes it; otherwise it subscribes to it.
    pub published: bool,
}

/// Sees the messages of some topics.
pub trait Listener: Send + Sync + 'static {
    /// Names a topic of interest.
    type Handle: Copy + Send + Sync + 'static;

    /// Called for each new topic; `None`: its messages are of no interest.
    fn topic(&self, topic: Tapped<'_>) -> Option<Self::Handle>;

    /// Called for each message, before it is sent or handled, on the thread that sends or receives; must return
    /// quickly.
    fn message(&self, topic: Self::Handle, payload: &Payload);

    /// Whether messages are made for the listener alone, too.
    fn subscribes(&self) -> bool;
}

/// A client beside a listener, or a listener alone.
pub struct Tap<L: Listener> {
    to: To,
    listener: Arc<L>,
}

enum To {
    Client(Arc<dyn Middleware>),
    /// Nothing but the listener; the node's names.
    Listener(NodeNames),
}

impl<L: Listener> Tap<L> {
    /// Listens to `client`.
    pub fn beside(client: Arc<dyn Middleware>, listener: Arc<L>) -> Self {
        let to = To::Client(client);
        Self { to, listener }
    }

    /// A node of these names whose messages go to the listener alone.
    pub fn alone(names: NodeNames, listener: Arc<L>) -> Self {
        let to = To::Listener(names);
        Self { to, listener }
    }

    fn client(&self) -> Option<&Arc<dyn Middleware>> {
        match &self.to {
            To::Client(client) => Some(client),
            To::Listener(_) => None,
        }
    }
}

struct Topic<L: Listener> {
    name: String,
    client: Option<Box<dyn Publish>>,
    listener: Arc<L>,
    handle: Option<L::Handle>,
}

impl<L: Listener> Publish for Topic<L> {
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError> {
        if let Some(handle) = self.handle {
            self.listener.message(handle, &Payload::from(data.clone()));
        }
        match &self.client {
            Some(client) => client.publish(data),
            None => Ok(()),
        }
    }

    fn subscribers(&self) -> usize {
        let own = self.handle.is_some() && self.listener.subscribes();
        let others = self.client.as_ref().map_or(0, |c| c.subscribers());
        others + usize::from(own)
    }

    fn topic(&self) -> &str {
        &self.name
    }
}

impl<L: Listener> Middleware for Tap<L> {
    fn describe(&self) -> String {
        match &self.to {
            To::Client(client) => client.describe(),
            To::Listener(names) => format!("{}, which no other node hears", names.full()),
        }
    }

    fn node_name(&self) -> String {
        match &self.to {
            To::Client(client) => client.node_name(),
            To::Listener(names) => names.full(),
        }
    }

    fn resolve(&self, name: &str) -> Result<String, MiddlewareError> {
        match &self.to {
            To::Client(client) => client.resolve(name),
            To::Listener(names) => Ok(names.resolve(name)?),
        }
    }

    fn advertise(
        &self,
        topic: &str,
        type_name: &'static str,
        qos: Qos,
    ) -> Result<Box<dyn Publish>, MiddlewareError> {
        let name = self.resolve(topic)?;
        let client = match self.client() {
            Some(client) => Some(client.advertise(topic, type_name, qos)?),
            None => None,
        };
        let handle = self.listener.topic(Tapped {
            topic,
            name: &name,
            kind: type_name,
            qos,
            published: true,
        });
        Ok(Box::new(Topic {
            client,
            listener: Arc::clone(&self.listener),
            handle,
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
        let Some(client) = self.client() else {
            return Ok(Box::new(()));
        };
        let name = self.resolve(topic)?;
        let handle = self.listener.topic(Tapped {
            topic,
            name: &name,
            kind: type_name,
            qos,
            published: false,
        });
        if let Some(handle) = handle {
            let listener = Arc::clone(&self.listener);
            handler = Box::new(move |payload: Payload| {
                listener.message(handle, &payload);
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
        match self.client() {
            Some(client) => client.serve(service, type_name, handler),
            None => Ok(()),
        }
    }

    fn same_name_nodes(&self) -> usize {
        self.client().map_or(0, |c| c.same_name_nodes())
    }
}

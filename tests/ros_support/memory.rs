//! A middleware inside the test: messages go from hand to hand.

use bytes::Bytes;
use mast3r_slam::ros::messages::Message;
use mast3r_slam::ros::middleware::{
    Lane, Middleware, MiddlewareError, OnMessage, OnRequest, Payload, Publish, Qos, Subscription,
};
use mast3r_slam::ros::names::NodeNames;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Handlers = Arc<Mutex<HashMap<String, Arc<Mutex<OnMessage>>>>>;
type Sent = Arc<Mutex<HashMap<String, Vec<Bytes>>>>;

/// The graph, as the test sees it.
#[derive(Clone)]
pub struct Memory {
    names: NodeNames,
    handlers: Handlers,
    services: Arc<Mutex<HashMap<String, OnRequest>>>,
    sent: Sent,
    subscribers: Arc<AtomicUsize>,
}

impl Memory {
    pub fn new() -> Self {
        Self {
            names: NodeNames::new("slam", "/", &[]).unwrap(),
            handlers: Arc::default(),
            services: Arc::default(),
            sent: Arc::default(),
            subscribers: Arc::default(),
        }
    }

    /// How many listen to everything the node publishes.
    pub fn listen(&self, subscribers: usize) {
        self.subscribers.store(subscribers, Ordering::SeqCst);
    }

    pub fn subscribed(&self, topic: &str) -> bool {
        self.handlers.lock().unwrap().contains_key(topic)
    }

    /// Sends bytes to the node's subscription, if there is one.
    pub fn send_bytes(&self, topic: &str, data: Bytes) {
        let handler = self.handlers.lock().unwrap().get(topic).cloned();
        if let Some(handler) = handler {
            (handler.lock().unwrap())(data.into());
        }
    }

    pub fn send<M: Message + Serialize>(&self, topic: &str, message: &M) {
        self.send_bytes(topic, message.encode().unwrap());
    }

    /// Everything that was published on a topic.
    pub fn sent<M: Message + DeserializeOwned>(&self, topic: &str) -> Vec<M> {
        let sent = self.sent.lock().unwrap();
        let all = sent.get(topic).into_iter().flatten();
        all.map(|data| M::decode(&Payload::from(data.clone())).unwrap())
            .collect()
    }

    /// How many messages were published on a topic.
    pub fn count(&self, topic: &str) -> usize {
        self.sent.lock().unwrap().get(topic).map_or(0, Vec::len)
    }

    /// The bytes of the last message.
    pub fn last_bytes(&self, topic: &str) -> Option<Payload> {
        let sent = self.sent.lock().unwrap();
        sent.get(topic)?.last().map(|d| Payload::from(d.clone()))
    }

    pub fn forget(&self) {
        self.sent.lock().unwrap().clear();
    }

    /// Calls a service; fails the test if no answer comes.
    pub fn call<A: Message + DeserializeOwned>(&self, service: &str, request: Bytes) -> A {
        let (sender, answers) = channel();
        let mut services = self.services.lock().unwrap();
        let handler = services
            .get_mut(service)
            .unwrap_or_else(|| panic!("no service {service}"));
        handler(
            request.into(),
            Box::new(move |data| sender.send(data).unwrap()),
        );
        let answer = answers.recv_timeout(Duration::from_secs(60));
        A::decode(&Payload::from(
            answer.unwrap_or_else(|_| panic!("{service} never answered")),
        ))
        .unwrap()
    }
}

struct Topic {
    name: String,
    sent: Sent,
    subscribers: Arc<AtomicUsize>,
}

impl Publish for Topic {
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError> {
        self.sent
            .lock()
            .unwrap()
            .entry(self.name.clone())
            .or_default()
            .push(data);
        Ok(())
    }

    fn subscribers(&self) -> usize {
        self.subscribers.load(Ordering::SeqCst)
    }

    fn topic(&self) -> &str {
        &self.name
    }
}

struct Registration {
    name: String,
    handlers: Handlers,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.handlers.lock().unwrap().remove(&self.name);
    }
}

impl Middleware for Memory {
    fn describe(&self) -> String {
        "memory".into()
    }

    fn node_name(&self) -> String {
        self.names.full()
    }

    fn resolve(&self, name: &str) -> Result<String, MiddlewareError> {
        Ok(self.names.resolve(name)?)
    }

    fn advertise(
        &self,
        topic: &str,
        _: &'static str,
        _: Qos,
    ) -> Result<Box<dyn Publish>, MiddlewareError> {
        Ok(Box::new(Topic {
            name: self.names.resolve(topic)?,
            sent: Arc::clone(&self.sent),
            subscribers: Arc::clone(&self.subscribers),
        }))
    }

    fn subscribe(
        &self,
        topic: &str,
        _: &'static str,
        _: Qos,
        _: Lane,
        handler: OnMessage,
    ) -> Result<Subscription, MiddlewareError> {
        let name = self.names.resolve(topic)?;
        let handler = Arc::new(Mutex::new(handler));
        self.handlers.lock().unwrap().insert(name.clone(), handler);
        Ok(Box::new(Registration {
            name,
            handlers: Arc::clone(&self.handlers),
        }))
    }

    fn serve(
        &self,
        service: &str,
        _: &'static str,
        handler: OnRequest,
    ) -> Result<(), MiddlewareError> {
        let name = self.names.resolve(service)?;
        self.services.lock().unwrap().insert(name, handler);
        Ok(())
    }

    fn namesakes(&self) -> usize {
        0
    }
}

//! A middleware inside the test: messages go from hand to hand.

use bytes::Bytes;
use mast3r_slam::ros::middleware::{
    Lane, Middleware, MiddlewareError, OnMessage, OnRequest, Publish, Subscription,
};
use mast3r_slam::wire::messages::Message;
use mast3r_slam::wire::names::NodeNames;
use mast3r_slam::wire::{Payload, Qos};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

type Handlers = Arc<Mutex<HashMap<String, Arc<Mutex<OnMessage>>>>>;
type Sent = Arc<Mutex<HashMap<String, Messages>>>;

/// What was published on a topic.
#[derive(Default)]
struct Messages {
    kept: Vec<Bytes>,
    count: usize,
}

/// The graph, as the test sees it.
#[derive(Clone)]
pub struct Memory {
    names: NodeNames,
    handlers: Handlers,
    services: Arc<Mutex<HashMap<String, OnRequest>>>,
    sent: Sent,
    subscribers: Arc<AtomicUsize>,
    /// The topic that panics, and how many times it still does.
    panics: Arc<Mutex<(String, usize)>>,
    /// The topic on which publishing waits.
    held: Arc<(Mutex<Option<String>>, Condvar)>,
    /// Whether only the last message of a topic is kept.
    forgets: bool,
}

impl Memory {
    pub fn new() -> Self {
        Self {
            names: NodeNames::new("slam", "/", &[]).unwrap(),
            handlers: Arc::default(),
            services: Arc::default(),
            sent: Arc::default(),
            subscribers: Arc::default(),
            panics: Arc::default(),
            held: Arc::default(),
            forgets: false,
        }
    }

    /// A graph that keeps the last message of each topic only, and counts them.
    #[allow(dead_code, reason = "the long test uses it, which includes this file")]
    pub fn forgetful() -> Self {
        Self {
            forgets: true,
            ..Self::new()
        }
    }

    /// Publishing on `topic` waits from now on; `None`: no more.
    pub fn hold(&self, topic: Option<&str>) {
        *self.held.0.lock().unwrap() = topic.map(str::to_owned);
        self.held.1.notify_all();
    }

    /// The next messages on a topic panic where they are published.
    pub fn panic_on(&self, topic: &str, times: usize) {
        *self.panics.lock().unwrap() = (topic.to_owned(), times);
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
        let all = sent.get(topic).into_iter().flat_map(|m| &m.kept);
        all.map(|data| M::decode(&Payload::from(data.clone())).unwrap())
            .collect()
    }

    /// How many messages were published on a topic.
    pub fn count(&self, topic: &str) -> usize {
        self.sent.lock().unwrap().get(topic).map_or(0, |m| m.count)
    }

    /// The bytes of the last message.
    pub fn last_bytes(&self, topic: &str) -> Option<Payload> {
        let sent = self.sent.lock().unwrap();
        sent.get(topic)?
            .kept
            .last()
            .map(|d| Payload::from(d.clone()))
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
    panics: Arc<Mutex<(String, usize)>>,
    held: Arc<(Mutex<Option<String>>, Condvar)>,
    forgets: bool,
}

impl Publish for Topic {
    fn publish(&self, data: Bytes) -> Result<(), MiddlewareError> {
        let falls = {
            let mut panics = self.panics.lock().unwrap();
            let falls = panics.0 == self.name && panics.1 > 0;
            panics.1 -= usize::from(falls);
            falls
        };
        assert!(!falls, "publishing fell over (as this test wants it to)");
        let held = self.held.0.lock().unwrap();
        let limit = Duration::from_secs(100);
        let here = |topic: &mut Option<String>| topic.as_ref() == Some(&self.name);
        drop(self.held.1.wait_timeout_while(held, limit, here).unwrap());
        let mut sent = self.sent.lock().unwrap();
        if !sent.contains_key(&self.name) {
            sent.insert(self.name.clone(), Messages::default());
        }
        let messages = sent.get_mut(&self.name).unwrap();
        if self.forgets {
            messages.kept.clear();
        }
        messages.kept.push(data);
        messages.count += 1;
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
            panics: Arc::clone(&self.panics),
            held: Arc::clone(&self.held),
            forgets: self.forgets,
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

    fn same_name_nodes(&self) -> usize {
        0
    }
}

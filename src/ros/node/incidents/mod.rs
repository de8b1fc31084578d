//! Incidents: the last minute of what the node received and published is kept in memory, and written to a bag when
//! something goes wrong or an operator asks for it. Needs the feature `bags`.

#[cfg(not(feature = "bags"))]
mod absent;
#[cfg(feature = "bags")]
mod present;
#[cfg(feature = "bags")]
mod ring;
#[cfg(feature = "bags")]
mod shelf;
#[cfg(feature = "bags")]
mod watch;

#[cfg(not(feature = "bags"))]
pub use absent::{beside, report};
#[cfg(feature = "bags")]
pub use present::{beside, report};

use super::incident_requests::IncidentRequests;
use super::shared::Shared;
use crate::ros::middleware::Middleware;
use std::sync::Arc;

/// A client whose last minute of messages is kept.
pub struct Beside {
    /// Takes requests.
    pub requests: IncidentRequests,
    /// The client for the node.
    pub client: Arc<dyn Middleware>,
    /// The threads that do the work, with their names; they run until the node closes.
    pub threads: Vec<Thread>,
}

/// A thread's name and work.
pub type Thread = (&'static str, Box<dyn FnOnce(Arc<Shared>) + Send>);

//! Requests to write an incident, from services to the thread that writes it.

use super::inbox::OnText;
use std::sync::mpsc::{SyncSender, TrySendError};

/// Takes requests, if incidents are kept.
pub struct IncidentRequests(Option<SyncSender<OnText>>);

impl IncidentRequests {
    /// Refuses every request.
    pub fn refused() -> Self {
        Self(None)
    }

    /// Passes at most four requests that wait to the receiver; further ones are refused.
    #[cfg(feature = "bags")]
    pub fn queue() -> (Self, std::sync::mpsc::Receiver<OnText>) {
        let (requests, receiver) = std::sync::mpsc::sync_channel(4);
        (Self(Some(requests)), receiver)
    }

    /// Asks for an incident; `reply` receives the file's path.
    pub fn request(&self, reply: OnText) {
        let Some(requests) = &self.0 else {
            return reply(Err(
                "no incidents are kept: start the node with incident_folder".into(),
            ));
        };
        if let Err(TrySendError::Full(reply) | TrySendError::Disconnected(reply)) =
            requests.try_send(reply)
        {
            reply(Err("too many requests are waiting; try again".into()));
        }
    }
}

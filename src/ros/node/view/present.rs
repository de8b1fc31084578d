//! For a program with the live page.

use crate::ros::node::page_feed::PageFeed;
use crate::ros::node::settings::Settings;
use crate::ros::node::shared::Shared;
use crate::ros::node::status::State;
use crate::view::{Door, Host, HostReport, View};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the end of the node waits for open pages.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The page's port, if one is set, before anything is served.
pub struct NodeDoor(Option<Door>);

/// The server, if there is one.
pub struct NodeView(Option<View>);

impl NodeDoor {
    /// Binds `view_port` on `view_address`.
    pub fn bind(settings: &Settings) -> Result<Self, String> {
        // The parameter's range is that of ports.
        let port = u16::try_from(settings.view_port).unwrap_or_default();
        if port == 0 {
            return Ok(Self(None));
        }
        let ip: IpAddr = settings.view_address.parse().map_err(|_| {
            let found = &settings.view_address;
            format!("view_address must be an address of this machine such as 127.0.0.1 or 0.0.0.0, found {found:?}")
        })?;
        let door = Door::bind(ip, port, "view_port").map_err(|e| e.to_string())?;
        Ok(Self(Some(door)))
    }

    /// What the node's threads fill.
    pub fn feed(&self) -> PageFeed {
        PageFeed::new(self.0.as_ref().map(|door| Arc::clone(door.feed())))
    }

    /// Starts the server.
    pub fn serve(self, shared: &Arc<Shared>) -> Result<NodeView, String> {
        let Some(door) = self.0 else {
            return Ok(NodeView(None));
        };
        let host = Arc::new(NodeHost(Arc::downgrade(shared)));
        let view = door.serve(host).map_err(|e| e.to_string())?;
        tracing::info!("live page: {view}");
        Ok(NodeView(Some(view)))
    }
}

impl Drop for NodeView {
    fn drop(&mut self) {
        if let Some(view) = self.0.take() {
            view.end(None, "The node has ended.", LAST_WAIT);
        }
    }
}

/// The node, which may have ended.
struct NodeHost(Weak<Shared>);

impl Host for NodeHost {
    fn report(&self) -> HostReport {
        let Some(shared) = self.0.upgrade() else {
            return HostReport {
                failure: Some("the node has ended".into()),
                ..HostReport::default()
            };
        };
        let status = &shared.status;
        let state = match status.state() {
            State::Idle => Some("idle".to_owned()),
            State::Waiting(what) => Some(format!("waiting: {what}")),
            State::Bridging => Some("lost, bridged by wheel odometry".to_owned()),
            State::Failed(why) => Some(format!("failed: {why}")),
            // The tracking state says more.
            State::Tracking | State::Lost => None,
        };
        let stands = Some(status.standing()).filter(|threads| !threads.is_empty());
        HostReport {
            state,
            failure: shared.supervisor.failure().or(status.failure()).or(stands),
            drops: vec![
                ("image replaced by a newer one", shared.inbox.dropped()),
                ("image beyond max_rate", status.skipped.get()),
                ("image rejected", status.refused.get()),
                ("pose not published", status.unpublished.get()),
                ("message not sent", status.unsent.get()),
            ],
        }
    }
}

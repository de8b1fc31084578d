//! In a program with the live page.

use crate::map::grid::OccupancyMap;
use crate::ros::node::settings::Settings;
use crate::ros::node::shared::Shared;
use crate::ros::node::status::State;
use crate::slam::{Slam, TrackedFrame};
use crate::view::{Door, Feed, GridImage, Host, HostReport, View};
use nalgebra::Isometry3;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the end of the node waits for open pages.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The page's port, if one is set, before anything is served.
pub struct NodeDoor(Option<Door>);

/// The server, if there is one.
pub struct NodeView(Option<View>);

/// What the node's threads fill.
#[derive(Debug)]
pub struct PageFeed(Option<Arc<Feed>>);

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
        PageFeed(self.0.as_ref().map(|door| Arc::clone(door.feed())))
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

impl PageFeed {
    /// SLAM was made.
    pub fn start(&self, slam: &Slam) {
        if let Some(feed) = &self.0 {
            feed.start(slam);
        }
    }

    /// A frame was processed.
    pub fn frame(&self, tracked: &TrackedFrame, slam: &mut Slam) {
        if let Some(feed) = &self.0 {
            feed.frame(tracked, slam);
        }
    }

    /// No frame came for a while.
    pub fn serve(&self, slam: &mut Slam) {
        if let Some(feed) = &self.0 {
            feed.serve(slam);
        }
    }

    /// Whether a page is open.
    pub fn watched(&self) -> bool {
        self.0.as_ref().is_some_and(|feed| feed.watched())
    }

    /// Shows the occupancy grid, in the map frame.
    pub fn show_grid(&self, map: &OccupancyMap, map_from_world: &Isometry3<f64>) {
        if let Some(feed) = self.0.as_ref().filter(|feed| feed.watched()) {
            feed.show_grid(GridImage {
                cells: map.cells.clone(),
                columns: map.columns,
                rows: map.rows,
                resolution: map.resolution,
                origin: map.origin,
                world_from_grid: map_from_world.inverse(),
            });
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

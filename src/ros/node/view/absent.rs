//! For a program without the live page.

use crate::ros::node::page_feed::PageFeed;
use crate::ros::node::settings::Settings;
use crate::ros::node::shared::Shared;
use std::sync::Arc;

/// There is no page.
#[derive(Debug)]
pub struct NodeDoor;

/// There is no server.
#[derive(Debug)]
pub struct NodeView;

impl NodeDoor {
    /// Refuses a port.
    pub fn bind(settings: &Settings) -> Result<Self, String> {
        match settings.view_port {
            0 => Ok(Self),
            _ => Err("view_port: this program was built without the live page; build it with `--features view`".into()),
        }
    }

    pub fn feed(&self) -> PageFeed {
        PageFeed
    }

    pub fn serve(self, _: &Arc<Shared>) -> Result<NodeView, String> {
        Ok(NodeView)
    }
}

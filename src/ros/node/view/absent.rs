//! In a program without the live page.

use crate::map::grid::OccupancyMap;
use crate::ros::node::settings::Settings;
use crate::ros::node::shared::Shared;
use crate::slam::{Slam, TrackedFrame};
use nalgebra::Isometry3;
use std::sync::Arc;

/// There is no page.
#[derive(Debug)]
pub struct NodeDoor;

/// There is no server.
#[derive(Debug)]
pub struct NodeView;

/// Nothing is filled.
#[derive(Debug)]
pub struct PageFeed;

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

impl PageFeed {
    pub fn start(&self, _: &Slam) {}

    pub fn frame(&self, _: &TrackedFrame, _: &mut Slam) {}

    pub fn serve(&self, _: &mut Slam) {}

    pub fn watched(&self) -> bool {
        false
    }

    pub fn show_grid(&self, _: &OccupancyMap, _: &Isometry3<f64>) {}
}

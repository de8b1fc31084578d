//! For a program with the live page.

use crate::map::grid::OccupancyMap;
use crate::slam::{Slam, TrackedFrame};
use crate::slam_builder::splat::Asker;
use crate::view::{Feed, GridImage, SplatReader};
use nalgebra::Isometry3;
use std::sync::Arc;

/// What the node's threads fill.
#[derive(Debug)]
pub struct PageFeed(Option<Arc<Feed>>);

impl PageFeed {
    /// Fills `feed`, if there is a server.
    pub fn new(feed: Option<Arc<Feed>>) -> Self {
        Self(feed)
    }

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

    /// Shows the Gaussian map.
    pub fn show_splats(&self, asker: Asker) {
        if let Some(feed) = &self.0 {
            feed.show_splats(SplatReader::new(move || asker.shown()));
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

//! For a program without the live page.

use crate::map::grid::OccupancyMap;
use crate::slam::{Slam, TrackedFrame};
use crate::slam_builder::splat::Asker;
use nalgebra::Isometry3;

/// Nothing is filled.
#[derive(Debug)]
pub struct PageFeed;

impl PageFeed {
    pub fn start(&self, _: &Slam) {}

    pub fn frame(&self, _: &TrackedFrame, _: &mut Slam) {}

    pub fn show_splats(&self, _: Asker) {}

    pub fn serve(&self, _: &mut Slam) {}

    pub fn watched(&self) -> bool {
        false
    }

    pub fn show_grid(&self, _: &OccupancyMap, _: &Isometry3<f64>) {}
}

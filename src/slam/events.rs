//! Events from the tracking side to the mapper.

use super::fit::SavedMapError;
use super::graph::KeyframeInfo;
use super::map_source::MapSource;
use super::metric::depth_offset::DepthOffset;
use super::metric::depth_timer::DepthReport;
use super::metric::motion::CameraMotion;
use super::metric::scale::KeyframeScale;
use super::pose_table::{Anchor, Origin};
use super::relocaliser::RelocaliseRequest;
use super::reuse::ProbeRequest;
use crate::compute::device::Handle;
use crate::map::store::Writer;

/// A keyframe that is no longer active, with its final pointmap.
pub struct Finished {
    pub keyframe: u32,
    pub handle: Handle,
    /// The scale of that pointmap, if it was measured.
    pub scale: Option<KeyframeScale>,
}

/// Maximum number of reports that wait for an event: about the depth of keyframes in a tenth of a second with 30 frames a
/// second, after which there may be no event, and about motions to them.
const REPORTS: usize = 8;

/// What depth has shown since the previous event.
#[derive(Debug, Clone, Default)]
pub struct DepthNews {
    pub reports: heapless::Vec<DepthReport, REPORTS>,
    /// `None` without depth.
    pub offset: Option<DepthOffset>,
}

impl DepthNews {
    /// Adds a report. Without room the oldest one is dropped.
    pub fn add(&mut self, report: DepthReport) {
        if self.reports.is_full() {
            self.reports.remove(0);
        }
        // There is room now.
        let _ = self.reports.push(report);
    }
}

/// An event for the mapping side. Events are handled in order.
pub struct Event {
    /// The keyframe that tracking left before this event.
    pub finished: Option<Finished>,
    pub depth: DepthNews,
    pub work: Work,
    /// Number of keyframes that had been made at the oldest frame that tracking keeps.
    pub oldest_made: u32,
}

/// The work of an event.
pub enum Work {
    /// A new keyframe: its image, features and first pointmap.
    Keyframe {
        info: KeyframeInfo,
        handle: Handle,
        origin: Origin,
        /// The camera's motion by wheels since the keyframe with this id.
        motion: Option<(u32, CameraMotion)>,
        /// The scale of its pointmap, if it was measured.
        scale: Option<KeyframeScale>,
    },
    /// Relocalise a lost frame.
    Relocalise(RelocaliseRequest),
    /// Locate a tracked frame relative to a keyframe that could be tracked against instead.
    Probe(ProbeRequest),
    /// Hand off the keyframe of this anchor, for a frame at this place.
    Borrow(Anchor),
    /// Load a map file into an empty map, and write what it becomes to `keep`.
    Load {
        source: Box<MapSource>,
        keep: Option<Writer>,
        reply: OnLoaded,
    },
    /// Write the map, which is empty, to this file.
    Keep(Writer),
}

impl Work {
    /// Whether it adds to the map in any case, which takes the matches of all edges. A lost frame may not be found.
    pub fn grows_map(&self) -> bool {
        matches!(self, Self::Keyframe { .. } | Self::Probe(_))
    }
}

/// Receives the result of a load, on the mapping side: what could not be read, in words.
pub type OnLoaded = Box<dyn FnOnce(Result<String, SavedMapError>) + Send>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slam::metric::motion::CameraMotion;
    use crate::slam::metric::motions::MeasuredMotion;
    use nalgebra::Isometry3;

    #[test]
    fn the_newest_reports_wait_for_an_event() {
        let report = |j: u32| {
            DepthReport::Motion(MeasuredMotion {
                i: 0,
                j,
                motion: CameraMotion::known_to(0.1, Isometry3::identity()),
                ends: None,
            })
        };
        let mut news = DepthNews::default();
        for j in 1..=REPORTS as u32 + 1 {
            news.add(report(j));
        }
        let end = |report: &DepthReport| match report {
            DepthReport::Motion(motion) => motion.j,
            DepthReport::Keyframe(depth) => depth.measured.id,
        };
        let ends = news.reports.iter().map(end);
        assert!(ends.eq(2..=REPORTS as u32 + 1));
    }
}

//! Measurements of the map's keyframes by depth.

use super::Mapper;
use crate::compute::device::DeviceError;
use crate::geometry::Sim3;
use crate::slam::events::DepthNews;
use crate::slam::metric::depth_timer::DepthReport;

/// Maximum number of pointmaps that are corrected with one event; the others wait for the next ones.
const CORRECTED_AT_ONCE: usize = 16;

impl Mapper {
    /// Takes what depth has shown: motions between keyframes are measured again, and pointmaps corrected, where its
    /// offset or the camera's motion is known better than before.
    pub fn note_depth(&mut self, news: DepthNews) -> Result<(), DeviceError> {
        let Some(offset) = news.offset else {
            return Ok(());
        };
        for report in news.reports {
            match report {
                DepthReport::Keyframe(depth) => self.graph.add_depth(depth),
                DepthReport::Motion(motion) => {
                    let is_new = self.graph.add_depth_motion(motion);
                    self.counts.depth_motions += usize::from(is_new);
                }
            }
        }
        self.graph.set_depth_offset(&offset);
        for _ in 0..CORRECTED_AT_ONCE {
            let Some((id, motion)) = self.graph.next_depth_correction(offset.seconds) else {
                break;
            };
            self.device.move_points(id, &Sim3::from(&motion))?;
            self.note_points(id);
            tracing::debug!(id, ?motion, "pointmap corrected");
        }
        Ok(())
    }
}

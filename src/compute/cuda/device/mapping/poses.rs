//! The pose of an edge, solved from the matches of each of its two directions.

use super::Mapping;
use crate::compute::cuda::device::errors::unknown;
use crate::compute::cuda::global::DeviceMatches;
use crate::compute::cuda::slots::SlotView;
use crate::compute::cuda::tracking::SolveTask;
use crate::compute::device::{DeviceError, EdgeId, TwoWay};
use crate::compute::store::Lane;
use crate::gpu::{CudaError, Floats};

impl Mapping {
    /// As [`MappingDevice::relative_poses`](crate::compute::device::MappingDevice::relative_poses).
    pub(super) fn solve_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError> {
        let ends = self.ends.get(&edge).copied();
        let ends = ends.ok_or(unknown("edge", edge.0))?;
        let (i, j) = (self.key(ends.i)?, self.key(ends.j)?);
        {
            let matches = self.edges.read(Lane::Mapping, edge.0)?;
            let matches = self.edges.device().slot(matches.slot())?;
            let (i, j) = (
                self.keyframes.read(Lane::Mapping, i)?,
                self.keyframes.read(Lane::Mapping, j)?,
            );
            let slots = self.keyframes.device();
            let (i, j) = (slots.slot(i.slot())?, slots.slot(j.slot())?);
            self.enqueue_pose(0, (&i, &j), matches.j_from_i)?;
            self.enqueue_pose(1, (&j, &i), matches.i_from_j)?;
        }
        let pair = &mut self.pair;
        // SAFETY: the stream is synchronised before the data is read.
        unsafe {
            self.stream
                .download(pair.outcome.all(), &mut pair.host_outcome)?;
        }
        self.stream.synchronize()?;
        let pixels = self.network.shape().pixels();
        let pose = |way: usize| {
            let outcome = self.pair.host_outcome.get(way)?;
            let solved = outcome.solution(pixels).ok()?;
            Some(solved.keyframe_from_frame)
        };
        Ok(TwoWay {
            i_from_j: pose(0),
            j_from_i: pose(1),
        })
    }

    /// Enqueues the solve for the pose of one direction: `points` are those of the keyframe whose
    /// pixels are matched, and of the other keyframe.
    fn enqueue_pose(
        &self,
        way: usize,
        (own, other): (&SlotView<'_>, &SlotView<'_>),
        matches: DeviceMatches<'_>,
    ) -> Result<(), CudaError> {
        let task = SolveTask {
            frame_points: other.points,
            keyframe_points: own.points,
            index: matches.index,
            quality: Floats::F16(matches.quality),
            min_quality: self.config.local_opt.q_conf,
            counts: None,
            compared: self.pair.compared(),
            pose: None,
            outcome: self.pair.outcome.slice(way..way + 1)?,
            measured: None,
            min_fit: 0.0,
        };
        let params = &self.config.tracking;
        self.pair.solver.enqueue(&self.stream, &task, params)
    }
}

//! The half of a device that keeps the map's keyframes and edges.

use super::{ContentFormats, DeviceError, EdgeContent, KeyframeContent, Ticket};
use crate::compute::global::{GlobalReport, PosePrior};
use crate::compute::residual::SolveError;
use crate::compute::retrieval::Hit;
use crate::compute::stop::Stop;
use crate::config::LocalOptConfig;
use crate::geometry::Sim3;
use crate::image::RgbImage;
use std::sync::Arc;

/// The mapping half. Keyframes have the caller's ids, edges have ids that the device gives.
pub trait MappingDevice: Send {
    /// Takes the image, features and first pointmap that `ticket` stands for as keyframe `id`.
    /// Calibrated, the points go onto their pixels' rays: only their depths count.
    fn accept_keyframe(&mut self, id: u32, ticket: &Ticket) -> Result<(), DeviceError>;

    /// Takes the pointmap that `ticket` stands for as that of keyframe `id`.
    fn accept_pointmap(&mut self, id: u32, ticket: &Ticket) -> Result<(), DeviceError>;

    /// Forgets a keyframe that has no edges and no place.
    fn drop_keyframe(&mut self, id: u32);

    /// Whether places can be recognised at all.
    fn knows_places(&self) -> bool;

    /// Describes keyframe `id` and replaces `hits` by the remembered keyframes that look like it, the
    /// best first. A keyframe that cannot be described is like no place; that is logged.
    fn look_up(&mut self, id: u32, hits: &mut Vec<Hit>) -> Result<(), DeviceError>;

    /// Remembers the place of keyframe `id`, which was the last to be looked up.
    fn remember(&mut self, id: u32) -> Result<(), DeviceError>;

    /// From now on no further edge is made while `stop` is asked for, and a solve ends with the poses that it
    /// then has.
    fn heed(&mut self, stop: &Stop);

    /// Decodes each pair of keyframes `(i, j)` both ways and matches both ways (spec 6.1, 6.2); appends an
    /// edge for each to `made`, in their order. If one cannot be made, none of them is; asked to stop, not
    /// all.
    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError>;

    /// Relative poses of an edge's keyframes, solved from the matches of either direction apart.
    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError>;

    /// Forgets an edge.
    fn drop_edge(&mut self, edge: EdgeId);

    /// Moves the poses so that the edges agree; writes them all to `poses`, as long as the graph's
    /// keyframes. The inner error is one of arithmetic: then `poses` is as it was and the map goes
    /// on.
    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError>;

    /// A copy of what the device holds of a keyframe.
    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError>;

    /// Puts keyframe `id` down for [`TrackingDevice::resume_keyframe`]: frames are then tracked against it
    /// again. It stays in the map as it is.
    ///
    /// [`TrackingDevice::resume_keyframe`]: super::TrackingDevice::resume_keyframe
    fn lend_keyframe(&mut self, id: u32) -> Result<Ticket, DeviceError>;

    /// How exported contents are kept.
    fn content_formats(&self) -> ContentFormats;

    /// Replaces `dst` by all that the device holds of keyframe `id`.
    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError>;

    /// Takes a keyframe that was exported, here or on another device, as keyframe `id`; its place is not
    /// remembered by that. Floats of the other format are converted.
    fn import_keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), DeviceError>;

    /// Replaces `dst` by all that the device holds of an edge.
    fn export_edge(&self, edge: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError>;

    /// Takes an edge between keyframes `i` and `j` that was exported. Matches must lie in the image.
    fn import_edge(&mut self, i: u32, j: u32, content: &EdgeContent)
    -> Result<EdgeId, DeviceError>;

    /// Forgets every keyframe, edge and place.
    fn reset(&mut self);
}

/// An edge of a [`MappingDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EdgeId(pub u32);

/// An edge that was made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewEdge {
    /// Its id.
    pub id: EdgeId,
    /// The smaller of the two fractions of pixels matched with enough quality.
    pub match_fraction: f32,
}

/// One relative pose twice, each time from one direction's matches; `None` where it could not be
/// solved.
#[derive(Debug, Clone, Copy, Default)]
pub struct TwoWay {
    /// From the pixels of `i` and their matches in `j`: `j`'s camera to `i`'s.
    pub i_from_j: Option<Sim3>,
    /// From the pixels of `j` and their matches in `i`: `i`'s camera to `j`'s.
    pub j_from_i: Option<Sim3>,
}

/// What is solved for: poses of some keyframes, held together by edges and priors.
#[derive(Debug, Clone, Copy)]
pub struct PoseGraph<'a> {
    /// Ids of the keyframes; edges and priors count in this slice. The first `params.pin` stay fixed.
    pub keyframes: &'a [u32],
    /// Where the solve starts from, `world_from_camera`.
    pub start: &'a [Sim3],
    /// Edges between them.
    pub edges: &'a [GraphEdge],
    /// Weak beliefs about relative poses.
    pub priors: &'a [PosePrior],
    /// Gates, weights, stop rules.
    pub params: &'a LocalOptConfig,
}

/// An edge in a [`PoseGraph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphEdge {
    /// Its matches.
    pub id: EdgeId,
    /// The keyframe that it was made with as `i`, counted in the graph's keyframes.
    pub i: usize,
    /// The other.
    pub j: usize,
}

/// What a device holds of a keyframe; `N = width · height` of the image.
#[derive(Debug, Clone, Default)]
pub struct KeyframeBulk {
    /// The network's input.
    pub image: Arc<RgbImage>,
    /// `N × 3` points in the keyframe's camera.
    pub points: Arc<Vec<f32>>,
    /// `N` average confidences.
    pub confidence: Arc<Vec<f32>>,
}

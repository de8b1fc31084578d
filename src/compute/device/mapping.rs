//! The half of a device that stores the map's keyframes and edges.

use super::{ContentFormats, DeviceError, EdgeContent, Handle, KeyframeContent};
use crate::compute::cancel::CancelToken;
use crate::compute::coverage::Coverage;
use crate::compute::global::{EdgeEquations, GlobalReport, PoseFactor, Priors};
use crate::compute::residual::SolveError;
use crate::compute::retrieval::Hit;
use crate::compute::spread::{Spread, spread};
use crate::config::GlobalOptConfig;
use crate::geometry::Sim3;
use crate::image::RgbImage;
use crate::inference::NetworkShape;
use std::sync::Arc;

/// The mapping half. The caller assigns keyframe ids, the device assigns edge ids.
pub trait MappingDevice: Send {
    /// Sizes of the network's input and outputs.
    fn shape(&self) -> &NetworkShape;

    /// Accepts the image, features and first pointmap of `handle` as keyframe `id`. With
    /// calibration, points are moved onto their pixels' rays: only their depths are used.
    fn accept_keyframe(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError>;

    /// Accepts the pointmap of `handle` as that of keyframe `id`.
    fn accept_pointmap(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError>;

    /// Corrects the pointmap of keyframe `id`, whose depth was measured by a camera elsewhere than assumed: its points
    /// are seen where they are after `motion`, in metres. Without `depth.use` or a calibration it stays as it is.
    fn move_points(&mut self, id: u32, motion: &Sim3) -> Result<(), DeviceError>;

    /// Removes a keyframe that has no edges, also from the place database.
    fn drop_keyframe(&mut self, id: u32);

    /// Whether place recognition is available.
    fn has_place_recognition(&self) -> bool;

    /// Describes keyframe `id` and replaces `hits` by up to `limit` stored keyframes with similar
    /// appearance, best first. A keyframe that cannot be described has no hits; this is logged.
    fn query_places(
        &mut self,
        id: u32,
        limit: usize,
        hits: &mut Vec<Hit>,
    ) -> Result<(), DeviceError>;

    /// Adds keyframe `id`, which must be the one queried last, to the place database.
    fn insert_place(&mut self, id: u32) -> Result<(), DeviceError>;

    /// Sets the cancellation token. While it is cancelled, no further edges are made, and a solve
    /// ends early with its current poses.
    fn set_cancel(&mut self, stop: &CancelToken);

    /// Decodes each pair of keyframes `(i, j)` in both directions and matches in both directions;
    /// appends an edge for each pair to `made`, in order. If one edge fails, none is made; on
    /// cancellation, only some are.
    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError>;

    /// Relative poses of an edge's keyframes, solved separately from the matches of each direction.
    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError>;

    fn drop_edge(&mut self, edge: EdgeId);

    /// Counts the pixels of keyframe `id` that its neighbours see ([`crate::compute::coverage`]). `views` are edges
    /// of the keyframe, at most one to each neighbour; `min_ratio` is the minimum ratio of a point's distance from
    /// the keyframe to its distance from the neighbour.
    fn coverage(
        &mut self,
        id: u32,
        views: &[NeighbourView],
        min_ratio: f32,
    ) -> Result<Coverage, DeviceError>;

    /// Counts an edge's matches of a quality above `q_conf` in each cell of its keyframes' images
    /// ([`crate::compute::spread`]): those of `j`'s pixels in `i`, and those of `i`'s pixels in `j`.
    fn spread(&mut self, edge: EdgeId, q_conf: f32) -> Result<[Spread; 2], DeviceError> {
        let mut content = EdgeContent::default();
        self.export_edge(edge, &mut content)?;
        let width = self.shape().width;
        let ways = [&content.i_from_j, &content.j_from_i];
        Ok(ways.map(|way| spread(&way.quality, width, q_conf)))
    }

    /// Optimises the poses and writes all of them to `poses`, which has the length of the graph's
    /// keyframes. The inner error is numerical: in that case `poses` is unchanged and mapping
    /// continues.
    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError>;

    /// Replaces `dst` by the normal equations of every edge of the graph at its initial poses, in
    /// order; factors are ignored. The inner error is numerical: `dst` is then unchanged.
    fn equations(
        &mut self,
        graph: &PoseGraph<'_>,
        dst: &mut Vec<EdgeEquations>,
    ) -> Result<Result<(), SolveError>, DeviceError>;

    /// Copies what the device stores for a keyframe.
    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError>;

    /// Replaces `dst` by the `N × 3` points of keyframe `id` in its camera frame.
    fn read_points(&self, id: u32, dst: &mut Vec<f32>) -> Result<(), DeviceError> {
        dst.clear();
        dst.extend_from_slice(&self.read_keyframe(id)?.points);
        Ok(())
    }

    /// Hands keyframe `id` off to [`TrackingDevice::track_against`], so that frames can be tracked
    /// against it again. The keyframe stays in the map unchanged.
    ///
    /// [`TrackingDevice::track_against`]: super::TrackingDevice::track_against
    fn borrow_keyframe(&mut self, id: u32) -> Result<Handle, DeviceError>;

    /// Number formats of exported content.
    fn content_formats(&self) -> ContentFormats;

    /// Replaces `dst` by everything that the device stores for keyframe `id`.
    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError>;

    /// Imports an exported keyframe, from this or another device, as keyframe `id`, without adding
    /// it to the place database. Floats are converted to this device's format.
    fn import_keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), DeviceError>;

    /// Replaces the features of `content` by the encoder's tokens of its image. Content without them, as a packed map
    /// has it, can then be imported.
    fn encode_keyframe(&mut self, content: &mut KeyframeContent) -> Result<(), DeviceError>;

    /// Replaces `dst` by everything that the device stores for an edge.
    fn export_edge(&self, edge: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError>;

    /// Imports an exported edge between keyframes `i` and `j`. Matches must lie inside the image.
    fn import_edge(&mut self, i: u32, j: u32, content: &EdgeContent)
    -> Result<EdgeId, DeviceError>;

    /// Removes all keyframes, edges and places.
    fn reset(&mut self);
}

/// Id of an edge of a [`MappingDevice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EdgeId(pub u32);

/// A neighbour's view of a keyframe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NeighbourView {
    /// An edge between both.
    pub edge: EdgeId,
    /// Scale of the keyframe's pose over that of the neighbour.
    pub scale: f32,
}

/// Result of making an edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewEdge {
    pub id: EdgeId,
    /// The smaller of the two fractions of pixels matched with sufficient quality.
    pub match_fraction: f32,
}

/// The relative pose of an edge, solved from the matches of each direction; `None` where the solve
/// failed.
#[derive(Debug, Clone, Copy, Default)]
pub struct TwoWay {
    /// From the pixels of `i` and their matches in `j`: maps `j`'s camera frame to `i`'s.
    pub i_from_j: Option<Sim3>,
    /// From the pixels of `j` and their matches in `i`: maps `i`'s camera frame to `j`'s.
    pub j_from_i: Option<Sim3>,
}

/// An optimisation problem: keyframe poses connected by edges and factors.
#[derive(Debug, Clone, Copy)]
pub struct PoseGraph<'a> {
    /// Keyframe ids; edges and factors index this slice. The first `params.pin` keyframes are fixed.
    pub keyframes: &'a [u32],
    /// Initial poses, `world_from_camera`.
    pub start: &'a [Sim3],
    pub edges: &'a [GraphEdge],
    /// Measurements of relative poses that are not matches.
    pub factors: &'a [PoseFactor],
    /// Measurements in metres.
    pub priors: Priors<'a>,
    /// Gates, weights and stopping criteria.
    pub params: &'a GlobalOptConfig,
}

/// An edge in a [`PoseGraph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphEdge {
    /// The edge on the device, which holds its matches.
    pub id: EdgeId,
    /// Index in the graph's keyframes of the keyframe with role `i` when the edge was made.
    pub i: usize,
    /// Index of the other keyframe.
    pub j: usize,
}

/// Data that a device stores for a keyframe; `N = width · height` of the image.
#[derive(Debug, Clone, Default)]
pub struct KeyframeBulk {
    /// The network's input image.
    pub image: Arc<RgbImage>,
    /// `N × 3` points in the keyframe's camera frame.
    pub points: Arc<Vec<f32>>,
    /// `N` average confidences.
    pub confidence: Arc<Vec<f32>>,
}

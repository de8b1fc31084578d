//! Relocalisation: requests for lost frames, and the mapper's search in the map (docs/algorithm.md,
//! Relocalisation).

use super::edges::{self, agree_both_ways, relative_poses};
use super::graph::{Edge, Graph, KeyframeInfo};
use super::hint::PlaceHint;
use super::loans::Loan;
use super::metric::motion::CameraMotion;
use super::pose_table::Anchor;
use crate::compute::device::{DeviceError, Handle, MappingDevice};
use crate::compute::retrieval::Hit;
use crate::config::Config;
use crate::map::EdgeKind;

/// A request to relocalise a lost frame.
pub struct RelocaliseRequest {
    /// The keyframe that the frame will become if it is found.
    pub info: KeyframeInfo,
    /// Image, features and pointmap of the frame.
    pub handle: Handle,
    /// A hint of where the camera is.
    pub hint: Option<PlaceHint>,
    /// The camera's motion by wheels since the keyframe with this id.
    pub motion: Option<(u32, CameraMotion)>,
    /// Whether the frame becomes a keyframe if it is found. Otherwise the map does not change.
    pub grows: bool,
}

/// The mapper's reply to a lost frame, or to a request for another keyframe.
pub struct Reply {
    /// `None` if the frame was not found.
    pub found: Option<Found>,
}

/// Place of a relocalised frame, and the handle of the keyframe to track against.
pub enum Found {
    /// The frame has become this keyframe; the handle is the one in the request.
    Keyframe(u32, Handle),
    /// The frame is at this place; the handle refers to the keyframe of the place, which the map lends.
    At(Anchor, Handle, Loan),
}

/// Place of a lost frame, and the edges that support it, all with the frame as `i`.
pub struct Located {
    pub anchor: Anchor,
    pub edges: Vec<Edge>,
}

/// Rules for locating a lost frame.
pub struct Relocaliser {
    min_match_fraction: f32,
    /// Whether a single rejected candidate rejects the frame.
    strict: bool,
    two_way_degrees: f64,
    /// Number of newest keyframes tried if place recognition is unavailable.
    newest: usize,
}

impl Relocaliser {
    /// The rules of `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            min_match_fraction: config.reloc.min_match_frac,
            strict: config.reloc.strict,
            two_way_degrees: config.local_opt.two_way_degrees,
            newest: config.retrieval.k,
        }
    }

    /// Keyframes that a lost frame may be near: those with similar appearance, or the newest ones
    /// without place recognition (`hits` is `None`).
    pub fn candidates(&self, graph: &Graph, hits: Option<&[Hit]>) -> Vec<u32> {
        match hits {
            Some(hits) => hits.iter().map(|hit| hit.id).collect(),
            None => {
                let newest = graph.keyframes().iter().rev().take(self.newest);
                newest.map(|k| k.info.id).collect()
            }
        }
    }

    /// Keyframes near the hinted place of the frame.
    pub fn hinted(&self, graph: &Graph, hint: &PlaceHint) -> Vec<u32> {
        hint.candidates(graph, self.newest)
    }

    /// Locates the frame among `candidates` if one of them shows what it shows, whatever the others
    /// do; otherwise like [`Relocaliser::locate`].
    pub fn locate_in_any(
        &self,
        device: &mut dyn MappingDevice,
        id: u32,
        candidates: &[u32],
    ) -> Result<Option<Located>, DeviceError> {
        let lenient = Self {
            strict: false,
            ..*self
        };
        match candidates {
            [] => Ok(None),
            candidates => lenient.locate(device, id, candidates),
        }
    }

    /// Locates the frame that the device holds as keyframe `id`: the best accepted edge determines
    /// its place (docs/reference-defects.md, B31, B33, B38, B43). Rejected edges are dropped;
    /// `None` if all are rejected.
    pub fn locate(
        &self,
        device: &mut dyn MappingDevice,
        id: u32,
        candidates: &[u32],
    ) -> Result<Option<Located>, DeviceError> {
        let mut edges = self.accepted(device, id, candidates)?;
        let best = edges
            .iter_mut()
            .max_by(|a, b| a.match_fraction.total_cmp(&b.match_fraction));
        let Some(best) = best else {
            return Ok(None);
        };
        let target_from_frame = relative_poses(device, best)?.j_from_i;
        let anchor = Anchor {
            keyframe: best.j,
            keyframe_from_camera: target_from_frame.unwrap_or_default(),
        };
        Ok(Some(Located { anchor, edges }))
    }

    fn accepted(
        &self,
        device: &mut dyn MappingDevice,
        id: u32,
        candidates: &[u32],
    ) -> Result<Vec<Edge>, DeviceError> {
        let wanted: Vec<_> = candidates
            .iter()
            .map(|&other| (id, other, EdgeKind::Relocalisation))
            .collect();
        let made = edges::make(device, &wanted)?;
        let mut accepted = Vec::with_capacity(made.len());
        let mut refused = Vec::new();
        for mut edge in made {
            let enough = edge.match_fraction >= self.min_match_fraction;
            if enough && agree_both_ways(device, &mut edge, self.two_way_degrees)? {
                accepted.push(edge);
            } else {
                refused.push(edge);
            }
        }
        if self.strict && !refused.is_empty() {
            refused.append(&mut accepted);
        }
        for edge in refused {
            device.drop_edge(edge.id);
        }
        Ok(accepted)
    }
}

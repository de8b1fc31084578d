//! Which keyframes show nothing that older ones do not show, by their poses and points. Edges do not tell: the network
//! matches two views of the same surfaces only if they are much alike (docs/algorithm.md, Map economy).

use super::graph::Graph;
use super::sketch::Sketch;
use super::witnesses::LOCAL_HOPS;
use crate::compute::device::{DeviceError, MappingDevice};
use crate::config::Config;
use crate::geometry::Sim3;
use nalgebra::Vector3;
use rustc_hash::FxHashMap;

/// Number of keyframes that were made between a keyframe and those that replace it: the camera has come back.
const AFTER: u32 = 40;
/// Minimum overlap with one of these, both ways, which keyframes that follow each other have: a camera that is lost there
/// can be found by it.
const OVERLAP: f64 = 0.4;
/// Cameras that are farther apart than this many median depths share little.
const REACH: f64 = 3.0;

/// Finds these keyframes, with a sketch of each keyframe that it has compared.
pub struct Revisits {
    /// Fraction of a keyframe's points that others must show.
    covered: f64,
    /// With the revision of the points.
    sketches: FxHashMap<u32, (u32, Sketch)>,
    /// Scratch memory: points of one keyframe.
    points: Vec<f32>,
}

impl Revisits {
    /// The rules of `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            covered: f64::from(config.economy.covered),
            sketches: FxHashMap::default(),
            points: Vec::new(),
        }
    }

    /// Forgets the map.
    pub fn clear(&mut self) {
        self.sketches.clear();
    }

    /// Forgets keyframe `id`, which was removed.
    pub fn removed(&mut self, id: u32) {
        self.sketches.remove(&id);
    }

    /// Whether an older keyframe, whose place relative to keyframe `id` is known, overlaps it, and older ones together
    /// show nearly all of its points.
    pub fn shows_nothing_new(
        &mut self,
        device: &dyn MappingDevice,
        graph: &Graph,
        id: u32,
    ) -> Result<bool, DeviceError> {
        let mut older = graph.within(id, LOCAL_HOPS);
        older.retain(|other| other.saturating_add(AFTER) <= id);
        if older.is_empty() {
            return Ok(false);
        }
        self.update(device, graph, id)?;
        let own = graph.pose_of(id);
        let depth = self.sketches.get(&id).map_or(0.0, |(_, s)| s.depth());
        let reach = REACH * own.scale * depth;
        let ahead = |pose: &Sim3| pose.rotation * Vector3::z();
        older.retain(|other| {
            let pose = graph.pose_of(*other);
            let apart = (pose.translation - own.translation).norm();
            apart <= reach && ahead(&pose).dot(&ahead(&own)) > 0.0
        });
        for other in &older {
            self.update(device, graph, *other)?;
        }
        let with_poses = older.iter().filter_map(|other| {
            let (_, sketch) = self.sketches.get(other)?;
            Some((sketch, graph.pose_of(*other).inverse() * own))
        });
        let own = self.sketches.get(&id);
        Ok(own.is_some_and(|(_, own)| is_replaced(own, with_poses, self.covered)))
    }

    /// Sketches a keyframe, unless its points are those of its sketch.
    fn update(
        &mut self,
        device: &dyn MappingDevice,
        graph: &Graph,
        id: u32,
    ) -> Result<(), DeviceError> {
        let revision = graph.revision_of(id);
        let known = self.sketches.get(&id);
        if known.is_none_or(|(of, _)| *of != revision) {
            device.read_points(id, &mut self.points)?;
            let sketch = Sketch::of(&self.points, device.shape().width);
            self.sketches.insert(id, (revision, sketch));
        }
        Ok(())
    }
}

/// Whether one of `others`, each with `other_from_own`, overlaps `own`, and all together show the fraction `covered` of
/// its points.
fn is_replaced<'a>(
    own: &Sketch,
    others: impl Iterator<Item = (&'a Sketch, Sim3)>,
    covered: f64,
) -> bool {
    let mut seen = vec![false; own.places()];
    let mut overlaps = false;
    for (other, other_from_own) in others {
        let shown = own.shown_by(other, &other_from_own, &mut seen);
        if !overlaps && shown >= OVERLAP {
            let mut back = vec![false; other.places()];
            overlaps = other.shown_by(own, &other_from_own.inverse(), &mut back) >= OVERLAP;
        }
    }
    let count = seen.iter().filter(|seen| **seen).count();
    overlaps && count as f64 >= covered * own.count() as f64
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::super::sketch::tests::seen_at;
    use super::*;

    /// Whether a view of a wall is replaced by others, at these places beside it in metres and as far from the wall.
    fn replaced(others: &[f64]) -> bool {
        // 4 m of the wall.
        let wall = seen_at(|_, _| 2.0);
        let others = others.iter().map(|x| (&wall, at(*x)));
        is_replaced(&wall, others, 0.9)
    }

    #[test]
    fn a_view_is_replaced_by_one_that_overlaps_and_others_that_show_the_rest() {
        assert!(replaced(&[0.0]) && replaced(&[0.3]) && !replaced(&[0.6]));
        assert!(replaced(&[2.0, -2.0]));
        // A gap of 1.2 m is left, or each overlaps too little.
        assert!(!replaced(&[2.6, -2.6]));
        assert!(!replaced(&[3.2, -3.2, 2.6, -2.6]));
        assert!(!replaced(&[]));
    }

    #[test]
    fn a_view_from_twice_as_far_replaces_nothing() {
        let near = seen_at(|_, _| 2.0);
        let from = |depth: f32| {
            let far = seen_at(|_, _| depth);
            let far_from_near = Sim3 {
                translation: Vector3::z() * f64::from(depth - 2.0),
                ..Sim3::identity()
            };
            is_replaced(&near, [(&far, far_from_near)].into_iter(), 0.9)
        };
        assert!(from(2.8) && !from(4.0));
    }

    #[test]
    fn a_view_without_points_stays() {
        let (wall, none) = (seen_at(|_, _| 2.0), seen_at(|_, _| f32::NAN));
        assert!(!is_replaced(&none, [(&wall, at(0.0))].into_iter(), 0.9));
    }
}

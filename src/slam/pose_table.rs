//! Keyframe poses: those published by the mapper, and those of keyframes it has not yet processed.

use super::metric::scale::ScaleEstimate;
use super::removed::Removed;
use crate::compute::device::HAND_OVERS;
use crate::geometry::Sim3;
use crate::map::MapEdge;
use crate::time::Stamp;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// A camera's place relative to a keyframe; it stays valid when the keyframe's pose changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Anchor {
    /// Id of the keyframe.
    pub keyframe: u32,
    /// Transform from this camera to the keyframe's camera.
    pub keyframe_from_camera: Sim3,
}

impl Anchor {
    /// The place of keyframe `id` itself.
    pub fn at(id: u32) -> Self {
        Self {
            keyframe: id,
            keyframe_from_camera: Sim3::identity(),
        }
    }

    /// The same place relative to the keyframe of `place`, where `place` is that of this anchor's keyframe.
    pub fn moved_to(&self, place: &Self) -> Self {
        Self {
            keyframe: place.keyframe,
            keyframe_from_camera: place.keyframe_from_camera * self.keyframe_from_camera,
        }
    }
}

/// A published state of the factor graph, for the tracker and for readers. Immutable; the next
/// solve publishes a new table.
#[derive(Debug, Clone, Default)]
pub struct PoseTable {
    /// Number of the map: a reset or a loaded map starts the next one, whose ids start from 0.
    pub map: u64,
    /// Number of publications.
    pub version: u64,
    /// Ids of the keyframes, ascending. Removed keyframes leave gaps; ids are not reused within a map.
    pub ids: Vec<u32>,
    /// `world_from_camera` of each keyframe, in the order of `ids`.
    pub poses: Vec<Sim3>,
    /// Submap of each keyframe, in the order of `ids`.
    pub submaps: Vec<u32>,
    /// Time of each keyframe's image, in the order of `ids`.
    pub stamps: Vec<Stamp>,
    /// How often each keyframe's points were replaced, in the order of `ids`.
    pub(crate) revisions: Vec<u32>,
    /// Edges between keyframes.
    pub edges: Vec<MapEdge>,
    /// Removed keyframes.
    pub(crate) removed: Arc<Removed>,
    /// The scale of the map, if sensors measure it.
    pub(crate) scale: Option<ScaleEstimate>,
}

impl PoseTable {
    /// Position of keyframe `id` in the lists; `None` if the map does not hold it.
    pub fn index_of(&self, id: u32) -> Option<usize> {
        index_of(&self.ids, id)
    }

    /// Id of the newest keyframe.
    pub fn newest(&self) -> Option<u32> {
        self.ids.last().copied()
    }

    /// `world_from_camera` of keyframe `id`, removed ones included.
    pub(crate) fn pose_of(&self, id: u32) -> Option<Sim3> {
        if let Some(index) = self.index_of(id) {
            return self.poses.get(index).copied();
        }
        let (keyframe, pose) = self.removed.place_of(id)?;
        let world = self.poses.get(self.index_of(keyframe)?)?;
        Some(*world * pose)
    }

    /// Submap of keyframe `id`, removed ones included.
    fn submap_of(&self, id: u32) -> Option<u32> {
        let index = self.index_of(id);
        let index = index.or_else(|| self.index_of(self.removed.place_of(id)?.0))?;
        self.submaps.get(index).copied()
    }
}

/// Position of `id` in ascending `ids`.
pub fn index_of(ids: &[u32], id: u32) -> Option<usize> {
    // Without gaps, the id is the position.
    match ids.get(id as usize) {
        Some(&found) if found == id => Some(id as usize),
        _ => ids.binary_search(&id).ok(),
    }
}

/// The table shared by readers and the mapper.
pub type SharedPoses = Arc<ArcSwap<PoseTable>>;

/// Publishes `table` as the next version, unless a later map has been started.
pub fn publish(shared: &ArcSwap<PoseTable>, mut table: PoseTable) {
    table.version = shared.load().version + 1;
    let table = Arc::new(table);
    shared.rcu(|current| match current.map > table.map {
        true => Arc::clone(current),
        false => Arc::clone(&table),
    });
}

/// Maximum number of keyframes handed over but not yet published: each has a pointmap on its way to
/// the mapper, and there are at most [`HAND_OVERS`] of those.
const PENDING: usize = HAND_OVERS;

/// A keyframe that the mapper has not yet published.
#[derive(Debug, Clone, Copy)]
struct Pending {
    id: u32,
    origin: Origin,
}

/// Initial pose of a keyframe.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// Relative to the keyframe it was tracked against.
    Tracked(Anchor),
    /// At this world pose: the first keyframe of a submap.
    Submap(Sim3),
}

/// Poses of keyframes and the camera, as known to the tracking thread.
pub struct KeyframePoses {
    table: SharedPoses,
    pending: heapless::Vec<Pending, PENDING>,
    /// The last known pose of the camera.
    camera: Sim3,
}

impl KeyframePoses {
    /// An empty map.
    pub fn new() -> Self {
        Self {
            table: SharedPoses::default(),
            pending: heapless::Vec::new(),
            camera: Sim3::identity(),
        }
    }

    /// The published table.
    pub fn shared(&self) -> &SharedPoses {
        &self.table
    }

    /// The last known pose of the camera, `world_from_camera`.
    pub fn camera(&self) -> Sim3 {
        self.camera
    }

    /// Moves the camera to `anchor`, if there is one, and returns its pose.
    pub fn move_camera(&mut self, anchor: Option<&Anchor>) -> Sim3 {
        if let Some(anchor) = anchor {
            self.camera = self.world_from(anchor);
        }
        self.camera
    }

    /// Removes pending keyframes that have been published.
    pub fn refresh(&mut self) {
        let newest = self.table.load().newest();
        self.pending.retain(|p| Some(p.id) > newest);
    }

    /// Number of keyframes in the published table.
    pub fn published(&self) -> usize {
        self.table.load().ids.len()
    }

    /// Number of keyframes in the map, including those handed to the mapper.
    pub fn count(&self) -> usize {
        let table = self.table.load();
        let newest = table.newest();
        let pending = self.pending.iter().filter(|p| Some(p.id) > newest);
        table.ids.len() + pending.count()
    }

    /// Adds a keyframe handed to the mapper.
    pub fn add(&mut self, id: u32, origin: Origin) {
        if self.pending.is_full() {
            // The oldest has been published, since no more than this many can be in transit.
            self.pending.remove(0);
        }
        // There is room now.
        let _ = self.pending.push(Pending { id, origin });
    }

    /// Starts map `map` with the camera at `camera`. Readers see the empty map immediately.
    pub fn begin(&mut self, map: u64, camera: Sim3) {
        self.pending.clear();
        self.camera = camera;
        publish(
            &self.table,
            PoseTable {
                map,
                ..PoseTable::default()
            },
        );
    }

    /// Moves the camera to the first pose of a loaded map.
    pub fn place_camera(&mut self, camera: Sim3) {
        self.camera = camera;
    }

    /// The submap of a keyframe. A submap whose first keyframe is not yet published counts as the
    /// next one.
    pub fn submap_of(&self, keyframe: u32) -> u32 {
        let table = self.table.load();
        let mut id = keyframe;
        loop {
            if let Some(submap) = table.submap_of(id) {
                return submap;
            }
            match self.origin(id) {
                Some(Origin::Tracked(anchor)) if anchor.keyframe < id => id = anchor.keyframe,
                Some(Origin::Submap(_)) => {
                    return table
                        .submaps
                        .iter()
                        .max()
                        .map_or(0, |s| s.saturating_add(1));
                }
                _ => return 0,
            }
        }
    }

    /// The world pose of a camera at `anchor`; the last known one if the keyframe is unknown.
    pub fn world_from(&self, anchor: &Anchor) -> Sim3 {
        self.find(anchor).unwrap_or(self.camera)
    }

    /// The world pose of a camera at `anchor`; `None` if the keyframe is unknown.
    pub fn find(&self, anchor: &Anchor) -> Option<Sim3> {
        let table = self.table.load();
        let mut pose = anchor.keyframe_from_camera;
        let mut id = anchor.keyframe;
        loop {
            if let Some(world) = table.pose_of(id) {
                return Some(world * pose);
            }
            match self.origin(id) {
                Some(Origin::Tracked(a)) if a.keyframe < id => {
                    pose = a.keyframe_from_camera * pose;
                    id = a.keyframe;
                }
                Some(Origin::Submap(start)) => return Some(start * pose),
                _ => return None,
            }
        }
    }

    fn origin(&self, id: u32) -> Option<Origin> {
        let pending = self.pending.iter().find(|p| p.id == id);
        pending.map(|p| p.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::*;

    fn anchor(keyframe: u32, x: f64) -> Anchor {
        Anchor {
            keyframe,
            keyframe_from_camera: at(x),
        }
    }

    fn x(poses: &KeyframePoses, anchor: Anchor) -> f64 {
        poses.world_from(&anchor).translation.x
    }

    #[test]
    fn a_pending_keyframe_has_the_pose_that_tracking_gave_it() {
        let mut poses = KeyframePoses::new();
        poses.add(0, Origin::Submap(at(5.0)));
        poses.add(1, Origin::Tracked(anchor(0, 2.0)));
        assert_eq!(x(&poses, anchor(1, 0.5)), 7.5);
        assert_eq!(poses.submap_of(1), 0);
        // The mapper publishes another pose for keyframe 0; keyframe 1 moves with it.
        let table = PoseTable {
            ids: vec![0],
            poses: vec![at(6.0)],
            submaps: vec![4],
            ..PoseTable::default()
        };
        publish(poses.shared(), table);
        poses.refresh();
        assert_eq!(poses.pending.len(), 1);
        assert_eq!(x(&poses, anchor(1, 0.5)), 8.5);
        assert_eq!(poses.submap_of(1), 4);
        poses.add(2, Origin::Submap(at(-1.0)));
        assert_eq!((x(&poses, anchor(2, 0.0)), poses.submap_of(2)), (-1.0, 5));
    }

    #[test]
    fn a_removed_keyframe_keeps_its_place() {
        let poses = KeyframePoses::new();
        let mut removed = Removed::default();
        removed.insert(3, 5, at(2.0), 9);
        let table = PoseTable {
            ids: vec![0, 5, 9],
            poses: vec![at(0.0), at(10.0), at(20.0)],
            submaps: vec![0, 7, 7],
            removed: Arc::new(removed),
            ..PoseTable::default()
        };
        assert_eq!((table.index_of(5), table.index_of(3)), (Some(1), None));
        assert_eq!(table.newest(), Some(9));
        publish(poses.shared(), table);
        assert_eq!(x(&poses, anchor(9, 0.5)), 20.5);
        assert_eq!(x(&poses, anchor(3, 0.5)), 12.5);
        assert_eq!((poses.submap_of(3), poses.count()), (7, 3));
        assert_eq!(poses.find(&anchor(4, 0.0)), None);
    }

    #[test]
    fn a_table_of_an_earlier_map_is_not_published() {
        let mut poses = KeyframePoses::new();
        poses.begin(1, at(3.0));
        let old = PoseTable {
            poses: vec![at(9.0)],
            ..PoseTable::default()
        };
        publish(poses.shared(), old.clone());
        assert!(poses.shared().load().poses.is_empty());
        let version = poses.shared().load().version;
        publish(poses.shared(), PoseTable { map: 1, ..old });
        assert_eq!(poses.shared().load().poses.len(), 1);
        assert_eq!(poses.shared().load().version, version + 1);
    }

    #[test]
    fn pending_keyframes_are_bounded() {
        let mut poses = KeyframePoses::new();
        for id in 0..2 * PENDING as u32 {
            poses.add(id, Origin::Submap(at(f64::from(id))));
        }
        assert_eq!(poses.pending.len(), PENDING);
        let newest = 2 * PENDING as u32 - 1;
        assert_eq!(x(&poses, anchor(newest, 0.0)), f64::from(newest));
    }
}

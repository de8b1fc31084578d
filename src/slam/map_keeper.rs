//! Keeps the map's file up to date: sends what has changed in the graph and on the device, without waiting for the
//! file.

use super::graph::{Edge, Graph};
use super::removed::Removed;
use crate::compute::device::{DeviceError, EdgeContent, EdgeId, KeyframeContent, MappingDevice};
use crate::map::EdgeKind;
use crate::map::saved::SavedChain;
use crate::map::store::{EdgeRow, Job, Key, KeyframeRow, Monitor, RemovedRow, Rest, State, Writer};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::time::Duration;

/// Time between attempts to send the rest of a map that ends.
const PAUSE: Duration = Duration::from_millis(2);

/// How often a mapping thread without events sends what found no room.
pub const TICK: Duration = Duration::from_millis(50);

/// The map's file, and what was sent to it. Its tables are as long as the map.
pub struct MapKeeper {
    writer: Writer,
    monitor: Monitor,
    keyframes: FxHashMap<u32, Kept>,
    edges: FxHashMap<EdgeId, KeptEdge>,
    next_edge: u64,
    /// The removed keyframes as they were sent last.
    removed: (Arc<Removed>, Arc<Vec<RemovedRow>>),
    rest: Rest,
    /// Number of the map in the file; a reset begins the next one.
    epoch: u64,
    /// Whether the file still holds a map that was discarded: it stays until the next one has a keyframe.
    to_clear: bool,
    /// Whether the graph has changed since its state was set.
    changed: bool,
    /// Whether content was not sent yet.
    pending: bool,
    /// Loops at the last state: a new one is written at once.
    loops: usize,
    returned: Vec<Key>,
}

/// What was sent of a keyframe.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    whole: bool,
    /// Whether its points are the newest ones.
    points: bool,
}

#[derive(Debug, Clone, Copy)]
struct KeptEdge {
    number: u64,
    i: u32,
    j: u32,
    sent: bool,
}

impl MapKeeper {
    /// Keeps a map in a file that holds none.
    pub fn new(writer: Writer) -> Self {
        Self {
            monitor: writer.monitor(),
            writer,
            keyframes: FxHashMap::default(),
            edges: FxHashMap::default(),
            next_edge: 0,
            removed: Default::default(),
            rest: Rest::default(),
            epoch: 0,
            to_clear: false,
            changed: false,
            pending: false,
            loops: 0,
            returned: Vec::new(),
        }
    }

    /// Keeps the map that was loaded from the file: its keyframes, and its edges with their numbers there.
    pub fn resume(
        writer: Writer,
        graph: &Graph,
        edges: impl IntoIterator<Item = (EdgeId, u64)>,
        (next_edge, rest): (u64, Rest),
    ) -> Self {
        let sent = Kept {
            whole: true,
            points: true,
        };
        let keyframes = graph.keyframes().iter().map(|k| (k.info.id, sent));
        let numbers = FxHashMap::from_iter(edges);
        let edge = |edge: &Edge| {
            let kept = KeptEdge {
                number: *numbers.get(&edge.id)?,
                i: edge.i,
                j: edge.j,
                sent: true,
            };
            Some((edge.id, kept))
        };
        let edges = graph.edges().iter().filter_map(edge).collect();
        let mut keeper = Self {
            keyframes: keyframes.collect(),
            edges,
            next_edge,
            rest,
            loops: loops(graph),
            ..Self::new(writer)
        };
        keeper.monitor.place(rest.map_from_world);
        keeper.changed = true;
        keeper
    }

    /// Whether the map is no longer that of the file.
    pub fn is_detached(&self) -> bool {
        self.monitor.is_detached()
    }

    /// The graph has changed.
    pub fn note_change(&mut self) {
        self.changed = true;
    }

    /// Keyframe `id` has new points.
    pub fn note_points(&mut self, id: u32) {
        if let Some(kept) = self.keyframes.get_mut(&id) {
            kept.points = false;
            self.pending = true;
        }
    }

    /// The map was discarded. The file keeps it until the next one has a keyframe.
    pub fn reset(&mut self) {
        self.keyframes.clear();
        self.edges.clear();
        self.next_edge = 0;
        self.epoch += 1;
        self.loops = 0;
        (self.to_clear, self.pending) = (true, false);
    }

    /// Whether there is something that [`MapKeeper::keep`] may be able to send later.
    pub fn is_behind(&self) -> bool {
        self.pending || self.writer.is_failing()
    }

    /// Sends what has changed, as far as there is room. Never waits.
    pub fn keep(&mut self, graph: &Graph, device: &dyn MappingDevice) {
        self.changed |= self.monitor.placed() != self.rest.map_from_world;
        if self.changed && !graph.keyframes().is_empty() {
            self.update(graph);
        }
        self.take_back();
        if self.pending && self.writer.has_room() {
            self.pending = !self.send_all(graph, device);
        }
    }

    /// Sends everything and waits until it is on the disk.
    ///
    /// # Errors
    /// Why it is not.
    pub fn finish(&mut self, graph: &Graph, device: &dyn MappingDevice) -> Result<(), String> {
        loop {
            self.keep(graph, device);
            if let Some(failure) = self.monitor.failure() {
                // Space may have become free since.
                self.writer.flush()?;
                if self.writer.is_failing() {
                    return Err(failure);
                }
            }
            if !self.pending {
                self.writer.flush()?;
                self.take_back();
                if !self.pending {
                    return Ok(());
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sets the state of the graph, and notes which parts of it were not sent.
    fn update(&mut self, graph: &Graph) {
        self.rest = Rest {
            solved_edges: u32::try_from(graph.solved_edges()).unwrap_or(u32::MAX),
            map_from_world: self.monitor.placed(),
        };
        let ids = FxHashSet::from_iter(graph.keyframes().iter().map(|k| k.info.id));
        self.keyframes.retain(|id, _| ids.contains(id));
        for id in ids {
            self.pending |= !self.keyframes.entry(id).or_default().whole;
        }
        // A device may use the id of a removed edge again.
        let ids = FxHashSet::from_iter(graph.edges().iter().map(|e| (e.id, e.i, e.j)));
        self.edges
            .retain(|id, kept| ids.contains(&(*id, kept.i, kept.j)));
        let mut edges = Vec::with_capacity(graph.edges().len());
        for edge in graph.edges() {
            let kept = self.edges.entry(edge.id).or_insert_with(|| {
                let number = self.next_edge;
                self.next_edge += 1;
                self.pending = true;
                KeptEdge {
                    number,
                    i: edge.i,
                    j: edge.j,
                    sent: false,
                }
            });
            edges.push(EdgeRow {
                number: kept.number,
                i: edge.i,
                j: edge.j,
                kind: edge.kind,
                match_fraction: edge.match_fraction,
            });
        }
        let row = |(keyframe, pose): (&super::graph::GraphKeyframe, _)| KeyframeRow {
            id: keyframe.info.id,
            submap: keyframe.submap,
            frame_index: keyframe.info.frame_index as u64,
            stamp: keyframe.info.stamp,
            world_from_camera: pose,
            chain: keyframe.chain.map(|anchor| SavedChain {
                keyframe: anchor.keyframe,
                keyframe_from_camera: anchor.keyframe_from_camera,
            }),
        };
        let poses = graph.poses().iter().copied();
        if !Arc::ptr_eq(&self.removed.0, graph.removed()) {
            let rows = graph.removed().iter();
            let rows = rows.map(|(id, (keyframe, keyframe_from_removed))| RemovedRow {
                id,
                keyframe,
                keyframe_from_removed,
            });
            self.removed = (Arc::clone(graph.removed()), Arc::new(rows.collect()));
        }
        self.writer.set_state(State {
            epoch: self.epoch,
            keyframes: graph.keyframes().iter().zip(poses).map(row).collect(),
            edges,
            factors: graph.factors().list().to_vec(),
            removed: Arc::clone(&self.removed.1),
            rest: self.rest,
        });
        self.changed = false;
        let loops = loops(graph);
        if std::mem::replace(&mut self.loops, loops) < loops {
            // Without room, the state is written within a second anyway.
            self.writer.send(Job::Wake);
        }
    }

    /// Notes what the file could not take.
    fn take_back(&mut self) {
        self.writer.take_returned(&mut self.returned);
        for key in self.returned.drain(..) {
            match key {
                Key::Keyframe { id, whole } => {
                    if let Some(kept) = self.keyframes.get_mut(&id) {
                        kept.whole &= !whole;
                        kept.points = false;
                        self.pending = true;
                    }
                }
                Key::Edge(number) => {
                    let edge = self.edges.values_mut().find(|e| e.number == number);
                    if let Some(edge) = edge {
                        edge.sent = false;
                        self.pending = true;
                    }
                }
            }
        }
    }

    /// Sends content while there is room; returns whether everything was sent.
    fn send_all(&mut self, graph: &Graph, device: &dyn MappingDevice) -> bool {
        if self.to_clear {
            if !self.writer.send(Job::Clear(self.epoch)) {
                return false;
            }
            self.to_clear = false;
        }
        for keyframe in graph.keyframes() {
            let id = keyframe.info.id;
            let Some(kept) = self.keyframes.get_mut(&id) else {
                continue;
            };
            if kept.whole && kept.points {
                continue;
            }
            if !self.writer.has_room() {
                return false;
            }
            let whole = !kept.whole;
            let mut content = Box::new(KeyframeContent::default());
            let exported = device.export_keyframe(id, &mut content);
            let sent = match was_exported(exported) {
                true => self.writer.send(Job::Keyframe { id, whole, content }),
                // The device has lost it; the file keeps what it has.
                false => true,
            };
            if !sent {
                return false;
            }
            (kept.whole, kept.points) = (true, true);
        }
        for edge in graph.edges() {
            let Some(kept) = self.edges.get_mut(&edge.id).filter(|kept| !kept.sent) else {
                continue;
            };
            if !self.writer.has_room() {
                return false;
            }
            let number = kept.number;
            let mut content = Box::new(EdgeContent::default());
            let exported = device.export_edge(edge.id, &mut content);
            let sent = match was_exported(exported) {
                true => self.writer.send(Job::Edge { number, content }),
                false => true,
            };
            if !sent {
                return false;
            }
            kept.sent = true;
        }
        true
    }
}

fn was_exported(exported: Result<(), DeviceError>) -> bool {
    if let Err(error) = &exported {
        tracing::warn!("a part of the map cannot be written to its file: {error}");
    }
    exported.is_ok()
}

fn loops(graph: &Graph) -> usize {
    let kinds = graph.edges().iter().map(|e| e.kind);
    kinds
        .filter(|kind| matches!(kind, EdgeKind::Loop | EdgeKind::Relocalisation))
        .count()
}

/// The removed keyframes of a file.
pub fn removed<'a>(rows: impl Iterator<Item = &'a RemovedRow>) -> Removed {
    let place = |row: &RemovedRow| (row.id, (row.keyframe, row.keyframe_from_removed));
    rows.map(place).collect()
}

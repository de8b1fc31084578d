//! The mapper: order of operations on the mapping side. It runs inline or on its own thread, with
//! the same code and the same order.

mod depth;
mod keeping;
mod laps;
mod lending;

use super::bounds::Bounds;
use super::counts::{MappingCounts, SharedCounts};
use super::edges;
use super::events::{Event, Work};
use super::graph::{Edge, Graph, KeyframeInfo};
use super::loans::Loans;
use super::loop_closure::{Entry, LoopClosure};
use super::map_keeper::MapKeeper;
use super::metric::motion::CameraMotion;
use super::metric::scale::KeyframeScale;
use super::optimiser::Optimiser;
use super::pose_table::{Origin, SharedPoses};
use super::redundancy::Redundancy;
use super::relocaliser::{Relocaliser, Reply};
use super::reuse::Reuse;
use super::unmatched::Unmatched;
use crate::compute::cancel::CancelToken;
use crate::compute::device::{DeviceError, Handle, MappingDevice};
use crate::compute::retrieval::Hit;
use crate::config::{Config, GlobalOptConfig};
use crate::geometry::Sim3;
use laps::{Laps, Step};

/// The map under construction.
pub struct Mapper {
    device: Box<dyn MappingDevice>,
    graph: Graph,
    loop_closure: LoopClosure,
    relocaliser: Relocaliser,
    optimiser: Optimiser,
    bounds: Bounds,
    params: GlobalOptConfig,
    redundancy: Redundancy,
    reuse: Reuse,
    loans: Loans,
    /// Keyframes similar to the one described last.
    hits: Vec<Hit>,
    /// Maximum number of places at which a frame that is to be located looks.
    places: usize,
    /// Number of this map: see [`PoseTable`](super::PoseTable).
    map: u64,
    table: SharedPoses,
    counts: MappingCounts,
    shared_counts: SharedCounts,
    cancel: CancelToken,
    /// The map's file, if it has one.
    keeper: Option<MapKeeper>,
    /// Edges of a packed map that was loaded.
    unmatched: Unmatched,
    laps: Laps,
    /// Whether a keyframe has points whose revision is not published.
    unpublished: bool,
}

impl Mapper {
    /// An empty map, published in `table`. If the device does not support place recognition, only
    /// consecutive keyframes are connected, and lost frames are matched against the newest keyframes.
    pub fn new(mut device: Box<dyn MappingDevice>, config: &Config, table: SharedPoses) -> Self {
        let cancel = CancelToken::default();
        device.set_cancel(&cancel);
        Self {
            device,
            graph: Graph::default(),
            loop_closure: LoopClosure::new(config),
            relocaliser: Relocaliser::new(config),
            optimiser: Optimiser::new(&config.local_opt),
            bounds: Bounds::new(config),
            params: config.local_opt.clone(),
            redundancy: Redundancy::new(config),
            reuse: Reuse::new(config),
            loans: Loans::default(),
            hits: Vec::new(),
            places: config.retrieval.k,
            map: 0,
            table,
            counts: MappingCounts::default(),
            shared_counts: SharedCounts::default(),
            cancel,
            keeper: None,
            unmatched: Unmatched::default(),
            laps: Laps::start(),
            unpublished: false,
        }
    }

    /// While the token is cancelled, no further edges are made and a solve ends early: used for a
    /// map about to be discarded.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Counters, published after each event.
    pub fn shared_counts(&self) -> SharedCounts {
        self.shared_counts.clone()
    }

    /// The factor graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The device, which stores all bulk data.
    pub fn device(&self) -> &dyn MappingDevice {
        self.device.as_ref()
    }

    /// Handles an event; returns the reply if the event is a request.
    ///
    /// # Errors
    /// The network or the device failed. The map is then in the state after the last successful
    /// step.
    pub fn handle(&mut self, event: Event) -> Result<Option<Reply>, DeviceError> {
        self.laps = Laps::start();
        let done = self.work(event);
        if self.unpublished {
            self.publish_revisions();
        }
        self.keep();
        self.shared_counts.publish(self.counts);
        self.laps.end(Step::Publishing);
        tracing::debug!("mapping event: {}", self.laps);
        done
    }

    fn work(&mut self, event: Event) -> Result<Option<Reply>, DeviceError> {
        if event.work.grows_map() {
            self.match_edges()?;
        }
        self.graph.forget_removed(event.oldest_made);
        if let Some(finished) = event.finished {
            self.finish_keyframe(finished)?;
        }
        self.note_depth(event.depth)?;
        Ok(match event.work {
            Work::Keyframe {
                info,
                handle,
                origin,
                motion,
                scale,
            } => {
                self.add_keyframe(info, &handle, origin, (motion, scale))?;
                None
            }
            Work::Relocalise(request) => Some(self.relocalise(request)?),
            Work::Probe(request) => Some(self.probe(&request)?),
            Work::Borrow(anchor) => Some(self.lend(anchor)?),
            Work::Load {
                mut source,
                keep,
                reply,
            } => {
                reply(self.load(&mut source, keep));
                None
            }
            Work::Keep(writer) => {
                self.keeper = Some(MapKeeper::new(writer));
                None
            }
        })
    }

    /// Discards everything and starts map number `map`.
    pub fn reset(&mut self, map: u64) {
        self.map = map;
        self.graph = Graph::default();
        self.unmatched = Unmatched::default();
        self.loop_closure.reset();
        self.redundancy.clear();
        self.device.reset();
        self.reset_keeper();
        self.publish();
    }

    /// Connects a new keyframe with its candidates and solves once.
    fn add_keyframe(
        &mut self,
        info: KeyframeInfo,
        handle: &Handle,
        origin: Origin,
        (motion, scale): (Option<(u32, CameraMotion)>, Option<KeyframeScale>),
    ) -> Result<(), DeviceError> {
        let id = info.id;
        let (pose, submap, anchor) = match origin {
            Origin::Tracked(a) => {
                // The keyframe may have been removed since.
                let a = self.graph.resolve(a).unwrap_or(a);
                (
                    self.graph.pose_of(a.keyframe) * a.keyframe_from_camera,
                    self.graph.submap_of(a.keyframe).unwrap_or(0),
                    Some(a),
                )
            }
            Origin::Submap(start) => {
                // Nothing joins it with the map yet: what was measured is all that is known of its scale.
                let measured = scale.map_or(start.scale, |scale| scale.log_scale.exp());
                let start = Sim3 {
                    scale: measured,
                    ..start
                };
                (start, self.graph.next_submap(), None)
            }
        };
        self.device.accept_keyframe(id, handle)?;
        self.query_places(id, self.loop_closure.places_queried())?;
        let candidates =
            self.loop_closure
                .candidates(&self.graph, (id, submap, &pose), anchor, &self.hits);
        self.device.insert_place(id)?;
        self.laps.end(Step::Places);
        self.graph.insert(info, pose, submap, anchor);
        self.graph.add_motion(id, motion);
        if let Some(scale) = scale {
            self.graph.scales_mut().set(id, scale);
        }
        tracing::debug!(id, "keyframe added");
        let wanted: Vec<_> = candidates.iter().map(|&(c, kind)| (c, id, kind)).collect();
        self.counts.refused_unconfirmed += self.loop_closure.expire(id);
        let made = edges::make(self.device.as_mut(), &wanted)?;
        self.laps.end(Step::Edges);
        self.admit(made)?;
        let further = self.loop_closure.further(&self.graph, id, &wanted);
        if !further.is_empty() {
            let made = edges::make(self.device.as_mut(), &further)?;
            self.admit(made)?;
        }
        self.laps.end(Step::Judging);
        self.optimise()?;
        let removed = self.remove_redundant(id);
        self.laps.end(Step::Removal);
        // Published once, so that a map that is full for a moment does not look full.
        self.publish();
        removed
    }

    /// Connects the new edges that pass their tests.
    fn admit(&mut self, made: Vec<Edge>) -> Result<(), DeviceError> {
        let device = self.device.as_mut();
        for mut edge in made {
            let entry = self
                .loop_closure
                .admit(device, &mut self.graph, &mut edge)?;
            let witnesses = match entry {
                Ok(Entry::Enters) => Vec::new(),
                Ok(Entry::Confirmed(witnesses)) => witnesses,
                Ok(Entry::Waits) => {
                    device.drop_edge(edge.id);
                    continue;
                }
                Err(refusal) => {
                    tracing::debug!(i = edge.i, j = edge.j, ?refusal, "edge refused");
                    self.counts.refuse(refusal);
                    device.drop_edge(edge.id);
                    continue;
                }
            };
            let graph = &mut self.graph;
            let merged = self.loop_closure.join_submaps(device, graph, &mut edge)?;
            self.counts.merged_submaps += usize::from(merged.is_some());
            self.counts.count(edge.kind);
            self.counts.confirmed_loops += usize::from(!witnesses.is_empty());
            for of in witnesses {
                let (pose_i, pose_j) = (self.graph.pose_of(of.place), self.graph.pose_of(of.query));
                self.graph.factors_mut().add(of.factor, &pose_i, &pose_j);
            }
            self.redundancy.note_edge(&self.graph, &edge);
            self.graph.connect(edge);
        }
        Ok(())
    }

    fn query_places(&mut self, id: u32, limit: usize) -> Result<(), DeviceError> {
        self.device.query_places(id, limit, &mut self.hits)?;
        tracing::debug!(hits = ?self.hits, "places");
        Ok(())
    }

    fn solve(&mut self) -> Result<(), DeviceError> {
        self.optimise()?;
        self.publish();
        Ok(())
    }

    fn optimise(&mut self) -> Result<(), DeviceError> {
        let solved = self
            .optimiser
            .solve(self.device.as_mut(), &mut self.graph)?;
        self.laps.end(Step::Solve);
        self.counts.failed_solves += usize::from(!solved);
        if solved {
            let device = self.device.as_mut();
            self.counts.demoted_edges += self.bounds.enforce(device, &mut self.graph)?;
            self.laps.end(Step::Bounds);
        }
        Ok(())
    }
}

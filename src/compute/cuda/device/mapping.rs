//! The mapping half: keyframes and edges in device memory, and computations on them.

mod making;
mod poses;

use super::content;
use super::edges::CudaEdges;
use super::errors::{NAME, failed, unknown};
use super::hand_off::{HandOff, HandOffItem, Owner, remove};
use super::network::{Decoding, Network, NetworkBuffers};
use super::pair::{CONSTRAINING, Pair, PairBuffers, PairModes};
use super::solve::GraphSolver;
use super::stores::Stores;
use crate::compute::cancel::CancelToken;
use crate::compute::coverage::{Coverage, Limits};
use crate::compute::cuda::coverage::{CoverageBuffers, CoverageCounter, DeviceViewOf};
use crate::compute::cuda::depth::pointmap::{PointmapMover, PointmapMoverBuffers};
use crate::compute::cuda::fusion::FusionBuffers;
use crate::compute::cuda::global::{DeviceGlobalSolver, GlobalBuffers};
use crate::compute::cuda::matching::MatchCounts;
use crate::compute::cuda::retrieval::{PlaceError, Retrieval};
use crate::compute::cuda::slots::CudaKeyframes;
use crate::compute::cuda::spread::{SpreadBuffers, SpreadCounter};
use crate::compute::device::{
    ContentFormats, DeviceError, EdgeContent, EdgeId, Handle, KeyframeBulk, KeyframeContent,
    MappingDevice, NeighbourView, NewEdge, PoseGraph, TwoWay,
};
use crate::compute::global::{EdgeEquations, GlobalReport, GlobalResidual};
use crate::compute::matching::Refinement;
use crate::compute::residual::SolveError;
use crate::compute::retrieval::Hit;
use crate::compute::spread::Spread;
use crate::compute::store::{Access, Lane, StoreError, Touch};
use crate::config::DeviceConfig;
use crate::geometry::{Intrinsics, Sim3};
use crate::gpu::{DeviceBuffer, Floats, PinnedBuffer, Stream};
use crate::image::RgbImage;
use crate::inference::{Backend, NetworkShape};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Number of slots kept free for the tracking thread's next keyframes.
const FREE_SLOTS: usize = 2;

/// Memory of a [`Mapping`].
pub(super) struct MappingBuffers {
    pub(super) network: NetworkBuffers,
    pub(super) pair: PairBuffers,
    pub(super) host_counts: PinnedBuffer<MatchCounts>,
    /// Flags of the direction being matched.
    pub(super) valid: DeviceBuffer<u8>,
    pub(super) fusion: FusionBuffers,
    pub(super) coverage: CoverageBuffers,
    pub(super) spread: SpreadBuffers,
    pub(super) solver: GlobalBuffers,
    /// `None` without `depth.use` or a calibration.
    pub(super) mover: Option<PointmapMoverBuffers>,
}

#[derive(Clone, Copy)]
struct Ends {
    i: u32,
    j: u32,
}

/// The mapping half.
pub(super) struct Mapping {
    pub(super) config: Arc<DeviceConfig>,
    pub(super) stream: Arc<Stream>,
    pub(super) keyframes: Arc<CudaKeyframes>,
    pub(super) hand_off: Arc<HandOff>,
    pub(super) network: Network,
    pub(super) pair: Pair,
    /// Outcomes of both directions of all edges that are made together.
    host_counts: PinnedBuffer<MatchCounts>,
    /// Flags of the direction being matched. They are not stored: quality 0 means no match.
    valid: DeviceBuffer<u8>,
    coverage: CoverageCounter,
    spread: SpreadCounter,
    pub(super) edges: Arc<CudaEdges>,
    pub(super) graph: GraphSolver,
    pub(super) places: Option<Retrieval>,
    /// `None` without `depth.use` or a calibration.
    mover: Option<PointmapMover>,
    /// Keyframe keys in the store.
    pub(super) keys: FxHashMap<u32, u32>,
    /// Edges' keyframes.
    ends: FxHashMap<EdgeId, Ends>,
    pub(super) next_edge: u32,
    /// The keyframe described last.
    pub(super) described: Option<u32>,
    pub(super) hits: Vec<Hit>,
    /// Whether the log already says that places are replaced.
    places_full: bool,
}

impl Mapping {
    /// Has the backend prepare its first runs.
    pub(super) fn new(
        config: Arc<DeviceConfig>,
        stream: Arc<Stream>,
        stores: &Stores,
        backend: Box<dyn Backend>,
        buffers: MappingBuffers,
        residual: GlobalResidual,
        intrinsics: Option<&Intrinsics>,
    ) -> Result<Self, DeviceError> {
        let context = stream.context();
        let mut network = Network::new(context, &stream, backend, buffers.network)?;
        let batches = network.batches().into_iter();
        let decodings: Vec<Decoding> = batches.map(Decoding::Edges).collect();
        network.warm_up(&stream, (&[], &[]), &decodings)?;
        let modes = PairModes {
            refinement: Refinement::Single,
            masks: config.tracking.masks,
            fusion: CONSTRAINING,
            score: config.tracking.filtering_score,
            measured_confidence: 0.0,
        };
        let (shape, rays) = (network.shape(), stores.rays.clone());
        let pair = Pair::new(&stream, buffers.pair, buffers.fusion, shape, &modes, rays)?;
        let coverage = CoverageCounter::new(context, buffers.coverage, shape.pixels())?;
        let size = (shape.width, shape.height);
        let spread = SpreadCounter::new(context, buffers.spread, size)?;
        let mover = (buffers.mover.zip(intrinsics))
            .map(|(buffers, camera)| PointmapMover::new(context, &stream, buffers, size, camera))
            .transpose()?;
        let graph = GraphSolver {
            solver: DeviceGlobalSolver::new(context, buffers.solver)?,
            residual,
            width: shape.width,
            height: shape.height,
            cancel: CancelToken::default(),
        };
        Ok(Self {
            config,
            keyframes: Arc::clone(&stores.keyframes),
            hand_off: Arc::clone(&stores.hand_off),
            edges: Arc::clone(&stores.edges),
            network,
            pair,
            host_counts: buffers.host_counts,
            valid: buffers.valid,
            coverage,
            spread,
            graph,
            places: None,
            mover,
            keys: Default::default(),
            ends: Default::default(),
            next_edge: 0,
            described: None,
            hits: Vec::new(),
            places_full: false,
            stream,
        })
    }

    pub(super) fn key(&self, id: u32) -> Result<u32, DeviceError> {
        self.keys.get(&id).copied().ok_or(unknown("keyframe", id))
    }

    /// Makes room for the tracking thread's next keyframe ahead of time.
    pub(super) fn prepare(&self) -> Result<(), DeviceError> {
        match self.keyframes.prepare(Lane::Mapping, FREE_SLOTS) {
            Ok(_) => Ok(()),
            // A caller that needs the room reports it if it is still missing.
            Err(StoreError::NoRoom { source }) => {
                tracing::warn!("cannot move keyframes out of GPU memory: {source}");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn describe(&mut self, id: u32, limit: usize, hits: &mut Vec<Hit>) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        let Some(places) = &mut self.places else {
            return Ok(());
        };
        let min_score = self.config.retrieval.min_thresh;
        let found = {
            let lease = self.keyframes.read(Lane::Mapping, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            places.describe(&self.stream, slot.features)?;
            places.query(&self.stream, limit, min_score)?;
            places.hits(&self.stream, &mut self.hits)
        };
        match found {
            Ok(()) => {
                self.described = Some(id);
                hits.extend_from_slice(&self.hits);
                Ok(())
            }
            Err(PlaceError::Cuda(error)) => Err(error.into()),
            Err(error) => {
                tracing::warn!("place recognition: {error}");
                Ok(())
            }
        }
    }
}

impl MappingDevice for Mapping {
    fn shape(&self) -> &NetworkShape {
        self.network.shape()
    }

    fn accept_keyframe(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        let key = self.hand_off.accept(handle)?;
        if let Some(old) = self.keys.insert(id, key) {
            remove(&self.keyframes, old);
        }
        self.prepare()
    }

    fn accept_pointmap(&mut self, id: u32, handle: &Handle) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        let item = self.hand_off.get(handle)?;
        let buffer = item
            .buffer
            .ok_or(unknown("pointmap under handle", handle.number()))?;
        let buffer = self.hand_off.buffer(buffer)?;
        let lease = self.keyframes.write(Lane::Mapping, key)?;
        let slot = self.keyframes.device().slot(lease.slot())?;
        let stream = &self.stream;
        buffer.before_reading(stream)?;
        match self.pair.rays.as_deref() {
            Some(rays) => {
                let points = buffer.points.all();
                self.pair
                    .fusion
                    .constrain(stream, points, rays, slot.points)?;
            }
            None => stream.copy(buffer.points.all(), slot.points)?,
        }
        match slot.confidence {
            Floats::F32(v) => stream.copy(buffer.confidence.all(), v)?,
            Floats::F16(v) => stream.copy(buffer.half_confidence.all(), v)?,
        }
        Ok(buffer.after_reading(stream)?)
    }

    fn move_points(&mut self, id: u32, motion: &Sim3) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        let Some(mover) = &self.mover else {
            return Ok(());
        };
        let lease = self.keyframes.write(Lane::Mapping, key)?;
        let slot = self.keyframes.device().slot(lease.slot())?;
        let confidence = match slot.confidence {
            Floats::F32(v) => v,
            Floats::F16(v) => {
                self.pair
                    .convert
                    .widen(&self.stream, v, mover.confidence())?;
                mover.confidence()
            }
        };
        mover.run(&self.stream, slot.points, confidence, motion)?;
        Ok(())
    }

    fn drop_keyframe(&mut self, id: u32) {
        if let Some(key) = self.keys.remove(&id) {
            remove(&self.keyframes, key);
        }
        if let Some(places) = &mut self.places
            && let Err(error) = places.remove(&self.stream, id)
        {
            // The next operation on the device fails as well, and reports the error.
            tracing::error!("cannot remove a keyframe's place: {error}");
        }
    }

    fn has_place_recognition(&self) -> bool {
        self.places.is_some()
    }

    fn query_places(
        &mut self,
        id: u32,
        limit: usize,
        hits: &mut Vec<Hit>,
    ) -> Result<(), DeviceError> {
        hits.clear();
        self.described = None;
        self.describe(id, limit, hits)
    }

    fn insert_place(&mut self, id: u32) -> Result<(), DeviceError> {
        let Some(places) = &mut self.places else {
            return Ok(());
        };
        if self.described != Some(id) {
            return Ok(());
        }
        let mut inserted = places.insert(&self.stream, id);
        if let Err(PlaceError::Full { capacity }) = inserted {
            // Evict the keyframe most similar to the new one, or else the oldest.
            let similar = self.hits.iter().map(|hit| hit.id);
            let Some(victim) = similar.chain(places.oldest()).next() else {
                return Ok(());
            };
            if !std::mem::replace(&mut self.places_full, true) {
                tracing::warn!(
                    "place recognition holds its {capacity} keyframes (memory.places): each new one replaces the one \
                     that looks most like it"
                );
            }
            places.remove(&self.stream, victim)?;
            inserted = places.insert(&self.stream, id);
        }
        match inserted {
            Ok(()) => Ok(()),
            Err(PlaceError::Cuda(error)) => Err(error.into()),
            Err(error) => {
                tracing::warn!("keyframe {id} will not be recognised: {error}");
                Ok(())
            }
        }
    }

    fn set_cancel(&mut self, cancel: &CancelToken) {
        self.graph.set_cancel(cancel);
    }

    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        let first = made.len();
        let mut left = pairs;
        while !(left.is_empty() || self.graph.cancel.is_cancelled()) {
            let count = self.network.edges_at_once(left.len());
            let (now, later) = left.split_at(count);
            if let Err(error) = self.make_together(now, made) {
                for edge in made.drain(first..) {
                    self.drop_edge(edge.id);
                }
                return Err(error);
            }
            left = later;
        }
        Ok(())
    }

    fn relative_poses(&mut self, edge: EdgeId) -> Result<TwoWay, DeviceError> {
        self.solve_poses(edge)
    }

    fn drop_edge(&mut self, edge: EdgeId) {
        self.ends.remove(&edge);
        if let Err(error) = self.edges.remove(edge.0) {
            tracing::error!("cannot free an edge's slot: {error}");
        }
    }

    fn coverage(
        &mut self,
        id: u32,
        views: &[NeighbourView],
        min_ratio: f32,
    ) -> Result<Coverage, DeviceError> {
        let key = self.key(id)?;
        let limits = Limits {
            c_conf: self.config.local_opt.c_conf,
            q_conf: self.config.local_opt.q_conf,
            min_ratio,
        };
        let (lane, access, touch) = (Lane::Mapping, Access::Read, Touch::Pass);
        let found = {
            let own = self.keyframes.lease(lane, key, access, touch)?;
            let own = self.keyframes.device().slot(own.slot())?;
            self.coverage.clear(&self.stream)?;
            for view in views {
                let NeighbourView { edge, scale } = *view;
                let ends = self.ends.get(&edge).copied();
                let ends = ends.ok_or(unknown("edge", edge.0))?;
                let matches = self.edges.lease(lane, edge.0, access, touch)?;
                let matches = self.edges.device().slot(matches.slot())?;
                let (other, matches) = match id {
                    i if i == ends.i => (ends.j, matches.j_from_i),
                    j if j == ends.j => (ends.i, matches.i_from_j),
                    _ => return Err(unknown("edge of this keyframe", edge.0)),
                };
                let other = self.key(other)?;
                let other = self.keyframes.lease(lane, other, access, touch)?;
                let points = self.keyframes.device().slot(other.slot())?.points;
                let view = DeviceViewOf {
                    matches,
                    points,
                    scale,
                };
                self.coverage
                    .add(&self.stream, own.points, &view, &limits)?;
            }
            self.coverage
                .count(&self.stream, own.points, own.confidence, &limits)?
        };
        self.prepare()?;
        Ok(found)
    }

    fn spread(&mut self, edge: EdgeId, q_conf: f32) -> Result<[Spread; 2], DeviceError> {
        let lease = self.edges.read(Lane::Mapping, edge.0)?;
        let slot = self.edges.device().slot(lease.slot())?;
        let ways = [slot.i_from_j, slot.j_from_i];
        Ok(self.spread.count(&self.stream, ways, q_conf)?)
    }

    fn solve(
        &mut self,
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError> {
        let keys = graph.keyframes.iter().map(|&id| self.key(id));
        let keys: Vec<u32> = keys.collect::<Result<_, _>>()?;
        let solved = self.graph.solve(
            &self.stream,
            (&self.keyframes, &self.edges),
            &keys,
            graph,
            poses,
        );
        self.prepare()?;
        solved
    }

    fn equations(
        &mut self,
        graph: &PoseGraph<'_>,
        dst: &mut Vec<EdgeEquations>,
    ) -> Result<Result<(), SolveError>, DeviceError> {
        let keys = graph.keyframes.iter().map(|&id| self.key(id));
        let keys: Vec<u32> = keys.collect::<Result<_, _>>()?;
        let stores = (&*self.keyframes, &*self.edges);
        let found = self
            .graph
            .equations(&self.stream, stores, &keys, graph, dst);
        self.prepare()?;
        found
    }

    fn read_points(&self, id: u32, dst: &mut Vec<f32>) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        let lease = self
            .keyframes
            .lease(Lane::Mapping, key, Access::Read, Touch::Pass)?;
        let slot = self.keyframes.device().slot(lease.slot())?;
        Ok(content::read_points(&self.stream, &slot, dst)?)
    }

    fn read_keyframe(&self, id: u32) -> Result<KeyframeBulk, DeviceError> {
        let key = self.key(id)?;
        let (access, touch) = (Access::Read, Touch::Pass);
        let lease = self.keyframes.lease(Lane::Mapping, key, access, touch)?;
        let slot = self.keyframes.device().slot(lease.slot())?;
        let shape = self.network.shape();
        let mut image = RgbImage::new(shape.width, shape.height);
        let stream = &self.stream;
        stream.read(slot.image, &mut image.data)?;
        let confidence = match slot.confidence {
            Floats::F32(v) => stream.read_vec(v)?,
            Floats::F16(v) => stream.read_vec(v)?.into_iter().map(f32::from).collect(),
        };
        Ok(KeyframeBulk {
            image: Arc::new(image),
            points: Arc::new(stream.read_vec(slot.points)?),
            confidence: Arc::new(confidence),
        })
    }

    fn borrow_keyframe(&mut self, id: u32) -> Result<Handle, DeviceError> {
        let key = self.key(id)?;
        let (number, buffer) = self.hand_off.take_buffer()?;
        let put = || -> Result<(), DeviceError> {
            let lease = self.keyframes.read(Lane::Mapping, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            let stream = &self.stream;
            buffer.before_writing(stream)?;
            stream.copy(slot.points, buffer.points.all())?;
            match slot.confidence {
                Floats::F32(v) => stream.copy(v, buffer.confidence.all())?,
                Floats::F16(v) => self
                    .pair
                    .convert
                    .widen(stream, v, buffer.confidence.all())?,
            }
            Ok(buffer.after_writing(stream)?)
        };
        if let Err(error) = put() {
            self.hand_off.give_back(number);
            return Err(error);
        }
        let item = HandOffItem {
            key: Some(key),
            buffer: Some(number),
            has_depth: false,
        };
        Ok(self.hand_off.put(item, Owner::Mapping))
    }

    fn content_formats(&self) -> ContentFormats {
        let layout = &self.keyframes.device().plan().layout;
        ContentFormats {
            confidence: layout.confidence_format,
            features: layout.feature_format,
        }
    }

    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        // Bulk export must not evict keyframes that are in use.
        let (access, touch) = (Access::Read, Touch::Pass);
        let lease = self.keyframes.lease(Lane::Mapping, key, access, touch)?;
        let slot = self.keyframes.device().slot(lease.slot())?;
        Ok(content::read_keyframe(&self.stream, &slot, dst)?)
    }

    fn import_keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), DeviceError> {
        content.check(NAME, self.network.shape())?;
        let key = self.hand_off.new_key();
        let written = {
            let lease = self.keyframes.insert(Lane::Mapping, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            content::write_keyframe(&self.stream, content, &slot)
        };
        if let Err(error) = written {
            remove(&self.keyframes, key);
            return Err(error.into());
        }
        if let Some(old) = self.keys.insert(id, key) {
            remove(&self.keyframes, old);
        }
        self.prepare()
    }

    fn encode_keyframe(&mut self, content: &mut KeyframeContent) -> Result<(), DeviceError> {
        let image = content.network_image(NAME, self.network.shape())?;
        content.features = self.network.encode_image(&self.stream, &image)?;
        Ok(())
    }

    fn export_edge(&self, edge: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError> {
        let (access, touch) = (Access::Read, Touch::Pass);
        let lease = self.edges.lease(Lane::Mapping, edge.0, access, touch)?;
        let slot = self.edges.device().slot(lease.slot())?;
        Ok(content::read_edge(&self.stream, &slot, dst)?)
    }

    fn import_edge(
        &mut self,
        i: u32,
        j: u32,
        content: &EdgeContent,
    ) -> Result<EdgeId, DeviceError> {
        content.check(NAME, self.network.shape().pixels())?;
        self.key(i)?;
        self.key(j)?;
        let number = self.next_edge;
        self.next_edge = number.wrapping_add(1);
        let written = {
            let lease = self.edges.insert(Lane::Mapping, number)?;
            let slot = self.edges.device().slot(lease.slot())?;
            content::write_edge(&self.stream, content, &slot)
        };
        let id = EdgeId(number);
        self.ends.insert(id, Ends { i, j });
        if let Err(error) = written {
            self.drop_edge(id);
            return Err(error.into());
        }
        Ok(id)
    }

    fn reset(&mut self) {
        for (_, key) in self.keys.drain() {
            remove(&self.keyframes, key);
        }
        let edges: Vec<EdgeId> = self.ends.keys().copied().collect();
        for edge in edges {
            self.drop_edge(edge);
        }
        self.described = None;
        if let Some(places) = &mut self.places
            && let Err(error) = places.clear(&self.stream)
        {
            // The next operation on the device fails as well, and reports the error.
            tracing::error!("cannot clear the place database: {}", failed(error));
        }
    }
}

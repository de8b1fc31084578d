//! The mapping half: keyframes and edges in device memory, and what is computed from them.

use super::content;
use super::edges::{CudaEdges, EdgeView};
use super::errors::{failed, unknown};
use super::exchange::{Exchange, Owner, Thing, remove};
use super::network::{Decoding, Network, at_once};
use super::solve::GraphSolver;
use super::tracking::compared;
use crate::compute::cuda::convert::Convert;
use crate::compute::cuda::fusion::Fusion;
use crate::compute::cuda::global::DeviceMatches;
use crate::compute::cuda::matching::{MatchCounts, MatchTask, Matcher, Start};
use crate::compute::cuda::retrieval::{PlaceError, PlaceHit, Retrieval};
use crate::compute::cuda::sanitise::Sanitiser;
use crate::compute::cuda::slots::{CudaKeyframes, Floats, SlotView};
use crate::compute::cuda::tracking::{CameraRays, Outcome, PoseSolver, SolveTask};
use crate::compute::cuda::{CudaError, DeviceBuffer, PinnedBuffer, Stream};
use crate::compute::device::{
    ContentFormats, DeviceError, EdgeContent, EdgeId, KeyframeBulk, KeyframeContent, MappingDevice,
    NewEdge, PoseGraph, Ticket, TwoWay,
};
use crate::compute::global::GlobalReport;
use crate::compute::residual::SolveError;
use crate::compute::retrieval::Hit;
use crate::compute::stop::Stop;
use crate::compute::store::{Access, Lane, StoreError, Touch};
use crate::config::Config;
use crate::geometry::Sim3;
use crate::image::RgbImage;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Slots that are kept free for the tracking thread's next keyframes.
const FREE_SLOTS: usize = 2;

/// What making edges takes, and judging them.
pub(super) struct Pair {
    pub(super) sanitiser: Sanitiser,
    pub(super) matcher: Matcher,
    pub(super) solver: PoseSolver,
    pub(super) fusion: Fusion,
    pub(super) convert: Convert,
    pub(super) rays: Option<Arc<CameraRays>>,
    pub(super) unusable: DeviceBuffer<u32>,
    /// Of both directions.
    pub(super) counts: DeviceBuffer<MatchCounts>,
    pub(super) host_counts: PinnedBuffer<MatchCounts>,
    /// Of both directions.
    pub(super) outcome: DeviceBuffer<Outcome>,
    pub(super) host_outcome: PinnedBuffer<Outcome>,
}

#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) i: u32,
    pub(super) j: u32,
}

/// The mapping half.
pub(super) struct Mapping {
    pub(super) config: Arc<Config>,
    pub(super) stream: Arc<Stream>,
    pub(super) keyframes: Arc<CudaKeyframes>,
    pub(super) exchange: Arc<Exchange>,
    pub(super) network: Network,
    pub(super) pair: Pair,
    pub(super) edges: Arc<CudaEdges>,
    pub(super) graph: GraphSolver,
    pub(super) places: Option<Retrieval>,
    /// Keyframes' keys in the store.
    pub(super) keys: FxHashMap<u32, u32>,
    /// Edges' keyframes.
    pub(super) ends: FxHashMap<EdgeId, Ends>,
    pub(super) next_edge: u32,
    /// The keyframe that was described last.
    pub(super) described: Option<u32>,
    pub(super) hits: Vec<PlaceHit>,
}

impl Mapping {
    pub(super) fn key(&self, id: u32) -> Result<u32, DeviceError> {
        self.keys.get(&id).copied().ok_or(unknown("keyframe", id))
    }

    /// Makes room for the tracking thread's next keyframe while nobody waits for it.
    pub(super) fn prepare(&self) -> Result<(), DeviceError> {
        match self.keyframes.prepare(Lane::Mapping, FREE_SLOTS) {
            Ok(_) => Ok(()),
            // Whoever needs the room says so if there is none then, either.
            Err(StoreError::NoRoom { source }) => {
                tracing::warn!("no keyframe can leave the GPU: {source}");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Brings keyframe `id`'s tokens where the network reads those of image `which`.
    fn load_tokens(&mut self, id: u32, which: usize) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        {
            let lease = self.keyframes.read(Lane::Mapping, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            let tokens = self.network.features(which);
            match slot.features {
                Floats::F32(v) => self.stream.copy(v, tokens)?,
                Floats::F16(v) => self.pair.convert.widen(&self.stream, v, tokens)?,
            }
        }
        self.network.fetch(&self.stream, which)
    }

    /// Matches the second view's pixels into the first, as they were decoded in way `way` of all, which is
    /// direction `of_edge` of its edge, whose counts are written too.
    fn match_pair(
        &mut self,
        [way, of_edge]: [usize; 2],
        to: DeviceMatches<'_>,
    ) -> Result<(), DeviceError> {
        let (first, second) = (self.network.view_of(way, 0), self.network.view_of(way, 1));
        let (stream, pair, config) = (&self.stream, &self.pair, &self.config);
        let unusable = pair.unusable.all();
        pair.sanitiser
            .enqueue(stream, first, Some(second), unusable)?;
        let task = MatchTask {
            target: first,
            query: second,
            start: Start::Identity,
            q_conf: config.local_opt.q_conf,
            gates: None,
            index: to.index,
            valid: to.valid,
            quality: to.quality,
            counts: pair.counts.slice(of_edge..of_edge + 1)?,
        };
        Ok(pair.matcher.enqueue(stream, &config.matching, &task)?)
    }

    /// Makes the edges of `pairs`, which are decoded together.
    fn make_together(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        for (place, &(i, j)) in pairs.iter().enumerate() {
            self.load_tokens(i, 2 * place)?;
            self.load_tokens(j, 2 * place + 1)?;
        }
        let decoding = Decoding::Edges(pairs.len());
        self.network.decode(&self.stream, decoding)?;
        for (place, &(i, j)) in pairs.iter().enumerate() {
            made.push(self.match_edge(place, Ends { i, j })?);
        }
        Ok(())
    }

    /// An edge from what was decoded as pair `place`.
    fn match_edge(&mut self, place: usize, ends: Ends) -> Result<NewEdge, DeviceError> {
        let id = self.next_edge;
        self.next_edge = id.wrapping_add(1);
        let edges = Arc::clone(&self.edges);
        let filled = {
            let lease = edges.insert(Lane::Mapping, id)?;
            let slot = edges.device().slot(lease.slot())?;
            self.fill(place, slot)
        };
        let id = EdgeId(id);
        match filled {
            Ok(match_fraction) => {
                self.ends.insert(id, ends);
                Ok(NewEdge { id, match_fraction })
            }
            Err(error) => {
                self.drop_edge(id);
                Err(error)
            }
        }
    }

    /// Fills a new edge's slot from what was decoded as pair `place`; the smaller fraction of good matches.
    fn fill(&mut self, place: usize, to: EdgeView<'_>) -> Result<f32, DeviceError> {
        self.match_pair([2 * place, 0], to.i_from_j)?;
        self.match_pair([2 * place + 1, 1], to.j_from_i)?;
        let pair = &mut self.pair;
        // SAFETY: waited for before anybody looks.
        unsafe {
            self.stream
                .download(pair.counts.all(), &mut pair.host_counts)?;
        }
        self.stream.synchronize()?;
        let good = pair.host_counts.iter().map(|c| c.good).min().unwrap_or(0);
        Ok(good as f32 / self.network.shape().pixels() as f32)
    }

    /// Enqueues the solve for the pose of one direction: `points` are those of the keyframe whose pixels
    /// are matched and of the other.
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
            quality: matches.quality,
            min_quality: self.config.local_opt.q_conf,
            counts: None,
            compared: compared(self.pair.rays.as_deref()),
            pose: None,
            outcome: self.pair.outcome.slice(way..way + 1)?,
        };
        let params = &self.config.tracking;
        self.pair.solver.enqueue(&self.stream, &task, params)
    }

    fn describe(&mut self, id: u32, hits: &mut Vec<Hit>) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        let Some(places) = &mut self.places else {
            return Ok(());
        };
        let (k, least) = (self.config.retrieval.k, self.config.retrieval.min_thresh);
        let found = {
            let lease = self.keyframes.read(Lane::Mapping, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            places.describe(&self.stream, slot.features)?;
            places.query(&self.stream, k, least)?;
            places.hits(&self.stream, &mut self.hits)
        };
        match found {
            Ok(()) => {
                self.described = Some(id);
                let of = |hit: &PlaceHit| Hit {
                    id: hit.id,
                    score: hit.score,
                };
                hits.extend(self.hits.iter().map(of));
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
    fn accept_keyframe(&mut self, id: u32, ticket: &Ticket) -> Result<(), DeviceError> {
        let key = self.exchange.accept(ticket)?;
        if let Some(old) = self.keys.insert(id, key) {
            remove(&self.keyframes, old);
        }
        self.prepare()
    }

    fn accept_pointmap(&mut self, id: u32, ticket: &Ticket) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        let thing = self.exchange.get(ticket)?;
        let parcel = thing
            .parcel
            .ok_or(unknown("pointmap under ticket", ticket.number()))?;
        let parcel = self.exchange.parcel(parcel)?;
        let lease = self.keyframes.write(Lane::Mapping, key)?;
        let slot = self.keyframes.device().slot(lease.slot())?;
        let stream = &self.stream;
        parcel.before_reading(stream)?;
        match self.pair.rays.as_deref() {
            Some(rays) => {
                let points = parcel.points.all();
                self.pair
                    .fusion
                    .constrain(stream, points, rays, slot.points)?;
            }
            None => stream.copy(parcel.points.all(), slot.points)?,
        }
        match slot.confidence {
            Floats::F32(v) => stream.copy(parcel.confidence.all(), v)?,
            Floats::F16(v) => stream.copy(parcel.half_confidence.all(), v)?,
        }
        Ok(parcel.after_reading(stream)?)
    }

    fn drop_keyframe(&mut self, id: u32) {
        if let Some(key) = self.keys.remove(&id) {
            remove(&self.keyframes, key);
        }
    }

    fn knows_places(&self) -> bool {
        self.places.is_some()
    }

    fn look_up(&mut self, id: u32, hits: &mut Vec<Hit>) -> Result<(), DeviceError> {
        hits.clear();
        self.described = None;
        self.describe(id, hits)
    }

    fn remember(&mut self, id: u32) -> Result<(), DeviceError> {
        let Some(places) = &mut self.places else {
            return Ok(());
        };
        if self.described != Some(id) {
            return Ok(());
        }
        match places.insert(&self.stream, id) {
            Ok(()) => Ok(()),
            Err(PlaceError::Cuda(error)) => Err(error.into()),
            Err(error) => {
                tracing::warn!("keyframe {id} will not be recognised: {error}");
                Ok(())
            }
        }
    }

    fn heed(&mut self, stop: &Stop) {
        self.graph.heed(stop);
    }

    fn make_edges(
        &mut self,
        pairs: &[(u32, u32)],
        made: &mut Vec<NewEdge>,
    ) -> Result<(), DeviceError> {
        let first = made.len();
        let mut left = pairs;
        while !(left.is_empty() || self.graph.stop.is_asked()) {
            let count = at_once(left.len(), self.network.most_edges().max(1));
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
        // SAFETY: waited for before anybody looks.
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

    fn drop_edge(&mut self, edge: EdgeId) {
        self.ends.remove(&edge);
        if let Err(error) = self.edges.remove(edge.0) {
            tracing::error!("an edge's slot stays taken: {error}");
        }
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

    fn lend_keyframe(&mut self, id: u32) -> Result<Ticket, DeviceError> {
        let key = self.key(id)?;
        let (number, parcel) = self.exchange.take_parcel()?;
        let put = || -> Result<(), DeviceError> {
            let lease = self.keyframes.read(Lane::Mapping, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            let stream = &self.stream;
            parcel.before_writing(stream)?;
            stream.copy(slot.points, parcel.points.all())?;
            match slot.confidence {
                Floats::F32(v) => stream.copy(v, parcel.confidence.all())?,
                Floats::F16(v) => self
                    .pair
                    .convert
                    .widen(stream, v, parcel.confidence.all())?,
            }
            Ok(parcel.after_writing(stream)?)
        };
        if let Err(error) = put() {
            self.exchange.give_back(number);
            return Err(error);
        }
        let thing = Thing {
            key: Some(key),
            parcel: Some(number),
        };
        Ok(self.exchange.put(thing, Owner::Mapping))
    }

    fn content_formats(&self) -> ContentFormats {
        let layout = &self.keyframes.device().plan().layout;
        ContentFormats {
            confidence: layout.confidence_format,
            features: layout.feature_format,
        }
    }

    fn export_keyframe(&self, id: u32, dst: &mut KeyframeContent) -> Result<(), DeviceError> {
        content::export_keyframe(self, id, dst)
    }

    fn import_keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), DeviceError> {
        content::import_keyframe(self, id, content)
    }

    fn export_edge(&self, edge: EdgeId, dst: &mut EdgeContent) -> Result<(), DeviceError> {
        content::export_edge(self, edge, dst)
    }

    fn import_edge(
        &mut self,
        i: u32,
        j: u32,
        content: &EdgeContent,
    ) -> Result<EdgeId, DeviceError> {
        content::import_edge(self, i, j, content)
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
            // The next thing that is asked of the device fails as well, and tells.
            tracing::error!("places were not forgotten: {}", failed(error));
        }
    }
}

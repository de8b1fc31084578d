//! Makes edges: decodes pairs of keyframes, and matches their pixels both ways.

use super::{Ends, Mapping};
use crate::compute::cuda::device::edges::EdgeView;
use crate::compute::cuda::device::network::Decoding;
use crate::compute::cuda::device::pair::WAYS;
use crate::compute::cuda::global::DeviceMatches;
use crate::compute::cuda::matching::{MatchTask, Start};
use crate::compute::device::{DeviceError, EdgeId, MappingDevice, NewEdge};
use crate::compute::store::Lane;
use crate::gpu::Floats;
use std::sync::Arc;

impl Mapping {
    /// Copies keyframe `id`'s tokens to the network's input for image `which`.
    fn load_tokens(&mut self, id: u32, which: usize) -> Result<(), DeviceError> {
        let key = self.key(id)?;
        {
            let lease = self.keyframes.read(Lane::Mapping, key)?;
            let slot = self.keyframes.device().slot(lease.slot())?;
            let tokens = self.network.features(which);
            let convert = &self.pair.convert;
            convert.copy(&self.stream, slot.features, tokens)?;
        }
        self.network.fetch(&self.stream, which)
    }

    /// Enqueues matching the second view's pixels to the first, as decoded in direction `way` of all, whose counts
    /// are written too. `ids` are the keyframes of both views.
    fn match_pair(
        &mut self,
        way: usize,
        ids: [u32; 2],
        to: DeviceMatches<'_>,
    ) -> Result<(), DeviceError> {
        let (first, second) = (self.network.view_of(way, 0), self.network.view_of(way, 1));
        let (stream, pair, config) = (&self.stream, &self.pair, &self.config);
        self.network.sanitise(stream, way, 2)?;
        if let Some(masker) = &pair.masker {
            for (view, id) in [first, second].into_iter().zip(ids) {
                let lease = self.keyframes.read(Lane::Mapping, self.key(id)?)?;
                let slot = self.keyframes.device().slot(lease.slot())?;
                masker.hide_as_in(stream, view, slot.confidence)?;
            }
        }
        let task = MatchTask {
            target: first,
            query: second,
            start: Start::Identity,
            q_conf: config.local_opt.q_conf,
            gates: None,
            index: to.index,
            valid: self.valid.all(),
            quality: Floats::F16(to.quality),
            counts: pair.counts.slice(way..way + 1)?,
        };
        Ok(pair.matcher.enqueue(stream, &config.matching, &task)?)
    }

    /// Makes the edges of `pairs`, which are decoded together. After an error, `made` has those whose room must be
    /// freed.
    pub(super) fn make_together(
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
        let first = made.len();
        for (place, &(i, j)) in pairs.iter().enumerate() {
            let id = self.match_edge(place, Ends { i, j })?;
            let match_fraction = 0.0;
            made.push(NewEdge { id, match_fraction });
        }
        let counts = self.pair.counts.slice(0..WAYS * pairs.len())?;
        let host_counts = &mut self.host_counts[..WAYS * pairs.len()];
        // SAFETY: the stream is waited for before the counts are read.
        unsafe { self.stream.download(counts, host_counts)? };
        self.stream.synchronize()?;
        let pixels = self.network.shape().pixels() as f32;
        for (edge, counts) in made[first..].iter_mut().zip(host_counts.chunks(WAYS)) {
            let good = counts.iter().map(|c| c.good).min().unwrap_or(0);
            edge.match_fraction = good as f32 / pixels;
        }
        Ok(())
    }

    /// Enqueues making an edge from the outputs of pair `place`.
    fn match_edge(&mut self, place: usize, ends: Ends) -> Result<EdgeId, DeviceError> {
        let id = self.next_edge;
        self.next_edge = id.wrapping_add(1);
        let edges = Arc::clone(&self.edges);
        let filled = {
            let lease = edges.insert(Lane::Mapping, id)?;
            let slot = edges.device().slot(lease.slot())?;
            self.fill(place, &ends, slot)
        };
        let id = EdgeId(id);
        match filled {
            Ok(()) => {
                self.ends.insert(id, ends);
                Ok(id)
            }
            Err(error) => {
                self.drop_edge(id);
                Err(error)
            }
        }
    }

    /// Enqueues filling a new edge's slot from the outputs of pair `place`.
    fn fill(&mut self, place: usize, ends: &Ends, to: EdgeView<'_>) -> Result<(), DeviceError> {
        let &Ends { i, j } = ends;
        self.match_pair(WAYS * place, [i, j], to.i_from_j)?;
        self.match_pair(WAYS * place + 1, [j, i], to.j_from_i)
    }
}

//! Makes edges: decodes pairs of keyframes, and matches their pixels both ways.

use super::{Ends, Mapping};
use crate::compute::cuda::device::edges::EdgeView;
use crate::compute::cuda::device::network::Decoding;
use crate::compute::cuda::global::DeviceMatches;
use crate::compute::cuda::matching::{MatchTask, Start};
use crate::compute::cuda::slots::Floats;
use crate::compute::device::{DeviceError, EdgeId, MappingDevice, NewEdge};
use crate::compute::store::Lane;
use std::sync::Arc;

impl Mapping {
    /// Copies keyframe `id`'s tokens to the network's input for image `which`.
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

    /// Matches the second view's pixels to the first, as decoded in direction `way` of all; it is
    /// direction `of_edge` of its edge, whose counts are written too. `ids` are the keyframes of both views.
    fn match_pair(
        &mut self,
        [way, of_edge]: [usize; 2],
        ids: [u32; 2],
        to: DeviceMatches<'_>,
    ) -> Result<(), DeviceError> {
        let (first, second) = (self.network.view_of(way, 0), self.network.view_of(way, 1));
        let (stream, pair, config) = (&self.stream, &self.pair, &self.config);
        let unusable = pair.unusable.all();
        pair.sanitiser
            .enqueue(stream, first, Some(second), unusable)?;
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
            counts: pair.counts.slice(of_edge..of_edge + 1)?,
        };
        Ok(pair.matcher.enqueue(stream, &config.matching, &task)?)
    }

    /// Makes the edges of `pairs`, which are decoded together.
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
        for (place, &(i, j)) in pairs.iter().enumerate() {
            made.push(self.match_edge(place, Ends { i, j })?);
        }
        Ok(())
    }

    /// Makes an edge from the outputs of pair `place`.
    fn match_edge(&mut self, place: usize, ends: Ends) -> Result<NewEdge, DeviceError> {
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

    /// Fills a new edge's slot from the outputs of pair `place`; returns the smaller fraction of
    /// good matches.
    fn fill(&mut self, place: usize, ends: &Ends, to: EdgeView<'_>) -> Result<f32, DeviceError> {
        let &Ends { i, j } = ends;
        self.match_pair([2 * place, 0], [i, j], to.i_from_j)?;
        self.match_pair([2 * place + 1, 1], [j, i], to.j_from_i)?;
        // SAFETY: the stream is waited for before the counts are read.
        unsafe {
            self.stream
                .download(self.pair.counts.all(), &mut self.host_counts)?;
        }
        self.stream.synchronize()?;
        let good = self.host_counts.iter().map(|c| c.good).min().unwrap_or(0);
        Ok(good as f32 / self.network.shape().pixels() as f32)
    }
}

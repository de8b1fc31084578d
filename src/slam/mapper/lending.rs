//! Requests of the tracking side: a lost frame's place, and keyframes of the map to track against.

use super::Mapper;
use crate::compute::device::DeviceError;
use crate::geometry::Sim3;
use crate::map::EdgeKind;
use crate::slam::edges;
use crate::slam::loop_closure::Entry;
use crate::slam::metric::motion::{CameraMotion, Extent, visual_motion};
use crate::slam::metric::slip;
use crate::slam::pose_table::Anchor;
use crate::slam::relocaliser::{Found, RelocaliseRequest, Reply};
use crate::slam::reuse::ProbeRequest;

impl Mapper {
    /// Relocalises a lost frame; if the map grows, the frame becomes a keyframe.
    pub(super) fn relocalise(&mut self, request: RelocaliseRequest) -> Result<Reply, DeviceError> {
        let (info, grows) = (request.info, request.grows);
        self.device.accept_keyframe(info.id, &request.handle)?;
        let near = request.hint.as_ref();
        let near = near.map(|hint| self.relocaliser.hinted(&self.graph, hint));
        let hinted = match near {
            Some(near) => self
                .relocaliser
                .locate_in_any(self.device.as_mut(), info.id, &near)?,
            None => None,
        };
        let recognises = self.device.has_place_recognition();
        if recognises {
            self.query_places(info.id, self.places)?;
        }
        let hits = recognises.then_some(self.hits.as_slice());
        let candidates = self.relocaliser.candidates(&self.graph, hits);
        let device = self.device.as_mut();
        let located = match hinted {
            Some(located) => Some(located),
            None => self.relocaliser.locate(device, info.id, &candidates)?,
        };
        let Some(located) = located else {
            device.drop_keyframe(info.id);
            return Ok(Reply { found: None });
        };
        self.counts.relocalised += 1;
        let anchor = located.anchor;
        let found = if grows {
            self.match_edges()?;
            let submap = self.graph.submap_of(anchor.keyframe).unwrap_or(0);
            let pose = self.graph.pose_of(anchor.keyframe) * anchor.keyframe_from_camera;
            self.device.insert_place(info.id)?;
            self.graph.insert(info, pose, submap, None);
            self.graph
                .add_motion(info.id, self.fitting(request.motion, &pose));
            for edge in located.edges {
                self.counts.count(edge.kind);
                self.redundancy.note_edge(&self.graph, &edge);
                self.graph.connect(edge);
            }
            self.solve()?;
            Found::Keyframe(info.id, request.handle)
        } else {
            for edge in located.edges {
                device.drop_edge(edge.id);
            }
            device.drop_keyframe(info.id);
            return self.lend(anchor);
        };
        Ok(Reply { found: Some(found) })
    }

    /// The motion to a lost frame that was found at `pose`, if it fits.
    fn fitting(
        &self,
        motion: Option<(u32, CameraMotion)>,
        pose: &Sim3,
    ) -> Option<(u32, CameraMotion)> {
        motion.filter(|(from, motion)| {
            let visual = visual_motion(&self.graph.pose_of(*from), pose);
            let fits = slip::fits_roughly(motion, &visual);
            if !fits {
                tracing::warn!(
                    "the camera was found {} from where it was lost, wheel odometry says {}: not used",
                    Extent(&visual),
                    Extent(&motion.i_from_j)
                );
            }
            fits
        })
    }

    /// Lends a keyframe that shows what a tracked frame shows, if there is one.
    pub(super) fn probe(&mut self, request: &ProbeRequest) -> Result<Reply, DeviceError> {
        let id = request.info.id;
        let Some(from) = self.graph.resolve(request.from) else {
            return Ok(Reply { found: None });
        };
        self.device.accept_keyframe(id, &request.handle)?;
        let found = self.locate(request, &from);
        self.device.drop_keyframe(id);
        match found? {
            Some(place) => {
                self.counts.reused_keyframes += 1;
                self.join(from.keyframe, place.keyframe)?;
                self.lend(place)
            }
            None => Ok(Reply { found: None }),
        }
    }

    /// Makes an edge between keyframes that one frame shows, unless they are joined already or have many edges.
    fn join(&mut self, i: u32, j: u32) -> Result<(), DeviceError> {
        if !self.reuse.should_join(&self.graph, i, j) {
            return Ok(());
        }
        let device = self.device.as_mut();
        let Some(mut edge) = edges::make(device, &[(j, i, EdgeKind::Loop)])?.pop() else {
            return Ok(());
        };
        let entry = self
            .loop_closure
            .admit(device, &mut self.graph, &mut edge)?;
        if let Err(refusal) = &entry {
            self.counts.refuse(*refusal);
        }
        if !matches!(entry, Ok(Entry::Enters)) {
            device.drop_edge(edge.id);
            return Ok(());
        }
        self.counts.count(edge.kind);
        self.graph.connect(edge);
        self.redundancy.wait_for(i);
        self.redundancy.wait_for(j);
        self.solve()
    }

    /// The place of the frame of `request`, which tracking found at `from`, relative to another keyframe.
    fn locate(
        &mut self,
        request: &ProbeRequest,
        from: &Anchor,
    ) -> Result<Option<Anchor>, DeviceError> {
        self.hits.clear();
        if self.device.has_place_recognition() {
            self.query_places(request.info.id, self.places)?;
        }
        let (device, graph) = (self.device.as_mut(), &self.graph);
        let frame = (request.info.id, request.left);
        let candidates = match self.reuse.candidates(graph, from, frame, &self.hits) {
            Ok(candidates) => candidates,
            Err(reason) => {
                self.counts.not_reused(reason);
                return Ok(None);
            }
        };
        for candidate in candidates {
            match self.reuse.locate(device, graph, request, from, candidate)? {
                Ok(place) => return Ok(Some(place)),
                Err(reason) => self.counts.not_reused(reason),
            }
        }
        Ok(None)
    }

    /// Lends the keyframe of `anchor`, or the one that replaced it.
    pub(super) fn lend(&mut self, anchor: Anchor) -> Result<Reply, DeviceError> {
        let Some(anchor) = self.graph.resolve(anchor) else {
            return Ok(Reply { found: None });
        };
        let handle = self.device.borrow_keyframe(anchor.keyframe)?;
        let loan = self.loans.lend(anchor.keyframe);
        let found = Some(Found::At(anchor, handle, loan));
        Ok(Reply { found })
    }
}

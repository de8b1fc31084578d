//! Edges of a packed map, whose matches the file does not have. They are made before the map first changes or is
//! saved: a camera that is only located in the map needs none, and does not wait for them.

use super::graph::Graph;
use crate::compute::device::{DeviceError, EdgeId, MappingDevice};
use std::time::{Duration, Instant};

/// Edges made in one call of the device: enough for any batch, few enough to report between calls.
const TOGETHER: usize = 8;

/// Time between reports of long work in the log.
const REPORT: Duration = Duration::from_secs(5);

/// The edges that have no matches yet.
#[derive(Debug, Default)]
pub struct Unmatched {
    edges: Vec<EdgeId>,
}

impl Unmatched {
    /// Edges that the device holds without matches.
    pub fn new(edges: Vec<EdgeId>) -> Self {
        Self { edges }
    }

    /// Whether every edge has its matches.
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// Has the device match each edge's keyframes again. The edge stays in the graph as it was accepted, whatever
    /// matches are found. On cancellation some are left.
    pub fn match_all(
        &mut self,
        device: &mut dyn MappingDevice,
        graph: &mut Graph,
    ) -> Result<(), DeviceError> {
        if self.is_empty() {
            return Ok(());
        }
        let mut progress = Progress::new("edges of the packed map are matched", self.edges.len());
        let (mut pairs, mut made) = (Vec::new(), Vec::new());
        while !self.edges.is_empty() {
            let now = self.edges.len().saturating_sub(TOGETHER)..;
            let together = &self.edges[now.clone()];
            let ends = |id: &EdgeId| graph.edges().iter().find(|e| e.id == *id);
            pairs.clear();
            pairs.extend(together.iter().filter_map(ends).map(|e| (e.i, e.j)));
            made.clear();
            device.make_edges(&pairs, &mut made)?;
            if made.len() < together.len() {
                for edge in &made {
                    device.drop_edge(edge.id);
                }
                return Ok(());
            }
            for (old, new) in self.edges.drain(now).zip(&made) {
                graph.exchange_edge(old, new.id);
                device.drop_edge(old);
            }
            progress.advance(made.len());
        }
        Ok(())
    }
}

/// Reports long work in the log.
pub struct Progress {
    what: &'static str,
    done: usize,
    total: usize,
    told: Instant,
}

impl Progress {
    /// Work on `total` things: `what` is done with them.
    pub fn new(what: &'static str, total: usize) -> Self {
        Self {
            what,
            done: 0,
            total,
            told: Instant::now(),
        }
    }

    /// `count` more are done.
    pub fn advance(&mut self, count: usize) {
        self.done += count;
        if self.told.elapsed() >= REPORT || self.done == self.total {
            tracing::info!("{} of {} {}", self.done, self.total, self.what);
            self.told = Instant::now();
        }
    }
}

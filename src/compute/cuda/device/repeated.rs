//! Work that is the same every time.

use crate::compute::cuda::{CudaError, Graph, Stream};

/// Runs before the work is captured.
const WARM_UP: u32 = 2;

/// Work that is enqueued launch by launch at first, then captured, and launched as one graph from there on.
#[derive(Default)]
pub(super) struct Repeated {
    what: &'static str,
    runs: u32,
    graph: Option<Graph>,
}

impl Repeated {
    /// `what` it is, for the log.
    pub(super) fn new(what: &'static str) -> Self {
        Self {
            what,
            ..Self::default()
        }
    }

    /// Puts on `stream` what `enqueue` puts there, which is the same each time.
    ///
    /// # Safety
    /// What is promised where `enqueue` puts each part on the stream holds whenever this is called, also
    /// when `enqueue` is not.
    pub(super) unsafe fn enqueue(
        &mut self,
        stream: &Stream,
        enqueue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        if let Some(graph) = &self.graph {
            // SAFETY: the caller's promise.
            return unsafe { graph.launch(stream) };
        }
        if self.runs < WARM_UP {
            self.runs += 1;
            return enqueue();
        }
        let graph = stream.capture(enqueue)?;
        graph.upload(stream)?;
        tracing::debug!("{} is a graph of {} nodes", self.what, graph.nodes());
        let graph = self.graph.insert(graph);
        // SAFETY: the caller's promise.
        unsafe { graph.launch(stream) }
    }
}

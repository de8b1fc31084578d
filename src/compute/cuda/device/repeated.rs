//! Work that is identical each time.

use crate::gpu::{CudaError, Graph, Stream};

/// Number of runs before the work is captured.
const WARM_UP: u32 = 2;

/// Work that is first enqueued launch by launch, then captured and launched as one graph.
#[derive(Default)]
pub(super) struct Repeated {
    what: &'static str,
    runs: u32,
    graph: Option<Graph>,
}

impl Repeated {
    /// `what` describes the work in the log.
    pub(super) fn new(what: &'static str) -> Self {
        Self {
            what,
            ..Self::default()
        }
    }

    /// Enqueues on `stream` the work of `enqueue`, which must be the same each time.
    ///
    /// # Safety
    /// The guarantees required by the parts of `enqueue` must hold on every call, even if `enqueue`
    /// itself is not called.
    pub(super) unsafe fn enqueue(
        &mut self,
        stream: &Stream,
        enqueue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        if let Some(graph) = &self.graph {
            // SAFETY: guaranteed by the caller.
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
        // SAFETY: guaranteed by the caller.
        unsafe { graph.launch(stream) }
    }
}

//! One engine's execution, in place on the caller's buffers and stream.

use super::error::TensorRtError;
use super::loaded::driver;
use super::log;
use super::manifest::{EngineFile, Part};
use crate::inference::DeviceSpan;
use cudarc::driver::sys::{
    self, CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use cudarc::driver::{CudaContext, DriverError, result};
use std::ffi::c_void;
use std::sync::Arc;
use trtx::ExecutionContext;

/// Names of inputs, then outputs, with their numbers of values.
pub(super) type Tensors = std::vec::IntoIter<(&'static str, usize)>;

/// Sets of buffers for which a graph is kept. Callers have a few; more are run as they come.
const GRAPHS: usize = 16;

/// An execution context and what was captured of it.
pub(super) struct Execution {
    graphs: Vec<Prepared>,
    context: ExecutionContext<'static>,
    names: Vec<&'static str>,
    /// Addresses that the context has, in the order of `names`.
    bound: Vec<u64>,
    cuda: Arc<CudaContext>,
    /// Bytes of workspace as the builder planned them.
    planned: u64,
    running: &'static str,
}

// SAFETY: an execution context may be used from any thread, by one at a time, and this is not `Sync`. The
// reference-counted configuration within it has no other owner: it was made for this context.
unsafe impl Send for Execution {}

/// What was done on one set of buffers.
struct Prepared {
    addresses: Vec<u64>,
    state: State,
}

enum State {
    /// It has run once: kernels were compiled, during which nothing may be captured.
    Ran,
    Captured(Graph),
    /// It cannot be captured.
    Plain,
}

impl Execution {
    pub(super) fn new(
        context: ExecutionContext<'static>,
        names: Vec<&'static str>,
        cuda: Arc<CudaContext>,
        file: &EngineFile,
    ) -> Self {
        Self {
            graphs: Vec::with_capacity(GRAPHS),
            context,
            bound: vec![0; names.len()],
            names,
            cuda,
            planned: file.activation_bytes,
            running: match file.part {
                Part::Encoder => "encoding",
                _ => "decoding",
            },
        }
    }

    /// Device memory that a run needs besides inputs, outputs and weights.
    pub(super) fn workspace_bytes(&mut self) -> usize {
        // Sizes are fixed, so there is nothing to set first. 0 is also what it says when it fails.
        match self.context.update_device_memory_size_for_shapes() {
            0 => usize::try_from(self.planned).unwrap_or(usize::MAX),
            bytes => bytes,
        }
    }

    /// From now on runs use this memory.
    ///
    /// # Safety
    /// It is device memory of that size that stays allocated as long as this runs, and nobody else uses it
    /// while a run is on its way.
    pub(super) unsafe fn use_workspace(&mut self, span: DeviceSpan) -> Result<(), TensorRtError> {
        // Graphs have the old memory in them; a launch may still be on its way.
        if !self.graphs.is_empty() {
            self.cuda
                .synchronize()
                .map_err(driver("waiting for the GPU"))?;
            self.graphs.clear();
        }
        let bytes = i64::try_from(span.bytes).unwrap_or(i64::MAX);
        // SAFETY: the caller's promise.
        unsafe {
            self.context
                .set_device_memory_v2(span.address as *mut c_void, bytes);
        }
        Ok(())
    }

    /// Enqueues a run on `spans`, in the order of the names: as it comes the first time, then captured, then
    /// as a graph. On a stream that is being captured it becomes part of that graph.
    ///
    /// # Safety
    /// The stream is alive and of this GPU's primary context. `spans` are device memory as large as the
    /// engine's inputs and outputs, which nobody else uses until the run is over; the workspace was given.
    pub(super) unsafe fn enqueue(
        &mut self,
        stream: *mut c_void,
        spans: &[DeviceSpan],
    ) -> Result<(), TensorRtError> {
        let running = self.running;
        let fail = move || driver(running);
        let stream: CUstream = stream.cast();
        self.cuda.bind_to_thread().map_err(fail())?;
        let known = (self.graphs.iter()).position(|p| same(&p.addresses, spans));
        // SAFETY: the stream is alive.
        let capturing = unsafe { result::stream::is_capturing(stream) }.map_err(fail())?
            != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let prepared = known.and_then(|at| self.graphs.get(at));
        if !capturing
            && let Some(Prepared {
                state: State::Captured(graph),
                ..
            }) = prepared
        {
            // SAFETY: graph and stream are alive; what the graph touches is the caller's promise.
            return unsafe { result::graph::launch(graph.0, stream) }.map_err(fail());
        }
        let capture =
            !capturing && prepared.is_some_and(|prepared| matches!(prepared.state, State::Ran));
        self.bind(spans)?;
        if capture {
            // SAFETY: the caller's promise.
            let state = match unsafe { self.capture(stream) } {
                Ok(graph) => State::Captured(graph),
                Err(error) => {
                    tracing::info!(
                        "{running} is not captured as a graph, which costs time: {error}"
                    );
                    State::Plain
                }
            };
            let launched = match &state {
                // SAFETY: as above.
                State::Captured(graph) => {
                    Some(unsafe { result::graph::launch(graph.0, stream) }.map_err(fail()))
                }
                State::Ran | State::Plain => None,
            };
            if let Some(prepared) = known.and_then(|at| self.graphs.get_mut(at)) {
                prepared.state = state;
            }
            if let Some(launched) = launched {
                return launched;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.run(stream) }?;
        if !capturing && known.is_none() && self.graphs.len() < GRAPHS {
            self.graphs.push(Prepared {
                addresses: spans.iter().map(|span| span.address).collect(),
                state: State::Ran,
            });
        }
        Ok(())
    }

    /// Tells the context the addresses that it does not have yet.
    fn bind(&mut self, spans: &[DeviceSpan]) -> Result<(), TensorRtError> {
        if spans.len() != self.names.len() {
            return Err(TensorRtError::Failed {
                doing: self.running.into(),
                message: format!("{} buffers for {} tensors", spans.len(), self.names.len()),
            });
        }
        for ((name, bound), span) in self.names.iter().zip(&mut self.bound).zip(spans) {
            if *bound == span.address {
                continue;
            }
            let context = &mut self.context;
            log::during(self.running, || {
                // SAFETY: it is only noted here; whoever runs the context vouches for the memory.
                unsafe { context.set_tensor_address(name, span.address as *mut c_void) }
            })?;
            *bound = span.address;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Execution::enqueue`].
    unsafe fn run(&mut self, stream: CUstream) -> Result<(), TensorRtError> {
        log::during(self.running, || {
            // SAFETY: the caller's promise.
            unsafe { self.context.enqueue_v3(stream.cast()) }
        })
    }

    /// # Safety
    /// As for [`Execution::enqueue`].
    unsafe fn capture(&mut self, stream: CUstream) -> Result<Graph, TensorRtError> {
        let running = self.running;
        let fail = move || driver(running);
        // Other threads go on doing what they like.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not being captured.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(fail())?;
        // SAFETY: the caller's promise.
        let ran = unsafe { self.run(stream) };
        // SAFETY: the capture was begun above.
        let captured = unsafe { result::stream::end_capture(stream) };
        // What went wrong first says more than the capture that it broke.
        ran?;
        Graph::instantiate(captured.map_err(driver(self.running))?).map_err(driver(self.running))
    }
}

fn same(addresses: &[u64], spans: &[DeviceSpan]) -> bool {
    addresses.len() == spans.len()
        && addresses
            .iter()
            .zip(spans)
            .all(|(address, span)| *address == span.address)
}

/// A captured run.
struct Graph(sys::CUgraphExec);

impl Graph {
    fn instantiate(graph: sys::CUgraph) -> Result<Self, DriverError> {
        // Each node keeps the priority of the stream that it was captured on.
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        // SAFETY: the graph was just captured, is used by this thread alone, and destroyed once.
        unsafe {
            let executable = result::graph::instantiate(graph, flags);
            let destroyed = result::graph::destroy(graph);
            let executable = Self(executable?);
            destroyed?;
            Ok(executable)
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Nobody is left to be told of a failure, and the graph goes with the context.
        // SAFETY: the handle is alive and destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_for_the_same_buffers_only() {
        let spans = [1, 2].map(|address| DeviceSpan { address, bytes: 4 });
        assert!(same(&[1, 2], &spans));
        assert!(!same(&[2, 1], &spans) && !same(&[1], &spans) && !same(&[1, 2, 3], &spans));
    }
}

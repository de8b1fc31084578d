//! Executes one engine in place, on the caller's buffers and stream.

use super::error::TensorRtError;
use super::log;
use super::manifest::{EngineFile, Part};
use crate::gpu::{Context, DeviceBuffer, DeviceSlice, Graph, Stream};
use std::ffi::c_void;
use std::sync::Arc;
use trtx::ExecutionContext;

/// Names and numbers of values of the inputs, then of the outputs.
pub(super) type Tensors = std::vec::IntoIter<(&'static str, usize)>;

/// Maximum number of buffer sets with a graph. Callers use few; further ones run without a graph.
const GRAPHS: usize = 16;

/// An execution context and the graphs captured from it.
pub(super) struct Execution {
    graphs: Vec<Prepared>,
    context: ExecutionContext<'static>,
    /// Names and numbers of values of the inputs, then of the outputs.
    tensors: Vec<(&'static str, usize)>,
    /// Addresses known to the context, in the order of `tensors`.
    bound: Vec<u64>,
    /// Its address is set in the context.
    workspace: Option<Arc<DeviceBuffer<u8>>>,
    gpu: Context,
    /// Workspace planned by the builder, in bytes.
    planned: u64,
    running: &'static str,
}

// SAFETY: an execution context may be used from any thread, one at a time; the type is not `Sync`.
// The reference-counted configuration inside it has no other owner: it was made for this context.
unsafe impl Send for Execution {}

/// The state for one set of buffers.
struct Prepared {
    addresses: Vec<u64>,
    state: State,
}

enum State {
    /// It has run once: kernels were compiled, which must not happen during capture.
    Ran,
    Captured(Graph),
    /// It cannot be captured.
    Plain,
}

impl Execution {
    pub(super) fn new(
        context: ExecutionContext<'static>,
        tensors: Tensors,
        gpu: Context,
        file: &EngineFile,
    ) -> Self {
        let tensors: Vec<_> = tensors.collect();
        Self {
            graphs: Vec::with_capacity(GRAPHS),
            context,
            bound: vec![0; tensors.len()],
            tensors,
            workspace: None,
            gpu,
            planned: file.activation_bytes,
            running: match file.part {
                Part::Encoder => "encoding",
                _ => "decoding",
            },
        }
    }

    /// Device memory that a run needs in addition to inputs, outputs and weights, in bytes.
    pub(super) fn workspace_bytes(&mut self) -> usize {
        // Sizes are fixed, so nothing has to be set first. The function also returns 0 on failure.
        match self.context.update_device_memory_size_for_shapes() {
            0 => usize::try_from(self.planned).unwrap_or(usize::MAX),
            bytes => bytes,
        }
    }

    /// Sets the memory for subsequent runs. Runs of other handles must not use it simultaneously.
    ///
    /// # Errors
    /// The memory is smaller than [`Execution::workspace_bytes`].
    pub(super) fn use_workspace(
        &mut self,
        workspace: &Arc<DeviceBuffer<u8>>,
    ) -> Result<(), TensorRtError> {
        let needed = self.workspace_bytes();
        if workspace.len() < needed {
            return Err(short(needed, workspace.len()));
        }
        // Graphs refer to the old memory, and a launch may still be in progress.
        if !self.graphs.is_empty() {
            self.gpu.synchronize()?;
            self.graphs.clear();
        }
        let bytes = i64::try_from(workspace.len()).unwrap_or(i64::MAX);
        let address = workspace.all().address() as *mut c_void;
        // SAFETY: the buffer has this size and is kept alive by this object until other memory is
        // set. Runs of a handle are sequential on its stream.
        unsafe { self.context.set_device_memory_v2(address, bytes) };
        self.workspace = Some(Arc::clone(workspace));
        Ok(())
    }

    /// Enqueues a run on `slices`, in the order of the tensors: directly the first time, then
    /// captured and launched as a graph. On a stream that is being captured, the run becomes part
    /// of that graph.
    ///
    /// # Errors
    /// Slices of the wrong length, or a missing workspace.
    pub(super) fn enqueue(
        &mut self,
        stream: &Stream,
        slices: &[DeviceSlice<'_, f32>],
    ) -> Result<(), TensorRtError> {
        self.gpu.bind()?;
        self.check(slices)?;
        let known = (self.graphs.iter()).position(|p| same(&p.addresses, slices));
        let capturing = stream.is_capturing()?;
        let prepared = known.and_then(|at| self.graphs.get(at));
        if !capturing
            && let Some(Prepared {
                state: State::Captured(graph),
                ..
            }) = prepared
        {
            // SAFETY: the graph was captured for the addresses of `slices`, which are borrowed
            // here, and for the workspace kept here; device memory is freed only after all work is
            // done.
            return Ok(unsafe { graph.launch(stream) }?);
        }
        let capture =
            !capturing && prepared.is_some_and(|prepared| matches!(prepared.state, State::Ran));
        self.bind(slices)?;
        if capture {
            let captured = stream.capture(|| self.run(stream));
            let state = match captured {
                Ok(graph) => State::Captured(graph),
                Err(error) => {
                    tracing::info!(
                        "{} cannot be captured as a graph, so it is slower: {error}",
                        self.running
                    );
                    State::Plain
                }
            };
            let launched = match &state {
                // SAFETY: as above.
                State::Captured(graph) => Some(unsafe { graph.launch(stream) }),
                State::Ran | State::Plain => None,
            };
            if let Some(prepared) = known.and_then(|at| self.graphs.get_mut(at)) {
                prepared.state = state;
            }
            if let Some(launched) = launched {
                return Ok(launched?);
            }
        }
        self.run(stream)?;
        if !capturing && known.is_none() && self.graphs.len() < GRAPHS {
            self.graphs.push(Prepared {
                addresses: slices.iter().map(DeviceSlice::address).collect(),
                state: State::Ran,
            });
        }
        Ok(())
    }

    /// Checks the requirements of a run.
    fn check(&mut self, slices: &[DeviceSlice<'_, f32>]) -> Result<(), TensorRtError> {
        let failed = |message| TensorRtError::Failed {
            doing: self.running.into(),
            message,
        };
        if slices.len() != self.tensors.len() {
            return Err(failed(format!(
                "{} buffers for {} tensors",
                slices.len(),
                self.tensors.len()
            )));
        }
        for ((name, expected), slice) in self.tensors.iter().zip(slices) {
            if slice.len() != *expected {
                return Err(failed(format!(
                    "{name}: expected {expected} values, found {}",
                    slice.len()
                )));
            }
        }
        match &self.workspace {
            Some(_) => Ok(()),
            None => match self.workspace_bytes() {
                0 => Ok(()),
                needed => Err(short(needed, 0)),
            },
        }
    }

    /// Updates changed addresses in the context.
    fn bind(&mut self, slices: &[DeviceSlice<'_, f32>]) -> Result<(), TensorRtError> {
        for (((name, _), bound), slice) in self.tensors.iter().zip(&mut self.bound).zip(slices) {
            if *bound == slice.address() {
                continue;
            }
            let context = &mut self.context;
            log::during(self.running, || {
                // SAFETY: the address is only stored here; `run` is called while the slices are
                // borrowed.
                unsafe { context.set_tensor_address(name, slice.address() as *mut c_void) }
            })?;
            *bound = slice.address();
        }
        Ok(())
    }

    /// Enqueues a run on the bound buffers, which the caller borrows.
    fn run(&mut self, stream: &Stream) -> Result<(), TensorRtError> {
        log::during(self.running, || {
            // SAFETY: the stream is alive. Tensors have the engine's sizes and a workspace was
            // given (`check`); their device memory is freed only after all work is done.
            unsafe { self.context.enqueue_v3(stream.raw()) }
        })
    }
}

fn short(needed: usize, given: usize) -> TensorRtError {
    TensorRtError::Failed {
        doing: "starting a run".into(),
        message: format!("expected at least {needed} bytes of device memory, found {given}"),
    }
}

fn same(addresses: &[u64], slices: &[DeviceSlice<'_, f32>]) -> bool {
    let found = slices.iter().map(DeviceSlice::address);
    addresses.iter().copied().eq(found)
}

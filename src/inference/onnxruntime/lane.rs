//! A session's stream, and the graphs captured on it.
//!
//! The first runs with a set of buffers are ordinary ones, in which ONNX Runtime allocates memory
//! and searches for the fastest convolution algorithms. Then a run is captured, and from there on
//! the graph is launched on the caller's stream, without allocating or waiting. If a run cannot be
//! captured, ordinary runs continue.

use super::binding::{Binding, Tensor};
use super::error::failure;
use super::session::{self, Part};
use crate::gpu::{Context, Event, Graph, Priority, Stream};
use crate::inference::InferenceError;
use ort::session::{RunOptions, Session};
use std::ffi::c_void;

/// Number of ordinary runs with a set of buffers before one is captured: the first allocates memory
/// on demand, the second according to the first one's pattern.
const WARM_UP: u32 = 2;

/// Maximum number of buffer sets with a graph per session. Callers use few; the oldest graph is
/// replaced.
const GRAPHS: usize = 32;

/// A session's stream, and the graphs captured on it.
pub(super) struct Lane {
    // Dropped before the stream.
    graphs: Vec<Prepared>,
    asynchronous: RunOptions,
    before: Event,
    after: Event,
    stream: Stream,
}

/// The state of a session for one set of buffers.
struct Prepared {
    addresses: Vec<u64>,
    // Dropped before the binding, whose values the graph's nodes write.
    state: State,
    binding: Binding,
}

enum State {
    /// Number of ordinary runs so far.
    Warming(u32),
    Captured(Graph),
    /// A run cannot be captured.
    Ordinary,
}

impl Lane {
    pub(super) fn new(context: &Context, priority: Priority) -> Result<Self, InferenceError> {
        Ok(Self {
            graphs: Vec::new(),
            asynchronous: session::options(true)?,
            before: context.event(false)?,
            after: context.event(false)?,
            stream: context.stream(priority)?,
        })
    }

    /// The stream's handle for ONNX Runtime.
    pub(super) fn raw(&self) -> *mut c_void {
        self.stream.raw()
    }

    pub(super) fn priority(&self) -> Priority {
        self.stream.priority()
    }

    /// Drops the graphs, whose buffers are no longer used.
    pub(super) fn forget(&mut self) {
        if !self.graphs.is_empty() {
            // A launch may still be in progress on the caller's stream.
            if let Err(error) = self.stream.context().synchronize() {
                tracing::warn!("waiting for the network's last run: {error}");
            }
            self.graphs.clear();
        }
    }

    /// Enqueues a run of `session` with inputs and outputs `tensors` after the work on `caller`.
    pub(super) fn enqueue(
        &mut self,
        session: &mut Session,
        part: Part,
        caller: &Stream,
        tensors: &[Tensor<'_>],
    ) -> Result<(), InferenceError> {
        let doing = part.running();
        if caller.is_capturing()? {
            // The run's memory nodes prevent it from becoming a child of another graph, and an
            // executable graph cannot be launched during capture.
            return Err(failure(
                doing,
                "the stream is being captured, but a run of the network is itself a graph: enqueue it \
                 before or after the part that is captured",
            ));
        }
        let at = self.prepared(session, tensors, doing)?;
        let Some(prepared) = self.graphs.get_mut(at) else {
            return Err(failure(doing, "no binding"));
        };
        if matches!(prepared.state, State::Warming(runs) if runs >= WARM_UP) {
            let binding = &prepared.binding;
            let captured = self.stream.capture(|| {
                // SAFETY: the run is only recorded; the memory is valid for each launch below.
                let ran = unsafe { binding.run(session, &self.asynchronous) };
                ran.map_err(|error| failure(doing, error))
            });
            let uploaded = captured.and_then(|graph| {
                graph.upload(&self.stream)?;
                Ok(graph)
            });
            prepared.state = match uploaded {
                Ok(graph) => State::Captured(graph),
                Err(error) => {
                    tracing::info!(
                        "{doing} cannot be captured as a graph, so it is slower: {error}"
                    );
                    State::Ordinary
                }
            };
        }
        if let State::Captured(graph) = &prepared.state {
            // SAFETY: the graph was captured for the addresses of `tensors`, which are borrowed
            // here; their memory is freed only after all work is done.
            return Ok(unsafe { graph.launch(caller) }?);
        }
        caller.record(&self.before)?;
        self.stream.wait(&self.before)?;
        // SAFETY: the binding is for the addresses of `tensors`, as above.
        let ran = unsafe { prepared.binding.run(session, &self.asynchronous) };
        self.stream.record(&self.after)?;
        caller.wait(&self.after)?;
        ran.map_err(|error| failure(doing, error))?;
        if let State::Warming(runs) = &mut prepared.state {
            *runs += 1;
        }
        Ok(())
    }

    /// Index of what is prepared for these buffers.
    fn prepared(
        &mut self,
        session: &mut Session,
        tensors: &[Tensor<'_>],
        doing: &'static str,
    ) -> Result<usize, InferenceError> {
        let addresses = || tensors.iter().map(|tensor| tensor.slice.address());
        let known = |prepared: &Prepared| addresses().eq(prepared.addresses.iter().copied());
        if let Some(at) = self.graphs.iter().position(known) {
            return Ok(at);
        }
        let binding = Binding::new(session, tensors).map_err(|e| failure(doing, e))?;
        if self.graphs.len() >= GRAPHS {
            self.stream.context().synchronize()?;
            self.graphs.remove(0);
        }
        self.graphs.push(Prepared {
            addresses: addresses().collect(),
            state: State::Warming(0),
            binding,
        });
        Ok(self.graphs.len() - 1)
    }
}

//! Streams, events and graphs.

use super::error::During;
use super::{Context, CudaError, DeviceSlice, Element};
use cudarc::driver::sys::{self, CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaEvent, CudaStream, result};
use std::sync::Arc;

/// Whose work goes first when there is a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Tracking.
    High,
    /// Mapping.
    Low,
}

/// A queue of work, which runs in order.
pub struct Stream {
    stream: Arc<CudaStream>,
    context: Context,
}

impl Stream {
    pub(super) fn new(context: &Context, priority: Priority) -> Result<Self, CudaError> {
        context.bind()?;
        let (least, greatest) =
            result::stream::get_priority_range().during("asking the range of priorities")?;
        let stream = context
            .driver()
            .new_stream_with_priority(match priority {
                Priority::High => greatest,
                Priority::Low => least,
            })
            .during("making a stream")?;
        Ok(Self {
            stream,
            context: context.clone(),
        })
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// Waits until all work so far is done. Errors of kernels arrive here.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.stream.synchronize().during("waiting for a stream")
    }

    /// Notes in `event` the work so far.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        event.0.record(&self.stream).during("recording an event")
    }

    /// As [`Stream::record`], but recorded by a graph as well, each time it runs: for timing what a graph
    /// consists of.
    pub fn mark(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive, and the call writes one status.
        unsafe { sys::cuStreamIsCapturing(self.handle(), &mut status) }
            .result()
            .during("asking whether a stream captures")?;
        let capturing = status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let external = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        let flags = if capturing { external } else { 0 };
        // SAFETY: event and stream are alive and of one context.
        unsafe { sys::cuEventRecordWithFlags(event.0.cu_event(), self.handle(), flags) }
            .result()
            .during("recording an event")
    }

    /// The driver's handle, for libraries that enqueue work of their own.
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.handle().cast()
    }

    /// Later work of this stream waits for what `event` noted.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.stream.wait(&event.0).during("waiting for an event")
    }

    /// Enqueues a copy from the host.
    ///
    /// # Safety
    /// Until the copy has run, `src` stays allocated and unchanged. For a copy that is captured in a
    /// graph this holds of every launch, and `src` is pinned.
    pub unsafe fn upload<T: Element>(
        &self,
        src: &[T],
        dst: DeviceSlice<'_, T>,
    ) -> Result<(), CudaError> {
        same_length("copy to the device", src.len(), dst.len())?;
        self.context.bind()?;
        // SAFETY: `dst` is as long as `src`, the stream is alive, `src` is the caller's promise.
        unsafe { result::memcpy_htod_async(dst.address(), src, self.handle()) }
            .during("copying to the device")
    }

    /// Enqueues a copy to the host.
    ///
    /// # Safety
    /// Until the copy has run, `dst` stays allocated and nobody reads or writes it. For a copy that is
    /// captured in a graph this holds of every launch, and `dst` is pinned.
    pub unsafe fn download<T: Element>(
        &self,
        src: DeviceSlice<'_, T>,
        dst: &mut [T],
    ) -> Result<(), CudaError> {
        same_length("copy to the host", src.len(), dst.len())?;
        self.context.bind()?;
        // SAFETY: `dst` is as long as `src`, the stream is alive, `dst` is the caller's promise.
        unsafe { result::memcpy_dtoh_async(dst, src.address(), self.handle()) }
            .during("copying to the host")
    }

    /// Enqueues a copy within the device.
    pub fn copy<T: Element>(
        &self,
        src: DeviceSlice<'_, T>,
        dst: DeviceSlice<'_, T>,
    ) -> Result<(), CudaError> {
        same_length("copy on the device", src.len(), dst.len())?;
        self.context.bind()?;
        // SAFETY: both are as long as each other; their memory is freed only after all work is done.
        unsafe {
            result::memcpy_dtod_async(dst.address(), src.address(), src.bytes(), self.handle())
        }
        .during("copying on the device")
    }

    /// Enqueues setting every byte.
    pub fn fill<T: Element>(&self, dst: DeviceSlice<'_, T>, byte: u8) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: `dst` has that many bytes; its memory is freed only after all work is done.
        unsafe { result::memset_d8_async(dst.address(), byte, dst.bytes(), self.handle()) }
            .during("filling device memory")
    }

    /// Copies from the host and waits for it.
    pub fn write<T: Element>(&self, src: &[T], dst: DeviceSlice<'_, T>) -> Result<(), CudaError> {
        // SAFETY: `src` is borrowed until the copy has run.
        let enqueued = unsafe { self.upload(src, dst) };
        self.synchronize()?;
        enqueued
    }

    /// Copies to the host and waits for it.
    pub fn read<T: Element>(
        &self,
        src: DeviceSlice<'_, T>,
        dst: &mut [T],
    ) -> Result<(), CudaError> {
        // SAFETY: `dst` is borrowed until the copy has run.
        let enqueued = unsafe { self.download(src, dst) };
        self.synchronize()?;
        enqueued
    }

    /// As [`Stream::read`], into a new vector.
    pub fn read_vec<T: Element>(&self, src: DeviceSlice<'_, T>) -> Result<Vec<T>, CudaError> {
        // SAFETY: any bit pattern is an element, zeros too.
        let mut values = vec![unsafe { std::mem::zeroed() }; src.len()];
        self.read(src, &mut values)?;
        Ok(values)
    }

    /// Records what `enqueue` puts on this stream instead of running it.
    ///
    /// `enqueue` must neither allocate nor wait for the device; other threads may do both.
    pub fn capture<E: From<CudaError>>(
        &self,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream
            .begin_capture(mode)
            .during("starting a capture")?;
        let enqueued = enqueue();
        // SAFETY: the stream is alive and captures.
        let ended = unsafe { result::stream::end_capture(self.handle()) };
        // What went wrong first says more than the capture that it broke.
        if let Err(error) = enqueued {
            if let Ok(graph) = ended
                && !graph.is_null()
            {
                // SAFETY: the graph was just made, and nobody else knows of it.
                let _ = unsafe { result::graph::destroy(graph) };
            }
            return Err(error);
        }
        let graph = ended.during("ending a capture")?;
        Ok(Graph::instantiate(&self.context, graph)?)
    }
}

fn same_length(what: &'static str, expected: usize, found: usize) -> Result<(), CudaError> {
    if expected == found {
        return Ok(());
    }
    Err(CudaError::Length {
        what,
        expected,
        found,
    })
}

/// A point in a stream's work.
pub struct Event(CudaEvent);

impl Event {
    pub(super) fn new(context: &Context, timed: bool) -> Result<Self, CudaError> {
        let flags = if timed {
            CUevent_flags::CU_EVENT_DEFAULT
        } else {
            CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        let event = context.driver().new_event(Some(flags));
        Ok(Self(event.during("making an event")?))
    }

    /// Waits until the work noted is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.0.synchronize().during("waiting for an event")
    }

    /// Whether the work noted is done.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.0.try_is_complete().during("asking about an event")
    }

    /// Time from this event to a later one, both timed, on the device's clock. Waits for both.
    pub fn milliseconds_until(&self, end: &Self) -> Result<f32, CudaError> {
        self.synchronize()?;
        end.synchronize()?;
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
        // The bindings know only the second version, which drivers before CUDA 12.8 lack (JetPack 6).
        // SAFETY: an event exists, so the driver's library is loaded, and this is the function's type.
        let elapsed = unsafe { sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0") };
        let elapsed = elapsed.map_err(|_| CudaError::Failed {
            doing: "asking the time between two events",
            code: sys::CUresult::CUDA_ERROR_NOT_FOUND as u32,
            status: "the driver has no cuEventElapsedTime".into(),
        })?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive and recorded, and the call writes one float.
        unsafe { elapsed(&mut milliseconds, self.0.cu_event(), end.0.cu_event()) }
            .result()
            .during("asking the time between two events")?;
        Ok(milliseconds)
    }
}

/// Work recorded by [`Stream::capture`], launched as a whole.
pub struct Graph {
    executable: sys::CUgraphExec,
    nodes: usize,
    context: Context,
}

// SAFETY: a handle that may be used from any thread, by one at a time: it is not `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    fn instantiate(context: &Context, graph: sys::CUgraph) -> Result<Self, CudaError> {
        let mut nodes = 0;
        // SAFETY: the graph is alive; without a list to fill, only the count is written.
        let counted = unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) };
        // SAFETY: the graph is alive, used by this thread alone, and destroyed once.
        let (executable, destroyed) = unsafe {
            (
                result::graph::instantiate(graph, CUgraphInstantiate_flags(0)),
                result::graph::destroy(graph),
            )
        };
        let executable = executable.during("preparing a graph")?;
        let graph = Self {
            executable,
            nodes,
            context: context.clone(),
        };
        counted.result().during("counting a graph's nodes")?;
        destroyed.during("releasing a graph's description")?;
        Ok(graph)
    }

    /// Kernels, copies and fills in it.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Sends it to the device ahead of the first launch.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: graph and stream are alive.
        unsafe { result::graph::upload(self.executable, stream.handle()) }
            .during("sending a graph to the device")
    }

    /// Runs it on `stream`.
    ///
    /// # Safety
    /// What was promised when each part of it was enqueued holds again: all buffers are still
    /// allocated, and nobody touches them at the same time.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: graph and stream are alive, the rest is the caller's promise.
        unsafe { result::graph::launch(self.executable, stream.handle()) }
            .during("launching a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Nobody is left to be told of a failure, and the graph goes with the context.
        let _ = self.context.bind();
        // SAFETY: the handle is alive and destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.executable) };
    }
}

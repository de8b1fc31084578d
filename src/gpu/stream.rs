//! Streams, events and graphs.

use super::error::During;
use super::{Context, CudaError, DeviceSlice, Element};
use cudarc::driver::sys::{self, CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaEvent, CudaStream, result};
use std::sync::Arc;

/// Scheduling priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Tracking.
    High,
    /// Mapping.
    Low,
}

/// A queue of work that runs in order.
pub struct Stream {
    stream: Arc<CudaStream>,
    priority: Priority,
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
            priority,
            context: context.clone(),
        })
    }

    pub fn priority(&self) -> Priority {
        self.priority
    }

    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn handle(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// Waits until all work so far is done. Asynchronous kernel errors are reported here.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.stream.synchronize().during("waiting for a stream")
    }

    /// Records the work so far in `event`.
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        event.0.record(&self.stream).during("recording an event")
    }

    /// Like [`Stream::record`], but also recorded by a graph each time it runs, for timing the
    /// parts of a graph.
    pub fn mark(&self, event: &Event) -> Result<(), CudaError> {
        let external = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        let flags = if self.is_capturing()? { external } else { 0 };
        // SAFETY: event and stream are alive and of one context.
        unsafe { sys::cuEventRecordWithFlags(event.0.cu_event(), self.handle(), flags) }
            .result()
            .during("recording an event")
    }

    /// Whether [`Stream::capture`] is in progress, so that enqueued work is recorded and not run.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        let status = unsafe { result::stream::is_capturing(self.handle()) };
        let status = status.during("asking whether a stream captures")?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// The driver's handle, for libraries that enqueue their own work.
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.handle().cast()
    }

    /// Makes later work on this stream wait for the work recorded in `event`.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.stream.wait(&event.0).during("waiting for an event")
    }

    /// Enqueues a copy from the host.
    ///
    /// # Safety
    /// Until the copy has run, `src` must stay allocated and unchanged. For a copy captured in a
    /// graph this applies to every launch, and `src` must be pinned.
    pub unsafe fn upload<T: Element>(
        &self,
        src: &[T],
        dst: DeviceSlice<'_, T>,
    ) -> Result<(), CudaError> {
        same_length("copy to the device", src.len(), dst.len())?;
        self.context.bind()?;
        // SAFETY: `dst` is as long as `src` and the stream is alive; the caller guarantees `src`.
        unsafe { result::memcpy_htod_async(dst.address(), src, self.handle()) }
            .during("copying to the device")
    }

    /// Enqueues a copy to the host.
    ///
    /// # Safety
    /// Until the copy has run, `dst` must stay allocated and must be neither read nor written. For
    /// a copy captured in a graph this applies to every launch, and `dst` must be pinned.
    pub unsafe fn download<T: Element>(
        &self,
        src: DeviceSlice<'_, T>,
        dst: &mut [T],
    ) -> Result<(), CudaError> {
        same_length("copy to the host", src.len(), dst.len())?;
        self.context.bind()?;
        // SAFETY: `dst` is as long as `src` and the stream is alive; the caller guarantees `dst`.
        unsafe { result::memcpy_dtoh_async(dst, src.address(), self.handle()) }
            .during("copying to the host")
    }

    /// Enqueues a copy within device memory.
    pub fn copy<T: Element>(
        &self,
        src: DeviceSlice<'_, T>,
        dst: DeviceSlice<'_, T>,
    ) -> Result<(), CudaError> {
        same_length("copy on the device", src.len(), dst.len())?;
        self.context.bind()?;
        // SAFETY: both have the same length; their memory is freed only after all work is done.
        unsafe {
            result::memcpy_dtod_async(dst.address(), src.address(), src.bytes(), self.handle())
        }
        .during("copying on the device")
    }

    /// Enqueues setting all bytes.
    pub fn fill<T: Element>(&self, dst: DeviceSlice<'_, T>, byte: u8) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: `dst` has that many bytes; its memory is freed only after all work is done.
        unsafe { result::memset_d8_async(dst.address(), byte, dst.bytes(), self.handle()) }
            .during("filling device memory")
    }

    /// Copies from the host and waits for completion.
    pub fn write<T: Element>(&self, src: &[T], dst: DeviceSlice<'_, T>) -> Result<(), CudaError> {
        // SAFETY: `src` is borrowed until the copy has run.
        let enqueued = unsafe { self.upload(src, dst) };
        self.synchronize()?;
        enqueued
    }

    /// Copies to the host and waits for completion.
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

    /// Like [`Stream::read`], into a new vector.
    pub fn read_vec<T: Element>(&self, src: DeviceSlice<'_, T>) -> Result<Vec<T>, CudaError> {
        // SAFETY: any bit pattern is a valid element, including zeros.
        let mut values = vec![unsafe { std::mem::zeroed() }; src.len()];
        self.read(src, &mut values)?;
        Ok(values)
    }

    /// Records the work that `enqueue` puts on this stream instead of running it.
    ///
    /// `enqueue` must neither allocate nor wait for the device; other threads may do both. In any
    /// case, the stream is not capturing afterwards. Each node keeps this stream's priority
    /// wherever the graph is launched.
    pub fn capture<E: From<CudaError>>(
        &self,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let capture = Capture::begin(self)?;
        // An error here is more informative than that of the capture it invalidated.
        enqueue()?;
        Ok(Graph::instantiate(&self.context, capture.end()?)?)
    }
}

/// A capture in progress, which ends on drop.
struct Capture<'a>(Option<&'a Stream>);

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream) -> Result<Self, CudaError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let begun = stream.stream.begin_capture(mode);
        begun.during("starting a capture")?;
        Ok(Self(Some(stream)))
    }

    /// The recorded graph, to be destroyed by the caller.
    fn end(mut self) -> Result<sys::CUgraph, CudaError> {
        match self.0.take() {
            Some(stream) => {
                // SAFETY: the stream is alive, and this thread began its capture.
                let graph = unsafe { result::stream::end_capture(stream.handle()) };
                graph.during("ending a capture")
            }
            None => Ok(std::ptr::null_mut()),
        }
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let Some(stream) = self.0.take() else { return };
        // SAFETY: the stream is alive, and this thread began its capture.
        if let Ok(graph) = unsafe { result::stream::end_capture(stream.handle()) }
            && !graph.is_null()
        {
            // SAFETY: the graph was just created and is not referenced elsewhere. A failure leaks
            // it.
            let _ = unsafe { result::graph::destroy(graph) };
        }
    }
}

impl Context {
    /// Creates a stream.
    pub fn stream(&self, priority: Priority) -> Result<Stream, CudaError> {
        Stream::new(self, priority)
    }

    /// Creates an event; set `timed` to use [`Event::milliseconds_until`].
    pub fn event(&self, timed: bool) -> Result<Event, CudaError> {
        Event::new(self, timed)
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

    /// Waits until the recorded work is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.0.synchronize().during("waiting for an event")
    }

    /// Time from this event to a later one, both timed, on the device clock. Waits for both.
    pub fn milliseconds_until(&self, end: &Self) -> Result<f32, CudaError> {
        self.synchronize()?;
        end.synchronize()?;
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
        // The bindings only provide the second version, which drivers before CUDA 12.8 (JetPack 6)
        // lack.
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

// SAFETY: the handle may be used from any thread, one at a time: the type is not `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    fn instantiate(context: &Context, graph: sys::CUgraph) -> Result<Self, CudaError> {
        let mut nodes = 0;
        // SAFETY: the graph is alive; without an output list, only the count is written.
        let counted = unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) };
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        // SAFETY: the graph is alive, used only by this thread, and destroyed once.
        let (executable, destroyed) = unsafe {
            (
                result::graph::instantiate(graph, flags),
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

    /// Number of kernels, copies and fills.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Uploads it to the device ahead of the first launch.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: graph and stream are alive.
        unsafe { result::graph::upload(self.executable, stream.handle()) }
            .during("sending a graph to the device")
    }

    ///
    /// # Safety
    /// The guarantees given when its parts were enqueued must hold again: all buffers are still
    /// allocated, and nothing else accesses them at the same time.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: graph and stream are alive; the caller guarantees the rest.
        unsafe { result::graph::launch(self.executable, stream.handle()) }
            .during("launching a graph")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A failure cannot be reported here, and the graph goes with the context.
        let _ = self.context.bind();
        // SAFETY: the handle is alive and destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.executable) };
    }
}

//! In place on the GPU: inputs and outputs are the caller's buffers, and a run is a graph that was
//! captured once for them.
//!
//! A session works on a stream of its own, which waits for the caller's and is waited for by it. The first
//! runs on a set of buffers are ordinary ones, in which ONNX Runtime takes the memory that it needs and
//! looks for the quickest convolutions; then a run is captured, and from there on the graph is launched on
//! the caller's stream: nothing is allocated or waited for. Where a run cannot be captured, ordinary runs
//! go on.

use super::graph;
use super::session::{self, Part};
use super::shared::SharedWeights;
use super::{Held, OnnxRuntimeBackend, RUNTIME, failure};
use crate::inference::{DeviceBackend, DeviceSpan, DeviceViewOutput, InferenceError, NetworkShape};
use crate::network::onnx::names;
use cudarc::driver::sys::{self, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream, DriverError, result};
use ort::AsPointer;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{RunOptions, Session};
use ort::value::{Shape, TensorRefMut};
use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Ordinary runs on a set of buffers before one is captured: in the first, memory is taken as it is
/// needed, in the second as the first one's pattern has it.
const WARM_UP: u32 = 2;

/// Sets of buffers for which a session keeps a graph. Callers have a few, and more are run as they come.
const GRAPHS: usize = 32;

/// The first GPU's primary context, which ONNX Runtime and SLAM work in.
pub(super) struct Gpu {
    context: Arc<CudaContext>,
    /// Bytes that were free when it was opened.
    free: u64,
}

impl Gpu {
    pub(super) fn open() -> Result<Self, InferenceError> {
        const DOING: &str = "opening the GPU";
        // SAFETY: it only tries to load the driver's library, whose initialisers are safe to run.
        if !unsafe { sys::is_culib_present() } {
            return Err(InferenceError::Unavailable {
                runtime: RUNTIME,
                reason: "there is no NVIDIA driver, which its CUDA provider needs".into(),
            });
        }
        let context = result::init()
            .and_then(|()| CudaContext::new(0))
            .map_err(|error| InferenceError::Unavailable {
                runtime: RUNTIME,
                reason: format!("no GPU for its CUDA provider: {}", status(error)),
            })?;
        // SAFETY: cudarc's own buffers, whose use from several streams these events would order, are
        // not used.
        unsafe { context.disable_event_tracking() };
        context.check_err().map_err(|e| driver(DOING, e))?;
        let (free, _) = context.mem_get_info().map_err(|e| driver(DOING, e))?;
        let free = free as u64;
        Ok(Self { context, free })
    }

    /// Bytes that were taken since it was opened, by whomever.
    pub(super) fn taken(&self) -> u64 {
        let (free, _) = self.context.mem_get_info().unwrap_or_default();
        self.free.saturating_sub(free as u64)
    }

    /// Room for weights there.
    pub(super) fn weights(&self) -> Arc<SharedWeights> {
        Arc::new(SharedWeights::new(Arc::clone(&self.context)))
    }

    /// The least and the greatest priority of a stream.
    fn priorities(&self) -> Result<[i32; 2], InferenceError> {
        let fail = |e| driver("asking the range of priorities", e);
        self.context.bind_to_thread().map_err(fail)?;
        let (least, greatest) = result::stream::get_priority_range().map_err(fail)?;
        Ok([least, greatest])
    }

    /// A stream for one session's work; `priority` as the driver numbers them, none: the highest.
    pub(super) fn lane(&self, priority: Option<i32>) -> Result<Lane, InferenceError> {
        const DOING: &str = "making a stream";
        let fail = |e| driver(DOING, e);
        self.context.bind_to_thread().map_err(fail)?;
        let [_, greatest] = self.priorities()?;
        let priority = priority.unwrap_or(greatest);
        let event = || {
            let untimed = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            self.context.new_event(Some(untimed)).map_err(fail)
        };
        Ok(Lane {
            graphs: Vec::new(),
            asynchronous: session::options(true)?,
            before: event()?,
            after: event()?,
            stream: (self.context.new_stream_with_priority(priority)).map_err(fail)?,
            priority,
        })
    }
}

/// A session's stream, and what was captured on it.
pub(super) struct Lane {
    // Dropped before the stream.
    graphs: Vec<Prepared>,
    asynchronous: RunOptions,
    before: CudaEvent,
    after: CudaEvent,
    stream: Arc<CudaStream>,
    priority: i32,
}

// SAFETY: streams, events and graphs may be used from any thread, by one at a time, and this is not
// `Sync`.
unsafe impl Send for Lane {}

/// What a session does on one set of buffers.
struct Prepared {
    spans: Vec<DeviceSpan>,
    // Dropped before the binding, whose values the graph's nodes write.
    state: State,
    binding: Binding,
}

enum State {
    /// Ordinary runs so far.
    Warming(u32),
    Captured(CudaGraph),
    /// A run cannot be captured.
    Ordinary,
}

impl Lane {
    pub(super) fn raw(&self) -> *mut c_void {
        self.stream.cu_stream().cast()
    }

    /// Drops the graphs: their buffers are not used any more.
    pub(super) fn forget(&mut self) {
        if !self.graphs.is_empty() {
            // A launch may still be on its way on the caller's stream.
            if let Err(error) = self.stream.context().synchronize() {
                tracing::warn!("waiting for the network's last run: {}", status(error));
            }
            self.graphs.clear();
        }
    }

    /// Enqueues a run of `session` on `spans`, in the order of `names`, behind what is on `caller`.
    ///
    /// # Safety
    /// As for [`DeviceBackend::enqueue_encode`]; `spans` are as large as the session's inputs and outputs.
    unsafe fn enqueue(
        &mut self,
        session: &mut Session,
        part: Part,
        caller: CUstream,
        spans: &[DeviceSpan],
        tensors: impl FnOnce() -> Vec<Tensor>,
    ) -> Result<(), InferenceError> {
        let doing = part.running();
        let fail = |e| driver(doing, e);
        self.stream.context().bind_to_thread().map_err(fail)?;
        // SAFETY: the caller's stream is alive.
        if unsafe { graph::is_capturing(caller) }.map_err(fail)? {
            // Its memory nodes keep it from being a child of another graph, and as an executable graph it
            // cannot be launched into a recording.
            return Err(failure(
                doing,
                "the stream is being captured, and a run of the network is a graph of its own: enqueue it \
                 before or after the part that is captured",
            ));
        }
        let known = self.graphs.iter().position(|known| known.spans == spans);
        if let Some(Prepared {
            state: State::Captured(graph),
            ..
        }) = known.and_then(|at| self.graphs.get(at))
        {
            // SAFETY: graph and stream are alive, and what the graph touches is the caller's promise.
            return unsafe { result::graph::launch(graph.cu_graph_exec(), caller) }.map_err(fail);
        }
        let at = match known {
            Some(at) => at,
            None => {
                let binding = Binding::new(session, &tensors()).map_err(|e| failure(doing, e))?;
                if self.graphs.len() >= GRAPHS {
                    self.stream.context().synchronize().map_err(fail)?;
                    self.graphs.remove(0);
                }
                self.graphs.push(Prepared {
                    spans: spans.to_vec(),
                    state: State::Warming(0),
                    binding,
                });
                self.graphs.len() - 1
            }
        };
        let Some(prepared) = self.graphs.get_mut(at) else {
            return Err(failure(doing, "no binding"));
        };
        if matches!(prepared.state, State::Warming(runs) if runs >= WARM_UP) {
            prepared.state = match graph::capture(
                &self.stream,
                || prepared.binding.run(session, &self.asynchronous),
                doing,
            ) {
                Ok(graph) => State::Captured(graph),
                Err(error) => {
                    tracing::info!("{doing} is not captured as a graph, which costs time: {error}");
                    State::Ordinary
                }
            };
            if let State::Captured(graph) = &prepared.state {
                // SAFETY: as above.
                return unsafe { result::graph::launch(graph.cu_graph_exec(), caller) }
                    .map_err(fail);
            }
        }
        let (before, after) = (self.before.cu_event(), self.after.cu_event());
        let own = self.stream.cu_stream();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both streams and both events are alive and of one context.
        unsafe {
            result::event::record(before, caller).map_err(fail)?;
            result::stream::wait_event(own, before, flags).map_err(fail)?;
        }
        let ran = prepared.binding.run(session, &self.asynchronous);
        // SAFETY: as above.
        unsafe {
            result::event::record(after, own).map_err(fail)?;
            result::stream::wait_event(caller, after, flags).map_err(fail)?;
        }
        ran.map_err(|e| failure(doing, e))?;
        if let State::Warming(runs) = &mut prepared.state {
            *runs += 1;
        }
        Ok(())
    }
}

/// An input or output of a session, in device memory.
struct Tensor {
    name: &'static str,
    input: bool,
    address: u64,
    shape: Shape,
}

/// The buffers of a session's inputs and outputs.
struct Binding(NonNull<ort::sys::OrtIoBinding>);

// SAFETY: ONNX Runtime lets a binding be used from any thread, by one at a time, and it is not `Sync`.
unsafe impl Send for Binding {}

impl Binding {
    fn new(session: &mut Session, tensors: &[Tensor]) -> ort::Result<Self> {
        let api = ort::api();
        let mut made = std::ptr::null_mut();
        // SAFETY: the session is alive, and a status that is not null holds an error.
        unsafe {
            let status = (api.CreateIoBinding)(session.ptr().cast_mut(), &mut made);
            ort::Error::result_from_status(status)?;
        }
        let made = NonNull::new(made).ok_or_else(|| ort::Error::new("no binding was made"))?;
        let binding = Self(made);
        let (device, kind) = (AllocationDevice::CUDA, AllocatorType::Device);
        for tensor in tensors {
            let name = CString::new(tensor.name).map_err(ort::Error::wrap)?;
            let info = MemoryInfo::new(device.clone(), 0, kind, MemoryType::Default)?;
            let data = tensor.address as *mut c_void;
            // SAFETY: the address is the device's, and the caller of `enqueue` said that as much memory
            // lies there; nothing is read or written before a run.
            let value = unsafe { TensorRefMut::<f32>::from_raw(info, data, tensor.shape.clone()) }?;
            // SAFETY: binding, name and value are alive; the binding keeps what it needs of the value.
            unsafe {
                let bind = match tensor.input {
                    true => api.BindInput,
                    false => api.BindOutput,
                };
                let status = bind(binding.0.as_ptr(), name.as_ptr(), value.ptr());
                ort::Error::result_from_status(status)?;
            }
        }
        Ok(binding)
    }

    fn run(&self, session: &mut Session, options: &RunOptions) -> ort::Result<()> {
        let options = options.ptr();
        // SAFETY: all three are alive, and the session, which the binding was made for, is used by nobody
        // else; the addresses are as the caller of `enqueue` said.
        unsafe {
            let run = ort::api().RunWithBinding;
            let status = run(session.ptr().cast_mut(), options, self.0.as_ptr());
            ort::Error::result_from_status(status)
        }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: made above, released once.
        unsafe { (ort::api().ReleaseIoBinding)(self.0.as_ptr()) };
    }
}

impl OnnxRuntimeBackend {
    /// The session of `part` whose stream goes first as much as `caller` does.
    fn on_stream(&mut self, part: Part, caller: CUstream) -> Result<&mut Held, InferenceError> {
        let fail = |e| driver(part.loading(), e);
        if let Some(gpu) = &self.loaded.gpu {
            gpu.context.bind_to_thread().map_err(fail)?;
        }
        let mut priority = 0;
        // SAFETY: the stream is alive, and the call writes one number.
        unsafe { sys::cuStreamGetPriority(caller, &mut priority) }
            .result()
            .map_err(fail)?;
        let fits = |held: &Held| {
            let lane = held.lane.as_ref();
            held.part == part && lane.is_some_and(|lane| lane.priority == priority)
        };
        let at = match self.held.iter().position(fits) {
            Some(at) => at,
            None => {
                let mut idle = self.loaded.idle();
                let held = match idle.iter().position(fits) {
                    Some(at) => idle.swap_remove(at),
                    None => self.loaded.build(part, Some(priority))?,
                };
                drop(idle);
                self.held.push(held);
                self.held.len() - 1
            }
        };
        let held = self.held.get_mut(at);
        held.ok_or_else(|| failure(part.loading(), "no session"))
    }

    /// # Safety
    /// As for [`DeviceBackend::enqueue_encode`].
    unsafe fn enqueue(
        &mut self,
        part: Part,
        stream: *mut c_void,
        inputs: &[DeviceSpan],
        views: &[DeviceViewOutput],
        features: Option<DeviceSpan>,
    ) -> Result<(), InferenceError> {
        let shape = self.loaded.shape.clone();
        let describe = || describe(part, &shape, inputs, views, features);
        let mut spans = inputs.to_vec();
        spans.extend(features);
        spans.extend(views.iter().flat_map(|view| view.spans()));
        for (tensor, span) in describe().iter().zip(&spans) {
            let expected = tensor.shape.num_elements() * size_of::<f32>();
            if span.bytes != expected {
                return Err(InferenceError::Shape {
                    what: tensor.name,
                    expected: format!("{expected} bytes"),
                    found: format!("{} bytes", span.bytes),
                });
            }
        }
        let held = self.on_stream(part, stream.cast())?;
        let Some(lane) = &mut held.lane else {
            return Err(failure(part.running(), "no stream"));
        };
        // SAFETY: the caller's promise; the spans' sizes were checked.
        unsafe {
            lane.enqueue(
                &mut held.session.session,
                part,
                stream.cast(),
                &spans,
                describe,
            )
        }
    }
}

/// Inputs and outputs of `part`, in the order in which their spans are listed.
fn describe(
    part: Part,
    shape: &NetworkShape,
    inputs: &[DeviceSpan],
    views: &[DeviceViewOutput],
    features: Option<DeviceSpan>,
) -> Vec<Tensor> {
    let tensor = |name, input, span: DeviceSpan, extents: &[usize]| Tensor {
        name,
        input,
        address: span.address,
        shape: extents.iter().map(|&n| n as i64).collect(),
    };
    let (w, h, d) = (shape.width, shape.height, shape.descriptor_dim);
    let batch = match part {
        Part::Edges(edges) => 2 * edges,
        _ => 1,
    };
    let tokens = [batch, shape.tokens, shape.feature_dim];
    let image = [1, 3, h, w];
    let of_inputs: &[usize] = match part {
        Part::Encoder => &image,
        _ => &tokens,
    };
    let mut tensors: Vec<Tensor> = (part.inputs().iter().zip(inputs))
        .map(|(name, &span)| tensor(*name, true, span, of_inputs))
        .collect();
    tensors.extend(features.map(|span| tensor(names::FEATURES, false, span, &tokens)));
    for (view, out) in views.iter().enumerate() {
        tensors.extend([
            tensor(names::POINTS[view], false, out.points, &[batch, h, w, 3]),
            tensor(
                names::CONFIDENCE[view],
                false,
                out.confidence,
                &[batch, h, w],
            ),
            tensor(
                names::DESCRIPTORS[view],
                false,
                out.descriptors,
                &[batch, h, w, d],
            ),
            tensor(
                names::DESCRIPTOR_CONFIDENCE[view],
                false,
                out.descriptor_confidence,
                &[batch, h, w],
            ),
        ]);
    }
    tensors
}

// SAFETY: the sessions' inputs and outputs are bound to the spans of the call and nothing else; their
// stream waits for the caller's and is waited for by it, or their graph runs on it.
unsafe impl DeviceBackend for OnnxRuntimeBackend {
    /// The self-test ran encoder and decoder. Mono inference takes less than the decoder's; edges twice of it
    /// each, in a session for each number of them, which are powers of two.
    fn still_takes(&self, edges: usize) -> u64 {
        let sessions = std::iter::successors(Some(1), |n| Some(2 * n));
        let together: u64 = sessions.take_while(|&n| n <= edges as u64).sum();
        (1 + 2 * together) * self.loaded.activations.load(Ordering::Relaxed)
    }

    fn prepare(&mut self, edges: usize) -> Result<(), InferenceError> {
        if let Some(gpu) = &self.loaded.gpu {
            let (loaded, [least, greatest]) = (&*self.loaded, gpu.priorities()?);
            let of_edges = (1..=edges).filter(|n| n.is_power_of_two());
            let of_edges = of_edges.map(|n| (Part::Edges(n), least));
            let parts = std::iter::once((Part::View1, greatest)).chain(of_edges);
            let build = |(part, priority)| move || loaded.build(part, Some(priority));
            loaded.at_once(parts.map(build).collect())?;
        }
        Ok(())
    }

    unsafe fn enqueue_encode(
        &mut self,
        stream: *mut c_void,
        planes: DeviceSpan,
        features: DeviceSpan,
    ) -> Result<(), InferenceError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(Part::Encoder, stream, &[planes], &[], Some(features)) }
    }

    unsafe fn enqueue_decode(
        &mut self,
        stream: *mut c_void,
        features: [DeviceSpan; 2],
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(Part::Decoder, stream, &features, &views, None) }
    }

    unsafe fn enqueue_decode_view1(
        &mut self,
        stream: *mut c_void,
        features: [DeviceSpan; 2],
        [view, _]: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(Part::View1, stream, &features, &[view], None) }
    }

    unsafe fn enqueue_decode_edges(
        &mut self,
        stream: *mut c_void,
        edges: usize,
        features: DeviceSpan,
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(Part::Edges(edges), stream, &[features], &views, None) }
    }
}

pub(super) fn driver(doing: &'static str, error: DriverError) -> InferenceError {
    failure(doing, status(error))
}

/// The driver's words for what went wrong.
fn status(error: DriverError) -> String {
    match error.error_string() {
        Ok(words) => words.to_string_lossy().into_owned(),
        Err(_) => format!("{error:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::load_network;
    use crate::network::onnx::{EmitOptions, InputSize};
    use std::path::Path;

    #[test]
    fn what_is_bound_is_what_the_models_declare() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let weights = root.join("tests/data/network/tiny-random.pth");
        let network = load_network(&weights).expect("in the repository");
        let size = InputSize::new(1, 80, 48).expect("multiples of 16");
        let shape = NetworkShape {
            width: size.width,
            height: size.height,
            tokens: size.tokens(),
            feature_dim: network.architecture.encoder.width,
            descriptor_dim: network.architecture.descriptor_dim,
        };
        let span = DeviceSpan {
            address: 0,
            bytes: 0,
        };
        let view = DeviceViewOutput {
            points: span,
            confidence: span,
            descriptors: span,
            descriptor_confidence: span,
        };
        for (part, inputs, views, features) in [
            (Part::Encoder, 1, 0, Some(span)),
            (Part::Decoder, 2, 2, None),
            (Part::View1, 2, 1, None),
            (Part::Edges(1), 1, 2, None),
            (Part::Edges(3), 1, 2, None),
        ] {
            let tensors = describe(
                part,
                &shape,
                &vec![span; inputs],
                &vec![view; views],
                features,
            );
            let mut bound: Vec<(&str, Vec<usize>)> = tensors
                .iter()
                .map(|t| (t.name, t.shape.iter().map(|&n| n as usize).collect()))
                .collect();
            let model = part.emit(&network, size, EmitOptions::default());
            let model = model.expect("edges");
            let mut declared = model.tensors();
            bound.sort();
            declared.sort();
            assert_eq!(bound, declared, "{part:?}");
        }
    }
}

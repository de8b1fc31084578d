//! A run as a graph: recorded, launched, and put into a larger one.

use super::failure;
use super::gpu::driver;
use crate::inference::InferenceError;
use cudarc::driver::sys::{
    self, CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
    CUstreamUpdateCaptureDependencies_flags,
};
use cudarc::driver::{CudaGraph, CudaStream, DriverError, result};
use std::sync::Arc;

/// Records what `run` puts on `stream` instead of running it.
pub(super) fn capture(
    stream: &Arc<CudaStream>,
    run: impl FnOnce() -> ort::Result<()>,
    doing: &'static str,
) -> Result<CudaGraph, InferenceError> {
    let fail = |e| driver(doing, e);
    // Other threads go on doing what they like.
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).map_err(fail)?;
    let ran = run();
    // Each node keeps the priority of the stream that it was captured on.
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    let graph = stream.end_capture(flags);
    // What went wrong first says more than the capture that it broke.
    ran.map_err(|e| failure(doing, e))?;
    let graph = graph.map_err(fail)?;
    let graph = graph.ok_or_else(|| failure(doing, "the capture recorded nothing"))?;
    graph.upload().map_err(fail)?;
    Ok(graph)
}

/// Whether `stream` records what is put on it.
///
/// # Safety
/// The stream is alive.
pub(super) unsafe fn is_capturing(stream: CUstream) -> Result<bool, DriverError> {
    // SAFETY: the caller's promise.
    let status = unsafe { result::stream::is_capturing(stream) }?;
    Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Puts `graph` on `stream`: it is launched there or, where the stream is being captured, becomes a node
/// of the graph that is recorded, which takes a copy of it.
///
/// # Safety
/// The stream is alive, and whenever what is enqueued runs, so is all that the graph's nodes touch.
pub(super) unsafe fn enqueue(graph: &CudaGraph, stream: CUstream) -> Result<(), DriverError> {
    // SAFETY: the stream is alive.
    if !unsafe { is_capturing(stream) }? {
        // SAFETY: graph and stream are alive; the rest is the caller's promise.
        return unsafe { result::graph::launch(graph.cu_graph_exec(), stream) };
    }
    // A graph that is ready to run cannot be launched into a recording.
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut recorded = std::ptr::null_mut();
    let (mut after, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
    let mut node = std::ptr::null_mut();
    // SAFETY: the driver writes each of the values that it is given the address of; what it says the next
    // node comes after stays its own, and valid until the stream records something else; the node then
    // takes its place.
    unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream,
            &mut status,
            std::ptr::null_mut(),
            &mut recorded,
            &mut after,
            &mut edges,
            &mut count,
        )
        .result()?;
        sys::cuGraphAddChildGraphNode(&mut node, recorded, after, count, graph.cu_graph())
            .result()?;
        let replace = CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES;
        sys::cuStreamUpdateCaptureDependencies_v2(
            stream,
            &mut node,
            std::ptr::null(),
            1,
            replace as u32,
        )
        .result()
    }
}

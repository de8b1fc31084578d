//! Recording a run as a graph.

use super::failure;
use super::gpu::driver;
use crate::inference::InferenceError;
use cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
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

//! The GPU implementation of [`crate::compute::device`].
//!
//! Each half has its own stream; tracking's has the higher priority. All memory is planned,
//! allocated once and carved; keyframes and edges that do not fit move to host memory and a file
//! (see [`crate::compute::store`]). The network runs on the GPU if the backend supports it
//! ([`crate::inference::DeviceBackend`]), otherwise on the host, with data staged through pinned
//! memory.

mod buffers;
mod camera;
mod content;
mod depth;
mod edges;
mod errors;
mod frame;
mod hand_off;
mod images;
mod inputs;
mod mapping;
mod network;
mod pair;
mod plan;
mod repeated;
mod solve;
mod stores;
mod tracking;

pub use camera::CameraFormat;
pub use inputs::{PlanInputs, slot_layout};
pub use plan::lower;

use super::retrieval::{MAX_HITS, Retrieval, RetrievalBuffers};
use crate::compute::device::{Device, DeviceError, MemoryPool, Setup};
use crate::compute::global::GlobalResidual;
use crate::compute::retrieval::RetrievalModel;
use crate::gpu::plan::{Group, MemoryPlan, Place, human};
use crate::gpu::{Carving, Context, Priority, Stream};
use crate::image::{PreprocessOptions, Preprocessor};
use crate::inference::{Backend, NetworkShape};
use buffers::Buffers;
use mapping::Mapping;
use std::path::PathBuf;
use std::sync::Arc;
use stores::Stores;
use tracking::Tracking;

/// Device parameters in addition to [`Setup`].
pub struct CudaSetup {
    /// Pixel format of the camera's images.
    pub camera: CameraFormat,
    /// Folder for keyframes that fit neither the GPU nor host memory. Without one the map cannot grow further.
    pub directory: Option<PathBuf>,
}

/// Creates a device on the GPU of `context`, with `backend` for the network. All memory is
/// allocated here.
///
/// # Errors
/// [`DeviceError::Failed`] if the plan does not fit; the error says what to lower.
pub fn device(
    context: &Context,
    mut backend: Box<dyn Backend>,
    mut setup: Setup,
    cuda: &CudaSetup,
) -> Result<Device, DeviceError> {
    let shape = backend.shape().clone();
    let preprocessor = match setup.preprocessor.take() {
        Some(preprocessor) => preprocessor,
        None => as_they_are(&shape)?,
    };
    if let Some(warning) = solve::crowded(&setup.config) {
        tracing::warn!("{warning}");
    }
    let images = (&shape, &preprocessor, cuda.camera);
    let mut inputs = PlanInputs::of(context.info(), backend.as_mut(), &setup, images);
    let (buffers, memory) = allocate(context, backend.as_mut(), &mut inputs)?;
    let edges_at_once = inputs.edges_at_once();
    let high = Arc::new(context.stream(Priority::High)?);
    let low = Arc::new(context.stream(Priority::Low)?);
    let (streams, directory) = ([&high, &low], cuda.directory.clone());
    let stores = Stores::new(buffers.stores, streams, &shape, setup.intrinsics, directory)?;
    if let Some(network) = backend.device() {
        network.prepare(edges_at_once)?;
    }
    let places = match (buffers.places, &setup.places) {
        (Some(buffers), Some(model)) => {
            let k = setup.config.retrieval.k;
            Some(place_recognition(context, &low, buffers, model, k)?)
        }
        _ => None,
    };
    let residual = GlobalResidual::of(setup.config.local_opt.residual, setup.intrinsics);
    let (config, network) = (Arc::clone(&setup.config), backend.share());
    let camera = setup.intrinsics.as_ref();
    let mut mapping = Mapping::new(
        config,
        low,
        &stores,
        network,
        buffers.mapping,
        residual,
        camera,
    )?;
    mapping.places = places;
    let camera = (&preprocessor, cuda.camera);
    let mut tracking = Tracking::new(
        setup.config,
        high,
        &stores,
        backend,
        buffers.tracking,
        camera,
    )?;
    tracking.memory = memory;
    // Tables and codebook have arrived, so that the first frame does not wait for them.
    context.synchronize()?;
    Ok(Device {
        tracking: Box::new(tracking),
        mapping: Box::new(mapping),
    })
}

/// Allocates all memory, in a plan that fits; also returns what it is used for.
fn allocate(
    context: &Context,
    backend: &mut dyn Backend,
    inputs: &mut PlanInputs<'_>,
) -> Result<(Buffers, Vec<MemoryPool>), DeviceError> {
    let plan = fitting_plan(context, backend, inputs)?;
    let mut carving = Carving::planned(context, &plan)?;
    let buffers = Buffers::carve(&mut carving, inputs)?;
    carving.finish()?;
    Ok((buffers, report(plan, backend)))
}

/// Place recognition with the tables of `model`, for queries of `k` keyframes.
fn place_recognition(
    context: &Context,
    stream: &Stream,
    buffers: RetrievalBuffers,
    model: &RetrievalModel,
    k: usize,
) -> Result<Retrieval, DeviceError> {
    if k > MAX_HITS {
        tracing::warn!(
            "retrieval.k is {k}: the GPU returns at most the {MAX_HITS} best keyframes of a query"
        );
    }
    let mut places = Retrieval::new(context, buffers)?;
    places.load(stream, model.mean(), model.projection(), model.codebook())?;
    places.clear(stream)?;
    Ok(places)
}

/// A plan that fits the memory which is free, with as many edges decoded at once as then fit.
fn fitting_plan(
    context: &Context,
    backend: &mut dyn Backend,
    inputs: &mut PlanInputs<'_>,
) -> Result<MemoryPlan, DeviceError> {
    let (free, _) = context.memory()?;
    loop {
        let most = inputs.edge_batch;
        let mut reserved = 0;
        if let Some(network) = backend.device() {
            inputs.network_workspace =
                [network.workspace_bytes(0)?, network.workspace_bytes(most)?];
            inputs.encoder_workspace = network.encoder_workspace_bytes()?;
            reserved = network.still_takes(most);
        }
        match inputs.fitting(free.saturating_sub(reserved))? {
            Ok(plan) => return Ok(plan),
            // Fewer edges per batch only take longer.
            Err(_) if inputs.edges_at_once() > 1 => {
                inputs.edge_batch = most / 2;
                tracing::info!(
                    "lowering memory.edge_batch to {}: batches of {most} do not fit",
                    most / 2
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Tells what was taken, and what the network's runtime holds; returns it by use.
fn report(mut plan: MemoryPlan, backend: &mut dyn Backend) -> Vec<MemoryPool> {
    for held in backend
        .device()
        .map_or(Vec::new(), |network| network.holds())
    {
        let bytes = usize::try_from(held.bytes).unwrap_or(usize::MAX);
        let name = format!("network.{}", held.name);
        plan.note::<u8>(Group::Network, name, Place::Elsewhere, &[bytes]);
    }
    tracing::info!(
        "GPU memory: {}, the network's runtime holds {}; pinned host memory: {}",
        human(plan.device_bytes()),
        human(plan.elsewhere_bytes()),
        human(plan.pinned_bytes())
    );
    tracing::debug!("memory plan:\n{plan}");
    let pools = plan.pools().into_iter();
    let pool = |(group, place, bytes): (Group, Place, u64)| MemoryPool {
        name: group.name(),
        place: place.name(),
        bytes,
    };
    pools.map(pool).collect()
}

/// For cameras that produce images of the network's size, for which resampling is the identity.
fn as_they_are(shape: &NetworkShape) -> Result<Preprocessor, DeviceError> {
    let (width, height) = (shape.width, shape.height);
    let options = PreprocessOptions {
        patch: shape.patch(),
        ..PreprocessOptions::default()
    };
    let made = Preprocessor::new(width, height, width.max(height), None, options)?;
    if made.output_size() != (width, height) {
        let (expected, found) = ((width, height), made.output_size());
        return Err(crate::image::ImageError::Size { expected, found }.into());
    }
    Ok(made)
}

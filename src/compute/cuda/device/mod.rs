//! The GPU as a device: what [`crate::compute::device`] asks for, from this folder's kernels.
//!
//! Each half has a stream of its own, tracking's goes first. All memory is planned, allocated once
//! and carved; keyframes and edges that do not fit move to host memory and a file (see
//! [`crate::compute::store`]). The network runs on the GPU if the backend can
//! ([`crate::inference::DeviceBackend`]), else on the host, staged through pinned memory.

mod camera;
mod content;
mod edges;
mod errors;
mod exchange;
mod mapping;
mod network;
mod repeated;
mod solve;
mod tracking;

use super::convert::Convert;
use super::device_plan::{DevicePlan, HostNetworkPlan, HostView, NetworkPlan, PlanInputs, lay_out};
use super::fusion::{FusedPointmap, Fusion};
use super::global::DeviceGlobalSolver;
use super::matching::Matcher;
use super::preprocess::DevicePreprocessor;
use super::retrieval::Retrieval;
use super::sanitise::{Sanitiser, ViewBuffers};
use super::slots::CudaSlots;
use super::tracking::{CameraRays, PoseSolver};
use super::{Context, CudaError, Event, PinnedBuffer, Pool, Priority, Stream};
use crate::compute::device::{Device, DeviceError, Setup};
use crate::compute::global::GlobalResidual;
use crate::compute::matching::Refinement;
use crate::compute::plan::{PlannedArena, Spec};
use crate::compute::stop::Stop;
use crate::compute::store::{KeyframeStore, StoreOptions};
use crate::config::{Config, FilteringMode};
use crate::geometry::Sim3;
use crate::image::encoding::Encoding;
use crate::image::{PreprocessOptions, Preprocessor};
use crate::inference::{Backend, NetworkShape};
use camera::Camera;
use edges::EdgeSlots;
use exchange::Exchange;
use mapping::Mapping;
use network::{Decoding, Network, PinnedView, Staging};
use repeated::Repeated;
use solve::GraphSolver;
use std::path::PathBuf;
use std::sync::Arc;
use tracking::{Frame, Stages, Tracking};

/// The mapping half only puts points on rays, for which any mode will do; this one needs no memory.
pub(super) const CONSTRAINING: FilteringMode = FilteringMode::Recent;

/// Device memory for the matches of `edges` edges of images of `pixels`.
pub(super) fn edge_device_buffers(edges: usize, pixels: usize) -> Vec<Spec> {
    EdgeSlots::device_buffers(edges, pixels)
}

/// Pinned memory for edges on their way to a file.
pub(super) fn edge_pinned_buffers(pixels: usize) -> Vec<Spec> {
    EdgeSlots::pinned_buffers(pixels)
}

/// Device memory for pointmaps on their way from tracking to mapping.
pub(super) fn exchange_buffers(pixels: usize) -> Vec<Spec> {
    Exchange::buffers(pixels)
}

/// How the camera's images come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CameraFormat {
    /// What their bytes mean.
    pub encoding: Encoding,
    /// Bytes from row to row.
    pub stride: usize,
}

/// What a device needs to know besides its setup.
pub struct CudaSetup {
    /// How the camera's images come.
    pub camera: CameraFormat,
    /// Where keyframes go that fit neither the GPU nor host memory; none: they cannot.
    pub directory: Option<PathBuf>,
}

/// The GPU of `context` as a device, with `backend` for the network. All memory is taken here.
///
/// # Errors
/// [`DeviceError::Failed`] if the plan does not fit, saying what to lower.
pub fn device(
    context: &Context,
    mut backend: Box<dyn Backend>,
    setup: Setup,
    cuda: &CudaSetup,
) -> Result<Device, DeviceError> {
    let shape = backend.shape().clone();
    let preprocessor = match setup.preprocessor {
        Some(preprocessor) => preprocessor,
        None => as_they_are(&shape)?,
    };
    let (free, _) = context.memory()?;
    let mut config = setup.config;
    if let Some(said) = solve::crowded(&config) {
        tracing::warn!("{said}");
    }
    let (plan, edges_at_once) = loop {
        let most = config.memory.edge_batch.max(1);
        let (network_workspace, reserved) = match backend.device() {
            Some(network) => (
                [network.workspace_bytes(0)?, network.workspace_bytes(most)?],
                network.still_takes(most),
            ),
            None => ([0; 2], 0),
        };
        let inputs = PlanInputs {
            config: &config,
            shape: &shape,
            info: context.info(),
            preprocessor: &preprocessor,
            encoding: cuda.camera.encoding,
            stride: cuda.camera.stride,
            calibrated: setup.intrinsics.is_some(),
            network_on_host: backend.device().is_none(),
            network_workspace,
            words: setup.places.as_ref().map(|model| model.words()),
        };
        let plan = lay_out(&inputs)?;
        let fits = plan.fit(&config, free.saturating_sub(reserved), |config: &Config| {
            let inputs = PlanInputs { config, ..inputs };
            lay_out(&inputs).map_or(u64::MAX, |plan| plan.memory.device_bytes())
        });
        match fits {
            Ok(()) => break (plan, inputs.edges_at_once()),
            // Fewer edges at once take longer, and that is all.
            Err(_) if inputs.edges_at_once() > 1 => {
                tracing::info!("memory.edge_batch is {}: {most} do not fit", most / 2);
                let mut fewer = Config::clone(&config);
                fewer.memory.edge_batch = most / 2;
                config = Arc::new(fewer);
            }
            Err(error) => return Err(error.into()),
        }
    };
    let DevicePlan {
        memory,
        tracking: planned,
        mapping: mapped,
        slots,
        device_slots,
        host_slots,
        edges,
        exchange,
        rays,
        places,
    } = plan;
    let pool = Pool::new(context, &memory)?;
    let streams = [Priority::High, Priority::Low].map(|p| context.stream(p).map(Arc::new));
    let [high, low] = streams;
    let (high, low) = (high?, low?);

    let slots = CudaSlots::new(
        context,
        slots,
        &mut pool.device_arena(device_slots)?,
        &mut pool.pinned_arena(host_slots)?,
        Arc::clone(&high),
        Arc::clone(&low),
    )?;
    let options = StoreOptions {
        keyframes: KEYFRAMES,
        directory: cuda.directory.clone(),
    };
    let keyframes = Arc::new(KeyframeStore::new(slots, &options)?);
    let pixels = shape.pixels();
    let mut arena = pool.device_arena(exchange)?;
    let exchange = Exchange::new(context, &mut arena, pixels, Arc::clone(&keyframes))?;
    let exchange = Arc::new(exchange);
    let rays = match (rays, setup.intrinsics) {
        (Some(planned), Some(k)) => {
            let mut arena = pool.device_arena(planned)?;
            let (w, h) = (shape.width, shape.height);
            Some(Arc::new(CameraRays::new(&low, &mut arena, k, w, h)?))
        }
        _ => None,
    };
    let slots = EdgeSlots::new(
        context,
        &mut pool.device_arena(edges.device)?,
        &mut pool.pinned_arena(edges.host)?,
        config.memory.edges,
        pixels,
        Arc::clone(&low),
    )?;
    let edges = Arc::new(KeyframeStore::new(slots, &options)?);

    let maker = Maker {
        context,
        pool: &pool,
        shape: &shape,
        config: &config,
    };
    if let Some(network) = backend.device() {
        network.prepare(edges_at_once)?;
    }
    let ways = 2 * edges_at_once;
    let mut network = maker.network(backend.share(), &low, mapped.pair.network, ways)?;
    let counts = (1..=edges_at_once).filter(|n| n.is_power_of_two());
    let decodings: Vec<Decoding> = counts.map(Decoding::Edges).collect();
    network.warm_up(&low, None, &decodings)?;
    let mapping = Mapping {
        network,
        pair: mapping::Pair {
            sanitiser: maker.sanitiser(&low, mapped.pair.sanitiser)?,
            matcher: maker.matcher(mapped.pair.matcher, Refinement::Single)?,
            solver: maker.solver(&low, mapped.pair.solver)?,
            fusion: maker.fusion(mapped.fusion, CONSTRAINING)?,
            convert: Convert::new(context)?,
            rays: rays.clone(),
            unusable: pool.device(mapped.pair.unusable)?,
            counts: pool.device(mapped.pair.counts)?,
            host_counts: pool.pinned(mapped.host_counts)?,
            outcome: pool.device(mapped.pair.outcome)?,
            host_outcome: pool.pinned(mapped.pair.host_outcome)?,
        },
        graph: GraphSolver {
            solver: DeviceGlobalSolver::new(
                context,
                &mut pool.device_arena(mapped.solver)?,
                &mut pool.pinned_arena(mapped.host_solver)?,
                mapped.capacity,
            )?,
            residual: GlobalResidual::of(config.local_opt.residual, setup.intrinsics),
            width: shape.width,
            height: shape.height,
            stop: Stop::default(),
        },
        places: match (places, &setup.places) {
            (Some(planned), Some(model)) => {
                let mut places = Retrieval::new(
                    context,
                    planned.sizes,
                    &mut pool.device_arena(planned.device)?,
                    &mut pool.pinned_arena(planned.host)?,
                )?;
                places.load(&low, model.mean(), model.projection(), model.codebook())?;
                places.clear(&low)?;
                Some(places)
            }
            _ => None,
        },
        config: Arc::clone(&config),
        stream: Arc::clone(&low),
        keyframes: Arc::clone(&keyframes),
        exchange: Arc::clone(&exchange),
        edges,
        keys: Default::default(),
        ends: Default::default(),
        next_edge: 0,
        described: None,
        hits: Vec::new(),
    };

    let mut network = maker.network(backend, &high, planned.pair.network, 1)?;
    let camera = Camera {
        preprocessor: DevicePreprocessor::new(
            context,
            &mut pool.device_arena(planned.preprocessor)?,
            &high,
            &preprocessor,
            cuda.camera.encoding,
            cuda.camera.stride,
        )?,
        encoding: cuda.camera.encoding,
        size: preprocessor.input_size(),
        stride: cuda.camera.stride,
        host_raw: pool.pinned(planned.host_raw)?,
        raw: pool.device(planned.raw)?,
        image: pool.device(planned.image)?,
        host_image: pool.pinned(planned.host_image)?,
        planes: pool.device(planned.planes)?,
        work: Repeated::new("a camera image's way to the network"),
    };
    high.fill(camera.planes.all(), 0)?;
    let decodings = [Decoding::Mono, Decoding::Pair];
    network.warm_up(&high, Some(camera.planes.all()), &decodings)?;
    let frame = Frame {
        sanitiser: maker.sanitiser(&high, planned.pair.sanitiser)?,
        // An invalid pixel's place is where the next frame's search starts.
        matcher: maker.matcher(planned.pair.matcher, Refinement::SingleAll)?,
        solver: maker.solver(&high, planned.pair.solver)?,
        fusion: maker.fusion(planned.fusion, config.tracking.filtering_mode)?,
        convert: Convert::new(context)?,
        rays,
        pointmap: FusedPointmap::new(&high, &mut pool.device_arena(planned.pointmap)?, pixels)?,
        unusable: pool.device(planned.pair.unusable)?,
        host_unusable: pool.pinned(planned.host_unusable)?,
        counts: pool.device(planned.pair.counts)?,
        index: pool.device(planned.index)?,
        has_index: pool.device(planned.has_index)?,
        host_has_index: pool.pinned(planned.host_has_index)?,
        valid: pool.device(planned.valid)?,
        quality: pool.device(planned.quality)?,
        gated: pool.device(planned.gated)?,
        pose: pool.device(planned.pose)?,
        host_identity: identity(pool.pinned(planned.host_identity)?),
        outcome: pool.device(planned.pair.outcome)?,
        host_outcome: pool.pinned(planned.pair.host_outcome)?,
        marks: maker.events()?,
    };
    let stages = Stages {
        camera: maker.events()?,
        encoder: maker.events()?,
        decoder: maker.events()?,
    };
    let tracking = Tracking::new(
        config,
        context.info().name.clone(),
        high,
        keyframes,
        exchange,
        network,
        camera,
        frame,
        stages,
    );
    // Tables and codebook have arrived, so that nobody's first frame waits for them.
    context.synchronize()?;
    Ok(Device {
        tracking: Box::new(tracking),
        mapping: Box::new(mapping),
    })
}

/// Keyframes and edges that are known before the tables for them grow.
const KEYFRAMES: usize = 4096;

/// For cameras whose images are the network's: resampling to the same size changes nothing.
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

fn identity(mut pose: PinnedBuffer<f64>) -> PinnedBuffer<f64> {
    pose.copy_from_slice(&Sim3::identity().to_array());
    pose
}

/// Makes what both halves have.
struct Maker<'a> {
    context: &'a Context,
    pool: &'a Pool,
    shape: &'a NetworkShape,
    config: &'a Config,
}

impl Maker<'_> {
    /// `ways`: of all pairs that are decoded together, as the plan has it.
    fn network(
        &self,
        backend: Box<dyn Backend>,
        stream: &Stream,
        plan: NetworkPlan,
        ways: usize,
    ) -> Result<Network, DeviceError> {
        let pool = self.pool;
        let features = pool.device(plan.features)?;
        stream.fill(features.all(), 0)?;
        let view = |planned| {
            let mut arena = pool.device_arena(planned)?;
            let pixels = ways * self.shape.pixels();
            ViewBuffers::carve(&mut arena, pixels, self.shape.descriptor_dim)
        };
        let [first, second] = plan.views.map(view);
        let views = [first?, second?];
        let host_view = |planned: HostView| {
            Ok::<_, CudaError>(PinnedView {
                points: pool.pinned(planned.points)?,
                confidence: pool.pinned(planned.confidence)?,
                descriptors: pool.pinned(planned.descriptors)?,
                descriptor_confidence: pool.pinned(planned.descriptor_confidence)?,
            })
        };
        let staging = match plan.host {
            Some(HostNetworkPlan { features, views }) => {
                let [first, second] = features.map(|planned| pool.pinned(planned));
                let features = [first?, second?];
                let [first, second] = views.map(host_view);
                let views = [first?, second?];
                Some(Staging { features, views })
            }
            None => None,
        };
        let workspace = plan.workspace.map(|planned| pool.device(planned));
        let workspace = workspace.transpose()?;
        Network::new(self.context, backend, features, views, workspace, staging)
    }

    fn sanitiser(&self, stream: &Stream, plan: PlannedArena) -> Result<Sanitiser, CudaError> {
        let mut arena = self.pool.device_arena(plan)?;
        let (pixels, channels) = (self.shape.pixels(), self.shape.descriptor_dim);
        Sanitiser::new(self.context, &mut arena, stream, pixels, channels)
    }

    fn matcher(&self, plan: PlannedArena, refinement: Refinement) -> Result<Matcher, CudaError> {
        let mut arena = self.pool.device_arena(plan)?;
        let NetworkShape {
            width,
            height,
            descriptor_dim,
            ..
        } = *self.shape;
        Matcher::new(
            self.context,
            &mut arena,
            width,
            height,
            descriptor_dim,
            refinement,
        )
    }

    fn solver(&self, stream: &Stream, plan: PlannedArena) -> Result<PoseSolver, CudaError> {
        let mut arena = self.pool.device_arena(plan)?;
        PoseSolver::new(self.context, stream, &mut arena, self.shape.pixels())
    }

    fn fusion(&self, plan: PlannedArena, mode: FilteringMode) -> Result<Fusion, CudaError> {
        let mut arena = self.pool.device_arena(plan)?;
        let score = self.config.tracking.filtering_score;
        Fusion::new(self.context, &mut arena, self.shape.pixels(), mode, score)
    }

    fn events<const N: usize>(&self) -> Result<[Event; N], CudaError> {
        let events = (0..N).map(|_| self.context.event(true));
        let events: Vec<Event> = events.collect::<Result<_, _>>()?;
        events
            .try_into()
            .map_err(|found: Vec<Event>| CudaError::Length {
                what: "events",
                expected: N,
                found: found.len(),
            })
    }
}

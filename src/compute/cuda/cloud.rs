//! The coloured cloud of the map on the device: what [`crate::map::cloud`] defines, bit for bit, in
//! the layout of a PointCloud2 message.
//!
//! [`Cloud::add`] takes keyframes in the map's order; [`Cloud::size`] says how many points there are
//! before anything of the size of the output is written; [`Cloud::pack`] writes them.

use super::{
    Context, CudaError, DeviceArena, DeviceBuffer, DevicePointer, DeviceSlice, Grid, Kernel,
    KernelArgument, PinnedArena, PinnedBuffer, Stream,
};
use crate::compute::cuda::slots::SlotView;
use crate::compute::plan::Spec;
use crate::geometry::{Intrinsics, Sim3};
use half::f16;

/// Pixels of a block in the kernels that count, threads of the one that adds the counts up, and of the
/// others, as in `cloud.cu`.
const COUNTING: u32 = 1024;
const SCAN: u32 = 256;
const THREADS: u32 = 256;

/// How large a cloud can become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloudPlan {
    /// Columns of the images.
    pub width: usize,
    /// Rows of the images.
    pub height: usize,
    /// Most points.
    pub capacity: usize,
}

impl CloudPlan {
    fn pixels(&self) -> usize {
        self.width * self.height
    }

    /// Places of the table of cubes: a power of two, of which at most 3/4 are ever in use.
    fn table(&self) -> usize {
        let known = self.capacity.saturating_add(self.pixels());
        let places = known.saturating_add(known.div_ceil(3));
        places.checked_next_power_of_two().unwrap_or(usize::MAX)
    }
}

/// What of each point a message holds beside `x`, `y`, `z` (f32) and `rgb` (u32, 0x00RRGGBB).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CloudFields {
    /// `confidence` (f32).
    pub confidence: bool,
    /// `keyframe` and `revision` (u32 each).
    pub origin: bool,
}

impl CloudFields {
    /// 4-byte words of a point: a quarter of a message's `point_step`.
    pub fn words(self) -> usize {
        4 + usize::from(self.confidence) + 2 * usize::from(self.origin)
    }
}

/// How many points a cloud has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CloudSize {
    /// Points in it.
    pub points: u64,
    /// Points that found no room: of keyframes' points that belong to a cube (or are one, without
    /// cubes) that came when the cloud had its capacity.
    pub refused: u64,
}

/// A keyframe as the kernels take it (`Frame` in `cloud.cu`).
#[derive(Clone, Copy)]
#[repr(C)]
struct Frame {
    rotation: [f64; 9],
    translation: [f64; 3],
    camera: [f64; 4],
    points: DevicePointer<f32>,
    half_confidence: DevicePointer<f16>,
    confidence: DevicePointer<f32>,
    image: DevicePointer<u8>,
    least_confidence: f32,
    calibrated: u32,
    keyframe: u32,
    reserved: u32,
}

// SAFETY: `repr(C)`, field by field as the kernels' struct, without padding.
unsafe impl KernelArgument for Frame {}

/// Counts as the kernels keep them (`Cloud` in `cloud.cu`): points, refused, wanted.
type State = [u64; 3];

/// A keyframe whose points become part of a cloud.
#[derive(Clone, Copy)]
pub struct CloudKeyframe<'a> {
    /// Its id.
    pub id: u32,
    /// Its bulk, leased while [`Cloud::add`] enqueues.
    pub slot: SlotView<'a>,
    /// Its pose.
    pub world_from_camera: Sim3,
}

/// A cloud of at most a fixed number of points.
pub struct Cloud {
    plan: CloudPlan,
    /// Edge of a cube; `None` keeps every point.
    edge: Option<f32>,
    clear: Kernel,
    points: Kernel,
    claim: Kernel,
    count: Kernel,
    scan: Kernel,
    store: Kernel,
    refused: Kernel,
    pack: Kernel,
    staged: DeviceBuffer<[f32; 4]>,
    table: DeviceBuffer<u32>,
    first: DeviceBuffer<u32>,
    best: DeviceBuffer<u64>,
    places: DeviceBuffer<u32>,
    roles: DeviceBuffer<u8>,
    block_counts: DeviceBuffer<u32>,
    block_starts: DeviceBuffer<u64>,
    stored: DeviceBuffer<[u32; 4]>,
    confidences: DeviceBuffer<f32>,
    keyframes: DeviceBuffer<u32>,
    state: DeviceBuffer<State>,
    size: PinnedBuffer<State>,
}

impl Cloud {
    /// Buffers on the device, in the order in which they are carved.
    pub fn device_buffers(plan: &CloudPlan) -> Vec<Spec> {
        let (pixels, capacity) = (plan.pixels(), plan.capacity);
        let known = capacity.saturating_add(pixels);
        let blocks = pixels.div_ceil(COUNTING as usize);
        vec![
            Spec::of::<[f32; 4]>("staging", &[pixels]),
            Spec::of::<u32>("cubes", &[plan.table()]),
            Spec::of::<u32>("first pixels", &[known]),
            Spec::of::<u64>("best pixels", &[known]),
            Spec::of::<u32>("places", &[pixels]),
            Spec::of::<u8>("roles", &[pixels]),
            Spec::of::<u32>("block counts", &[blocks]),
            Spec::of::<u64>("block starts", &[blocks]),
            Spec::of::<[u32; 4]>("points", &[capacity]),
            Spec::of::<f32>("confidences", &[capacity]),
            Spec::of::<u32>("keyframes", &[capacity]),
            Spec::of::<State>("counts", &[1]),
        ]
    }

    /// Pinned buffers, in the order in which they are carved.
    pub fn pinned_buffers() -> Vec<Spec> {
        vec![Spec::of::<State>("counts", &[1])]
    }

    /// Carves the buffers. The cloud is to be cleared before use.
    pub fn new(
        context: &Context,
        plan: CloudPlan,
        arena: &mut DeviceArena,
        pinned: &mut PinnedArena,
    ) -> Result<Self, CudaError> {
        // Numbers of points, pixels and free places share 32 bits.
        let limit = u32::MAX as usize - 2;
        let known = plan.capacity.saturating_add(plan.pixels());
        if known > limit || plan.table() > limit || plan.pixels() == 0 {
            return Err(CudaError::Length {
                what: "points and pixels of a cloud",
                expected: limit,
                found: known,
            });
        }
        let blocks = plan.pixels().div_ceil(COUNTING as usize);
        let kernel = |name| context.kernel(name);
        Ok(Self {
            plan,
            edge: None,
            clear: kernel("ms_cloud_clear")?,
            points: kernel("ms_cloud_points")?,
            claim: kernel("ms_cloud_claim")?,
            count: kernel("ms_cloud_count")?,
            scan: kernel("ms_cloud_scan")?,
            store: kernel("ms_cloud_store")?,
            refused: kernel("ms_cloud_refused")?,
            pack: kernel("ms_cloud_pack")?,
            staged: arena.carve("staging", plan.pixels())?,
            table: arena.carve("cubes", plan.table())?,
            first: arena.carve("first pixels", known)?,
            best: arena.carve("best pixels", known)?,
            places: arena.carve("places", plan.pixels())?,
            roles: arena.carve("roles", plan.pixels())?,
            block_counts: arena.carve("block counts", blocks)?,
            block_starts: arena.carve("block starts", blocks)?,
            stored: arena.carve("points", plan.capacity)?,
            confidences: arena.carve("confidences", plan.capacity)?,
            keyframes: arena.carve("keyframes", plan.capacity)?,
            state: arena.carve("counts", 1)?,
            size: pinned.carve("counts", 1)?,
        })
    }

    /// An empty cloud of which each cube of `voxel_size` metres keeps its most confident point, the
    /// first of equals; 0 (or anything that is no positive number) keeps every point.
    pub fn clear(&mut self, stream: &Stream, voxel_size: f32) -> Result<(), CudaError> {
        self.edge = (voxel_size > 0.0).then_some(voxel_size);
        let slots = self.table.len() as u64;
        let known = self.first.len() as u64;
        let grid = Grid::over(self.table.len().max(self.first.len()), THREADS);
        // SAFETY: the lengths are those of the buffers.
        unsafe {
            self.clear.launch(
                stream,
                grid,
                (
                    self.table.pointer(),
                    slots,
                    self.first.pointer(),
                    self.best.pointer(),
                    known,
                    self.state.pointer(),
                ),
            )
        }
    }

    /// Adds a keyframe's points of more than `min_confidence`; with intrinsics, moved along z onto their
    /// pixel's ray. Enqueues; the lease may go when it returns.
    pub fn add(
        &self,
        stream: &Stream,
        keyframe: &CloudKeyframe<'_>,
        intrinsics: Option<&Intrinsics>,
        min_confidence: f32,
    ) -> Result<(), CudaError> {
        let n = self.plan.pixels();
        let slot = &keyframe.slot;
        let image = slot.image.at_least("image bytes", 3 * n)?;
        let points = slot.points.at_least("point coordinates", 3 * n)?;
        if slot.confidence.len() < n {
            return Err(CudaError::Length {
                what: "confidences",
                expected: n,
                found: slot.confidence.len(),
            });
        }
        let (half_confidence, confidence) = slot.confidence.pointers();
        let m = keyframe.world_from_camera.scaled_rotation();
        let t = keyframe.world_from_camera.translation;
        let k = intrinsics.map_or([1.0, 1.0, 0.0, 0.0], |k| [k.fx, k.fy, k.cx, k.cy]);
        let frame = Frame {
            rotation: std::array::from_fn(|i| m[(i / 3, i % 3)]),
            translation: [t.x, t.y, t.z],
            camera: k,
            points: points.pointer(),
            half_confidence,
            confidence,
            image: image.pointer(),
            least_confidence: min_confidence,
            calibrated: u32::from(intrinsics.is_some()),
            keyframe: keyframe.id,
            reserved: 0,
        };
        // SAFETY: image, points and confidences were measured above, the buffers were carved for the plan's
        // pixels and capacity, which are the numbers that the kernels get.
        unsafe { self.launch(stream, frame) }
    }

    /// # Safety
    /// The frame's pointers lead to the plan's pixels.
    unsafe fn launch(&self, stream: &Stream, frame: Frame) -> Result<(), CudaError> {
        let pixels = self.plan.pixels() as u32;
        let capacity = self.plan.capacity as u32;
        let per_metre = self.edge.map(|edge| 1.0 / f64::from(edge));
        let cubes = u32::from(self.edge.is_some());
        let mask = self.table.len() as u32 - 1;
        let each = Grid::over(self.plan.pixels(), THREADS);
        let counting = Grid::over(self.plan.pixels(), COUNTING);
        let staged = self.staged.pointer();
        // SAFETY: the caller's promise; everything else is a buffer of this cloud.
        unsafe {
            self.points.launch(
                stream,
                each,
                (frame, self.plan.width as u32, pixels, staged),
            )?;
            if let Some(per_metre) = per_metre {
                self.claim.launch(
                    stream,
                    each,
                    (
                        staged,
                        pixels,
                        self.stored.pointer(),
                        capacity,
                        per_metre,
                        self.table.pointer(),
                        mask,
                        self.first.pointer(),
                        self.best.pointer(),
                        self.places.pointer(),
                        self.state.pointer(),
                    ),
                )?;
            }
            self.count.launch(
                stream,
                counting,
                (
                    staged,
                    pixels,
                    cubes,
                    capacity,
                    self.table.pointer(),
                    self.first.pointer(),
                    self.places.pointer(),
                    self.roles.pointer(),
                    self.block_counts.pointer(),
                ),
            )?;
            self.scan.launch(
                stream,
                Grid::blocks(1, SCAN),
                (
                    self.block_counts.pointer(),
                    counting.blocks.0,
                    capacity,
                    self.block_starts.pointer(),
                    self.state.pointer(),
                ),
            )?;
            self.store.launch(
                stream,
                counting,
                (
                    frame,
                    staged,
                    pixels,
                    cubes,
                    capacity,
                    self.roles.pointer(),
                    self.block_starts.pointer(),
                    self.places.pointer(),
                    self.table.pointer(),
                    self.first.pointer(),
                    self.best.pointer(),
                    self.stored.pointer(),
                    self.confidences.pointer(),
                    self.keyframes.pointer(),
                ),
            )?;
            self.refused.launch(
                stream,
                each,
                (
                    staged,
                    pixels,
                    cubes,
                    capacity,
                    self.table.pointer(),
                    self.places.pointer(),
                    self.state.pointer(),
                ),
            )
        }
    }

    /// How many points there are. Waits for the stream.
    pub fn size(&mut self, stream: &Stream) -> Result<CloudSize, CudaError> {
        // SAFETY: the pinned buffer is this cloud's, borrowed exclusively until the copy has run.
        let enqueued = unsafe { stream.download(self.state.all(), &mut self.size) };
        stream.synchronize()?;
        enqueued?;
        let [points, refused, _] = self.size.first().copied().unwrap_or_default();
        Ok(CloudSize { points, refused })
    }

    /// Writes points `from..from + count` to `dst`, `fields.words()` words each, as a PointCloud2 message has
    /// them (little-endian). `from + count` is at most what [`Cloud::size`] said.
    pub fn pack(
        &self,
        stream: &Stream,
        from: usize,
        count: usize,
        fields: CloudFields,
        revision: u32,
        dst: DeviceSlice<'_, u32>,
    ) -> Result<(), CudaError> {
        if from.saturating_add(count) > self.plan.capacity {
            return Err(CudaError::Length {
                what: "points of a cloud",
                expected: from.saturating_add(count),
                found: self.plan.capacity,
            });
        }
        let dst = dst.at_least("words of a cloud's message", count * fields.words())?;
        let bits = u32::from(fields.confidence) | u32::from(fields.origin) << 1;
        // SAFETY: `dst` has room for `count` points, and the store has `from + count`.
        unsafe {
            self.pack.launch(
                stream,
                Grid::over(count, THREADS),
                (
                    self.stored.pointer(),
                    self.confidences.pointer(),
                    self.keyframes.pointer(),
                    from as u64,
                    count as u64,
                    bits,
                    revision,
                    dst.pointer(),
                ),
            )
        }
    }
}

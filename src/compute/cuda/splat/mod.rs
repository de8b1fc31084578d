//! The Gaussian map on a GPU: as [`crate::compute::splat::CpuSplat`], within rounding. Refinement decides with the same
//! bits; only the offsets of split rows are rounded differently.

mod arguments;
mod buffers;
mod refine;
mod relocate;
mod sort;
mod train;
mod view;

pub use buffers::{SplatBuffers, SplatSizes};

use super::small;
use crate::compute::splat::SplatError;
use crate::compute::splat::blend::Image;
use crate::compute::splat::block::{BlockContent, RowBlock};
use crate::compute::splat::camera::{Camera, Pointmap, Rendering, View};
use crate::compute::splat::device::{
    AdamStep, AnchorMove, Counters, Counts, Loss, LossWeights, RefineRules, RelocateRules,
    Relocated, RowGradients, SeedRules, Seeded, SplatDevice, SplatMemory,
};
use crate::compute::splat::layout::{CANARY, CANARY_BYTES, Field, Layout, Plane, PlaneKind};
use crate::compute::splat::seed;
use crate::compute::splat::sh::BandRotation;
use crate::gpu::plan::{Group, MemoryPlan};
use crate::gpu::{Carving, Context, CudaError, DeviceSlice, Grid, Kernel, Priority, Stream};
use arguments::{DeviceCamera, Pool, plane_rows};
use buffers::{MOVE_FLOATS, MOVES};
use refine::Refiner;
use relocate::Relocator;
use train::Trainer;
use view::{Frame, Renderer};

/// Threads of a block of the kernels that go over rows.
const THREADS: u32 = 256;
/// Blocks of these kernels.
const BLOCKS: u32 = 2048;

impl From<CudaError> for SplatError {
    fn from(error: CudaError) -> Self {
        Self::Device {
            device: "the GPU",
            cause: Box::new(error),
        }
    }
}

/// Name of the map's buffers in plans.
const PART: &str = "map";

/// What a view shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// Rows.
    pub visible: u64,
    /// Rows in tiles.
    pub entries: u64,
}

/// A Gaussian map in the memory of a GPU, with a stream of low priority.
pub struct CudaSplat {
    name: String,
    layout: Layout,
    sizes: SplatSizes,
    stream: Stream,
    buffers: SplatBuffers,
    pool: Pool,
    rows: u64,
    epoch: u64,
    renderer: Renderer,
    trainer: Trainer,
    refiner: Refiner,
    relocator: Relocator,
    reset: Kernel,
    shift: Kernel,
    /// The view whose gradients are there.
    frame: Option<Frame>,
    /// What a keyframe's camera sees, while it is seeded.
    shown: Image,
}

impl CudaSplat {
    /// A map without rows in `buffers`, which were carved for `sizes`.
    ///
    /// # Errors
    /// Those of [`SplatSizes::layout`]; [`SplatError::Device`].
    pub fn new(
        context: &Context,
        buffers: SplatBuffers,
        sizes: SplatSizes,
    ) -> Result<Self, SplatError> {
        let layout = sizes.layout()?;
        let stream = context.stream(Priority::Low)?;
        let pool = Pool::new(&buffers.pool, &layout)?;
        for plane in layout.planes() {
            stream.fill(canary(&buffers, plane)?, CANARY)?;
        }
        stream.synchronize()?;
        Ok(Self {
            name: context.info().name.clone(),
            sizes,
            buffers,
            pool,
            rows: 0,
            epoch: 0,
            renderer: Renderer::new(context)?,
            trainer: Trainer::new(context)?,
            refiner: Refiner::new(context)?,
            relocator: Relocator::new(context)?,
            reset: context.kernel("ms_splat_reset_opacity")?,
            shift: context.kernel("ms_splat_move")?,
            frame: None,
            shown: Image::default(),
            layout,
            stream,
        })
    }

    /// A map without rows in an allocation of its own.
    ///
    /// # Errors
    /// [`SplatError::Memory`] if it does not fit; those of [`CudaSplat::new`].
    pub fn allocate(context: &Context, sizes: SplatSizes) -> Result<Self, SplatError> {
        let plan = Self::plan(&sizes)?;
        let (needed, (available, _)) = (plan.device_bytes(), context.memory()?);
        if needed > available {
            return Err(SplatError::Memory {
                capacity: sizes.capacity,
                needed,
                available,
                fits: sizes.fitting(available),
            });
        }
        let mut carving = Carving::planned(context, &plan)?;
        let buffers = SplatBuffers::carve(&mut carving.part(Group::Splat, PART), &sizes)?;
        carving.finish()?;
        Self::new(context, buffers, sizes)
    }

    /// The memory of a map.
    ///
    /// # Errors
    /// Those of [`SplatSizes::layout`] and [`SplatBuffers::carve`].
    pub fn plan(sizes: &SplatSizes) -> Result<MemoryPlan, SplatError> {
        sizes.layout()?;
        let mut carving = Carving::on_paper();
        SplatBuffers::carve(&mut carving.part(Group::Splat, PART), sizes)?;
        Ok(carving.into_plan())
    }

    /// Draws a camera; the image stays on the device. Enqueues, and waits in between.
    ///
    /// # Errors
    /// Those of [`SplatDevice::render`].
    pub fn forward(&mut self, camera: &Camera) -> Result<Drawn, SplatError> {
        self.frame = None;
        let frame = self.draw(camera)?;
        let drawn = Drawn {
            visible: frame.visible as u64,
            entries: frame.entries(),
        };
        self.frame = Some(frame);
        Ok(drawn)
    }

    /// The loss of what [`CudaSplat::forward`] drew against the view sent last, and its gradients.
    ///
    /// # Errors
    /// [`SplatError::NoGradients`] if nothing was drawn; those of [`SplatDevice::gradients`].
    pub fn backward(&mut self, weights: &LossWeights, depth: bool) -> Result<Loss, SplatError> {
        let mut frame = self.frame.take().ok_or(SplatError::NoGradients)?;
        let (stream, b) = (&self.stream, &self.buffers);
        let rows = (self.pool, self.rest());
        (self.trainer).by_image(stream, b, &frame.camera, weights, depth)?;
        self.renderer.backward(stream, b, &mut frame, depth)?;
        (self.trainer).by_rows(stream, b, rows, &frame, weights.statistics)?;
        let loss = self.trainer.loss(stream, b, &frame, weights)?;
        self.frame = Some(frame);
        Ok(loss)
    }

    /// Sends a view's images to the device.
    fn send(&self, view: &View<'_>) -> Result<(), SplatError> {
        let (pixels, images) = (view.camera.pixels(), &self.buffers.images);
        let image = images
            .image
            .all()
            .at_least("pixels of a view", 3 * pixels)?;
        self.stream.write(view.image, image.slice(0..3 * pixels)?)?;
        if let Some(measured) = view.depth {
            let depth = images.measured.slice(0..pixels)?;
            self.stream.write(measured, depth)?;
        }
        Ok(())
    }

    /// The stream of the map, for timing.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    fn rest(&self) -> u32 {
        Field::Rest.width(self.layout.degree()) as u32
    }

    /// After a change of rows other than by a step.
    fn changed(&mut self) {
        self.epoch += 1;
        self.frame = None;
    }

    /// Rows of a plane.
    fn part(
        &self,
        kind: PlaneKind,
        start: u64,
        end: u64,
    ) -> Result<DeviceSlice<'_, u8>, CudaError> {
        plane_rows(&self.buffers.pool, &self.layout, kind, start, end)
    }

    fn project(&self, camera: &Camera) -> Result<Frame, SplatError> {
        camera.check()?;
        if camera.pixels() > self.sizes.pixels {
            return Err(SplatError::Crowded {
                what: "pixels of an image",
                found: camera.pixels() as u64,
                limit: self.sizes.pixels as u64,
            });
        }
        let camera = DeviceCamera::new(camera, self.layout.degree());
        let (b, rest) = (&self.buffers, self.rest());
        (self.renderer).project(&self.stream, b, self.pool, rest, self.rows, camera)
    }

    /// Draws a camera and copies depth and silhouette.
    fn draw(&self, camera: &Camera) -> Result<Frame, SplatError> {
        let mut frame = self.project(camera)?;
        (self.renderer).blend(&self.stream, &self.buffers, &mut frame)?;
        Ok(frame)
    }

    /// Sets statistics and observations of rows to 0.
    fn clear_statistics(&self, start: u64, end: u64) -> Result<(), CudaError> {
        for kind in [PlaneKind::GradientSum, PlaneKind::Seen] {
            self.stream.fill(self.part(kind, start, end)?, 0)?;
        }
        Ok(())
    }
}

/// The canary of a plane.
fn canary<'a>(b: &'a SplatBuffers, plane: &Plane) -> Result<DeviceSlice<'a, u8>, CudaError> {
    let start = usize::try_from(plane.canary()).unwrap_or(usize::MAX);
    b.pool
        .slice(start..start.saturating_add(CANARY_BYTES as usize))
}

/// The bytes of values.
fn bytes<T: crate::gpu::Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, and any byte is a u8.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of values, to be written.
fn bytes_mut<T: crate::gpu::Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: elements have no padding, and any bytes are an element.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// A move as the kernel takes it.
fn prepare(moved: &AnchorMove) -> [f32; MOVE_FLOATS] {
    let transform = &moved.new_from_old;
    let rotation = transform.rotation.to_rotation_matrix().into_inner();
    let q = transform.rotation.into_inner();
    let mut floats = [0.0; MOVE_FLOATS];
    for (k, value) in floats[..9].iter_mut().enumerate() {
        *value = (transform.scale * rotation[(k / 3, k % 3)]) as f32;
    }
    for (k, value) in floats[9..12].iter_mut().enumerate() {
        *value = transform.translation[k] as f32;
    }
    floats[12..16].copy_from_slice(&[q.w, q.i, q.j, q.k].map(|v| v as f32));
    floats[16] = transform.scale.ln() as f32;
    floats[17..].copy_from_slice(BandRotation::new(&rotation).matrices());
    floats
}

impl SplatDevice for CudaSplat {
    fn name(&self) -> &str {
        &self.name
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn counts(&self) -> Counts {
        Counts {
            rows: self.rows,
            capacity: self.layout.capacity(),
            epoch: self.epoch,
        }
    }

    fn memory(&self) -> SplatMemory {
        self.buffers.memory(&self.sizes)
    }

    fn append(&mut self, src: &RowBlock) -> Result<u64, SplatError> {
        src.check(self.layout.degree())?;
        let (start, rows) = (self.rows, src.rows() as u64);
        if rows > self.layout.capacity() - start {
            return Err(SplatError::Full {
                rows,
                held: start,
                capacity: self.layout.capacity(),
            });
        }
        let end = start + rows;
        let put = |kind, values: &[u8]| {
            let to = self.part(kind, start, end)?;
            match to.is_empty() {
                true => Ok(()),
                false => self.stream.write(values, to),
            }
        };
        let clear = |kind| self.stream.fill(self.part(kind, start, end)?, 0);
        let state = src.content() == BlockContent::State;
        if rows > 0 {
            for field in Field::ALL {
                put(
                    PlaneKind::Parameter(field),
                    bytes(src.parameters.get(field)),
                )?;
                if state {
                    put(PlaneKind::First(field), bytes(src.first.get(field)))?;
                    put(PlaneKind::Second(field), bytes(src.second.get(field)))?;
                } else if field.width(self.layout.degree()) > 0 {
                    clear(PlaneKind::First(field))?;
                    clear(PlaneKind::Second(field))?;
                }
            }
            put(PlaneKind::Anchor, bytes(&src.anchor))?;
            if state {
                put(PlaneKind::GradientSum, bytes(&src.gradient_sum))?;
                put(PlaneKind::Seen, bytes(&src.seen))?;
                put(PlaneKind::Observed, bytes(&src.observed))?;
            } else {
                self.clear_statistics(start, end)?;
                clear(PlaneKind::Observed)?;
            }
            self.stream.synchronize()?;
        }
        self.rows = end;
        self.changed();
        Ok(start)
    }

    fn read(&mut self, start: u64, dst: &mut RowBlock) -> Result<(), SplatError> {
        dst.check(self.layout.degree())?;
        let end = start.saturating_add(dst.rows() as u64);
        if end > self.rows {
            return Err(SplatError::Rows {
                start,
                end,
                held: self.rows,
            });
        }
        let get = |kind, values: &mut [u8]| match values.is_empty() {
            true => Ok(()),
            false => self.stream.read(self.part(kind, start, end)?, values),
        };
        let state = dst.content() == BlockContent::State;
        for field in Field::ALL {
            let to = dst.parameters.get_mut(field);
            get(PlaneKind::Parameter(field), bytes_mut(to))?;
            if state {
                get(PlaneKind::First(field), bytes_mut(dst.first.get_mut(field)))?;
                get(
                    PlaneKind::Second(field),
                    bytes_mut(dst.second.get_mut(field)),
                )?;
            }
        }
        get(PlaneKind::Anchor, bytes_mut(&mut dst.anchor))?;
        if state {
            get(PlaneKind::GradientSum, bytes_mut(&mut dst.gradient_sum))?;
            get(PlaneKind::Seen, bytes_mut(&mut dst.seen))?;
            get(PlaneKind::Observed, bytes_mut(&mut dst.observed))?;
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), SplatError> {
        self.rows = 0;
        self.changed();
        Ok(())
    }

    fn render(&mut self, camera: &Camera, dst: &mut Rendering) -> Result<(), SplatError> {
        // The packed rows of the last gradients are overwritten.
        self.frame = None;
        self.draw(camera)?;
        let pixels = camera.pixels();
        dst.reshape(camera.width, camera.height);
        let images = &self.buffers.images;
        (self.stream).read(images.colour.slice(0..3 * pixels)?, &mut dst.color)?;
        (self.stream).read(images.depth.slice(0..pixels)?, &mut dst.depth)?;
        (self.stream).read(images.left.slice(0..pixels)?, &mut dst.silhouette)?;
        dst.silhouette.iter_mut().for_each(|s| *s = 1.0 - *s);
        Ok(())
    }

    fn gradients(&mut self, view: &View<'_>, weights: &LossWeights) -> Result<Loss, SplatError> {
        view.check()?;
        self.forward(&view.camera)?;
        self.send(view)?;
        self.backward(weights, view.depth.is_some())
    }

    fn read_gradients(&mut self, dst: &mut RowGradients) -> Result<(), SplatError> {
        let frame = self.frame.as_ref().ok_or(SplatError::NoGradients)?;
        let rows = (self.pool, self.rest());
        (self.trainer).read(&self.stream, &self.buffers, rows, frame, dst)
    }

    fn step(&mut self, step: &AdamStep) -> Result<(), SplatError> {
        let frame = self.frame.take().ok_or(SplatError::NoGradients)?;
        let (rows, of) = ((self.pool, self.rest()), (step, self.rows));
        (self.trainer).step(&self.stream, &self.buffers, rows, &frame, of)?;
        Ok(self.stream.synchronize()?)
    }

    fn refine(&mut self, rules: &RefineRules) -> Result<Counters, SplatError> {
        self.changed();
        let (stream, b) = (&self.stream, &self.buffers);
        let of = (self.pool, self.rest());
        let sizes = (self.rows, self.layout.capacity());
        let mut counters = self.refiner.refine(stream, b, of, sizes, rules)?;
        counters.epoch = self.epoch;
        self.clear_statistics(0, counters.rows.max(counters.after))?;
        self.stream.synchronize()?;
        self.rows = counters.after;
        Ok(counters)
    }

    fn relocate(&mut self, rules: &RelocateRules) -> Result<Relocated, SplatError> {
        self.changed();
        let (stream, b) = (&self.stream, &self.buffers);
        let of = (self.pool, self.rest());
        let sizes = (self.rows, self.layout.capacity());
        let done = self.relocator.relocate(stream, b, of, sizes, rules)?;
        self.clear_statistics(0, done.rows)?;
        self.stream.synchronize()?;
        self.rows = done.rows;
        Ok(done)
    }

    fn reset_opacity(&mut self, logit: f32) -> Result<(), SplatError> {
        self.frame = None;
        let arguments = (self.pool, self.rows, logit);
        let grid = Grid::blocks(BLOCKS, THREADS);
        // SAFETY: the pool has that many rows.
        unsafe { self.reset.launch(&self.stream, grid, arguments)? };
        Ok(self.stream.synchronize()?)
    }

    fn seed(&mut self, pointmap: &Pointmap<'_>, rules: &SeedRules) -> Result<Seeded, SplatError> {
        pointmap.check()?;
        self.frame = None;
        self.draw(&pointmap.camera)?;
        let pixels = pointmap.camera.pixels();
        let images = &self.buffers.images;
        let depth = self.stream.read_vec(images.depth.slice(0..pixels)?)?;
        let left = self.stream.read_vec(images.left.slice(0..pixels)?)?;
        let mut shown = std::mem::take(&mut self.shown);
        shown.depth.clear();
        shown.depth.extend(depth.into_iter().map(f64::from));
        shown.silhouette.clear();
        (shown.silhouette).extend(left.into_iter().map(|left| f64::from(1.0 - left)));
        let room = (self.layout.capacity() - self.rows, self.layout.degree());
        let (block, seeded) = seed::rows(pointmap, &shown, rules, room);
        self.shown = shown;
        self.append(&block)?;
        Ok(seeded)
    }

    fn move_anchors(&mut self, moves: &[AnchorMove]) -> Result<(), SplatError> {
        self.frame = None;
        let mut sorted: Vec<&AnchorMove> = moves
            .iter()
            .filter(|m| m.new_from_old.is_finite())
            .collect();
        // If a keyframe has several moves, the last one counts.
        sorted.reverse();
        sorted.sort_by_key(|m| m.anchor);
        sorted.dedup_by_key(|m| m.anchor);
        for part in sorted.chunks(MOVES) {
            let anchors: Vec<u32> = part.iter().map(|m| m.anchor).collect();
            let floats: Vec<f32> = part.iter().flat_map(|m| prepare(m)).collect();
            let (b, stream) = (&self.buffers, &self.stream);
            stream.write(&anchors, b.anchors.slice(0..anchors.len())?)?;
            stream.write(&floats, b.moves.slice(0..floats.len())?)?;
            let arguments = (
                self.pool,
                self.rest(),
                self.rows,
                b.anchors.pointer(),
                b.moves.pointer(),
                small("moves of keyframes", part.len())?,
            );
            // SAFETY: the pool has that many rows; anchors and moves were just written.
            unsafe { (self.shift).launch(stream, Grid::blocks(BLOCKS, THREADS), arguments)? };
            stream.synchronize()?;
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), SplatError> {
        let mut changed = 0;
        for plane in self.layout.planes() {
            let found = self.stream.read_vec(canary(&self.buffers, plane)?)?;
            changed += found.into_iter().filter(|byte| *byte != CANARY).count() as u64;
        }
        if changed == 0 {
            return Ok(());
        }
        Err(SplatError::Corrupt {
            what: "changed bytes behind the planes",
            expected: 0,
            found: changed,
        })
    }
}

//! Pointmaps whose depth was measured by a camera elsewhere than assumed, as
//! [`crate::compute::depth::pointmap::PointmapMover`] corrects them.

use super::field::{DepthField, DepthFieldBuffers};
use super::moved::{DepthMover, DepthMoverBuffers};
use super::{DepthMeter, DepthMeterBuffers, Found, MeasureTask};
use crate::compute::depth::moved::DepthMotion;
use crate::compute::depth::pointmap::of_moved_pixels;
use crate::geometry::{Intrinsics, Sim3};
use crate::gpu::{Carver, Context, CudaError, DeviceBuffer, DeviceSlice, Stream};

/// Memory of a [`PointmapMover`].
pub struct PointmapMoverBuffers {
    meter: DepthMeterBuffers,
    mover: DepthMoverBuffers,
    field: DepthFieldBuffers,
    moved: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f32>,
    found: DeviceBuffer<Found>,
}

impl PointmapMoverBuffers {
    /// Buffers for pointmaps of this size.
    pub fn carve(c: &mut Carver<'_, '_>, width: usize, height: usize) -> Result<Self, CudaError> {
        Ok(Self {
            meter: DepthMeterBuffers::carve(&mut c.part("meter"), width, height)?,
            mover: DepthMoverBuffers::carve(&mut c.part("mover"), width, height)?,
            field: DepthFieldBuffers::carve(&mut c.part("field"), width, height)?,
            moved: c.device("moved depth", &[height, width])?,
            confidence: c.device("confidence", &[height, width])?,
            found: c.device("scale", &[1])?,
        })
    }
}

/// Corrects pointmaps of one size, one at a time on one stream.
pub struct PointmapMover {
    meter: DepthMeter,
    mover: DepthMover,
    field: DepthField,
    camera: Intrinsics,
    moved: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f32>,
    found: DeviceBuffer<Found>,
}

impl PointmapMover {
    /// For pointmaps of this size and camera, for which `buffers` were carved.
    pub fn new(
        context: &Context,
        stream: &Stream,
        buffers: PointmapMoverBuffers,
        (width, height): (usize, usize),
        camera: &Intrinsics,
    ) -> Result<Self, CudaError> {
        let size = (width, height);
        Ok(Self {
            meter: DepthMeter::new(context, stream, buffers.meter, width, height)?,
            mover: DepthMover::new(context, buffers.mover, width, height)?,
            field: DepthField::new(context, stream, buffers.field, size, (camera, 0.0))?,
            camera: *camera,
            moved: buffers.moved,
            confidence: buffers.confidence,
            found: buffers.found,
        })
    }

    /// Corrects `points` (`N × 3`), whose `confidence` is positive where they count, and which are seen where they are
    /// after `motion`. Returns `false`, with the points unchanged, if the moved depths do not fit them. Waits.
    pub fn run(
        &self,
        stream: &Stream,
        points: DeviceSlice<'_, f32>,
        confidence: DeviceSlice<'_, f32>,
        motion: &Sim3,
    ) -> Result<bool, CudaError> {
        let (moved, of_scale) = (self.moved.all(), self.found.all());
        let motion = DepthMotion::new(motion, &self.camera);
        self.mover.run_points(stream, points, &motion, moved)?;
        stream.write(&[Found::unscaled()], of_scale)?;
        let task = MeasureTask {
            points,
            confidence,
            metres: moved,
            used: None,
            found: of_scale,
        };
        self.meter.measure(stream, &task, Some(&self.field))?;
        let mut found = [Found::default()];
        stream.read(of_scale, &mut found)?;
        let [found] = found;
        if found.is_accepted() {
            let corrects = of_moved_pixels(found.of_pixels());
            stream.write(&[found.correcting(corrects)], of_scale)?;
            self.field.apply(stream, points, None, of_scale)?;
            self.field.approach(stream, points, None, moved, of_scale)?;
        }
        Ok(found.is_accepted())
    }

    /// Memory for the confidences of a pointmap that stores them in half precision.
    pub fn confidence(&self) -> DeviceSlice<'_, f32> {
        self.confidence.all()
    }
}

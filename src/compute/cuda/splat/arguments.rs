//! What the kernels take by value; must match `splat.cuh`, `splat_view.cuh` and `splat_rows.cu`.

use crate::compute::splat::camera::Camera;
use crate::compute::splat::constants::{BACKGROUND, FIELD_MARGIN, TILE};
use crate::compute::splat::device::{AdamStep, RefineRules};
use crate::compute::splat::layout::{FIELDS, Field, Layout, PlaneKind, coefficients};
use crate::gpu::{CudaError, DeviceBuffer, DevicePointer, DeviceSlice, KernelArgument};

/// The planes of a pool.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Pool {
    planes: [[DevicePointer<u8>; FIELDS]; 3],
    gradient: DevicePointer<u8>,
    seen: DevicePointer<u8>,
    anchor: DevicePointer<u8>,
    observed: DevicePointer<u8>,
}

// SAFETY: pointers in the order of the kernels' struct.
unsafe impl KernelArgument for Pool {}

/// The bytes of rows `start` to `end` of a plane; empty if there is no such plane.
pub(super) fn plane_rows<'a>(
    pool: &'a DeviceBuffer<u8>,
    layout: &Layout,
    kind: PlaneKind,
    start: u64,
    end: u64,
) -> Result<DeviceSlice<'a, u8>, CudaError> {
    let Some(plane) = layout.plane(kind) else {
        return pool.slice(0..0);
    };
    let place = |row| usize::try_from(plane.row(row)).unwrap_or(usize::MAX);
    pool.slice(place(start)..place(end))
}

impl Pool {
    pub(super) fn new(pool: &DeviceBuffer<u8>, layout: &Layout) -> Result<Self, CudaError> {
        let all = |kind| Ok(plane_rows(pool, layout, kind, 0, layout.capacity())?.pointer());
        let fields = |of: fn(Field) -> PlaneKind| {
            let mut pointers = [DevicePointer::NULL; FIELDS];
            for (to, field) in pointers.iter_mut().zip(Field::ALL) {
                *to = all(of(field))?;
            }
            Ok::<_, CudaError>(pointers)
        };
        Ok(Self {
            planes: [
                fields(PlaneKind::Parameter)?,
                fields(PlaneKind::First)?,
                fields(PlaneKind::Second)?,
            ],
            gradient: all(PlaneKind::GradientSum)?,
            seen: all(PlaneKind::Seen)?,
            anchor: all(PlaneKind::Anchor)?,
            observed: all(PlaneKind::Observed)?,
        })
    }
}

/// A camera in single precision.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct DeviceCamera {
    rotation: [f32; 9],
    translation: [f32; 3],
    centre: [f32; 3],
    focal: [f32; 2],
    principal: [f32; 2],
    limit: [f32; 2],
    background: [f32; 3],
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) tiles_x: u32,
    pub(super) tiles_y: u32,
    used: u32,
}

// SAFETY: scalars in the order of the kernels' struct, without padding.
unsafe impl KernelArgument for DeviceCamera {}

impl DeviceCamera {
    /// The camera, checked before, for rows of `degree`.
    pub(super) fn new(camera: &Camera, degree: u8) -> Self {
        let k = &camera.intrinsics;
        let limit = |size: usize, c: f64, f: f64| {
            let edge = (c + 0.5).max(size as f64 - 0.5 - c).max(0.5);
            (f64::from(FIELD_MARGIN) * edge / f) as f32
        };
        let r = &camera.rotation;
        let (width, height) = (camera.width as u32, camera.height as u32);
        Self {
            rotation: std::array::from_fn(|i| r[(i / 3, i % 3)] as f32),
            translation: std::array::from_fn(|i| camera.translation[i] as f32),
            centre: std::array::from_fn(|i| camera.centre()[i] as f32),
            focal: [k.fx as f32, k.fy as f32],
            principal: [k.cx as f32, k.cy as f32],
            limit: [
                limit(camera.width, k.cx, k.fx),
                limit(camera.height, k.cy, k.fy),
            ],
            background: BACKGROUND,
            width,
            height,
            tiles_x: width.div_ceil(TILE),
            tiles_y: height.div_ceil(TILE),
            used: coefficients(camera.degree.min(degree)) as u32 - 1,
        }
    }

    pub(super) fn pixels(&self) -> usize {
        self.width as usize * self.height as usize
    }
}

/// Packed arrays of visible rows that the projection writes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Visible {
    pub(super) row: DevicePointer<u32>,
    pub(super) place: DevicePointer<[f32; 4]>,
    pub(super) conic: DevicePointer<[f32; 4]>,
    pub(super) colour: DevicePointer<[f32; 4]>,
    pub(super) height: DevicePointer<f32>,
    pub(super) key: DevicePointer<u32>,
}

// SAFETY: pointers in the order of the kernels' struct.
unsafe impl KernelArgument for Visible {}

/// An optimiser step, its weights divided by the number of rows.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Step {
    seed: u64,
    rates: [f32; FIELDS],
    bias1: f32,
    bias2: f32,
    opacity_weight: f32,
    scale_weight: f32,
    noise: f32,
    step: u32,
}

// SAFETY: scalars in the order of the kernels' struct, 56 bytes without padding.
unsafe impl KernelArgument for Step {}

impl Step {
    pub(super) fn new(step: &AdamStep, rows: u64) -> Self {
        let rows = rows.max(1) as f32;
        Self {
            seed: step.seed,
            rates: step.rates,
            bias1: step.bias1,
            bias2: step.bias2,
            opacity_weight: step.opacity_weight / rows,
            scale_weight: step.scale_weight / (3.0 * rows),
            noise: step.noise,
            step: step.step,
        }
    }
}

// SAFETY: `repr(C)`, 40 bytes without padding, as the kernels' struct.
unsafe impl KernelArgument for RefineRules {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_sizes_of_the_kernels_structs() {
        assert_eq!(size_of::<Pool>(), 176);
        assert_eq!(size_of::<DeviceCamera>(), 116);
        assert_eq!(size_of::<Visible>(), 48);
        assert_eq!(size_of::<Step>(), 56);
        assert_eq!(size_of::<RefineRules>(), 40);
    }
}

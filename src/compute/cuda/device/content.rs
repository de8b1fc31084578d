//! Export and import of device content, for saving and loading maps and for readers.

use super::edges::EdgeView;
use crate::compute::cuda::matching::stored_quality;
use crate::compute::cuda::slots::SlotView;
use crate::compute::device::{EdgeContent, Floats, KeyframeContent};
use crate::gpu::{self, CudaError, DeviceSlice, Element, Stream};
use half::f16;

/// Copies to the host, reusing the vector's allocation.
pub(super) fn read<T: Element + Default>(
    stream: &Stream,
    src: DeviceSlice<'_, T>,
    dst: &mut Vec<T>,
) -> Result<(), CudaError> {
    dst.resize(src.len(), T::default());
    stream.read(src, dst)
}

pub(super) fn read_floats(stream: &Stream, src: gpu::Floats<'_>) -> Result<Floats, CudaError> {
    Ok(match src {
        gpu::Floats::F16(v) => Floats::F16(stream.read_vec(v)?),
        gpu::Floats::F32(v) => Floats::F32(stream.read_vec(v)?),
    })
}

fn write_floats(stream: &Stream, src: &Floats, dst: gpu::Floats<'_>) -> Result<(), CudaError> {
    match (src, dst) {
        (Floats::F16(src), gpu::Floats::F16(dst)) => stream.write(src, dst),
        (Floats::F32(src), gpu::Floats::F32(dst)) => stream.write(src, dst),
        (src, gpu::Floats::F16(dst)) => stream.write(&src.to_f16(), dst),
        (src, gpu::Floats::F32(dst)) => stream.write(&src.to_f32(), dst),
    }
}

/// Copies the points of a keyframe's slot to the host.
pub(super) fn read_points(
    stream: &Stream,
    slot: &SlotView<'_>,
    dst: &mut Vec<f32>,
) -> Result<(), CudaError> {
    read(stream, slot.points, dst)
}

/// Copies a keyframe's slot to the host.
pub(super) fn read_keyframe(
    stream: &Stream,
    slot: &SlotView<'_>,
    dst: &mut KeyframeContent,
) -> Result<(), CudaError> {
    read(stream, slot.image, &mut dst.image)?;
    read(stream, slot.points, &mut dst.points)?;
    dst.confidence = read_floats(stream, slot.confidence)?;
    dst.features = read_floats(stream, slot.features)?;
    Ok(())
}

/// Copies a keyframe from the host to its slot.
pub(super) fn write_keyframe(
    stream: &Stream,
    content: &KeyframeContent,
    slot: &SlotView<'_>,
) -> Result<(), CudaError> {
    stream.write(&content.image, slot.image)?;
    stream.write(&content.points, slot.points)?;
    write_floats(stream, &content.confidence, slot.confidence)?;
    write_floats(stream, &content.features, slot.features)
}

/// Copies an edge's slot to the host. Qualities are widened, exactly.
pub(super) fn read_edge(
    stream: &Stream,
    slot: &EdgeView<'_>,
    dst: &mut EdgeContent,
) -> Result<(), CudaError> {
    let ways = [
        (slot.i_from_j, &mut dst.i_from_j),
        (slot.j_from_i, &mut dst.j_from_i),
    ];
    for (src, dst) in ways {
        read(stream, src.index, &mut dst.index)?;
        let quality = stream.read_vec(src.quality)?;
        dst.quality.clear();
        dst.quality.extend(quality.into_iter().map(f32::from));
    }
    Ok(())
}

/// Copies an edge from the host to its slot. Qualities are rounded as by [`stored_quality`].
pub(super) fn write_edge(
    stream: &Stream,
    content: &EdgeContent,
    slot: &EdgeView<'_>,
) -> Result<(), CudaError> {
    let ways = [
        (slot.i_from_j, &content.i_from_j),
        (slot.j_from_i, &content.j_from_i),
    ];
    ways.into_iter().try_for_each(|(dst, src)| {
        stream.write(&src.index, dst.index)?;
        let quality: Vec<f16> = src.quality.iter().map(|q| stored_quality(*q)).collect();
        stream.write(&quality, dst.quality)
    })
}

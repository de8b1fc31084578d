//! What the device holds, out to the host and back in: for maps that are saved and loaded, and for looks.

use super::errors::NAME;
use super::exchange::remove;
use super::mapping::{Ends, Mapping};
use crate::compute::cuda::slots::{self, SlotView};
use crate::compute::cuda::{CudaError, DeviceSlice, Element, Stream};
use crate::compute::device::{DeviceError, EdgeContent, EdgeId, Floats, KeyframeContent};
use crate::compute::store::{Access, Lane, Touch};

/// Copies to the host, into a vector that is used again.
pub(super) fn read<T: Element + Default>(
    stream: &Stream,
    src: DeviceSlice<'_, T>,
    dst: &mut Vec<T>,
) -> Result<(), CudaError> {
    dst.resize(src.len(), T::default());
    stream.read(src, dst)
}

fn read_floats(stream: &Stream, src: slots::Floats<'_>) -> Result<Floats, CudaError> {
    Ok(match src {
        slots::Floats::F16(v) => Floats::F16(stream.read_vec(v)?),
        slots::Floats::F32(v) => Floats::F32(stream.read_vec(v)?),
    })
}

fn write_floats(stream: &Stream, src: &Floats, dst: slots::Floats<'_>) -> Result<(), CudaError> {
    match (src, dst) {
        (Floats::F16(src), slots::Floats::F16(dst)) => stream.write(src, dst),
        (Floats::F32(src), slots::Floats::F32(dst)) => stream.write(src, dst),
        (src, slots::Floats::F16(dst)) => stream.write(&src.to_f16(), dst),
        (src, slots::Floats::F32(dst)) => stream.write(&src.to_f32(), dst),
    }
}

/// [`crate::compute::device::MappingDevice::export_keyframe`]
pub(super) fn export_keyframe(
    from: &Mapping,
    id: u32,
    dst: &mut KeyframeContent,
) -> Result<(), DeviceError> {
    let key = from.key(id)?;
    // One of all: it throws nobody out of the GPU that is of more use there.
    let (access, touch) = (Access::Read, Touch::Pass);
    let lease = from.keyframes.lease(Lane::Mapping, key, access, touch)?;
    let slot = from.keyframes.device().slot(lease.slot())?;
    let stream = &from.stream;
    read(stream, slot.image, &mut dst.image)?;
    read(stream, slot.points, &mut dst.points)?;
    dst.confidence = read_floats(stream, slot.confidence)?;
    dst.features = read_floats(stream, slot.features)?;
    Ok(())
}

fn fill(stream: &Stream, content: &KeyframeContent, slot: &SlotView<'_>) -> Result<(), CudaError> {
    stream.write(&content.image, slot.image)?;
    stream.write(&content.points, slot.points)?;
    write_floats(stream, &content.confidence, slot.confidence)?;
    write_floats(stream, &content.features, slot.features)
}

/// [`crate::compute::device::MappingDevice::import_keyframe`]
pub(super) fn import_keyframe(
    to: &mut Mapping,
    id: u32,
    content: &KeyframeContent,
) -> Result<(), DeviceError> {
    content.check(NAME, to.network.shape())?;
    let key = to.exchange.new_key();
    let written = {
        let lease = to.keyframes.insert(Lane::Mapping, key)?;
        let slot = to.keyframes.device().slot(lease.slot())?;
        fill(&to.stream, content, &slot)
    };
    if let Err(error) = written {
        remove(&to.keyframes, key);
        return Err(error.into());
    }
    if let Some(old) = to.keys.insert(id, key) {
        remove(&to.keyframes, old);
    }
    to.prepare()
}

/// [`crate::compute::device::MappingDevice::export_edge`]
pub(super) fn export_edge(
    from: &Mapping,
    edge: EdgeId,
    dst: &mut EdgeContent,
) -> Result<(), DeviceError> {
    let (access, touch) = (Access::Read, Touch::Pass);
    let lease = from.edges.lease(Lane::Mapping, edge.0, access, touch)?;
    let slot = from.edges.device().slot(lease.slot())?;
    let stream = &from.stream;
    let ways = [
        (slot.i_from_j, &mut dst.i_from_j),
        (slot.j_from_i, &mut dst.j_from_i),
    ];
    for (src, dst) in ways {
        read(stream, src.index, &mut dst.index)?;
        read(stream, src.valid, &mut dst.valid)?;
        read(stream, src.quality, &mut dst.quality)?;
    }
    Ok(())
}

/// [`crate::compute::device::MappingDevice::import_edge`]
pub(super) fn import_edge(
    to: &mut Mapping,
    i: u32,
    j: u32,
    content: &EdgeContent,
) -> Result<EdgeId, DeviceError> {
    content.check(NAME, to.network.shape().pixels())?;
    to.key(i)?;
    to.key(j)?;
    let number = to.next_edge;
    to.next_edge = number.wrapping_add(1);
    let written = {
        let lease = to.edges.insert(Lane::Mapping, number)?;
        let slot = to.edges.device().slot(lease.slot())?;
        let ways = [
            (slot.i_from_j, &content.i_from_j),
            (slot.j_from_i, &content.j_from_i),
        ];
        ways.into_iter().try_for_each(|(dst, src)| {
            to.stream.write(&src.index, dst.index)?;
            to.stream.write(&src.valid, dst.valid)?;
            to.stream.write(&src.quality, dst.quality)
        })
    };
    let id = EdgeId(number);
    to.ends.insert(id, Ends { i, j });
    match written {
        Ok(()) => Ok(id),
        Err(error) => {
            use crate::compute::device::MappingDevice as _;
            to.drop_edge(id);
            Err(error.into())
        }
    }
}

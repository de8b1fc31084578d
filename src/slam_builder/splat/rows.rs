//! Rows of a device's Gaussian map, as files hold them.

use crate::compute::splat::SplatError;
use crate::compute::splat::block::{BlockContent, RowBlock};
use crate::compute::splat::device::SplatDevice;
use crate::compute::splat::layout::Field;
use crate::map::splat::{Splat, SplatRows};
use std::io;

/// Reads the rows of a device in blocks.
pub struct DeviceRows<'a> {
    device: &'a mut dyn SplatDevice,
    block: RowBlock,
    count: u64,
}

impl<'a> DeviceRows<'a> {
    /// All rows that the device has now.
    pub fn new(device: &'a mut dyn SplatDevice) -> Self {
        let degree = device.layout().degree();
        Self {
            block: RowBlock::new(0, degree, BlockContent::Parameters),
            count: device.counts().rows,
            device,
        }
    }
}

/// Splats that a page shows: 6.4 MB of them.
const SHOWN: u64 = 200_000;

/// At most 200,000 rows for a page, evenly chosen, in the form of [`Splat::packed`].
///
/// # Errors
/// If the device fails.
pub fn packed(device: &mut dyn SplatDevice) -> io::Result<Vec<u8>> {
    let mut rows = DeviceRows::new(device);
    let stride = rows.count().div_ceil(SHOWN).max(1);
    let mut out = Vec::new();
    let mut block = vec![Splat::default(); BLOCK];
    let mut first = 0;
    while first < rows.count() {
        let now = (rows.count() - first).min(BLOCK as u64) as usize;
        rows.read(first, &mut block[..now])?;
        for (row, index) in block[..now].iter().zip(first..) {
            if index.is_multiple_of(stride) {
                out.extend(row.packed());
            }
        }
        first += now as u64;
    }
    Ok(out)
}

/// Rows read at a time.
const BLOCK: usize = 1 << 14;

/// Row `row` of a block.
fn splat(block: &RowBlock, row: usize) -> Splat {
    let degree = block.degree();
    let values = |field| block.parameters.row(field, degree, row);
    let mut splat = Splat::default();
    splat.mean.copy_from_slice(values(Field::Mean));
    splat.dc.copy_from_slice(values(Field::Dc));
    splat.scale.copy_from_slice(values(Field::Scale));
    splat.rotation.copy_from_slice(values(Field::Rotation));
    splat.opacity = values(Field::Opacity).first().copied().unwrap_or_default();
    // Both have the red, green and blue of each coefficient.
    let rest = values(Field::Rest);
    splat.rest[..rest.len()].copy_from_slice(rest);
    splat
}

impl SplatRows for DeviceRows<'_> {
    fn count(&self) -> u64 {
        self.count
    }

    fn degree(&self) -> u8 {
        self.block.degree()
    }

    fn read(&mut self, first: u64, dst: &mut [Splat]) -> io::Result<()> {
        self.block.resize(dst.len());
        let read: Result<(), SplatError> = self.device.read(first, &mut self.block);
        read.map_err(io::Error::other)?;
        for (row, splat_of) in dst.iter_mut().enumerate() {
            *splat_of = splat(&self.block, row);
        }
        Ok(())
    }
}

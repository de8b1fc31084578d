//! One Gaussian, and a cloud of them in memory.

use super::SplatRows;
use std::io;

/// Coefficients of spherical harmonics above the constant one, for each colour: 0, 3, 8, 15.
pub fn coefficients(degree: u8) -> usize {
    let bands = usize::from(degree) + 1;
    bands * bands - 1
}

/// A Gaussian with its raw parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Splat {
    /// Centre in metres.
    pub mean: [f32; 3],
    /// Constant coefficient of red, green and blue: `colour = 0.5 + 0.28209479 · dc`.
    pub dc: [f32; 3],
    /// Higher coefficients, each with its red, green and blue; those above the degree are zero.
    pub rest: [f32; 45],
    /// Natural logarithms of the standard deviations along the axes, in metres.
    pub scale: [f32; 3],
    /// Quaternion `w x y z`; need not have unit length.
    pub rotation: [f32; 4],
    /// Logit of the opacity.
    pub opacity: f32,
}

impl Default for Splat {
    fn default() -> Self {
        Self {
            mean: [0.0; 3],
            dc: [0.0; 3],
            rest: [0.0; 45],
            scale: [0.0; 3],
            rotation: [1.0, 0.0, 0.0, 0.0],
            opacity: 0.0,
        }
    }
}

impl Splat {
    /// The first fault of a row: a value that is not finite, or a rotation without direction.
    pub fn fault(&self) -> Option<&'static str> {
        let finite = |values: &[f32]| values.iter().all(|v| v.is_finite());
        if !finite(&self.mean) {
            Some("a position that is not finite")
        } else if !finite(&self.dc) || !finite(&self.rest) {
            Some("a colour that is not finite")
        } else if !finite(&self.scale) {
            Some("a scale that is not finite")
        } else if !self.opacity.is_finite() {
            Some("an opacity that is not finite")
        } else if !finite(&self.rotation) || self.rotation.iter().map(|q| q * q).sum::<f32>() < 1e-8
        {
            Some("a rotation without direction")
        } else {
            None
        }
    }

    /// The row in the 32 bytes of a `.splat` file, which viewers in browsers read: position and scale in metres, colour
    /// and opacity, rotation. Without higher coefficients.
    pub fn packed(&self) -> [u8; 32] {
        let mut out = [0; 32];
        let floats = self.mean.into_iter().chain(self.scale.map(f32::exp));
        for (bytes, value) in out.chunks_exact_mut(4).zip(floats) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        // Casts saturate.
        let colour = self
            .dc
            .map(|dc| (255.0 * (0.5 + 0.282_094_8 * dc) + 0.5) as u8);
        out[24..27].copy_from_slice(&colour);
        out[27] = (255.0 / (1.0 + (-self.opacity).exp()) + 0.5) as u8;
        let rotation = self.unit_rotation().map(|q| (128.0 * q + 128.5) as u8);
        out[28..].copy_from_slice(&rotation);
        out
    }

    /// The rotation with unit length.
    pub(super) fn unit_rotation(&self) -> [f32; 4] {
        let square: f32 = self.rotation.iter().map(|q| q * q).sum();
        if square.is_finite() && square > 0.0 {
            self.rotation.map(|q| q / square.sqrt())
        } else {
            [1.0, 0.0, 0.0, 0.0]
        }
    }
}

/// A cloud in memory, without the coefficients that its degree does not have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Splats {
    degree: u8,
    /// Rows of `14 + 3 · coefficients` values: mean, dc, scale, rotation, opacity, rest.
    values: Vec<f32>,
}

/// Values of a row beside the higher coefficients.
const FIXED: usize = 14;

impl Splats {
    /// An empty cloud; degrees above 3 count as 3.
    pub fn new(degree: u8) -> Self {
        Self {
            degree: degree.min(3),
            values: Vec::new(),
        }
    }

    fn stride(&self) -> usize {
        FIXED + 3 * coefficients(self.degree)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.values.len() / self.stride()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds a row.
    pub fn push(&mut self, row: &Splat) {
        let rest = 3 * coefficients(self.degree);
        self.values.extend(row.mean);
        self.values.extend(row.dc);
        self.values.extend(row.scale);
        self.values.extend(row.rotation);
        self.values.push(row.opacity);
        self.values.extend(&row.rest[..rest]);
    }

    /// Row `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<Splat> {
        let stride = self.stride();
        let from = index.checked_mul(stride)?;
        let values = self.values.get(from..from.checked_add(stride)?)?;
        let mut row = Splat::default();
        row.mean.copy_from_slice(&values[..3]);
        row.dc.copy_from_slice(&values[3..6]);
        row.scale.copy_from_slice(&values[6..9]);
        row.rotation.copy_from_slice(&values[9..13]);
        row.opacity = values[13];
        let rest = &values[FIXED..];
        row.rest[..rest.len()].copy_from_slice(rest);
        Some(row)
    }
}

impl SplatRows for Splats {
    fn count(&self) -> u64 {
        self.len() as u64
    }

    fn degree(&self) -> u8 {
        self.degree
    }

    fn read(&mut self, first: u64, dst: &mut [Splat]) -> io::Result<()> {
        for (row, index) in dst.iter_mut().zip(first..) {
            let found = usize::try_from(index).ok().and_then(|i| self.get(i));
            *row = found.ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        Ok(())
    }
}

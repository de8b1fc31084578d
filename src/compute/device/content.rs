//! What a device holds of a map, as it is carried out of it and back in.

use super::DeviceError;
use crate::compute::store::FloatFormat;
use crate::inference::NetworkShape;
use half::f16;

/// Floats as a device keeps them.
#[derive(Debug, Clone, PartialEq)]
pub enum Floats {
    /// binary16
    F16(Vec<f16>),
    /// binary32
    F32(Vec<f32>),
}

impl Default for Floats {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

impl Floats {
    /// Values.
    pub fn len(&self) -> usize {
        match self {
            Self::F16(values) => values.len(),
            Self::F32(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How they are kept.
    pub fn format(&self) -> FloatFormat {
        match self {
            Self::F16(_) => FloatFormat::F16,
            Self::F32(_) => FloatFormat::F32,
        }
    }

    /// As binary32, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::F16(values) => values.iter().map(|v| v.to_f32()).collect(),
            Self::F32(values) => values.clone(),
        }
    }

    /// As binary16, each to the nearest, ties to even.
    pub fn to_f16(&self) -> Vec<f16> {
        match self {
            Self::F16(values) => values.clone(),
            Self::F32(values) => values.iter().map(|v| f16::from_f32(*v)).collect(),
        }
    }
}

/// How a device keeps what it may keep in either format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentFormats {
    /// Average confidences.
    pub confidence: FloatFormat,
    /// Encoder tokens.
    pub features: FloatFormat,
}

/// All that a device holds of a keyframe; `N = width · height` of the network's image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeyframeContent {
    /// RGB, `N × 3`.
    pub image: Vec<u8>,
    /// `N × 3` points in the keyframe's camera; calibrated, on their pixels' rays.
    pub points: Vec<f32>,
    /// `N` average confidences.
    pub confidence: Floats,
    /// `T × C` encoder tokens.
    pub features: Floats,
}

/// One direction's matches, an entry a pixel.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MatchContent {
    /// Its pixel in the other keyframe.
    pub index: Vec<u32>,
    /// 1 where that match holds, else 0.
    pub valid: Vec<u8>,
    /// Its quality; 0 where it does not hold.
    pub quality: Vec<f32>,
}

/// All that a device holds of an edge between keyframes `i` and `j`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EdgeContent {
    /// Pixels of j and their matches in i.
    pub i_from_j: MatchContent,
    /// Pixels of i and their matches in j.
    pub j_from_i: MatchContent,
}

/// Refuses parts of another length.
fn expect(device: &'static str, parts: &[(&'static str, usize, usize)]) -> Result<(), DeviceError> {
    let wrong = parts.iter().find(|(_, expected, found)| expected != found);
    match wrong {
        None => Ok(()),
        Some(&(what, expected, found)) => Err(DeviceError::Content {
            device,
            what,
            expected,
            found,
        }),
    }
}

impl KeyframeContent {
    /// Refuses what is not of a network of `shape`; `device` is named in the error.
    pub fn check(&self, device: &'static str, shape: &NetworkShape) -> Result<(), DeviceError> {
        let (n, tokens) = (shape.pixels(), shape.tokens * shape.feature_dim);
        expect(
            device,
            &[
                ("an image", 3 * n, self.image.len()),
                ("points", 3 * n, self.points.len()),
                ("confidences", n, self.confidence.len()),
                ("features", tokens, self.features.len()),
            ],
        )
    }
}

impl EdgeContent {
    /// Refuses what is not of images of `pixels`; `device` is named in the error.
    pub fn check(&self, device: &'static str, pixels: usize) -> Result<(), DeviceError> {
        for way in [&self.i_from_j, &self.j_from_i] {
            expect(
                device,
                &[
                    ("matches", pixels, way.index.len()),
                    ("match flags", pixels, way.valid.len()),
                    ("match qualities", pixels, way.quality.len()),
                ],
            )?;
        }
        Ok(())
    }
}

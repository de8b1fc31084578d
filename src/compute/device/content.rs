//! Import and export of a device's keyframes and edges.

use super::DeviceError;
use crate::compute::store::FloatFormat;
use crate::image::RgbImage;
use crate::inference::NetworkShape;
use half::f16;

/// Floats in the format in which a device stores them.
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
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F16(values) => values.len(),
            Self::F32(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Storage format.
    pub fn format(&self) -> FloatFormat {
        match self {
            Self::F16(_) => FloatFormat::F16,
            Self::F32(_) => FloatFormat::F32,
        }
    }

    /// Converts to binary32, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::F16(values) => values.iter().map(|v| v.to_f32()).collect(),
            Self::F32(values) => values.clone(),
        }
    }

    /// Converts to binary16, rounding to nearest, ties to even.
    pub fn to_f16(&self) -> Vec<f16> {
        match self {
            Self::F16(values) => values.clone(),
            Self::F32(values) => values.iter().map(|v| f16::from_f32(*v)).collect(),
        }
    }
}

/// Storage formats of the data that devices may keep in either format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentFormats {
    /// Format of average confidences.
    pub confidence: FloatFormat,
    /// Format of encoder tokens.
    pub features: FloatFormat,
}

/// Everything that a device stores for a keyframe; `N = width · height` of the network image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeyframeContent {
    /// RGB, `N × 3`.
    pub image: Vec<u8>,
    /// `N × 3` points in the keyframe's camera frame; with calibration, on their pixels' rays.
    pub points: Vec<f32>,
    /// `N` average confidences.
    pub confidence: Floats,
    /// `T × C` encoder tokens.
    pub features: Floats,
}

/// Matches of one direction, one entry per pixel. Quality 0 means no match: whatever reads matches wants a quality above
/// a limit that is not negative.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MatchContent {
    /// Matched pixel in the other keyframe.
    pub index: Vec<u32>,
    /// Match quality; 0 where nothing matches.
    pub quality: Vec<f32>,
}

/// Everything that a device stores for an edge between keyframes `i` and `j`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EdgeContent {
    /// Matches of j's pixels in i.
    pub i_from_j: MatchContent,
    /// Matches of i's pixels in j.
    pub j_from_i: MatchContent,
}

/// Rejects parts of the wrong length.
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
    /// Rejects content that does not match a network of `shape`; `device` is used in the error.
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

impl KeyframeContent {
    /// The image as the network takes it; `device` is used in the error.
    ///
    /// # Errors
    /// [`DeviceError::Content`] if its size does not match a network of `shape`.
    pub fn network_image(
        &self,
        device: &'static str,
        shape: &NetworkShape,
    ) -> Result<RgbImage, DeviceError> {
        let what = ("an image", 3 * shape.pixels(), self.image.len());
        expect(device, &[what])?;
        Ok(RgbImage {
            width: shape.width,
            height: shape.height,
            data: self.image.clone(),
        })
    }
}

impl EdgeContent {
    /// The content of an edge between images of `pixels` pixels of which nothing matches.
    pub fn unmatched(pixels: usize) -> Self {
        let none = MatchContent {
            index: vec![0; pixels],
            quality: vec![0.0; pixels],
        };
        Self {
            i_from_j: none.clone(),
            j_from_i: none,
        }
    }

    /// Rejects content that does not match images of `pixels` pixels; `device` is used in the
    /// error.
    pub fn check(&self, device: &'static str, pixels: usize) -> Result<(), DeviceError> {
        for way in [&self.i_from_j, &self.j_from_i] {
            expect(
                device,
                &[
                    ("matches", pixels, way.index.len()),
                    ("match qualities", pixels, way.quality.len()),
                ],
            )?;
        }
        Ok(())
    }
}

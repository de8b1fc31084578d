//! How a packed map holds a keyframe: the image, each point's depth and direction, its confidence. The network's
//! pointmaps are smooth, so that what a pixel's upper and left neighbours do not predict takes a few bits.

use super::{Coder, PLANES, end};
use crate::compute::device::{Floats, KeyframeContent};
use crate::compute::residual::constrain_to_rays;
use crate::compute::store::FloatFormat;
use crate::geometry::Intrinsics;
use crate::image;
use crate::map::saved::{Header, ImageShape};
use crate::map::store::StoreError;
use half::f16;
use std::path::Path;

/// Level of compression: a map is packed once, and this one comes close to the entropy.
const LEVEL: i32 = 19;
/// Steps of a depth's logarithm for each factor of two: a depth is off by at most 0.034 %, 1 mm at 3 m.
const DEPTH_STEPS: f32 = 1024.0;
/// The same for a confidence: off by at most 1.1 %.
const CONFIDENCE_STEPS: f32 = 32.0;
/// Range of the logarithms to base 2 that are kept: of 0.2 nanometres to 4 million kilometres.
const OCTAVES: f32 = 32.0;
/// Steps of a direction's slope over the width of an image: with a focal length as long as the image is wide, a
/// direction is off by at most a sixteenth of a pixel.
const SLOPE_STEPS: f32 = 8.0;
/// Maximum slope code in steps; points beyond are left out. At 512 pixels 89.8° off the axis. The predictions from
/// three such codes fit the bytes of a packed difference.
const MAX_SLOPE: f32 = (1 << 20) as f32;
/// Bytes for each pixel that an image without loss may take; most take two thirds of it. A noisy one that takes more
/// is kept as JPEG.
const LOSSLESS_BYTES: f64 = 1.25;
/// Quality of such a JPEG: what it loses is below the noise of the camera.
const QUALITY: u8 = 95;

impl Coder {
    /// Appends the image of a keyframe, without its tokens, to `dst`.
    pub fn pack_picture(
        content: &KeyframeContent,
        shape: ImageShape,
        dst: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let picture = image::RgbImage {
            width: shape.width as usize,
            height: shape.height as usize,
            data: content.image.clone(),
        };
        let bad = |_| StoreError::Row("its image cannot be packed");
        let lossless = image::lossless(&picture).map_err(bad)?;
        match lossless.len() as f64 <= LOSSLESS_BYTES * shape.pixels() as f64 {
            true => dst.extend(lossless),
            false => dst.extend(image::jpeg(&picture, QUALITY).map_err(bad)?),
        }
        Ok(())
    }

    /// Reads what [`Coder::pack_picture`] wrote; there are no tokens then.
    pub fn unpack_picture(
        src: &[u8],
        header: &Header,
        dst: &mut KeyframeContent,
    ) -> Result<(), StoreError> {
        let bad = |_| StoreError::Row("its image cannot be unpacked");
        let expected = (header.shape.width as usize, header.shape.height as usize);
        // Before memory is reserved for it.
        let size = image::dimensions_of_bytes(src, Path::new("image")).map_err(bad)?;
        if size != expected {
            return Err(StoreError::Row("its image has another size"));
        }
        let picture = image::decode_bytes(src, Path::new("image")).map_err(bad)?;
        picture.expect_size(expected).map_err(bad)?;
        dst.image = picture.data;
        dst.features = match header.formats.features {
            FloatFormat::F32 => Floats::F32(Vec::new()),
            FloatFormat::F16 => Floats::F16(Vec::new()),
        };
        Ok(())
    }

    /// Appends the points and confidences of a keyframe to `dst`. With calibration, points lie on their pixels' rays.
    pub fn pack_pointmap(&mut self, content: &KeyframeContent, header: &Header, dst: &mut Vec<u8>) {
        let width = header.shape.width as usize;
        let depth = |p: &[f32]| logarithm(p[2], DEPTH_STEPS).filter(|_| slopes(p, width).is_some());
        let points = || content.points.chunks_exact(3);
        self.pack_plane(points().map(depth), width, dst);
        if header.intrinsics.is_none() {
            for axis in [0, 1] {
                let slope = |p: &[f32]| depth(p).and(slopes(p, width)).map(|s| s[axis]);
                self.pack_plane(points().map(slope), width, dst);
            }
        }
        let confidence = content.confidence.to_f32();
        let confidence = confidence.iter().map(|c| logarithm(*c, CONFIDENCE_STEPS));
        self.pack_plane(confidence, width, dst);
    }

    /// Reads what [`Coder::pack_pointmap`] wrote. A point that was left out is zero, and so is its confidence.
    pub fn unpack_pointmap(
        &mut self,
        mut src: &[u8],
        header: &Header,
        dst: &mut KeyframeContent,
    ) -> Result<(), StoreError> {
        let (width, pixels) = (header.shape.width as usize, header.shape.pixels());
        let mut codes = Vec::new();
        self.unpack_plane(&mut src, (width, pixels), &mut codes)?;
        let depths = Vec::from_iter(codes.iter().map(|c| c.map(|c| value(c, DEPTH_STEPS))));
        dst.points.clear();
        dst.points
            .extend(depths.iter().flat_map(|z| [0.0, 0.0, z.unwrap_or(0.0)]));
        match header.intrinsics {
            Some(k) => put_on_rays(k, header.shape, dst)?,
            None => {
                for axis in [0, 1] {
                    self.unpack_plane(&mut src, (width, pixels), &mut codes)?;
                    for (p, code) in dst.points.chunks_exact_mut(3).zip(&codes) {
                        p[axis] = slope(code.unwrap_or(0), width) * p[2];
                    }
                }
            }
        }
        self.unpack_plane(&mut src, (width, pixels), &mut codes)?;
        let confidences = codes.iter().zip(&depths).map(|(code, depth)| {
            let known = depth.and(*code);
            known.map_or(0.0, |code| value(code, CONFIDENCE_STEPS))
        });
        dst.confidence = match header.formats.confidence {
            FloatFormat::F32 => Floats::F32(confidences.collect()),
            FloatFormat::F16 => Floats::F16(confidences.map(f16::from_f32).collect()),
        };
        end(src)
    }

    /// Appends a plane of codes of images with `width` columns, of which some are missing.
    fn pack_plane(
        &mut self,
        codes: impl Iterator<Item = Option<i32>>,
        width: usize,
        dst: &mut Vec<u8>,
    ) {
        let mut known = Plane::new(width);
        self.numbers.clear();
        for code in codes {
            let expected = known.expected();
            // Small differences of both signs become small numbers; 0 is a code that is missing.
            let number = code.map_or(0, |code| {
                let difference = code.wrapping_sub(expected);
                (((difference << 1) ^ (difference >> 31)) as u32).wrapping_add(1)
            });
            self.numbers.push(number);
            known.push(code);
        }
        self.planes.clear();
        self.split();
        self.compress(LEVEL, dst);
    }

    /// Replaces `codes` by the next plane of `src`.
    fn unpack_plane(
        &mut self,
        src: &mut &[u8],
        (width, pixels): (usize, usize),
        codes: &mut Vec<Option<i32>>,
    ) -> Result<(), StoreError> {
        self.decompress(src, PLANES * pixels)?;
        super::joined(&self.planes, &mut self.numbers);
        let mut known = Plane::new(width);
        codes.clear();
        for number in &self.numbers {
            let code = number.checked_sub(1).map(|number| {
                let difference = ((number >> 1) ^ (number & 1).wrapping_neg()).cast_signed();
                known.expected().wrapping_add(difference)
            });
            known.push(code);
            codes.push(code);
        }
        Ok(())
    }
}

/// The codes of an image so far, row by row.
struct Plane {
    width: usize,
    codes: Vec<i32>,
}

impl Plane {
    fn new(width: usize) -> Self {
        Self {
            width: width.max(1),
            codes: Vec::new(),
        }
    }

    /// The left, the upper, and the upper left neighbour of the next pixel.
    fn neighbours(&self) -> [Option<i32>; 3] {
        let at = self.codes.len();
        let before = |n: usize| at.checked_sub(n).and_then(|k| self.codes.get(k)).copied();
        let inside = !at.is_multiple_of(self.width);
        [
            before(1).filter(|_| inside),
            before(self.width),
            before(self.width + 1).filter(|_| inside),
        ]
    }

    /// The next code if the neighbours lie in a plane with it.
    fn expected(&self) -> i32 {
        match self.neighbours() {
            [Some(left), Some(up), Some(corner)] => left.wrapping_add(up).wrapping_sub(corner),
            [Some(only), _, _] | [_, Some(only), _] => only,
            _ => 0,
        }
    }

    /// A code that is missing is taken for that of a neighbour: predicted ones could grow from pixel to pixel.
    fn push(&mut self, code: Option<i32>) {
        let [left, up, _] = self.neighbours();
        self.codes.push(code.or(left).or(up).unwrap_or(0));
    }
}

/// The code of a positive number; `None` for any other.
fn logarithm(value: f32, steps: f32) -> Option<i32> {
    let positive = value.is_finite() && value > 0.0;
    positive.then(|| (value.log2().clamp(-OCTAVES, OCTAVES) * steps).round() as i32)
}

/// The number of a code, whatever the code is.
fn value(code: i32, steps: f32) -> f32 {
    (code as f32 / steps).clamp(-OCTAVES, OCTAVES).exp2()
}

/// The codes of a point's direction: its slopes to the optical axis. `None` for a point beside or behind the camera.
fn slopes(p: &[f32], width: usize) -> Option<[i32; 2]> {
    let code = |axis: usize| {
        let code = p[axis] / p[2] * SLOPE_STEPS * width as f32;
        (code.abs() <= MAX_SLOPE).then(|| code.round() as i32)
    };
    Some([code(0)?, code(1)?])
}

fn slope(code: i32, width: usize) -> f32 {
    let max = MAX_SLOPE as i32;
    code.clamp(-max, max) as f32 / (SLOPE_STEPS * width as f32)
}

/// Moves the points, of which only the depths are known, onto their pixels' rays.
fn put_on_rays(
    k: Intrinsics,
    shape: ImageShape,
    dst: &mut KeyframeContent,
) -> Result<(), StoreError> {
    let mut points = vec![0.0; dst.points.len()];
    let (width, height) = (shape.width as usize, shape.height as usize);
    constrain_to_rays(&dst.points, k, width, height, &mut points)
        .map_err(|_| StoreError::Row("its points have another size"))?;
    dst.points = points;
    Ok(())
}

#[cfg(test)]
mod tests;

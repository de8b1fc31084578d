//! How images, points, tokens and matches are packed: rounded to the precision that SLAM uses, written as differences
//! of neighbouring pixels, one plane for each byte, and compressed.

mod compact;

use super::StoreError;
use crate::compute::device::{EdgeContent, Floats, KeyframeContent, MatchContent};
use crate::compute::store::FloatFormat;
use crate::map::saved::Header;
use half::f16;

/// Level of compression: higher ones take a multiple of the time for a few per cent.
const LEVEL: i32 = 3;

/// Bits of a binary32's mantissa that are dropped: of points 12 are kept (an error of 0.4 mm at 3 m), of confidences
/// 8, of qualities 6 (an error of 0.8 %, where they only weight a match). Tokens keep 7, like bfloat16.
const POINT_DROP: u32 = 11;
const CONFIDENCE_DROP: u32 = 15;
const QUALITY_DROP: u32 = 17;
const TOKEN_DROP: u32 = 16;

/// Bytes of a packed difference; differences of numbers with more than 23 bits do not occur.
const PLANES: usize = 3;

/// Packs and unpacks, and keeps its memory.
#[derive(Debug, Default)]
pub struct Coder {
    planes: Vec<u8>,
    packed: Vec<u8>,
    numbers: Vec<u32>,
    /// Whether each pixel has a match, while matches are unpacked.
    flags: Vec<bool>,
}

impl Coder {
    /// Appends the image and the tokens of a keyframe to `dst`.
    pub fn pack_image(&mut self, content: &KeyframeContent, dst: &mut Vec<u8>) {
        self.planes.clear();
        for channel in 0..3 {
            let mut last = 0_u8;
            for value in content.image.iter().skip(channel).step_by(3) {
                self.planes.push(value.wrapping_sub(last));
                last = *value;
            }
        }
        self.compress(LEVEL, dst);
        self.numbers.clear();
        let token = |value: f32| rounded(value, TOKEN_DROP);
        match &content.features {
            Floats::F32(values) => self.numbers.extend(values.iter().map(|v| token(*v))),
            Floats::F16(values) => self
                .numbers
                .extend(values.iter().map(|v| token(v.to_f32()))),
        }
        self.planes.clear();
        for shift in [0, 8] {
            let byte = |number: &u32| (number >> shift) as u8;
            self.planes.extend(self.numbers.iter().map(byte));
        }
        self.compress(LEVEL, dst);
    }

    /// Reads what [`Coder::pack_image`] wrote.
    pub fn unpack_image(
        &mut self,
        mut src: &[u8],
        header: &Header,
        dst: &mut KeyframeContent,
    ) -> Result<(), StoreError> {
        let (pixels, features) = (header.shape.pixels(), header.shape.features());
        self.decompress(&mut src, 3 * pixels)?;
        dst.image.clear();
        dst.image.resize(3 * pixels, 0);
        for (channel, plane) in self.planes.chunks_exact(pixels).enumerate() {
            let mut last = 0_u8;
            let values = dst.image.iter_mut().skip(channel).step_by(3);
            for (value, difference) in values.zip(plane) {
                last = last.wrapping_add(*difference);
                *value = last;
            }
        }
        self.decompress(&mut src, 2 * features)?;
        let (low, high) = self.planes.split_at(features);
        let token =
            |(low, high): (&u8, &u8)| restored(u32::from(*low) | u32::from(*high) << 8, TOKEN_DROP);
        let tokens = low.iter().zip(high).map(token);
        dst.features = match header.formats.features {
            FloatFormat::F32 => Floats::F32(tokens.collect()),
            FloatFormat::F16 => Floats::F16(tokens.map(f16::from_f32).collect()),
        };
        end(src)
    }

    /// Appends the points and confidences of a keyframe to `dst`.
    pub fn pack_points(&mut self, content: &KeyframeContent, dst: &mut Vec<u8>) {
        self.planes.clear();
        for axis in 0..3 {
            let values = content.points.iter().skip(axis).step_by(3);
            self.numbers.clear();
            self.numbers.extend(values.map(|v| ordered(*v, POINT_DROP)));
            self.difference();
        }
        self.compress(LEVEL, dst);
        self.numbers.clear();
        let number = |value: f32| ordered(value, CONFIDENCE_DROP);
        match &content.confidence {
            Floats::F32(values) => self.numbers.extend(values.iter().map(|v| number(*v))),
            Floats::F16(values) => self
                .numbers
                .extend(values.iter().map(|v| number(v.to_f32()))),
        }
        self.planes.clear();
        self.difference();
        self.compress(LEVEL, dst);
    }

    /// Reads what [`Coder::pack_points`] wrote.
    pub fn unpack_points(
        &mut self,
        mut src: &[u8],
        header: &Header,
        dst: &mut KeyframeContent,
    ) -> Result<(), StoreError> {
        let pixels = header.shape.pixels();
        self.decompress(&mut src, 3 * PLANES * pixels)?;
        dst.points.clear();
        dst.points.resize(3 * pixels, 0.0);
        for (axis, planes) in self.planes.chunks_exact(PLANES * pixels).enumerate() {
            summed(planes, &mut self.numbers);
            let values = dst.points.iter_mut().skip(axis).step_by(3);
            for (value, number) in values.zip(&self.numbers) {
                *value = in_order(*number, POINT_DROP);
            }
        }
        self.decompress(&mut src, PLANES * pixels)?;
        summed(&self.planes, &mut self.numbers);
        let values = self.numbers.iter();
        let values = values.map(|number| in_order(*number, CONFIDENCE_DROP));
        dst.confidence = match header.formats.confidence {
            FloatFormat::F32 => Floats::F32(values.collect()),
            FloatFormat::F16 => Floats::F16(values.map(f16::from_f32).collect()),
        };
        end(src)
    }

    /// Appends the matches of an edge to `dst`. Where nothing matches, only that is kept.
    pub fn pack_matches(&mut self, content: &EdgeContent, header: &Header, dst: &mut Vec<u8>) {
        let width = header.shape.width.max(1);
        for way in [&content.i_from_j, &content.j_from_i] {
            self.planes.clear();
            for qualities in way.quality.chunks(8) {
                let bit = |(at, quality): (usize, &f32)| u8::from(*quality > 0.0) << at;
                self.planes
                    .push(qualities.iter().enumerate().map(bit).sum());
            }
            self.compress(LEVEL, dst);
            let matches = || {
                let pixels = way.quality.iter().zip(&way.index).zip(0_u32..);
                pixels.filter(|((quality, _), _)| **quality > 0.0)
            };
            self.planes.clear();
            for coordinate in [|k: u32, w: u32| k % w, |k: u32, w: u32| k / w] {
                self.numbers.clear();
                let moved = matches().map(|((_, index), pixel)| {
                    coordinate(*index, width).wrapping_sub(coordinate(pixel, width))
                });
                self.numbers.extend(moved);
                self.difference();
            }
            self.numbers.clear();
            let number = |((quality, _), _): ((&f32, _), _)| ordered(*quality, QUALITY_DROP);
            self.numbers.extend(matches().map(number));
            self.difference();
            self.compress(LEVEL, dst);
        }
    }

    /// Reads what [`Coder::pack_matches`] wrote. Every match lies inside the image.
    pub fn unpack_matches(
        &mut self,
        mut src: &[u8],
        header: &Header,
        dst: &mut EdgeContent,
    ) -> Result<(), StoreError> {
        let pixels = header.shape.pixels();
        for way in [&mut dst.i_from_j, &mut dst.j_from_i] {
            self.decompress(&mut src, pixels.div_ceil(8))?;
            let bits = self
                .planes
                .iter()
                .flat_map(|byte| (0..8).map(move |at| byte >> at & 1 != 0));
            self.flags.clear();
            self.flags.extend(bits.take(pixels));
            let matches = self.flags.iter().filter(|flag| **flag).count();
            self.decompress(&mut src, 3 * PLANES * matches)?;
            self.place(header, matches, way)?;
        }
        end(src)
    }

    /// Decodes the planes of as many matches into `way`; the flags say where they are.
    fn place(
        &mut self,
        header: &Header,
        matches: usize,
        way: &mut MatchContent,
    ) -> Result<(), StoreError> {
        let (pixels, width) = (header.shape.pixels(), header.shape.width.max(1));
        let height = header.shape.height;
        way.index.clear();
        way.index.resize(pixels, 0);
        way.quality.clear();
        way.quality.resize(pixels, 0.0);
        let mut planes = self.planes.chunks(PLANES * matches.max(1));
        let mut next = || planes.next().unwrap_or_default();
        let (mut columns, mut rows) = (Vec::new(), Vec::new());
        summed(next(), &mut columns);
        summed(next(), &mut rows);
        summed(next(), &mut self.numbers);
        let places = columns.iter().zip(&rows).zip(&self.numbers);
        let pixels = (0_u32..).zip(&self.flags).filter(|(_, flag)| **flag);
        for ((pixel, _), ((column, row), quality)) in pixels.zip(places) {
            let (u, v) = (
                (pixel % width).wrapping_add(*column),
                (pixel / width).wrapping_add(*row),
            );
            if u >= width || v >= height {
                return Err(StoreError::Row("a match lies outside of the image"));
            }
            let at = pixel as usize;
            if let (Some(index), Some(place)) = (way.index.get_mut(at), way.quality.get_mut(at)) {
                *index = v * width + u;
                *place = in_order(*quality, QUALITY_DROP);
            }
        }
        Ok(())
    }

    /// Appends the planes of the differences between the numbers.
    fn difference(&mut self) {
        let mut last = 0_u32;
        for number in &mut self.numbers {
            let difference = number.wrapping_sub(last) as i32;
            last = *number;
            // Small differences of both signs become small numbers.
            *number = ((difference << 1) ^ (difference >> 31)) as u32;
        }
        self.split();
    }

    /// Appends the planes of the numbers, one for each byte.
    fn split(&mut self) {
        for plane in 0..PLANES {
            let byte = |number: &u32| (number >> (8 * plane)) as u8;
            self.planes.extend(self.numbers.iter().map(byte));
        }
    }

    /// Appends the planes to `dst`, compressed, with their packed length before them.
    fn compress(&mut self, level: i32, dst: &mut Vec<u8>) {
        self.packed.clear();
        self.packed
            .resize(zstd::zstd_safe::compress_bound(self.planes.len()), 0);
        // Cannot fail: the buffer has the size that the format needs at most.
        let length = zstd::bulk::compress_to_buffer(&self.planes, &mut self.packed, level);
        let length = length.unwrap_or(0);
        dst.extend((length as u32).to_le_bytes());
        dst.extend(&self.packed[..length]);
    }

    /// Replaces the planes by the next part of `src`, which has `expected` bytes.
    fn decompress(&mut self, src: &mut &[u8], expected: usize) -> Result<(), StoreError> {
        let short = StoreError::Row("it is shorter than expected");
        let Some((length, rest)) = src.split_first_chunk::<4>() else {
            return Err(short);
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some((part, rest)) = rest.split_at_checked(length) else {
            return Err(short);
        };
        *src = rest;
        self.planes.clear();
        self.planes.resize(expected, 0);
        match zstd::bulk::decompress_to_buffer(part, &mut self.planes) {
            Ok(found) if found == expected => Ok(()),
            Ok(_) => Err(short),
            Err(_) => Err(StoreError::Row("it cannot be unpacked")),
        }
    }
}

fn end(rest: &[u8]) -> Result<(), StoreError> {
    match rest.is_empty() {
        true => Ok(()),
        false => Err(StoreError::Row("it is longer than expected")),
    }
}

/// Replaces `dst` by the numbers whose bytes are in `planes`.
fn joined(planes: &[u8], dst: &mut Vec<u32>) {
    dst.clear();
    let count = planes.len() / PLANES;
    if count == 0 {
        return;
    }
    dst.resize(count, 0);
    for (shift, plane) in planes.chunks_exact(count).enumerate() {
        for (number, byte) in dst.iter_mut().zip(plane) {
            *number |= u32::from(*byte) << (8 * shift);
        }
    }
}

/// Replaces `dst` by the sums of the differences in `planes`.
fn summed(planes: &[u8], dst: &mut Vec<u32>) {
    joined(planes, dst);
    let mut last = 0_u32;
    for number in dst {
        let difference = (*number >> 1) ^ (*number & 1).wrapping_neg();
        last = last.wrapping_add(difference);
        *number = last;
    }
}

/// The leading bits of a float, rounded to nearest, ties upwards; without a carry to infinity.
fn rounded(value: f32, drop: u32) -> u32 {
    let bits = value.to_bits();
    let half = 1 << (drop - 1);
    match value.is_finite() && f32::from_bits(bits + half).is_finite() {
        true => (bits + half) >> drop,
        false => bits >> drop,
    }
}

fn restored(number: u32, drop: u32) -> f32 {
    f32::from_bits(number << drop)
}

/// Like [`rounded`], in the order of the values.
fn ordered(value: f32, drop: u32) -> u32 {
    let number = rounded(value, drop);
    let sign = 1 << (31 - drop);
    match number & sign {
        0 => number | sign,
        _ => (sign << 1) - 1 - number,
    }
}

/// The value that [`ordered`] rounded to.
fn in_order(number: u32, drop: u32) -> f32 {
    let sign = 1_u32 << (31 - drop);
    match number & sign {
        0 => restored((sign << 1).wrapping_sub(1).wrapping_sub(number), drop),
        _ => restored(number & !sign, drop),
    }
}

#[cfg(test)]
mod tests;

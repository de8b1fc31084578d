//! Separable antialiased 8-bit resampling, bit-identical to Pillow's `Image.resize`.
//!
//! In each pass, output `i` is centred at `c = (i + 0.5) · in/out`; the filter is widened by `fs =
//! max(in/out, 1)`; the weights are normalised to sum 1 in f64 and rounded (half away from zero) to
//! multiples of 2⁻²², and the sum of weight · pixel is rounded and clipped to 8 bits. The
//! horizontal pass runs first and its result is 8-bit. The tables are computed once.

use super::{ImageError, RgbImage};
use multiversion::multiversion;
use rayon::prelude::*;

/// Fractional bits of the integer weights: 32 − 8 for the pixel − 2 for over- and undershoot.
const WEIGHT_BITS: u32 = 22;
const HALF: i32 = 1 << (WEIGHT_BITS - 1);
/// Rows per task of the horizontal pass.
const BAND: usize = 16;

/// A resampling kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Keys' cubic with a = −0.5 and support 2.
    Bicubic,
    /// `sinc(x)·sinc(x/3)` with support 3.
    Lanczos3,
}

impl Filter {
    fn reach(self) -> f64 {
        match self {
            Self::Bicubic => 2.0,
            Self::Lanczos3 => 3.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        match self {
            Self::Bicubic => {
                const A: f64 = -0.5;
                let x = x.abs();
                if x < 1.0 {
                    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * A
                } else {
                    0.0
                }
            }
            Self::Lanczos3 => {
                if (-3.0..3.0).contains(&x) {
                    sinc(x) * sinc(x / 3.0)
                } else {
                    0.0
                }
            }
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// The region of the resized image to keep, in pixels of the resized image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crop {
    /// First column.
    pub left: usize,
    /// First row.
    pub top: usize,
    pub width: usize,
    pub height: usize,
}

impl Crop {
    /// The whole image.
    pub fn all(width: usize, height: usize) -> Self {
        Self {
            left: 0,
            top: 0,
            width,
            height,
        }
    }
}

/// Weights of one output position: `weights[offset..offset + len]`, for inputs starting at `first`.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: usize,
    offset: usize,
    len: usize,
}

/// Weights of every output position along one axis.
#[derive(Debug, Clone)]
struct Axis {
    spans: Vec<Span>,
    weights: Vec<i32>,
}

impl Axis {
    fn new(input: usize, output: usize, first: usize, count: usize, filter: Filter) -> Self {
        let scale = input as f64 / output as f64;
        let widen = scale.max(1.0);
        let (support, per_input) = (filter.reach() * widen, 1.0 / widen);
        let mut axis = Self {
            spans: Vec::with_capacity(count),
            weights: Vec::new(),
        };
        let mut exact = Vec::new();
        for i in first..first + count {
            let centre = (i as f64 + 0.5) * scale;
            // `as usize` truncates and maps negative values to 0.
            let begin = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(input);
            exact.clear();
            exact.extend((begin..end).map(|k| {
                // Pillow's order of operations; another order differs in the last bit.
                filter.at((k as f64 - centre + 0.5) * per_input)
            }));
            let sum: f64 = exact.iter().sum();
            let offset = axis.weights.len();
            axis.weights.extend(exact.iter().map(|w| {
                let w = if sum != 0.0 { w / sum } else { *w };
                (w * f64::from(1u32 << WEIGHT_BITS) + 0.5f64.copysign(w)) as i32
            }));
            axis.spans.push(Span {
                first: begin,
                offset,
                len: end - begin,
            });
        }
        axis
    }

    /// The range of inputs in use: first, and one past the last.
    fn inputs(&self) -> (usize, usize) {
        let first = self.spans.iter().map(|s| s.first).min().unwrap_or(0);
        let end = self.spans.iter().map(|s| s.first + s.len).max();
        (first, end.unwrap_or(0))
    }

    fn weights(&self, span: Span) -> &[i32] {
        &self.weights[span.offset..span.offset + span.len]
    }
}

/// Weight table for a device kernel that handles all sizes uniformly: an axis that keeps its size
/// has a single weight of 1 per position.
#[cfg(feature = "cuda")]
pub(crate) struct AxisTable {
    /// For each output position, the first input and the number of inputs.
    pub spans: Vec<[u32; 2]>,
    /// For each output position, `taps` weights in units of 2⁻²², zero-padded.
    pub weights: Vec<i32>,
    /// Maximum number of weights per position.
    pub taps: usize,
}

#[cfg(feature = "cuda")]
impl AxisTable {
    /// Builds the table from `axis`, or an identity table of `count` positions from `first`; input
    /// indices are relative to `origin`.
    fn new(axis: Option<&Axis>, first: usize, count: usize, origin: usize) -> Self {
        let Some(axis) = axis else {
            let spans = (first..first + count).map(|i| [(i - origin) as u32, 1]);
            return Self {
                spans: spans.collect(),
                weights: vec![1 << WEIGHT_BITS; count],
                taps: 1,
            };
        };
        let taps = axis.spans.iter().map(|s| s.len).max().unwrap_or(0);
        let mut table = Self {
            spans: Vec::with_capacity(count),
            weights: Vec::with_capacity(count * taps),
            taps,
        };
        for &span in &axis.spans {
            table
                .spans
                .push([(span.first - origin) as u32, span.len as u32]);
            table.weights.extend_from_slice(axis.weights(span));
            table.weights.resize(table.spans.len() * taps, 0);
        }
        table
    }
}

/// Resizes images of one size to another and keeps a crop of the result.
#[derive(Debug, Clone)]
pub struct Resampler {
    input: (usize, usize),
    crop: Crop,
    /// `None` if the axis keeps its size.
    horizontal: Option<Axis>,
    vertical: Option<Axis>,
    /// Range of source rows that the vertical pass reads.
    rows: (usize, usize),
    /// Result of the horizontal pass for `rows`.
    middle: Vec<u8>,
    /// One source row per band, with 4 × i32 per pixel.
    wide: Vec<[i32; 4]>,
}

impl Resampler {
    /// Tables for `input` (width, height) → `output`, of which `crop` is kept.
    ///
    /// # Panics
    /// If a size is zero or the crop is not inside `output`.
    pub fn new(input: (usize, usize), output: (usize, usize), filter: Filter, crop: Crop) -> Self {
        assert!(
            input.0 > 0 && input.1 > 0 && output.0 > 0 && output.1 > 0,
            "resampling needs sizes that are not zero"
        );
        assert!(
            crop.width > 0
                && crop.height > 0
                && crop.left + crop.width <= output.0
                && crop.top + crop.height <= output.1,
            "the crop must lie within the resized image"
        );
        let horizontal = (input.0 != output.0)
            .then(|| Axis::new(input.0, output.0, crop.left, crop.width, filter));
        let vertical = (input.1 != output.1)
            .then(|| Axis::new(input.1, output.1, crop.top, crop.height, filter));
        let rows = vertical
            .as_ref()
            .map_or((crop.top, crop.top + crop.height), Axis::inputs);
        let count = rows.1 - rows.0;
        let (middle, wide) = match &horizontal {
            Some(_) => (count * crop.width * 3, count.div_ceil(BAND) * input.0),
            None => (0, 0),
        };
        Self {
            input,
            crop,
            horizontal,
            vertical,
            rows,
            middle: vec![0; middle],
            wide: vec![[0; 4]; wide],
        }
    }

    /// The tables of both passes, with the vertical inputs relative to the first source row read,
    /// and the range of those rows: first, and one past the last.
    #[cfg(feature = "cuda")]
    pub(crate) fn tables(&self) -> (AxisTable, AxisTable, (usize, usize)) {
        let Crop {
            left,
            top,
            width,
            height,
        } = self.crop;
        (
            AxisTable::new(self.horizontal.as_ref(), left, width, 0),
            AxisTable::new(self.vertical.as_ref(), top, height, self.rows.0),
            self.rows,
        )
    }

    /// Width and height of the images that [`Self::run`] writes.
    pub fn output_size(&self) -> (usize, usize) {
        (self.crop.width, self.crop.height)
    }

    /// Resamples `src` into `dst`, which is resized.
    ///
    /// # Errors
    /// If `src` does not have the size the tables were made for.
    pub fn run(&mut self, src: &RgbImage, dst: &mut RgbImage) -> Result<(), ImageError> {
        src.expect_size(self.input)?;
        dst.reshape(self.crop.width, self.crop.height);
        let source_row = self.input.0 * 3;
        let row = self.crop.width * 3;
        // Input of the vertical pass: rows of `stride` bytes, starting at byte `shift` of row
        // `row`.
        let (data, stride, shift) = match &self.horizontal {
            Some(axis) => {
                let rows = &src.data[self.rows.0 * source_row..self.rows.1 * source_row];
                self.middle
                    .par_chunks_mut(BAND * row)
                    .zip(rows.par_chunks(BAND * source_row))
                    .zip(self.wide.par_chunks_exact_mut(self.input.0))
                    .for_each(|((out, rows), wide)| {
                        for (out, line) in
                            out.chunks_exact_mut(row).zip(rows.chunks_exact(source_row))
                        {
                            for (wide, px) in wide.iter_mut().zip(line.chunks_exact(3)) {
                                *wide = [i32::from(px[0]), i32::from(px[1]), i32::from(px[2]), 0];
                            }
                            resample_row(axis, wide, out);
                        }
                    });
                (&self.middle[..], row, 0)
            }
            None => (
                &src.data[self.rows.0 * source_row..self.rows.1 * source_row],
                source_row,
                self.crop.left * 3,
            ),
        };
        match &self.vertical {
            Some(axis) => dst
                .data
                .par_chunks_exact_mut(row)
                .zip(axis.spans.par_iter())
                .for_each(|(out, span)| {
                    let lines = &data[(span.first - self.rows.0) * stride + shift..];
                    blend_rows(axis.weights(*span), lines, stride, out);
                }),
            None => {
                for (out, line) in dst
                    .data
                    .chunks_exact_mut(row)
                    .zip(data.chunks_exact(stride))
                {
                    out.copy_from_slice(&line[shift..shift + row]);
                }
            }
        }
        Ok(())
    }
}

fn clip(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
fn resample_row(axis: &Axis, line: &[[i32; 4]], out: &mut [u8]) {
    for (out, span) in out.chunks_exact_mut(3).zip(&axis.spans) {
        let mut sum = [HALF; 4];
        let pixels = &line[span.first..span.first + span.len];
        for (&weight, px) in axis.weights(*span).iter().zip(pixels) {
            for (sum, &value) in sum.iter_mut().zip(px) {
                *sum += weight * value;
            }
        }
        out.copy_from_slice(&[clip(sum[0]), clip(sum[1]), clip(sum[2])]);
    }
}

/// `out = Σ weights[k] · lines[k · stride..]`, in column blocks that fit the registers.
#[multiversion(targets("x86_64+avx2", "x86_64+sse4.1"))]
fn blend_rows(weights: &[i32], lines: &[u8], stride: usize, out: &mut [u8]) {
    const LANES: usize = 32;
    let mut at = 0;
    let mut chunks = out.chunks_exact_mut(LANES);
    for out in &mut chunks {
        let mut sum = [HALF; LANES];
        for (k, &weight) in weights.iter().enumerate() {
            let from = k * stride + at;
            for (sum, &value) in sum.iter_mut().zip(&lines[from..from + LANES]) {
                *sum += weight * i32::from(value);
            }
        }
        for (out, &sum) in out.iter_mut().zip(&sum) {
            *out = clip(sum);
        }
        at += LANES;
    }
    for out in chunks.into_remainder() {
        let mut sum = HALF;
        for (k, &weight) in weights.iter().enumerate() {
            sum += weight * i32::from(lines[k * stride + at]);
        }
        *out = clip(sum);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_every_position_sum_to_one() {
        for filter in [Filter::Bicubic, Filter::Lanczos3] {
            for (input, output) in [(640, 512), (1920, 512), (3, 17), (17, 3), (1, 5), (5, 1)] {
                let axis = Axis::new(input, output, 0, output, filter);
                for span in &axis.spans {
                    let sum: i64 = axis.weights(*span).iter().map(|&w| i64::from(w)).sum();
                    // Each weight is rounded once, by at most half a unit.
                    let slack = span.len as i64 / 2 + 1;
                    assert!((sum - (1 << 22)).abs() <= slack, "{input}->{output}: {sum}");
                }
            }
        }
    }

    #[test]
    fn a_flat_image_stays_flat_and_a_crop_is_the_part() {
        let mut src = RgbImage::new(37, 23);
        src.data.fill(201);
        let crop = Crop {
            left: 3,
            top: 2,
            width: 20,
            height: 11,
        };
        let mut part = Resampler::new((37, 23), (29, 41), Filter::Lanczos3, crop);
        let mut dst = RgbImage::default();
        part.run(&src, &mut dst).unwrap();
        assert!(dst.data.iter().all(|&v| v == 201));

        for (i, v) in src.data.iter_mut().enumerate() {
            *v = (i * i % 251) as u8;
        }
        for output in [(29, 41), (37, 41), (29, 23), (37, 23)] {
            let whole = Crop::all(output.0, output.1);
            let mut all = RgbImage::default();
            Resampler::new((37, 23), output, Filter::Bicubic, whole)
                .run(&src, &mut all)
                .unwrap();
            Resampler::new((37, 23), output, Filter::Bicubic, crop)
                .run(&src, &mut dst)
                .unwrap();
            for row in 0..crop.height {
                let from = ((crop.top + row) * output.0 + crop.left) * 3;
                assert_eq!(
                    dst.data[row * 60..row * 60 + 60],
                    all.data[from..from + 60],
                    "{output:?} row {row}"
                );
            }
        }
    }

    #[test]
    fn another_size_or_a_short_buffer_is_refused() {
        let mut r = Resampler::new((8, 6), (4, 3), Filter::Bicubic, Crop::all(4, 3));
        let mut dst = RgbImage::default();
        let message = r
            .run(&RgbImage::new(6, 8), &mut dst)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("8×6") && message.contains("6×8"),
            "{message}"
        );
        let short = RgbImage {
            width: 8,
            height: 6,
            data: vec![0; 100],
        };
        let message = r.run(&short, &mut dst).unwrap_err().to_string();
        assert!(
            message.contains("144") && message.contains("100"),
            "{message}"
        );
    }
}

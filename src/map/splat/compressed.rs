//! Compressed PLY in the layout of PlayCanvas: chunks of 256 rows in Morton order, each value within its chunk's range.

use super::header::{Element, PlyHeader};
use super::ply::degree_of;
use super::{Splat, SplatRows, coefficients, for_each};
use std::fmt::Write as _;
use std::io::{self, Read, Write};

/// Rows of a chunk.
pub(super) const CHUNK: usize = 256;
/// Limit of logarithms of scales: others' files hold infinite ones.
const MAX_LOG_SCALE: f32 = 20.0;
/// The constant spherical harmonic: `colour = 0.5 + SH_C0 · dc`.
const SH_C0: f32 = 0.282_094_8;
/// Properties of a chunk: minimum and maximum of position, scale and colour.
const RANGES: [&str; 18] = [
    "min_x",
    "min_y",
    "min_z",
    "max_x",
    "max_y",
    "max_z",
    "min_scale_x",
    "min_scale_y",
    "min_scale_z",
    "max_scale_x",
    "max_scale_y",
    "max_scale_z",
    "min_r",
    "min_g",
    "min_b",
    "max_r",
    "max_g",
    "max_b",
];
/// Properties of a row.
const PACKED: [&str; 4] = [
    "packed_position",
    "packed_rotation",
    "packed_scale",
    "packed_color",
];

/// The header of a file.
fn header(count: u64, degree: u8) -> String {
    let chunks = count.div_ceil(CHUNK as u64);
    let mut text = format!("ply\nformat binary_little_endian 1.0\nelement chunk {chunks}\n");
    for name in RANGES {
        let _ = writeln!(text, "property float {name}");
    }
    let _ = writeln!(text, "element vertex {count}");
    for name in PACKED {
        let _ = writeln!(text, "property uint {name}");
    }
    if degree > 0 {
        let _ = writeln!(text, "element sh {count}");
        for k in 0..3 * coefficients(degree) {
            let _ = writeln!(text, "property uchar f_rest_{k}");
        }
    }
    text.push_str("end_header\n");
    text
}

/// `value` in `[0, 1]` as a number of `bits` bits.
fn unorm(value: f32, bits: u32) -> u32 {
    let max = ((1u32 << bits) - 1) as f32;
    // A cast saturates, and makes NaN zero.
    (value * max + 0.5).clamp(0.0, max) as u32
}

fn from_unorm(value: u32, bits: u32) -> f32 {
    let max = (1u32 << bits) - 1;
    (value & max) as f32 / max as f32
}

/// Three values of 11, 10 and 11 bits.
fn pack_three(v: [f32; 3]) -> u32 {
    unorm(v[0], 11) << 21 | unorm(v[1], 10) << 11 | unorm(v[2], 11)
}

fn unpack_three(v: u32) -> [f32; 3] {
    [
        from_unorm(v >> 21, 11),
        from_unorm(v >> 11, 10),
        from_unorm(v, 11),
    ]
}

/// Index of the largest component in 2 bits, then the others in 10 bits each.
fn pack_rotation(q: [f32; 4]) -> u32 {
    let larger = |a: usize, b: usize| if q[b].abs() > q[a].abs() { b } else { a };
    let largest = (1..4).fold(0, larger);
    let sign = if q[largest] < 0.0 { -1.0 } else { 1.0 };
    let others = (0..4).filter(|k| *k != largest);
    others.fold(largest as u32, |packed, k| {
        packed << 10 | unorm(sign * q[k] * std::f32::consts::FRAC_1_SQRT_2 + 0.5, 10)
    })
}

fn unpack_rotation(packed: u32) -> [f32; 4] {
    let largest = (packed >> 30) as usize;
    let mut q = [0.0f32; 4];
    let mut square = 0.0;
    for (at, k) in (0..4).filter(|k| *k != largest).enumerate() {
        let value = (from_unorm(packed >> (20 - 10 * at), 10) - 0.5) * std::f32::consts::SQRT_2;
        q[k] = value;
        square += value * value;
    }
    q[largest] = (1.0 - square).max(0.0).sqrt();
    q
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The logit of an opacity in 8 bits; those at the ends are kept finite.
pub(super) fn logit(byte: f32) -> f32 {
    let p = byte.clamp(0.5, 254.5) / 255.0;
    (p / (1.0 - p)).ln()
}

fn colour(row: &Splat) -> [f32; 3] {
    row.dc.map(|dc| dc * SH_C0 + 0.5)
}

fn log_scale(row: &Splat) -> [f32; 3] {
    row.scale.map(|s| s.clamp(-MAX_LOG_SCALE, MAX_LOG_SCALE))
}

/// Minimum and maximum of three values.
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    min: [f32; 3],
    max: [f32; 3],
}

impl Range {
    fn of(values: impl Iterator<Item = [f32; 3]>) -> Self {
        let (mut min, mut max) = ([f32::INFINITY; 3], [f32::NEG_INFINITY; 3]);
        for v in values {
            for k in 0..3 {
                min[k] = min[k].min(v[k]);
                max[k] = max[k].max(v[k]);
            }
        }
        Self { min, max }
    }

    fn normalise(&self, v: [f32; 3]) -> [f32; 3] {
        std::array::from_fn(|k| {
            let length = self.max[k] - self.min[k];
            if length < 1e-5 {
                0.0
            } else {
                (v[k] - self.min[k]) / length
            }
        })
    }

    fn denormalise(&self, t: [f32; 3]) -> [f32; 3] {
        std::array::from_fn(|k| self.min[k] * (1.0 - t[k]) + self.max[k] * t[k])
    }
}

/// Ranges of position, scale and colour.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ranges([Range; 3]);

impl Ranges {
    fn of(rows: &[Splat]) -> Self {
        Self([
            Range::of(rows.iter().map(|r| r.mean)),
            Range::of(rows.iter().map(log_scale)),
            Range::of(rows.iter().map(colour)),
        ])
    }

    fn put(&self, out: &mut dyn Write) -> io::Result<()> {
        for value in self.0.iter().flat_map(|r| r.min.into_iter().chain(r.max)) {
            out.write_all(&value.to_le_bytes())?;
        }
        Ok(())
    }

    fn get(src: &mut dyn Read) -> io::Result<Self> {
        let mut bytes = [0; 72];
        src.read_exact(&mut bytes)?;
        let (floats, _) = bytes.as_chunks::<4>();
        let at = |k: usize| f32::from_le_bytes(floats[k]);
        Ok(Self(std::array::from_fn(|r| Range {
            min: std::array::from_fn(|k| at(6 * r + k)),
            max: std::array::from_fn(|k| at(6 * r + 3 + k)),
        })))
    }

    fn pack(&self, row: &Splat) -> [u32; 4] {
        let [position, scale, colours] = &self.0;
        let rgb = colours.normalise(colour(row)).map(|v| unorm(v, 8));
        let alpha = unorm(sigmoid(row.opacity), 8);
        [
            pack_three(position.normalise(row.mean)),
            pack_rotation(row.unit_rotation()),
            pack_three(scale.normalise(log_scale(row))),
            rgb[0] << 24 | rgb[1] << 16 | rgb[2] << 8 | alpha,
        ]
    }

    fn unpack(&self, v: [u32; 4]) -> Splat {
        let [position, scale, colours] = &self.0;
        let rgb = [24, 16, 8].map(|shift| from_unorm(v[3] >> shift, 8));
        Splat {
            mean: position.denormalise(unpack_three(v[0])),
            dc: colours.denormalise(rgb).map(|c| (c - 0.5) / SH_C0),
            rest: [0.0; 45],
            scale: scale.denormalise(unpack_three(v[2])),
            rotation: unpack_rotation(v[1]),
            opacity: logit((v[3] & 255) as f32),
        }
    }
}

/// Interleaves the lowest 21 bits of three numbers.
fn interleave(v: [u64; 3]) -> u64 {
    let spread = |mut x: u64| {
        x = (x | x << 32) & 0x001f_0000_0000_ffff;
        x = (x | x << 16) & 0x001f_0000_ff00_00ff;
        x = (x | x << 8) & 0x100f_00f0_0f00_f00f;
        x = (x | x << 4) & 0x10c3_0c30_c30c_30c3;
        (x | x << 2) & 0x1249_2492_4924_9249
    };
    spread(v[0]) | spread(v[1]) << 1 | spread(v[2]) << 2
}

/// Sorts rows along a Morton curve through their bounding box; equal places keep their order.
fn morton_sort(rows: &mut [Splat]) {
    let range = Range::of(rows.iter().map(|r| r.mean));
    let max = ((1u64 << 21) - 1) as f32;
    rows.sort_by_cached_key(|row| interleave(range.normalise(row.mean).map(|v| (v * max) as u64)));
}

/// Writes all rows; returns the bytes written.
pub(super) fn write(out: &mut dyn Write, rows: &mut dyn SplatRows) -> io::Result<u64> {
    let degree = rows.degree();
    let header = header(rows.count(), degree);
    out.write_all(header.as_bytes())?;
    let mut all = Vec::new();
    for_each(rows, &mut |row| {
        all.push(*row);
        Ok(())
    })?;
    morton_sort(&mut all);
    let chunks = all.chunks(CHUNK);
    for chunk in chunks.clone() {
        Ranges::of(chunk).put(out)?;
    }
    for chunk in chunks {
        let ranges = Ranges::of(chunk);
        for row in chunk {
            for word in ranges.pack(row) {
                out.write_all(&word.to_le_bytes())?;
            }
        }
    }
    let per_colour = coefficients(degree);
    for row in &all {
        for k in 0..3 * per_colour {
            let value = row.rest[3 * (k % per_colour) + k / per_colour];
            out.write_all(&[((value / 8.0 + 0.5) * 256.0) as u8])?;
        }
    }
    let count = all.len() as u64;
    let chunks = count.div_ceil(CHUNK as u64);
    Ok(header.len() as u64 + 72 * chunks + (16 + 3 * per_colour as u64) * count)
}

/// What a file's header says: rows, degree, and the offsets of chunks, rows and coefficients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub count: u64,
    pub degree: u8,
    pub chunks: u64,
    pub rows: u64,
    pub rest: u64,
    /// Bytes of the whole file.
    pub bytes: u64,
}

impl Layout {
    /// Reads a header's elements; the error says what is wrong. `max` limits the rows.
    pub(super) fn of(header: &PlyHeader, max: u64) -> Result<Self, String> {
        let named = |element: &Element, kind: &str, names: &[&str]| {
            let found = element.properties.iter().map(|(_, name)| name.as_str());
            element.is_all(kind) && found.eq(names.iter().copied())
        };
        let (chunk, vertex, sh) = match header.elements.as_slice() {
            [chunk, vertex] => (chunk, vertex, None),
            [chunk, vertex, sh] => (chunk, vertex, Some(sh)),
            _ => return Err("expected the elements chunk, vertex and sh".to_owned()),
        };
        let count = vertex.count;
        if chunk.name != "chunk" || !named(chunk, "float", &RANGES) {
            return Err("its chunks do not have the 18 ranges".to_owned());
        }
        if vertex.name != "vertex" || !named(vertex, "uint", &PACKED) {
            return Err("its vertices do not have the four packed values".to_owned());
        }
        if count > max {
            return Err(format!("it has {count} rows, expected at most {max}"));
        }
        if chunk.count != count.div_ceil(CHUNK as u64) {
            let found = chunk.count;
            return Err(format!("it has {found} chunks for {count} rows"));
        }
        let rest = sh.map_or(0, |sh| sh.properties.len());
        let is_rest = |sh: &Element| {
            let names: Vec<String> = (0..rest).map(|k| format!("f_rest_{k}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            sh.name == "sh" && sh.count == count && named(sh, "uchar", &names)
        };
        let degree = degree_of(rest).filter(|_| sh.is_none_or(is_rest));
        let degree = degree.ok_or("its element sh is not of 9, 24 or 45 coefficients")?;
        let rows = header.bytes + 72 * chunk.count;
        let rest_at = rows + 16 * count;
        Ok(Self {
            count,
            degree,
            chunks: header.bytes,
            rows,
            rest: rest_at,
            bytes: rest_at + rest as u64 * count,
        })
    }
}

/// Reads rows in order from three places of a file.
#[derive(Debug)]
pub(super) struct Rows<R> {
    chunks: R,
    rows: R,
    rest: R,
    degree: u8,
    read: u64,
    ranges: Ranges,
}

impl<R: Read> Rows<R> {
    pub(super) fn new(chunks: R, rows: R, rest: R, degree: u8) -> Self {
        Self {
            chunks,
            rows,
            rest,
            degree,
            read: 0,
            ranges: Ranges::default(),
        }
    }

    pub(super) fn read(&mut self, dst: &mut Splat) -> io::Result<()> {
        if self.read.is_multiple_of(CHUNK as u64) {
            self.ranges = Ranges::get(&mut self.chunks)?;
        }
        self.read += 1;
        let mut bytes = [0; 16];
        self.rows.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        *dst = self
            .ranges
            .unpack(std::array::from_fn(|k| u32::from_le_bytes(words[k])));
        let per_colour = coefficients(self.degree);
        let mut bytes = [0; 45];
        let bytes = &mut bytes[..3 * per_colour];
        self.rest.read_exact(bytes)?;
        for (k, byte) in bytes.iter().enumerate() {
            let n = match byte {
                0 => 0.0,
                255 => 1.0,
                b => (f32::from(*b) + 0.5) / 256.0,
            };
            dst.rest[3 * (k % per_colour) + k / per_colour] = (n - 0.5) * 8.0;
        }
        Ok(())
    }
}

//! spz, version 4: six streams of quantised values, each compressed by Zstandard. Axes of the file are right, up and
//! back, as its authors define them; those of a map are right, down and front, so y and z change their signs.

use super::compressed::logit;
use super::{Splat, SplatRows, coefficients, for_each};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

/// `NGSP`.
pub(super) const MAGIC: [u8; 4] = *b"NGSP";
/// The version that is read and written.
pub(super) const VERSION: u32 = 4;
/// Bytes of the header.
const HEADER: u64 = 32;
/// Bits of a position's fraction: steps of 0.24 mm within ± 2,048 m.
const FRACTION_BITS: u8 = 12;
/// The level of the reference's writer.
const LEVEL: i32 = 12;
/// Scale of the constant coefficient of a colour.
const COLOUR: f32 = 0.15;
/// Largest ratio of compression of a plausible file: a header may claim no more rows.
const MAX_RATIO: u64 = 1024;

/// A stream of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Positions,
    Alphas,
    Colours,
    Scales,
    Rotations,
    Harmonics,
}

/// The streams in their order in the file; the last is absent at degree 0.
const PARTS: [Part; 6] = [
    Part::Positions,
    Part::Alphas,
    Part::Colours,
    Part::Scales,
    Part::Rotations,
    Part::Harmonics,
];

impl Part {
    /// Bytes of a row.
    fn bytes(self, degree: u8) -> usize {
        match self {
            Self::Positions => 9,
            Self::Alphas => 1,
            Self::Colours | Self::Scales => 3,
            Self::Rotations => 4,
            Self::Harmonics => 3 * coefficients(degree),
        }
    }
}

fn parts(degree: u8) -> &'static [Part] {
    if degree == 0 { &PARTS[..5] } else { &PARTS }
}

fn byte(value: f32) -> u8 {
    // A cast saturates, and makes NaN zero.
    value.round() as u8
}

/// Whether a coefficient of a spherical harmonic changes its sign with the axes y and z.
fn is_odd(coefficient: usize) -> bool {
    // Each harmonic has the parity in y and z of its polynomial: y, z, x; xy, yz, zz, xz, xx - yy; and so on.
    const ODD: [bool; 15] = [
        true, true, false, //
        true, false, false, true, false, //
        true, false, true, true, false, true, false,
    ];
    ODD.get(coefficient).copied().unwrap_or(false)
}

/// Index of the largest component in 2 bits, then sign and 9 bits of each of the others. `q` is `x y z w`.
fn pack_rotation(q: [f32; 4]) -> u32 {
    let larger = |a: usize, b: usize| if q[b].abs() > q[a].abs() { b } else { a };
    let largest = (1..4).fold(0, larger);
    let negate = q[largest] < 0.0;
    let others = (0..4).filter(|k| *k != largest);
    others.fold(largest as u32, |packed, k| {
        let sign = u32::from((q[k] < 0.0) != negate);
        let magnitude = (511.0 * q[k].abs() * std::f32::consts::SQRT_2 + 0.5).min(511.0) as u32;
        packed << 10 | sign << 9 | magnitude
    })
}

fn unpack_rotation(packed: u32) -> [f32; 4] {
    let largest = (packed >> 30) as usize;
    let mut q = [0.0f32; 4];
    let mut square = 0.0;
    for (at, k) in (0..4).filter(|k| *k != largest).enumerate() {
        let bits = packed >> (20 - 10 * at);
        let magnitude = (bits & 511) as f32 / 511.0 * std::f32::consts::FRAC_1_SQRT_2;
        q[k] = if bits & 512 == 0 {
            magnitude
        } else {
            -magnitude
        };
        square += magnitude * magnitude;
    }
    q[largest] = (1.0 - square).max(0.0).sqrt();
    q
}

/// A coefficient in 5 bits (first band) or 4 bits.
fn harmonic(value: f32, coefficient: usize) -> u8 {
    let bucket = if coefficient < 3 { 8 } else { 16 };
    let value = ((value * 128.0).round() + 128.0).clamp(0.0, 255.0) as i32;
    ((value + bucket / 2) / bucket * bucket).clamp(0, 255) as u8
}

impl Part {
    fn put(self, row: &Splat, degree: u8, dst: &mut Vec<u8>) {
        match self {
            Self::Positions => {
                let [x, y, z] = row.mean;
                for v in [x, -y, -z] {
                    let limit = ((1 << 23) - 1) as f32;
                    let fixed = (v * f32::from(1u16 << FRACTION_BITS)).round();
                    let fixed = fixed.clamp(-limit, limit) as i32;
                    dst.extend(&fixed.to_le_bytes()[..3]);
                }
            }
            Self::Alphas => dst.push(byte(255.0 / (1.0 + (-row.opacity).exp()))),
            Self::Colours => dst.extend(row.dc.map(|v| byte(v * (COLOUR * 255.0) + 127.5))),
            Self::Scales => dst.extend(row.scale.map(|v| byte(16.0 * (v + 10.0)))),
            Self::Rotations => {
                let [w, x, y, z] = row.unit_rotation();
                dst.extend(pack_rotation([x, -y, -z, w]).to_le_bytes());
            }
            Self::Harmonics => {
                for k in 0..coefficients(degree) {
                    let sign = if is_odd(k) { -1.0 } else { 1.0 };
                    let values = &row.rest[3 * k..3 * k + 3];
                    dst.extend(values.iter().map(|v| harmonic(sign * v, k)));
                }
            }
        }
    }

    /// Reads a row's values from bytes of this part's size.
    fn get(self, src: &[u8], step: f32, dst: &mut Splat) {
        match (self, src) {
            (Self::Positions, &[a, b, c, d, e, f, g, h, i]) => {
                // The third byte is the highest: shifting back extends its sign.
                let fixed = |a, b, c| (i32::from_le_bytes([0, a, b, c]) >> 8) as f32 * step;
                dst.mean = [fixed(a, b, c), -fixed(d, e, f), -fixed(g, h, i)];
            }
            (Self::Alphas, &[alpha]) => dst.opacity = logit(f32::from(alpha)),
            (Self::Colours, &[r, g, b]) => {
                dst.dc = [r, g, b].map(|v| (f32::from(v) / 255.0 - 0.5) / COLOUR);
            }
            (Self::Scales, &[x, y, z]) => {
                dst.scale = [x, y, z].map(|v| f32::from(v) / 16.0 - 10.0);
            }
            (Self::Rotations, &[a, b, c, d]) => {
                let [x, y, z, w] = unpack_rotation(u32::from_le_bytes([a, b, c, d]));
                dst.rotation = [w, x, -y, -z];
            }
            (_, values) => {
                for (k, (value, byte)) in dst.rest.iter_mut().zip(values).enumerate() {
                    let sign = if is_odd(k / 3) { -1.0 } else { 1.0 };
                    *value = sign * (f32::from(*byte) - 128.0) / 128.0;
                }
            }
        }
    }
}

/// Writes all rows, stream after stream; returns the bytes written.
pub(super) fn write<W: Write + Seek>(out: &mut W, rows: &mut dyn SplatRows) -> io::Result<u64> {
    let degree = rows.degree();
    let parts = parts(degree);
    let count = u32::try_from(rows.count()).map_err(io::Error::other)?;
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&count.to_le_bytes())?;
    out.write_all(&[degree, FRACTION_BITS, 0, parts.len() as u8])?;
    out.write_all(&(HEADER as u32).to_le_bytes())?;
    out.write_all(&[0; 12])?;
    // The table of sizes is filled in at the end.
    let mut table = vec![0u8; 16 * parts.len()];
    out.write_all(&table)?;
    let mut end = HEADER + table.len() as u64;
    let mut bytes = Vec::new();
    for (part, sizes) in parts.iter().zip(table.chunks_exact_mut(16)) {
        {
            let encoder = zstd::stream::write::Encoder::new(&mut *out, LEVEL)?;
            let mut encoder = BufWriter::new(encoder);
            for_each(rows, &mut |row| {
                bytes.clear();
                part.put(row, degree, &mut bytes);
                encoder.write_all(&bytes)
            })?;
            let encoder = encoder
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?;
            encoder.finish()?;
        }
        let now = out.stream_position()?;
        let raw = part.bytes(degree) as u64 * rows.count();
        sizes[..8].copy_from_slice(&(now - end).to_le_bytes());
        sizes[8..].copy_from_slice(&raw.to_le_bytes());
        end = now;
    }
    out.seek(SeekFrom::Start(HEADER))?;
    out.write_all(&table)?;
    out.seek(SeekFrom::Start(end))?;
    Ok(end)
}

/// What a file's header says.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub count: u64,
    pub degree: u8,
    fraction_bits: u8,
    /// Offset and compressed bytes of each stream.
    streams: Vec<(u64, u64)>,
}

/// What is wrong with a header.
#[derive(Debug)]
pub(super) enum Fault {
    Format(String),
    Length { expected: u64 },
}

impl Layout {
    /// Reads header and table, after which `src` is anywhere. `bytes` is the size of the file.
    pub(super) fn read(
        src: &mut (impl Read + Seek),
        bytes: u64,
    ) -> io::Result<Result<Self, Fault>> {
        let wrong = |text: String| Ok(Err(Fault::Format(text)));
        if bytes < HEADER {
            return Ok(Err(Fault::Length { expected: HEADER }));
        }
        let mut h = [0u8; HEADER as usize];
        src.read_exact(&mut h)?;
        let word = |at: usize| u32::from_le_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let (version, count, table) = (word(4), u64::from(word(8)), u64::from(word(16)));
        let [degree, fraction_bits, _, streams] = [h[12], h[13], h[14], h[15]];
        if version != VERSION {
            return wrong(format!("spz of version {version}, expected {VERSION}"));
        }
        if degree > 3 || fraction_bits > 23 {
            return wrong(format!(
                "spz of degree {degree} with {fraction_bits} bits of fractions, expected at most 3 and 23"
            ));
        }
        let parts = parts(degree);
        if usize::from(streams) != parts.len() || table < HEADER {
            return wrong(format!(
                "spz with {streams} streams, expected {}",
                parts.len()
            ));
        }
        if count.saturating_mul(9) > bytes.saturating_mul(MAX_RATIO) {
            return wrong(format!("spz that claims {count} rows in {bytes} bytes"));
        }
        let mut offset = table + 16 * parts.len() as u64;
        if offset > bytes {
            return Ok(Err(Fault::Length { expected: offset }));
        }
        src.seek(SeekFrom::Start(table))?;
        let mut found = Vec::with_capacity(parts.len());
        for part in parts {
            let mut sizes = [[0u8; 8]; 2];
            src.read_exact(sizes.as_flattened_mut())?;
            let [packed, raw] = sizes.map(u64::from_le_bytes);
            let expected = part.bytes(degree) as u64 * count;
            if raw != expected {
                return wrong(format!(
                    "a stream of {raw} bytes for {count} rows, expected {expected}"
                ));
            }
            found.push((offset, packed));
            offset = offset.saturating_add(packed);
        }
        if offset != bytes {
            return Ok(Err(Fault::Length { expected: offset }));
        }
        Ok(Ok(Self {
            count,
            degree,
            fraction_bits,
            streams: found,
        }))
    }
}

/// Reads rows in order from the streams.
pub(super) struct Rows {
    streams: Vec<(Part, Box<dyn Read + Send>)>,
    degree: u8,
    step: f32,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows")
            .field("degree", &self.degree)
            .finish_non_exhaustive()
    }
}

/// Logarithm of a stream's largest window that is read: 8 MiB, that of the highest levels without long matches.
const WINDOW: u32 = 23;

impl Rows {
    /// `open` returns the file's content from an offset on.
    pub(super) fn new<R: Read + Send + 'static>(
        layout: &Layout,
        mut open: impl FnMut(u64) -> io::Result<R>,
    ) -> io::Result<Self> {
        let mut streams = Vec::new();
        for (part, (offset, bytes)) in parts(layout.degree).iter().zip(&layout.streams) {
            let packed = open(*offset)?.take(*bytes);
            let mut decoder = zstd::stream::read::Decoder::new(packed)?;
            decoder.window_log_max(WINDOW)?;
            let decoder = io::BufReader::new(decoder);
            streams.push((*part, Box::new(decoder) as Box<dyn Read + Send>));
        }
        Ok(Self {
            streams,
            degree: layout.degree,
            step: 1.0 / (1u32 << layout.fraction_bits) as f32,
        })
    }

    pub(super) fn read(&mut self, dst: &mut Splat) -> io::Result<()> {
        *dst = Splat::default();
        let mut bytes = [0; 45];
        for (part, stream) in &mut self.streams {
            let bytes = &mut bytes[..part.bytes(self.degree)];
            stream.read_exact(bytes)?;
            part.get(bytes, self.step, dst);
        }
        Ok(())
    }
}

//! Header of a map file.

use super::bytes::{one, put, put_one, put_text, some, text};
use super::{CHECKSUM, MAGIC, MapFileError};
use crate::compute::device::ContentFormats;
use crate::compute::store::FloatFormat;
use crate::geometry::Intrinsics;
use crate::inference::NetworkShape;
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

/// Image and feature sizes of the network that made a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageShape {
    /// Image width.
    pub width: u32,
    /// Image height.
    pub height: u32,
    /// Encoder tokens per image.
    pub tokens: u32,
    /// Channels per token.
    pub channels: u32,
}

impl From<&NetworkShape> for ImageShape {
    fn from(shape: &NetworkShape) -> Self {
        Self {
            width: shape.width as u32,
            height: shape.height as u32,
            tokens: shape.tokens as u32,
            channels: shape.feature_dim as u32,
        }
    }
}

impl ImageShape {
    /// Pixels per image.
    pub fn pixels(&self) -> usize {
        self.width as usize * self.height as usize
    }

    /// Number of feature values per keyframe.
    pub fn features(&self) -> usize {
        self.tokens as usize * self.channels as usize
    }
}

/// The contents of a file's header.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Name and version of the program that wrote the file.
    pub program: String,
    /// SHA-256 of the weights, in hexadecimal.
    pub weights: String,
    pub shape: ImageShape,
    /// Number formats of confidences and features.
    pub formats: ContentFormats,
    /// Intrinsics of the network's images; present if the map is calibrated.
    pub intrinsics: Option<Intrinsics>,
    /// The pose at which a ROS node had placed the map's world frame in its map frame.
    pub map_from_world: Option<Isometry3<f64>>,
    /// Number of keyframes in the file.
    pub keyframes: u32,
    /// Number of edges in the file.
    pub edges: u32,
    /// Number of edges included in the last global solve.
    pub solved_edges: u32,
    /// Number of factors in the file.
    pub factors: u32,
}

/// Size of a keyframe's fixed fields in bytes.
const KEYFRAME_NUMBERS: u64 = 4 + 4 + 8 + 8 + 64 + 4 + 64;
/// Size of an edge's fixed fields in bytes.
const EDGE_NUMBERS: u64 = 4 + 4 + 4 + 4;
/// Size of a factor in bytes: two ids, a pose, half of a symmetric matrix.
const FACTOR: u64 = 4 + 4 + 64 + 28 * 8;
/// Maximum header size in bytes.
const HEADER: u32 = 1 << 16;
/// Upper limit on columns, rows, tokens and channels, above that of any network.
const SIZES: u32 = 1 << 16;

/// Number formats by their code in the file.
const FORMATS: [FloatFormat; 2] = [FloatFormat::F32, FloatFormat::F16];

fn format_number(format: FloatFormat) -> u8 {
    u8::from(format == FloatFormat::F16)
}

fn format_of(number: u8) -> io::Result<FloatFormat> {
    let format = FORMATS.get(usize::from(number)).copied();
    format.ok_or_else(|| ErrorKind::InvalidData.into())
}

fn flag(number: u8) -> io::Result<bool> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

impl Header {
    /// Bytes of a keyframe. `None` on overflow.
    pub(super) fn keyframe_bytes(&self) -> Option<u64> {
        let n = self.shape.pixels() as u64;
        let confidence = self.formats.confidence.bytes() as u64;
        let feature = self.formats.features.bytes() as u64;
        (n.checked_mul(3 + 12 + confidence)?)
            .checked_add((self.shape.features() as u64).checked_mul(feature)?)?
            .checked_add(KEYFRAME_NUMBERS)
    }

    /// Bytes after the header: keyframes, edges, factors, checksum. `None` on overflow.
    pub(super) fn rest(&self) -> Option<u64> {
        let n = self.shape.pixels() as u64;
        let keyframe = self.keyframe_bytes()?;
        let edge = n.checked_mul(2 * (4 + 1 + 4))?.checked_add(EDGE_NUMBERS)?;
        let keyframes = keyframe.checked_mul(u64::from(self.keyframes))?;
        let edges = edge.checked_mul(u64::from(self.edges))?;
        let factors = FACTOR.checked_mul(u64::from(self.factors))?;
        let content = keyframes.checked_add(edges)?.checked_add(factors)?;
        content.checked_add(CHECKSUM)
    }

    /// Writes magic, version and header.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut body = Vec::new();
        self.body(&mut body)?;
        // Older programs read a map without factors.
        let version = match self.factors {
            0 => super::OLDEST,
            _ => super::VERSION,
        };
        if version == super::VERSION {
            put_one(&mut body, self.factors)?;
        }
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if length > HEADER {
            return Err(ErrorKind::InvalidInput.into());
        }
        out.write_all(&MAGIC)?;
        put(out, &[version, length])?;
        out.write_all(&body)
    }

    /// Writes the header without magic, version and length.
    pub(in crate::map) fn body(&self, out: &mut dyn Write) -> io::Result<()> {
        put_text(out, &self.program)?;
        put_text(out, &self.weights)?;
        let ImageShape {
            width,
            height,
            tokens,
            channels,
        } = self.shape;
        put(out, &[width, height, tokens, channels])?;
        let flags = [
            format_number(self.formats.confidence),
            format_number(self.formats.features),
            u8::from(self.intrinsics.is_some()),
            u8::from(self.map_from_world.is_some()),
        ];
        put(out, &flags)?;
        let k = self
            .intrinsics
            .map_or([0.0; 4], |k| [k.fx, k.fy, k.cx, k.cy]);
        put(out, &k)?;
        let placed = self.map_from_world.map_or([0.0; 7], |t| {
            let (p, q) = (t.translation.vector, t.rotation);
            [p.x, p.y, p.z, q.i, q.j, q.k, q.w]
        });
        put(out, &placed)?;
        put(out, &[self.keyframes, self.edges, self.solved_edges])
    }

    /// Reads magic, version and header; returns the header and its size in bytes.
    pub(super) fn read(path: &Path, src: &mut dyn Read) -> Result<(Self, u64), MapFileError> {
        let io = |cause| MapFileError::Io {
            action: "read",
            path: path.to_owned(),
            cause,
        };
        let not = || MapFileError::NotAMap {
            path: path.to_owned(),
        };
        let mut magic = [0; MAGIC.len()];
        match src.read_exact(&mut magic) {
            Ok(()) if magic == MAGIC => {}
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(io(error)),
            _ => return Err(not()),
        }
        let short = |error: io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => MapFileError::Length {
                path: path.to_owned(),
                expected: u64::from(HEADER),
                found: 0,
            },
            _ => io(error),
        };
        let version: u32 = one(src).map_err(short)?;
        if !(super::OLDEST..=super::VERSION).contains(&version) {
            return Err(MapFileError::Version {
                path: path.to_owned(),
                found: version,
            });
        }
        let length: u32 = one(src).map_err(short)?;
        let nonsense = |what: &str| MapFileError::Content {
            path: path.to_owned(),
            what: what.to_owned(),
        };
        if length > HEADER {
            return Err(nonsense("the header is too long"));
        }
        let mut body = vec![0; length as usize];
        src.read_exact(&mut body).map_err(short)?;
        let mut rest = &body[..];
        let invalid = |_| nonsense("the header is invalid");
        let mut header = Self::parse(&mut rest).map_err(invalid)?;
        if version == super::VERSION {
            header.factors = one(&mut rest).map_err(invalid)?;
        }
        if !rest.is_empty() {
            return Err(nonsense("the header is followed by unexpected data"));
        }
        Ok((header, MAGIC.len() as u64 + 8 + u64::from(length)))
    }

    /// Reads what [`Header::body`] wrote, which says nothing of factors.
    pub(in crate::map) fn parse(src: &mut dyn Read) -> io::Result<Self> {
        let bad = || io::Error::from(ErrorKind::InvalidData);
        let program = text(src)?;
        let weights = text(src)?;
        let sizes: [u32; 4] = some(src)?;
        if sizes.iter().any(|s| *s == 0 || *s > SIZES) {
            return Err(bad());
        }
        let [width, height, tokens, channels] = sizes;
        let [confidence, features, calibrated, placed]: [u8; 4] = some(src)?;
        let k: [f64; 4] = some(src)?;
        let p: [f64; 7] = some(src)?;
        if k.iter().chain(&p).any(|v| !v.is_finite()) {
            return Err(bad());
        }
        let [keyframes, edges, solved_edges]: [u32; 3] = some(src)?;
        let rotation = Quaternion::new(p[6], p[3], p[4], p[5]);
        let placed = flag(placed)?;
        if placed && (rotation.norm() - 1.0).abs() > 1e-6 {
            return Err(bad());
        }
        Ok(Self {
            program,
            weights,
            shape: ImageShape {
                width,
                height,
                tokens,
                channels,
            },
            formats: ContentFormats {
                confidence: format_of(confidence)?,
                features: format_of(features)?,
            },
            intrinsics: flag(calibrated)?.then_some(Intrinsics {
                fx: k[0],
                fy: k[1],
                cx: k[2],
                cy: k[3],
            }),
            map_from_world: placed.then(|| {
                // The rotation is kept bit for bit, without normalising.
                let rotation = UnitQuaternion::new_unchecked(rotation);
                Isometry3::from_parts(Translation3::new(p[0], p[1], p[2]), rotation)
            }),
            keyframes,
            edges,
            solved_edges,
            factors: 0,
        })
    }
}

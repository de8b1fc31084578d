//! Rows of numbers, and the seal at the end of every row: it tells a damaged row, or one under another key.

use super::StoreError;
use crate::compute::global::PoseFactor;
use crate::geometry::Sim3;
use crate::map::EdgeKind;
use crate::map::saved::bytes::{one, pose, put, put_one, put_pose, put_symmetric, some, symmetric};
use crate::map::saved::{KINDS, SavedChain};
use crate::time::Stamp;
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion};
use sha2::{Digest, Sha256};
use std::io::{self, ErrorKind};

/// Bytes of a seal.
const SEAL: usize = 8;

/// In place of the keyframe of a chain that does not exist.
const NO_CHAIN: u32 = u32::MAX;

/// A keyframe without its image, points and tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KeyframeRow {
    pub id: u32,
    pub submap: u32,
    pub frame_index: u64,
    pub stamp: Stamp,
    /// Camera to world, with the scale of its points.
    pub world_from_camera: Sim3,
    /// Relative pose from tracking.
    pub chain: Option<SavedChain>,
}

/// An edge without its matches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EdgeRow {
    /// Edges are numbered in the order in which they were made; numbers are never reused.
    pub number: u64,
    pub i: u32,
    pub j: u32,
    pub kind: EdgeKind,
    pub match_fraction: f32,
}

/// A removed keyframe: its place relative to one that exists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RemovedRow {
    pub id: u32,
    pub keyframe: u32,
    /// The removed keyframe's pose in the frame of `keyframe`.
    pub keyframe_from_removed: Sim3,
}

/// Kind of a row; part of its seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Header,
    Keyframe,
    Image,
    Points,
    Edge,
    Matches,
    Factor,
    Removed,
    State,
}

impl Table {
    fn tag(self) -> u8 {
        match self {
            Self::Header => 0,
            Self::Keyframe => 1,
            Self::Image => 2,
            Self::Points => 3,
            Self::Edge => 4,
            Self::Matches => 5,
            Self::Factor => 6,
            Self::Removed => 7,
            Self::State => 8,
        }
    }
}

fn sum(table: Table, key: u64, payload: &[u8]) -> [u8; SEAL] {
    let mut hasher = Sha256::new();
    hasher.update([table.tag()]);
    hasher.update(key.to_le_bytes());
    hasher.update(payload);
    let mut seal = [0; SEAL];
    seal.copy_from_slice(&hasher.finalize()[..SEAL]);
    seal
}

/// Appends the seal of the row `key` of `table` to its content.
pub fn seal(table: Table, key: u64, row: &mut Vec<u8>) {
    let sum = sum(table, key, row);
    row.extend(sum);
}

/// The content of a sealed row.
///
/// # Errors
/// If the seal does not fit.
pub fn open(table: Table, key: u64, row: &[u8]) -> Result<&[u8], StoreError> {
    match row.split_last_chunk::<SEAL>() {
        Some((payload, found)) if *found == sum(table, key, payload) => Ok(payload),
        _ => Err(StoreError::Row("its checksum does not match")),
    }
}

fn bad(_: io::Error) -> StoreError {
    StoreError::Row("a number is outside of its valid range")
}

fn invalid() -> io::Error {
    ErrorKind::InvalidData.into()
}

/// Replaces `dst` by a sealed row.
fn sealed(
    table: Table,
    key: u64,
    dst: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) {
    dst.clear();
    // Writing to memory does not fail.
    let _ = write(dst);
    seal(table, key, dst);
}

impl KeyframeRow {
    /// Replaces `dst` by the row.
    pub fn write(&self, dst: &mut Vec<u8>) {
        sealed(Table::Keyframe, self.id.into(), dst, |out| {
            put_one(out, self.submap)?;
            put_one(out, self.frame_index)?;
            put_one(out, self.stamp.nanos)?;
            put_pose(out, &self.world_from_camera)?;
            put_one(out, self.chain.map_or(NO_CHAIN, |c| c.keyframe))?;
            let chain = self.chain.map(|c| c.keyframe_from_camera);
            put_pose(out, &chain.unwrap_or_default())
        });
    }

    /// Reads a row.
    pub fn read(id: u32, row: &[u8]) -> Result<Self, StoreError> {
        let mut src = open(Table::Keyframe, id.into(), row)?;
        let src = &mut src;
        let mut read = || -> io::Result<Self> {
            let mut row = Self {
                id,
                submap: one(src)?,
                frame_index: one(src)?,
                stamp: Stamp { nanos: one(src)? },
                world_from_camera: pose(src)?.ok_or_else(invalid)?,
                chain: None,
            };
            let keyframe: u32 = one(src)?;
            let keyframe_from_camera = pose(src)?.ok_or_else(invalid)?;
            row.chain = (keyframe != NO_CHAIN).then_some(SavedChain {
                keyframe,
                keyframe_from_camera,
            });
            Ok(row)
        };
        read().map_err(bad)
    }
}

impl EdgeRow {
    /// Replaces `dst` by the row.
    pub fn write(&self, dst: &mut Vec<u8>) {
        let kind = KINDS.iter().position(|k| *k == self.kind).unwrap_or(0);
        sealed(Table::Edge, self.number, dst, |out| {
            put(out, &[self.i, self.j, kind as u32])?;
            put_one(out, self.match_fraction)
        });
    }

    /// Reads a row.
    pub fn read(number: u64, row: &[u8]) -> Result<Self, StoreError> {
        let mut src = open(Table::Edge, number, row)?;
        let src = &mut src;
        let mut read = || -> io::Result<Self> {
            let [i, j, kind]: [u32; 3] = some(src)?;
            let kind = KINDS.get(kind as usize).copied().ok_or_else(invalid)?;
            let match_fraction: f32 = one(src)?;
            match i != j && (0.0..=1.0).contains(&match_fraction) {
                true => Ok(Self {
                    number,
                    i,
                    j,
                    kind,
                    match_fraction,
                }),
                false => Err(invalid()),
            }
        };
        read().map_err(bad)
    }
}

/// Replaces `dst` by the row of a factor.
pub fn write_factor(factor: &PoseFactor, dst: &mut Vec<u8>) {
    sealed(Table::Factor, factor_key(factor), dst, |out| {
        put_pose(out, &factor.i_from_j)?;
        put_symmetric(out, &factor.information)
    });
}

/// The key of a factor: both ids.
pub fn factor_key(factor: &PoseFactor) -> u64 {
    (factor.i as u64) << 32 | (factor.j as u64 & u64::from(u32::MAX))
}

/// Reads the row of a factor.
pub fn read_factor(key: u64, row: &[u8]) -> Result<PoseFactor, StoreError> {
    let mut src = open(Table::Factor, key, row)?;
    let src = &mut src;
    let mut read = || -> io::Result<PoseFactor> {
        let i_from_j = pose(src)?.ok_or_else(invalid)?;
        let information = symmetric(src)?.ok_or_else(invalid)?;
        let (i, j) = ((key >> 32) as usize, (key & u64::from(u32::MAX)) as usize);
        match i != j {
            true => Ok(PoseFactor {
                i,
                j,
                i_from_j,
                information,
            }),
            false => Err(invalid()),
        }
    };
    read().map_err(bad)
}

impl RemovedRow {
    /// Replaces `dst` by the row.
    pub fn write(&self, dst: &mut Vec<u8>) {
        sealed(Table::Removed, self.id.into(), dst, |out| {
            put_one(out, self.keyframe)?;
            put_pose(out, &self.keyframe_from_removed)
        });
    }

    /// Reads a row.
    pub fn read(id: u32, row: &[u8]) -> Result<Self, StoreError> {
        let mut src = open(Table::Removed, id.into(), row)?;
        let src = &mut src;
        let mut read = || -> io::Result<Self> {
            Ok(Self {
                id,
                keyframe: one(src)?,
                keyframe_from_removed: pose(src)?.ok_or_else(invalid)?,
            })
        };
        read().map_err(bad)
    }
}

/// The part of a map's state that is one row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rest {
    /// Number of leading edges in the last solve.
    pub solved_edges: u32,
    /// The pose at which a ROS node had put the map's world frame in its map frame.
    pub map_from_world: Option<Isometry3<f64>>,
}

impl Rest {
    /// Replaces `dst` by the row.
    pub fn write(&self, dst: &mut Vec<u8>) {
        let placed = self.map_from_world.map_or([0.0; 7], |t| {
            let (p, q) = (t.translation.vector, t.rotation);
            [p.x, p.y, p.z, q.i, q.j, q.k, q.w]
        });
        let flag = u8::from(self.map_from_world.is_some());
        sealed(Table::State, 0, dst, |out| {
            put_one(out, self.solved_edges)?;
            put_one(out, flag)?;
            put(out, &placed)
        });
    }

    /// Reads a row.
    pub fn read(row: &[u8]) -> Result<Self, StoreError> {
        let mut src = open(Table::State, 0, row)?;
        Self::parse(&mut src).map_err(bad)
    }

    fn parse(src: &mut &[u8]) -> io::Result<Self> {
        let (solved_edges, flag): (u32, u8) = (one(src)?, one(src)?);
        let p: [f64; 7] = some(src)?;
        let rotation = Quaternion::new(p[6], p[3], p[4], p[5]);
        let sound = p.iter().all(|v| v.is_finite()) && (rotation.norm() - 1.0).abs() < 1e-6;
        let placed = || {
            let rotation = UnitQuaternion::new_unchecked(rotation);
            Isometry3::from_parts(Translation3::new(p[0], p[1], p[2]), rotation)
        };
        Ok(Self {
            solved_edges,
            map_from_world: (flag == 1 && sound).then(placed),
        })
    }
}

#[cfg(test)]
mod tests;

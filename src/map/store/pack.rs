//! Packs a map of another kind: its numbers as they are, images and points compactly, without tokens and matches,
//! which the network makes anew.

use super::StoreError;
use super::coding::Coder;
use super::create::NewFile;
use super::file::Kind;
use super::hand_over::State;
use super::on_disk::OnDisk;
use super::reader::{Damage, Reader};
use super::rows::{EdgeRow, KeyframeRow, Rest, Table, seal};
use crate::compute::device::KeyframeContent;
use crate::map::saved::{self, Header, SavedEdge, SavedKeyframe};
use rustc_hash::FxHashSet;
use std::path::Path;
use std::sync::Arc;

/// What became of a map that was packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Number of keyframes.
    pub keyframes: usize,
    /// Number of edges.
    pub edges: usize,
    /// What is damaged and was left out.
    pub left_out: Damage,
}

/// Packs the map `from` into the file `to`, one keyframe in memory at a time. With `replace`, a packed map that is
/// there is replaced; any other file never is.
///
/// # Errors
/// If `from` is not a map, is packed already or has no keyframes, `to` is taken, or the disk is full. There is no new
/// file then.
pub fn pack(from: &Path, to: &Path, replace: bool) -> Result<Packed, StoreError> {
    check_target(to, replace)?;
    let (state, left_out, new) = match Kind::of(from)? {
        Kind::Packed => {
            return Err(StoreError::IsPacked {
                path: from.to_owned(),
            });
        }
        Kind::Store => pack_store(&mut Reader::open(from)?, to)?,
        Kind::Saved | Kind::Foreign | Kind::Missing => pack_saved(from, to)?,
    };
    if state.keyframes.is_empty() {
        return Err(StoreError::Unusable {
            path: from.to_owned(),
            what: "it has no keyframes".to_owned(),
        });
    }
    let (keyframes, edges) = (state.keyframes.len(), state.edges.len());
    new.finish(&state, replace)?;
    Ok(Packed {
        keyframes,
        edges,
        left_out,
    })
}

fn check_target(path: &Path, replace: bool) -> Result<(), StoreError> {
    let path = path.to_owned();
    match Kind::of(&path)? {
        Kind::Missing => Ok(()),
        Kind::Packed if replace => Ok(()),
        Kind::Packed => Err(StoreError::Taken { path }),
        Kind::Store | Kind::Saved | Kind::Foreign => Err(StoreError::NotPacked { path }),
    }
}

/// A packed map in the making.
struct Packing {
    new: NewFile,
    header: Header,
    disk: OnDisk,
    coder: Coder,
    row: Vec<u8>,
}

impl Packing {
    fn begin(path: &Path, header: &Header) -> Result<Self, StoreError> {
        Ok(Self {
            new: NewFile::begin(path, header, true)?,
            header: header.clone(),
            disk: OnDisk::default(),
            coder: Coder::default(),
            row: Vec::new(),
        })
    }

    fn keyframe(&mut self, id: u32, content: &KeyframeContent) -> Result<(), StoreError> {
        self.row.clear();
        self.coder
            .pack_pointmap(content, &self.header, &mut self.row);
        self.put("points", Table::Points, id)?;
        self.row.clear();
        Coder::pack_picture(content, self.header.shape, &mut self.row)?;
        self.put("image", Table::Image, id)
    }

    fn put(&mut self, name: &str, table: Table, id: u32) -> Result<(), StoreError> {
        seal(table, id.into(), &mut self.row);
        self.new.put(name, id.into(), &self.row)?;
        self.disk.note(table, id.into());
        Ok(())
    }

    /// Writes the numbers and has the file appear.
    fn finish(mut self, state: &State, replace: bool) -> Result<(), StoreError> {
        for edge in &state.edges {
            // They need not be there.
            self.disk.note(Table::Matches, edge.number);
        }
        self.disk.follow(self.new.database(), state)?;
        self.new.complete(replace)
    }
}

/// Packs what is undamaged. Keyframes keep their ids.
fn pack_store(reader: &mut Reader, to: &Path) -> Result<(State, Damage, Packing), StoreError> {
    let mut new = Packing::begin(to, reader.header())?;
    let mut keyframes = reader.keyframes().to_vec();
    let mut content = KeyframeContent::default();
    let mut failed = Ok(());
    keyframes.retain(|row| {
        let read = failed.is_ok() && reader.read_keyframe(row.id, &mut content);
        if read {
            failed = new.keyframe(row.id, &content);
        }
        read
    });
    failed?;
    let ids = FxHashSet::from_iter(keyframes.iter().map(|k| k.id));
    let known = |id: u32| ids.contains(&id);
    let index = |index: usize| u32::try_from(index).is_ok_and(known);
    let joins = |edge: &EdgeRow| known(edge.i) && known(edge.j);
    let solved = reader
        .edges()
        .iter()
        .take(reader.rest().solved_edges as usize);
    let solved = solved.filter(|edge| joins(edge)).count();
    let mut edges = reader.edges().to_vec();
    edges.retain(joins);
    let mut factors = reader.factors().to_vec();
    factors.retain(|f| index(f.i) && index(f.j));
    let mut removed = reader.removed().to_vec();
    removed.retain(|r| known(r.keyframe));
    let state = State {
        epoch: 0,
        keyframes,
        edges,
        factors,
        removed: Arc::new(removed),
        rest: Rest {
            solved_edges: u32::try_from(solved).unwrap_or(u32::MAX),
            ..reader.rest()
        },
    };
    Ok((state, reader.damage().clone(), new))
}

fn pack_saved(from: &Path, to: &Path) -> Result<(State, Damage, Packing), StoreError> {
    let mut reader = saved::Reader::open(from)?;
    reader.verify()?;
    let header = reader.header().clone();
    let mut new = Packing::begin(to, &header)?;
    let mut state = State {
        rest: Rest {
            solved_edges: header.solved_edges,
            map_from_world: header.map_from_world,
        },
        ..State::default()
    };
    let mut keyframe = SavedKeyframe::default();
    for _ in 0..header.keyframes {
        reader.keyframe(&mut keyframe)?;
        new.keyframe(keyframe.id, &keyframe.content)?;
        state.keyframes.push(KeyframeRow {
            id: keyframe.id,
            submap: keyframe.submap,
            frame_index: keyframe.frame_index,
            stamp: keyframe.stamp,
            world_from_camera: keyframe.world_from_camera,
            chain: keyframe.chain,
        });
    }
    let mut edge = SavedEdge::default();
    for number in 0..header.edges {
        reader.edge(&mut edge)?;
        state.edges.push(EdgeRow {
            number: number.into(),
            i: edge.i,
            j: edge.j,
            kind: edge.kind,
            match_fraction: edge.match_fraction,
        });
    }
    for _ in 0..header.factors {
        state.factors.push(reader.factor()?);
    }
    reader.check_unchanged()?;
    Ok((state, Damage::default(), new))
}

//! Reads and writes map files.

use super::factors::indexed;
use super::fit::{SavedMapError, Unfit};
use super::graph::{Edge, Graph, GraphKeyframe, KeyframeInfo};
use super::map_keeper;
use super::map_source::MapSource;
use super::pose_table::Anchor;
use super::unmatched::{Progress, Unmatched};
use crate::compute::cancel::CancelToken;
use crate::compute::device::{EdgeContent, EdgeId, KeyframeContent, MappingDevice};
use crate::compute::global::PoseFactor;
use crate::geometry::{Intrinsics, Sim3};
use crate::map::saved::{
    self, Header, ImageShape, Reader, SavedChain, SavedEdge, SavedKeyframe, Writer,
};
use crate::map::store::{self, Rest};
use nalgebra::Isometry3;
use std::fmt;
use std::path::{Path, PathBuf};

/// Name and version of this program, in map files.
pub const PROGRAM: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));

/// Parts of a map file that SLAM does not know.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MapLabel {
    /// SHA-256 of the network's weights, in hexadecimal.
    pub weights: String,
    /// Transform from the map's world frame to the map frame of a ROS node.
    pub map_from_world: Option<Isometry3<f64>>,
}

/// Result of saving or loading a map.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedMap {
    /// The map file.
    pub path: PathBuf,
    /// Number of keyframes.
    pub keyframes: usize,
    /// Number of edges between keyframes.
    pub edges: usize,
    /// Transform from the map's world frame to the map frame, as stored in the file.
    pub map_from_world: Option<Isometry3<f64>>,
    /// World pose of the first keyframe's camera.
    pub first: Sim3,
    /// What of the file is damaged and was left out, in words; empty if there is nothing.
    pub left_out: String,
}

impl fmt::Display for SavedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keyframes, edges, path) = (self.keyframes, self.edges, self.path.display());
        write!(f, "{keyframes} keyframes and {edges} edges in {path}")?;
        match self.left_out.as_str() {
            "" => Ok(()),
            left_out => write!(f, "; damaged and left out: {left_out}"),
        }
    }
}

/// Writes a map to `path`, with one keyframe or edge in memory at a time. In the file, keyframes are numbered by
/// their order, without the gaps that removed ones left.
pub fn write(
    path: &Path,
    graph: &Graph,
    device: &dyn MappingDevice,
    (shape, intrinsics): (ImageShape, Option<Intrinsics>),
    label: MapLabel,
) -> Result<SavedMap, SavedMapError> {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let Some(first) = graph.poses().first().copied() else {
        return Err(SavedMapError::Empty);
    };
    let (keyframes, edges) = (graph.keyframes().len(), graph.edges().len());
    let header = Header {
        program: PROGRAM.to_owned(),
        weights: label.weights,
        shape,
        formats: device.content_formats(),
        intrinsics,
        map_from_world: label.map_from_world,
        keyframes: count(keyframes),
        edges: count(edges),
        solved_edges: count(graph.solved_edges()),
        factors: count(graph.factors().list().len()),
    };
    saved::write(path, &header, |out| write_content(out, graph, device))?;
    Ok(SavedMap {
        path: path.to_owned(),
        keyframes,
        edges,
        map_from_world: label.map_from_world,
        first,
        left_out: String::new(),
    })
}

fn write_content(
    out: &mut Writer<'_>,
    graph: &Graph,
    device: &dyn MappingDevice,
) -> Result<(), saved::WriteError> {
    let number = |id: u32| {
        graph
            .index_of(id)
            .and_then(|index| u32::try_from(index).ok())
    };
    let mut keyframe = SavedKeyframe::default();
    for ((known, pose), saved_id) in graph.keyframes().iter().zip(graph.poses()).zip(0..) {
        let GraphKeyframe {
            info,
            submap,
            chain,
            revision: _,
        } = *known;
        device.export_keyframe(info.id, &mut keyframe.content)?;
        keyframe = SavedKeyframe {
            id: saved_id,
            submap,
            frame_index: info.frame_index as u64,
            stamp: info.stamp,
            world_from_camera: *pose,
            // The format has chains to older keyframes only. One that leads to a younger keyframe, since its own was
            // removed, is left out: the edges that replaced it are in the file.
            chain: chain.and_then(|anchor| {
                Some(SavedChain {
                    keyframe: number(anchor.keyframe).filter(|&k| k < saved_id)?,
                    keyframe_from_camera: anchor.keyframe_from_camera,
                })
            }),
            content: keyframe.content,
        };
        out.keyframe(&keyframe)?;
    }
    let mut saved = SavedEdge::default();
    for edge in graph.edges() {
        let (Some(i), Some(j)) = (number(edge.i), number(edge.j)) else {
            continue;
        };
        device.export_edge(edge.id, &mut saved.content)?;
        saved = SavedEdge {
            i,
            j,
            kind: edge.kind,
            match_fraction: edge.match_fraction,
            content: saved.content,
        };
        out.edge(&saved)?;
    }
    for factor in graph.factors().list() {
        if let Some(factor) = indexed(factor, |id| graph.index_of(id)) {
            out.factor(&factor)?;
        }
    }
    Ok(())
}

/// A map that was read.
pub struct LoadedMap {
    pub graph: Graph,
    /// The edges with their numbers in the file.
    pub edges: Vec<(EdgeId, u64)>,
    /// Number of the next edge in the file.
    pub next_edge: u64,
    pub rest: Rest,
    /// Edges whose matches are to be made.
    pub unmatched: Unmatched,
    /// What could not be read, in words.
    pub left_out: String,
}

/// Reads a map into an empty device, until `stop`. After an error, the device holds a part of it.
pub fn read(
    source: &mut MapSource,
    device: &mut dyn MappingDevice,
    stop: &CancelToken,
) -> Result<LoadedMap, SavedMapError> {
    match source {
        MapSource::Saved(reader) => {
            let graph = read_saved(reader, device)?;
            // The file was read a second time here, after its checksum was verified.
            reader.check_unchanged()?;
            Ok(LoadedMap {
                graph,
                edges: Vec::new(),
                next_edge: 0,
                rest: Rest::default(),
                unmatched: Unmatched::default(),
                left_out: String::new(),
            })
        }
        MapSource::Store(reader) => read_store(reader, device, stop),
    }
}

/// Reads what is undamaged of a store or a packed map. Keyframes keep their ids.
fn read_store(
    reader: &mut store::Reader,
    device: &mut dyn MappingDevice,
    stop: &CancelToken,
) -> Result<LoadedMap, SavedMapError> {
    let packed = reader.is_packed();
    let mut graph = Graph::default();
    let (mut content, mut hits) = (KeyframeContent::default(), Vec::new());
    let rows = reader.keyframes().to_vec();
    let mut progress = Progress::new("keyframes of the packed map are encoded", rows.len());
    for row in rows {
        if !reader.read_keyframe(row.id, &mut content) {
            continue;
        }
        if packed {
            if stop.is_cancelled() {
                return Err(SavedMapError::GivenUp);
            }
            device.encode_keyframe(&mut content)?;
            progress.advance(1);
        }
        device.import_keyframe(row.id, &content)?;
        if device.has_place_recognition() {
            device.query_places(row.id, 1, &mut hits)?;
            device.insert_place(row.id)?;
        }
        let info = KeyframeInfo {
            id: row.id,
            frame_index: usize::try_from(row.frame_index).unwrap_or(usize::MAX),
            stamp: row.stamp,
        };
        let chain = row.chain.map(|chain| Anchor {
            keyframe: chain.keyframe,
            keyframe_from_camera: chain.keyframe_from_camera,
        });
        graph.insert(info, row.world_from_camera, row.submap, chain);
    }
    if graph.keyframes().is_empty() {
        return Err(SavedMapError::Unfit {
            path: reader.path().to_owned(),
            cause: Unfit::Empty,
        });
    }
    let (mut edges, mut solved) = (Vec::new(), 0);
    let mut content = match packed {
        true => EdgeContent::unmatched(device.shape().pixels()),
        false => EdgeContent::default(),
    };
    for (at, row) in reader.edges().to_vec().into_iter().enumerate() {
        let known = |id| graph.index_of(id).is_some();
        if !known(row.i) || !known(row.j) {
            continue;
        }
        if !packed && !reader.read_edge(row.number, &mut content) {
            continue;
        }
        let id = device.import_edge(row.i, row.j, &content)?;
        graph.connect(Edge {
            id,
            i: row.i,
            j: row.j,
            kind: row.kind,
            match_fraction: row.match_fraction,
            poses: None,
        });
        edges.push((id, row.number));
        solved += usize::from(at < reader.rest().solved_edges as usize);
    }
    graph.restore_solved_edges(solved);
    let id = |index: usize| {
        u32::try_from(index)
            .ok()
            .filter(|id| graph.index_of(*id).is_some())
    };
    let joins = |factor: &&PoseFactor| id(factor.i).is_some() && id(factor.j).is_some();
    let factors = Vec::from_iter(reader.factors().iter().filter(joins).copied());
    factors.into_iter().for_each(|f| restore(&mut graph, f));
    let exists = |row: &&store::RemovedRow| graph.index_of(row.keyframe).is_some();
    let removed = map_keeper::removed(reader.removed().iter().filter(exists));
    graph.restore_removed(removed);
    let damage = reader.damage();
    let unmatched = edges.iter().map(|(id, _)| *id).filter(|_| packed);
    Ok(LoadedMap {
        unmatched: Unmatched::new(unmatched.collect()),
        edges,
        next_edge: reader.next().1,
        rest: reader.rest(),
        left_out: match damage.is_none() {
            true => String::new(),
            false => damage.to_string(),
        },
        graph,
    })
}

/// Adds a factor of a file. At most one joins a pair, so that nothing is fused here.
fn restore(graph: &mut Graph, factor: PoseFactor) {
    let same = Sim3::identity();
    graph.factors_mut().add(factor, &same, &same);
}

fn read_saved(reader: &mut Reader, device: &mut dyn MappingDevice) -> Result<Graph, SavedMapError> {
    let Header {
        keyframes,
        edges,
        factors,
        ..
    } = *reader.header();
    let mut graph = Graph::default();
    let (mut saved, mut hits) = (SavedKeyframe::default(), Vec::new());
    for id in 0..keyframes {
        reader.keyframe(&mut saved)?;
        device.import_keyframe(id, &saved.content)?;
        // Place recognition is rebuilt from the features in the file.
        if device.has_place_recognition() {
            device.query_places(id, 1, &mut hits)?;
            device.insert_place(id)?;
        }
        let info = KeyframeInfo {
            id,
            frame_index: usize::try_from(saved.frame_index).unwrap_or(usize::MAX),
            stamp: saved.stamp,
        };
        let chain = saved.chain.map(|chain| Anchor {
            keyframe: chain.keyframe,
            keyframe_from_camera: chain.keyframe_from_camera,
        });
        graph.insert(info, saved.world_from_camera, saved.submap, chain);
    }
    let mut saved = SavedEdge::default();
    for _ in 0..edges {
        reader.edge(&mut saved)?;
        let id = device.import_edge(saved.i, saved.j, &saved.content)?;
        graph.connect(Edge {
            id,
            i: saved.i,
            j: saved.j,
            kind: saved.kind,
            match_fraction: saved.match_fraction,
            poses: None,
        });
    }
    for _ in 0..factors {
        restore(&mut graph, reader.factor()?);
    }
    graph.restore_solved_edges(reader.header().solved_edges as usize);
    Ok(graph)
}

//! Saving a map that SLAM can go on with, and going on with one.

use super::keyframe::Anchor;
use super::mapper::{KeyframeInfo, Link, MapKeyframe, Mapper};
use super::system::{SlamError, System};
use crate::compute::device::DeviceError;
use crate::geometry::{Intrinsics, Sim3};
use crate::map::saved::{
    self, Header, ImageShape, MapFileError, Reader, SavedChain, SavedEdge, SavedKeyframe, Writer,
};
use nalgebra::Isometry3;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// What a map's file says that SLAM does not know.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MapLabel {
    /// SHA-256 of the network's weights, in hexadecimal digits.
    pub weights: String,
    /// Where a ROS node has put the map's world into its map frame.
    pub map_from_world: Option<Isometry3<f64>>,
}

/// A map that was saved or loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedMap {
    /// Its file.
    pub path: PathBuf,
    /// Keyframes in it.
    pub keyframes: usize,
    /// Edges between them.
    pub edges: usize,
    /// What the file says of the map frame.
    pub map_from_world: Option<Isometry3<f64>>,
    /// The first keyframe's camera in the world.
    pub first: Sim3,
}

impl fmt::Display for SavedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keyframes, edges, path) = (self.keyframes, self.edges, self.path.display());
        write!(f, "{keyframes} keyframes and {edges} edges in {path}")
    }
}

/// Why a map could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SavedMapError {
    /// The file. When loading, the map is as it was.
    #[error(transparent)]
    File(#[from] MapFileError),
    /// The device did not take it; there is no map any more.
    #[error("the map was read but could not be taken over: {0}")]
    Device(#[from] DeviceError),
    /// The label could not be had.
    #[error("{0}")]
    Label(String),
    /// There is nothing to save.
    #[error("there is no map yet: it has no keyframe")]
    Empty,
    /// The mapping side is no more.
    #[error(transparent)]
    Slam(#[from] SlamError),
}

/// Gets what became of saving, in the mapping thread.
pub type OnSaved = Box<dyn FnOnce(Result<SavedMap, SavedMapError>) + Send>;

/// Says what SLAM does not know of a map, in the mapping thread; or why that is not known.
pub type LabelMaker = Box<dyn FnOnce() -> Result<MapLabel, String> + Send>;

/// How often a load looks whether the mapping side still lives.
const POLL: Duration = Duration::from_millis(100);

/// Most that a pixel may move between the camera of a map and the camera that goes on with it.
const SAME_CAMERA_PIXELS: f64 = 0.5;

impl System {
    /// Saves the map into the file `path`, whose folder must exist, in the mapping thread, which does nothing
    /// else meanwhile; tracking goes on. The keyframe in work is saved with the points that it began with.
    /// Never waits: `false` if too much is asked already.
    pub fn save_map(&mut self, path: PathBuf, label: LabelMaker, reply: OnSaved) -> bool {
        let shape = ImageShape::from(self.device.shape());
        let intrinsics = self.intrinsics;
        self.mapping.look(Box::new(move |mapper| {
            let label = label().map_err(SavedMapError::Label);
            reply(label.and_then(|label| mapper.save(&path, shape, intrinsics, label)));
        }))
    }

    /// Goes on with the map in the file `path`: what there was is forgotten, and the next frame is looked for
    /// in the loaded map, as a lost one. `weights` are those of the network that runs ([`MapLabel::weights`]).
    /// Waits until the map is there.
    ///
    /// # Errors
    /// If the file is none, damaged, or of another version, network, image size, camera or mode, or holds more
    /// keyframes than `local_opt.max_keyframes`: then the map is as it was.
    pub fn load_map(&mut self, path: &Path, weights: &str) -> Result<SavedMap, SavedMapError> {
        let mut reader = Reader::open(path)?;
        self.check_fits(reader.header(), path, weights)?;
        reader.verify()?;
        let (keyframes, map_from_world) = {
            let header = reader.header();
            (header.keyframes, header.map_from_world)
        };
        self.reset()?;
        let (sender, receiver) = sync_channel(1);
        self.mapping.change(Box::new(move |mapper| {
            let taken = mapper.load(&mut reader);
            if taken.is_err() {
                mapper.reset();
            }
            // Whoever asked waits.
            let _ = sender.send(taken);
        }))?;
        let (edges, first) = loop {
            match receiver.recv_timeout(POLL) {
                Ok(taken) => break taken?,
                Err(RecvTimeoutError::Timeout) => self.mapping.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    self.mapping.check()?;
                    let ended = "it did not say what became of a map".to_owned();
                    return Err(SlamError::Thread(ended).into());
                }
            }
        };
        self.next_id = keyframes;
        self.last_pose = first;
        Ok(SavedMap {
            path: path.to_owned(),
            keyframes: keyframes as usize,
            edges,
            map_from_world,
            first,
        })
    }

    /// Refuses a map that this system cannot go on with.
    fn check_fits(&self, header: &Header, path: &Path, weights: &str) -> Result<(), MapFileError> {
        let unfit = |why: String| {
            Err(MapFileError::Unfit {
                path: path.to_owned(),
                why,
            })
        };
        let (own, its) = (ImageShape::from(self.device.shape()), header.shape);
        if (own.width, own.height) != (its.width, its.height) {
            return unfit(format!(
                "it was made at {}×{} pixels of the network's image, this run has {}×{}; use the same camera format \
                 and network.size",
                its.width, its.height, own.width, own.height
            ));
        }
        if header.weights != weights {
            return unfit(format!(
                "it was made with the weights of SHA-256 {}, this run has {weights}; run with those weights, or make \
                 the map again",
                header.weights
            ));
        }
        if own != its {
            return unfit(format!(
                "its features are {}×{}, those of this network {}×{}",
                its.tokens, its.channels, own.tokens, own.channels
            ));
        }
        match (header.intrinsics, self.intrinsics) {
            (None, None) => {}
            (Some(its), Some(own)) => {
                let moved = farthest(&its, &own, header.shape);
                if moved > SAME_CAMERA_PIXELS {
                    return unfit(format!(
                        "it was made with another calibration: f = {:.2} × {:.2}, c = ({:.2}, {:.2}) pixels, this \
                         camera has f = {:.2} × {:.2}, c = ({:.2}, {:.2}), which moves pixels by up to {moved:.1}; use \
                         the same camera and calibration",
                        its.fx, its.fy, its.cx, its.cy, own.fx, own.fy, own.cx, own.cy
                    ));
                }
            }
            (its, _) => {
                let mode = |calibrated: bool| match calibrated {
                    true => "calibrated",
                    false => "uncalibrated",
                };
                return unfit(format!(
                    "it was made {}, this run is {}; use use_calib (on the node: use_calibration) as it was",
                    mode(its.is_some()),
                    mode(self.intrinsics.is_some())
                ));
            }
        }
        let most = self.config.local_opt.max_keyframes;
        if most > 0 && header.keyframes as usize > most {
            return unfit(format!(
                "it holds {} keyframes, this run may hold {most}; raise local_opt.max_keyframes (on the node: \
                 keyframe_capacity)",
                header.keyframes
            ));
        }
        if header.keyframes == 0 {
            return unfit("it holds no keyframe".to_owned());
        }
        Ok(())
    }
}

/// Most that a pixel of the image moves, when its ray in one camera is seen in the other; pixels.
fn farthest(a: &Intrinsics, b: &Intrinsics, shape: ImageShape) -> f64 {
    let (w, h) = (f64::from(shape.width), f64::from(shape.height));
    let corners = [
        (0.0, 0.0),
        (w - 1.0, 0.0),
        (0.0, h - 1.0),
        (w - 1.0, h - 1.0),
    ];
    let moved = corners.map(|(u, v)| {
        let to = b.project(&a.ray(u, v));
        (to.x - u).abs().max((to.y - v).abs())
    });
    // NaN is as far as can be.
    moved
        .into_iter()
        .fold(0.0, |most, m| if m <= most { most } else { m })
}

impl Mapper {
    fn save(
        &self,
        path: &Path,
        shape: ImageShape,
        intrinsics: Option<Intrinsics>,
        label: MapLabel,
    ) -> Result<SavedMap, SavedMapError> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let Some(first) = self.poses.first().copied() else {
            return Err(SavedMapError::Empty);
        };
        let header = Header {
            program: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
            weights: label.weights,
            shape,
            formats: self.device.content_formats(),
            intrinsics,
            map_from_world: label.map_from_world,
            keyframes: count(self.keyframes.len()),
            edges: count(self.edges.len()),
            solved_edges: count(self.solved_edges),
        };
        saved::write(path, &header, |out| self.write(out))?;
        Ok(SavedMap {
            path: path.to_owned(),
            keyframes: self.keyframes.len(),
            edges: self.edges.len(),
            map_from_world: label.map_from_world,
            first,
        })
    }

    /// One keyframe or edge in memory at a time.
    fn write(&self, out: &mut Writer<'_>) -> Result<(), saved::WriteError> {
        let mut keyframe = SavedKeyframe::default();
        for (known, pose) in self.keyframes.iter().zip(&self.poses) {
            let KeyframeInfo {
                id,
                frame_index,
                stamp,
            } = known.info;
            self.device.export_keyframe(id, &mut keyframe.content)?;
            keyframe = SavedKeyframe {
                id,
                submap: known.submap,
                frame_index: frame_index as u64,
                stamp,
                world_from_camera: *pose,
                chain: known.chain.map(|anchor| SavedChain {
                    keyframe: anchor.keyframe,
                    keyframe_from_camera: anchor.keyframe_from_camera,
                }),
                content: keyframe.content,
            };
            out.keyframe(&keyframe)?;
        }
        let mut edge = SavedEdge::default();
        for link in &self.edges {
            self.device.export_edge(link.id, &mut edge.content)?;
            edge = SavedEdge {
                i: link.i,
                j: link.j,
                kind: link.kind,
                match_fraction: link.match_fraction,
                content: edge.content,
            };
            out.edge(&edge)?;
        }
        Ok(())
    }

    /// Takes a map over; there must be none. How many edges it has, and its first keyframe's pose.
    fn load(&mut self, reader: &mut Reader) -> Result<(usize, Sim3), SavedMapError> {
        let (keyframes, edges) = (reader.header().keyframes, reader.header().edges);
        let mut saved = SavedKeyframe::default();
        for id in 0..keyframes {
            reader.keyframe(&mut saved)?;
            self.device.import_keyframe(id, &saved.content)?;
            // Places are known by what the features show, which is in the file.
            if self.device.knows_places() {
                self.look_up(id)?;
                self.device.remember(id)?;
            }
            self.keyframes.push(MapKeyframe {
                info: KeyframeInfo {
                    id,
                    frame_index: usize::try_from(saved.frame_index).unwrap_or(usize::MAX),
                    stamp: saved.stamp,
                },
                submap: saved.submap,
                chain: saved.chain.map(|chain| Anchor {
                    keyframe: chain.keyframe,
                    keyframe_from_camera: chain.keyframe_from_camera,
                }),
            });
            self.poses.push(saved.world_from_camera);
        }
        let mut saved = SavedEdge::default();
        for _ in 0..edges {
            reader.edge(&mut saved)?;
            let id = self.device.import_edge(saved.i, saved.j, &saved.content)?;
            self.edges.push(Link {
                id,
                i: saved.i,
                j: saved.j,
                kind: saved.kind,
                match_fraction: saved.match_fraction,
                poses: None,
            });
        }
        self.solved_edges = (reader.header().solved_edges as usize).min(self.edges.len());
        self.publish();
        Ok((
            self.edges.len(),
            self.poses.first().copied().unwrap_or_default(),
        ))
    }
}

//! Loading a map: the file is checked before the current map is discarded, and a live camera waits for neither.

use super::about::Note;
use super::fit::{Fit, SavedMapError, Unfit};
use super::mailbox::Look;
use super::map_io::SavedMap;
use super::map_link::Loaded;
use super::map_source::MapSource;
use super::state::State;
use super::{OnChecked, Slam};
use crate::compute::device::ContentFormats;
use crate::geometry::Intrinsics;
use crate::map::saved::{Header, ImageShape};
use crate::map::store::{self, Kind, Monitor, Writer};
use crate::network::WeightsHash;
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};

/// Use of a map's file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MapMode {
    /// The file is created if there is none, and the map is written to it as it is made. A file that was saved at once,
    /// or packed, is only read.
    #[default]
    Continue,
    /// The file stays as it is, and so does the map: the camera is located in it.
    ReadOnly,
}

/// A map file that is being loaded.
pub struct Loading {
    path: PathBuf,
    map_from_world: Option<Isometry3<f64>>,
}

/// The camera and the configuration that a map must fit.
struct Own {
    shape: ImageShape,
    intrinsics: Option<Intrinsics>,
    max_keyframes: usize,
    formats: ContentFormats,
}

impl Own {
    /// Opens and verifies the file `path`, whose map must fit; `weights` are those of the network.
    fn check(&self, path: &Path, weights: &str) -> Result<Box<MapSource>, SavedMapError> {
        let fit = Fit {
            shape: self.shape,
            weights,
            intrinsics: self.intrinsics,
            max_keyframes: self.max_keyframes,
        };
        Ok(Box::new(MapSource::open(path, &fit)?))
    }

    /// The description of a new map of this camera.
    fn header(&self, weights: &str) -> Header {
        Header {
            program: super::map_io::PROGRAM.to_owned(),
            weights: weights.to_owned(),
            shape: self.shape,
            formats: self.formats,
            intrinsics: self.intrinsics,
            map_from_world: None,
            keyframes: 0,
            edges: 0,
            solved_edges: 0,
            factors: 0,
        }
    }
}

fn weights_of(weights: &WeightsHash) -> Result<String, SavedMapError> {
    let weights = weights.get();
    weights.map_err(|e| SavedMapError::Label(e.to_string()))
}

impl Slam {
    fn own(&self) -> Own {
        Own {
            shape: ImageShape::from(self.tracker.device().shape()),
            intrinsics: self.intrinsics,
            max_keyframes: self.max_keyframes,
            formats: self.formats,
        }
    }

    /// Continues with the map in the file `path`: the current map is discarded, and the next frame is
    /// relocalised in the loaded map. Waits until the map is loaded.
    ///
    /// # Errors
    /// If the file is not a map, is damaged, is for another version, network, image size, camera or
    /// mode, or has more keyframes than `local_opt.max_keyframes`. The current map is then unchanged.
    pub fn load_map(&mut self, path: &Path) -> Result<SavedMap, SavedMapError> {
        let weights = weights_of(&self.about.weights)?;
        self.load_map_of(path, &weights)
    }

    /// Like [`Slam::load_map`], for maps of a network with these weights (their SHA-256).
    ///
    /// # Errors
    /// As [`Slam::load_map`].
    pub fn load_map_of(&mut self, path: &Path, weights: &str) -> Result<SavedMap, SavedMapError> {
        let source = self.own().check(path, weights)?;
        self.load_now(source, None)
    }

    /// Opens the map in the file `path`: its content is loaded, and the next frame is relocalised in it. With
    /// [`MapMode::Continue`], the file is created if there is none, and from then on changes of the map are in it
    /// within two seconds. Returns what was found; `None` for a map without keyframes. To be called before the first
    /// frame.
    ///
    /// # Errors
    /// As [`Slam::load_map`]; if another process writes the file, or the file cannot be written or created.
    pub fn open_map(
        &mut self,
        path: &Path,
        mode: MapMode,
    ) -> Result<Option<SavedMap>, SavedMapError> {
        let weights = weights_of(&self.about.weights)?;
        self.open_map_of(path, mode, &weights)
    }

    /// Like [`Slam::open_map`], for maps of a network with these weights (their SHA-256).
    ///
    /// # Errors
    /// As [`Slam::open_map`].
    pub fn open_map_of(
        &mut self,
        path: &Path,
        mode: MapMode,
        weights: &str,
    ) -> Result<Option<SavedMap>, SavedMapError> {
        if mode == MapMode::ReadOnly {
            let loaded = self.load_map_of(path, weights)?;
            self.set_growing(false);
            return Ok(Some(loaded));
        }
        let own = self.own();
        match Kind::of(path)? {
            Kind::Saved | Kind::Packed | Kind::Foreign => {
                return self.load_map_of(path, weights).map(Some);
            }
            Kind::Missing => store::create(path, &own.header(weights))?,
            Kind::Store => {}
        }
        let writer = Writer::open(path)?;
        let (crashed, monitor) = (writer.crashed(), writer.monitor());
        let loaded = match own.check(path, weights) {
            Err(SavedMapError::Unfit {
                cause: Unfit::Empty,
                ..
            }) => {
                self.map.keep(writer)?;
                None
            }
            source => Some(self.load_now(source?, Some(writer))?),
        };
        if crashed {
            let note = format!(
                "{}: the program or the computer stopped while this map was in use; the map is as it was in its last \
                 seconds",
                path.display()
            );
            self.about.notes.push(Note::choice(note));
        }
        self.store = Some(monitor);
        Ok(loaded)
    }

    /// Why the map's file cannot be written at present; `None` without a file. SLAM goes on, and so does the attempt.
    pub fn map_file_failure(&self) -> Option<String> {
        self.store.as_ref()?.failure()
    }

    /// The file that the map is written to as it is made.
    pub fn map_file(&self) -> Option<&Path> {
        let store = self.store.as_ref().filter(|store| !store.is_detached());
        store.map(Monitor::path)
    }

    /// Sets the pose of the map's world frame in the map frame of a ROS node, for the map's file.
    pub fn place_map(&self, map_from_world: Option<Isometry3<f64>>) {
        if let Some(store) = &self.store {
            store.place(map_from_world);
        }
    }

    fn load_now(
        &mut self,
        source: Box<MapSource>,
        keep: Option<Writer>,
    ) -> Result<SavedMap, SavedMapError> {
        self.begin_load(source, keep)?;
        if let Some(loaded) = self.map.wait_for_load() {
            self.settle_load(loaded);
        }
        self.take_loaded().unwrap_or(Err(SavedMapError::GivenUp))
    }

    /// Checks the map file `path` on the mapping thread and passes the file to `then` for
    /// [`Slam::start_load`], or an error as of [`Slam::load_map`]. The current map stays, and tracking
    /// continues. Never waits: returns `false` if too many readers are waiting.
    pub fn check_map(&mut self, path: PathBuf, then: OnChecked) -> bool {
        let (own, weights) = (self.own(), self.about.weights.clone());
        self.map.look(Look::new(move |_| {
            let weights = weights_of(&weights);
            then(weights.and_then(|weights| own.check(&path, &weights)));
        }))
    }

    /// Discards the map and starts to load the one of `source`; the file that the map was written to stays as it is,
    /// and the loaded map is not written to any. Frames are lost until it is loaded
    /// ([`Slam::take_loaded`]). Never waits.
    ///
    /// # Errors
    /// If the mapping side has failed.
    pub fn start_load(&mut self, source: Box<MapSource>) -> Result<(), SavedMapError> {
        self.begin_load(source, None)
    }

    fn begin_load(
        &mut self,
        source: Box<MapSource>,
        keep: Option<Writer>,
    ) -> Result<(), SavedMapError> {
        let loading = Loading {
            path: source.path().to_owned(),
            map_from_world: source.header().map_from_world,
        };
        // The map of the file that is in use now stays there.
        if let Some(store) = &self.store {
            store.detach();
        }
        self.reset()?;
        self.state = State::loaded();
        self.loading = Some(loading);
        self.map.load(source, keep)?;
        Ok(())
    }

    /// The result of [`Slam::start_load`], once: `None` while the map is being loaded.
    pub fn take_loaded(&mut self) -> Option<Result<SavedMap, SavedMapError>> {
        if let Some(loaded) = self.map.loaded() {
            self.settle_load(loaded);
        }
        self.loaded.take()
    }

    /// Continues in the map that was loaded, or in an empty one.
    pub(super) fn settle_load(&mut self, loaded: Loaded) {
        let Some(Loading {
            path,
            map_from_world,
        }) = self.loading.take()
        else {
            return;
        };
        let table = self.map.poses().shared().load_full();
        let first = table.poses.first().copied().unwrap_or_default();
        self.map.place_camera(loaded.is_ok().then_some(first));
        if loaded.is_err() {
            self.state = State::Empty;
        }
        self.loaded = Some(loaded.map(|left_out| SavedMap {
            path,
            keyframes: table.poses.len(),
            edges: table.edges.len(),
            map_from_world,
            first,
            left_out,
        }));
    }
}

//! The life cycle of the node's maps: they are saved, loaded, kept on disk before they end, and replaced.

use super::{Ending, Next, Tracker};
use crate::files::export::create_folder;
use crate::ros::node::autosave::{self, MIN_KEYFRAMES};
use crate::ros::node::image_filter::StampGate;
use crate::ros::node::inbox::{Checked, OnText, Order};
use crate::ros::node::saving::{self, Beside, SavedGrid};
use crate::ros::node::shared::{Event, LoadedPlace};
use crate::ros::node::status::State;
use crate::ros::node::{engine, grid, splats};
use crate::slam::{SavedMap, SavedMapError};
use crate::slam_builder::splat::Asker;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

impl Tracker {
    /// Saves the map on the mapping thread; tracking continues.
    pub(super) fn save(&mut self, file: PathBuf, results: Option<PathBuf>, reply: OnText) {
        let placement = self.shared.placement.load_full();
        let placed = placement.as_ref().map(|p| p.map_from_world);
        let grid = self.shared.grid.zip(placement).and_then(|(options, at)| {
            let upright = grid::upright(&at.mount, &at.map_from_world)?;
            let submap = at.submap;
            Some(SavedGrid {
                options,
                upright,
                submap,
            })
        });
        let splats = self.shared.splats.load_full();
        let reply = match splats.clone() {
            Some(asker) => with_splats(asker, &file, results.as_deref(), reply),
            None => reply,
        };
        let Some(engine) = &mut self.engine else {
            return;
        };
        let beside = Beside { grid, splats };
        if !saving::save(&mut engine.slam, file, results, placed, beside, reply) {
            tracing::debug!("the map cannot be saved now");
        }
    }

    /// Has the map of `file` checked on the mapping thread; tracking continues.
    pub(super) fn load(&mut self, file: PathBuf, reply: OnText) {
        let refuse = match &self.engine {
            _ if self.failed => Some("SLAM has failed; call ~/reset first"),
            _ if self.loading.is_some() => Some("a map is being loaded; call again afterwards"),
            Some(engine) if engine.slam.mapping_failure().is_some() => {
                Some("mapping has failed; call ~/reset first")
            }
            Some(_) => None,
            None => Some(
                "SLAM starts with the first image; call again when images arrive, or set load_map_on_start",
            ),
        };
        if let Some(why) = refuse {
            return reply(Err(why.into()));
        }
        let inbox = Arc::clone(&self.shared);
        let then = Box::new(move |checked| {
            // If the inbox is full, the reply is dropped, which its owner notices.
            inbox.inbox.order(Order::Checked(checked, reply));
        });
        let engine = self.engine.as_mut();
        if !engine.is_some_and(|e| e.slam.check_map(file, then)) {
            tracing::debug!("the map cannot be loaded now");
        }
    }

    /// Discards the map and has the checked one loaded on the mapping thread.
    pub(super) fn load_checked(&mut self, checked: Checked, reply: OnText) {
        let reader = match checked {
            Ok(reader) => reader,
            Err(error) => return reply(Err(error.to_string())),
        };
        // It is written before it is discarded: the mapping thread keeps the order.
        if !self.is_in_file() {
            self.keep();
        }
        let Some(engine) = &mut self.engine else {
            return;
        };
        if let Err(error) = engine.slam.start_load(reader) {
            self.fail(error.to_string());
            return reply(Err(error.to_string()));
        }
        self.lost = true;
        self.loading = Some(reply);
        self.shared.status.enter(State::Lost);
    }

    /// Takes the results of work on the mapping thread.
    pub(super) fn settle(&mut self) {
        let engine = self.engine.as_mut();
        if let Some(loaded) = engine.and_then(|e| e.slam.take_loaded()) {
            self.loaded(loaded);
        }
        let kept = self.ending.as_ref().map(|ending| ending.kept.try_recv());
        match kept {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(Ok(Ok(()))) => {
                if let Some(Ending { why, next, .. }) = self.ending.take() {
                    self.ended(&why, next);
                }
            }
            Some(Ok(Err(_)) | Err(TryRecvError::Disconnected)) => {
                if let Some(Ending { why, next, .. }) = self.ending.take() {
                    self.rebuild |= next == Next::Rebuild;
                    self.fail(format!("{why}, and the map could not be kept on disk"));
                }
            }
        }
    }

    pub(super) fn loaded(&mut self, loaded: Result<SavedMap, SavedMapError>) {
        let text = match loaded {
            Ok(map) => {
                self.announce(&format!("loaded: {map}"), Some(engine::place_of(&map)));
                Ok(map.to_string())
            }
            Err(error) => {
                self.fail(error.to_string());
                Err(error.to_string())
            }
        };
        if let Some(reply) = self.loading.take() {
            reply(text);
        }
    }

    /// Starts a new map with the next image, as asked. The present one is written first, by the
    /// mapping thread, which keeps the order.
    pub(super) fn restart(&mut self, why: &str) {
        self.ending = None;
        self.keep();
        let next = match std::mem::take(&mut self.rebuild) {
            true => Next::Rebuild,
            false => Next::Reset,
        };
        self.ended(why, next);
    }

    /// Ends the map once it is on disk.
    pub(super) fn end(&mut self, why: String, next: Next) {
        if self.ending.is_some() || self.failed {
            return;
        }
        let Some(kept) = self.keep() else {
            return self.ended(&why, next);
        };
        let until = format!("{why}: the map is being written to disk before a new one starts");
        self.shared.status.enter(State::Waiting(until));
        self.ending = Some(Ending { why, next, kept });
    }

    /// Starts a new map with the next image.
    fn ended(&mut self, why: &str, next: Next) {
        tracing::warn!("starting a new map: {why}");
        self.shared.status.recover();
        self.failed = false;
        self.lost = false;
        self.loading = None;
        self.stamps = StampGate::default();
        if next == Next::Rebuild {
            self.engine = None;
        }
        if let Some(engine) = &mut self.engine
            && let Err(error) = engine.slam.reset()
        {
            // It will be recreated.
            tracing::warn!("restarting SLAM: {error}");
            self.engine = None;
        }
        if self.engine.is_some() {
            return self.announce(why, None);
        }
        self.why = why.to_owned();
        let missing = "waiting for the next image, with which a new map starts";
        self.shared.status.enter(State::Waiting(missing.into()));
    }

    /// Has the map written to a file of its own, unless it is very small, was written already, or
    /// `autosaves` is 0. The result follows.
    fn keep(&mut self) -> Option<Receiver<Result<(), String>>> {
        let settings = self.shared.settings.load_full();
        let engine = self.engine.as_mut()?;
        let (poses, count) = (engine.slam.poses(), settings.autosaves);
        let table = poses.load();
        let state = (table.map, table.version);
        if count == 0 || table.poses.len() < MIN_KEYFRAMES || self.kept == Some(state) {
            return None;
        }
        let (sender, receiver) = sync_channel(1);
        let shared = Arc::clone(&self.shared);
        let reply = move |kept: Result<String, String>| {
            shared.status.keep(&kept);
            // The receiver is gone where the result does not matter.
            let _ = sender.send(kept.map(|_| ()));
        };
        let file = autosave::folder(&settings).ok_or("neither map_path nor HOME is set".to_owned());
        let file = file.and_then(|folder| {
            let made = create_folder(&folder).map_err(|e| e.to_string());
            let file = || autosave::file(&folder, &self.shared.name, count);
            made.and_then(|()| file().map_err(|e| e.to_string()))
        });
        let placed = self.shared.placement.load_full().map(|p| p.map_from_world);
        match file {
            Err(error) => reply(Err(error)),
            Ok(file) => {
                let asked = saving::save(
                    &mut engine.slam,
                    file,
                    None,
                    placed,
                    Beside::default(),
                    Box::new(reply),
                );
                self.kept = asked.then_some(state);
            }
        }
        Some(receiver)
    }

    /// Whether the map is in a file that is written as it is made.
    fn is_in_file(&self) -> bool {
        let slam = self.engine.as_ref().map(|engine| &engine.slam);
        slam.is_some_and(|slam| slam.map_file().is_some() && slam.map_file_failure().is_none())
    }

    /// Keeps the map when the node closes.
    pub(super) fn close(mut self) {
        if self.is_in_file() {
            return;
        }
        if let Some(kept) = self.keep()
            && !matches!(kept.recv(), Ok(Ok(())))
        {
            tracing::error!("the map could not be kept on disk; see the messages before this one");
        }
    }

    /// Announces the new map to the other threads.
    pub(super) fn announce(&self, why: &str, loaded: Option<LoadedPlace>) {
        let Some(engine) = &self.engine else { return };
        self.shared.status.maps.add();
        self.shared.poses.store(Some(Arc::new(engine.slam.poses())));
        self.shared.tell(Event::NewMap {
            why: why.to_owned(),
            mount: engine.mount,
            camera_frame: Arc::clone(&engine.camera_frame),
            loaded,
        });
    }

    /// Stops SLAM after a failure. Its map is kept on disk, and can still be read and saved.
    pub(super) fn fail(&mut self, why: String) {
        tracing::error!("{why}; call ~/save_map to keep the map, ~/reset to start again");
        self.shared.status.enter(State::Failed(why));
        self.failed = true;
        self.keep();
    }

    /// Reports a failure of mapping and keeps the map; tracking goes on in it.
    pub(super) fn notice_mapping(&mut self) {
        let engine = self.engine.as_ref();
        if let Some(engine) = engine {
            let placement = self.shared.placement.load_full();
            if let Some(placement) = placement.filter(|_| engine.slam.map_file().is_some()) {
                engine.slam.place_map(Some(placement.map_from_world));
            }
            self.shared.status.map_file(engine.slam.map_file_failure());
        }
        let Some(why) = engine.and_then(|e| e.slam.mapping_failure()) else {
            return;
        };
        if self.shared.status.mapping_failed(why) {
            self.keep();
        }
    }
}

/// `reply`, after the splats were written beside the map too. They are written by a thread of their own: the mapping
/// thread does not wait for them.
fn with_splats(asker: Arc<Asker>, file: &Path, results: Option<&Path>, reply: OnText) -> OnText {
    let path = splats::file_for(file, results);
    Box::new(move |saved: Result<String, String>| {
        let text = match saved {
            Ok(text) => text,
            Err(why) => return reply(Err(why)),
        };
        // A thread that does not start drops what it was given: the reply comes from here then.
        let (ready, given) = sync_channel::<(String, OnText)>(1);
        let thread = std::thread::Builder::new().name("save-splats".into());
        let spawned = thread.spawn(move || {
            let Ok((text, reply)) = given.recv() else {
                return;
            };
            let written = splats::save(&asker, &path);
            reply(match written {
                Ok(splats) => Ok(format!("{text}; {splats}")),
                Err(why) => Err(format!("{text}; {why}")),
            });
        });
        match spawned {
            Ok(_) => {
                // The thread waits for the one message that there is room for.
                let _ = ready.try_send((text, reply));
            }
            Err(error) => reply(Err(format!("{text}; cannot write the splats: {error}"))),
        }
    })
}

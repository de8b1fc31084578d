//! What a live camera's owner needs of the system beyond its frames: the map while it is made, the
//! camera's own motion, a fresh start.

use super::keyframe::{Anchor, PoseTable};
use super::system::{SlamError, System};
use super::uncertainty::{Covariance6, of_camera};
use crate::compute::device::{FramePoints, Tracked};
use crate::geometry::{Intrinsics, Sim3};
use crate::map::MapSnapshot;
use arc_swap::ArcSwap;
use nalgebra::Isometry3;
use std::sync::Arc;
use std::time::Duration;

/// How often a reset looks whether the mapping side has forgotten its map.
const RESET_POLL: Duration = Duration::from_millis(1);

impl System {
    /// The keyframes' poses as they are published; always the newest state.
    pub fn poses(&self) -> Arc<ArcSwap<PoseTable>> {
        Arc::clone(&self.table)
    }

    /// The last frame's camera in that of the frame before it, in metres, as both were tracked against
    /// one keyframe: what global optimisation does in between has no part in it, except that the
    /// keyframe's scale is the present one. `None` if either was not tracked.
    pub fn step(&self) -> Option<Isometry3<f64>> {
        self.step
    }

    /// [`System::step`] for a frame that was just tracked to `anchor`.
    pub(super) fn step_to(&self, anchor: &Anchor) -> Option<Isometry3<f64>> {
        let before = self.entries.before_last()?.anchor?;
        if before.keyframe != anchor.keyframe {
            return None;
        }
        let keyframe = Anchor {
            keyframe_from_camera: Sim3::identity(),
            ..*anchor
        };
        let scale = self.world_from(&keyframe).scale;
        let (from, to) = (&before.keyframe_from_camera, &anchor.keyframe_from_camera);
        let back = from.rotation.inverse();
        let moved = back * (to.translation - from.translation) * scale;
        Some(Isometry3::from_parts(moved.into(), back * to.rotation))
    }

    /// How far the last frame's camera may be from where it is said to be, about the world's axes and relative
    /// to the keyframe that it was tracked against. `None` if it was not tracked.
    pub fn covariance(&self) -> Option<Covariance6> {
        self.covariance
    }

    pub(super) fn covariance_of(&self, tracked: &Tracked, keyframe: u32) -> Option<Covariance6> {
        let shape = self.device.shape();
        let pixels_per_patch = shape.pixels() as f64 / shape.tokens.max(1) as f64;
        let world_from_keyframe = self.world_from(&Anchor {
            keyframe,
            keyframe_from_camera: Sim3::identity(),
        });
        let frame = &tracked.keyframe_from_frame;
        of_camera(&tracked.fit, pixels_per_patch, frame, &world_from_keyframe)
    }

    /// Replaces `dst` by the last frame's pointmap as the network saw it, before scale: that of the frame's
    /// pose makes it metric.
    ///
    /// # Errors
    /// The device's.
    pub fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), SlamError> {
        Ok(self.device.read_frame(dst)?)
    }

    /// Width and height of the network's image, and its intrinsics where they are known.
    pub fn network_image(&self) -> ((usize, usize), Option<Intrinsics>) {
        let shape = self.device.shape();
        ((shape.width, shape.height), self.intrinsics)
    }

    /// Whether frames may become keyframes (they do at first). If not, the map stays as it is, and a lost
    /// camera is looked for in it without end.
    pub fn set_growing(&mut self, grows: bool) {
        self.grows = grows;
    }

    /// Has `reply` called, in the mapping thread, with the keyframes of these ids that the map holds, and
    /// nothing else of the map. Never waits: `false` if too much is asked already.
    pub fn read_keyframes(
        &mut self,
        ids: Vec<u32>,
        reply: Box<dyn FnOnce(MapSnapshot) + Send>,
    ) -> bool {
        let intrinsics = self.intrinsics;
        let look = Box::new(move |mapper: &super::mapper::Mapper| {
            reply(MapSnapshot {
                intrinsics,
                keyframes: mapper.records_of(|id| ids.contains(&id)),
                ..Default::default()
            });
        });
        self.mapping.look(look)
    }

    /// Has `reply` called, in the mapping thread, with the whole map and every frame so far. Never waits:
    /// `false` if too much is asked already.
    pub fn read_map(&mut self, reply: Box<dyn FnOnce(MapSnapshot) + Send>) -> bool {
        let mut map = self.snapshot();
        let look = Box::new(move |mapper: &super::mapper::Mapper| {
            map.keyframes = mapper.records();
            reply(map);
        });
        self.mapping.look(look)
    }

    /// Forgets the map and every frame; the next frame starts a new map. What the mapping side has not begun
    /// yet is left out; what it is at is waited for: an edge, or a step of a solve.
    ///
    /// # Errors
    /// If the mapping side is no more.
    pub fn reset(&mut self) -> Result<(), SlamError> {
        self.mapping.reset()?;
        if self.asked.take().is_some() {
            // Of the map that goes.
            self.mapping.reply(true)?;
        }
        self.active = None;
        self.retired = None;
        self.pending.clear();
        self.entries.clear();
        self.next_id = 0;
        (self.lost_tries, self.blank) = (0, 0);
        self.last_pose = Sim3::identity();
        (self.step, self.covariance) = (None, None);
        // Ids begin again, so the old poses must be gone before the first one is used.
        while self.mapping.is_resetting() {
            self.mapping.check()?;
            std::thread::sleep(RESET_POLL);
        }
        Ok(())
    }
}

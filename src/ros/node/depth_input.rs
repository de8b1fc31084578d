//! The topic `depth`: depth images of a sensor, for the images of the same time.

use super::depth_inbox::QUIET;
use super::moment::Moment;
use super::settings::Settings;
use super::shared::Shared;
use crate::image::depth::{DepthCamera, DepthDecoder, DepthImage, DepthReader, OwnCamera};
use crate::slam::{FrameDepth, Slam};
use crate::time::Stamp;
use crate::wire::messages::Header;
use std::sync::PoisonError;

/// Gives the tracked images their depth.
#[derive(Debug, Default)]
pub struct DepthInput {
    reader: Option<DepthReader>,
    decoder: DepthDecoder,
    image: DepthImage,
    /// Since when there is no usable depth.
    missing: Option<Moment>,
}

impl DepthInput {
    /// For a new SLAM.
    pub fn of(slam: &Slam) -> Self {
        Self {
            reader: slam.depth_reader(),
            ..Self::default()
        }
    }

    /// Gives the next frame of `slam`, an image of `camera_frame`, its depth. Depth that cannot be used is left out; if
    /// it stays so, the reason is reported.
    pub fn give(
        &mut self,
        shared: &Shared,
        slam: &mut Slam,
        settings: &Settings,
        (camera_frame, stamp): (&str, Stamp),
    ) {
        let given = self.try_give(shared, slam, settings, (camera_frame, stamp));
        let (status, now) = (&shared.status, shared.moment());
        match given {
            Ok(()) => {
                status.with_depth.add();
                self.missing = None;
                status.depth(None);
            }
            Err(Trouble::Image(why)) => {
                status.warn("depth image", || format!("ignoring depth: {why}"));
                status.depth(Some(why));
                self.missing.get_or_insert(now);
            }
            Err(Trouble::None(why)) => {
                let since = *self.missing.get_or_insert(now);
                if now.since(&since) >= QUIET {
                    status.warn("depth missing", || format!("no depth: {why}"));
                    status.depth(Some(why));
                }
            }
        }
    }

    fn try_give(
        &mut self,
        shared: &Shared,
        slam: &mut Slam,
        settings: &Settings,
        (camera_frame, stamp): (&str, Stamp),
    ) -> Result<(), Trouble> {
        let reader = self.reader.as_mut();
        let reader = reader.ok_or_else(|| Trouble::Image("depth.use is not set".into()))?;
        let payload = shared.depth_input.take(stamp, shared.moment());
        let payload = payload.map_err(Trouble::None)?;
        let transport = settings.depth_transport;
        let header = transport
            .decode(&payload, &mut self.decoder, &mut self.image)
            .map_err(|e| Trouble::Image(e.to_string()))?;
        let measured = Stamp::from(&header.stamp);
        let camera = match settings.depth_registered {
            true => DepthCamera::Registered,
            false => own_camera(shared, camera_frame, &header).map_err(Trouble::Image)?,
        };
        let depth = reader
            .read(&self.image, &camera)
            .map_err(|e| Trouble::Image(e.to_string()))?;
        let depth = FrameDepth {
            metres: depth.metres,
            after: stamp.seconds_to(measured),
        };
        slam.set_depth(Some(depth))
            .map_err(|e| Trouble::Image(e.to_string()))
    }
}

/// Why an image has no depth.
enum Trouble {
    /// Its depth image cannot be used.
    Image(String),
    /// There is none, which may be a lost message.
    None(String),
}

fn own_camera(shared: &Shared, camera: &str, header: &Header) -> Result<DepthCamera, String> {
    let slot = shared.depth_camera.lock();
    let slot = slot.unwrap_or_else(PoisonError::into_inner);
    let calibration = slot.get().map_err(|_| {
        "no usable calibration on depth/camera_info; remap it, or register the depth images \
         (depth_registered:=true)"
    })?;
    drop(slot);
    let place = shared
        .tf()
        .lookup_held(camera, &header.frame_id, Stamp::from(&header.stamp));
    Ok(DepthCamera::Own(OwnCamera {
        calibration,
        colour_from_depth: place.map_err(|e| e.to_string())?,
        colour: None,
    }))
}

//! Creates SLAM for the images that arrive.

use super::settings::Settings;
use super::shared::{LoadedPlace, Mount, Shared};
use super::status::State;
use crate::geometry::Calibration;
use crate::image::encoding::ImageFormat;
use crate::map::saved;
use crate::ros::priority::RaisedPriority;
use crate::slam::{MapMode, SavedMap, Slam};
use crate::slam_builder::OpenError;
use crate::time::Stamp;
use crate::wire::messages::Header;
use std::path::Path;
use std::sync::Arc;

/// SLAM, and what it was created for.
pub struct ActiveEngine {
    pub slam: Slam,
    pub calibration: Option<Calibration>,
    pub mount: Mount,
    pub camera_frame: Arc<str>,
}

/// The calibration to use: `None` without calibration, an error text while it is missing.
pub fn calibration(shared: &Shared, settings: &Settings) -> Result<Option<Calibration>, String> {
    match settings.use_calib {
        true => shared.camera().get().map(Some),
        false => Ok(None),
    }
}

/// Creates SLAM for images of this format; `None` while something is missing, which the status
/// names.
pub fn start(
    shared: &Shared,
    priority: &RaisedPriority,
    header: &Header,
    format: &ImageFormat,
    settings: &Settings,
    calibration: Option<Calibration>,
) -> Result<Option<(ActiveEngine, Option<LoadedPlace>)>, OpenError> {
    let camera_frame: Arc<str> = match settings.camera_optical_frame.as_str() {
        "" => header.frame_id.as_str().into(),
        named => named.into(),
    };
    if camera_frame.is_empty() {
        let missing = "the images have no frame_id; set camera_optical_frame";
        wait(shared, "frame", missing.into());
        return Ok(None);
    }
    let Some(mount) = mount(shared, &camera_frame, settings, header) else {
        return Ok(None);
    };
    shared.status.enter(State::Waiting("starting SLAM".into()));
    let mut builder = shared.builder.clone().format(*format);
    // Depth of another camera is projected into this one's images, even if nothing else uses its calibration.
    let needed = settings.use_depth && !settings.depth_registered;
    let known = shared.camera().get().ok().filter(|_| needed);
    if let Some(calibration) = calibration.or(known) {
        builder = builder.calibration(calibration);
    }
    let _starting = shared.pulses.starting.work();
    // Threads started by SLAM run at normal priority.
    let mut slam = priority.aside(|| builder.build())?;
    let about = slam.about();
    tracing::info!("SLAM: {}", about.description);
    for note in &about.notes {
        match note.is_warning() {
            true => tracing::warn!("{note}"),
            false => tracing::info!("{note}"),
        }
    }
    shared.status.describe(about);
    shared.pulses.set_mapping(slam.mapping_pulse());
    shared.page.start(&slam);
    let mut loaded = None;
    if settings.load_map_on_start {
        let file = saved::file_of(Path::new(&settings.map_path));
        let mode = match settings.localization_only {
            true => MapMode::ReadOnly,
            false => MapMode::Continue,
        };
        match slam.open_map(&file, mode)? {
            Some(map) => {
                tracing::info!("loaded: {map}");
                loaded = Some(place_of(&map));
            }
            None => tracing::info!("new map in {}", file.display()),
        }
    }
    let engine = ActiveEngine {
        slam,
        calibration,
        mount,
        camera_frame,
    };
    Ok(Some((engine, loaded)))
}

/// The place of a loaded map in the map frame.
pub fn place_of(map: &SavedMap) -> LoadedPlace {
    LoadedPlace {
        map_from_world: map.map_from_world,
        first: map.first,
    }
}

/// Reports that the node waits for `missing`; `what` is the kind of the warning.
pub fn wait(shared: &Shared, what: &'static str, missing: String) {
    let status = &shared.status;
    status.warn(what, || format!("waiting: {missing}"));
    status.enter(State::Waiting(missing));
}

fn mount(shared: &Shared, camera: &str, settings: &Settings, header: &Header) -> Option<Mount> {
    let base = settings.base_frame.as_str();
    if base.is_empty() || base == camera {
        return Some(Mount::CameraAlone);
    }
    // A moving joint's transform may arrive after the image.
    let stamp = Stamp::from(&header.stamp);
    match shared.tf().lookup_held(base, camera, stamp) {
        Ok(base_from_camera) => Some(Mount::On(base_from_camera)),
        Err(error) => {
            let missing = format!(
                "{error}; publish it (robot_state_publisher, static_transform_publisher), or set base_frame:='' to \
                 take the camera as the robot"
            );
            wait(shared, "transform", missing);
            None
        }
    }
}

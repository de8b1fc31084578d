//! The splats thread, with the parameter `splat`: starts the Gaussian map once the camera is known, and publishes it on
//! `~/splat_image` as the camera would see it, while there are subscribers.

use super::publish::send;
use super::reading;
use super::shared::{Poses, Shared};
use super::splat_slot::SplatCamera;
use super::supervisor::Flow;
use crate::compute::splat::camera::{Camera, Rendering};
use crate::config::Config;
use crate::map::MapSnapshot;
use crate::map::splat::{self, Format};
use crate::ros::middleware::{Middleware, MiddlewareError, Publish};
use crate::slam::PoseTable;
use crate::slam_builder::splat::{Asker, DeviceRows, Live, LiveSource, LiveSplat, make_device};
use crate::wire::Qos;
use crate::wire::messages::sensor::Image;
use crate::wire::messages::{Header, Message};
use serde_bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Polling interval.
const TICK: Duration = Duration::from_millis(50);
/// How long a picture may take before the next is asked for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long writing the splats of a saved map may take.
const SAVE_PATIENCE: Duration = Duration::from_secs(120);

/// Advertises `~/splat_image`.
pub fn advertise(middleware: &dyn Middleware) -> Result<Box<dyn Publish>, MiddlewareError> {
    middleware.advertise("~/splat_image", Image::TYPE, Qos::sensor_data(1))
}

/// The node's keyframes, for the map's thread.
struct NodeSource {
    shared: Arc<Shared>,
    poses: Option<Arc<Poses>>,
    /// Counts the maps.
    number: usize,
}

impl LiveSource for NodeSource {
    fn table(&mut self) -> Option<(usize, Arc<PoseTable>)> {
        let poses = self.shared.poses.load_full()?;
        if !self.poses.as_ref().is_some_and(|p| Arc::ptr_eq(p, &poses)) {
            self.number += 1;
        }
        let table = poses.load_full();
        self.poses = Some(poses);
        Some((self.number, table))
    }

    fn keyframes(&mut self, ids: Vec<u32>) -> Option<MapSnapshot> {
        let working = self.shared.pulses.splat.work();
        let map = reading::keyframes(&self.shared, &self.shared.pulses.splat, ids);
        drop(working);
        map
    }
}

/// Runs until the node closes.
pub fn run(shared: &Arc<Shared>, topic: &dyn Publish, config: &Config) {
    let mut map: Option<LiveSplat> = None;
    let mut failed = false;
    let mut pixels = Vec::new();
    shared.supervisor.run("splats", || {
        if shared.closing.load(Ordering::Acquire) {
            // Its thread may wait for keyframes, which end with the node.
            shared.splats.store(None);
            map = None;
            return Flow::Stop;
        }
        if map.is_none() && !failed {
            match start(shared, config) {
                Ok(started) => map = started,
                Err(why) => {
                    failed = true;
                    tracing::warn!("the Gaussian map is left out: {why}");
                }
            }
        }
        shared.splat_slot.want(topic.subscribers() > 0);
        let Some((map, camera)) = map.as_ref().zip(shared.splat_slot.next(TICK)) else {
            return Flow::Idle;
        };
        publish(shared, map, topic, &camera, &mut pixels);
        Flow::Continue
    });
}

/// Starts the map's thread once there is a keyframe, whose image tells the size.
fn start(shared: &Arc<Shared>, config: &Config) -> Result<Option<LiveSplat>, String> {
    let mut source = NodeSource {
        shared: Arc::clone(shared),
        poses: None,
        number: 0,
    };
    let first = source
        .table()
        .and_then(|(_, table)| table.ids.first().copied());
    let Some(first) = first else {
        std::thread::sleep(TICK);
        return Ok(None);
    };
    let image = source
        .keyframes(vec![first])
        .and_then(|map| map.keyframes.first().map(|k| k.view().image));
    let Some(image) = image.filter(|image| !image.data.is_empty()) else {
        std::thread::sleep(TICK);
        return Ok(None);
    };
    let mut notes = Vec::new();
    let size = (image.width, image.height);
    let device = make_device(config.device, &config.splat, size, &mut notes);
    for note in &notes {
        tracing::info!("{note}");
    }
    let device = device.map_err(|error| error.to_string())?;
    tracing::info!(
        "Gaussian map: at most {} splats on {}, in {} ms of each second",
        device.counts().capacity,
        device.name(),
        config.splat.ms_per_second
    );
    let live = Live::new(device, &config.splat, config.output.c_conf);
    let map = LiveSplat::start(live, Box::new(source)).map_err(|error| error.to_string())?;
    shared.splats.store(Some(Arc::new(map.asker())));
    shared.page.show_splats(map.asker());
    Ok(Some(map))
}

fn publish(
    shared: &Shared,
    map: &LiveSplat,
    topic: &dyn Publish,
    camera: &SplatCamera,
    pixels: &mut Vec<u8>,
) {
    let (reply, rendered) = sync_channel(1);
    let (size, pose) = (camera.size, camera.world_from_camera);
    let asked = map.asker().ask(move |live: &mut Live| {
        let Some(intrinsics) = live.intrinsics() else {
            return;
        };
        let camera = Camera::new(intrinsics, size, &pose);
        if let Ok(rendering) = live.render(&camera) {
            // The publisher has given up if this fails.
            let _ = reply.try_send(rendering.clone());
        }
    });
    let rendering = asked
        .then(|| rendered.recv_timeout(PATIENCE).ok())
        .flatten();
    let Some(rendering) = rendering else {
        return;
    };
    colours(&rendering, pixels);
    let message = Image {
        header: Header::new(camera.stamp, &camera.camera_frame),
        height: rendering.height as u32,
        width: rendering.width as u32,
        encoding: "rgb8".to_owned(),
        is_bigendian: 0,
        step: 3 * rendering.width as u32,
        data: Bytes::new(pixels),
    };
    send(topic, &message, &shared.status);
}

/// Colours in 8 bits.
fn colours(rendering: &Rendering, dst: &mut Vec<u8>) {
    dst.clear();
    // A cast saturates, and makes NaN zero.
    dst.extend(rendering.color.iter().map(|v| (255.0 * v + 0.5) as u8));
}

/// The file of the splats for a map's file.
pub fn file_for(map: &Path, results: Option<&Path>) -> PathBuf {
    match results {
        Some(folder) => folder.join(splat::FILE_NAME),
        None => map.with_extension(splat::FILE_NAME),
    }
}

/// Writes the splats as PLY; waits for the map's thread. Returns what was written, in words.
pub fn save(asker: &Asker, path: &Path) -> Result<String, String> {
    let (reply, written) = sync_channel(1);
    let to = path.to_owned();
    let asked = asker.ask(move |live: &mut Live| {
        let device = live.trainer().device();
        let rows = device.counts().rows;
        let result = splat::write(&to, Format::Ply, &mut DeviceRows::new(device));
        // The service has given up if this fails.
        let _ = reply.try_send(result.map(|_| rows).map_err(|error| error.to_string()));
    });
    let result = asked
        .then(|| written.recv_timeout(SAVE_PATIENCE).ok())
        .flatten();
    match result {
        Some(result) => result.map(|rows| format!("{rows} splats in {}", path.display())),
        None => Err("the splats cannot be written now; try again".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_saturate() {
        let rendering = Rendering {
            color: vec![-1.0, 0.0, 0.5, 1.0, 7.0, f32::NAN],
            ..Rendering::default()
        };
        let mut bytes = vec![9];
        colours(&rendering, &mut bytes);
        assert_eq!(bytes, [0, 0, 128, 255, 255, 0]);
    }

    #[test]
    fn splats_lie_beside_their_map() {
        let map = Path::new("/maps/house.map");
        assert_eq!(file_for(map, None), Path::new("/maps/house.splat.ply"));
        let folder = Path::new("/maps/house");
        assert_eq!(
            file_for(map, Some(folder)),
            Path::new("/maps/house/splat.ply")
        );
    }
}

//! Wheel odometry and IMU of a bag.

use super::origin;
use super::static_tf::{clean, connect, static_transforms};
use super::topics::{Mismatch, check_format, find, list};
use crate::bag::{Bag, Topic};
use crate::source::SourceError;
use crate::source::motion::{GyroSource, MotionOptions, MotionSource, Series};
use crate::source::motion_message::{self, Measured, MotionMessageError};
use crate::time::Stamp;
use crate::wire::Payload;
use crate::wire::messages::Message;
use crate::wire::messages::nav::Odometry;
use crate::wire::messages::sensor::Imu;
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};

/// Reads a message.
type Read<T> = fn(&Payload) -> Result<Measured<T>, MotionMessageError>;

/// Opens the motion sensors of the bag at `path`, whose images are those of `camera_frame`.
///
/// # Errors
/// No topic of the type, several, or one without a readable message; a mount that `/tf_static` does not have.
pub fn open(
    path: &Path,
    options: &MotionOptions,
    camera_frame: Option<&str>,
) -> Result<MotionSource, SourceError> {
    let bag = Bag::open(path)?;
    let mut source = MotionSource::default();
    if options.wheels {
        let named = (&options.odom_topic, "--odom-topic");
        let topic = topic(&bag, Odometry::TYPE, named)?;
        let (frame, poses) = series(&bag, topic, motion_message::odometry)?;
        let mount = match options.base_from_camera {
            Some(given) => given,
            None => mount(&bag, topic, (&frame, camera_frame), "--base-from-camera")?,
        };
        source.wheels = Some((mount, poses));
    }
    if options.gyro {
        let named = (&options.imu_topic, "--imu-topic");
        let topic = topic(&bag, Imu::TYPE, named)?;
        let (frame, readings) = series(&bag, topic, motion_message::imu)?;
        let camera_from_imu = match options.camera_from_imu {
            Some(given) => given,
            None => {
                let frames = (frame.as_str(), camera_frame);
                let place = mount(&bag, topic, frames, "--camera-from-imu")?;
                place.rotation.inverse()
            }
        };
        source.gyro = Some(GyroSource {
            camera_from_imu,
            noise: None,
            readings,
        });
    }
    Ok(source)
}

/// The topic of this type: the named one, or the only one.
fn topic<'a>(
    bag: &'a Bag,
    kind: &str,
    (named, option): (&Option<String>, &str),
) -> Result<&'a str, SourceError> {
    let chosen = choose(bag.topics(), kind, named.as_deref(), option);
    let chosen = chosen.and_then(|topic| check_format(topic).map(|()| topic.name.as_str()));
    chosen.map_err(|(expected, found)| SourceError::content(bag.path(), expected, found))
}

fn choose<'a>(
    topics: &'a [Topic],
    kind: &str,
    named: Option<&str>,
    option: &str,
) -> Result<&'a Topic, Mismatch> {
    if let Some(name) = named {
        return find(topics, name, &[kind]);
    }
    let filled = |t: &&Topic| t.kind == kind && t.messages != Some(0);
    let all: Vec<&Topic> = topics.iter().filter(filled).collect();
    match all[..] {
        [one] => Ok(one),
        [] => Err((format!("a topic of {kind}"), list(topics, &[]))),
        _ => {
            let names: Vec<&str> = all.iter().map(|t| t.name.as_str()).collect();
            Err((
                format!("a single topic of {kind}, or {option} to select one"),
                format!("{}: {}", names.len(), names.join(", ")),
            ))
        }
    }
}

/// The frame of a topic's messages, by the first readable one, and the measurements in that frame.
fn series<T: 'static>(
    bag: &Bag,
    topic: &str,
    read: Read<T>,
) -> Result<(String, Series<T>), SourceError> {
    let place = origin(bag.path(), topic);
    let mut why = "no message".to_owned();
    let mut frame = None;
    for message in bag.messages(&[topic]) {
        match read(&message?.payload) {
            Ok(measured) => {
                frame = Some(measured.frame);
                break;
            }
            Err(error) => why = error.to_string(),
        }
    }
    let frame = frame.ok_or_else(|| SourceError::content(&place, "a readable message", why))?;
    let own = frame.clone();
    let mut unusable = Unusable { place, count: 0 };
    let messages = bag.messages(&[topic]);
    // The images reach the damage of a bag too, and report it.
    let payloads = messages.map_while(|message| Some(message.ok()?.payload));
    let all = payloads.filter_map(move |payload| match read(&payload) {
        Ok(measured) if measured.frame == own => Some((measured.stamp, measured.value)),
        Ok(measured) => unusable.note(&format!(
            "expected measurements of {own:?} as before, found {:?}",
            measured.frame
        )),
        Err(error) => unusable.note(&error.to_string()),
    });
    Ok((frame, Box::new(all)))
}

/// Messages that are left out; the first one is reported.
struct Unusable {
    place: PathBuf,
    count: usize,
}

impl Unusable {
    fn note<T>(&mut self, why: &str) -> Option<(Stamp, T)> {
        if self.count == 0 {
            tracing::warn!(
                "{}: {why}; such messages are left out",
                self.place.display()
            );
        }
        self.count += 1;
        None
    }
}

/// `frame_from_camera` by `/tf_static`.
fn mount(
    bag: &Bag,
    topic: &str,
    (frame, camera): (&str, Option<&str>),
    option: &str,
) -> Result<Isometry3<f64>, SourceError> {
    let camera = camera.unwrap_or_default();
    let edges = static_transforms(bag)?;
    let found = connect(&edges, clean(frame), clean(camera));
    found.ok_or_else(|| {
        let place = origin(bag.path(), topic);
        let expected = format!(
            "a transform on /tf_static between its frame {frame:?} and the camera {camera:?}, or {option}"
        );
        SourceError::content(&place, expected, "no such transform")
    })
}

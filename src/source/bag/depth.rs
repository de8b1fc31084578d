//! The depth images beside a camera's images.

use super::depth_topic::DepthTopic;
use super::{Ordered, origin};
use crate::bag::{Bag, BagMessage};
use crate::geometry::Calibration;
use crate::image::depth::{DepthCamera, DepthDecoder, DepthImage, OwnCamera};
use crate::source::SourceError;
use crate::source::camera_info;
use crate::source::depth::TOLERANCE_NANOS;
use crate::source::depth_message::DepthTransport;
use crate::time::Stamp;
use crate::wire::cdr;
use crate::wire::messages::geometry::TfMessage;
use crate::wire::messages::sensor::CameraInfo;
use crate::wire::messages::{Header, Message};
use nalgebra::Isometry3;
use std::path::PathBuf;

/// Depth images in order of their stamps.
pub struct DepthMessages {
    origin: PathBuf,
    transport: DepthTransport,
    ordered: Ordered,
    /// The two messages around the last image's stamp.
    around: [Option<(Stamp, BagMessage)>; 2],
    ended: bool,
    decoder: DepthDecoder,
    unreadable: usize,
}

impl DepthMessages {
    pub fn new(bag: &Bag, topic: &DepthTopic) -> Self {
        Self {
            origin: origin(bag.path(), &topic.name),
            transport: topic.transport,
            ordered: Ordered::new(bag.messages(&[&topic.name])),
            around: [None, None],
            ended: false,
            decoder: DepthDecoder::default(),
            unreadable: 0,
        }
    }

    /// The depth image nearest in time to `at`, if it is within the tolerance. Later calls have later times.
    pub fn at(&mut self, at: Stamp) -> Option<DepthImage> {
        while !self.ended && self.around[1].as_ref().is_none_or(|(stamp, _)| *stamp < at) {
            match self.ordered.next() {
                Some(Ok(next)) => {
                    let [_, newest] = &mut self.around;
                    let before = newest.replace(next);
                    self.around[0] = before;
                }
                Some(Err(_)) => {
                    // The images reach the damage, or the jump in time, too.
                    tracing::warn!("{}: no depth from here on", self.origin.display());
                    self.ended = true;
                }
                None => self.ended = true,
            }
        }
        let distance = |(stamp, _): &&(Stamp, BagMessage)| stamp.nanos.abs_diff(at.nanos);
        let nearest = self.around.iter().flatten().min_by_key(distance)?;
        if distance(&nearest) > TOLERANCE_NANOS.unsigned_abs() {
            return None;
        }
        let mut image = DepthImage::default();
        match self
            .transport
            .decode(&nearest.1.payload, &mut self.decoder, &mut image)
        {
            Ok(_) => Some(image),
            Err(error) => {
                if self.unreadable == 0 {
                    let origin = self.origin.display();
                    tracing::warn!(
                        "{origin}: {error}; frames without depth are tracked without it"
                    );
                }
                self.unreadable += 1;
                None
            }
        }
    }
}

/// The camera of the depth images of a camera whose images have `image_frame`: registered, if both have one frame or the
/// bag has no calibration of the depth.
///
/// # Errors
/// Frames that differ, without a transform on `/tf_static` or a usable calibration.
pub fn camera(
    bag: &Bag,
    topic: &DepthTopic,
    image_frame: &str,
) -> Result<DepthCamera, SourceError> {
    let place = origin(bag.path(), &topic.name);
    let first = match bag.messages(&[&topic.name]).next() {
        Some(Ok(message)) => message,
        Some(Err(error)) => return Err(error.into()),
        None => return Err(SourceError::content(&place, "depth images", "none")),
    };
    let header = cdr::decode::<Header>(Header::TYPE, &first.payload)
        .map_err(|e| SourceError::content(&place, "a depth image", e.to_string()))?;
    let depth_frame = clean(&header.frame_id);
    if depth_frame == clean(image_frame) {
        return Ok(DepthCamera::Registered);
    }
    let unregistered = |found: String| {
        let expected = format!(
            "depth registered to the images (frame {image_frame:?}), or the calibration of the depth camera and a \
             transform on /tf_static"
        );
        SourceError::content(&place, expected, format!("frame {depth_frame:?}, {found}"))
    };
    let calibration = calibration(bag, topic).map_err(&unregistered)?;
    let edges = static_transforms(bag)?;
    let connected = connect(&edges, clean(image_frame), depth_frame);
    let missing = || unregistered("which /tf_static does not connect".to_owned());
    Ok(DepthCamera::Own(OwnCamera {
        calibration,
        colour_from_depth: connected.ok_or_else(missing)?,
        colour: None,
    }))
}

fn calibration(bag: &Bag, topic: &DepthTopic) -> Result<Calibration, String> {
    let name = topic.camera_info.as_ref();
    let name = name.ok_or_else(|| "no camera_info beside the depth topic".to_owned())?;
    let message = bag.messages(&[name]).next();
    let message = message.ok_or_else(|| format!("no message on {name}"))?;
    let message = message.map_err(|e| e.to_string())?;
    let info = CameraInfo::decode(&message.payload).map_err(|e| e.to_string())?;
    camera_info::calibration(&info).map_err(|e| e.to_string())
}

/// Removes the leading slash used by tf1.
fn clean(frame: &str) -> &str {
    frame.strip_prefix('/').unwrap_or(frame)
}

/// Maximum number of transforms on `/tf_static`: a robot has a few hundred.
const TRANSFORMS: usize = 4096;

/// A transform `parent_from_child`.
struct Edge {
    parent: String,
    child: String,
    pose: Isometry3<f64>,
}

fn static_transforms(bag: &Bag) -> Result<Vec<Edge>, SourceError> {
    let mut edges: Vec<Edge> = Vec::new();
    if !bag.topics().iter().any(|t| t.name == "/tf_static") {
        return Ok(edges);
    }
    for message in bag.messages(&["/tf_static"]) {
        let Ok(decoded) = TfMessage::decode(&message?.payload) else {
            continue;
        };
        for transform in decoded.transforms {
            if let Some(pose) = transform.transform.isometry()
                && edges.len() < TRANSFORMS
            {
                edges.push(Edge {
                    parent: clean(&transform.header.frame_id).to_owned(),
                    child: clean(&transform.child_frame_id).to_owned(),
                    pose,
                });
            }
        }
    }
    Ok(edges)
}

/// `target_from_source`, along the transforms in either direction.
fn connect(edges: &[Edge], target: &str, source: &str) -> Option<Isometry3<f64>> {
    // Frames that are reached, each with `frame_from_source`.
    let mut reached = vec![(source, Isometry3::identity())];
    let mut at = 0;
    while let Some((frame, pose)) = reached.get(at).copied() {
        if frame == target {
            return Some(pose);
        }
        for edge in edges {
            let next = match frame {
                _ if edge.child == frame => (edge.parent.as_str(), edge.pose * pose),
                _ if edge.parent == frame => (edge.child.as_str(), edge.pose.inverse() * pose),
                _ => continue,
            };
            if !reached.iter().any(|(known, _)| *known == next.0) {
                reached.push(next);
            }
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_connected_up_and_down_the_tree() {
        let edge = |parent: &str, child: &str, x: f64| Edge {
            parent: parent.into(),
            child: child.into(),
            pose: Isometry3::translation(x, 0.0, 0.0),
        };
        let edges = [
            edge("link", "colour", 0.1),
            edge("colour", "colour_optical", 0.01),
            edge("link", "depth", -0.2),
            edge("colour", "link", -0.1),
        ];
        let x = |target, source| connect(&edges, target, source).map(|t| t.translation.x);
        let close = |found: Option<f64>, expected: f64| {
            assert!(
                found.is_some_and(|x| (x - expected).abs() < 1e-12),
                "{found:?} {expected}"
            );
        };
        close(x("colour_optical", "depth"), -0.31);
        close(x("depth", "colour_optical"), 0.31);
        close(x("link", "link"), 0.0);
        assert_eq!(x("link", "other"), None);
    }
}

//! The depth images beside a camera's images.

use super::depth_topic::DepthTopic;
use super::static_tf::{clean, connect, static_transforms};
use super::{Ordered, origin};
use crate::bag::{Bag, BagMessage};
use crate::geometry::Calibration;
use crate::image::depth::{DepthCamera, DepthDecoder, DepthImage, OwnCamera};
use crate::source::camera_info;
use crate::source::depth::TOLERANCE_NANOS;
use crate::source::depth_message::DepthTransport;
use crate::source::{SourceDepth, SourceError};
use crate::time::Stamp;
use crate::wire::cdr;
use crate::wire::messages::sensor::CameraInfo;
use crate::wire::messages::{Header, Message};
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
    pub fn at(&mut self, at: Stamp) -> Option<SourceDepth> {
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
        let nearest = self.around.iter().flatten().min_by_key(distance);
        let (stamp, message) =
            nearest.filter(|nearest| distance(nearest) <= TOLERANCE_NANOS.unsigned_abs())?;
        let mut image = DepthImage::default();
        match self
            .transport
            .decode(&message.payload, &mut self.decoder, &mut image)
        {
            Ok(_) => Some(SourceDepth {
                stamp: *stamp,
                image,
            }),
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

/// The camera of the depth images of a camera whose images have `image_frame`: registered, if both have one frame.
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

//! Hidden pixels: they match nothing and enter no pointmap (docs/algorithm.md, Masks).

use super::device::DeviceError;
use crate::inference::ViewOutput;

/// Rejects a mask of another size than the `pixels` of the device's own, which is empty without `tracking.masks`.
pub fn check(device: &'static str, pixels: usize, used: &[u8]) -> Result<(), DeviceError> {
    match (pixels, used.len()) {
        (0, _) => Err(DeviceError::NoMasks),
        (expected, found) if expected != found => Err(DeviceError::Content {
            device,
            what: "a mask",
            expected,
            found,
        }),
        _ => Ok(()),
    }
}

/// Number of pixels that are not hidden.
pub fn count(used: &[u8]) -> usize {
    used.iter().filter(|used| **used != 0).count()
}

/// Makes hidden pixels unusable, whose number in `used` is 0.
pub fn hide(view: &mut ViewOutput, used: &[u8]) {
    hide_where(view, used.iter().map(|used| *used == 0));
}

/// Makes those pixels unusable that have no confidence in a keyframe.
pub fn hide_as_in(view: &mut ViewOutput, keyframe_confidence: &[f32]) {
    hide_where(
        view,
        keyframe_confidence.iter().map(|c| c.is_nan() || *c <= 0.0),
    );
}

/// A hidden pixel gets the values of one that the network gave no usable output for
/// ([`sanitise`](crate::inference::sanitise)).
fn hide_where(view: &mut ViewOutput, hidden: impl Iterator<Item = bool>) {
    let channels = view.descriptors.len() / view.confidence.len().max(1);
    let (points, _) = view.points.as_chunks_mut::<3>();
    let descriptors = view.descriptors.chunks_mut(channels.max(1));
    let confidences = view
        .confidence
        .iter_mut()
        .zip(&mut view.descriptor_confidence);
    let pixels = points.iter_mut().zip(descriptors).zip(confidences);
    for (((point, descriptor), (c, q)), hidden) in pixels.zip(hidden) {
        if hidden {
            *point = [0.0; 3];
            descriptor.fill(0.0);
            (*c, *q) = (0.0, 0.0);
        }
    }
}

//! Checks of the buffers passed to a backend.

use super::{InferenceError, NetworkShape, ViewOutput};
use crate::image::RgbImage;

/// Rejects an image that does not have the network's size.
pub(super) fn image(image: &RgbImage, shape: &NetworkShape) -> Result<(), InferenceError> {
    let size = (shape.width, shape.height);
    if (image.width, image.height) == size && image.data.len() == shape.pixels() * 3 {
        return Ok(());
    }
    Err(InferenceError::Shape {
        what: "image",
        expected: format!("{}x{} RGB", size.0, size.1),
        found: format!(
            "{}x{} with {} bytes",
            image.width,
            image.height,
            image.data.len()
        ),
    })
}

/// Rejects encoder tokens that are not `T × C`.
pub(super) fn features(features: &[f32], shape: &NetworkShape) -> Result<(), InferenceError> {
    values("features", shape.tokens * shape.feature_dim, features.len())
}

/// Rejects output buffers that do not have the network's size.
pub(super) fn view(view: &ViewOutput, shape: &NetworkShape) -> Result<(), InferenceError> {
    let n = shape.pixels();
    values("points", 3 * n, view.points.len())?;
    values("confidence", n, view.confidence.len())?;
    values(
        "descriptors",
        n * shape.descriptor_dim,
        view.descriptors.len(),
    )?;
    values("descriptor confidence", n, view.descriptor_confidence.len())
}

/// Rejects a wrong number of values.
pub(super) fn values(
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), InferenceError> {
    if expected == found {
        return Ok(());
    }
    Err(InferenceError::Shape {
        what,
        expected: format!("{expected} values"),
        found: format!("{found} values"),
    })
}

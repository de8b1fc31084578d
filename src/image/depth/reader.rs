//! Converts a sensor's depth images to the network's images.

use super::camera::DepthCamera;
use super::limits::{DepthLimits, PIXELS_PER_TASK};
use super::noise::Jumps;
use super::splat::Splat;
use super::{DepthError, DepthImage};
use crate::image::NetworkView;
use rayon::prelude::*;

/// Depth in the network's image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NetworkDepth<'a> {
    /// Depth of each pixel along z, metres; row by row; 0 where nothing was measured.
    pub metres: &'a [f32],
    /// Number of pixels that were measured.
    pub measured: usize,
}

/// Converts depth images of one sensor to the network's images.
///
/// Depth is never interpolated: a pixel of the network's image has the depth of the sensor's pixel at the same place. A
/// measurement outside the limits or at the edge of a surface becomes 0.
#[derive(Debug, Clone)]
pub struct DepthReader {
    view: NetworkView,
    limits: DepthLimits,
    way: Option<Way>,
    jumps: Jumps,
    /// The depth image without the pixels that are not used.
    kept: Vec<f32>,
    metres: Vec<f32>,
}

/// How pixels of a depth image find their place; made for the first image.
#[derive(Debug, Clone)]
enum Way {
    /// For each pixel of the network's image, the index in depth images of `size`, or [`OUTSIDE`].
    Registered {
        size: (usize, usize),
        places: Vec<u32>,
        /// Whether each pixel has its own.
        same: bool,
    },
    Own(Box<Splat>),
}

/// The index of what depth images do not show.
const OUTSIDE: u32 = u32::MAX;

impl Way {
    fn is_for(&self, camera: &DepthCamera, image: &DepthImage) -> bool {
        match (self, camera) {
            (Self::Registered { size, .. }, DepthCamera::Registered) => {
                *size == (image.width, image.height)
            }
            (Self::Own(splat), DepthCamera::Own(camera)) => splat.is_for(camera),
            _ => false,
        }
    }
}

impl DepthReader {
    /// A converter to the network images of `view`.
    pub fn new(view: NetworkView, limits: DepthLimits) -> Self {
        let (width, height) = view.size();
        Self {
            view,
            limits,
            way: None,
            jumps: Jumps::default(),
            kept: Vec::new(),
            metres: vec![0.0; width * height],
        }
    }

    /// Converts a depth image of `camera`. Allocates only for the first image, and when the camera or the image's size
    /// changes.
    ///
    /// # Errors
    /// An image that cannot be of this camera, a camera with impossible values, an image without measurements or with
    /// none within the limits. The reader can be used further.
    pub fn read(
        &mut self,
        image: &DepthImage,
        camera: &DepthCamera,
    ) -> Result<NetworkDepth<'_>, DepthError> {
        check(image)?;
        let made = self.way.take().filter(|way| way.is_for(camera, image));
        let way = match (made, camera) {
            (Some(way), _) => way,
            (None, DepthCamera::Registered) => registered(&self.view, (image.width, image.height))?,
            (None, DepthCamera::Own(camera)) => Way::Own(Box::new(Splat::new(
                &self.view,
                camera,
                (image.width, image.height),
            )?)),
        };
        let way = self.way.insert(way);
        let limits = self.limits.for_noise(self.jumps.median(image));
        match way {
            Way::Registered { same: true, .. } => limits.copy(image, &mut self.metres),
            Way::Registered { places, .. } => {
                let kept = limits.copied(image, &mut self.kept);
                let pixels = self.metres.par_iter_mut().zip(places.par_iter());
                pixels
                    .with_min_len(PIXELS_PER_TASK)
                    .for_each(|(out, place)| {
                        *out = kept.get(*place as usize).copied().unwrap_or(0.0)
                    });
            }
            Way::Own(splat) => {
                let kept = limits.copied(image, &mut self.kept);
                let size = (image.width, image.height);
                splat.run(kept, size, self.view.size(), &mut self.metres)?;
            }
        }
        let measured = self.metres.iter().filter(|z| **z > 0.0).count();
        if measured == 0 {
            limits.explain(image)?;
        }
        Ok(NetworkDepth {
            metres: &self.metres,
            measured,
        })
    }
}

fn check(image: &DepthImage) -> Result<(), DepthError> {
    let size = (image.width, image.height);
    let sides = 1..=crate::image::MAX_SIDE;
    if !sides.contains(&size.0) || !sides.contains(&size.1) {
        return Err(DepthError::Pixels { size });
    }
    let expected = size.0 * size.1;
    match image.metres.len() {
        found if found == expected => Ok(()),
        found => Err(DepthError::Bytes {
            size,
            what: "values in all,",
            expected,
            found,
        }),
    }
}

fn registered(view: &NetworkView, size: (usize, usize)) -> Result<Way, DepthError> {
    let camera = view.raw_size();
    let (sx, sy) = (
        size.0 as f64 / camera.0 as f64,
        size.1 as f64 / camera.1 as f64,
    );
    // One side determines the other, rounded to a pixel.
    let fits =
        |side: usize, scale: f64, other: usize| (side as f64 * scale - other as f64).abs() <= 0.5;
    if !fits(camera.1, sx, size.1) && !fits(camera.0, sy, size.0) {
        return Err(DepthError::Shape {
            camera,
            found: size,
        });
    }
    let (width, height) = view.size();
    let place = |k: usize| {
        let raw = view.raw_position((k % width) as f64, (k / width) as f64);
        let along = |at: f64, scale: f64, end: usize| {
            let at = ((at + 0.5) * scale - 0.5).round();
            // NaN fails the comparison.
            (at >= 0.0 && at < end as f64).then_some(at as usize)
        };
        let (u, v) = (along(raw.x, sx, size.0)?, along(raw.y, sy, size.1)?);
        u32::try_from(v * size.0 + u).ok()
    };
    let places: Vec<u32> = (0..width * height)
        .map(|k| place(k).unwrap_or(OUTSIDE))
        .collect();
    let own = |(k, place): (usize, &u32)| usize::try_from(*place) == Ok(k);
    Ok(Way::Registered {
        same: size == (width, height) && places.iter().enumerate().all(own),
        size,
        places,
    })
}

#[cfg(test)]
mod tests;

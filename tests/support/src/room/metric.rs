//! A network that sees the room in a wrong scale, another one in each pass.

use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput};

/// The network of `inner` with all points of pass `n` multiplied by `factor(n)`.
pub struct Misscaled {
    pub inner: Box<dyn Backend>,
    pub factor: fn(usize) -> f32,
    pub passes: usize,
}

impl Misscaled {
    /// No pass yet.
    pub fn new(inner: Box<dyn Backend>, factor: fn(usize) -> f32) -> Self {
        Self {
            inner,
            factor,
            passes: 0,
        }
    }
}

impl Backend for Misscaled {
    fn shape(&self) -> &NetworkShape {
        self.inner.shape()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self::new(self.inner.share(), self.factor))
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        self.inner.encode(image, features)
    }

    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        self.inner.decode(a, b, out)?;
        let factor = (self.factor)(self.passes);
        self.passes += 1;
        for view in [&mut out.view1, &mut out.view2] {
            view.points.iter_mut().for_each(|p| *p *= factor);
        }
        Ok(())
    }
}

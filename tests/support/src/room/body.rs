//! A robot in the room that sees itself: its body moves with the camera.

use super::{SIZE, intrinsics};
use mast3r_slam::image::RgbImage;
use mast3r_slam::image::encoding::{Encoding, RawImage};
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput, ViewOutput};

/// The body fills the image from this row on.
pub const BODY: usize = SIZE.1 / 2;
/// The room, seen by a robot whose body fills a half of the image.
pub struct Body(pub Box<dyn Backend>);

/// A plate 0.4 m before the camera, with a pattern of its own.
fn cover(view: &mut ViewOutput) {
    let camera = intrinsics(SIZE);
    let channels = view.descriptors.len() / view.confidence.len();
    for n in BODY * SIZE.0..SIZE.0 * SIZE.1 {
        let (u, v) = ((n % SIZE.0) as f64, (n / SIZE.0) as f64);
        let p = camera.ray(u, v) * 0.4;
        for (to, from) in view.points[3 * n..3 * n + 3].iter_mut().zip(p.iter()) {
            *to = *from as f32;
        }
        let descriptor = &mut view.descriptors[channels * n..channels * (n + 1)];
        descriptor.fill(0.0);
        let waves = [
            (0.2 * u).cos(),
            (0.2 * u).sin(),
            (0.2 * v).cos(),
            (0.2 * v).sin(),
        ];
        for (to, from) in descriptor.iter_mut().zip(waves) {
            *to = (from / 2.0_f64.sqrt()) as f32;
        }
    }
}

impl Backend for Body {
    fn shape(&self) -> &NetworkShape {
        self.0.shape()
    }
    fn name(&self) -> String {
        self.0.name()
    }
    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self(self.0.share()))
    }
    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        self.0.encode(image, features)
    }
    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        self.0.decode(a, b, out)?;
        cover(&mut out.view1);
        cover(&mut out.view2);
        Ok(())
    }
}

/// Black where the body is.
pub fn mask() -> Vec<u8> {
    let used = |n| u8::from(n < BODY * SIZE.0) * 255;
    (0..SIZE.0 * SIZE.1).map(used).collect()
}

/// `data` as a grey image.
pub fn grey(data: &[u8], (width, height): (usize, usize)) -> RawImage<'_> {
    RawImage {
        width,
        height,
        encoding: Encoding::Mono8,
        stride: width,
        data,
    }
}

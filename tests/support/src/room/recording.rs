//! A network that allocates nothing: it plays what the room's said before.

use super::RoomBackend;
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput, ViewOutput};
use std::sync::Arc;

/// Plays what the room's network would say of frame `k` and keyframe 0.
#[derive(Clone)]
pub struct Recording {
    shape: NetworkShape,
    outputs: Arc<Vec<PairOutput>>,
    frame: usize,
}

impl Recording {
    /// Records every frame of the room's walk paired with the first. Byte 0 of its image identifies a frame.
    pub fn of(mut room: RoomBackend) -> Self {
        let shape = room.shape().clone();
        let features: Vec<Vec<f32>> = (0..room.frames())
            .map(|k| {
                let mut features = vec![0.0; shape.tokens * shape.feature_dim];
                let image = room.image(k);
                room.encode(&image, &mut features).expect("encode");
                features
            })
            .collect();
        let outputs = features
            .iter()
            .map(|frame| {
                let mut out = PairOutput::zeros(&shape);
                room.decode(frame, &features[0], &mut out).expect("decode");
                out
            })
            .collect();
        Self {
            shape,
            outputs: Arc::new(outputs),
            frame: 0,
        }
    }
}

impl Backend for Recording {
    fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    fn name(&self) -> String {
        "recording".into()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            shape: self.shape.clone(),
            outputs: Arc::clone(&self.outputs),
            frame: 0,
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        self.frame = usize::from(image.data[0]);
        features.fill(0.0);
        Ok(())
    }

    fn decode(&mut self, _: &[f32], _: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        let copy = |from: &ViewOutput, to: &mut ViewOutput| {
            to.points.copy_from_slice(&from.points);
            to.confidence.copy_from_slice(&from.confidence);
            to.descriptors.copy_from_slice(&from.descriptors);
            to.descriptor_confidence
                .copy_from_slice(&from.descriptor_confidence);
        };
        let from = &self.outputs[self.frame];
        copy(&from.view1, &mut out.view1);
        copy(&from.view2, &mut out.view2);
        Ok(())
    }
}

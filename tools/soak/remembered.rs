//! A network whose outputs are kept in a folder, so that a walk along a known way runs it only once: what takes minutes
//! on a CPU the first time takes seconds with other settings.

use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput, ViewOutput};
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// Keeps the outputs of `network` in `folder`, by the hash of its inputs. The folder must be of one network and size.
pub struct Remembered {
    pub network: Box<dyn Backend>,
    pub folder: PathBuf,
}

impl Remembered {
    /// Fills `buffers` from the file of `inputs`, or with `compute`, whose result is written to it.
    fn recall(
        &mut self,
        what: &str,
        inputs: &[&[u8]],
        compute: impl FnOnce(&mut dyn Backend) -> Result<Vec<f32>, InferenceError>,
    ) -> Result<Vec<f32>, InferenceError> {
        let mut hash = Sha256::new();
        for input in inputs {
            hash.update(input);
        }
        let digest = hash.finalize();
        let name: String = digest[..12].iter().map(|b| format!("{b:02x}")).collect();
        let path = self.folder.join(format!("{what}-{name}"));
        if let Ok(bytes) = std::fs::read(&path) {
            let (values, _) = bytes.as_chunks::<4>();
            return Ok(values.iter().map(|v| f32::from_le_bytes(*v)).collect());
        }
        let values = compute(self.network.as_mut())?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let written = std::fs::write(&path, bytes);
        written.map_err(|e| InferenceError::Runtime {
            runtime: "the folder of remembered outputs",
            doing: "writing",
            message: format!("{}: {e}", path.display()),
        })?;
        Ok(values)
    }

    fn pair(
        &mut self,
        what: &str,
        inputs: [&[f32]; 2],
        out: &mut PairOutput,
        decode: impl FnOnce(&mut dyn Backend, &mut PairOutput) -> Result<(), InferenceError>,
    ) -> Result<(), InferenceError> {
        let bytes = inputs.map(|v| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
        let values = self.recall(what, &[&bytes[0], &bytes[1]], |network| {
            decode(network, out)?;
            let views = [&out.view1, &out.view2];
            Ok(views.iter().flat_map(|view| parts(view).concat()).collect())
        })?;
        let mut values = values.as_slice();
        for view in [&mut out.view1, &mut out.view2] {
            for part in [
                &mut view.points,
                &mut view.confidence,
                &mut view.descriptors,
                &mut view.descriptor_confidence,
            ] {
                let (head, rest) = values.split_at(part.len());
                part.copy_from_slice(head);
                values = rest;
            }
        }
        Ok(())
    }
}

fn parts(view: &ViewOutput) -> [&[f32]; 4] {
    [
        &view.points,
        &view.confidence,
        &view.descriptors,
        &view.descriptor_confidence,
    ]
}

impl Backend for Remembered {
    fn shape(&self) -> &NetworkShape {
        self.network.shape()
    }
    fn name(&self) -> String {
        format!("{}, remembered", self.network.name())
    }
    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            network: self.network.share(),
            folder: self.folder.clone(),
        })
    }
    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        let len = features.len();
        let values = self.recall("encoded", &[&image.data], |network| {
            let mut values = vec![0.0; len];
            network.encode(image, &mut values)?;
            Ok(values)
        })?;
        features.copy_from_slice(&values);
        Ok(())
    }
    fn decode(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.pair("pair", [features1, features2], out, |network, out| {
            network.decode(features1, features2, out)
        })
    }
    fn decode_view1(
        &mut self,
        features1: &[f32],
        features2: &[f32],
        out: &mut PairOutput,
    ) -> Result<(), InferenceError> {
        self.pair("single", [features1, features2], out, |network, out| {
            network.decode_view1(features1, features2, out)
        })
    }
}

//! Device memory for callers on the host.

use super::{DeviceView, NetworkShape, ViewOutput, normalise};
use crate::gpu::plan::Group;
use crate::gpu::{Carving, Context, CudaError, DeviceBuffer, Priority, Stream};
use crate::image::RgbImage;
use std::sync::Arc;

/// Inputs, outputs and a workspace in one allocation, and a stream.
pub(super) struct HostPath {
    pub(super) stream: Stream,
    pub(super) workspace: Arc<DeviceBuffer<u8>>,
    pub(super) planes: DeviceBuffer<f32>,
    pub(super) features: [DeviceBuffer<f32>; 2],
    /// Points, confidence, descriptors, their confidence of either view.
    views: [[DeviceBuffer<f32>; 4]; 2],
    /// The image as the encoder takes it, `3 × H × W`.
    normalised: Vec<f32>,
}

impl HostPath {
    /// With `workspace` bytes for the runs.
    pub(super) fn new(
        gpu: &Context,
        shape: &NetworkShape,
        workspace: usize,
    ) -> Result<Self, CudaError> {
        let (n, tokens) = (shape.pixels(), shape.tokens * shape.feature_dim);
        let dim = shape.descriptor_dim;
        let carve = |carving: &mut Carving<'_>| {
            let mut part = carving.part(Group::Network, "calls from the host");
            let planes = part.device("image", &[3, n])?;
            let features = [
                part.device("features", &[tokens])?,
                part.device("features", &[tokens])?,
            ];
            let [a, b] = ["view 1", "view 2"].map(|name| {
                let mut part = part.part(name);
                Ok::<_, CudaError>([
                    part.device("points", &[n, 3])?,
                    part.device("confidence", &[n])?,
                    part.device("descriptors", &[n, dim])?,
                    part.device("descriptor confidence", &[n])?,
                ])
            });
            // The address of nothing would mean that none was given.
            let workspace = part.device("workspace", &[workspace.max(1)])?;
            Ok::<_, CudaError>((planes, features, [a?, b?], workspace))
        };
        let mut paper = Carving::on_paper();
        carve(&mut paper)?;
        let plan = paper.into_plan();
        let (planes, features, views, workspace) = carve(&mut Carving::planned(gpu, &plan)?)?;
        Ok(Self {
            stream: gpu.stream(Priority::Low)?,
            workspace: Arc::new(workspace),
            planes,
            features,
            views,
            normalised: vec![0.0; 3 * n],
        })
    }

    /// Sends an image to `planes`.
    pub(super) fn send_image(&mut self, image: &RgbImage) -> Result<(), CudaError> {
        normalise(image, &mut self.normalised);
        self.stream.write(&self.normalised, self.planes.all())
    }

    /// Outputs of a view.
    pub(super) fn view(&self, which: usize) -> DeviceView<'_> {
        let [points, confidence, descriptors, descriptor_confidence] =
            self.views[which % 2].each_ref().map(DeviceBuffer::all);
        DeviceView {
            points,
            confidence,
            descriptors,
            descriptor_confidence,
            unusable: None,
        }
    }

    /// Copies a view's outputs to the host and waits for them.
    pub(super) fn read_view(&self, which: usize, out: &mut ViewOutput) -> Result<(), CudaError> {
        let parts = [
            &mut out.points,
            &mut out.confidence,
            &mut out.descriptors,
            &mut out.descriptor_confidence,
        ];
        for (part, slice) in parts.into_iter().zip(self.view(which).slices()) {
            self.stream.read(slice, part)?;
        }
        Ok(())
    }
}

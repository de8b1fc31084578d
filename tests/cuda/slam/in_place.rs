//! The room's network as one that computes in the GPU's memory.

use mast3r_slam::gpu::{Context, DeviceSlice, Floats, Priority, Stream};
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::{
    Backend, DeviceBackend, DeviceView, InferenceError, NetworkShape, PairOutput, ViewOutput,
};

/// Brings the input to the host and the room's output back. What is enqueued elsewhere is waited for,
/// so that it is in order.
pub struct InPlace {
    room: Box<dyn Backend>,
    context: Context,
    stream: Stream,
    /// Whether it encodes beside other work.
    beside: bool,
}

impl InPlace {
    pub fn new(context: &Context, room: Box<dyn Backend>) -> Self {
        Self {
            room,
            context: context.clone(),
            stream: context.stream(Priority::Low).expect("stream"),
            beside: false,
        }
    }

    /// One that encodes the next image while a frame is tracked.
    pub fn beside(context: &Context, room: Box<dyn Backend>) -> Self {
        Self {
            beside: true,
            ..Self::new(context, room)
        }
    }

    fn read(&self, slice: DeviceSlice<'_, f32>) -> Vec<f32> {
        self.stream.read_vec(slice).expect("read")
    }

    fn write(&self, values: &[f32], slice: DeviceSlice<'_, f32>) {
        self.stream.write(values, slice).expect("as many values");
    }

    fn write_view(&self, from: &ViewOutput, to: DeviceView<'_>) {
        self.write(&from.points, to.points);
        self.write(&from.confidence, to.confidence);
        self.write(&from.descriptors, to.descriptors);
        self.write(&from.descriptor_confidence, to.descriptor_confidence);
    }
}

impl Backend for InPlace {
    fn shape(&self) -> &NetworkShape {
        self.room.shape()
    }

    fn name(&self) -> String {
        "room in place".into()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            beside: self.beside,
            ..Self::new(&self.context, self.room.share())
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        self.room.encode(image, features)
    }

    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        self.room.decode(a, b, out)
    }

    fn device(&mut self) -> Option<&mut dyn DeviceBackend> {
        Some(self)
    }
}

impl DeviceBackend for InPlace {
    fn encoder_workspace_bytes(&mut self) -> Result<Option<usize>, InferenceError> {
        Ok(self.beside.then_some(256))
    }

    fn enqueue_encode(
        &mut self,
        _: &Stream,
        planes: DeviceSlice<'_, f32>,
        features: Floats<'_>,
    ) -> Result<(), InferenceError> {
        self.context.synchronize().expect("waited");
        let values = self.read(planes);
        let shape = self.room.shape().clone();
        let mut image = RgbImage::new(shape.width, shape.height);
        // `byte / 127.5 − 1`, channels first.
        let pixels = shape.pixels();
        for (k, byte) in image.data.iter_mut().enumerate() {
            let value = values[k % 3 * pixels + k / 3];
            *byte = ((value + 1.0) * 127.5).round() as u8;
        }
        let mut tokens = vec![0.0; shape.tokens * shape.feature_dim];
        self.room.encode(&image, &mut tokens)?;
        self.write(&tokens, single(features));
        Ok(())
    }

    fn enqueue_decode(
        &mut self,
        _: &Stream,
        features: [Floats<'_>; 2],
        views: [DeviceView<'_>; 2],
    ) -> Result<(), InferenceError> {
        self.context.synchronize().expect("waited");
        let [a, b] = features.map(|tokens| self.read(single(tokens)));
        let mut out = PairOutput::zeros(self.room.shape());
        self.room.decode(&a, &b, &mut out)?;
        self.write_view(&out.view1, views[0]);
        self.write_view(&out.view2, views[1]);
        Ok(())
    }
}

/// It takes no others.
fn single(tokens: Floats<'_>) -> DeviceSlice<'_, f32> {
    match tokens {
        Floats::F32(tokens) => tokens,
        Floats::F16(_) => panic!("tokens in half precision"),
    }
}

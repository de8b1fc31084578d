//! Preprocessing against the CPU, bit for bit.

use super::matching::microseconds;
use crate::{assert_same, assert_same_bits, cuda};
use half::f16;
use mast3r_slam::compute::cuda::preprocess::{
    DevicePreprocessor, NetworkImage, PreprocessorBuffers,
};
use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::gpu::{Context, DeviceBuffer, Priority, Stream};
use mast3r_slam::image::encoding::{Encoding, RawImage};
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};

/// Ramps, noise and hard edges, in any encoding: bytes.
fn raw_bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len)
        .map(|i| match i / 997 % 3 {
            0 => (i * 7 + i / 640) as u8,
            1 => noise(),
            _ => ((i / 5) & 1) as u8 * 255,
        })
        .collect()
}

fn lens(width: usize, height: usize, distortion: Distortion) -> Calibration {
    Calibration {
        width,
        height,
        intrinsics: Intrinsics {
            fx: 0.81 * width as f64,
            fy: 0.807 * width as f64,
            cx: 0.498 * width as f64,
            cy: 0.531 * height as f64,
        },
        distortion,
    }
}

struct Made {
    image: Vec<u8>,
    planes: Vec<f32>,
    half_planes: Vec<f16>,
}

fn on_cpu(cpu: &mut Preprocessor, raw: &RawImage<'_>) -> Made {
    let (mut rgb, mut image) = (RgbImage::default(), RgbImage::default());
    raw.to_rgb(&mut rgb).unwrap();
    cpu.run(&rgb, &mut image).unwrap();
    // As the CPU backend feeds its encoder.
    let level = |c: usize| {
        let bytes = image.data.iter().skip(c).step_by(3);
        bytes.map(|&b| f32::from(b) / 127.5 - 1.0)
    };
    let planes: Vec<f32> = (0..3).flat_map(level).collect();
    Made {
        half_planes: planes.iter().map(|&v| f16::from_f32(v)).collect(),
        planes,
        image: image.data,
    }
}

struct Device {
    preprocessor: DevicePreprocessor,
    raw: DeviceBuffer<u8>,
    image: DeviceBuffer<u8>,
    planes: DeviceBuffer<f32>,
    half_planes: DeviceBuffer<f16>,
}

impl Device {
    fn new(
        context: &Context,
        stream: &Stream,
        cpu: &Preprocessor,
        encoding: Encoding,
        stride: usize,
    ) -> Self {
        let (width, height) = cpu.output_size();
        let n = 3 * width * height;
        let (raw_width, raw_height) = cpu.input_size();
        let raw_bytes = encoding.bytes(raw_width, raw_height, stride).unwrap();
        let tables = crate::carve(context, |c| PreprocessorBuffers::carve(c, cpu));
        let made = DevicePreprocessor::new(context, stream, tables, cpu, encoding, stride);
        Self {
            preprocessor: made.unwrap(),
            raw: crate::buffer(context, raw_bytes),
            image: crate::buffer(context, n),
            planes: crate::buffer(context, n),
            half_planes: crate::buffer(context, n),
        }
    }

    fn out(&self) -> NetworkImage<'_> {
        NetworkImage {
            image: Some(self.image.all()),
            planes: Some(self.planes.all()),
            half_planes: Some(self.half_planes.all()),
        }
    }
}

fn check(
    context: &Context,
    stream: &Stream,
    what: &str,
    cpu: &mut Preprocessor,
    encoding: Encoding,
    pad: usize,
) {
    let (width, height) = cpu.input_size();
    let stride = encoding.row_bytes(width) + pad;
    let data = raw_bytes(encoding.bytes(width, height, stride).unwrap(), 7);
    let raw = RawImage {
        encoding,
        width,
        height,
        stride,
        data: &data,
    };
    let expected = on_cpu(cpu, &raw);
    let n = expected.image.len();
    let device = Device::new(context, stream, cpu, encoding, stride);
    assert_eq!(device.preprocessor.output_size(), cpu.output_size());
    assert_eq!(device.image.len(), n);
    stream.write(&data, device.raw.all()).unwrap();
    stream.fill(device.image.all(), 0xee).unwrap();
    stream.fill(device.planes.all(), 0xee).unwrap();
    stream.fill(device.half_planes.all(), 0xee).unwrap();
    let raw = device.raw.all();
    device
        .preprocessor
        .enqueue(stream, raw, &device.out())
        .unwrap();
    let found = stream.read_vec(device.image.all()).unwrap();
    assert_same(&format!("{what}: image"), &found, &expected.image);
    let found = stream.read_vec(device.planes.all()).unwrap();
    assert_same_bits(&format!("{what}: planes"), &found, &expected.planes);
    let found = stream.read_vec(device.half_planes.all()).unwrap();
    let bits = |v: &[f16]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_same(
        &format!("{what}: f16"),
        &bits(&found),
        &bits(&expected.half_planes),
    );
}

/// Raw width, height and the network's long side: the table of docs/algorithm.md, both filters, enlarging,
/// kept axes, and a reduction whose rows need several fillings of shared memory.
const SIZES: [(usize, usize, usize); 17] = [
    (640, 480, 512),
    (752, 480, 512),
    (739, 458, 512),
    (1280, 720, 512),
    (1920, 1080, 512),
    (640, 360, 512),
    (848, 480, 512),
    (480, 640, 512),
    (512, 512, 512),
    (700, 700, 512),
    (512, 384, 512),
    (512, 384, 256),
    (320, 240, 512),
    (101, 67, 256),
    (512, 300, 512),
    (37, 23, 64),
    (6000, 1000, 224),
];

#[test]
fn every_size_equals_the_cpu_in_grey_and_colour() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    for (width, height, size) in SIZES {
        let options = PreprocessOptions::default();
        let mut cpu = Preprocessor::new(width, height, size, None, options).unwrap();
        for encoding in [Encoding::Rgb8, Encoding::Mono8] {
            let what = format!("{width}×{height} to {size}, {encoding:?}");
            check(context, &stream, &what, &mut cpu, encoding, 0);
        }
    }
}

#[test]
fn every_encoding_equals_the_cpu_with_and_without_a_lens() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let distortion = Distortion::PlumbBob([-0.2834, 0.0739, 0.00019, 1.7e-5, 0.0]);
    for encoding in Encoding::ALL {
        for calibrated in [false, true] {
            for pad in [0, 3] {
                let (width, height) = (330, 246);
                let camera = calibrated.then(|| lens(width, height, distortion));
                let options = PreprocessOptions::default();
                let mut cpu =
                    Preprocessor::new(width, height, 256, camera.as_ref(), options).unwrap();
                assert_eq!(cpu.undistorts(), calibrated);
                let what = format!("{encoding:?}, calibrated {calibrated}, {pad} bytes a row more");
                check(context, &stream, &what, &mut cpu, encoding, pad);
            }
        }
    }
}

#[test]
fn every_lens_equals_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    for distortion in [
        Distortion::None,
        Distortion::PlumbBob([0.2624, -0.9531, -0.0054, 0.0026, 1.1633]),
        Distortion::Rational([0.3, 0.05, 1e-4, -2e-4, 0.002, 0.5, 0.1, 0.01]),
        Distortion::Equidistant([-0.013, 0.021, -0.016, 0.004]),
    ] {
        for center_principal_point in [false, true] {
            let camera = lens(640, 480, distortion);
            let options = PreprocessOptions {
                center_principal_point,
                ..PreprocessOptions::default()
            };
            let mut cpu = Preprocessor::new(640, 480, 512, Some(&camera), options).unwrap();
            let what = format!("{distortion:?}, centred {center_principal_point}");
            check(context, &stream, &what, &mut cpu, Encoding::Bgr8, 0);
        }
    }
}

#[test]
fn the_time_of_preprocessing() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let distortion = Distortion::PlumbBob([-0.2834, 0.0739, 0.00019, 1.7e-5, 0.0]);
    for (width, height, encoding, calibrated) in [
        (1920, 1080, Encoding::Nv12, false),
        (1920, 1080, Encoding::Nv12, true),
        (1920, 1080, Encoding::BayerRggb8, true),
        (640, 480, Encoding::Rgb8, false),
        (640, 480, Encoding::Rgb8, true),
    ] {
        let camera = calibrated.then(|| lens(width, height, distortion));
        let options = PreprocessOptions::default();
        let cpu = Preprocessor::new(width, height, 512, camera.as_ref(), options).unwrap();
        let stride = encoding.row_bytes(width);
        let data = raw_bytes(encoding.bytes(width, height, stride).unwrap(), 7);
        let device = Device::new(context, &stream, &cpu, encoding, stride);
        stream.write(&data, device.raw.all()).unwrap();
        let (raw, out) = (device.raw.all(), device.out());
        let time = microseconds(&stream, 50, || {
            device.preprocessor.enqueue(&stream, raw, &out)
        });
        println!(
            "time: preprocessing {width}×{height} {encoding:?}, undistorted {calibrated}: {time:.1} us"
        );
    }
}

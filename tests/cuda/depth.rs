//! The scale by measured depth against the CPU's.

use crate::cuda;
use mast3r_slam::compute::cuda::depth::{DepthMeter, DepthMeterBuffers, Found, MeasureTask};
use mast3r_slam::compute::depth::{self, DepthScale, NoScale};
use mast3r_slam::gpu::{Context, DeviceBuffer, Priority, Stream};
use testkit::matching_scene::Random;

/// Ratios that the CPU and the GPU round differently are a few ulps apart, and these add up in no direction.
const TOLERANCE: f64 = 1e-6;

struct Scene {
    name: &'static str,
    points: Vec<f32>,
    confidence: Vec<f32>,
    metres: Vec<f32>,
}

/// A surface seen in a wrong scale, and what a sensor makes of a pixel's depth.
fn scene(name: &'static str, n: usize, mut sensor: impl FnMut(usize, f32) -> f32) -> Scene {
    let depth = |n: usize| 2.0 + (n as f32 * 0.37).sin() + 0.01 * (n / 64) as f32;
    Scene {
        name,
        points: (0..n)
            .flat_map(|n| [0.3, -0.1, 1.0].map(|v| v * depth(n) / 1.3))
            .collect(),
        confidence: vec![1.5; n],
        metres: (0..n).map(|n| sensor(n, depth(n))).collect(),
    }
}

fn scenes(n: usize) -> Vec<Scene> {
    let mut random = Random(31);
    let mut noise = vec![0.0; n];
    noise.fill_with(|| random.signed() as f32);
    let mut scenes = vec![
        scene("exact", n, |_, z| z),
        scene("noise", n, |n, z| z * (1.0 + 0.05 * noise[n])),
        scene("outliers", n, |n, z| match n % 9 {
            0 => 40.0 * z,
            1 => 1.4 * z,
            _ => z * (1.0 + 0.01 * noise[n]),
        }),
        scene("3 % of the pixels", n, |n, z| match noise[n].abs() < 0.03 {
            true => z,
            false => 0.0,
        }),
        scene("millimetres", n, |_, z| 1000.0 * z),
        scene("another scene", n, |n, _| 0.1 + 9.0 * noise[n].abs()),
        scene("no depth", n, |_, _| 0.0),
        scene("not finite", n, |n, z| match n % 4 {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => -z,
            _ => z,
        }),
        // Ratios of both signs, and quotients that overflow or vanish.
        scene("extremes", n, |n, z| match n % 3 {
            0 => f32::MAX,
            1 => f32::MIN_POSITIVE / 8.0,
            _ => z,
        }),
        scene("smaller", n, |n, z| z * (0.3 + 0.01 * noise[n])),
    ];
    let mut bad = scene("unusable points", n, |_, z| z);
    for (k, p) in bad.points.iter_mut().enumerate() {
        match k % 15 {
            2 => *p = 0.0,
            5 => *p = -*p,
            8 => *p = f32::MIN_POSITIVE / 4.0,
            _ => {}
        }
    }
    for (k, c) in bad.confidence.iter_mut().enumerate() {
        match k % 7 {
            0 => *c = 0.0,
            1 => *c = f32::NAN,
            _ => {}
        }
    }
    scenes.push(bad);
    scenes
}

struct OnDevice {
    meter: DepthMeter,
    points: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f32>,
    metres: DeviceBuffer<f32>,
    used: DeviceBuffer<u32>,
    found: DeviceBuffer<Found>,
}

impl OnDevice {
    fn new(context: &Context, stream: &Stream, width: usize, height: usize) -> Self {
        let n = width * height;
        let buffers = crate::carve(context, |c| DepthMeterBuffers::carve(c, width, height));
        let found = crate::buffer(context, 1);
        stream.write(&[Found::unscaled()], found.all()).unwrap();
        Self {
            meter: DepthMeter::new(context, stream, buffers, width, height).unwrap(),
            points: crate::buffer(context, 3 * n),
            confidence: crate::buffer(context, n),
            metres: crate::buffer(context, n),
            used: crate::buffer(context, 1),
            found,
        }
    }

    fn measure(&self, stream: &Stream, scene: &Scene, used: Option<u32>) -> Found {
        stream.write(&scene.points, self.points.all()).unwrap();
        let confidence = self.confidence.all();
        stream.write(&scene.confidence, confidence).unwrap();
        stream.write(&scene.metres, self.metres.all()).unwrap();
        stream.write(&[used.unwrap_or(0)], self.used.all()).unwrap();
        let task = MeasureTask {
            points: self.points.all(),
            confidence,
            metres: self.metres.all(),
            used: used.map(|_| self.used.all()),
            found: self.found.all(),
        };
        self.meter.measure(stream, &task).unwrap();
        let mut found = [Found::default()];
        stream.read(self.found.all(), &mut found).unwrap();
        found[0]
    }
}

fn assert_same(what: &str, found: Result<DepthScale, NoScale>, cpu: Result<DepthScale, NoScale>) {
    let near = |a: f64, b: f64| (a - b).abs() <= TOLERANCE * b.abs().max(1.0);
    let same = match (&found, &cpu) {
        (Ok(a), Ok(b)) => near(a.log_scale, b.log_scale) && near(a.sigma, b.sigma),
        (Err(NoScale::Few { found: a }), Err(NoScale::Few { found: b })) => a == b,
        (Err(NoScale::Scattered { mad: a }), Err(NoScale::Scattered { mad: b })) => near(*a, *b),
        (Err(NoScale::Unit { factor: a }), Err(NoScale::Unit { factor: b })) => near(*a, *b),
        _ => false,
    };
    assert!(same, "{what}: {found:?}, CPU {cpu:?}");
}

#[test]
fn scales_equal_the_cpu_s_and_two_runs_have_the_same_bits() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    // Parts of patches at the edges, images of one pixel and of more columns than are counted apart.
    for (width, height) in [(1, 1), (7, 9), (64, 48), (252, 189), (512, 384), (4200, 20)] {
        let n = width * height;
        let device = OnDevice::new(context, &stream, width, height);
        let mut factor = 1.0;
        let mut meter = depth::DepthMeter::new(n);
        for scene in scenes(n) {
            let what = format!("{width}x{height}, {}", scene.name);
            let (points, confidence) = (&scene.points, &scene.confidence);
            let cpu = meter.measure(points, confidence, &scene.metres, width);
            let found = device.measure(&stream, &scene, None);
            assert_same(&what, found.scale(n), cpu);
            if let Ok(scale) = cpu {
                factor = scale.log_scale.exp();
            }
            let off = f64::from(found.factor()) / factor - 1.0;
            assert!(off.abs() < TOLERANCE, "{what}: factor off by {off}");
            let again = device.measure(&stream, &scene, Some(1));
            assert_eq!(found, again, "{what}");
            // A frame without depth changes nothing, whatever the memory holds.
            let millimetres = scenes(n).swap_remove(4);
            assert_eq!(
                device.measure(&stream, &millimetres, Some(0)),
                found,
                "{what}"
            );
        }
    }
}

#[test]
fn points_are_rescaled_by_the_newest_scale_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    let (width, height) = (33, 31);
    let n = width * height;
    let device = OnDevice::new(context, &stream, width, height);
    let other = crate::buffer::<f32>(context, 3 * n);
    let seen = scene("seen", n, |_, z| z);
    let read = |buffer: &DeviceBuffer<f32>| stream.read_vec(buffer.all()).unwrap();
    let rescale = |second: bool| {
        stream.write(&seen.points, device.points.all()).unwrap();
        stream.write(&seen.points, other.all()).unwrap();
        let second = second.then(|| other.all());
        let (points, found) = (device.points.all(), device.found.all());
        device
            .meter
            .rescale(&stream, points, second, found)
            .unwrap();
    };
    rescale(true);
    crate::assert_same_bits("before a measurement", &read(&device.points), &seen.points);
    let factor = device.measure(&stream, &seen, None).factor();
    assert!((factor - 1.3).abs() < 1e-5, "{factor}");
    let mut expected = seen.points.clone();
    depth::rescale(&mut expected, factor);
    for second in [false, true] {
        rescale(second);
        crate::assert_same_bits("first", &read(&device.points), &expected);
        let of_other = if second { &expected } else { &seen.points };
        crate::assert_same_bits("second", &read(&other), of_other);
    }
    let short = device.points.slice(0..3 * n - 1).unwrap();
    let found = device.found.all();
    assert!(device.meter.rescale(&stream, short, None, found).is_err());
}

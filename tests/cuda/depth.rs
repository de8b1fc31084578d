//! The scale by measured depth against the CPU's.

use crate::cuda;
use mast3r_slam::compute::cuda::depth::field::{DepthField, DepthFieldBuffers};
use mast3r_slam::compute::cuda::depth::{DepthMeter, DepthMeterBuffers, Found, MeasureTask};
use mast3r_slam::compute::depth::{self, DepthScale, NoScale, Trust};
use mast3r_slam::geometry::Intrinsics;
use mast3r_slam::gpu::{Context, DeviceBuffer, Priority, Stream};
use testkit::matching_scene::Random;

/// The ratios and their sums are integers; what is computed from them is rounded to f32.
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

    /// `trust`: that in the sensor before.
    fn measure(&self, stream: &Stream, scene: &Scene, used: Option<u32>, trust: Trust) -> Found {
        self.measure_with(stream, scene, used, trust, None)
    }

    /// The same, with a field that is fitted.
    fn measure_with(
        &self,
        stream: &Stream,
        scene: &Scene,
        used: Option<u32>,
        trust: Trust,
        field: Option<&DepthField>,
    ) -> Found {
        let mut found = [Found::default()];
        stream.read(self.found.all(), &mut found).unwrap();
        let before = found.map(|found| found.trusted(trust));
        stream.write(&before, self.found.all()).unwrap();
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
        self.meter.measure(stream, &task, field).unwrap();
        stream.read(self.found.all(), &mut found).unwrap();
        found[0]
    }
}

fn assert_same(what: &str, found: Result<DepthScale, NoScale>, cpu: Result<DepthScale, NoScale>) {
    let near = |a: f64, b: f64| (a - b).abs() <= TOLERANCE * b.abs().max(1.0);
    let same = match (&found, &cpu) {
        (Ok(a), Ok(b)) => near(a.log_scale, b.log_scale) && near(a.sigma, b.sigma),
        (Err(NoScale::Few { found: a }), Err(NoScale::Few { found: b })) => a == b,
        (
            Err(NoScale::Scattered { mad: a, max: c }),
            Err(NoScale::Scattered { mad: b, max: d }),
        ) => near(*a, *b) && c == d,
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
            for agreed in [0, 9, 10, 100] {
                let before = Trust::after(agreed);
                let mut trust = before;
                let cpu = meter.measure(points, confidence, &scene.metres, width, &mut trust);
                let found = device.measure(&stream, &scene, None, before);
                assert_same(&what, found.scale(n), cpu);
                assert_eq!(found.is_accepted(), cpu.is_ok(), "{what}");
                assert_eq!(found.trust(), trust, "{what}");
                if let Ok(scale) = cpu {
                    factor = scale.log_scale.exp();
                }
            }
            let unknown = Trust::default();
            let cpu = meter.measure(
                points,
                confidence,
                &scene.metres,
                width,
                &mut unknown.clone(),
            );
            let found = device.measure(&stream, &scene, None, unknown);
            assert_same(&what, found.scale(n), cpu);
            if let Ok(scale) = cpu {
                factor = scale.log_scale.exp();
            }
            let off = f64::from(found.factor()) / factor - 1.0;
            assert!(off.abs() < TOLERANCE, "{what}: factor off by {off}");
            let again = device.measure(&stream, &scene, Some(1), unknown);
            assert_eq!(found, again, "{what}");
            assert_eq!(found.is_accepted(), cpu.is_ok(), "{what}");
            // A frame without depth changes no scale, whatever the memory holds.
            let millimetres = scenes(n).swap_remove(4);
            let without = device.measure(&stream, &millimetres, Some(0), unknown);
            assert_eq!(without.scale(n), found.scale(n), "{what}");
            assert_eq!(without.factor(), found.factor(), "{what}");
            assert!(!without.is_accepted(), "{what}");
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
    let factor = device
        .measure(&stream, &seen, None, Trust::default())
        .factor();
    // All ratios are rounded to whole steps alike, at most half of 1/4096.
    assert!((factor / 1.3 - 1.0).abs() < 1.3e-4, "{factor}");
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

/// Points of another view: some that the camera sees, some beside its image, behind it, and at it.
fn other_view(n: usize) -> Vec<f32> {
    let mut random = Random(7);
    let mut points = vec![0.0; 3 * n];
    points.fill_with(|| random.signed() as f32);
    for (k, p) in points.chunks_exact_mut(3).enumerate() {
        match k % 8 {
            0 => p.fill(0.0),
            1 => p[2] = -p[2].abs(),
            2 => p[0] = 1e6,
            3 => p[1] = -1e6,
            _ => p[2] = 1.0 + p[2].abs(),
        }
    }
    points
}

fn assert_near(what: &str, found: &[f32], cpu: &[f32]) {
    assert_eq!(found.len(), cpu.len(), "{what}");
    for (k, (a, b)) in found.iter().zip(cpu).enumerate() {
        let near = (a - b).abs() <= 2e-5 * b.abs().max(1e-3) || a.to_bits() == b.to_bits();
        assert!(
            near || (a.is_nan() && b.is_nan()),
            "{what}, {k}: {a}, CPU {b}"
        );
    }
}

#[test]
fn fields_and_corrected_points_equal_the_cpu_s() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    for (width, height) in [(1, 1), (7, 9), (64, 48), (189, 252), (512, 384), (4200, 20)] {
        let n = width * height;
        let device = OnDevice::new(context, &stream, width, height);
        let camera = Intrinsics {
            fx: 0.8 * width as f64,
            fy: 0.8 * width as f64,
            cx: 0.49 * width as f64,
            cy: 0.52 * height as f64,
        };
        let buffers = crate::carve(context, |c| DepthFieldBuffers::carve(c, width, height));
        let size = (width, height);
        let field = DepthField::new(context, &stream, buffers, size, (&camera, 1.7)).unwrap();
        let second = crate::buffer::<f32>(context, 3 * n);
        let mut meter = depth::DepthMeter::new(n);
        let mut expected = depth::field::DepthField::new(size, camera, 1.7);
        let mut factor = 1.0_f32;
        let mut scenes = scenes(n);
        // A bend over the whole image, and depth in one corner and in one pixel only.
        let row = |n: usize| (n / width) as f32 / height as f32;
        // Noise for every radius of a window, and gaps.
        let mut random = Random(7);
        for noise in [0.01, 0.02, 0.03, 0.05, 0.1] {
            scenes.push(scene("noise and gaps", n, |n, z| match n % 3 {
                0 => 0.0,
                _ => z * (1.0 + noise * random.signed() as f32),
            }));
        }
        // Bars that only the sensor sees, and single pixels between them.
        scenes.push(scene("bars", n, |n, z| match n % width % 20 {
            0..4 => 0.3,
            9 if (n / width).is_multiple_of(3) => 0.4,
            _ => z * (1.0 + 0.01 * random.signed() as f32),
        }));
        // An object in front of something, with no depth where they meet.
        scenes.push(scene("edges", n, |n, z| match n % width % 30 {
            0..8 => 0.5 * z,
            8..10 => 0.0,
            10..12 => 1.5 * z,
            _ => z * (1.0 + 0.01 * random.signed() as f32),
        }));
        scenes.push(scene("bent", n, |n, z| z * (1.0 + 0.2 * row(n))));
        let corner = |n: usize| n % width < width / 4 && row(n) < 0.25;
        scenes.push(scene(
            "corner",
            n,
            |n, z| if corner(n) { 1.1 * z } else { 0.0 },
        ));
        scenes.push(scene(
            "one pixel",
            n,
            |n, z| if n == 0 { 1.1 * z } else { 0.0 },
        ));
        for (k, scene) in scenes.iter().enumerate() {
            let what = format!("{width}x{height}, {}", scene.name);
            let (points, confidence) = (&scene.points, &scene.confidence);
            // Surfaces count for a sensor that has agreed for long.
            let agreed = [100, 100, 9, 0][k % 4];
            let trust = Trust::after(agreed);
            let metres = &mut scene.metres.clone();
            let mut after = trust;
            let cpu = meter.measure(points, confidence, metres, width, &mut after);
            if let Ok(scale) = cpu {
                factor = scale.log_scale.exp() as f32;
                expected.fit(points, meter.keys(), (scale.log_scale, meter.mad()), metres);
            }
            // Every other time the frame says whether it has depth.
            let used = (k % 2 == 0).then_some(1);
            let fit = || device.measure_with(&stream, scene, used, trust, Some(&field));
            let found = fit();
            assert_eq!(found.of_pixels(), expected.of_pixels(), "{what}");
            let values = stream.read_vec(field.values()).unwrap();
            for (a, b) in values.iter().zip(expected.values()) {
                assert!((a - b).abs() < 1e-5, "{what}: {a}, CPU {b}");
            }
            assert_eq!(fit(), found, "{what}");
            let again = stream.read_vec(field.values()).unwrap();
            crate::assert_same_bits(&what, &again, &values);
            let read = |buffer: &DeviceBuffer<f32>| stream.read_vec(buffer.all()).unwrap();
            assert_near(&what, &read(&device.metres), metres);

            let mut own = points.clone();
            let mut other = other_view(n);
            stream.write(&other, second.all()).unwrap();
            let apply = |other| {
                let found = device.found.all();
                field.apply(&stream, device.points.all(), other, found)
            };
            apply(Some(second.all())).unwrap();
            expected.apply(&mut own, factor);
            expected.apply_to_other(&mut other, factor);
            assert_near(&what, &read(&device.points), &own);
            assert_near(&what, &read(&second), &other);
            // With one view the other stays as it is.
            let before = read(&second);
            stream.write(points, device.points.all()).unwrap();
            apply(None).unwrap();
            crate::assert_same_bits(&what, &read(&second), &before);
            // Depth that was not accepted corrects no pixel.
            let (points, found) = (device.points.all(), device.found.all());
            let confidences = device.confidence.all();
            field
                .approach(
                    &stream,
                    points,
                    Some(confidences),
                    device.metres.all(),
                    found,
                )
                .unwrap();
            let mut confidence = confidence.clone();
            if cpu.is_ok() {
                let pixels = expected.of_pixels().of_sensor(after);
                pixels.approach(&mut own, &mut confidence, metres, width);
            }
            assert_near(&what, &read(&device.points), &own);
            crate::assert_same_bits(&what, &read(&device.confidence), &confidence);
            if scene.name == "edges" && width > 100 && height > 100 {
                let doubted = confidence.iter().filter(|c| **c < 1.1).count();
                assert!(
                    doubted > n / 40,
                    "{what}: {doubted} points between surfaces"
                );
            }
            if scene.name == "bars" && width > 100 && height > 100 {
                let on = |u: std::ops::Range<usize>, depth: f32| {
                    let of_bars = own.chunks_exact(3).enumerate();
                    let of_bars = of_bars.filter(|(n, _)| u.contains(&(n % width % 20)));
                    of_bars.filter(|(_, p)| (p[2] - depth).abs() < 1e-5).count()
                };
                assert!(on(0..4, 0.3) > n / 8, "{what}: points on bars");
                assert_eq!(on(9..10, 0.4), 0, "{what}: points on single pixels");
            }
        }
    }
}

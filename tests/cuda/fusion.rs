//! Fusion on the GPU: the bits of the CPU's.

use crate::{assert_same, assert_same_bits, cuda};
use half::f16;
use mast3r_slam::compute::cuda::depth::Found;
use mast3r_slam::compute::cuda::fusion::{
    ExportTask, FusedPointmap, Fusion, FusionBuffers, FusionDepth, UpdateTask,
};
use mast3r_slam::compute::cuda::matching::MatchCounts;
use mast3r_slam::compute::cuda::tracking::{
    CameraRays, CameraRaysBuffers, MeasuredDepths, Outcome,
};
use mast3r_slam::compute::depth::Trust;
use mast3r_slam::compute::depth::pixels::OfPixels;
use mast3r_slam::compute::depth::smooth::Average;
use mast3r_slam::compute::fusion::{FusedPointmap as CpuPointmap, FusionScratch, MAX_COUNT};
use mast3r_slam::compute::pose_solver::constrain_to_rays;
use mast3r_slam::config::{FilteringMode, FilteringScore};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::gpu::{Context, DeviceBuffer, Priority, Stream};
use nalgebra::Vector3;
use testkit::solver_scene::{Random, intrinsics};

const MODES: [FilteringMode; 6] = [
    FilteringMode::WeightedPointmap,
    FilteringMode::WeightedSpherical,
    FilteringMode::Recent,
    FilteringMode::First,
    FilteringMode::BestScore,
    FilteringMode::IndepConf,
];
const SCORES: [FilteringScore; 2] = [FilteringScore::Median, FilteringScore::Mean];

/// Points and confidences.
type Estimate = (Vec<f32>, Vec<f32>);

/// The outcome of a solve; `status` as in `tracking.cuh`.
fn outcome(pose: &Sim3, status: u32) -> Outcome {
    let m = pose.scaled_rotation().cast::<f32>();
    let t = pose.translation.cast::<f32>();
    let mut transform = [0.0; 12];
    let rows = m.transpose();
    for (to, from) in transform.iter_mut().zip(rows.iter().chain(&t)) {
        *to = *from;
    }
    Outcome {
        pose: pose.to_array(),
        cost: 0.0,
        robust: 0.0,
        hessian: [0.0; 28],
        transform,
        status,
        iterations: 0,
        converged: 0,
        used: 0,
        outside: 0,
        evaluations: 0,
        counts: MatchCounts::default(),
        used_fraction: 0.0,
        unique_fraction: 0.0,
        fitting: 0,
        padding: 0,
    }
}

/// As the tracker moves points.
fn moved(pose: &Sim3, points: &[f32]) -> Vec<f32> {
    let m = pose.scaled_rotation().cast::<f32>();
    let o = pose.translation.cast::<f32>();
    points
        .chunks_exact(3)
        .flat_map(|s| {
            let p = m * Vector3::new(s[0], s[1], s[2]) + o;
            [p.x, p.y, p.z]
        })
        .collect()
}

struct Rig {
    stream: Stream,
    fusion: Fusion,
    map: FusedPointmap,
    points: DeviceBuffer<f32>,
    confidence: DeviceBuffer<f32>,
    outcome: DeviceBuffer<Outcome>,
    out_points: DeviceBuffer<f32>,
    out_confidence: DeviceBuffer<f32>,
    out_half: DeviceBuffer<f16>,
    rays: CameraRays,
}

impl Rig {
    fn new(
        context: &Context,
        size: (usize, usize),
        mode: FilteringMode,
        of: FilteringScore,
    ) -> Self {
        let n = size.0 * size.1;
        let stream = context.stream(Priority::High).unwrap();
        let k = intrinsics(size.0, size.1);
        let rig = crate::carve(context, |c| {
            let keys = FusionBuffers::carve(c, n, mode)?;
            let rays = CameraRaysBuffers::carve(c, size.0, size.1)?;
            let map = FusedPointmap::carve(c, n)?;
            map.clear(&stream)?;
            Ok(Self {
                fusion: Fusion::new(context, keys, n, mode, of)?,
                map,
                rays: CameraRays::new(&stream, rays, k, size.0, size.1)?,
                points: c.device("points", &[n, 3])?,
                confidence: c.device("confidence", &[n])?,
                outcome: c.device("outcome", &[1])?,
                out_points: c.device("out points", &[n, 3])?,
                out_confidence: c.device("out confidence", &[n])?,
                out_half: c.device("out half", &[n])?,
                stream,
            })
        });
        // Previous contents must not matter.
        rig.stream.fill(rig.map.points.all(), 0x7f).unwrap();
        rig.stream.fill(rig.map.confidence.all(), 0x3f).unwrap();
        rig
    }

    fn update(&self, (points, confidence): &Estimate, outcome: Option<Outcome>, restart: bool) {
        let s = &self.stream;
        s.write(points, self.points.all()).unwrap();
        s.write(confidence, self.confidence.all()).unwrap();
        if let Some(outcome) = outcome {
            s.write(&[outcome], self.outcome.all()).unwrap();
        }
        let task = UpdateTask {
            points: self.points.all(),
            confidence: self.confidence.all(),
            outcome: outcome.map(|_| self.outcome.all()),
            restart,
            depth: None,
        };
        self.fusion.update(s, &self.map, &task).unwrap();
    }

    fn assert_is(&self, what: &str, expected: &CpuPointmap) {
        let s = &self.stream;
        let points = s.read_vec(self.map.points.all()).unwrap();
        let confidence = s.read_vec(self.map.confidence.all()).unwrap();
        let state = self.map.state(s).unwrap();
        assert_same_bits(
            &format!("{what}: confidence"),
            &confidence,
            &expected.confidence,
        );
        assert_same_bits(&format!("{what}: points"), &points, &expected.points);
        assert_eq!(
            (state.count, state.updates, state.score.to_bits()),
            (expected.count, expected.updates, expected.score.to_bits()),
            "{what}: count, updates, score: {state:?} instead of {}",
            expected.score
        );
        let count = s.read_vec(self.map.count()).unwrap();
        assert_eq!(count, [expected.count], "{what}");
    }
}

/// Plausible, with some of every kind of unusable value.
fn estimate(n: usize, random: &mut Random, spoilt: bool) -> Estimate {
    let bad = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -1.0,
        f32::MAX,
        1e-30,
        f32::MIN_POSITIVE / 4.0,
    ];
    let mut value = |scale: f64, offset: f64| {
        let v = (random.normal() * scale + offset) as f32;
        match spoilt && random.uniform() < 0.02 {
            true => bad[(random.uniform() * bad.len() as f64) as usize],
            false => v,
        }
    };
    let points = (0..3 * n).map(|_| value(2.0, 1.0)).collect();
    let confidence = (0..n).map(|_| value(1.0, 4.0).abs()).collect();
    (points, confidence)
}

/// Any bits at all.
fn noise(n: usize, random: &mut Random) -> Estimate {
    let mut bits = || f32::from_bits((random.uniform() * 4294967296.0) as u32);
    let points = (0..3 * n).map(|_| bits()).collect();
    (points, (0..n).map(|_| bits()).collect())
}

#[test]
fn every_mode_has_the_cpus_bits() {
    let Some(gpu) = cuda() else { return };
    for size in [(1, 1), (31, 1), (37, 29), (512, 384)] {
        let n = size.0 * size.1;
        for mode in MODES {
            for of in SCORES {
                if of == FilteringScore::Mean && mode != FilteringMode::BestScore {
                    continue;
                }
                let rig = Rig::new(&gpu, size, mode, of);
                let mut random = Random(n as u64);
                // The second keyframe starts anew on what the first left.
                for keyframe in 0..2 {
                    let mut map = CpuPointmap::new(n);
                    let mut scratch = FusionScratch::default();
                    for step in 0..6 {
                        let what = format!("{mode:?} {of:?} {size:?} {keyframe} {step}");
                        let estimate = estimate(n, &mut random, step > 1);
                        let pose = Sim3::exp(&random.tangent(0.3));
                        let first = step == 0;
                        rig.update(&estimate, (!first).then(|| outcome(&pose, 1)), first);
                        let points = match first {
                            true => estimate.0.clone(),
                            false => moved(&pose, &estimate.0),
                        };
                        map.update(&points, &estimate.1, mode, of, &mut scratch);
                        rig.assert_is(&what, &map);
                    }
                }
            }
        }
    }
}

#[test]
fn any_bits_are_fused_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    let size = (101, 75);
    let n = size.0 * size.1;
    for mode in MODES {
        // The mean of such numbers depends on the order of its sum.
        let of = FilteringScore::Median;
        let rig = Rig::new(&gpu, size, mode, of);
        let mut random = Random(5);
        let mut map = CpuPointmap::new(n);
        let mut scratch = FusionScratch::default();
        for step in 0..8 {
            let estimate = noise(n, &mut random);
            rig.update(&estimate, None, step == 0);
            map.update(&estimate.0, &estimate.1, mode, of, &mut scratch);
            rig.assert_is(&format!("{mode:?} {step}"), &map);
        }
    }
}

/// Many alike, all alike, few, none: the rank that the median has is the CPU's.
/// Depths of an image of `width` columns near those of points, of which some are missing, invalid or those of another
/// surface, of one pixel or of many.
fn depths(points: &[f32], width: usize, random: &mut Random) -> Vec<f32> {
    let near = |(n, p): (usize, &[f32])| match n % 7 {
        0 => 0.0,
        1 => f32::NAN,
        2 => 3.0 * p[2].abs(),
        _ if (n % width / 5 + n / width / 4).is_multiple_of(3) => 40.0 + random.uniform() as f32,
        _ => p[2].abs() * (1.0 + 0.1 * random.normal() as f32),
    };
    points.chunks_exact(3).enumerate().map(near).collect()
}

#[test]
fn points_are_brought_to_measured_depth_before_they_are_fused() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let (width, height) = (65, 33);
    let n = width * height;
    let mut random = Random(71);
    let pose = Sim3::identity();
    let gains = OfPixels {
        own: 0.7,
        matched: 0.9,
        keyframe: 0.3,
        reach: 0.2,
        surfaces: true,
        confidence: 1.5,
        average: Average::default(),
    };
    let (points, confidence) = estimate(n, &mut random, true);
    let of_frame = depths(&points, width, &mut random);
    let of_keyframe = depths(&points, width, &mut random);
    let index: Vec<u32> = (0..n as u32)
        .map(|k| if k % 11 == 0 { u32::MAX } else { k })
        .collect();
    let valid: Vec<u8> = (0..n).map(|k| u8::from(k % 5 != 0)).collect();
    for (accepted, has_keyframe) in [(true, true), (true, false), (false, true), (false, false)] {
        let what = format!("accepted {accepted}, keyframe {has_keyframe}");
        let rig = Rig::new(
            context,
            (width, height),
            FilteringMode::WeightedPointmap,
            FilteringScore::Median,
        );
        let s = &rig.stream;
        let first = estimate(n, &mut random, false);
        rig.update(&first, None, true);
        let settled = Trust::after(100);
        let found = match accepted {
            true => Found::scaled(1.0).trusted(settled),
            false => Found::unscaled().trusted(settled),
        };
        let on_device = (
            crate::buffer::<Found>(context, 1),
            crate::buffer::<f32>(context, n),
            crate::buffer::<u32>(context, n),
            crate::buffer::<u8>(context, n),
            crate::buffer::<f32>(context, n),
            crate::buffer::<u32>(context, 1),
        );
        s.write(&[found.correcting(gains)], on_device.0.all())
            .unwrap();
        s.write(&of_frame, on_device.1.all()).unwrap();
        s.write(&index, on_device.2.all()).unwrap();
        s.write(&valid, on_device.3.all()).unwrap();
        s.write(&of_keyframe, on_device.4.all()).unwrap();
        s.write(&[u32::from(has_keyframe)], on_device.5.all())
            .unwrap();
        s.write(&points, rig.points.all()).unwrap();
        s.write(&confidence, rig.confidence.all()).unwrap();
        s.write(&[outcome(&pose, 1)], rig.outcome.all()).unwrap();
        let depth = FusionDepth {
            measured: MeasuredDepths {
                frame: on_device.1.all(),
                keyframe: on_device.4.all(),
                of_frame: on_device.0.all(),
                of_keyframe: on_device.5.all(),
            },
            index: on_device.2.all(),
            valid: on_device.3.all(),
            width,
        };
        let task = UpdateTask {
            points: rig.points.all(),
            confidence: rig.confidence.all(),
            outcome: Some(rig.outcome.all()),
            restart: false,
            depth: Some(depth),
        };
        rig.fusion.update(s, &rig.map, &task).unwrap();

        let mut expected = CpuPointmap::new(n);
        let mut scratch = FusionScratch::default();
        let (mode, score) = (FilteringMode::WeightedPointmap, FilteringScore::Median);
        expected.update(&first.0, &first.1, mode, score, &mut scratch);
        let (mut corrected, mut brought) = (vec![false; n], points.clone());
        let mut confidence = confidence.clone();
        if accepted {
            gains.approach_matches(&mut brought, &of_frame, &index, &valid, &mut corrected);
        }
        if has_keyframe {
            let (points, confidence) = (&mut brought, &mut confidence);
            gains.approach_keyframe(points, confidence, &of_keyframe, width, &corrected);
        }
        expected.update(&brought, &confidence, mode, score, &mut scratch);
        let found = s.read_vec(rig.map.points.all()).unwrap();
        for (k, (a, b)) in found.iter().zip(&expected.points).enumerate() {
            // Rounding of exp and log in the terms of a mean, which may cancel.
            let near = (a - b).abs() <= 2e-6 * b.abs().max(1.0);
            assert!(near || a.to_bits() == b.to_bits(), "{what}, {k}: {a}, {b}");
        }
        let unchanged = brought
            .iter()
            .zip(&points)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        assert_eq!(unchanged, !accepted && !has_keyframe, "{what}");
        let far = brought.chunks_exact(3).filter(|p| p[2] >= 39.99).count();
        assert_eq!(
            far > n / 20,
            has_keyframe,
            "{what}: {far} points of surfaces"
        );
    }
}

#[test]
fn a_full_count_fades_the_sums_as_on_the_cpu() {
    let Some(gpu) = cuda() else { return };
    for mode in [
        FilteringMode::WeightedPointmap,
        FilteringMode::WeightedSpherical,
    ] {
        let rig = Rig::new(&gpu, (7, 5), mode, FilteringScore::Median);
        let mut random = Random(77);
        let estimate = estimate(35, &mut random, true);
        let mut cpu = CpuPointmap::new(35);
        let mut scratch = FusionScratch::default();
        rig.update(&estimate, None, true);
        cpu.update(
            &estimate.0,
            &estimate.1,
            mode,
            FilteringScore::Median,
            &mut scratch,
        );
        let task = UpdateTask {
            points: rig.points.all(),
            confidence: rig.confidence.all(),
            outcome: None,
            restart: false,
            depth: None,
        };
        for _ in 0..MAX_COUNT + 3 {
            rig.fusion.update(&rig.stream, &rig.map, &task).unwrap();
            cpu.update(
                &estimate.0,
                &estimate.1,
                mode,
                FilteringScore::Median,
                &mut scratch,
            );
        }
        assert_eq!(cpu.count, MAX_COUNT);
        rig.assert_is(&format!("{mode:?}"), &cpu);
    }
}

#[test]
fn scores_of_degenerate_maps() {
    let Some(gpu) = cuda() else { return };
    let size = (67, 31);
    let n = size.0 * size.1;
    for of in SCORES {
        let rig = Rig::new(&gpu, size, FilteringMode::BestScore, of);
        let mut scratch = FusionScratch::default();
        let mut map = CpuPointmap::new(n);
        let mut step = 0;
        let mut update = |name: &str, confidence: Vec<f32>, restart: bool| {
            let estimate = (vec![1.0 + step as f32; 3 * n], confidence);
            rig.update(&estimate, None, restart);
            if restart {
                map = CpuPointmap::new(n);
            }
            let mode = FilteringMode::BestScore;
            map.update(&estimate.0, &estimate.1, mode, of, &mut scratch);
            rig.assert_is(&format!("{of:?} {name}"), &map);
            step += 1;
        };
        let only = |at: &[usize], value: f32| {
            let mut out = vec![0.0; n];
            at.iter().for_each(|&k| out[k] = value);
            out
        };
        update("none", vec![f32::NAN; n], true);
        update("none again", vec![0.0; n], false);
        update("one", only(&[n - 1], 1.5), false);
        update("two", only(&[3, 64], 1.75), false);
        update("worse", only(&[3, 64, 65], 1.0), false);
        update("all alike", vec![2.0; n], false);
        update("the same again", vec![2.0; n], false);
        update(
            "neighbours",
            (0..n)
                .map(|k| 2.0_f32.next_up() + (k % 2) as f32 * f32::EPSILON)
                .collect(),
            false,
        );
        update("huge", vec![f32::MAX; n], false);
        update("after huge", vec![3.0; n], false);
        update("a restart forgets", vec![0.5; n], true);
        update(
            "ramp",
            (0..n).map(|k| 1.0 + k as f32 / 64.0).collect(),
            false,
        );
        update(
            "tiny",
            (0..n).map(|k| f32::from_bits(1 + k as u32)).collect(),
            true,
        );
    }
}

/// The CPU's fusion, by the median.
struct Expected {
    map: CpuPointmap,
    mode: FilteringMode,
    scratch: FusionScratch,
}

impl Expected {
    fn fuse(&mut self, points: &[f32], confidence: &[f32]) {
        let (mode, score) = (self.mode, FilteringScore::Median);
        let scratch = &mut self.scratch;
        self.map.update(points, confidence, mode, score, scratch);
    }
}

/// A first estimate, fused on the GPU and on the CPU.
fn started(
    gpu: &Context,
    size: (usize, usize),
    mode: FilteringMode,
    random: &mut Random,
) -> (Rig, Expected) {
    let n = size.0 * size.1;
    let rig = Rig::new(gpu, size, mode, FilteringScore::Median);
    let mut cpu = Expected {
        map: CpuPointmap::new(n),
        mode,
        scratch: FusionScratch::default(),
    };
    let first = estimate(n, random, false);
    rig.update(&first, None, true);
    cpu.fuse(&first.0, &first.1);
    (rig, cpu)
}

#[test]
fn a_lost_frame_changes_nothing() {
    let Some(gpu) = cuda() else { return };
    let size = (37, 29);
    let n = size.0 * size.1;
    for mode in MODES {
        let mut random = Random(3);
        let (rig, mut cpu) = started(&gpu, size, mode, &mut random);
        let pose = Sim3::exp(&random.tangent(0.3));
        for status in [0, 2, 3, 4, 5, 6, 7, u32::MAX] {
            let next = estimate(n, &mut random, false);
            rig.update(&next, Some(outcome(&pose, status)), false);
            rig.assert_is(&format!("{mode:?} status {status}"), &cpu.map);
        }
        // And the one after is fused as if they had not been.
        let next = estimate(n, &mut random, false);
        rig.update(&next, Some(outcome(&pose, 1)), false);
        let points = moved(&pose, &next.0);
        cpu.fuse(&points, &next.1);
        rig.assert_is(&format!("{mode:?} after"), &cpu.map);
    }
}

/// The same bits; any NaN is the same.
fn assert_same_but_nan(what: &str, found: &[f32], expected: &[f32]) {
    let one_nan = |values: &[f32]| -> Vec<f32> {
        let each = values.iter();
        each.map(|&v| if v.is_nan() { f32::NAN } else { v })
            .collect()
    };
    assert_same_bits(what, &one_nan(found), &one_nan(expected));
}

#[test]
fn rays_are_the_cpus_to_the_last_place() {
    let Some(gpu) = cuda() else { return };
    for size in [(1, 1), (37, 29), (512, 384)] {
        let (w, h) = size;
        let n = w * h;
        let mode = FilteringMode::Recent;
        let rig = Rig::new(&gpu, size, mode, FilteringScore::Median);
        let mut random = Random(17);
        for spoilt in [false, true] {
            let (points, _) = estimate(n, &mut random, spoilt);
            rig.stream.write(&points, rig.points.all()).unwrap();
            let mut expected = vec![0.0; 3 * n];
            constrain_to_rays(&points, intrinsics(w, h), w, h, &mut expected).unwrap();
            let out = rig.out_points.all();
            rig.fusion
                .constrain(&rig.stream, rig.points.all(), &rig.rays, out)
                .unwrap();
            let found = rig.stream.read_vec(out).unwrap();
            assert_same_but_nan(&format!("{size:?} {spoilt}"), &found, &expected);
            // In place, and again: what is on its ray stays there.
            let all = rig.points.all();
            for _ in 0..2 {
                rig.fusion
                    .constrain(&rig.stream, all, &rig.rays, all)
                    .unwrap();
                assert_same_bits("in place", &rig.stream.read_vec(all).unwrap(), &found);
            }
        }
    }
}

#[test]
fn exports_are_averages() {
    let Some(gpu) = cuda() else { return };
    let size = (67, 31);
    let (w, h) = size;
    let n = w * h;
    let mode = FilteringMode::WeightedPointmap;
    let rig = Rig::new(&gpu, size, mode, FilteringScore::Median);
    let mut random = Random(21);
    let mut map = CpuPointmap::new(n);
    let mut scratch = FusionScratch::default();
    for step in 0..5 {
        let (points, mut confidence) = estimate(n, &mut random, true);
        // Beyond f16, about its greatest, and about its least.
        confidence[0] = 1e6;
        confidence[1] = 65519.0;
        confidence[2] = 65520.0;
        confidence[3] = 1e-7;
        rig.update(&(points.clone(), confidence.clone()), None, step == 0);
        map.update(
            &points,
            &confidence,
            mode,
            FilteringScore::Median,
            &mut scratch,
        );
        for rays in [None, Some(&rig.rays)] {
            let task = ExportTask {
                rays,
                points: rig.out_points.all(),
                confidence: Some(rig.out_confidence.all()),
                half_confidence: Some(rig.out_half.all()),
            };
            rig.fusion.export(&rig.stream, &rig.map, &task).unwrap();
            let found = rig.stream.read_vec(rig.out_points.all()).unwrap();
            match rays {
                None => assert_same_bits("points", &found, &map.points),
                Some(_) => {
                    let mut expected = vec![0.0; 3 * n];
                    constrain_to_rays(&map.points, intrinsics(w, h), w, h, &mut expected).unwrap();
                    assert_same_but_nan("points on rays", &found, &expected);
                }
            }
            let average: Vec<f32> = map.average_confidences().collect();
            let found = rig.stream.read_vec(rig.out_confidence.all()).unwrap();
            assert_same_bits("averages", &found, &average);
            let half: Vec<f16> = average
                .iter()
                .map(|&c| f16::from_f32(c.min(65504.0)))
                .collect();
            let found = rig.stream.read_vec(rig.out_half.all()).unwrap();
            assert_same("halves", &found, &half);
            assert!(found.iter().all(|c| c.is_finite()));
        }
        // One format alone.
        let before = rig.stream.read_vec(rig.out_half.all()).unwrap();
        rig.stream.fill(rig.out_confidence.all(), 0).unwrap();
        let task = ExportTask {
            rays: None,
            points: rig.out_points.all(),
            confidence: Some(rig.out_confidence.all()),
            half_confidence: None,
        };
        rig.fusion.export(&rig.stream, &rig.map, &task).unwrap();
        assert_same(
            "untouched",
            &rig.stream.read_vec(rig.out_half.all()).unwrap(),
            &before,
        );
    }
}

/// Fused in a graph, frame after frame, with outcomes that change in place.
#[test]
fn a_graph_replays_the_fusion() {
    let Some(gpu) = cuda() else { return };
    let size = (67, 31);
    let n = size.0 * size.1;
    for mode in MODES {
        let mut random = Random(8);
        let (rig, mut cpu) = started(&gpu, size, mode, &mut random);
        let task = UpdateTask {
            points: rig.points.all(),
            confidence: rig.confidence.all(),
            outcome: Some(rig.outcome.all()),
            restart: false,
            depth: None,
        };
        let graph = rig
            .stream
            .capture(|| rig.fusion.update(&rig.stream, &rig.map, &task))
            .unwrap();
        for step in 0..5 {
            let next = estimate(n, &mut random, true);
            let pose = Sim3::exp(&random.tangent(0.3));
            let tracked = step != 2;
            rig.stream.write(&next.0, rig.points.all()).unwrap();
            rig.stream.write(&next.1, rig.confidence.all()).unwrap();
            let status = if tracked { 1 } else { 2 };
            let outcome = outcome(&pose, status);
            rig.stream.write(&[outcome], rig.outcome.all()).unwrap();
            // SAFETY: the rig's buffers are alive, and each launch is waited for by the reads below.
            unsafe { graph.launch(&rig.stream) }.unwrap();
            if tracked {
                let points = moved(&pose, &next.0);
                cpu.fuse(&points, &next.1);
            }
            rig.assert_is(&format!("{mode:?} {step}"), &cpu.map);
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused() {
    let Some(gpu) = cuda() else { return };
    let mode = FilteringMode::BestScore;
    let rig = Rig::new(&gpu, (20, 10), mode, FilteringScore::Median);
    let short = crate::carve(&gpu, |c| FusedPointmap::carve(c, 3));
    let rays = crate::carve(&gpu, |c| CameraRaysBuffers::carve(c, 2, 2));
    let other = CameraRays::new(&rig.stream, rays, intrinsics(2, 2), 2, 2).unwrap();
    let task = UpdateTask {
        points: rig.points.all(),
        confidence: rig.confidence.all(),
        outcome: None,
        restart: true,
        depth: None,
    };
    let few = rig.points.slice(0..599).unwrap();
    let refused = [
        rig.fusion.update(&rig.stream, &short, &task),
        rig.fusion.update(
            &rig.stream,
            &rig.map,
            &UpdateTask {
                points: few,
                ..task
            },
        ),
        rig.fusion
            .constrain(&rig.stream, few, &rig.rays, rig.points.all()),
        rig.fusion
            .constrain(&rig.stream, rig.points.all(), &other, rig.out_points.all()),
    ];
    for refused in refused {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("expected"), "{error}");
    }
}

/// Not a test of anything: how long a fusion takes.
#[test]
#[ignore = "measures"]
fn how_long_a_fusion_takes() {
    let Some(gpu) = cuda() else { return };
    let size = (512, 384);
    let n = size.0 * size.1;
    for mode in MODES {
        let rig = Rig::new(&gpu, size, mode, FilteringScore::Median);
        let mut random = Random(3);
        rig.update(&estimate(n, &mut random, false), None, true);
        let pose = Sim3::exp(&random.tangent(0.3));
        rig.update(
            &estimate(n, &mut random, false),
            Some(outcome(&pose, 1)),
            false,
        );
        let task = UpdateTask {
            points: rig.points.all(),
            confidence: rig.confidence.all(),
            outcome: Some(rig.outcome.all()),
            restart: false,
            depth: None,
        };
        let (begin, end) = (gpu.event(true).unwrap(), gpu.event(true).unwrap());
        let mut times: Vec<f32> = (0..200)
            .map(|_| {
                rig.stream.record(&begin).unwrap();
                rig.fusion.update(&rig.stream, &rig.map, &task).unwrap();
                rig.stream.record(&end).unwrap();
                begin.milliseconds_until(&end).unwrap()
            })
            .collect();
        times.sort_by(f32::total_cmp);
        println!(
            "{mode:?}: median {:.1} us, p99 {:.1} us",
            times[100] * 1e3,
            times[198] * 1e3
        );
    }
}

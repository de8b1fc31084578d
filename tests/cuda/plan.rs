//! A run's memory plan: laid out without a GPU, and carved by those it was made for as planned.

use crate::cuda;
use mast3r_slam::compute::cuda::device_plan::{
    DevicePlan, PlanInputs, lay_out, lower, slot_layout,
};
use mast3r_slam::compute::cuda::fusion::{FusedPointmap, Fusion};
use mast3r_slam::compute::cuda::global::DeviceGlobalSolver;
use mast3r_slam::compute::cuda::matching::Matcher;
use mast3r_slam::compute::cuda::preprocess::DevicePreprocessor;
use mast3r_slam::compute::cuda::retrieval::Retrieval;
use mast3r_slam::compute::cuda::sanitise::{Sanitiser, ViewBuffers};
use mast3r_slam::compute::cuda::slots::CudaSlots;
use mast3r_slam::compute::cuda::tracking::{CameraRays, PoseSolver};
use mast3r_slam::compute::cuda::{Context, DeviceArena, DeviceInfo, Pool, Priority};
use mast3r_slam::compute::matching::Refinement;
use mast3r_slam::compute::plan::{Group, Place};
use mast3r_slam::compute::store::FloatFormat;
use mast3r_slam::config::{Config, Loops};
use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::image::encoding::Encoding;
use mast3r_slam::image::{PreprocessOptions, Preprocessor};
use mast3r_slam::inference::NetworkShape;
use std::sync::Arc;

fn shape(width: usize, height: usize, feature_dim: usize) -> NetworkShape {
    NetworkShape {
        width,
        height,
        tokens: width * height / 256,
        feature_dim,
        descriptor_dim: 24,
    }
}

/// An H200, as far as plans depend on it.
fn info() -> DeviceInfo {
    DeviceInfo {
        ordinal: 0,
        name: "H200".into(),
        capability: (9, 0),
        multiprocessors: 132,
        clock_khz: 1_980_000,
        l2_bytes: 50 << 20,
        memory_bytes: 141_000_000_000,
        shared_bytes: 227 << 10,
        driver: (13, 0),
        from_ptx: false,
    }
}

fn camera(width: usize, height: usize) -> Calibration {
    Calibration {
        width,
        height,
        intrinsics: Intrinsics {
            fx: 0.8 * width as f64,
            fy: 0.8 * width as f64,
            cx: width as f64 / 2.0,
            cy: height as f64 / 2.0,
        },
        distortion: Distortion::PlumbBob([0.2624, -0.9531, -0.0054, 0.0026, 1.1633]),
    }
}

/// What a network that works in memory of ours would ask for, for tracking and for mapping.
const WORKSPACE: [usize; 2] = [12_345_678, 23_456_789];

fn plan(config: &Config, shape: &NetworkShape, info: &DeviceInfo) -> (DevicePlan, Preprocessor) {
    plan_with(config, shape, info, true)
}

fn plan_with(
    config: &Config,
    shape: &NetworkShape,
    info: &DeviceInfo,
    network_on_host: bool,
) -> (DevicePlan, Preprocessor) {
    let (width, height) = (shape.width + 128, shape.height + 96);
    let calibration = camera(width, height);
    let options = PreprocessOptions::default();
    let preprocessor =
        Preprocessor::new(width, height, shape.width, Some(&calibration), options).unwrap();
    assert_eq!(preprocessor.output_size(), (shape.width, shape.height));
    let plan = lay_out(&PlanInputs {
        config,
        shape,
        info,
        preprocessor: &preprocessor,
        encoding: Encoding::Nv12,
        stride: width,
        calibrated: config.use_calib,
        network_on_host,
        network_workspace: WORKSPACE,
        words: Some(1000),
    });
    (plan.unwrap(), preprocessor)
}

#[test]
fn a_keyframe_takes_at_most_5_2_megabytes_at_512_by_384() {
    let official = slot_layout(&shape(512, 384, 1024));
    assert!(official.bytes <= 5_200_000, "{}", official.bytes);
    assert_eq!(official.feature_format, FloatFormat::F16);
    // The mini model's tokens are few: they stay as they are.
    let mini = slot_layout(&shape(512, 384, 192));
    assert!(mini.bytes <= 5_200_000, "{}", mini.bytes);
    assert_eq!(mini.feature_format, FloatFormat::F32);
    // A quarter of the pixels, a quarter of the bytes.
    assert!(slot_layout(&shape(256, 192, 1024)).bytes <= 1_300_000);
}

/// Tokens of two images, outputs of two views both ways; a network on the host decodes way by way.
#[test]
fn edges_that_are_decoded_together_have_room_each() {
    let (shape, info) = (shape(512, 384, 1024), info());
    let bytes = |edges: usize, on_host: bool| {
        let mut config = Config::default();
        config.memory.edge_batch = edges;
        let (plan, _) = plan_with(&config, &shape, &info, on_host);
        plan.memory.device_bytes()
    };
    let values = 3 + 1 + shape.descriptor_dim + 1;
    let each = 4 * (2 * shape.tokens * shape.feature_dim + 2 * 2 * shape.pixels() * values);
    for edges in [2, 4] {
        let found = bytes(edges, false) - bytes(1, false);
        let expected = ((edges - 1) * each) as u64;
        // As many buffers as before, each of which may end at another place of an alignment.
        assert!(
            found.abs_diff(expected) <= 256 * 16,
            "{found}, not {expected}"
        );
    }
    assert_eq!(bytes(4, true), bytes(1, true));
}

#[test]
fn a_plan_lists_every_byte_and_says_what_to_lower() {
    let (config, shape, info) = (Config::default(), shape(512, 384, 1024), info());
    let (whole, _) = plan(&config, &shape, &info);
    let of = |place: Place| -> u64 {
        let requests = whole.memory.requests().iter();
        let wanted = requests.filter(|r| r.place == place);
        wanted.map(|r| r.bytes).sum()
    };
    // What is listed, and at most one gap of alignment after each buffer.
    let gaps = 256 * whole.memory.requests().len() as u64;
    for (place, bytes) in [
        (Place::Device, whole.memory.device_bytes()),
        (Place::Pinned, whole.memory.pinned_bytes()),
    ] {
        let listed = of(place);
        assert!(
            (listed..=listed + gaps).contains(&bytes),
            "{listed} {bytes}"
        );
    }
    // Both threads run the network, at the same time.
    let workspaces = whole.memory.requests().iter();
    let workspaces = workspaces.filter(|r| r.name.ends_with("network workspace"));
    let bytes: Vec<u64> = workspaces.map(|r| r.bytes).collect();
    assert_eq!(bytes, WORKSPACE.map(|n| n as u64));
    let slots = (config.memory.keyframe_slots * whole.slots.layout.bytes) as u64;
    let listed = whole.memory.requests().iter();
    let listed = listed.filter(|r| r.place == Place::Device && r.name.starts_with("slots."));
    let keyframes = listed.filter(|r| r.group == Group::Keyframes);
    assert_eq!(keyframes.map(|r| r.bytes).sum::<u64>(), slots);
    for request in whole.memory.requests() {
        let elements: usize = request.shape.iter().product();
        assert!(
            elements == 0 || request.bytes % elements as u64 == 0,
            "{request:?}"
        );
    }

    let bytes = |config: &Config| {
        let mut shape = shape.clone();
        if config.network.size != 512 {
            shape = self::shape(256, 192, 1024);
        }
        plan(config, &shape, &info).0.memory.device_bytes()
    };
    let savings = lower(&config, bytes);
    let saved = |parameter| {
        let found = savings.iter().find(|s| s.parameter == parameter);
        found
            .unwrap_or_else(|| panic!("{parameter} is not in {savings:?}"))
            .saves
    };
    // Half of the slots, and of what the global solver keeps for each of their keyframes: three bits a
    // pixel, two addresses, a pose of eight f64. Each buffer's gap may change.
    let each = whole.slots.layout.bytes + 3 * shape.pixels() / 8 + 16 + 8 * 8;
    let half = (config.memory.keyframe_slots / 2 * each) as u64;
    let found = saved("memory.keyframe_slots");
    assert!(found.abs_diff(half) <= gaps, "{found}, not {half}");
    for parameter in ["memory.edges", "memory.places", "network.size", "loops"] {
        assert!(saved(parameter) > 0);
    }
    assert!(savings.is_sorted_by(|a, b| a.saves >= b.saves));

    assert_eq!(
        whole.fit(&config, whole.memory.device_bytes(), bytes),
        Ok(())
    );
    let error = whole
        .fit(&config, 1_000_000_000, bytes)
        .unwrap_err()
        .to_string();
    for part in ["1.00 GB", "memory.keyframe_slots from 128 to 64", "saves"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }

    let without = Config {
        loops: Loops::Off,
        ..config.clone()
    };
    assert!(plan(&without, &shape, &info).0.places.is_none());
}

/// All of an arena was carved: the list was neither too short, which carving refuses, nor too long.
fn assert_used_up(what: &str, arena: &DeviceArena) {
    let (used, total) = arena.used();
    assert_eq!(used, total, "{what}: carved, planned");
}

#[test]
fn everybody_carves_what_was_planned() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = Arc::new(context.stream(Priority::High).unwrap());
    let other = Arc::new(context.stream(Priority::Low).unwrap());
    let mut config = Config {
        use_calib: true,
        ..Config::default()
    };
    (config.memory.keyframe_slots, config.memory.host_slots) = (8, 3);
    (config.memory.edges, config.memory.places) = (16, 64);
    for shape in [shape(64, 48, 40), shape(96, 64, 1024)] {
        let (plan, preprocessor) = plan(&config, &shape, context.info());
        let before = mast3r_slam::compute::cuda::allocations();
        let pool = Pool::new(context, &plan.memory).unwrap();
        let (n, dim) = (shape.pixels(), shape.descriptor_dim);
        let (width, height) = (shape.width, shape.height);
        let camera = preprocessor.intrinsics().unwrap();
        let stride = preprocessor.input_size().0;

        let tracking = plan.tracking;
        let arena = |planned| pool.device_arena(planned).unwrap();
        let mut a = arena(tracking.preprocessor);
        let (cpu, nv12) = (&preprocessor, Encoding::Nv12);
        DevicePreprocessor::new(context, &mut a, &stream, cpu, nv12, stride).unwrap();
        assert_used_up("preprocessor", &a);
        let mut a = arena(plan.rays.unwrap());
        CameraRays::new(&stream, &mut a, camera, width, height).unwrap();
        assert_used_up("rays", &a);
        let mut a = arena(tracking.fusion);
        let (mode, score) = (
            config.tracking.filtering_mode,
            config.tracking.filtering_score,
        );
        Fusion::new(context, &mut a, n, mode, score).unwrap();
        assert_used_up("fusion", &a);
        let mut a = arena(tracking.pointmap);
        FusedPointmap::new(&stream, &mut a, n).unwrap();
        assert_used_up("pointmap", &a);
        for (pair, ways) in [(tracking.pair, 1), (plan.mapping.pair, 2)] {
            for view in pair.network.views {
                let mut a = arena(view);
                ViewBuffers::carve(&mut a, ways * n, dim).unwrap();
                assert_used_up("view", &a);
            }
            let mut a = arena(pair.sanitiser);
            Sanitiser::new(context, &mut a, &stream, n, dim).unwrap();
            assert_used_up("sanitiser", &a);
            let mut a = arena(pair.matcher);
            Matcher::new(context, &mut a, width, height, dim, Refinement::SingleAll).unwrap();
            assert_used_up("matcher", &a);
            let mut a = arena(pair.solver);
            PoseSolver::new(context, &stream, &mut a, n).unwrap();
            assert_used_up("pose solver", &a);
        }
        let mut a = arena(plan.mapping.solver);
        let mut p = pool.pinned_arena(plan.mapping.host_solver).unwrap();
        DeviceGlobalSolver::new(context, &mut a, &mut p, plan.mapping.capacity).unwrap();
        assert_used_up("global solver", &a);
        assert_eq!(p.used().0, p.used().1, "global solver, pinned");
        let mut a = arena(plan.device_slots);
        let mut p = pool.pinned_arena(plan.host_slots).unwrap();
        let (high, low) = (stream.clone(), other.clone());
        CudaSlots::new(context, plan.slots, &mut a, &mut p, high, low).unwrap();
        assert_used_up("slots", &a);
        assert_eq!(p.used().0, p.used().1, "slots, pinned");
        let places = plan.places.unwrap();
        let mut a = arena(places.device);
        let mut p = pool.pinned_arena(places.host).unwrap();
        Retrieval::new(context, places.sizes, &mut a, &mut p).unwrap();
        assert_used_up("places", &a);
        assert_eq!(p.used().0, p.used().1, "places, pinned");

        let after = mast3r_slam::compute::cuda::allocations();
        let new = (after.device - before.device, after.pinned - before.pinned);
        assert_eq!(new, (1, 1));
    }
}

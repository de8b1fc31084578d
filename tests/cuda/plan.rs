//! A run's memory plan, which takes no GPU. That memory is carved as it was planned is checked at each start of a
//! device, buffer by buffer.

use crate::cuda;
use mast3r_slam::compute::cuda::device::{
    CameraFormat, CudaSetup, PlanInputs, device, lower, slot_layout,
};
use mast3r_slam::compute::device::Setup;
use mast3r_slam::compute::store::FloatFormat;
use mast3r_slam::config::{DeviceConfig, FilteringMode, Loops};
use mast3r_slam::geometry::{Calibration, Distortion, Intrinsics};
use mast3r_slam::gpu::plan::{DoesNotFit, Group, MemoryPlan, Place};
use mast3r_slam::gpu::{DeviceInfo, allocations};
use mast3r_slam::image::encoding::Encoding;
use mast3r_slam::image::{PreprocessOptions, Preprocessor, RgbImage};
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput};
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

/// Memory requested by a network that runs in the plan's memory, for tracking and for mapping.
const WORKSPACE: [usize; 2] = [12_345_678, 23_456_789];

/// Calls `with` with the inputs of a plan.
fn inputs<R>(
    config: &DeviceConfig,
    shape: &NetworkShape,
    network_on_host: bool,
    with: impl FnOnce(&PlanInputs<'_>) -> R,
) -> R {
    let (width, height) = (shape.width + 128, shape.height + 96);
    let calibration = camera(width, height);
    let options = PreprocessOptions::default();
    let preprocessor =
        Preprocessor::new(width, height, shape.width, Some(&calibration), options).unwrap();
    assert_eq!(preprocessor.output_size(), (shape.width, shape.height));
    with(&PlanInputs {
        config,
        shape,
        info: &info(),
        preprocessor: &preprocessor,
        camera: CameraFormat {
            encoding: Encoding::Nv12,
            stride: width,
        },
        calibrated: false,
        network_on_host,
        network_workspace: WORKSPACE,
        encoder_workspace: None,
        half_tokens: false,
        edge_batch: config.memory.edge_batch,
        words: Some(1000),
    })
}

fn plan(config: &DeviceConfig, shape: &NetworkShape) -> MemoryPlan {
    inputs(config, shape, false, |inputs| inputs.plan().unwrap())
}

#[test]
fn a_keyframe_takes_at_most_5_2_megabytes_at_512_by_384() {
    let official = slot_layout(&shape(512, 384, 1024), false);
    assert!(official.bytes <= 5_200_000, "{}", official.bytes);
    assert_eq!(official.feature_format, FloatFormat::F16);
    // The mini model's tokens are few: they stay as they are.
    let mini = slot_layout(&shape(512, 384, 192), false);
    assert!(mini.bytes <= 5_200_000, "{}", mini.bytes);
    assert_eq!(mini.feature_format, FloatFormat::F32);
    // Unless the network gives them in half precision.
    let half = slot_layout(&shape(512, 384, 192), true);
    assert_eq!(half.feature_format, FloatFormat::F16);
    assert_eq!(mini.bytes - half.bytes, 2 * 768 * 192);
    // A quarter of the pixels, a quarter of the bytes.
    assert!(slot_layout(&shape(256, 192, 1024), false).bytes <= 1_300_000);
}

/// Tokens of two images, outputs of two views both ways; a network on the host decodes way by way.
#[test]
fn edges_that_are_decoded_together_have_room_each() {
    let shape = shape(512, 384, 1024);
    let bytes = |edges: usize, on_host: bool| {
        let mut config = DeviceConfig::default();
        config.memory.edge_batch = edges;
        inputs(&config, &shape, on_host, |inputs| {
            inputs.plan().unwrap().device_bytes()
        })
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
    let (config, shape) = (DeviceConfig::default(), shape(512, 384, 1024));
    let whole = plan(&config, &shape);
    let of = |place: Place| -> u64 {
        let requests = whole.requests().iter();
        let wanted = requests.filter(|r| r.place == place);
        wanted.map(|r| r.bytes).sum()
    };
    // The listed sizes, plus at most one alignment gap after each buffer.
    let gaps = 256 * whole.requests().len() as u64;
    for (place, bytes) in [
        (Place::Device, whole.device_bytes()),
        (Place::Pinned, whole.pinned_bytes()),
    ] {
        let listed = of(place);
        assert!(
            (listed..=listed + gaps).contains(&bytes),
            "{listed} {bytes}"
        );
    }
    // Both threads run the network, at the same time.
    let workspaces = whole.requests().iter();
    let workspaces = workspaces.filter(|r| r.name.ends_with("network workspace"));
    let bytes: Vec<u64> = workspaces.map(|r| r.bytes).collect();
    assert_eq!(bytes, WORKSPACE.map(|n| n as u64));
    let slots = (config.memory.keyframe_slots * slot_layout(&shape, false).bytes) as u64;
    let listed = whole.requests().iter();
    let listed = listed.filter(|r| r.place == Place::Device && r.name.starts_with("slots."));
    let keyframes = listed.filter(|r| r.group == Group::Keyframes);
    assert_eq!(keyframes.map(|r| r.bytes).sum::<u64>(), slots);
    for request in whole.requests() {
        let elements: usize = request.shape.iter().product();
        assert!(
            elements == 0 || request.bytes % elements as u64 == 0,
            "{request:?}"
        );
    }

    let bytes = |config: &DeviceConfig| {
        let mut shape = shape.clone();
        if config.network_size != 512 {
            shape = self::shape(256, 192, 1024);
        }
        plan(config, &shape).device_bytes()
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
    let each = slot_layout(&shape, false).bytes + 3 * shape.pixels() / 8 + 16 + 8 * 8;
    let half = (config.memory.keyframe_slots / 2 * each) as u64;
    let found = saved("memory.keyframe_slots");
    assert!(found.abs_diff(half) <= gaps, "{found}, not {half}");
    for parameter in ["memory.edges", "memory.places", "network.size", "loops"] {
        assert!(saved(parameter) > 0);
    }
    assert!(savings.is_sorted_by(|a, b| a.saves >= b.saves));

    let fitting = |available: u64| -> Result<MemoryPlan, DoesNotFit> {
        let fitting = |inputs: &PlanInputs<'_>| inputs.fitting(available).unwrap();
        inputs(&config, &shape, false, fitting)
    };
    assert!(fitting(whole.device_bytes()).is_ok());
    let error = fitting(1_000_000_000).unwrap_err().to_string();
    for part in ["1.00 GB", "memory.keyframe_slots from 128 to 64", "saves"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }

    let without = DeviceConfig {
        loops: Loops::Off,
        ..config.clone()
    };
    let places = |plan: &MemoryPlan| plan.requests().iter().any(|r| r.group == Group::Retrieval);
    assert!(places(&whole) && !places(&plan(&without, &shape)));
}

/// A network on the host that computes nothing.
struct Idle(NetworkShape);

impl Backend for Idle {
    fn shape(&self) -> &NetworkShape {
        &self.0
    }

    fn name(&self) -> String {
        "idle".into()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self(self.0.clone()))
    }

    fn encode(&mut self, _: &RgbImage, _: &mut [f32]) -> Result<(), InferenceError> {
        Ok(())
    }

    fn decode(&mut self, _: &[f32], _: &[f32], _: &mut PairOutput) -> Result<(), InferenceError> {
        Ok(())
    }
}

/// Carving refuses whatever the plan does not have next, and a plan that is not used up.
#[test]
fn a_device_carves_what_was_planned_from_two_allocations() {
    let Some(gpu) = cuda() else { return };
    for (shape, mode, calibrated) in [
        (shape(64, 48, 40), FilteringMode::WeightedPointmap, false),
        (shape(96, 64, 1024), FilteringMode::BestScore, true),
        (shape(80, 48, 192), FilteringMode::Recent, true),
    ] {
        let mut config = DeviceConfig::default();
        config.tracking.filtering_mode = mode;
        (config.memory.keyframe_slots, config.memory.host_slots) = (8, 3);
        (config.memory.edges, config.memory.places) = (16, 64);
        let (width, height) = (shape.width + 128, shape.height + 96);
        let calibration = camera(width, height);
        let options = PreprocessOptions::default();
        let preprocessor =
            Preprocessor::new(width, height, shape.width, Some(&calibration), options).unwrap();
        assert_eq!(preprocessor.output_size(), (shape.width, shape.height));
        let before = allocations();
        let setup = Setup {
            config: Arc::new(config),
            intrinsics: preprocessor.intrinsics().filter(|_| calibrated),
            places: None,
            preprocessor: Some(preprocessor),
        };
        let cuda = CudaSetup {
            camera: CameraFormat {
                encoding: Encoding::Nv12,
                stride: width,
            },
            directory: None,
        };
        let made = device(&gpu, Box::new(Idle(shape)), setup, &cuda);
        let made = made.map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(made, Ok(()));
        let after = allocations();
        let new = (after.device - before.device, after.pinned - before.pinned);
        assert_eq!(new, (1, 1));
    }
}

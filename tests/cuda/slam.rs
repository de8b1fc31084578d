//! The whole of SLAM on the GPU: the map that it makes is the CPU's.

mod bad_outputs;
mod depth;
mod in_place;
mod masks;

use half::f16;
use in_place::InPlace;
use mast3r_slam::compute::cpu;
use mast3r_slam::compute::cuda::device::{self, CameraFormat, CudaSetup};
use mast3r_slam::compute::device::{Device, DeviceError, Setup};
use mast3r_slam::compute::retrieval::RetrievalModel;
use mast3r_slam::config::{Config, DeviceConfig, FilteringMode, Loops, ResidualChoice, Threads};
use mast3r_slam::geometry::Sim3;
use mast3r_slam::gpu::{Context, DevicePointer, Grid, Priority, allocations};
use mast3r_slam::image::RgbImage;
use mast3r_slam::image::encoding::Encoding;
use mast3r_slam::inference::Backend;
use mast3r_slam::inference::native::NativeBackend;
use mast3r_slam::map::{EdgeKind, MapSnapshot, TrackingState};
use mast3r_slam::slam::{Frame, MappingCounts, Pace, Slam, SlamError};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use testkit::counting::thread_allocations;
use testkit::room::recording::Recording;
use testkit::room::walk::{ate, config, images, stamp, vocabulary, walk};
use testkit::room::{RoomBackend, SIZE, Spoil, intrinsics, square_walk};

/// Noise as a network has it, so that there is an error to compare.
pub const SPOIL: Spoil = Spoil {
    noise: 0.01,
    outliers: 0.05,
    bias: 0.02,
};

/// Which device.
pub enum On<'a> {
    Cpu,
    Gpu(&'a Context),
}

/// A system for images of the backend's size on one device or the other.
pub fn system(
    on: &On<'_>,
    backend: Box<dyn Backend>,
    config: &Config,
    places: Option<Arc<RetrievalModel>>,
) -> Slam {
    let config = Arc::new(config.clone());
    let shape = backend.shape().clone();
    let camera = (config.use_calib).then(|| intrinsics((shape.width, shape.height)));
    let setup = Setup {
        config: Arc::new(DeviceConfig::from(&*config)),
        preprocessor: None,
        intrinsics: camera,
        places,
    };
    let made = match on {
        On::Cpu => cpu::device(backend, setup),
        On::Gpu(context) => gpu(context, backend, setup),
    };
    Slam::new(&config, Pace::EveryFrame, made, camera).expect("system")
}

/// A device on the GPU.
pub fn gpu(context: &Context, backend: Box<dyn Backend>, setup: Setup) -> Device {
    let cuda = CudaSetup {
        camera: CameraFormat {
            encoding: Encoding::Rgb8,
            stride: 3 * backend.shape().width,
        },
        directory: Some(std::env::temp_dir()),
    };
    device::device(context, backend, setup, &cuda).expect("a device")
}

struct Walked {
    map: MapSnapshot,
    counts: MappingCounts,
}

fn run(
    on: &On<'_>,
    backend: Box<dyn Backend>,
    images: &[RgbImage],
    config: &Config,
    places: Option<Arc<RetrievalModel>>,
) -> Walked {
    let mut system = system(on, backend, config, places);
    let map = walk(&mut system, images);
    let counts = system.mapping_counts();
    Walked { map, counts }
}

type Edge = (u32, u32, EdgeKind);

fn edges(map: &MapSnapshot) -> Vec<Edge> {
    map.edges.iter().map(|e| (e.i, e.j, e.kind)).collect()
}

/// The decision about each frame.
fn decisions(map: &MapSnapshot) -> Vec<(TrackingState, Option<u32>, u32, u32, u32)> {
    let of = |f: &mast3r_slam::map::FrameRecord| {
        let (used, unique) = (f.match_fraction.to_bits(), f.unique_fraction.to_bits());
        (f.state, f.keyframe, f.submap, used, unique)
    };
    map.frames.iter().map(of).collect()
}

/// Every bit of what was computed.
fn bits(map: &MapSnapshot) -> Vec<u64> {
    let pose = |p: &Sim3| p.to_array().map(f64::to_bits);
    let frames = map.frames.iter().flat_map(|f| pose(&f.world_from_camera));
    let keyframes = map.keyframes.iter().flat_map(|k| {
        let view = k.view();
        let points = view.points.iter().chain(view.confidence.iter());
        let sum = points.fold(0u64, |sum, v| {
            sum.rotate_left(5).wrapping_add(u64::from(v.to_bits()))
        });
        pose(&k.world_from_camera).into_iter().chain([sum])
    });
    frames.chain(keyframes).collect()
}

/// What the two devices must agree in. Matching, gates and fusion are the same arithmetic in the same
/// order, so every decision is the same; poses come from sums in another order, and a solve may end a
/// step earlier or later (its stop rule is a thousandth), so of the trajectory its error is compared,
/// within the 1 % that is promised.
fn compare(what: &str, cpu: &Walked, gpu: &Walked, truth: &[Sim3]) {
    let (a, b) = (&cpu.map, &gpu.map);
    super::assert_same(&format!("{what}: frames"), &decisions(b), &decisions(a));
    let keys =
        |map: &MapSnapshot| -> Vec<usize> { map.keyframes.iter().map(|k| k.frame_index).collect() };
    super::assert_same(&format!("{what}: keyframes"), &keys(b), &keys(a));
    super::assert_same(&format!("{what}: edges"), &edges(b), &edges(a));
    assert_eq!(gpu.counts, cpu.counts, "{what}");
    for (k, l) in a.keyframes.iter().zip(&b.keyframes) {
        let (image, l) = (k.view().image, l.view());
        assert!(image == l.image, "{what}: image of keyframe {}", k.id);
        let finite = l.points.iter().chain(l.confidence.iter());
        assert!(
            finite.clone().all(|v| v.is_finite()),
            "{what}: keyframe {}",
            k.id
        );
    }
    let (cpu, gpu) = (ate(a, truth), ate(b, truth));
    println!(
        "{what}: {} keyframes, {} edges, ATE {cpu:.6} m on the CPU, {gpu:.6} m on the GPU",
        a.keyframes.len(),
        a.edges.len()
    );
    assert!(
        (gpu - cpu).abs() <= 0.01 * cpu,
        "{what}: ATE {gpu} m, on the CPU {cpu} m"
    );
    // Trajectories with equal errors may differ: each frame is where the CPU put it, too.
    for (of_a, of_b) in a.frames.iter().zip(&b.frames) {
        let apart = of_a.world_from_camera.translation - of_b.world_from_camera.translation;
        assert!(
            apart.norm() <= 0.2 * cpu,
            "{what}: frame {} is {} m from where the CPU put it",
            of_a.index,
            apart.norm()
        );
    }
}

#[test]
fn the_gpu_makes_the_map_that_the_cpu_makes() {
    let Some(context) = super::cuda() else { return };
    let poses = square_walk(90, 1.1);
    for calibrated in [false, true] {
        let mut backend = RoomBackend::new(SIZE, poses.clone(), SPOIL);
        let places = Some(vocabulary(&mut backend));
        let images = images(&backend, (0..90).map(Some));
        let config = config(calibrated);
        let [cpu, gpu] = [On::Cpu, On::Gpu(&context)]
            .map(|on| run(&on, backend.share(), &images, &config, places.clone()));
        assert!(cpu.map.keyframes.len() > 6, "{}", cpu.map.keyframes.len());
        let what = format!("calibrated {calibrated}");
        compare(&what, &cpu, &gpu, &poses);
    }
}

#[test]
fn every_filtering_mode_makes_the_cpu_s_map() {
    use FilteringMode::*;
    let Some(context) = super::cuda() else { return };
    let poses = square_walk(90, 1.0)[..30].to_vec();
    for mode in [
        WeightedPointmap,
        WeightedSpherical,
        Recent,
        First,
        BestScore,
        IndepConf,
    ] {
        let backend = RoomBackend::new(SIZE, poses.clone(), SPOIL);
        let images = images(&backend, (0..30).map(Some));
        let mut config = config(true);
        config.tracking.filtering_mode = mode;
        let [cpu, gpu] = [On::Cpu, On::Gpu(&context)]
            .map(|on| run(&on, backend.share(), &images, &config, None));
        compare(&format!("{mode:?}"), &cpu, &gpu, &poses);
    }
}

#[test]
fn points_may_be_what_is_solved_for() {
    let Some(context) = super::cuda() else { return };
    let poses = square_walk(90, 1.0)[..30].to_vec();
    let backend = RoomBackend::new(SIZE, poses.clone(), SPOIL);
    let images = images(&backend, (0..30).map(Some));
    let mut config = config(true);
    config.local_opt.residual = ResidualChoice::Points;
    let [cpu, gpu] =
        [On::Cpu, On::Gpu(&context)].map(|on| run(&on, backend.share(), &images, &config, None));
    compare("points", &cpu, &gpu, &poses);
}

#[test]
fn a_kidnapped_camera_is_found_again_as_on_the_cpu() {
    let Some(context) = super::cuda() else { return };
    let poses = square_walk(60, 0.6);
    let spoil = Spoil { bias: 0.0, ..SPOIL };
    let order: Vec<Option<usize>> = (0..30)
        .map(Some)
        .chain([None; 10])
        .chain((5..20).map(Some))
        .collect();
    // The view of the camera over time, and nothing while it was covered.
    let truth: Vec<Sim3> = order.iter().map(|k| poses[k.unwrap_or(0)]).collect();
    for calibrated in [false, true] {
        // With places, and among the newest keyframes.
        for known in [true, false] {
            let mut backend = RoomBackend::new(SIZE, poses.clone(), spoil);
            let places = known.then(|| vocabulary(&mut backend));
            let images = images(&backend, order.iter().copied());
            let mut config = config(calibrated);
            config.retrieval.k = 8;
            let [cpu, gpu] = [On::Cpu, On::Gpu(&context)]
                .map(|on| run(&on, backend.share(), &images, &config, places.clone()));
            if known {
                assert!(cpu.counts.relocalised > 0, "{:?}", cpu.counts);
            }
            let what = format!("kidnapped, calibrated {calibrated}, places {known}");
            compare(&what, &cpu, &gpu, &truth);
        }
    }
}

#[test]
fn two_runs_give_the_same_bits() {
    let Some(context) = super::cuda() else { return };
    let poses = square_walk(60, 1.1);
    let mut backend = RoomBackend::new(SIZE, poses, SPOIL);
    let places = Some(vocabulary(&mut backend));
    let images = images(&backend, (0..60).map(Some));
    let once = || {
        let on = On::Gpu(&context);
        let walked = run(
            &on,
            backend.share(),
            &images,
            &config(false),
            places.clone(),
        );
        bits(&walked.map)
    };
    super::assert_same("second run", &once(), &once());
}

#[test]
fn the_pipelined_gpu_makes_the_same_decisions_up_to_its_poses() {
    let Some(context) = super::cuda() else { return };
    let poses = square_walk(60, 0.7);
    let backend = RoomBackend::new(SIZE, poses.clone(), Spoil::default());
    let images = images(&backend, (0..60).map(Some));
    let [single, pipelined] = [Threads::Single, Threads::Pipelined].map(|threads| {
        let config = Config {
            threads,
            loops: Loops::Off,
            ..config(false)
        };
        run(&On::Gpu(&context), backend.share(), &images, &config, None)
    });
    let (a, b) = (&single.map, &pipelined.map);
    super::assert_same("frames", &decisions(b), &decisions(a));
    super::assert_same("edges", &edges(b), &edges(a));
}

/// A graph of more keyframes and edges than have slots is led past the GPU in parts; an edge's
/// equations are the same bits either way.
fn few_slots(context: &Context, frames: usize, slots: usize, window: usize) {
    let start = Instant::now();
    let size = (48, 32);
    let poses = square_walk(frames, 3.0);
    let backend = RoomBackend::new(size, poses, Spoil { bias: 0.0, ..SPOIL });
    let images = images(&backend, (0..frames).map(Some));
    let mut config = config(false);
    // Every frame is a keyframe.
    config.tracking.match_frac_thresh = 1.01;
    // A pixel of such small images is more than a degree.
    config.tracking.min_fit_frac = 0.0;
    config.loops = Loops::Off;
    config.local_opt.max_iters = 2;
    config.local_opt.window = window;
    let of = |keyframe_slots, host_slots, edges| {
        let mut config = config.clone();
        config.memory.keyframe_slots = keyframe_slots;
        config.memory.host_slots = host_slots;
        config.memory.edges = edges;
        run(&On::Gpu(context), backend.share(), &images, &config, None)
    };
    let few = of(slots, slots, slots);
    println!(
        "{frames} keyframes on {slots} slots: {:.1} s",
        start.elapsed().as_secs_f64()
    );
    let enough = of(frames + 8, 1, frames + 8);
    assert_eq!(few.map.keyframes.len(), frames);
    super::assert_same("edges", &edges(&few.map), &edges(&enough.map));
    super::assert_same("trajectory and points", &bits(&few.map), &bits(&enough.map));
}

#[test]
fn few_slots_change_no_bit() {
    let Some(context) = super::cuda() else { return };
    // Windows that fit the slots, and solves of everything, which do not.
    few_slots(&context, 120, 16, 8);
    few_slots(&context, 60, 16, 0);
}

#[test]
#[ignore = "minutes: 5,000 keyframes"]
fn five_thousand_keyframes_on_64_slots() {
    let Some(context) = super::cuda() else { return };
    few_slots(&context, 5000, 64, 32);
}

#[test]
fn tracking_allocates_nothing_once_it_is_warm() {
    const FRAMES: usize = 40;
    const WARM: usize = 8;
    let Some(context) = super::cuda() else { return };
    let walk = square_walk(1000, 1.0)[..FRAMES].to_vec();
    let spoil = Spoil { bias: 0.0, ..SPOIL };
    let recording = Recording::of(RoomBackend::new(SIZE, walk, spoil));
    for calibrated in [false, true] {
        for mode in [FilteringMode::WeightedPointmap, FilteringMode::BestScore] {
            let mut config = config(calibrated);
            config.tracking.filtering_mode = mode;
            let mut image = RgbImage::new(SIZE.0, SIZE.1);
            // A black image is not tracked.
            image.data.fill(90);
            let before = allocations();
            let on = On::Gpu(&context);
            let mut system = system(&on, Box::new(recording.clone()), &config, None);
            // All memory is one allocation of each kind.
            let started = allocations();
            assert_eq!(
                (
                    started.device - before.device,
                    started.pinned - before.pinned
                ),
                (1, 1)
            );
            let mut host = Vec::with_capacity(FRAMES);
            for index in 0..FRAMES {
                image.data[0] = index as u8;
                let input = Frame {
                    index,
                    stamp: stamp(index),
                    image: (&image).into(),
                };
                let before = thread_allocations();
                let record = system.process(&input);
                host.push(thread_allocations() - before);
                let record = record.expect("frame");
                if index > 0 {
                    assert_eq!(record.state, TrackingState::Tracking, "frame {index}");
                    assert_eq!(record.keyframe, None, "frame {index}");
                    assert!(record.iterations > 0);
                    assert!(record.times.matching > 0.0 && record.times.fusion > 0.0);
                }
            }
            assert_eq!(allocations(), started, "calibrated {calibrated}, {mode:?}");
            assert!(host[0] > 0, "counting counts");
            super::assert_same(
                "host allocations by frame",
                &host[WARM..],
                &[0; FRAMES - WARM],
            );
        }
    }
}

/// A backend that computes in the GPU's memory needs no staging, and makes the same map.
#[test]
fn a_network_in_place_makes_the_same_map_as_one_on_the_host() {
    let Some(context) = super::cuda() else { return };
    let poses = square_walk(60, 1.0);
    let mut backend = RoomBackend::new(SIZE, poses, SPOIL);
    let places = Some(vocabulary(&mut backend));
    let images = images(&backend, (0..60).map(Some));
    let on = On::Gpu(&context);
    let config = config(true);
    let host = run(&on, backend.share(), &images, &config, places.clone());
    let in_place = InPlace::new(&context, backend.share());
    let there = run(&on, Box::new(in_place), &images, &config, places);
    super::assert_same("frames", &decisions(&there.map), &decisions(&host.map));
    super::assert_same("bits", &bits(&there.map), &bits(&host.map));
}

/// The map of images of most of which the frame before was told, but of some nothing, another one, or one of another
/// size.
fn told_ahead(mut system: Slam, images: &[RgbImage]) -> MapSnapshot {
    let (width, height) = (images[0].width, images[0].height);
    let wider = RgbImage::new(width + 16, height);
    for (index, image) in images.iter().enumerate() {
        let next = match index % 7 {
            3 => images.first(),
            4 => None,
            5 => Some(&wider),
            _ => images.get(index + 1),
        };
        let next = next.map(Into::into);
        let frame = Frame {
            index,
            stamp: stamp(index),
            image: image.into(),
        };
        system.process_before(&frame, next.as_ref()).expect("frame");
    }
    system.complete().expect("finish");
    system.snapshot()
}

#[test]
fn images_that_are_encoded_ahead_make_the_same_map() {
    let Some(context) = super::cuda() else { return };
    let mut backend = RoomBackend::new(SIZE, square_walk(60, 1.0), SPOIL);
    let places = Some(vocabulary(&mut backend));
    let images = images(&backend, (0..60).map(Some));
    let (on, config) = (On::Gpu(&context), config(true));
    let expected = run(&on, backend.share(), &images, &config, places.clone()).map;
    let beside = Box::new(InPlace::beside(&context, backend.share()));
    let map = told_ahead(system(&on, beside, &config, places), &images);
    super::assert_same("frames", &decisions(&map), &decisions(&expected));
    super::assert_same("bits", &bits(&map), &bits(&expected));
}

/// The same with the bundled network, whose encoder runs beside its decoder.
#[test]
fn the_bundled_network_encodes_ahead_and_makes_the_same_map() {
    let Some(context) = super::cuda() else { return };
    let folder = testkit::repository("assets/room_loop/rgb");
    let mut paths: Vec<_> = (std::fs::read_dir(folder).expect("images"))
        .map(|entry| entry.expect("an image").path())
        .collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| mast3r_slam::image::decode(path).expect("an image");
    let images: Vec<RgbImage> = paths.iter().take(30).map(read).collect();
    let config = Config {
        threads: Threads::Single,
        loops: Loops::Off,
        ..Config::builtin("mini").expect("built in")
    };
    let network = super::native::bundled();
    let backend = NativeBackend::new(&network, images[0].width, images[0].height, None);
    let backend = backend.expect("the GPU");
    let on = On::Gpu(&context);
    let expected = run(&on, backend.share(), &images, &config, None).map;
    let map = told_ahead(system(&on, backend.share(), &config, None), &images);
    let tracked = |map: &MapSnapshot| {
        let of = |state| map.frames.iter().filter(|f| f.state == state).count();
        of(TrackingState::Tracking)
    };
    assert!(
        tracked(&expected) > 20,
        "{} are tracked",
        tracked(&expected)
    );
    super::assert_same("frames", &decisions(&map), &decisions(&expected));
    super::assert_same("bits", &bits(&map), &bits(&expected));
}

#[test]
fn a_plan_that_does_not_fit_says_what_to_lower() {
    let Some(context) = super::cuda() else { return };
    let backend = RoomBackend::new(SIZE, square_walk(4, 0.1), SPOIL);
    let mut config = config(false);
    // Terabytes.
    config.memory.keyframe_slots = 60_000;
    config.memory.edges = 60_000_000;
    let setup = Setup {
        config: Arc::new(DeviceConfig::from(&config)),
        preprocessor: None,
        intrinsics: None,
        places: None,
    };
    let cuda = CudaSetup {
        camera: CameraFormat {
            encoding: Encoding::Rgb8,
            stride: 3 * SIZE.0,
        },
        directory: None,
    };
    let made = device::device(&context, Box::new(backend), setup, &cuda);
    let error = made.err().expect("it cannot fit").to_string();
    println!("{error}");
    for word in ["memory.edges", "memory.keyframe_slots"] {
        assert!(error.contains(word), "{word} is not in: {error}");
    }
}

#[test]
fn an_image_of_another_size_is_refused_and_the_run_goes_on() {
    let Some(context) = super::cuda() else { return };
    let backend = RoomBackend::new(SIZE, square_walk(400, 1.0)[..6].to_vec(), SPOIL);
    let images = images(&backend, (0..6).map(Some));
    let mut system = system(&On::Gpu(&context), Box::new(backend), &config(false), None);
    let show = |system: &mut Slam, k: usize, image: &RgbImage| {
        let (index, stamp) = (k, stamp(k));
        let image = image.into();
        system.process(&Frame {
            index,
            stamp,
            image,
        })
    };
    show(&mut system, 0, &images[0]).expect("frame");
    let error = show(&mut system, 1, &RgbImage::new(SIZE.0 + 16, SIZE.1)).expect_err("wider");
    assert!(
        matches!(error, SlamError::Image { index: 1, .. }),
        "{error}"
    );
    let record = show(&mut system, 2, &images[2]).expect("frame");
    assert_eq!(record.state, TrackingState::Tracking);
}

/// A kernel that faults takes the whole process's GPU with it, so this is done in a process of its own.
#[test]
fn a_gpu_that_is_lost_ends_the_run_and_leaves_the_poses() {
    if super::cuda().is_none() {
        return;
    }
    let this = std::env::current_exe().expect("this program");
    let output = Command::new(this)
        .args(["--exact", "slam::lose_the_gpu", "--ignored", "--nocapture"])
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("poses are kept"), "{said}");
}

#[test]
#[ignore = "loses the GPU for the whole process; run by a_gpu_that_is_lost_ends_the_run_and_leaves_the_poses"]
fn lose_the_gpu() {
    let Some(context) = super::cuda() else { return };
    let backend = RoomBackend::new(SIZE, square_walk(60, 0.6), SPOIL);
    let images = images(&backend, (0..30).map(Some));
    let config = Config {
        loops: Loops::Off,
        ..config(false)
    };
    let mut system = system(&On::Gpu(&context), Box::new(backend), &config, None);
    let show = |system: &mut Slam, k: usize| {
        let input = Frame {
            index: k,
            stamp: stamp(k),
            image: (&images[k]).into(),
        };
        system.process(&input)
    };
    for k in 0..25 {
        show(&mut system, k).expect("frame");
    }
    let stream = context.stream(Priority::Low).expect("stream");
    let kernel = context.kernel("ms_convert_f32_to_f16").expect("kernel");
    let (src, dst) = (DevicePointer::<f32>::NULL, DevicePointer::<f16>::NULL);
    // SAFETY: none: that the kernel faults is the point, and this process ends with the test.
    let launched = unsafe { kernel.launch(&stream, Grid::over(1024, 256), (src, dst, 1024_u64)) };
    launched.expect("launched");
    let _ = stream.synchronize();

    let error = (25..30).find_map(|k| show(&mut system, k).err());
    let error = error.expect("the GPU is lost");
    println!("{error}");
    assert!(
        matches!(error, SlamError::Device(DeviceError::Lost { .. })),
        "{error}"
    );
    system.complete().expect_err("it is still lost");
    let map = system.snapshot();
    assert!(map.frames.len() >= 25);
    assert!(
        map.frames[..25]
            .iter()
            .all(|f| f.state != TrackingState::Lost)
    );
    assert!(!map.keyframes.is_empty());
    assert!(map.keyframes.iter().all(|k| k.view().points.is_empty()));
}

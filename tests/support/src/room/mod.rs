//! A small analytic room with boxes, ray-cast exactly, behind the `Backend` trait: SLAM sees
//! pointmaps and descriptors whose truth is known, without a network.

pub mod body;
pub mod metric;
pub mod recording;
pub mod rig;
pub mod walk;

use crate::camera::centred;
use mast3r_slam::compute::cpu;
use mast3r_slam::compute::device::Setup;
use mast3r_slam::compute::retrieval::RetrievalModel;
use mast3r_slam::config::{Config, DeviceConfig};
use mast3r_slam::geometry::{Intrinsics, Sim3};
use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::{Backend, InferenceError, NetworkShape, PairOutput, ViewOutput};
use mast3r_slam::slam::{Pace, Slam};
use nalgebra::Vector3;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// SLAM on the CPU for images of the backend's size; calibrated if `config` says so.
pub fn cpu_slam(
    config: Config,
    pace: Pace,
    backend: Box<dyn Backend>,
    places: Option<Arc<RetrievalModel>>,
    camera: Option<Intrinsics>,
) -> Slam {
    let config = Arc::new(config);
    let intrinsics = camera.filter(|_| config.use_calib);
    let setup = Setup {
        config: Arc::new(DeviceConfig::from(&*config)),
        preprocessor: None,
        intrinsics,
        places,
    };
    let device = cpu::device(backend, setup);
    Slam::new(&config, pace, device, intrinsics).expect("a mapping thread")
}

/// Image size (width, height) that most tests use.
pub const SIZE: (usize, usize) = (128, 96);
const CHANNELS: usize = 32;
const DESCRIPTOR: usize = 24;
const INDEX_SCALE: f32 = 1e-4;

/// How the room's measurements are spoilt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spoil {
    /// Standard deviation of a point's range, relative.
    pub noise: f64,
    /// Fraction of pixels whose range is drawn at random.
    pub outliers: f64,
    /// Relative error of range that varies slowly over the image and from pair to pair.
    pub bias: f64,
}

/// A counter-based generator: the same numbers for the same pair and pixel, in any order of calls.
fn hash(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn uniform(seed: u64, k: u64) -> f64 {
    (hash(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash(k)) >> 11) as f64 / (1u64 << 53) as f64
}

fn normal(seed: u64, k: u64) -> f64 {
    let (a, b) = (uniform(seed, 2 * k).max(1e-300), uniform(seed, 2 * k + 1));
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

/// Axis-aligned boxes: the room from inside, the furniture from outside.
struct Scene {
    room: (Vector3<f64>, Vector3<f64>),
    boxes: Vec<(Vector3<f64>, Vector3<f64>)>,
}

impl Scene {
    fn new() -> Self {
        let v = Vector3::new;
        Self {
            room: (v(-4.0, -1.6, -4.0), v(4.0, 1.4, 4.0)),
            boxes: vec![
                (v(-0.8, 0.2, -0.8), v(0.8, 1.4, 0.8)),
                (v(3.1, -0.2, -1.0), v(4.0, 1.4, 0.7)),
                (v(-4.0, -0.9, 1.0), v(-3.2, 1.4, 2.6)),
                (v(-1.5, 0.3, 3.2), v(1.2, 1.4, 4.0)),
                (v(0.5, -0.5, -4.0), v(2.5, 1.4, -3.4)),
                (v(-3.6, 0.6, -3.5), v(-2.6, 1.4, -2.4)),
            ],
        }
    }

    /// Distance along `ray` from `eye` to the first surface.
    fn cast(&self, eye: &Vector3<f64>, ray: &Vector3<f64>) -> f64 {
        let slab = |(low, high): &(Vector3<f64>, Vector3<f64>)| {
            let (mut near, mut far) = (f64::NEG_INFINITY, f64::INFINITY);
            for k in 0..3 {
                let (a, b) = ((low[k] - eye[k]) / ray[k], (high[k] - eye[k]) / ray[k]);
                near = near.max(a.min(b));
                far = far.min(a.max(b));
            }
            (near, far)
        };
        let mut best = slab(&self.room).1;
        for furniture in &self.boxes {
            let (near, far) = slab(furniture);
            if near < far && near > 0.0 {
                best = best.min(near);
            }
        }
        best
    }
}

/// The view of one camera: points in its camera frame.
struct Seen {
    points: Vec<Vector3<f64>>,
}

/// The room, filmed from `poses`.
pub struct RoomBackend {
    shape: NetworkShape,
    poses: Arc<Vec<Sim3>>,
    seen: Arc<Vec<Seen>>,
    /// Directions of the descriptors' waves, and their wave numbers.
    waves: Arc<[(Vector3<f64>, f64)]>,
    described: Arc<Mutex<VecDeque<(usize, Descriptors)>>>,
    spoil: Spoil,
}

/// Descriptors of a view's pixels, `N × DESCRIPTOR`.
type Descriptors = Arc<[f32]>;

/// Views whose descriptors are kept: each is asked for again and again for as long as its frame is a keyframe.
const DESCRIBED: usize = 48;

pub fn intrinsics(size: (usize, usize)) -> Intrinsics {
    centred(0.7, size)
}

impl RoomBackend {
    pub fn new((width, height): (usize, usize), poses: Vec<Sim3>, spoil: Spoil) -> Self {
        let (scene, k) = (Scene::new(), intrinsics((width, height)));
        let seen = poses
            .iter()
            .map(|pose| Seen {
                points: (0..width * height)
                    .map(|n| {
                        let ray = k.ray((n % width) as f64, (n / width) as f64);
                        ray * scene.cast(&pose.translation, &(pose.rotation * ray))
                    })
                    .collect(),
            })
            .collect();
        Self {
            shape: NetworkShape {
                width,
                height,
                tokens: width * height / 256,
                feature_dim: CHANNELS,
                descriptor_dim: DESCRIPTOR,
            },
            poses: Arc::new(poses),
            seen: Arc::new(seen),
            waves: waves(),
            described: Arc::default(),
            spoil,
        }
    }

    /// Frames of the walk.
    pub fn frames(&self) -> usize {
        self.poses.len()
    }

    /// The true depth of frame `index` along the camera's z axis, in metres.
    pub fn depth(&self, index: usize) -> Vec<f32> {
        let points = self.seen[index].points.iter();
        points.map(|p| p.z as f32).collect()
    }

    /// The image that stands for frame `index`: its number, and a colour; all black is no frame.
    pub fn image(&self, index: usize) -> RgbImage {
        let mut image = RgbImage::new(self.shape.width, self.shape.height);
        image.data.fill(90);
        let code = (index as u32 + 1).to_le_bytes();
        image.data[..4].copy_from_slice(&code);
        image
    }

    /// A frame that shows nothing: the network's output for it is all zero.
    pub fn black_image(&self) -> RgbImage {
        RgbImage::new(self.shape.width, self.shape.height)
    }

    fn frame_of(&self, features: &[f32]) -> Option<usize> {
        let code = (features[CHANNELS - 1] / INDEX_SCALE).round() as usize;
        code.checked_sub(1)
    }

    /// `view`'s pixels in the camera of `reference`, with this pair's errors.
    fn view(&self, reference: usize, view: usize, role: u64, out: &mut ViewOutput) {
        let (width, height) = (self.shape.width, self.shape.height);
        let relative = self.poses[reference].inverse() * self.poses[view];
        let seed = hash((reference as u64) << 32 | (view as u64) << 2 | role);
        let phase: Vec<f64> = (0..4)
            .map(|k| std::f64::consts::TAU * uniform(seed, 9_000_000 + k))
            .collect();
        let pair_bias = self.spoil.bias * normal(seed, 9_100_000);
        for (n, p) in self.seen[view].points.iter().enumerate() {
            let (u, v) = (
                (n % width) as f64 / width as f64,
                (n / width) as f64 / height as f64,
            );
            let mut range = 1.0;
            if self.spoil.noise > 0.0 {
                range += self.spoil.noise * normal(seed, n as u64);
            }
            range += pair_bias
                + self.spoil.bias * ((4.0 * u + phase[0]).sin() + (3.0 * v + phase[1]).cos());
            if uniform(seed, 5_000_000 + n as u64) < self.spoil.outliers {
                range *= 0.3 + 2.0 * uniform(seed, 6_000_000 + n as u64);
            }
            let q = relative.transform(&(p * range));
            for k in 0..3 {
                out.points[3 * n + k] = q[k] as f32;
            }
            out.confidence[n] = 3.0;
            out.descriptor_confidence[n] = 4.0;
        }
        out.descriptors.copy_from_slice(&self.descriptors(view));
    }

    /// Unit descriptors that change smoothly over the surfaces and repeat nowhere near.
    fn descriptors(&self, view: usize) -> Descriptors {
        let described = || self.described.lock().unwrap_or_else(|e| e.into_inner());
        let mut kept = described();
        if let Some(at) = kept.iter().position(|(of, _)| *of == view) {
            let found = kept.remove(at).expect("it was found");
            let descriptors = Arc::clone(&found.1);
            kept.push_back(found);
            return descriptors;
        }
        drop(kept);
        let norm = (DESCRIPTOR as f64 / 2.0).sqrt();
        let mut out = vec![0.0; self.seen[view].points.len() * DESCRIPTOR];
        for (p, out) in self.seen[view]
            .points
            .iter()
            .zip(out.chunks_exact_mut(DESCRIPTOR))
        {
            let p = self.poses[view].transform(p);
            for ((direction, number), pair) in self.waves.iter().zip(out.chunks_exact_mut(2)) {
                let angle = direction.dot(&p) * number;
                pair[0] = (angle.cos() / norm) as f32;
                pair[1] = (angle.sin() / norm) as f32;
            }
        }
        let descriptors = Descriptors::from(out);
        let mut kept = described();
        if kept.len() == DESCRIBED {
            kept.pop_front();
        }
        kept.push_back((view, Arc::clone(&descriptors)));
        descriptors
    }
}

fn waves() -> Arc<[(Vector3<f64>, f64)]> {
    let wave = |k: u64| {
        let direction = Vector3::new(
            uniform(77, 3 * k) - 0.5,
            uniform(77, 3 * k + 1) - 0.5,
            uniform(77, 3 * k + 2) - 0.5,
        );
        (direction.normalize(), 2.0 + 2.5 * k as f64)
    };
    (0..DESCRIPTOR as u64 / 2).map(wave).collect()
}

impl Backend for RoomBackend {
    fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    fn name(&self) -> String {
        "analytic room".into()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            shape: self.shape.clone(),
            poses: Arc::clone(&self.poses),
            seen: Arc::clone(&self.seen),
            waves: Arc::clone(&self.waves),
            described: Arc::clone(&self.described),
            spoil: self.spoil,
        })
    }

    /// A token is a random vector of the half-metre cell that its patch's centre looks at, so that
    /// two views of one place share words.
    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        let code = u32::from_le_bytes([image.data[0], image.data[1], image.data[2], image.data[3]]);
        // Foreign images (the network's self-test has some) show one place or another.
        let code = if code as usize <= self.poses.len() {
            code
        } else {
            let sum: u64 = image.data.iter().map(|&b| u64::from(b)).sum();
            (sum % self.poses.len() as u64) as u32 + 1
        };
        let frame = (code as usize).checked_sub(1);
        let columns = self.shape.width / 16;
        for (t, token) in features.chunks_exact_mut(CHANNELS).enumerate() {
            let cell = frame.map_or(t as u64, |f| {
                let n = ((t / columns) * 16 + 8) * self.shape.width + (t % columns) * 16 + 8;
                let p = self.poses[f].transform(&self.seen[f].points[n]) * 2.0;
                let q = |x: f64| (x.floor() + 100.0) as u64;
                1_000_000 * q(p.x) + 1000 * q(p.y) + q(p.z)
            });
            for (k, value) in token.iter_mut().enumerate() {
                *value = normal(hash(cell), k as u64) as f32;
            }
            token[CHANNELS - 1] = INDEX_SCALE * code as f32;
        }
        Ok(())
    }

    fn decode(&mut self, a: &[f32], b: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        match (self.frame_of(a), self.frame_of(b)) {
            (Some(a), Some(b)) => {
                self.view(a, a, u64::from(a == b), &mut out.view1);
                self.view(a, b, 2, &mut out.view2);
            }
            _ => *out = PairOutput::zeros(&self.shape),
        }
        Ok(())
    }
}

/// A walk around the central box along a rounded square, looking ahead and outwards; `laps` of it
/// in `frames` steps. World y points down, as in the camera.
pub fn square_walk(frames: usize, laps: f64) -> Vec<Sim3> {
    (0..frames)
        .map(|k| {
            let a = std::f64::consts::TAU * laps * k as f64 / frames as f64;
            // |x|⁴ + |z|⁴ = r⁴
            let r = 2.1 / (a.cos().powi(4) + a.sin().powi(4)).powf(0.25);
            let eye = Vector3::new(r * a.cos(), 0.08 * (3.0 * a).sin(), r * a.sin());
            let look = Vector3::new(
                -(a + 0.35).sin() + 0.6 * a.cos(),
                0.05,
                (a + 0.35).cos() + 0.6 * a.sin(),
            );
            Sim3::look_at(eye, eye + look, Vector3::new(0.0, 1.0, 0.0))
        })
        .collect()
}

/// Metres walked.
pub fn path_length(poses: &[Sim3]) -> f64 {
    poses
        .windows(2)
        .map(|w| (w[1].translation - w[0].translation).norm())
        .sum()
}

//! Settings: one struct per subsystem, with the reference's values for the official model as defaults.
//! Key names are the reference's, so that its users find them. [`load()`] reads YAML files.

mod builtin;
mod error;
mod load;
mod schema;
mod validate;

pub use builtin::{builtin, builtin_names};
pub use error::ConfigError;
pub use load::{Base, load, load_with};

use serde::{Deserialize, Serialize};

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Use the camera's intrinsics: undistort, constrain pointmaps to rays, pixel residuals.
    pub use_calib: bool,
    /// What everything but the network runs on.
    pub device: DeviceChoice,
    /// How stages are scheduled.
    pub threads: Threads,
    /// Loop closures: retrieval and the edges it proposes.
    pub loops: Loops,
    /// The network and its input.
    pub network: NetworkConfig,
    /// Reading frames.
    pub dataset: DatasetConfig,
    /// Pixel matching.
    pub matching: MatchingConfig,
    /// Frame-to-keyframe tracking.
    pub tracking: TrackingConfig,
    /// Global optimisation.
    pub local_opt: LocalOptConfig,
    /// Place recognition.
    pub retrieval: RetrievalConfig,
    /// Relocalisation.
    pub reloc: RelocConfig,
    /// Memory of a GPU.
    pub memory: MemoryConfig,
    /// What is written.
    pub output: OutputConfig,
}

/// What everything but the network runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// A GPU that can be used, else the CPU, which is then said.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU; without one nothing runs.
    Cuda,
}

/// How stages are scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Threads {
    /// Mapping in its own thread; tracking never waits for it.
    #[default]
    Pipelined,
    /// Mapping is done before the next frame, which is bit-for-bit repeatable. (Stages still use all
    /// cores.)
    Single,
}

/// Whether places seen before are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Loops {
    /// Loop closures are found and used.
    #[default]
    On,
    /// Only consecutive keyframes are connected (relocalisation still works).
    Off,
}

/// The network and its input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Long side of the network's input in pixels, a multiple of 16 (DUNE-MASt3R: 14).
    pub size: usize,
    /// Checkpoint: the official `.pth` or a safetensors file. Empty: the bundled mini model.
    pub weights: String,
    /// What the network runs on.
    pub backend: BackendChoice,
    /// What it computes with.
    pub precision: PrecisionChoice,
    /// ONNX Runtime's library, or a folder with it. Empty: it is looked for.
    pub onnxruntime: String,
    /// Folder of TensorRT's engines. Empty: `mast3r_slam/engines` in the user's folder for caches.
    pub engines: String,
    /// Whether TensorRT may build an engine where none fits, which takes minutes.
    pub build_engine: bool,
}

/// What the network computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionChoice {
    /// binary16 on a GPU, binary32 on the CPU.
    #[default]
    Auto,
    /// binary32
    Fp32,
    /// binary16, with what needs more in binary32.
    Fp16,
    /// The upper half of binary32, likewise. TensorRT only.
    Bf16,
    /// binary16, with 8-bit floats in the transformer's linear layers. TensorRT only.
    Fp8,
}

/// What the network runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// The quickest that works where [`Config::device`] says.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// ONNX Runtime.
    Onnxruntime,
    /// TensorRT.
    Tensorrt,
}

/// Reading frames.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatasetConfig {
    /// Keep every n-th frame.
    pub subsample: usize,
    /// Put the principal point in the middle when undistorting (the reference's spelling).
    pub center_principle_point: bool,
    /// Reproduce the reference's intrinsics: no half-pixel term, crop offset half a pixel off for odd sizes.
    pub parity_intrinsics: bool,
}

/// Pixel matching (spec 3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MatchingConfig {
    /// Iterations of the projective search, always all of them.
    pub max_iter: usize,
    /// Initial damping.
    pub lambda_init: f32,
    /// Squared chord of unit rays below which a search counts as converged.
    pub convergence_thresh: f32,
    /// Distance of the two points of a match, in the network's metres.
    pub dist_thresh: f32,
    /// Half width of the descriptor search, in steps; 0 skips it.
    pub radius: usize,
    /// Widest step of the descriptor search, in pixels.
    pub dilation_max: usize,
}

/// Frame-to-keyframe tracking (spec 5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrackingConfig {
    /// Below this fraction of matched pixels tracking is lost.
    pub min_match_frac: f32,
    /// Most Gauss-Newton iterations.
    pub max_iters: usize,
    /// Gate on the average confidence of points.
    #[serde(rename = "C_conf")]
    pub c_conf: f32,
    /// Gate on match quality, the geometric mean of the two descriptor confidences.
    #[serde(rename = "Q_conf")]
    pub q_conf: f32,
    /// Stop when the cost falls by less than this fraction.
    pub rel_error: f64,
    /// Stop when the step is shorter than this.
    pub delta_norm: f64,
    /// Huber constant, in sigmas.
    pub huber: f64,
    /// A new keyframe below this fraction of matched (or of distinct matched) pixels.
    pub match_frac_thresh: f32,
    /// Of a ray's chord.
    pub sigma_ray: f64,
    /// Of a distance, metres.
    pub sigma_dist: f64,
    /// Of a pixel.
    pub sigma_pixel: f64,
    /// Of a log depth.
    pub sigma_depth: f64,
    /// Calibrated only: how far outside the image a projection may fall is `-pixel_border`.
    pub pixel_border: f64,
    /// Calibrated only: least depth.
    pub depth_eps: f64,
    /// How a keyframe's pointmap absorbs new ones.
    pub filtering_mode: FilteringMode,
    /// Score of `best_score`.
    pub filtering_score: FilteringScore,
}

/// How a keyframe's pointmap absorbs new ones (spec 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum FilteringMode {
    /// Confidence-weighted mean of positions.
    #[default]
    WeightedPointmap,
    /// Confidence-weighted mean of directions and ranges.
    WeightedSpherical,
    /// The newest.
    Recent,
    /// The second estimate, then no more.
    First,
    /// The one with the best score.
    BestScore,
    /// For each pixel the most confident.
    IndepConf,
}

/// The score that `best_score` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum FilteringScore {
    /// Lower median of the confidences.
    #[default]
    Median,
    /// Mean of the confidences.
    Mean,
}

/// Global optimisation (spec 6).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalOptConfig {
    /// What is measured.
    pub residual: ResidualChoice,
    /// Leading keyframes that stay fixed.
    pub pin: usize,
    /// Gate on the average confidence of points.
    #[serde(rename = "C_conf")]
    pub c_conf: f32,
    /// Gate on match quality.
    #[serde(rename = "Q_conf")]
    pub q_conf: f32,
    /// Most keyframes; the run ends there with its map saved. 0: no limit but memory (about 2.3 MB a
    /// keyframe and 0.9 MB an edge at 256×192, four times that at 512×384).
    pub max_keyframes: usize,
    /// Newest keyframes that a solve moves once there are more than these, with the older ones that new
    /// edges reach; all others stay, but for a solve of everything where a loop is closed. 0: always
    /// everything.
    pub window: usize,
    /// Most keyframes of a solve that does not move everything, fixed ones too: where the newest are joined
    /// with more, fewer of them move. On a GPU such a solve should find room in `memory.keyframe_slots`,
    /// less four. 0: no limit.
    pub window_keyframes: usize,
    /// Most edges of such a solve, which should find room in `memory.edges`. 0: no limit.
    pub window_edges: usize,
    /// How many keyframes before a new one are connected with it, besides what retrieval finds; the
    /// reference has 1.
    pub neighbours: usize,
    /// Edges between keyframes that do not follow each other, and relocalisations, must give relative
    /// poses that differ by at most this many degrees when each direction is solved apart; 0 asks
    /// nothing, as the reference does.
    pub two_way_degrees: f64,
    /// Least fraction of matched pixels of an edge between non-consecutive keyframes.
    pub min_match_frac: f32,
    /// As in tracking.
    pub pixel_border: f64,
    /// As in tracking.
    pub depth_eps: f64,
    /// Most iterations.
    pub max_iters: usize,
    /// Stop when the step is shorter than this.
    pub delta_norm: f64,
    /// Stop when the cost falls by less than this fraction.
    pub rel_error: f64,
    /// Huber constant, in sigmas.
    pub huber: f64,
    /// Of a ray's chord.
    pub sigma_ray: f64,
    /// Of a distance, metres.
    pub sigma_dist: f64,
    /// Of a pixel.
    pub sigma_pixel: f64,
    /// Of a log depth.
    pub sigma_depth: f64,
    /// Of a point, metres (`residual: points`).
    pub sigma_point: f64,
}

/// What a solve of the whole graph measures (spec 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ResidualChoice {
    /// Pixels and log depths with the camera's intrinsics, else rays and distances.
    #[default]
    Camera,
    /// Distances of points in space; the reference has it and never uses it.
    Points,
}

/// Place recognition (spec 7).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetrievalConfig {
    /// Most candidates for each query.
    pub k: usize,
    /// Least score.
    pub min_thresh: f32,
    /// Codebook file. Empty: the one that belongs to the weights.
    pub codebook: String,
}

/// Relocalisation (spec 7.5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelocConfig {
    /// Least fraction of matched pixels.
    pub min_match_frac: f32,
    /// Whether every candidate must pass, not only one.
    pub strict: bool,
    /// Frames searched for without success after which a new submap starts. Frames that show nothing
    /// are not searched for.
    pub max_tries: usize,
}

/// Memory of a GPU: all of it is taken at start, so these are limits, not wishes. The CPU needs none of
/// them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Keyframes whose images, points and features stay in device memory; also the most that one solve
    /// looks at.
    pub keyframe_slots: usize,
    /// Keyframes that then move to pinned host memory; after these comes a file.
    pub host_slots: usize,
    /// Edges of the graph whose matches stay in device memory.
    pub edges: usize,
    /// Edges that a network on the GPU decodes in one call, at most; of 3 it decodes 2 and 1.
    pub edge_batch: usize,
    /// Keyframes that place recognition can remember.
    pub places: usize,
    /// Folder of the file for what fits neither device nor host memory. Empty: the system's for
    /// temporary files.
    pub directory: String,
}

/// What is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputConfig {
    /// Points of the cloud need more than this average confidence.
    #[serde(rename = "C_conf")]
    pub c_conf: f32,
    /// Edge of the cloud's voxels in metres; 0 keeps every point.
    pub voxel_size: f32,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            size: 512,
            weights: String::new(),
            backend: BackendChoice::default(),
            precision: PrecisionChoice::default(),
            onnxruntime: String::new(),
            engines: String::new(),
            build_engine: true,
        }
    }
}

impl Default for DatasetConfig {
    fn default() -> Self {
        Self {
            subsample: 1,
            center_principle_point: true,
            parity_intrinsics: false,
        }
    }
}

impl Default for MatchingConfig {
    fn default() -> Self {
        Self {
            max_iter: 10,
            lambda_init: 1e-8,
            convergence_thresh: 1e-6,
            dist_thresh: 0.1,
            radius: 3,
            dilation_max: 5,
        }
    }
}

impl Default for TrackingConfig {
    fn default() -> Self {
        Self {
            min_match_frac: 0.05,
            max_iters: 50,
            c_conf: 0.0,
            q_conf: 1.5,
            rel_error: 1e-3,
            delta_norm: 1e-3,
            huber: 1.345,
            match_frac_thresh: 0.333,
            sigma_ray: 0.003,
            sigma_dist: 10.0,
            sigma_pixel: 1.0,
            sigma_depth: 10.0,
            pixel_border: -10.0,
            depth_eps: 1e-6,
            filtering_mode: FilteringMode::default(),
            filtering_score: FilteringScore::default(),
        }
    }
}

impl Default for LocalOptConfig {
    fn default() -> Self {
        Self {
            residual: ResidualChoice::default(),
            pin: 1,
            max_keyframes: 0,
            window: 120,
            window_keyframes: 120,
            window_edges: 512,
            neighbours: 1,
            two_way_degrees: 0.0,
            c_conf: 0.0,
            q_conf: 1.5,
            min_match_frac: 0.1,
            pixel_border: -10.0,
            depth_eps: 1e-6,
            max_iters: 10,
            delta_norm: 1e-8,
            rel_error: 1e-6,
            huber: 1.345,
            sigma_ray: 0.003,
            sigma_dist: 10.0,
            sigma_pixel: 1.0,
            sigma_depth: 10.0,
            sigma_point: 0.05,
        }
    }
}

impl Default for RetrievalConfig {
    fn default() -> Self {
        Self {
            k: 3,
            min_thresh: 5e-3,
            codebook: String::new(),
        }
    }
}

impl Default for RelocConfig {
    fn default() -> Self {
        Self {
            min_match_frac: 0.3,
            strict: true,
            max_tries: 60,
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            keyframe_slots: 128,
            host_slots: 128,
            edges: 512,
            edge_batch: 2,
            places: 8192,
            directory: String::new(),
        }
    }
}

impl Default for OutputConfig {
    fn default() -> Self {
        Self {
            c_conf: 1.5,
            voxel_size: 0.0,
        }
    }
}

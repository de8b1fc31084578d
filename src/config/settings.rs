//! Every setting, declared once: documentation, name, type, default, unit and range. From it come the structs, the
//! checks of types and ranges, and the table in `docs/configuration.md` (whose text is the documentation below).

use super::Range::{
    Any, AtLeast, Finite, Fraction, NotNegative, Patches, Path, PathBesideFile, Positive, Tenth,
    Whole,
};
use super::choices::{
    BackendChoice, DeviceChoice, FilteringMode, FilteringScore, Loops, PrecisionChoice,
    ResidualChoice, SplatStrategy, Threads,
};
use super::declare::{root, section};

root! {
    /// All settings.
    Config {
        /// Use the camera's intrinsics: undistort images, constrain pointmaps to the camera's rays, minimise pixel and
        /// log-depth residuals. Needs a calibration: the dataset's (`--calibrated`) or `--calib FILE`.
        use_calib: bool = false, "", Any;
        /// Where everything but the network runs. `auto`: a GPU if the program was built with CUDA and a usable one is
        /// there, else the CPU, with a message. `cuda`: a GPU or an error. Both make the same keyframes and edges;
        /// poses differ by rounding.
        device: DeviceChoice = DeviceChoice::Auto, "", Any;
        /// `pipelined`: mapping runs in its own thread beside tracking. `single`: mapping is done before the next
        /// frame, so a run repeats bit for bit. Either way each stage uses all cores (`--jobs`).
        threads: Threads = Threads::Pipelined, "", Any;
        /// Whether loops are closed at places seen before. Relocalisation works either way.
        loops: Loops = Loops::On, "", Any;
    }
    sections {
        /// The network and its input.
        network: NetworkConfig;
        /// Reading frames.
        dataset: DatasetConfig;
        /// Pixel matching.
        matching: MatchingConfig;
        /// Frame-to-keyframe tracking.
        tracking: TrackingConfig;
        /// Depth from a sensor.
        depth: DepthConfig;
        /// Global optimisation.
        local_opt: GlobalOptConfig;
        /// Place recognition.
        retrieval: RetrievalConfig;
        /// Relocalisation.
        reloc: RelocConfig;
        /// Map economy.
        economy: EconomyConfig;
        /// GPU memory.
        memory: MemoryConfig;
        /// Results.
        output: OutputConfig;
        /// Occupancy grid.
        grid: GridConfig;
        /// Gaussian map.
        splat: SplatConfig;
    }
}

section! {
    /// The network and its input.
    NetworkConfig = "network" {
        /// Long side of the network's input.
        size: usize = 512, "pixels", Patches(32, 4096);
        /// Checkpoint: the official `.pth` or a `.safetensors` file. Empty: the bundled mini model.
        weights: String = String::new(), "", PathBesideFile;
        /// What runs the network. `auto`: the first that works on `device`, with a message: TensorRT if an engine fits,
        /// `native`, ONNX Runtime on an NVIDIA GPU, the CPU; the faster of the first two where `bench` measured both
        /// ([backends.md](backends.md)). `native`: the program's own kernels on an NVIDIA GPU. `onnxruntime` runs on the
        /// GPU if its library can use one, else on the CPU.
        backend: BackendChoice = BackendChoice::Auto, "", Any;
        /// Arithmetic of the network. `auto`: half precision on a GPU (with TensorRT, if there is no such engine,
        /// another one that is there; with `native` bf16 for weights that fp16 cannot hold), single on the CPU. Half
        /// precision keeps norms' statistics, softmaxes and the final exponentials and norms in single. The CPU backend
        /// has single precision only, the native one fp16, bf16 and, for weights alone, fp8, ONNX Runtime single and
        /// half.
        precision: PrecisionChoice = PrecisionChoice::Auto, "", Any;
        /// ONNX Runtime's library or its folder (pip: `site-packages/onnxruntime/capi`). Empty: the environment
        /// variable `ORT_DYLIB_PATH`, else beside the program, in `lib` beside or above it, or in the system's paths.
        onnxruntime: String = String::new(), "", Path;
        /// Folder of TensorRT's engines ([tensorrt.md](tensorrt.md)). Empty: `mast3r_slam/engines` in the user's cache
        /// folder.
        engines: String = String::new(), "", PathBesideFile;
        /// Whether TensorRT may build an engine if none fits, which takes minutes. With `backend: auto` it does so only
        /// where `native` cannot run.
        build_engine: bool = true, "", Any;
    }
}

section! {
    /// Reading frames.
    DatasetConfig = "dataset" {
        /// Keep every n-th frame.
        subsample: usize = 1, "frames", AtLeast(1);
        /// Put the principal point in the middle when undistorting (the spelling is the reference's).
        center_principle_point: bool = true, "", Any;
        /// Compute intrinsics as the reference does: no half-pixel term, crop offset half a pixel off for odd sizes. Only
        /// for comparisons with it.
        parity_intrinsics: bool = false, "", Any;
    }
}

section! {
    /// Pixel matching (docs/algorithm.md, Matching).
    MatchingConfig = "matching" {
        /// Maximum iterations of the projective search.
        max_iter: usize = 10, "iterations", Whole(1, 1000);
        /// Initial damping of the search.
        lambda_init: f32 = 1e-8, "", Positive;
        /// A search has converged if it ends closer than this.
        convergence_thresh: f32 = 1e-6, "squared chord of unit rays", Positive;
        /// Maximum distance of the two points of a match; rejects occlusions.
        dist_thresh: f32 = 0.1, "metres", Positive;
        /// Half width of the descriptor search around the projection; 0 skips it.
        radius: usize = 3, "steps", Whole(0, 32);
        /// Largest step of the descriptor search; it decreases to 1.
        dilation_max: usize = 5, "pixels", Whole(1, 64);
    }
}

section! {
    /// Frame-to-keyframe tracking (docs/algorithm.md, Tracking).
    TrackingConfig = "tracking" {
        /// Minimum fraction of matched pixels; below it the frame is lost.
        min_match_frac: f32 = 0.05, "fraction", Fraction;
        /// Minimum fraction of matches whose direction the pose predicts within one degree or three pixels (two degrees
        /// without a calibration); below it the frame is lost, because no motion explains what is matched. 0: any.
        min_fit_frac: f64 = 0.5, "fraction", Fraction;
        /// Maximum Gauss-Newton iterations for a frame.
        max_iters: usize = 50, "iterations", Whole(1, 1000);
        /// Minimum average confidence of a point. The network's confidences start at 1, so 0 keeps all.
        c_conf as "C_conf": f32 = 0.0, "confidence", NotNegative;
        /// Minimum quality of a match, the geometric mean of the two descriptor confidences.
        q_conf as "Q_conf": f32 = 1.5, "match quality", NotNegative;
        /// Stop when the cost falls by less than this fraction.
        rel_error: f64 = 1e-3, "fraction", NotNegative;
        /// Stop when the step of the pose is shorter than this.
        delta_norm: f64 = 1e-3, "", NotNegative;
        /// Huber constant.
        huber: f64 = 1.345, "sigmas", Positive;
        /// A frame with fewer matched, or distinct matched, pixels becomes a keyframe.
        match_frac_thresh: f32 = 0.333, "fraction", Fraction;
        /// Standard deviation of a ray.
        sigma_ray: f64 = 0.003, "chord of unit rays", Positive;
        /// Standard deviation of a distance.
        sigma_dist: f64 = 10.0, "metres", Positive;
        /// Standard deviation of a pixel (calibrated).
        sigma_pixel: f64 = 1.0, "pixels", Positive;
        /// Standard deviation of a log depth (calibrated).
        sigma_depth: f64 = 10.0, "log metres", Positive;
        /// Minimum distance of a projection from the image's edge, inwards; negative values allow it outside by that
        /// much (calibrated).
        pixel_border: f64 = -10.0, "pixels", Finite;
        /// Minimum depth (calibrated).
        depth_eps: f64 = 1e-6, "metres", Positive;
        /// Pixels can be hidden: `run --mask`, the node's `mask_file` and topic `mask`, which set it. They match nothing
        /// and enter no pointmap.
        masks: bool = false, "", Any;
        /// How a keyframe's pointmap absorbs new ones: confidence-weighted mean of positions; of directions and
        /// ranges; the newest; the second only; the best by score; for each pixel the most confident.
        filtering_mode: FilteringMode = FilteringMode::WeightedPointmap, "", Any;
        /// What `best_score` compares, over the confidences.
        filtering_score: FilteringScore = FilteringScore::Median, "", Any;
    }
}

section! {
    /// Depth from a sensor, which makes the map metric (docs/algorithm.md, Depth).
    DepthConfig = "depth" {
        /// Use depth images: `run --depth` and the node's `use_depth` set it.
        enabled as "use": bool = false, "", Any;
        /// Steps per metre of 16-bit depth files. 0: the dataset's own: `depth_factor` in `camera.yaml`, else 5000 for TUM
        /// RGB-D and ETH3D-SLAM, 1000 for 7-Scenes. ROS messages of integers are in millimetres.
        units: f64 = 0.0, "1/metre", NotNegative;
        /// Minimum depth of a surface that is used; single pixels may be below it by three standard deviations of noise.
        min: f64 = 0.2, "metres", NotNegative;
        /// Maximum depth of a surface that is used; single pixels may be above it by three standard deviations of noise.
        max: f64 = 8.0, "metres", Positive;
        /// Maximum difference of neighbouring pixels of the sensor, as a part of the nearer one's depth. At a larger one,
        /// the edge of a surface, neither is used.
        max_jump: f64 = 0.05, "fraction", Positive;
        /// What is added to the stamp of a depth image for the time at which it was measured: negative if depth is older
        /// than its stamp says. With a calibration an offset that differs is found and reported.
        offset: f64 = 0.0, "s", Tenth;
    }
}

section! {
    /// Global optimisation (docs/algorithm.md, Global optimisation). The YAML section is `local_opt`, the reference's name.
    GlobalOptConfig = "local_opt" {
        /// What a solve minimises. `camera`: pixels and log depths if intrinsics are used, else rays and distances.
        /// `points`: distances of points in space (`sigma_point`).
        residual: ResidualChoice = ResidualChoice::Camera, "", Any;
        /// Number of first keyframes that stay fixed.
        pin: usize = 1, "keyframes", AtLeast(1);
        /// As in tracking.
        c_conf as "C_conf": f32 = 0.0, "confidence", NotNegative;
        /// As in tracking; also for the matches of an edge.
        q_conf as "Q_conf": f32 = 1.5, "match quality", NotNegative;
        /// Maximum keyframes of a map. Tracking goes on in a full map, which does not grow. 0: no limit but memory.
        max_keyframes: usize = 0, "keyframes", AtLeast(0);
        /// Newest keyframes that a global solve moves once there are more, together with the older ends of new edges.
        /// All keyframes move when a loop is closed; along a known path only at every (window/8)-th keyframe. 0:
        /// always all.
        window: usize = 120, "keyframes", AtLeast(0);
        /// Maximum keyframes of a solve that does not move all of them, the fixed ones included; fewer of the newest
        /// move in a place that was seen often. On a GPU such a solve is fast if it fits `memory.keyframe_slots` less
        /// four; a warning says if it does not. 0: no limit.
        window_keyframes: usize = 120, "keyframes", AtLeast(0);
        /// Maximum edges of such a solve; fast on a GPU if they fit `memory.edges`. 0: no limit.
        window_edges: usize = 512, "edges", AtLeast(0);
        /// When a loop is closed beyond the window, solve for all keyframes over factors, then over matches for the
        /// window and around the loop's ends. Otherwise such a solve takes all matches of the map.
        skeleton: bool = true, "", Any;
        /// Maximum edges of a keyframe, and at most `memory.edges` altogether. Beyond them the weakest becomes a factor,
        /// which needs no memory for matches. 8 is enough for a chain and a few loops. 0: no limit.
        max_edges: usize = 8, "edges", AtLeast(0);
        /// Maximum factors of a keyframe. Beyond it the weakest goes if its keyframes are within three edges and factors
        /// of each other. 0: no limit.
        max_factors: usize = 12, "factors", AtLeast(0);
        /// Loops must agree with the map or with each other before they move anything, and a solve that tears the map is
        /// undone (docs/algorithm.md). Includes the test of both directions: at 10 degrees for loops, at 5 for other
        /// edges if `two_way_degrees` is 0.
        judge_loops: bool = true, "", Any;
        /// How many preceding keyframes a new one is connected with, besides those of place recognition.
        neighbours: usize = 1, "keyframes", Whole(1, 64);
        /// An edge between keyframes that do not follow each other (and a relocalisation) is refused if its two
        /// directions, solved apart, differ by more than this in rotation or by 15 % in scale. 0: no test.
        two_way_degrees: f64 = 0.0, "degrees", NotNegative;
        /// Minimum fraction of matched pixels, both ways, of an edge between keyframes that do not follow each other.
        min_match_frac: f32 = 0.1, "fraction", Fraction;
        /// As in tracking.
        pixel_border: f64 = -10.0, "pixels", Finite;
        /// As in tracking.
        depth_eps: f64 = 1e-6, "metres", Positive;
        /// Maximum iterations of a solve.
        max_iters: usize = 10, "iterations", Whole(1, 1000);
        /// Stop when the step is shorter than this.
        delta_norm: f64 = 1e-8, "", NotNegative;
        /// Stop when the cost falls by less than this fraction.
        rel_error: f64 = 1e-6, "fraction", NotNegative;
        /// Huber constant.
        huber: f64 = 1.345, "sigmas", Positive;
        /// As in tracking.
        sigma_ray: f64 = 0.003, "chord of unit rays", Positive;
        /// As in tracking.
        sigma_dist: f64 = 10.0, "metres", Positive;
        /// As in tracking.
        sigma_pixel: f64 = 1.0, "pixels", Positive;
        /// As in tracking.
        sigma_depth: f64 = 10.0, "log metres", Positive;
        /// Standard deviation of a point, for the point residual.
        sigma_point: f64 = 0.05, "metres", Positive;
    }
}

section! {
    /// Place recognition (docs/algorithm.md, Place recognition).
    RetrievalConfig = "retrieval" {
        /// Maximum number of the most similar keyframes with which a keyframe or a lost frame is matched; on a GPU at most 32.
        k: usize = 3, "keyframes", Whole(1, 1000);
        /// Minimum score of a candidate.
        min_thresh: f32 = 5e-3, "score", NotNegative;
        /// Codebook file. Empty: the one that belongs to the weights.
        codebook: String = String::new(), "", PathBesideFile;
    }
}

section! {
    /// Relocalisation (docs/algorithm.md, Relocalisation).
    RelocConfig = "reloc" {
        /// Minimum fraction of matched pixels of a candidate.
        min_match_frac: f32 = 0.3, "fraction", Fraction;
        /// Every candidate must pass, not only one.
        strict: bool = true, "", Any;
        /// Failed attempts after which a new submap starts. Frames that show nothing (a covered lens) do not count.
        max_tries: usize = 60, "frames", AtLeast(1);
    }
}

section! {
    /// How the map stays as small as the space that it shows (docs/algorithm.md, Map economy).
    EconomyConfig = "economy" {
        /// Track against existing keyframes before new ones are made: a frame that loses its keyframe is located
        /// relative to those that show the same place. A live camera never waits for the answer. Fewer keyframes are
        /// made in known places, which takes less time there; frames are located less accurately.
        reuse: bool = false, "", Any;
        /// Margin above `tracking.match_frac_thresh`: such keyframes are looked for once a frame's fraction falls below
        /// their sum, which a keyframe that is taken then must reach. With less, the answer comes after the keyframe
        /// was made, and the keyframe taken is soon left again; with more, the search runs for frames that need none.
        reuse_margin: f32 = 0.1, "fraction", Fraction;
        /// The overlap that a known keyframe must have to make a new one needless, as a fraction of
        /// `tracking.match_frac_thresh`: from there on a keyframe is reused if it shows more of the frame than the
        /// active one does, and keyframes that stay overlap their neighbours by as much. With less, tracking changes to
        /// keyframes that show little; with 1, a known path is covered with keyframes again and again, because frames
        /// between two keyframes overlap neither by the threshold at which these were made.
        overlap: f32 = 0.7, "fraction", Fraction;
        /// Number of newer keyframes that a keyframe needs before it is reused: until then the camera looks around a
        /// new place, which new keyframes show better than existing ones. With 0, short sequences are less accurate.
        reuse_after: usize = 40, "keyframes", AtLeast(0);
        /// Remove keyframes whose view others have as well, so that the map grows with the space that it shows, and not
        /// with time. In a full map (`local_opt.max_keyframes`), a new keyframe then replaces the one that others cover
        /// most.
        remove: bool = true, "", Any;
        /// A keyframe is redundant if at least two others cover this fraction of its pixels, by their edges, or much
        /// older ones together, by poses and points. With less, parts of what it shows would be left to one view, or
        /// none.
        covered: f32 = 0.9, "fraction", Fraction;
        /// The same in a full map, where space counts more; if no keyframe is covered as much, the map stays full.
        covered_when_full: f32 = 0.6, "fraction", Fraction;
    }
}

section! {
    /// GPU memory. All of it is allocated at start and none later, so these are limits; `mast3r-slam plan` prints every
    /// buffer and how much lowering each of these saves. The CPU does not use them.
    MemoryConfig = "memory" {
        /// Keyframes whose images, points and tokens are in device memory (4.9 MB each at 512×384 with the official
        /// model); also the maximum of a solve in one piece. Beyond that the least useful one moves out.
        keyframe_slots: usize = 128, "keyframes", Whole(8, 65_535);
        /// Room for these in pinned host memory; the rest goes to a file.
        host_slots: usize = 128, "keyframes", Whole(0, 1 << 24);
        /// Edges whose matches are in device memory (2.4 MB each at 512×384).
        edges: usize = 512, "edges", Whole(16, 1 << 20);
        /// Maximum edges that the network decodes in one call on a GPU (3 are 2 and 1, except with
        /// `network.backend: native`). More are faster for small networks; each takes about 100 MB at 512×384, and
        /// activations. Halved if memory does not suffice.
        edge_batch: usize = 2, "edges", Whole(1, 8);
        /// Keyframes that place recognition can hold on a GPU; beyond that a new one replaces the most similar.
        places: usize = 8192, "keyframes", Whole(64, 1 << 24);
        /// Folder of the file for keyframes and edges that fit neither the GPU nor host memory. Empty: that of the map's
        /// file (`run --map`, `map_path`), without one the system's folder for temporary files (which may itself be
        /// memory).
        directory: String = String::new(), "", Path;
    }
}

section! {
    /// Results.
    OutputConfig = "output" {
        /// Minimum average confidence of the points in files and in the node's clouds and depth. Points that agree with
        /// the depth of a sensor are above it (with a calibration).
        c_conf as "C_conf": f32 = 1.5, "confidence", NotNegative;
        /// Edge of the cloud's voxels, with one point in each; 0 keeps every point.
        voxel_size: f32 = 0.0, "metres", NotNegative;
    }
}

section! {
    /// The occupancy grid that Nav2 plans in (docs/algorithm.md, Occupancy grid). Heights are above the robot's frame,
    /// whose z is up, or above the floor that is found if the camera's mount is not known.
    GridConfig = "grid" {
        /// Make the grid: the node publishes `map` and `map_updates`, and `~/save_map` writes `map.pgm` and `map.yaml`.
        /// `run` makes it with `--grid`.
        enable: bool = false, "", Any;
        /// Edge of a cell; at least a millimetre.
        resolution: f64 = 0.05, "metres", Positive;
        /// Points from this height on are obstacles, lower ones are the floor.
        min_height: f64 = 0.1, "metres", Finite;
        /// Points above this height are ignored: what the robot passes below.
        max_height: f64 = 1.5, "metres", Finite;
        /// Points farther from the camera than this, seen from above, are ignored; at most 1,000 cells.
        max_range: f64 = 5.0, "metres", Positive;
        /// Maximum number of cells, of four bytes each. What a larger map adds is left out, with a warning.
        max_cells: usize = 4_000_000, "cells", Whole(1, 1 << 28);
    }
}

section! {
    /// The photorealistic map of 3D Gaussians (docs/algorithm.md, Gaussian map). Its memory is allocated at start; if it
    /// does not fit, the map is left out and SLAM runs without it. Iterations are training steps, a view each.
    SplatConfig = "splat" {
        /// Make the map: `run` makes it with `--splat`, the node with its parameter `splat`.
        enable: bool = false, "", Any;
        /// Maximum number of Gaussians. Each takes 184 bytes at degree 0 and 724 at degree 3.
        capacity: usize = 1_000_000, "rows", Whole(1, 1_073_741_823);
        /// Degree of the spherical harmonics of the colour. 0: the colour does not depend on the direction.
        degree: usize = 0, "", Whole(0, 3);
        /// How the map grows where it is not good enough. `adc`: Gaussians with large gradients are duplicated or split,
        /// transparent ones pruned. `mcmc`: transparent ones move to where others are.
        strategy: SplatStrategy = SplatStrategy::Adc, "", Any;
        /// Time for training beside SLAM, of every second. 0: keyframes are seeded and not refined.
        ms_per_second: f32 = 200.0, "ms/s", NotNegative;
        /// Iterations of `mast3r-slam splat train`.
        iterations: usize = 3000, "iterations", AtLeast(0);
        /// Key of the random numbers; the same key and the same input give the same map.
        seed: usize = 1, "", AtLeast(0);
        /// Every n-th keyframe is not trained on but used to measure quality. 0: none.
        holdout: usize = 8, "keyframes", AtLeast(0);
        /// Typical size of the scene, which learning rates of positions and the sizes of refinement are relative to.
        extent: f32 = 1.0, "metres", Positive;
        /// Keyframes become Gaussians at every n-th pixel of every n-th image row.
        stride: usize = 2, "pixels", Whole(1, 64);
        /// Minimum average confidence of such a pixel.
        c_conf as "C_conf": f32 = 1.5, "confidence", NotNegative;
        /// Such a pixel must be covered less than this by the map as it is, or be nearer than the map.
        max_silhouette: f32 = 0.5, "fraction", Fraction;
        /// Weight of 1 − SSIM in the loss, beside the mean absolute difference.
        ssim_weight: f32 = 0.2, "fraction", Fraction;
        /// Weight of the mean difference in depth.
        depth_weight: f32 = 0.1, "1/metre", NotNegative;
        /// Learning rate of positions at the start, in extents.
        lr_mean: f32 = 1.6e-4, "", NotNegative;
        /// The same after `lr_steps` iterations; it falls exponentially.
        lr_mean_final: f32 = 1.6e-6, "", NotNegative;
        /// See `lr_mean_final`.
        lr_steps: usize = 30_000, "iterations", AtLeast(1);
        /// Learning rate of colours; that of the higher bands is a twentieth of it.
        lr_color: f32 = 2.5e-3, "", NotNegative;
        /// Learning rate of opacity logits.
        lr_opacity: f32 = 0.05, "", NotNegative;
        /// Learning rate of log scales.
        lr_scale: f32 = 5e-3, "", NotNegative;
        /// Learning rate of rotations.
        lr_rotation: f32 = 1e-3, "", NotNegative;
        /// Learning rate of the views' poses at the start, radians and extents; it falls to a hundredth over a run of
        /// `splat train`. Only the splats are trained with these poses, the map of SLAM keeps its own; beside SLAM its poses
        /// are used. 0: SLAM's poses.
        lr_pose: f32 = 1e-3, "", NotNegative;
        /// First iteration after which the views' poses are trained.
        pose_from: usize = 500, "iterations", AtLeast(0);
        /// Steps by which the pose of a held-out keyframe is aligned with the finished splats before it is compared; it is
        /// compared at SLAM's pose too. 0: only there.
        align: usize = 100, "steps", AtLeast(0);
        /// Iterations between two refinements.
        refine_every: usize = 150, "iterations", AtLeast(1);
        /// First iteration after which the map is refined.
        refine_from: usize = 500, "iterations", AtLeast(0);
        /// Iteration from which on it is not.
        refine_until: usize = 15_000, "iterations", AtLeast(0);
        /// Mean gradient by the projected position, in units of half the image, above which a Gaussian grows.
        grow_gradient: f32 = 2e-4, "", Positive;
        /// A Gaussian that grows is split if it is larger than this, else duplicated.
        grow_scale: f32 = 0.01, "extents", Positive;
        /// Gaussians with a smaller opacity are pruned, or move.
        prune_opacity: f32 = 0.005, "opacity", Fraction;
        /// Gaussians larger than this are pruned after the first reset of opacities.
        prune_scale: f32 = 0.1, "extents", Positive;
        /// Iterations between two resets of all opacities to twice `prune_opacity`; 0: never. Only `adc`.
        reset_every: usize = 3000, "iterations", AtLeast(0);
        /// Children of a split are as opaque together as their parent was. Only `adc`.
        revised_opacity: bool = false, "", Any;
        /// Noise of positions in units of their learning rate. Only `mcmc`.
        noise: f32 = 5e5, "", NotNegative;
        /// Growth of the number of Gaussians at a refinement. Only `mcmc`.
        growth: f32 = 0.05, "fraction", Fraction;
    }
}

//! The settings that are one of several words.

use super::declare::choice;

choice! {
    /// What everything but the network runs on.
    DeviceChoice = Auto {
        /// A GPU if one can be used, else the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// A GPU; an error without one.
        Cuda = "cuda",
    }
}

choice! {
    /// How stages are scheduled.
    Threads = Pipelined {
        /// Mapping runs in its own thread.
        Pipelined = "pipelined",
        /// Mapping is done before the next frame, which is bit-for-bit repeatable. Stages still use all cores.
        Single = "single",
    }
}

choice! {
    /// Whether loops are closed.
    Loops = On {
        /// Places seen before are looked for and connected.
        On = "on",
        /// Only consecutive keyframes are connected; relocalisation still works.
        Off = "off",
    }
}

choice! {
    /// What the network runs on.
    BackendChoice = Auto {
        /// The first that works on the chosen device: TensorRT with an engine, native, ONNX Runtime, the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// This program's own kernels on an NVIDIA GPU, or an error.
        Native = "native",
        /// ONNX Runtime, or an error.
        Onnxruntime = "onnxruntime",
        /// TensorRT, or an error.
        Tensorrt = "tensorrt",
    }
}

choice! {
    /// What the network computes with.
    PrecisionChoice = Auto {
        /// binary16 on a GPU, binary32 on the CPU.
        Auto = "auto",
        /// binary32.
        Fp32 = "fp32",
        /// binary16, with what needs more in binary32.
        Fp16 = "fp16",
        /// bfloat16, with what needs more in binary32. TensorRT and native only.
        Bf16 = "bf16",
        /// binary16, with 8-bit floats in the transformer's linear layers: inputs and weights with TensorRT, weights
        /// with native.
        Fp8 = "fp8",
    }
}

choice! {
    /// How a keyframe's pointmap absorbs new ones (docs/algorithm.md, Pointmap fusion).
    FilteringMode = WeightedPointmap {
        /// Confidence-weighted mean of positions.
        WeightedPointmap = "weighted_pointmap",
        /// Confidence-weighted mean of directions and ranges.
        WeightedSpherical = "weighted_spherical",
        /// The newest estimate.
        Recent = "recent",
        /// The second estimate, and no later one.
        First = "first",
        /// The estimate with the best score.
        BestScore = "best_score",
        /// For each pixel the most confident estimate.
        IndepConf = "indep_conf",
    }
}

choice! {
    /// The score that `best_score` compares.
    FilteringScore = Median {
        /// Lower median of the confidences.
        Median = "median",
        /// Mean of the confidences.
        Mean = "mean",
    }
}

choice! {
    /// What a global solve minimises (docs/algorithm.md, Global optimisation).
    ResidualChoice = Camera {
        /// Pixels and log depths with the camera's intrinsics, else rays and distances.
        Camera = "camera",
        /// Distances of points in space; the reference implements it and never uses it.
        Points = "points",
    }
}

choice! {
    /// How a Gaussian map grows where it is not good enough (docs/algorithm.md, Gaussian map).
    SplatStrategy = Adc {
        /// Duplicate, split and prune by gradients and opacities.
        Adc = "adc",
        /// Move transparent Gaussians onto opaque ones, and add noise.
        Mcmc = "mcmc",
    }
}
